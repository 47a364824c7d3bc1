"""Form ``cached``: rows of a dense rank's copies are read, and learned, a bounded number of updates late.

A *tick* is one dense rank's gradient of one row in one step. An owner counts the ticks that it has learned of each row,
its clock, and sends a row anew where a copy lacks more than ``staleness`` of them. A dense rank adds the gradients of a
copy up, and pushes their sum where they are more than ``staleness`` ticks, where the copy has to go, where it is old,
and at drain points. Meanwhile it reads what its own ticks will have made of the copy. So with R dense ranks a read
lacks at most R ``staleness`` ticks, and with a staleness of 0 none. Source: [HET], whose rule leaves writes unpushed
until their row is read again, and which has SGD alone; docs/consistency.md has the differences.

Copies of tables of the same widths and optimizers are in one pool. A row that finds no room there, however many a step
asks for, is read and pushed in its step. Knows rows by number; knows no MPI.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.forms.conditional import NOT_KNOWN, Asked, Conditional, Keeping, Push
from hpcrec.types import Floats, Ints

_NONE = np.zeros(0)
_NUMBERS_BYTES = 7 * 8 + 32  # of a copy: what it is of, clock, ticks, steps; and its place in the map
REASONS = ("bound", "eviction", "no_room", "age", "drain")


class Clocks:
    """See ``OwnerRule``: a row's clock is the number of its ticks."""

    def __init__(self, rows: int, keeping: Keeping) -> None:
        self._clock = np.zeros(rows, np.int64)
        self._staleness, self._largest = keeping.staleness, 0

    def answer(self, rows: Ints, known: Ints) -> Ints:
        """See ``OwnerRule``."""
        clock = self._clock[rows]
        return np.where((known < 0) | (clock - known > self._staleness), clock, NOT_KNOWN)

    def learned(self, rows: Ints, ticks: Ints) -> None:
        """See ``OwnerRule``."""
        self._clock[rows] += ticks
        self._largest = max(self._largest, int(self._clock[rows].max(initial=0)))

    def restarted(self, rows: Ints) -> None:
        """See ``OwnerRule``: above every clock that a copy of an earlier life may know, by more than is allowed.

        Such a copy may know of ticks that its owner has dropped, for want of a row: of one push.
        """
        self._largest += 2 * (self._staleness + 1)
        self._clock[rows] = self._largest


@dataclass
class _Held:
    """Gradients on their way to a push: of rows that have left the pool, or have none in it."""

    bundle: Ints
    row: Ints
    part: Ints
    ticks: Ints
    gradients: list[Floats]
    squares: list[Floats]  # of tables that accumulate, else empty


@dataclass(frozen=True)
class _Learning:
    """How copies of a pool's rows learn, by bundle, of one of its tables; none of their optimizers keeps more.

    ``adds`` : whether they add up squares (the Adagrads); ``by_element``: a sum an element.
    """

    lr_B: Floats
    eps_B: Floats
    bound_B: Floats
    adds: bool
    by_element: bool

    @classmethod
    def of(cls, keeping: Keeping, tables: Sequence[str]) -> "_Learning":
        specs = [keeping.tables[table].optimizer for table in tables]
        lr, eps, bound = (np.array([getattr(spec, name) for spec in specs]) for name in ("lr", "eps", "bound"))
        return cls(lr, eps, bound, keeping.accumulates(tables[0]), specs[0].name == "adagrad")


class _Pool:
    """Copies of rows of bundles whose tables have the same widths.

    Parameters
    ----------
    bundles : sequence of int
        Their numbers.
    tables : sequence of sequence of str
        Of each, table after table.
    parts : sequence of int
        Of each, in how many parts its rows are; 0: rows are ids.
    capacity : int
    keeping : Keeping
    """

    def __init__(
        self,
        bundles: Sequence[int],
        tables: Sequence[Sequence[str]],
        parts: Sequence[int],
        capacity: int,
        keeping: Keeping,
    ) -> None:
        self.bundles, self._tables, self._parts, self._keeping = bundles, tables, parts, keeping
        self.capacity = capacity
        self._widths = [keeping.tables[table].width for table in tables[0]]
        self._learning = [_Learning.of(keeping, of) for of in zip(*tables, strict=True)]
        self.step = 0
        self.figures = dict.fromkeys(("reads", "copies_read", "misses", "too_old", "evictions"), 0)
        self.figures |= {f"pushed_{reason}": 0 for reason in REASONS}
        self.empty()

    def empty(self) -> None:
        """Nothing is kept."""
        self._map = kernels.IdMap(capacity=self.capacity, evict=self._keeping.evict)
        n = self.capacity
        self.bundle, self.row, self.part, self.known, self.ticks, self.at, self.since = np.zeros((7, n), np.int64)
        self._base = self._value = self._sum = list[Floats]()
        self._accumulator = self._squares = list[Floats]()
        self._slots, self._left, self._scale = np.zeros(0, np.int64), list[_Held](), 1.0

    def _room(self, dtype: np.dtype) -> None:
        if not self._base:
            self._base, self._value, self._sum = (
                [np.zeros((self.capacity, width), dtype) for width in self._widths] for _ in range(3)
            )
            self._accumulator, self._squares = (
                [np.zeros(self.capacity if how.adds else 0, dtype) for how in self._learning] for _ in range(2)
            )

    def known_of(self, asked: Sequence[Asked]) -> Ints:
        """Of the rows of all bundles: the clocks of their copies. They are given room, for which others go."""
        self.step += 1
        n_B = [len(of.rows) for of in asked]
        bundle = np.repeat(np.arange(len(asked)), n_B)
        row, part = (np.concatenate([getattr(of, name) for of in asked]) for name in ("rows", "part"))
        keys = row if not self._parts[0] else (row * max(self._parts) + part) * len(asked) + bundle
        self._slots, fresh = self._map.admit(np.ascontiguousarray(keys))
        new = self._slots[fresh]
        self._leave(new[self.ticks[new] > 0])
        self.figures["evictions"] += int((self.at[new] > 0).sum())
        self.bundle[new], self.row[new], self.part[new] = bundle[fresh], row[fresh], part[fresh]
        self.known[new], self.ticks[new], self.at[new] = NOT_KNOWN, 0, 0
        known = np.where(self._slots < 0, NOT_KNOWN, self.known[self._slots])
        if self._keeping.max_age is not None:
            known[self.step - self.at[self._slots] >= self._keeping.max_age] = NOT_KNOWN
        self.figures["reads"] += len(known)
        self.figures["misses"] += int((known < 0).sum())
        self._asked = bundle, row, part, known
        return known

    def _leave(self, slots: Ints) -> None:
        """What these have held back is pushed in this step."""
        if len(slots):
            self._left.append(self._held(slots))
            self.figures["pushed_eviction"] += len(slots)

    def _held(self, slots: Ints) -> _Held:
        gradients = [of[slots] for of in self._sum]
        squares = [self._factor(t, slots) if how.adds else _NONE for t, how in enumerate(self._learning)]
        return _Held(self.bundle[slots], self.row[slots], self.part[slots], self.ticks[slots], gradients, squares)

    def _factor(self, t: int, slots: Ints) -> Floats:
        """What is said of the squares of these sums: see ``Sums``."""
        squares = self._squares[t][slots]
        return _factors(squares, self._sum[t][slots]) if self._learning[t].by_element else squares

    def read(self, clocks: Ints, came: Sequence[Floats], accumulators: Sequence[Floats]) -> list[Floats]:
        """What is read of those rows, by table in its place; what came likewise."""
        self._room(came[0].dtype)
        known = self._asked[3]
        sent, slots = clocks >= 0, self._slots
        kept = slots >= 0
        taken = np.flatnonzero(sent & kept)
        into = slots[taken]
        self.known[into], self.at[into] = clocks[taken], self.step
        self.figures["too_old"] += int((sent & (known >= 0)).sum())
        self.figures["copies_read"] += int((~sent).sum())
        out = []
        for t, values in enumerate(came):
            self._base[t][into] = values[taken]
            if self._learning[t].adds:
                self._accumulator[t][into] = accumulators[t][taken]
            self._preview(t, into)
            out.append(np.where(kept[:, None], self._value[t][slots], values) if len(slots) else values)
        return out

    def _preview(self, t: int, slots: Ints) -> None:
        """What their own ticks will have made of these copies, at the last step's rate.

        By the optimizer's rule for sums of several steps; where it has an accumulator an element, by their mean.
        """
        base, held = self._base[t][slots], self.ticks[slots] > 0
        if held.any():
            how, mine, own = self._learning[t], self.bundle[slots[held]], slots[held]
            gradient = self._sum[t][own]
            lr = (how.lr_B[mine] * self._scale).astype(base.dtype)[:, None]
            if how.adds:
                before, squares = self._accumulator[t][own, None], self._squares[t][own, None]
                ticks, eps = self.ticks[own, None], how.eps_B[mine].astype(base.dtype)[:, None]
                if how.by_element:
                    squares = _factors(squares[:, 0], gradient)[:, None] * gradient * gradient
                one = lr / (np.sqrt(before + squares) + eps)
                lr = np.where(ticks == 1, one, kernels.mean_rate(lr, eps, before, squares, ticks))
            bound = how.bound_B[mine].astype(base.dtype)[:, None]
            base[held] = np.clip(base[held] - lr * gradient, -bound, bound)
        self._value[t][slots] = base

    def push(self, gradients: Sequence[Floats] | None, *, drain: bool, lr_scale: float) -> list[_Held]:
        """What goes to owners."""
        out, self._left, self._scale = self._left, [], lr_scale
        s, age = self._keeping.staleness, self._keeping.max_age
        if gradients is not None:
            kept, alone = np.flatnonzero(self._slots >= 0), np.flatnonzero(self._slots < 0)
            slots = self._slots[kept]
            first = self.ticks[slots] == 0
            self.since[slots[first]] = self.step
            self.ticks[slots] += 1
            for t, of in enumerate(gradients):
                mine = of[kept]
                self._sum[t][slots] = np.where(first[:, None], mine, self._sum[t][slots] + mine)
                if self._learning[t].adds:
                    squares = _mean_squares(mine)
                    self._squares[t][slots] = np.where(first, squares, self._squares[t][slots] + squares)
                self._preview(t, slots)
            if len(alone):
                out.append(self._alone(alone, [of[alone] for of in gradients]))
                self.figures["pushed_no_room"] += len(alone)
            self._push(slots[self.ticks[slots] > s], out, "bound")
        if age is not None:
            self._push(np.flatnonzero((self.ticks > 0) & (self.step - self.since >= age)), out, "age")
        if drain:
            self._push(np.flatnonzero(self.ticks > 0), out, "drain")
        return out

    def _alone(self, some: Ints, gradients: list[Floats]) -> _Held:
        """Those of the step's rows that found no room."""
        bundle, row, part, _ = self._asked
        squares = [_NONE] * len(gradients)
        for t, how in enumerate(self._learning):
            if how.adds:
                squares[t] = _mean_squares(gradients[t])
                if how.by_element:
                    squares[t] = _factors(squares[t], gradients[t])
        one = np.ones(len(some), np.int64)
        return _Held(bundle[some], row[some], part[some], one, gradients, squares)

    def _push(self, slots: Ints, out: list[_Held], reason: str) -> None:
        """Copies are from now on what their own ticks have made of them, as far as this rank knows."""
        if not len(slots):
            return
        out.append(self._held(slots))
        self.figures[f"pushed_{reason}"] += len(slots)
        for t, (base, value) in enumerate(zip(self._base, self._value, strict=True)):
            self._preview(t, slots)
            base[slots] = value[slots]
            if self._learning[t].adds:
                self._accumulator[t][slots] += self._squares[t][slots]
        self.known[slots] = np.where(
            (self.known[slots] < 0) | (self._keeping.staleness == 0), NOT_KNOWN, self.known[slots] + self.ticks[slots]
        )
        self.ticks[slots] = 0


class PooledCopies:
    """See ``Copies``."""

    def __init__(self, bundles: Sequence[Conditional], tables: Sequence[Sequence[str]], keeping: Keeping) -> None:
        self._tables, self._pools = tables, list[_Pool]()
        for some, capacity in _pooled(bundles, tables, keeping):
            parts = [0 if bundles[b].family.dynamic is not None else max(1, bundles[b].family.row_parts) for b in some]
            self._pools.append(_Pool(some, [tables[b] for b in some], parts, capacity, keeping))

    def known(self, asked: Sequence[Asked]) -> list[Ints]:
        """See ``Copies``."""
        out = [of.rows for of in asked]
        for pool in self._pools:
            mine = [asked[b] for b in pool.bundles]
            for b, known in zip(pool.bundles, _cut(pool.known_of(mine), mine), strict=True):
                out[b] = known
        return out

    def read(
        self,
        asked: Sequence[Asked],
        clocks: Sequence[Ints],
        came: Sequence[Mapping[str, Floats]],
        accumulators: Sequence[Mapping[str, Floats]],
    ) -> list[Mapping[str, Floats]]:
        """See ``Copies``."""
        out = list(came)
        for pool in self._pools:
            mine = [asked[b] for b in pool.bundles]
            sums = [
                {t: accumulators[b].get(t, np.zeros(len(asked[b].rows))) for t in self._tables[b]} for b in pool.bundles
            ]
            clock = np.concatenate([clocks[b] for b in pool.bundles])
            found = pool.read(
                clock, self._joined(pool, came), self._joined(pool, dict(zip(pool.bundles, sums, strict=True)))
            )
            for t, values in enumerate(found):
                for b, rows in zip(pool.bundles, _cut(values, mine), strict=True):
                    out[b] = {**out[b], self._tables[b][t]: rows}
        return out

    def push(
        self,
        asked: Sequence[Asked],
        gradients: Sequence[Mapping[str, Floats]] | None,
        *,
        drain: bool,
        lr_scale: float,
    ) -> list[Push]:
        """See ``Copies``."""
        out: dict[int, Push] = {}
        for pool in self._pools:
            given = None if gradients is None else self._joined(pool, gradients)
            held = pool.push(given, drain=drain, lr_scale=lr_scale)
            for i, b in enumerate(pool.bundles):
                out[b] = _pushed(held, i, self._tables[b])
        return [out[b] for b in range(len(asked))]

    def _joined(
        self, pool: _Pool, by_table: Sequence[Mapping[str, Floats]] | Mapping[int, Mapping[str, Floats]]
    ) -> list[Floats]:
        """Of all of a pool's bundles, one after the other."""
        n = len(self._tables[pool.bundles[0]])
        return [np.concatenate([by_table[b][self._tables[b][t]] for b in pool.bundles]) for t in range(n)]

    def empty(self) -> None:
        """See ``Copies``."""
        for pool in self._pools:
            pool.empty()

    def figures(self) -> dict[str, float]:
        """See ``Copies``."""
        total: dict[str, float] = {}
        for pool in self._pools:
            for name, value in {**pool.figures, "capacity": pool.capacity}.items():
                total[name] = total.get(name, 0.0) + value
        return total


class Cached(Conditional):
    """See ``Form``."""

    name = "cached"
    Owner = Clocks
    Dense = PooledCopies

    @classmethod
    def holds_back(cls, keeping: Keeping) -> bool:
        """See ``Conditional``."""
        return keeping.staleness > 0

    @classmethod
    def memory(
        cls, bundles: Sequence[Conditional], tables: Sequence[Sequence[str]], keeping: Keeping, item: int
    ) -> float:
        """See ``Conditional``: copies, what is read of them, sums of gradients; and messages of these, at a drain."""
        total = 0.0
        for some, capacity in _pooled(bundles, tables, keeping):
            columns = sum(keeping.tables[table].width for table in tables[some[0]])
            sums = sum(keeping.accumulates(table) for table in tables[some[0]])
            total += capacity * (((3 + 4) * columns + (2 + 2) * sums) * item + _NUMBERS_BYTES)
        return total


def _pooled(
    bundles: Sequence[Conditional], tables: Sequence[Sequence[str]], keeping: Keeping
) -> list[tuple[list[int], int]]:
    """Numbers of the bundles of each pool, and the rows that it has room for."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for b, (form, of) in enumerate(zip(bundles, tables, strict=True)):
        widths = tuple((keeping.tables[table].width, keeping.tables[table].optimizer.name) for table in of)
        apart = form.features if form.family.dynamic is not None else ()  # ids of two tables may be the same
        alike.setdefault((widths, apart), []).append(b)
    found = []
    for some in alike.values():
        rows = sum(bundles[b].family.rows for b in some)
        wanted = keeping.capacity if isinstance(keeping.capacity, int) else math.ceil(keeping.capacity * rows)
        found.append((some, max(1, min(wanted, rows))))
    return found


def _cut(values: Floats | Ints, asked: Sequence[Asked]) -> list[np.ndarray]:
    """Of each bundle again."""
    return np.split(values, np.cumsum([len(of.rows) for of in asked])[:-1])


def _pushed(held: Sequence[_Held], bundle: int, tables: Sequence[str]) -> Push:
    """Those of one bundle, part after part, and rows rising, as form ``rows`` has them."""
    mine = [np.flatnonzero(of.bundle == bundle) for of in held]
    none = np.zeros(0, np.int64)

    def joined(name: str) -> Ints:
        return np.concatenate([none, *(getattr(of, name)[some] for of, some in zip(held, mine, strict=True))])

    row, part, ticks = joined("row"), joined("part"), joined("ticks")
    order = np.lexsort((row, part))
    gradients, squares = {}, {}
    for t, table in enumerate(tables if held else ()):
        gradients[table] = np.concatenate([of.gradients[t][some] for of, some in zip(held, mine, strict=True)])[order]
        if len(held[0].squares[t]) == len(held[0].row):
            squares[table] = np.concatenate([of.squares[t][some] for of, some in zip(held, mine, strict=True)])[order]
    return Push(Asked(row[order], part[order]), gradients, ticks[order], squares)


def _mean_squares(gradients: Floats) -> Floats:
    """Over all columns, as row-wise Adagrad adds them up."""
    return kernels.squared_norm(np.ascontiguousarray(gradients)) / gradients.dtype.type(gradients.shape[1])


def _factors(squares: Floats, sums: Floats) -> Floats:
    """What the squares of sums are to be multiplied by, so that their means are these; 0 of a sum that is 0."""
    mean = _mean_squares(sums)
    return np.divide(squares, mean, out=np.zeros_like(squares), where=mean > 0)
