"""Bytes and time of a step by form of the exchange: what partial results [DES] save against a parameter server's rows.

    python benchmarks/des.py [--parts bytes,time,auc,hosts] [--quick] [--json FILE] [--data DIR] [--cluster DIR]

2 owners and 2 dense ranks, global batch 4,096, width 16, 4 bytes a value, LR, FM, DeepFM, DCN and DLRM. Shapes of data:
``onehot`` has Criteo Kaggle's 26 features with at most 1,000,000 rows each, ``multihot`` 30 features of 20 ids over
1,000,000 rows, both with ids by P(rank k) ~ (k + 1)^-1.05; ``movielens`` are pairs of users and items, ``criteo`` is a
sample of the real logs (``des_parts/shapes.py``); --data is the folder that those come from. Exponent 1.2 and batch
16,384 are further rows.

``bytes``: the ledger's, all tags, of a short run of each, without what is sent before the first step; samples/s are of
the same runs, one each, and not what is claimed. ``rows`` are deduplicated by dense rank and step, the strongest
parameter server; the row ``rows, each id`` is what papers count, by formula: the vectors of every id there and back,
and no bytes of ids. ``des.saving.<shape>.<model>``: 1 - bytes of ``partial`` over those of ``rows``, owners reading ids
on both sides; ``auto.saving`` the same of ``auto``. ``auto.regret``: bytes of ``auto`` above the best single form's.

What the parts ``time``, ``auc`` and ``hosts`` measure, and their claims, is said in ``des_parts``. The JSON of each
lies beside that of ``bytes``, as <FILE>_<part>.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from _report import ROOT, asked, finish
from _report import options as benchmark_options
from des_parts import auc_part, bytes_part, cells, hosts_part, shapes, time_part
from des_parts.cells import Row

PARTS = ("bytes", "time", "auc", "hosts")
QUICK_SHAPES = ("onehot", "multihot")


def main() -> None:
    parser = benchmark_options(__doc__, PARTS)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "speed"
    parser.add_argument("--data", type=Path, default=ROOT / "../shared/data", help="folder of the real files")
    parser.add_argument("--cluster", type=Path, default=ROOT / "../shared/cluster", help="scripts of emulated hosts")
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    options = parser.parse_args()
    for part, path in asked(parser, options, PARTS):
        finish("des", *measured(part, options), path)


def measured(part: str, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    """Rows and claims of a part; the data sets that it needs are made first."""

    def data_of(names: Iterable[str]) -> dict[str, Path]:
        found = {name: shapes.prepare(name, options.cache, options.data) for name in dict.fromkeys(names)}
        return {name: path for name, path in found.items() if path is not None}

    if part == "auc":
        return auc_part.measure(data_of(s.data for s in auc_part.SHAPES), quick=options.quick)
    every = [s for s in cells.SHAPES if not options.quick or s.name in QUICK_SHAPES]
    if part == "bytes":
        every += [] if options.quick else cells.FURTHER
    data = data_of(s.data for s in every)
    if part == "time":
        return time_part.measure(data, quick=options.quick)
    if part == "hosts":
        return hosts_part.measure(data, options.cluster, quick=options.quick)
    return bytes_part.measure([s for s in every if s.data in data], data, quick=options.quick)


if __name__ == "__main__":
    main()
