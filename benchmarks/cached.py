"""Policy ``cached``: what copies of rows on dense ranks save.

    python benchmarks/cached.py [--parts NAMES] [--quick] [--json FILE] [--cluster DIR] [--data DIR]

``bytes``   Bytes a step between ranks, of all tags but the dense sum, beside those of ``sync`` with form ``rows``,
            which sends each distinct row of a rank's batch once: 4 fused ranks, Criteo Kaggle's 26 tables with at most
            100,000 rows each (those of more are cut, so that copies settle in hundreds of steps), one id a bag by
            P(rank k) ~ (k + 1)^-1.05, SGD, 10 % of the rows kept by every rank, the better of ``lru`` and ``lfu``.
            Counted by the ledger in 300 steps after 500 others: ``het.bytes_saved_cut.<batch of a rank>.<width>`` at a
            staleness of 100, ``het.bytes_saved_cut_s10.<batch>.<width>`` at 10, and
            ``het.bytes_saved_auto.<batch>.<width>`` at 100 beside what ``auto`` chooses under ``sync``. That copies
            have settled is shown by the halves of the counted steps. A model that computes a sum: bytes do not depend
            on it
``counts``  The same by count, without values and in one process, of more settings: tables of at most a million rows,
            exponents 1.05 and 1.2, caches of 5, 10 and 15 % of all rows that begin settled, and some that begin empty.
            ``het.bytes_saved.<exponent>.<batch>.<width>`` at a staleness of 100 and 10 %, by the best of ``lru``,
            ``lfu`` and ``lightlfu``, ``het.bytes_saved_s10`` at 10, and ``het.bytes_saved_each_id`` at 100 beside each
            id pulled and its gradient pushed; rows also have the most frequent rows as a cache (``frequent``), where
            bytes are, and what other clocks would save. ``het.count_error``: bytes by which the ledger of runs over MPI
            differs from the count of them
``predicted``
            What the product predicts of the cells of ``counts`` (``cached_parts/predicted.py``), by which
            ``exchange.form = "auto"`` chooses: ``het.predicted_error``, of their bytes, the largest and the median
``known``   The rules by which copies go beside the best that any does, whose copy goes that is needed last
            (``cached_parts/known_part.py``), by count: ``het.known.found.<exponent>.<rule>``, of the copies that
            ``known`` finds with a window of 1,000 steps, ``het.known.served``, of the reads that its copies serve, and
            ``het.known.saved``, of the bytes of deduplicated rows; at 128 samples a rank, 10 % and a staleness of 100
``bags``    Bytes of bags of several ids beside form ``pooled``, by count (``cached_parts/bags.py``):
            ``het.bags.pooled_over_cached.<ids>.<width>``, and from how many ids on pooled is fewer
            (``het.bags.break_even.<width>``)
``time``    Steps of Wide & Deep as HET has it over slow links, one owner and 4 dense ranks on 5 emulated hosts
            (``cached_parts/time_part.py``): ``het.speedup.100mbit`` and ``.1gbit`` against deduplicated rows under
            ``sync``, ``het.speedup_each_id.100mbit``; and ``het.speedup_ahead.<rate>`` with a lookahead against
            rows under ``hybrid``
``thresholded``
            At 100 Mbit/s with ``dense.compression = "dct"`` in all runs: the dense sum is the longer part of a step of
            ``cached``. ``het.speedup_dct.100mbit``, ``het.speedup_dct_each_id.100mbit`` and
            ``het.speedup_dct_ahead.100mbit``
``everywhere``
            The same as ``time`` with an owner beside every dense rank: on 4 emulated hosts
            ``het.speedup_all_owners.100mbit``, and on one host ``het.speedup_one_host``
``lookups`` Distinct rows a second of a dense rank's copies (``cached_parts/lookups.py``): ``het.lookups_per_s`` where
            all have one, ``het.lookups_missing_per_s`` where a tenth has none and others give way
``affinity``
            Dealing each sample to the dense rank that has copies of most of its rows (``cached_parts/affinity.py``), by
            count: ``het.affinity.saved.<data>.<ranks>`` at a staleness of 100 and ``het.affinity.saved_s0`` at 0, of
            the bytes of ``cached`` without it, at 128 samples a rank and 64 columns, shipping of samples paid;
            ``_rows``: of those of deduplicated rows
``history`` The same by the rule that the product has, in which ranks know only what batches have had before
            (``cached_parts/history_part.py``), by count: ``het.history.saved.<data>.<ranks>.<s>``, and
            ``het.history.kept``, which part that is of what is saved where every rank's copies are known
``dealt``   What that saves in runs with ``data.deal = "affinity"`` (``cached_parts/dealt_part.py``): bytes, by the
            ledger, beside those of runs in order, of real samples on 4 fused ranks, 128 samples of each, 64 columns:
            ``het.dealt.saved.<policy>.<data>.4``
``synthetic_<optimizer>`` and ``movielens_<optimizer>``
            AUC beside that of ``sync`` (``cached_parts/quality_part.py``): ``het.auc_interval.<data>.<optimizer>.s10``
            and ``.s100``, the largest staleness that holds (``het.largest_s.<data>.<optimizer>``), and what it saves of
            the bytes of deduplicated rows (``het.bytes_saved_at_auc.<data>.<optimizer>``). ``hot_sgd`` is a bad case,
            without claims; ``movielens_long_rowwise_adagrad`` is one of five times the steps, without claims too

Shares of bytes are counts, the same in every run. The JSON of each part but the first lies beside it, as
<FILE>_<part>.
"""

import argparse
import os
from functools import partial
from pathlib import Path

from _report import ROOT, asked, finish
from _report import options as benchmark_options
from cached_parts import (
    affinity,
    bags,
    bytes_part,
    check,
    counts_part,
    dealt_part,
    history_part,
    known_part,
    lookups,
    predicted,
    quality_part,
    time_part,
)
from des_parts.cells import Row


def main() -> None:
    parser = benchmark_options(__doc__, tuple(PARTS))
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "speed"
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data", help="real samples")
    options = parser.parse_args()
    for part, path in asked(parser, options, tuple(PARTS)):
        rows, claims = PARTS[part](options)
        finish("cached", rows, claims, path)


def bytes_of_runs(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What the ledger says."""
    return bytes_part.measure(options.cache, quick=options.quick)


def counts(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What a count says; and that the ledger says the same, where it says something."""
    checked, count_error = check.measure(options.cache, quick=options.quick)
    rows, claims = counts_part.measure(quick=options.quick)
    return [*checked, *rows], [*claims, *count_error]


def foretold(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:  # noqa: ARG001
    """What formulas say of the counts."""
    return predicted.measure()


def by_known(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What the best rule would save."""
    return known_part.measure(quick=options.quick)


def of_bags(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Where form ``pooled`` is fewer bytes."""
    return bags.measure(quick=options.quick)


def time(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What links that are slow gain."""
    return time_part.measure(options.cache, options.cluster, quick=options.quick)


def thresholded(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """The same where the dense sum is short."""
    return time_part.thresholded(options.cache, options.cluster, quick=options.quick)


def everywhere(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """The same where every rank has rows."""
    return time_part.everywhere(options.cache, options.cluster, quick=options.quick)


def quality(name: str, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What stale rows cost."""
    return quality_part.measure(options.cache, options.data, name, quick=options.quick)


def looked_up(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What the copies themselves take."""
    return lookups.measure(quick=options.quick)


def dealt(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What another dealing of samples would save."""
    return affinity.measure(options.cache, options.data, quick=options.quick)


def by_history(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What a dealing that knows no copies would."""
    return history_part.measure(options.cache, options.data, quick=options.quick)


def dealt_in_runs(options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """What the product's own saves."""
    return dealt_part.measure(options.cache, options.data, quick=options.quick)


PARTS = {
    "bytes": bytes_of_runs,
    "counts": counts,
    "predicted": foretold,
    "known": by_known,
    "bags": of_bags,
    "time": time,
    "thresholded": thresholded,
    "everywhere": everywhere,
    "lookups": looked_up,
    "affinity": dealt,
    "history": by_history,
    "dealt": dealt_in_runs,
    **{name: partial(quality, name) for name in quality_part.NAMES},
}


if __name__ == "__main__":
    main()
