"""Which tables are whole in memory where others share what is left of it, and lie on a disk: by time saved a byte.

An owner has a budget. A table that is whole takes its rows' bytes and no read; one that is not takes some bytes for
each of its rows, so that it is known where they lie, and as much of a cache as it fills. That is a knapsack of which
each table has one of several sizes (multiple choice), which ``choose`` solves; ``place`` starts from that, changes one
table at a time as long as it saves time, and holds every change to what ``expect`` predicts of the store as it is: a
placement is never slower than none. Knows parts of tables as bytes, rows and curves;
knows no ranks, files or keys.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrec.plan.aging import kept
from hpcrec.plan.curves import Curve
from hpcrec.units import KiB, MiB

INDEX_BYTES = 4  # a row: where it lies on the disk
SLOT_BYTES = 21  # beside a cached row: which it is, when and how often it was asked for, whether it has changed
PIECES, PIECE_BYTES = 7, 128 * KiB  # of a block
PIECES_READ = 3  # of them, whose rows are read where they are: two on their way, and two that are half full
PAGES_UNDER_WAY = 128
WAYS = 32  # places that a row may have in a cache, of which each block has one such set at least
SPARE, FEW_SEGMENTS_BYTES = 1.5, 6 * MiB  # times its rows, or more than them, that a block may have of the disk
_POINTS = 40  # sizes of a cache that are looked at
_UNITS = 4000  # parts of a budget
_ROUNDS = 50  # of changes of one table, at most

Option = tuple[float, float]
"""Bytes of memory, and seconds a step."""


@dataclass(frozen=True, kw_only=True)
class TierPart:
    """Of a table, what one owner has.

    Attributes
    ----------
    table : str
    block : object
        Parts with an equal one share a cache.
    rows, row_bytes : int
        With optimizer state.
    page_bytes : int
        That a read of a row takes.
    curve : Curve
        Of its own rows.
    ahead : int
        Steps whose rows are brought before they are used.
    """

    table: str
    block: Any
    rows: int
    row_bytes: int
    page_bytes: int
    curve: Curve
    ahead: int = 0

    @property
    def n_bytes(self) -> int:
        """All rows."""
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class Expected:
    """Of one owner, a step.

    Attributes
    ----------
    reads, pages, new, held : dict of str to float
        By table that is not whole: rows read, pages that these lie in on the disk (those that were handed over last are
        in memory still), rows that come for the first time, rows that memory holds.
    read_bytes, handed_bytes : float
        Of pages that are read, and of rows that leave the memory changed once it is full: what comes in leaves so.
    """

    reads: Mapping[str, float]
    pages: Mapping[str, float]
    new: Mapping[str, float]
    held: Mapping[str, float]
    read_bytes: float
    handed_bytes: float

    @property
    def rows_read(self) -> float:
        """All in all."""
        return sum(self.reads.values())

    @property
    def pages_read(self) -> float:
        """Likewise: what takes the disk's time."""
        return sum(self.pages.values())


def beside_bytes(parts: Sequence[TierPart]) -> int:
    """What memory has beside rows, of parts that are on a disk: their index, and pages under way."""
    if not parts:
        return 0
    known = INDEX_BYTES * sum(part.rows for part in parts)
    pages = PAGES_UNDER_WAY * max(part.page_bytes for part in parts)
    return known + pages + len({part.block for part in parts}) * PIECES * PIECE_BYTES


def least_bytes(parts: Sequence[TierPart], whole: Iterable[str] = ()) -> int:
    """The smallest budget of an owner with these parts."""
    on_disk = [part for part in parts if part.table not in set(whole)]
    in_memory = sum(part.n_bytes for part in parts if part.table in set(whole))
    caches = {part.block: WAYS * (part.row_bytes + SLOT_BYTES) for part in on_disk}
    return in_memory + beside_bytes(on_disk) + sum(caches.values())


def expect(parts: Sequence[TierPart], memory_bytes: float, whole: Iterable[str] = ()) -> Expected | None:
    """What an owner reads a step; None where the memory is less than the least.

    Blocks share what is left of it by their rows' bytes, tables of a block by how often their rows are asked for.
    """
    named = set(whole)
    if memory_bytes < least_bytes(parts, named):
        return None
    on_disk = [part for part in parts if part.table not in named]
    left = memory_bytes - beside_bytes(on_disk) - sum(part.n_bytes for part in parts if part.table in named)
    total = sum(part.n_bytes for part in on_disk)
    reads, pages, new, held = (dict[str, float]() for _ in range(4))
    read_bytes, handed_bytes = 0.0, 0.0
    for block in dict.fromkeys(part.block for part in on_disk):
        mine = [part for part in on_disk if part.block == block]
        its_bytes = left * sum(part.n_bytes for part in mine) / total
        places = min(its_bytes / (mine[0].row_bytes + SLOT_BYTES), sum(part.rows for part in mine) + WAYS - 1)
        found = kept([part.curve for part in mine], max(places // WAYS, 1) * WAYS, mine[0].ahead)
        written = sum(min(part.rows, part.curve.distinct) for part in mine)
        its_handed_bytes = 0.0
        for part, rows, n in zip(mine, found.held, found.reads, strict=True):
            held[part.table], reads[part.table], new[part.table] = rows, n, part.curve.new
            full = rows < part.curve.distinct
            its_handed_bytes += (n + full * part.curve.new) * part.row_bytes
        handed_bytes += its_handed_bytes
        soon = found.soon(PIECES_READ * PIECE_BYTES / max(its_handed_bytes, 1e-9))
        from_disk = [n - of for n, of in zip(found.reads, soon, strict=True)]
        shared = _pages(sum(from_disk), written, mine[0]) / max(sum(from_disk), 1e-9)
        for part, n in zip(mine, from_disk, strict=True):
            pages[part.table] = n * shared
            read_bytes += pages[part.table] * part.page_bytes
    return Expected(reads, pages, new, held, read_bytes, handed_bytes)


def _pages(reads: float, rows: float, part: TierPart) -> float:
    """Distinct pages of so many rows of a block, which lie anywhere in its space: between its rows' and the most."""
    own = rows * part.row_bytes
    pages = max((own + max(SPARE * own, own + FEW_SEGMENTS_BYTES)) / 2 / part.page_bytes, 1.0)
    return min(-pages * math.expm1(reads * math.log1p(-1 / max(pages, 1.0 + 1e-9))), reads)


def memory_for(owners: Sequence[Sequence[TierPart]], pages: float, whole: Iterable[str] = ()) -> int | None:
    """The smallest budget of each owner with which all of them together read at most so many pages a step.

    None: they read more with caches for all rows.
    """
    named = set(whole)

    def enough(memory_bytes: int) -> bool:
        found = [expect(parts, memory_bytes, named) for parts in owners]
        return all(of is not None for of in found) and sum(of.pages_read for of in found if of is not None) <= pages

    low = max(least_bytes(parts, named) for parts in owners)
    if enough(low):
        return low
    high = 2 * low
    while not enough(high):
        if all(high > 4 * (least_bytes(parts, named) + sum(part.n_bytes for part in parts)) for parts in owners):
            return None
        low, high = high, 2 * high
    while high - low > max(low // 1000, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def options_of(part: TierPart, read_s: float) -> list[Option]:
    """Of one part: all of its rows on the disk, with caches of several sizes, and last whole in memory."""
    known = INDEX_BYTES * part.rows
    sizes = np.interp(np.linspace(0, 1, _POINTS), np.linspace(0, 1, len(part.curve.top)), part.curve.top)
    found = [(known + held * (part.row_bytes + SLOT_BYTES), part.curve.best(held) * read_s) for held in sizes.tolist()]
    return [*found, (part.n_bytes, 0.0)]


def choose(options: Sequence[Sequence[Option]], budget: float) -> list[int] | None:
    """One option of each item, so that all together fit and take the least time; None where none fit.

    By what a budget in ``_UNITS`` parts is worth to the items so far (dynamic programming): what an option takes more
    than the smallest of its item is rounded up to whole parts. Then by time saved a byte, where rounding left some.
    """
    least = [min(range(len(of)), key=lambda k: of[k]) for of in options]
    spare = budget - sum(of[k][0] for of, k in zip(options, least, strict=True))
    if spare < 0:
        return None
    unit = max(spare / _UNITS, 1e-9)
    time, taken = np.zeros(_UNITS + 1), list[Any]()
    for of, smallest in zip(options, least, strict=True):
        after, which = time + of[smallest][1], np.full(_UNITS + 1, smallest)
        for k, (n_bytes, its_time) in enumerate(of):
            parts = math.ceil((n_bytes - of[smallest][0]) / unit)
            if parts <= _UNITS:
                found = time[: _UNITS + 1 - parts] + its_time
                less = found < after[parts:]
                after[parts:][less], which[parts:][less] = found[less], k
        time, taken = after, [*taken, which]
    picks, left = [0] * len(options), _UNITS
    for item in reversed(range(len(options))):
        picks[item] = k = int(taken[item][left])
        left -= math.ceil((options[item][k][0] - options[item][least[item]][0]) / unit)
    return _filled(options, picks, budget)


def _filled(options: Sequence[Sequence[Option]], picks: list[int], budget: float) -> list[int]:
    """What is left of the budget is for what saves most time a byte and fits, one after the other."""
    while True:
        now = [of[k] for of, k in zip(options, picks, strict=True)]
        spare = budget - sum(n_bytes for n_bytes, _ in now)
        fits = [
            ((now[item][1] - time) / max(n_bytes - now[item][0], 1e-9), item, k)
            for item, of in enumerate(options)
            for k, (n_bytes, time) in enumerate(of)
            if time < now[item][1] and n_bytes - now[item][0] <= spare
        ]
        if not fits:
            return picks
        _, item, k = max(fits)
        picks[item] = k


def place(owners: Sequence[Sequence[TierPart]], memory_bytes: float, read_s: Mapping[int, float]) -> tuple[str, ...]:
    """Tables that are to be whole, on every owner that has a part; none where nothing is saved by it.

    Parameters
    ----------
    owners : sequence of sequences of TierPart
        Of a host, whose owners share a disk: their times add up.
    memory_bytes : float
        Of each.
    read_s : mapping of int to float
        Seconds a read, by bytes of a page.
    """
    wanted: dict[str, list[bool]] = {}
    for parts in owners:
        options = [options_of(part, read_s[part.page_bytes]) for part in parts]
        rest = beside_bytes(parts) - INDEX_BYTES * sum(part.rows for part in parts)
        picks = choose(options, memory_bytes - rest)
        for n, part in enumerate(parts):
            wanted.setdefault(part.table, []).append(picks is not None and picks[n] == len(options[n]) - 1)
    whole = frozenset(table for table, by_owner in wanted.items() if all(by_owner))
    known: dict[tuple[int, frozenset[str]], float] = {}

    def seconds(named: frozenset[str]) -> float:
        total = 0.0
        for owner, parts in enumerate(owners):
            mine = frozenset(part.table for part in parts) & named
            if (owner, mine) not in known:
                known[owner, mine] = _seconds(parts, memory_bytes, read_s, mine)
            total += known[owner, mine]
        return total

    found = min((frozenset[str](), whole, frozenset(wanted)), key=seconds)
    for _ in range(_ROUNDS):
        better = min((found ^ {table} for table in wanted), key=seconds, default=found)
        if seconds(better) >= seconds(found) * (1 - 1e-6):
            break
        found = better
    return tuple(table for table in wanted if table in found)


def _seconds(
    parts: Sequence[TierPart], memory_bytes: float, read_s: Mapping[int, float], whole: frozenset[str]
) -> float:
    """Of an owner's reads a step; infinite where the memory is too little."""
    found = expect(parts, memory_bytes, whole)
    if found is None:
        return float("inf")
    sizes = {part.table: part.page_bytes for part in parts}
    return sum(n * read_s[sizes[table]] for table, n in found.pages.items())
