"""Dealing by affinity, by count: a sample goes to the dense rank that has copies of most of its rows, in equal parts.

Synthetic ids are independent, of Criteo Kaggle's 26 tables with at most 10,000 rows each, so that caches settle within
steps that a count can take. A global batch of R b samples is dealt anew in each step; its sums are the same but for
their order, so whatever is saved costs no exactness. Decisions of copies are the product's (``decided``), bytes its
formulas (``wire``), requests packed by its own code; what crosses between different ranks counts, of all tags but the
dense sum. Arms:

``as it is``  contiguous parts, as the loader deals
``hashed``    where the hash of one field's id says, which needs no knowledge of copies. The field is the one
              whose distinct rows of contiguous parts exceed those of the batch by most: equal ids meet
``to owners`` the same, but to the owner of that field's row, on fused ranks: it crosses no more; where rows are dealt
``affinity``  a sample's score for a rank is the bytes that it saves there: for each of its rows a value where the copy
              is valid, s of s + 1 gradients where there is one (a push holds s + 1), and its own bytes where the rank
              has loaded it. A row whose owner is the rank counts as both. At s = 0 a copy counts as a gradient, since
              samples whose rows went to the same rank before meet there again
``affinity, apart``
              the same without what owners have, for owners that are other ranks: ``saved_apart`` and ``net_apart``,
              in which also bytes count that a fused rank sends to itself

At s = 0 a copy is forgotten with each push, as the product does (``0``), or, in arms that the product has not, stays
until another rank has pushed the row (``0, kept``; on 4 ranks).

Shipping: a sample that goes to another rank than the one that loaded it costs its ids in whole bytes of their tables,
and 4 bytes for each dense feature and the label, a message a pair of ranks padded to 64 bytes. ``saved`` is without
it, as where every rank can read any sample of one file, ``net`` with it. Neither has what it takes to decide:
``net_told`` adds, in place of the ids that are shipped, the ids of every sample to every rank, and under ``affinity``
each rank's scores of all samples to the others, in a byte. For ``hashed`` it is ``net``: each rank hashes its own.
``us_a_sample`` is one core's time to score and to deal, on a machine that is shared, without that of finding which ids
of the batch are the same. ``top_share``: of the ticks of rows that have several, those of the rank that makes most.

Knows counts; knows no values. Caches begin empty and fill before anything is counted; ``halves`` (kB a step) shows how
settled they are. Real samples come again in epochs of another order; those of Criteo are so few that each comes several
times while caches fill, so ``criteo_once`` reads each once, and counts the second half. Rows of real data sets are
those that occur, and are dealt to all ranks. Batches of 512 are counted on 4 ranks, synthetic ids on 2 and 4.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim
from _workloads import CRITEO
from cached_parts import dealing, wire
from cached_parts.decided import Cache, Ranks
from cached_parts.history import ByHistory
from cached_parts.placed import Placed
from des_parts import shapes
from des_parts.cells import Row, show

from hpcrec.comm.sizes import padded_bytes
from hpcrec.data.reader import DataSet
from hpcrec.types import Ints

WIDTH, SEED, AT_ONCE = 64, 3, 6
SHAPES = ((2, 128), (4, 128), (8, 128), (4, 512))  # ranks, and samples of each
POWERLAW, ONCE = "powerlaw_", "_once"
FEW = 2  # of the shapes are counted of synthetic ids, whose tables are the largest
REAL = ("movielens", "criteo")
NAMES = ("movielens", "criteo", "criteo_once", "powerlaw_1.05", "powerlaw_1.2")
CAPACITY, CACHE, MOST_ROWS = 0.1, "lru", 10_000
FILLING, COUNTED = 5_120, 1_536  # samples of a rank
STALENESS = ((0, False), (0, True), (10, False), (100, False))  # and whether copies stay at 0
N_DENSE = {"movielens": 0, "criteo": 13}
CLAIMED_BATCH, TRIED, FIELDS = 128, 8, 1
KEPT_AT = 4, 128  # ranks and batch at which copies that stay are counted
UNIT = "of the bytes of {}, fewer; shipping of samples paid"

Draw = Callable[[int], Ints]
"""Samples -> ids of the next so many [samples, tables]."""


@dataclass(frozen=True)
class Source:
    """Samples with one id a table: ``rows`` of each table, and how to begin a stream of them.

    ``once``: of so many samples only, each read once: caches fill in the first half, and the second is counted.
    ``dealt``: the rows of every table are dealt to all ranks (``shard = "row"``); else the product places them.
    ``samples``: of a file; None where there are any number.
    """

    name: str
    rows: tuple[int, ...]
    n_dense: int
    begin: Callable[[], Draw]
    once: int | None = None
    dealt: bool = False
    samples: int | None = None

    @property
    def sample_bytes(self) -> tuple[int, int]:
        """Of a sample that is shipped: its ids, and the rest."""
        ids = sum(max(1, -(-int(n - 1).bit_length() // 8)) for n in self.rows)
        return ids, 4 * (self.n_dense + 1)


@dataclass
class Found:
    """An arm's counted steps: rows and bytes, int64 [steps, R, R], and what else is said of it."""

    asked: Ints
    requests: Ints
    sent: Ints
    pushed: Ints
    moved: Ints  # samples by the rank that loaded them and the one that has them
    top_share: float
    us_a_sample: float


def measure(cache: Path, files: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and claims."""
    rows, claims = list[Row](), list[Row]()
    shapes_ = SHAPES[:1] if quick else SHAPES
    names = NAMES[-1:] if quick else [name for name in NAMES if is_there(name, cache, files)]
    jobs = [
        (name, cache, files, *shape, quick)
        for name in names
        for shape in (shapes_[:FEW] if name.startswith(POWERLAW) else shapes_)
    ]
    with ProcessPoolExecutor(AT_ONCE) as pool:
        for (name, _, _, ranks, batch, _), found in zip(jobs, pool.map(_of, *zip(*jobs, strict=True)), strict=True):
            for row in found:
                show(row)
            rows += found
            if batch == CLAIMED_BATCH:
                claims += _claims(name, ranks, found)
    return rows, claims


def is_there(name: str, cache: Path, files: Path) -> bool:
    data = name.removesuffix(ONCE)
    return data not in REAL or shapes.prepare(data, cache, files) is not None


def source_of(name: str, cache: Path, files: Path, *, quick: bool) -> Source:
    """A synthetic one, or the samples of a file, which is there."""
    data = name.removesuffix(ONCE)
    if data not in REAL:
        rows = tuple(min(n, 5_000 if quick else MOST_ROWS) for n in CRITEO)
        return powerlaw(float(name.removeprefix(POWERLAW)), rows)
    path = shapes.prepare(data, cache, files)
    assert path is not None, "it was there before"
    source = recorded(data, path)
    if name == data:
        return source
    with DataSet(path) as samples:
        return replace(source, name=name, once=samples.samples)


def powerlaw(exponent: float, rows: tuple[int, ...]) -> Source:
    """Independent ids, that of rank k with P ~ (k + 1)^-exponent; which row has which rank is drawn."""
    order = [np.random.default_rng((SEED, t)).permutation(n) for t, n in enumerate(rows)]
    sums = [np.cumsum(np.arange(1.0, n + 1) ** -exponent) for n in rows]

    def begin() -> Draw:
        rng = np.random.default_rng((SEED, round(100 * exponent)))

        def draw(samples: int) -> Ints:
            ranks = [np.searchsorted(of, rng.random(samples) * of[-1]) for of in sums]
            return np.stack([rows_of[r] for rows_of, r in zip(order, ranks, strict=True)], axis=1)

        return draw

    return Source(f"powerlaw_{exponent:g}", rows, 13, begin)


def recorded(name: str, path: Path) -> Source:
    """The samples of a file, each epoch in another order; a table has the rows that occur, one for each id."""
    with DataSet(path) as data:
        columns = data.read(0, data.samples)
        assert all(len(column.ids) == data.samples for column in columns.sparse.values()), "one id a bag"
        found = [np.unique(column.ids, return_inverse=True) for column in columns.sparse.values()]
    ids_NT = np.stack([inverse.reshape(-1) for _, inverse in found], axis=1)

    def begin() -> Draw:
        rng = np.random.default_rng(SEED)
        waiting: list[Ints] = []

        def draw(samples: int) -> Ints:
            while sum(map(len, waiting)) < samples:
                waiting.append(rng.permutation(len(ids_NT)))
            order = np.concatenate(waiting)
            waiting[:] = [order[samples:]]
            return ids_NT[order[:samples]]

        return draw

    return Source(name, tuple(len(ids) for ids, _ in found), N_DENSE[name], begin, dealt=True, samples=len(ids_NT))


@dataclass(frozen=True)
class Step:
    """A global batch: its distinct rows, rising [K], and which of them each sample has [N, T]."""

    distinct: Ints
    inverse: np.ndarray


class Arm:
    """One dealing, with caches that begin empty, at a staleness; ``keeps`` says whether copies stay at 0.

    ``field`` is the table whose ids are hashed, or whose owners get the samples (``to_owner``), ``affinity`` whether
    ranks have scores, and ``near`` whether these count rows whose owner the rank is. ``window``: dealt by the product's
    rule, whose table is emptied after so many batches (0: never), with owners if ``near``.
    """

    def __init__(
        self,
        source: Source,
        placed: Placed,
        s: int,
        *,
        keeps: bool,
        field: int | None = None,
        affinity: bool = False,
        near: bool = True,
        to_owner: bool = False,
        window: int | None = None,
    ) -> None:
        places = max(1, int(CAPACITY * placed.total))
        empty = [Cache.empty(places, CACHE, 1) for _ in range(placed.ranks)]
        self._placed, self._s, self._field, self._affinity, self._near = placed, s, field, affinity, near
        self._to_owner, self._window = to_owner, window
        self._history: ByHistory | None = None
        self._ranks = Ranks(placed.owner, empty, [s], keeps=keeps)
        self._sample_bytes = sum(source.sample_bytes)
        self.seconds, self.samples = 0.0, 0

    def step(self, step: Step) -> tuple[list[Ints], Ints, Ints, Ints]:
        """Each rank's distinct rows, the rank of each sample, and rows sent and pushed by dense rank and owner."""
        n, samples = self._placed.ranks, len(step.inverse)
        start = time.perf_counter()
        rank_N = dealing.contiguous(samples, n)
        if self._field is not None:
            rows_N = step.distinct[step.inverse[:, self._field]]
            owner_N = self._placed.owner[rows_N].astype(np.int64)
            rank_N = dealing.assign(dealing.to(owner_N, n) if self._to_owner else dealing.hashed(rows_N, n))
        elif self._window is not None:
            if self._history is None:
                self._history = ByHistory(self._placed, samples, self._window, owners=self._near)
            rank_N = self._history.ranks(step.distinct[step.inverse])
        elif self._affinity:
            rank_N = dealing.assign(self._scores(step, rank_N))
        self.seconds, self.samples = self.seconds + time.perf_counter() - start, self.samples + samples
        asked = []
        for rank in range(n):
            some = np.zeros(len(step.distinct), bool)
            some[step.inverse[rank_N == rank].reshape(-1)] = True
            asked.append(step.distinct[some])
        found = self._ranks.run([asked])
        return asked, rank_N, found.sent[0, ..., 0], found.pushed[0, ..., 0]

    def _scores(self, step: Step, loaded_N: Ints) -> np.ndarray:
        """Bytes that a sample saves at each rank [N, R]."""
        ranks = np.arange(self._placed.ranks)
        held, valid = self._ranks.held(step.distinct)
        if self._near:
            own = self._placed.owner[step.distinct][:, None] == ranks
            held, valid = held | own, valid | own
        gradients = self._s / (self._s + 1) if self._s else 1.0
        score = (valid + np.float32(gradients) * held)[step.inverse].sum(axis=1)
        return wire.ITEM * WIDTH * score + self._sample_bytes * (loaded_N[:, None] == ranks)


def _of(name: str, cache: Path, files: Path, ranks: int, batch: int, quick: bool) -> list[Row]:
    """All arms, of a global batch of ``ranks`` times ``batch`` samples."""
    source = source_of(name, cache, files, quick=quick)
    placed = Placed(source.rows, ranks, WIDTH, range(len(source.rows)) if source.dealt else ())
    share = 10 if quick else 1
    steps = FILLING // share // batch, COUNTED // share // batch
    if source.once is not None:
        whole = source.once // (ranks * batch)
        steps = whole // 2, whole - whole // 2
    batches = drawn(source, placed, batch, sum(steps))
    fields = hottest(batches, len(source.rows), ranks)
    kinds = ("hashed", "to owners") if source.dealt else ("hashed",)  # one rank owns whole tables
    out = list[Row]()
    for s, keeps in STALENESS:
        if keeps and (ranks, batch) != KEPT_AT:
            continue
        of_arm = partial(run, source, placed, batches, steps[0], s, keeps)
        arms: dict[str, tuple[Found, int | None]] = {"as it is": (of_arm(), None)}
        for arm in kinds:
            tried = [(of_arm(field=field, to_owner=arm == "to owners"), field) for field in fields]
            arms[arm] = min(tried, key=lambda of: _bytes(placed, s, of[0]).sum())
        arms["affinity"] = of_arm(affinity=True), None
        arms["affinity, apart"] = of_arm(affinity=True, near=False), None
        for arm, (found, field) in arms.items():
            about: Row = {"part": "affinity", "data": name, "ranks": ranks, "batch": batch}
            about |= {"staleness": f"{s}, kept" if keeps else s, "dealt": arm, "field": field}
            base = arms["as it is"][0]
            out.append({**about, **figures(source, placed, s, found, base, batch, tells="affinity" in arm)})
    return out


def drawn(source: Source, placed: Placed, batch: int, steps: int) -> list[Step]:
    """The global batches of all steps, the same for all arms."""
    draw, out = source.begin(), list[Step]()
    for _ in range(steps):
        ids = np.ascontiguousarray(draw(placed.ranks * batch).T)
        rows = np.stack([placed.numbers(table, of) for table, of in enumerate(ids)], axis=1)
        distinct, inverse = np.unique(rows, return_inverse=True)
        out.append(Step(distinct, inverse.reshape(rows.shape).astype(np.int32)))
    return out


def hottest(batches: Sequence[Step], tables: int, ranks: int) -> list[int]:
    """The fields of which fewest rows would be asked for if equal ids met at one rank, the best first."""
    gain = np.zeros(tables)
    for step in batches[:TRIED]:
        for t in range(tables):
            parts = step.inverse[:, t].reshape(ranks, -1)
            gain[t] += sum(len(np.unique(part)) for part in parts) - len(np.unique(parts))
    return [int(t) for t in np.argsort(-gain, kind="stable")[:FIELDS]]


def run(
    source: Source, placed: Placed, batches: Sequence[Step], filling: int, s: int, keeps: bool, **dealt: Any
) -> Found:
    """Steps that fill caches, and those behind them, which are counted. ``dealt``: see ``Arm``."""
    n, arm = placed.ranks, Arm(source, placed, s, keeps=keeps, **dealt)
    found: dict[str, list[Ints]] = {name: [] for name in ("asked", "requests", "sent", "pushed", "moved")}
    ticks = np.zeros((n, placed.total), np.int32)
    for t, step in enumerate(batches):
        asked, rank_N, sent, pushed = arm.step(step)
        if t < filling:
            continue
        for rank, of in enumerate(asked):
            ticks[rank, of] += 1
        loaded = dealing.contiguous(len(rank_N), n)
        found["asked"].append(np.array([np.bincount(placed.owner[of], minlength=n) for of in asked]))
        found["requests"].append(np.array([placed.request_bytes(of) for of in asked]))
        found["sent"].append(sent)
        found["pushed"].append(pushed)
        found["moved"].append(np.bincount(loaded * n + rank_N, minlength=n * n).reshape(n, n))
    several = ticks.sum(axis=0) > 1
    top = float(ticks.max(axis=0)[several].sum() / max(1, ticks[:, several].sum()))
    arrays = {name: np.array(of) for name, of in found.items()}
    return Found(**arrays, top_share=top, us_a_sample=1e6 * arm.seconds / arm.samples)


def figures(source: Source, placed: Placed, s: int, found: Found, base: Found, batch: int, *, tells: bool) -> Row:
    """Bytes of an arm beside those of ``cached`` and of deduplicated rows, both dealt as they are."""
    n = placed.ranks
    rows = wire.between(wire.of_rows(base.asked, base.requests, WIDTH)).sum()
    cached = _bytes(placed, s, base).sum()
    own = _bytes(placed, s, found)
    half, apart = len(own) // 2, ~np.eye(n, dtype=bool)
    moved = found.moved * apart
    ids, rest = source.sample_bytes
    shipped = padded_bytes(moved * (ids + rest)).sum()
    told = shipped
    if tells:
        every = np.where(apart, padded_bytes(np.full((n, n), batch * (ids + n))), 0).sum()  # a part's ids, all scores
        told = padded_bytes(moved * rest).sum() + len(own) * every
    far = _bytes(placed, s, found, to_self=True).sum(), _bytes(placed, s, base, to_self=True).sum()
    crossing = (found.sent + found.pushed)[:, apart].sum(), (base.sent + base.pushed)[:, apart].sum()
    per_rank = found.asked.sum(axis=2)
    return {
        "kb_a_step": _short(1e-3 * own.mean()),
        "rows_crossing": _short(1 - crossing[0] / crossing[1]),
        "saved": _short(1 - own.sum() / cached),
        "net": _short(1 - (own.sum() + shipped) / cached),
        "net_told": _short(1 - (own.sum() + told) / cached),
        "saved_apart": _short(1 - far[0] / far[1]),
        "net_apart": _short(1 - (far[0] + shipped) / far[1]),
        "saved_rows": _short(1 - own.sum() / rows),
        "net_rows": _short(1 - (own.sum() + shipped) / rows),
        "samples_moved": _short(moved.sum() / found.moved.sum()),
        "rows_a_rank": _short(per_rank.mean()),
        "largest_over_mean": _short((per_rank.max(axis=1) / per_rank.mean(axis=1)).mean()),
        "top_share": _short(found.top_share),
        "us_a_sample": _short(found.us_a_sample),
        "halves": [_short(1e-3 * own[part].mean()) for part in (slice(half), slice(half, None))],
    }


def _bytes(placed: Placed, s: int, found: Found, *, to_self: bool = False) -> Ints:
    """Between ranks, of each step under ``cached``; ``to_self``: as if owners were other ranks than dense ones."""
    counts = found.asked, found.requests, found.sent, found.pushed
    messages = wire.of_cached(*counts, WIDTH, staleness=s, entries=placed.entries)
    return wire.between(messages, to_self=to_self)


def _short(number: float) -> float:
    return float(f"{float(number):.4g}")


def _claims(data: str, ranks: int, rows: Sequence[Row]) -> list[Row]:
    out = list[Row]()
    for s, name in ((100, "saved"), (0, "saved_s0")):
        row = next(r for r in rows if (r["staleness"], r["dealt"]) == (s, "affinity"))
        at = f"{data}.{ranks}"
        out.append(claim(f"het.affinity.{name}.{at}", row["net"], UNIT.format(f"cached at s = {s}")))
        out.append(claim(f"het.affinity.{name}_rows.{at}", row["net_rows"], UNIT.format("deduplicated rows")))
    return out
