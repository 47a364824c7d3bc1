"""Policy ``cached``: what copies of rows on dense ranks save.

    python benchmarks/cached.py [--parts bytes] [--quick] [--json FILE]

``bytes``  Bytes a step between ranks, of all tags but the dense sum, beside those of ``sync`` with form ``rows``, which
           sends each distinct row of a rank's batch once: 4 fused ranks, Criteo Kaggle's 26 tables with at most 100,000
           rows each (those of more are cut, so that copies settle in hundreds of steps), one id a bag by P(rank k) ~
           (k + 1)^-1.05, SGD, 10 % of the rows kept by every rank, the better of ``lru`` and ``lfu``. Counted by the
           ledger in the ``COUNTED`` steps after ``SETTLING`` others: ``het.bytes_saved.1.05.<batch of a rank>.<width>``
           at a staleness of 100, and ``het.bytes_saved_s10.<batch>.<width>`` at 10. That copies have settled is shown
           by the halves of the counted steps. A model that computes a sum: bytes do not depend on it

The share of bytes is a count, the same in every run; nothing is timed.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import asked, claim, finish
from _report import options as benchmark_options
from _workloads import CRITEO, zipf_ids
from des_parts.cells import show
from on_ranks import launch

from hpcrec.preparation.writer import Column, Columns, Feature, Writer

Row = dict[str, Any]
PARTS = ("bytes",)
CONFIG = Path(__file__).resolve().parent / "hybrid_parts" / "hybrid.toml"
ROWS = tuple(min(rows, 100_000) for rows in CRITEO)
RANKS, SEED, CHUNK = 4, 3, 16_384
SETTLING, COUNTED = 500, 300
SETTINGS = ((128, 16), (128, 64), (512, 16), (512, 64))  # samples of a rank's batch, and width
STALENESS, CACHES = (0, 10, 100), ("lru", "lfu")
GOALS = {(128, 16): 0.88, (128, 64): 0.88, (512, 16): 0.85, (512, 64): 0.87}
GOAL_S10 = {128: 0.75}
NOT_ROWS = ("dense",)  # tags of messages that no policy of rows concerns


def main() -> None:
    parser = benchmark_options(__doc__, PARTS)
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "hpcrec" / "speed"
    parser.add_argument("--cache", type=Path, default=cache, help="where data sets are kept")
    options = parser.parse_args()
    for _, path in asked(parser, options, PARTS):
        rows, claims = count(options.cache, quick=options.quick)
        finish("cached", rows, claims, path)


def prepared(cache: Path, samples: int) -> Path:
    """So many, in a file that is made unless it is there."""
    path = cache / f"cached-{samples}.h5"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    features = [Feature(name=f"f{t}", cardinality=rows) for t, rows in enumerate(ROWS)]
    with Writer(path, features, n_dense=1) as writer:
        for first in range(0, samples, CHUNK):
            n = min(CHUNK, samples - first)
            ids = {f.name: Column(zipf_ids(ROWS[t], n, (SEED, t, first)), None) for t, f in enumerate(features)}
            label = (np.random.default_rng((SEED, first)).random(n) < 0.25).astype(np.float32)
            writer.append(Columns(label=label, dense=np.zeros((n, 1), np.float32), sparse=ids))
    return path


def count(cache: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    rows, claims = [], []
    settling, counted = (20, 10) if quick else (SETTLING, COUNTED)
    for batch, width in SETTINGS[:1] if quick else SETTINGS:
        data = prepared(cache, RANKS * batch * (settling + counted))
        base = ["exchange.form=rows"]
        arms: dict[tuple[int, str], list[str]] = {
            (s, evict): ["policy.name=cached", f"policy.staleness={s}", f"policy.cache={evict}"]
            for s in STALENESS
            for evict in (CACHES if s else CACHES[:1])
        }
        jobs = [job(data, batch, width, settling, counted, own) for own in (base, *arms.values())]
        found = iter(launch.local(jobs, ranks=RANKS))
        first, second = halves(next(found))
        own_bytes, saved = first + second, dict[tuple[int, str], float]()
        for (s, evict), row in zip(arms, found, strict=True):
            mine = halves(row)
            saved[s, evict] = 1 - sum(mine) / own_bytes
            rows.append(
                {
                    "part": "bytes",
                    "batch": batch,
                    "width": width,
                    "staleness": s,
                    "cache": evict,
                    "kb_a_step": 1e-3 * sum(mine) / counted,
                    "rows_kb_a_step": 1e-3 * own_bytes / counted,
                    "saved": saved[s, evict],
                    "saved_first_half": 1 - mine[0] / first,
                    "saved_second_half": 1 - mine[1] / second,
                }
            )
            show(rows[-1])
        unit = "of the bytes of deduplicated rows, fewer"
        best = {s: max(value for (of, _), value in saved.items() if of == s) for s in STALENESS}
        goal = f">= {GOALS[batch, width]:g}"
        claims.append(claim(f"het.bytes_saved.1.05.{batch}.{width}", best[100], unit, goal))
        goal_s10 = None if batch not in GOAL_S10 else f">= {GOAL_S10[batch]:g}"
        claims.append(claim(f"het.bytes_saved_s10.{batch}.{width}", best[10], unit, goal_s10))
    return rows, claims


def job(data: Path, batch: int, width: int, settling: int, counted: int, own: Sequence[str]) -> Row:
    """A run whose bytes are counted in the two halves of its last steps."""
    settings = [
        f"data.train={data}",
        "data.shuffle=false",
        "model.name=summed:build",
        f"model.width={width}",
        "embedding.optimizer.name=sgd",
        "embedding.optimizer.lr=0.01",
        f"train.batch_size={RANKS * batch}",
        f"train.steps={settling + counted + 1}",  # in the last step all that is held back is sent
        *own,
    ]
    marks = [settling, settling + counted // 2, settling + counted]
    return {"kind": "counted", "config": str(CONFIG), "settings": settings, "marks": marks}


def halves(row: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes of the first half of the counted steps, and of the second."""
    tags = [t for t, tag in enumerate(row["tags"]) if tag not in NOT_ROWS]
    at_settled, at_half, at_end = (float(np.array(of)[tags].sum()) for of in row["bytes_MTRR"])
    return at_half - at_settled, at_end - at_half


if __name__ == "__main__":
    main()
