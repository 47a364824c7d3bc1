"""Form ``cached``: rows of a dense rank's copies are read, and learned, a bounded number of updates late.

A *tick* is one dense rank's gradient of one row in one step. An owner counts for each row and dense rank the ticks that
it has learned since it sent the row there, but for those that came from there, and sends it anew where these are more
than ``staleness``. A dense rank adds the gradients of a copy up, and pushes their sum where they are more than
``staleness`` ticks, where the copy has to go, where it is old, and at drain points. Meanwhile it reads what its own
ticks will have made of the copy. So with R dense ranks a read lacks at most R ``staleness`` ticks, and with a staleness
of 0 none; ``maxima`` has another rule of owners, by which copies may lack more. Where rows are asked for a number of
steps ahead, a read lacks as many ticks more of each other rank: its own pushes that are on their way are added to what
came. Source: [HET], whose rule leaves writes unpushed until their row is read again, and which has SGD alone;
docs/consistency.md has the differences.

Copies of tables of the same widths and optimizers are in one pool. A row that finds no room there, however many a step
asks for, is read and pushed in its step. Knows rows by number; knows no MPI.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hpcrec import kernels
from hpcrec.errors import ConfigError
from hpcrec.exchange.forms.conditional import Asked, Conditional, Keeping, OwnerRule, Push
from hpcrec.exchange.forms.lags import Lags
from hpcrec.exchange.forms.maxima import Maxima
from hpcrec.exchange.forms.missing import RowTicks, enough_ticks
from hpcrec.exchange.forms.places import Places
from hpcrec.types import Floats, Ints

Flags = NDArray[np.bool_]
_NONE = np.zeros(0)
_NUMBERS_BYTES = 32 + 2 * 8 + 32  # of a copy: its record, what it is of, and its place in the map
_KNOWN_BYTES = 8  # more of a place in the map that knows next uses
REASONS = ("bound", "eviction", "no_room", "no_row", "age", "drain")
COUNTS = ("reads", "copies_read", "misses", "too_old", "evictions", *(f"pushed_{reason}" for reason in REASONS))


@dataclass
class _Held:
    """Gradients on their way to a push: of rows that have left the pool, or have none in it."""

    bundle: Ints
    row: Ints
    part: Ints
    ticks: Ints
    gradients: list[Floats]
    squares: list[Floats]  # of tables that accumulate, else empty


@dataclass(eq=False)
class _Step:
    """A step's rows, from ``Copies.kept`` to ``push``: their slots, of those without a copy -1."""

    number: int
    asked: Sequence[Asked]
    keys: Ints
    slots: Ints
    kept: Flags
    rowless: Flags = field(default_factory=lambda: np.zeros(0, bool))


@dataclass(frozen=True)
class _Learning:
    """How copies of a pool's rows learn, by bundle, of one of its tables: see ``kernels.CopyTable``.

    ``adds`` : whether they add up squares. Where they do not, they show their own ticks as SGD's, or never have any.
    """

    lr_B: Floats
    eps_B: Floats
    bound_B: Floats
    rule: Literal["sgd", "adagrad", "rowwise_adagrad"]

    @property
    def adds(self) -> bool:
        return self.rule != "sgd"

    @classmethod
    def of(cls, keeping: Keeping, tables: Sequence[str]) -> "_Learning":
        specs = [keeping.tables[table].optimizer for table in tables]
        lr, eps, bound = (np.array([float(getattr(of, name)) for of in specs]) for name in ("lr", "eps", "bound"))
        adds: Literal["adagrad", "rowwise_adagrad"]
        adds = "adagrad" if specs[0].name == "adagrad" else "rowwise_adagrad"
        return cls(lr, eps, bound, adds if keeping.accumulates(tables[0]) else "sgd")


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

    Attributes
    ----------
    bundles, capacity
        As given.
    adds : list of bool
        Of each table, whether its copies have accumulators.
    figures : dict of str to int
        See ``Copies``.
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
        self.capacity, self._places = capacity, Places(capacity, keeping)
        self._widths = [keeping.tables[table].width for table in tables[0]]
        self._learning = [_Learning.of(keeping, of) for of in zip(*tables, strict=True)]
        self.adds = [how.adds for how in self._learning]
        self.figures = dict.fromkeys(COUNTS, 0)
        self.empty()

    def empty(self) -> None:
        """Nothing is kept."""
        self._places.empty()
        self._records = kernels.copy_records(self.capacity)
        self._of = kernels.record_fields(self._records)
        self._names = kernels.reserved_zeros((self.capacity, 2), np.int64)  # row and part
        self._copies = list[kernels.CopyTable]()
        self._left, self._scale, self._asked = list[_Held](), 1.0, 0
        self._steps = deque[_Step]()  # asked for and not pushed, the present one first
        self._on_way = deque[tuple[list[_Held], float]](maxlen=self._keeping.lookahead)  # pushes, by step

    def foresee(self, asked: Sequence[Asked]) -> None:
        """See ``Copies``, of the pool's bundles."""
        self._places.foresee(self._keys(asked))

    def give_up(self) -> None:
        """Steps that are not pushed do not come: what owners have sent for them is not here."""
        self._places.give_up()
        for step in self._steps:
            self._of["has_values"][step.slots[step.slots >= 0]] = 0
        self._steps.clear()
        self._on_way.clear()

    def _room(self, dtype: np.dtype) -> None:
        for width, how in zip(self._widths, self._learning, strict=True) if not self._copies else ():
            rows = kernels.reserved_zeros((self.capacity, 2, width), dtype)
            numbers = kernels.reserved_zeros((self.capacity, 2), dtype) if how.adds else None
            self._copies.append(kernels.CopyTable(how.rule, how.lr_B, how.eps_B, how.bound_B, rows, numbers))

    def kept_of(self, asked: Sequence[Asked]) -> Flags:
        """Of the rows of all bundles: whether there are copies. They are given room, for which others go."""
        self._asked += 1
        keys, keeping = self._keys(asked), self._keeping
        slots, fresh = self._places.admit(keys)
        if len(fresh):
            self._begin(fresh, slots[fresh], asked)
        kept = kernels.kept_copies(self._records, slots, step=self._asked, max_age=keeping.max_age)
        if keeping.lookahead and not keeping.staleness:
            kept[:] = False  # a step in between may push it, after which it is never read
        self.figures["reads"] += len(kept)
        self.figures["misses"] += len(kept) - int(np.count_nonzero(kept))
        self._steps.append(_Step(self._asked, asked, keys, slots, kept))
        return kept

    def _keys(self, asked: Sequence[Asked]) -> Ints:
        return self._key(*_numbered(asked))

    def _key(self, row: Ints, part: Ints, bundle: Ints | int) -> Ints:
        """What the map calls rows."""
        parts = max(self._parts)
        if len(self._parts) == 1 and parts <= 1:
            return np.ascontiguousarray(row)
        return (row * parts + part) * len(self._parts) + bundle

    @staticmethod
    def _named(asked: Sequence[Asked], places: Ints) -> tuple[Ints, Ints, Ints]:
        """Bundle, row and part of some of a step's rows."""
        row, part, bundle = (of[places] for of in _numbered(asked))
        return bundle, row, part

    def _begin(self, fresh: Ints, slots: Ints, asked: Sequence[Asked]) -> None:
        """Copies of these rows of a step, which know of nothing yet; what those before them held back is pushed."""
        gone = kernels.record_fields(np.take(self._records, slots, axis=0))
        held = slots[gone["ticks"] > 0]
        if len(held):
            self._left.append(self._taken(held, None))
            self.figures["pushed_eviction"] += len(held)
        self.figures["evictions"] += int(np.count_nonzero(gone["at"]))
        self._of["bundle"][slots], self._names[slots, 0], self._names[slots, 1] = self._named(asked, fresh)
        for name in ("has_values", "ticks", "at"):  # one by one: NumPy takes many times as long for whole records
            self._of[name][slots] = 0

    def _taken(self, slots: Ints, scale: float | None) -> _Held:
        """What these have held back; with a scale, they are what their own ticks have made of them."""
        found = [kernels.sums_of_copies(self._records, table, slots, scale=scale) for table in self._copies]
        ticks = kernels.end_ticks(self._records, slots, forget=scale is None)
        row, part = np.take(self._names, slots, axis=0).T
        squares = [_NONE if of is None else of for _, of in found]
        return _Held(self._of["bundle"][slots].astype(np.int64), row, part, ticks, [of for of, _ in found], squares)

    def forget(self, rowless: Flags) -> None:
        """Of these rows of the step, ids without a row, nothing is kept; what was held back of earlier lives goes."""
        step = self._steps[0]
        step.rowless = rowless
        if not rowless.any():
            return
        slots = step.slots[rowless]
        slots = slots[slots >= 0]
        held = slots[self._of["ticks"][slots] > 0]
        if len(held):
            self._left.append(self._taken(held, None))
            self.figures["pushed_no_row"] += len(held)
        self._of["has_values"][slots] = 0
        step.slots = np.where(rowless, -1, step.slots)

    def read(self, sent: Flags, came: Sequence[Floats], accumulators: Sequence[Floats | None]) -> Sequence[Floats]:
        """What is read of the present step's rows, by table in its place, written over what came."""
        step = self._steps[0]
        self._room(came[0].dtype)
        for pushed, scale in self._on_way:
            for held in pushed:
                self._add_pushed(held, scale, step.keys, sent, came, accumulators)
        n_sent = int(np.count_nonzero(sent))
        self.figures["too_old"] += int(np.count_nonzero(sent & step.kept)) if n_sent else 0
        self.figures["copies_read"] += len(sent) - n_sent
        for table, values, sums in zip(self._copies, came, accumulators, strict=True):
            kernels.read_copies(
                self._records, table, step.slots, sent, values, sums, step=step.number, scale=self._scale
            )
        return came

    def _add_pushed(
        self,
        held: _Held,
        scale: float,
        keys: Ints,
        sent: Flags,
        came: Sequence[Floats],
        accumulators: Sequence[Floats | None],
    ) -> None:
        """Rows that came before their owners had learned this push of ours become what it will make of them."""
        there = np.flatnonzero(sent)
        there = there[np.argsort(keys[there], kind="stable")]
        pushed = self._key(held.row, held.part, held.bundle)
        at = np.minimum(np.searchsorted(keys[there], pushed), max(len(there) - 1, 0))
        some = np.flatnonzero(keys[there][at] == pushed) if len(there) else at[:0]
        mine = there[at[some]] if len(some) else there[:0]
        records = kernels.copy_records(len(mine))
        of = kernels.record_fields(records)
        of["bundle"], of["ticks"] = held.bundle[some], held.ticks[some]
        for t, (how, values, sums) in enumerate(zip(self._learning, came, accumulators, strict=True)):
            rows, numbers = np.stack([values[mine], held.gradients[t][some]], axis=1), None
            if sums is not None:
                squares = held.squares[t][some]
                if how.rule == "adagrad":
                    squares = squares * np.mean(rows[:, 1] ** 2, axis=1)
                numbers = np.stack([sums[mine], squares], axis=1).astype(rows.dtype)
            table = kernels.CopyTable(how.rule, how.lr_B, how.eps_B, how.bound_B, rows, numbers)
            kernels.sums_of_copies(records, table, np.arange(len(mine)), scale=scale)
            values[mine] = rows[:, 0]
            if sums is not None and numbers is not None:
                sums[mine] = numbers[:, 0]

    def push(self, gradients: Sequence[Floats] | None, *, drain: bool, lr_scale: float) -> list[_Held]:
        """What goes to owners."""
        out, self._left, self._scale = self._left, [], lr_scale
        s, age, of, step = self._keeping.staleness, self._keeping.max_age, self._of, self._steps.popleft()
        if gradients is not None:
            over = kernels.tick_copies(self._records, step.slots, step=step.number, scale=lr_scale, most=s)
            for table, values in zip(self._copies, gradients, strict=True):
                kernels.add_to_copies(self._records, table, step.slots, values)
            alone = np.flatnonzero((step.slots < 0) & ~step.rowless)
            if len(alone):
                out.append(self._alone(step.asked, alone, [values[alone] for values in gradients]))
                self.figures["pushed_no_room"] += len(alone)
            self._push(step.slots[over], out, "bound")
        if age is not None:
            self._push(np.flatnonzero((of["ticks"] > 0) & (step.number - of["since"] >= age)), out, "age")
        if drain:
            self._push(np.flatnonzero(of["ticks"] > 0), out, "drain")
        self._on_way.append((out, lr_scale))
        if drain:
            self._on_way.clear()  # who asks next is answered when they have been learned
        return out

    def _alone(self, asked: Sequence[Asked], some: Ints, gradients: list[Floats]) -> _Held:
        """Those of the step's rows that found no room."""
        squares = [_NONE] * len(gradients)
        for t, (how, of) in enumerate(zip(self._learning, gradients, strict=True)):
            if how.rule == "adagrad":
                squares[t] = np.ones(len(some), of.dtype)  # of one step, whose squares are the gradient's own
            elif how.adds:
                squares[t] = kernels.squared_norm(np.ascontiguousarray(of)) / of.dtype.type(of.shape[1])
        return _Held(*self._named(asked, some), np.ones(len(some), np.int64), gradients, squares)

    def _push(self, slots: Ints, out: list[_Held], reason: str) -> None:
        """Copies are from now on what their own ticks have made of them, as far as this rank knows.

        Without staleness, and by maxima (``maxima`` says why), it is never read again, so that it need not be made.
        """
        goes_on = self._keeping.staleness > 0 and self._keeping.rule == "sum"
        if len(slots):
            out.append(self._taken(slots, self._scale if goes_on else None))
            self.figures[f"pushed_{reason}"] += len(slots)


class PooledCopies:
    """See ``Copies``."""

    def __init__(self, bundles: Sequence[Conditional], tables: Sequence[Sequence[str]], keeping: Keeping) -> None:
        self._tables, self._pools = tables, list[_Pool]()
        for some, capacity in _pooled(bundles, tables, keeping):
            parts = [0 if bundles[b].family.dynamic is not None else max(1, bundles[b].family.row_parts) for b in some]
            self._pools.append(_Pool(some, [tables[b] for b in some], parts, capacity, keeping))

    def kept(self, asked: Sequence[Asked]) -> list[np.ndarray]:
        """See ``Copies``."""
        out: list[np.ndarray] = [of.rows for of in asked]
        for pool in self._pools:
            mine = [asked[b] for b in pool.bundles]
            for b, kept in zip(pool.bundles, _cut(pool.kept_of(mine), mine), strict=True):
                out[b] = kept
        return out

    def foresee(self, asked: Sequence[Asked]) -> None:
        """See ``Copies``."""
        for pool in self._pools:
            pool.foresee([asked[b] for b in pool.bundles])

    def read(
        self,
        asked: Sequence[Asked],
        sent: Sequence[np.ndarray],
        came: Sequence[Mapping[str, Floats]],
        accumulators: Sequence[Mapping[str, Floats]],
        rowless: Sequence[np.ndarray],
    ) -> list[Mapping[str, Floats]]:
        """See ``Copies``."""
        out = list(came)
        for pool in self._pools:
            mine = [asked[b] for b in pool.bundles]
            pool.forget(_one([rowless[b] for b in pool.bundles]))
            came_of_it = _one([sent[b] for b in pool.bundles])
            found = pool.read(came_of_it, self._joined(pool, came), self._sums(pool, came, accumulators))
            for t, values in enumerate(found):
                for b, rows in zip(pool.bundles, _cut(values, mine), strict=True):
                    out[b] = {**out[b], self._tables[b][t]: rows}
        return out

    def _sums(
        self, pool: _Pool, came: Sequence[Mapping[str, Floats]], accumulators: Sequence[Mapping[str, Floats]]
    ) -> list[Floats | None]:
        """Accumulators that came, of each table whose copies have some; of rows that did not come, whatever."""
        found = list[Floats | None]()
        for t, adds in enumerate(pool.adds):
            of_each = list[Floats]()
            for b in pool.bundles if adds else ():
                table = self._tables[b][t]
                given, rows = accumulators[b].get(table), came[b][table]
                of_each.append(np.zeros(len(rows), rows.dtype) if given is None else given)
            found.append(_one(of_each) if adds else None)
        return found

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
            out |= zip(pool.bundles, _pushed(held, [self._tables[b] for b in pool.bundles]), strict=True)
        return [out[b] for b in range(len(asked))]

    def _joined(self, pool: _Pool, by_table: Sequence[Mapping[str, Floats]]) -> list[Floats]:
        """Of all of a pool's bundles, one after the other."""
        n = len(self._tables[pool.bundles[0]])
        return [_one([by_table[b][self._tables[b][t]] for b in pool.bundles]) for t in range(n)]

    def empty(self) -> None:
        """See ``Copies``."""
        for pool in self._pools:
            pool.empty()

    def give_up(self) -> None:
        """See ``Copies``."""
        for pool in self._pools:
            pool.give_up()

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
    Owner = Lags
    Dense = PooledCopies
    counts = COUNTS

    @classmethod
    def owner_rule(cls, rows: int, keeping: Keeping) -> OwnerRule:
        """See ``Conditional``."""
        return cls._rule(keeping)(rows, keeping)

    @classmethod
    def _rule(cls, keeping: Keeping) -> type[Lags]:
        return Maxima if keeping.rule == "max" else Lags

    @classmethod
    def holds_back(cls, keeping: Keeping) -> bool:
        """See ``Conditional``."""
        return keeping.staleness > 0

    @classmethod
    def rooms(
        cls, bundles: Sequence[Conditional], tables: Sequence[Sequence[str]], keeping: Keeping
    ) -> list[tuple[list[int], int]]:
        """See ``Conditional``: of the same widths and optimizers."""
        return _pooled(bundles, tables, keeping)

    @classmethod
    def owner_memory(cls, rows: int, keeping: Keeping) -> float:
        """See ``Conditional``: a number a row and dense rank, and one a row."""
        ranks, lag = len(keeping.dense), cls._rule(keeping).dtype(keeping)
        ticks = RowTicks.dtype(enough_ticks(keeping.most_missing))
        return float(rows * (ranks * lag.itemsize + ticks.itemsize))

    @classmethod
    def memory(
        cls, bundles: Sequence[Conditional], tables: Sequence[Sequence[str]], keeping: Keeping, item: int
    ) -> float:
        """See ``Conditional``: copies, sums of gradients; and messages of these, at a drain."""
        total = 0.0
        for some, capacity in _pooled(bundles, tables, keeping):
            elements, numbers = _elements(tables[some[0]], keeping)
            total += capacity * ((4 * elements + 2 * numbers) * item + _copy_bytes(tables[some[0]], keeping, item))
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
    pools = list(alike.values())
    rows = [sum(bundles[b].family.rows for b in some) for some in pools]
    if keeping.capacity_bytes is not None:
        each = [_copy_bytes(tables[some[0]], keeping, keeping.item) for some in pools]
        return list(zip(pools, _shared_out(keeping.capacity_bytes, rows, each), strict=True))
    share, most = keeping.capacity, keeping.capacity
    wanted = [most if isinstance(most, int) else math.ceil(share * n) for n in rows]
    return [(some, max(1, min(wants, n))) for some, wants, n in zip(pools, wanted, rows, strict=True)]


def _elements(tables: Sequence[str], keeping: Keeping) -> tuple[int, int]:
    """Of a copy of a row of these tables: elements of its values, and accumulators."""
    return sum(keeping.tables[t].width for t in tables), sum(keeping.accumulates(t) for t in tables)


def _copy_bytes(tables: Sequence[str], keeping: Keeping, item: int) -> int:
    """What a copy takes: values and the sum of gradients, accumulators and squares, its numbers; no messages."""
    numbers_bytes = _NUMBERS_BYTES + _KNOWN_BYTES * (keeping.evict == "known")
    return 2 * sum(_elements(tables, keeping)) * item + numbers_bytes


def _shared_out(n_bytes: int, rows: Sequence[int], each: Sequence[int]) -> list[int]:
    """Rows of each pool that together take no more than this; ``each``: bytes of a copy.

    A row of each first, then of each the same share of the others: so no table is kept whole while another of more
    columns has nothing, and what is popular, which is alike in all of them as far as is known, decides within each.
    """
    least, most = sum(each), sum(n * of for n, of in zip(rows, each, strict=True))
    if n_bytes < least:
        raise ConfigError(
            f"policy.capacity is {n_bytes} bytes, but a copy of one row of each of the {len(rows)} pools of tables of "
            f"equal widths and optimizers takes {least}. Set it to '{least} B' at least."
        )
    share = 1.0 if n_bytes >= most else (n_bytes - least) / (most - least)
    return [1 + int(share * (n - 1)) for n in rows]


def _numbered(asked: Sequence[Asked]) -> tuple[Ints, Ints, Ints]:
    """Row, part and bundle of a step's rows."""
    bundle = np.repeat(np.arange(len(asked)), [len(of.rows) for of in asked])
    return _one([of.rows for of in asked]), _one([of.part for of in asked]), bundle


def _one(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """One after the other; where there is one, itself."""
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def _cut(values: Floats | Ints, asked: Sequence[Asked]) -> list[np.ndarray]:
    """Of each bundle again."""
    return [values] if len(asked) == 1 else np.split(values, np.cumsum([len(of.rows) for of in asked])[:-1])


def _pushed(held: Sequence[_Held], tables: Sequence[Sequence[str]]) -> list[Push]:
    """Of each bundle, of which these are the tables: part after part, and rows rising, as form ``rows`` has them."""
    if not held:
        none = np.zeros(0, np.int64)
        return [Push(Asked(none, none), {}, none) for _ in tables]
    bundle, row, part, ticks = (_one([getattr(of, n) for of in held]) for n in ("bundle", "row", "part", "ticks"))
    order = _order(row, part) if len(tables) == 1 else np.lexsort((row, part, bundle))
    row, part, ticks = row[order], part[order], ticks[order]
    gradients = [_one(of_each)[order] for of_each in zip(*(of.gradients for of in held), strict=True)]
    squares: list[Floats | None] = [
        _one(of_each)[order] if len(of_each[0]) == len(held[0].row) else None
        for of_each in zip(*(of.squares for of in held), strict=True)
    ]
    ends = np.cumsum(np.bincount(bundle, minlength=len(tables))).tolist()
    out = []
    for names, mine in zip(tables, map(slice, [0, *ends[:-1]], ends), strict=True):
        of_table = {name: values[mine] for name, values in zip(names, gradients, strict=True)}
        of_squares = {name: of[mine] for name, of in zip(names, squares, strict=True) if of is not None}
        out.append(Push(Asked(row[mine], part[mine]), of_table, ticks[mine], of_squares))
    return out


def _order(row: Ints, part: Ints) -> Ints | slice:
    """In which parts come one after the other, and rows of a part rise."""
    later, same = part[1:] > part[:-1], part[1:] == part[:-1]
    return slice(None) if (later | same & (row[1:] > row[:-1])).all() else np.lexsort((row, part))
