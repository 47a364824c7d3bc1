"""Rows a second that a dense rank's copies answer, by one rank's 2 threads, without MPI.

    python benchmarks/cached_parts/lookups.py [--quick] [--json FILE]

A pool of ``PooledCopies`` with room for a million rows of 16 float32 columns, full, whose rows have their places in a
random order (in a run the frequent ones come first and lie together, which is easier). A step asks for distinct rows,
ascending, drawn by P(k-th) ~ (k + 1)^-1.05; ``read`` is given what ``DenseCopies`` gives it: room for all rows.

``het.lookups_per_s``          distinct rows a second that are found, are said to be copies young enough, are kept in
                               order (``lru``) and are copied out with what their own ticks make of them (``kept`` and
                               ``read``), where all have copies and none comes: the slowest batch size
``het.lookups_missing_per_s``  the same where a tenth of the rows have no copy, come, and take the places of others,
                               whose sums of gradients are taken for a push. Others are drawn from half a million, and
                               copies of the other half go: else those that went would be asked for again and add to it

Rows also have ``push``, which adds the step's gradients up, of the same steps, and what bounds these: ``gather``, the
same rows copied out of one array by ``kernels.pooled_gather``, whose places are known, and ``admit``, the map of ids
alone. Medians, minima and maxima of nanoseconds a row, of turns of some steps each; the machine may be shared.
"""

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from _report import claim, finish, options, spread
from des_parts.cells import Row, show

from hpcrec import kernels
from hpcrec.embedding.shards import Family
from hpcrec.exchange.forms.cached import Cached, PooledCopies
from hpcrec.exchange.forms.conditional import Asked, Keeping
from hpcrec.types import Floats, Ints, OptimizerSpec, TableSpec

CAPACITY, WIDTH, EXPONENT, SEED, THREADS = 1_000_000, 16, 1.05, 5, 2
BATCHES, QUICK_BATCHES = (8192, 16384, 65536), (16384,)
OPTIMIZERS = "sgd", "rowwise_adagrad"
CACHES: tuple[kernels.Evict, ...] = ("lru", "lightlfu")
STALENESS, MISSING = 100, 0.1
TURNS, QUICK_TURNS, STEPS = 6, 2, 7  # of copies, then of limits; each begins with a step more, which is not counted
TABLE = "t"


class Asking:
    """Distinct rows by popularity, and rows that nobody has asked for yet.

    Parameters
    ----------
    rows : int
        That are asked for by popularity: numbers below this, dealt at random.
    exponent : float
    """

    def __init__(self, rows: int, exponent: float) -> None:
        self._rng = np.random.default_rng(SEED)
        chance = (np.arange(rows) + 1.0) ** -exponent
        self._until, self._row = np.cumsum(chance / chance.sum()), self._rng.permutation(rows)
        self._next = CAPACITY

    def batch(self, n: int, missing: float) -> Ints:
        """So many distinct rows, ascending; this share of them new."""
        new = round(n * missing)
        drawn = np.zeros(0, np.int64)
        while len(drawn) < n - new:
            more = np.minimum(np.searchsorted(self._until, self._rng.random(n)), len(self._row) - 1)
            _, first = np.unique(drawn := np.r_[drawn, more], return_index=True)
            drawn = drawn[np.sort(first)]
        self._next += new
        return np.sort(np.r_[self._row[drawn[: n - new]], np.arange(self._next - new, self._next)])


class Copies:
    """Copies of one table, all places taken, which are asked as ``DenseCopies`` asks them."""

    def __init__(self, optimizer: str, evict: kernels.Evict, rows: int) -> None:
        spec = OptimizerSpec(name=optimizer, lr=0.01, eps=1e-8)
        family = Family(
            name=TABLE, rows=rows, hashed=False, tables=(TABLE,), features=("f",), kind="table", holders=(0,)
        )  # fmt: skip
        tables = {TABLE: TableSpec(name=TABLE, rows=rows, width=WIDTH, optimizer=spec)}
        self._keeping = Keeping(staleness=STALENESS, capacity=CAPACITY, evict=evict, tables=tables)
        self._copies = PooledCopies([Cached(family, ("f",))], [(TABLE,)], self._keeping)
        self._rng = np.random.default_rng(SEED)
        for last in (CAPACITY, CAPACITY // 2):  # those that may be asked for by popularity have been used last
            for some in np.array_split(self._rng.permutation(last), 32):
                self.step(np.ascontiguousarray(some))

    def step(self, rows: Ints) -> dict[str, float]:
        """Seconds of each call; and the share of rows that had no copy."""
        asked = [Asked(rows, np.zeros_like(rows))]
        gradients = np.full((len(rows), WIDTH), 0.25, np.float32)
        start = time.perf_counter()
        (kept,) = self._copies.kept(asked)
        told = time.perf_counter()
        sent = ~kept
        came: dict[str, Floats] = {TABLE: np.full((len(rows), WIDTH), 0.5, np.float32)}
        sums = {TABLE: np.ones(len(rows), np.float32)} if self._keeping.accumulates(TABLE) else {}
        rowless = np.zeros(len(rows), bool)
        begun = time.perf_counter()
        (read,) = self._copies.read(asked, [sent], [came], [sums], [rowless])
        done = time.perf_counter()
        self._copies.push(asked, [{TABLE: gradients}], drain=False, lr_scale=1.0)
        pushed = time.perf_counter()
        assert read[TABLE].shape == (len(rows), WIDTH)
        return {
            "kept": told - start, "read": done - begun, "push": pushed - done, "missing": float(sent.mean()),
        }  # fmt: skip


class Limits:
    """What bounds them: rows at known places copied, and a map of ids that does nothing else."""

    def __init__(self, evict: kernels.Evict) -> None:
        rng = np.random.default_rng(SEED)
        self._rows = rng.standard_normal((CAPACITY, WIDTH), np.float32)
        self._place = rng.permutation(CAPACITY)
        self._map = kernels.IdMap(capacity=CAPACITY, evict=evict)
        self._map.admit(np.argsort(self._place))

    def step(self, rows: Ints) -> dict[str, float]:
        """Seconds of each."""
        offsets, out = np.arange(len(rows) + 1), np.zeros(len(rows) * WIDTH, np.float32)
        index = self._place[rows % CAPACITY]
        start = time.perf_counter()
        kernels.pooled_gather(self._rows, index, offsets, out)
        gathered = time.perf_counter()
        self._map.admit(rows)
        return {"gather": gathered - start, "admit": time.perf_counter() - gathered}


def measure(*, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    before = kernels.get_threads()
    kernels.set_threads(THREADS)
    rows = list[Row]()
    for optimizer in OPTIMIZERS[:1] if quick else OPTIMIZERS:
        for evict in CACHES[:1] if quick or optimizer != OPTIMIZERS[0] else CACHES:
            for missing in (0.0, MISSING):
                rows += _of_one(optimizer, evict, missing, quick=quick)
    kernels.set_threads(before)
    claims = list[Row]()
    for name, missing, goal in (("lookups", 0.0, ">= 2e7"), ("lookups_missing", MISSING, ">= 1e7")):
        mine = [row for row in rows if (row["optimizer"], row["cache"]) == (OPTIMIZERS[0], CACHES[0])]
        slowest = min(row["rows_per_s"] for row in mine if row["asked_missing"] == missing)
        claims.append(claim(f"het.{name}_per_s", slowest, f"distinct rows of {WIDTH} float32 a second", goal))
    return rows, claims


def _of_one(optimizer: str, evict: kernels.Evict, missing: float, *, quick: bool) -> list[Row]:
    """Each batch size, of one pool."""
    asking = Asking(CAPACITY // 2 if missing else CAPACITY, EXPONENT)
    copies, limits, rows = Copies(optimizer, evict, 64 * CAPACITY), Limits(evict), list[Row]()
    for batch in QUICK_BATCHES if quick else BATCHES:
        steps = list[dict[str, float]]()
        for _ in range(QUICK_TURNS if quick else TURNS):
            turn = [asking.batch(batch, missing) for _ in range(STEPS + 1)]
            found = zip([copies.step(of) for of in turn], [limits.step(of) for of in turn], strict=True)
            steps += [{**own, **bound} for own, bound in found][1:]
        rows.append(
            {"part": "lookups", "optimizer": optimizer, "cache": evict, "batch": batch, "asked_missing": missing}
            | _figures(steps, batch)
        )
        show(rows[-1])
    return rows


def _figures(steps: Sequence[dict[str, float]], batch: int) -> Row:
    answered = [step["kept"] + step["read"] for step in steps]
    row: Row = {"missing": statistics.fmean(step["missing"] for step in steps)}
    row["rows_per_s"] = batch / statistics.median(answered)
    row["most_rows_per_s"], row["least_rows_per_s"] = batch / min(answered), batch / max(answered)
    row["gather_rows_per_s"] = batch / statistics.median(step["gather"] for step in steps)
    row["of_gather"] = row["rows_per_s"] / row["gather_rows_per_s"]
    for name in ("kept", "read", "push", "gather", "admit"):
        row[f"{name}_ns"] = spread([1e9 * step[name] / batch for step in steps])
    return row


def main() -> None:
    arguments = options(__doc__).parse_args()
    finish("cached_lookups", *measure(quick=arguments.quick), arguments.json)


if __name__ == "__main__":
    main()
