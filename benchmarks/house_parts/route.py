"""One dense rank's work to route a batch to so many owners, without the owners: time and bytes, in one process.

    python benchmarks/house_parts/route.py OUT DATA ROUNDS OWNERS [OWNERS ...]

The batch is the rank's part of one of ``benchmarks/speed.py``'s w1: 512 samples of Criteo Kaggle's 26 features, one id
each, tables of at most 1,000,000 rows, each dealt by rows to all owners. Every round has another batch. ``dense_side``
is all that is known of the exchange: what it returns turns a batch into the messages to all ranks and says their bytes,
as the rank would send them.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from speed_parts import workload

import hpcrec
from hpcrec.types import Bags, Feature, Lookup, TableSpec

SAMPLES, WIDTH, WARM, UNIT_BYTES = 512, 16, 1, 64
Route = Callable[[Bags], np.ndarray]
"""A batch's bags -> bytes of the messages to each rank, int64 [R], once they are written and ready to be sent."""


def dense_side(rows: Sequence[int], owners: int, samples: int) -> Route:
    """The exchange's own work of a dense rank that is told of so many owners; the rank comes after them.

    The one place to change where the exchange's classes do. Ids are written as they are to owners on the same host.
    """
    from hpcrec.embedding.shards import Placement, build_families
    from hpcrec.exchange.layout import Layout

    tables, features, lookups = tables_of(rows)
    placements = {name: Placement(kind="row") for name in tables}
    every, me = tuple(range(owners)), owners
    families = build_families(tables, features, lookups, placements, owners=every, dense=(me,), replicate_rows=0)
    layout = Layout(tables, families, lookups, forms={}, default_form="pooled", operators={})
    dtype = np.dtype(np.float32)
    names = {f.name for f in features}
    side: Any
    try:
        from hpcrec.exchange.bags import Splitter
        from hpcrec.exchange.dense_side import DenseSide
    except ImportError:  # a commit before these
        from hpcrec.exchange.ask import Asker  # type: ignore[import-not-found]
        from hpcrec.exchange.split import Splitter as Before  # type: ignore[import-not-found]

        before = Before(layout, names, seed=1, replicas=None, weighted=set(), dtype=dtype)
        side = Asker(before, layout, replicas=None, size=owners + 1, pad=padded, dtype=dtype)
    else:
        splitter = Splitter(layout, names, seed=1, weighted=set(), dtype=dtype)
        side = DenseSide(splitter, layout, replicas=None, size=owners + 1, pad=padded)
    kept = np.empty(samples * len(rows) * 8 + owners * len(rows) * 64, np.uint8)

    def room(bytes_R: np.ndarray) -> np.ndarray:  # kept from step to step, as the exchange's own is
        return kept[: int(bytes_R.sum())]

    def route(bags: Bags) -> np.ndarray:
        asked, _ = side.ask(bags, samples, room, train=True)
        return np.asarray(asked.id_bytes_R)

    return route


def padded(bytes_R: np.ndarray) -> np.ndarray:
    """Messages begin at a multiple of ``UNIT_BYTES``, as the exchange's do."""
    return -(-bytes_R // UNIT_BYTES) * UNIT_BYTES


def tables_of(rows: Sequence[int]) -> tuple[dict[str, TableSpec], list[Feature], list[Lookup]]:
    """A table, a feature and a lookup of the same name for each number of rows."""
    names = [f"f{number}" for number in range(len(rows))]
    tables = {name: TableSpec(name=name, rows=n, width=WIDTH) for name, n in zip(names, rows, strict=True)}
    features = [Feature(name=name, cardinality=n) for name, n in zip(names, rows, strict=True)]
    return tables, features, [Lookup(feature=name, table=name) for name in names]


def bags_of(ids_FB: np.ndarray) -> Bags:
    """A batch of one id a feature and sample."""
    names = tuple(f"f{number}" for number in range(len(ids_FB)))
    return Bags(names, ids_FB.reshape(-1).astype(np.int64), np.arange(ids_FB.size + 1, dtype=np.int64))


def measured(route: Route, batches: Sequence[Bags]) -> dict[str, Any]:
    """Median milliseconds of a batch, the first left out, and mean bytes an id."""
    ms, n_bytes = [], 0
    for bags in batches:
        began_s = time.perf_counter()
        bytes_R = route(bags)
        ms.append(1e3 * (time.perf_counter() - began_s))
        n_bytes += int(bytes_R.sum())
    return {"ms": statistics.median(ms[WARM:]), "bytes_per_id": n_bytes / sum(len(bags.ids) for bags in batches)}


def main(out: str, data: str, rounds: str, *owners: str) -> None:
    w = workload.WORKLOADS["w1"]
    ids_NFB = np.load(workload.path("w1", Path(data), "ids"), mmap_mode="r")[:, :, :SAMPLES, 0]
    batches = [bags_of(np.array(ids_NFB[number % len(ids_NFB)])) for number in range(int(rounds) + WARM)]
    found = {n: measured(dense_side(w.rows, int(n), SAMPLES), batches) for n in owners}
    Path(out).write_text(json.dumps({"owners": found, "package": hpcrec.__file__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
