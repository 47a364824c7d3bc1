"""Measures how evenly the shard map spreads a skewed workload: time, lookups and memory of the fullest owner.

    python benchmarks/balance.py [--quick] [--json FILE]

Tables from 100 to 2,000,000 rows, 0.5 to 30 ids a sample, ids by a power law (in order of frequency, as vocabularies
often are: the worst case for shards by ranges of ids). Placement is left open (``shard = "auto"``).
``balance.slowest_owner`` is gather and update time of the slowest owner divided by the mean over owners, from
``summary.json``: CPU time of the thread that does it, so that other work on a shared machine does not count. The row
``whole`` has whole tables only, for comparison.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim, finish, trained, write_config
from _report import options as benchmark_options

# rows, ids a sample
TABLES = ((100, 1.0), (500, 8.0), (2_000, 1.0), (20_000, 30.0), (60_000, 1.0), (300_000, 5.0), (2_000_000, 0.5))
WIDTH, SAMPLES, BATCH = 32, 120_000, 4096
EXPONENT = 1.1
CONFIG = """
[data]
train = "{folder}/data.h5"
[model]
name = "dlrm"
width = 32
[topology]
mode = "split"
dense = 1
[dense]
reducer = "mpi"
[train]
steps = {steps}
batch_size = 4096
[checkpoint]
resume = "never"
"""


def main() -> None:
    options = benchmark_options(__doc__).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "data.h5")
        config = write_config(folder, CONFIG.format(folder=folder, steps=20 if options.quick else 100))
        for owners in (2,) if options.quick else (2, 4):
            rows += [measured(config, owners, "auto")]
        rows.append(measured(config, rows[-1]["owners"], "whole"))
    for row in rows:
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))
    auto = [row for row in rows if row["placement"] == "auto"]
    claims = [
        claim("balance.slowest_owner", max(r["time"] for r in auto), "of the mean", "<= 1.15"),
        claim("balance.fullest_owner", max(r["bytes"] for r in auto), "of the mean", "<= 1.15"),
    ]
    finish("balance", rows, claims, options.json)


def measured(config: Path, owners: int, placement: str) -> dict[str, Any]:
    """The imbalance that one run reports."""
    whole = [f"embedding.tables.f{i}.shard=table" for i in range(len(TABLES))] if placement == "whole" else []
    summary = trained(config, owners + 1, f"topology.owners={owners}", *whole)
    return {"owners": owners, "placement": placement, **summary["imbalance"]}


def write_data(path: Path) -> None:
    """Samples whose ids are power-law distributed; id 0 is the most frequent."""
    from hpcrec.data.layout import Column, Columns
    from hpcrec.preparation.writer import Writer
    from hpcrec.types import Feature

    rng = np.random.default_rng(1)
    features = tuple(Feature(name=f"f{i}", cardinality=n, mean_ids=ids) for i, (n, ids) in enumerate(TABLES))
    columns = {}
    for feature in features:
        chance = np.cumsum((np.arange(feature.cardinality) + 5.0) ** -EXPONENT)
        lengths = rng.poisson(feature.mean_ids, SAMPLES)
        ids = np.searchsorted(chance / chance[-1], rng.random(int(lengths.sum())), side="right")
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        columns[feature.name] = Column(np.minimum(ids, feature.cardinality - 1), offsets)
    label = rng.integers(0, 2, SAMPLES).astype(np.float32)
    dense = rng.standard_normal((SAMPLES, 4)).astype(np.float32)
    jagged = [f.name for f in features]
    with Writer(path, features, n_dense=4, n_labels=1, jagged=jagged, optional=()) as writer:
        writer.append(Columns(label=label, dense=dense, sparse=columns))


if __name__ == "__main__":
    main()
