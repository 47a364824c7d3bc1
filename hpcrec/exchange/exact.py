"""``run.check_staleness``: holds every training read of a copy to the bound, by exact counts of ticks.

An owner sees every ask, so it knows by itself which rows each dense rank makes a tick of: those of its ask, once the
step is learned. For each row and dense rank it counts the ticks that were made, those that have come, and those of the
others that were in the row when it was last sent there. What a read lacks is what the others have made less the last.
That is apart from the rule by which rows are sent (``forms.cached.Lags``), and also counts what is held back. At drain
points every tick that was made has to have come.

Ranks tell each other in each step whether a bound was broken, 8 bytes (tag ``check``). Refused with dynamic tables: a
gradient may be of an earlier life of its row, so that a row's ticks have no count. Knows rows by number and the bundles
of conditional forms.
"""

from collections.abc import Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.failure import agree
from hpcrec.embedding.shards import Family
from hpcrec.errors import HpcrecError
from hpcrec.exchange.copies import Served
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.exchange.forms.missing import Missing
from hpcrec.types import Ints

_COUNTS = 3


def check_bytes(rows: int, keeping: Keeping) -> float:
    """What an owner needs for so many rows of a part."""
    return float(_COUNTS * rows * (len(keeping.dense) + 1) * 8) if keeping.check else 0.0


class Ticks:
    """Of one part of a family: int64 by row and dense rank, and behind them those that other forms have made.

    Parameters
    ----------
    rows, ranks : int
        Of the part; dense ranks.
    """

    def __init__(self, rows: int, ranks: int) -> None:
        self._ranks = ranks
        self._made, self._come, self._seen = (
            kernels.reserved_zeros((rows, ranks + 1), np.dtype(np.int64)) for _ in range(_COUNTS)
        )

    def made(self, rows: Ints, places: Ints) -> None:
        """A dense rank has made a tick of each of these rows."""
        np.add.at(self._made, (rows, places), 1)

    def come(self, rows: Ints, places: Ints, ticks: Ints) -> None:
        """Dense ranks have pushed so many."""
        np.add.at(self._come, (rows, places), ticks)

    def changed(self, rows: Ints) -> None:
        """Another form has learned these distinct rows: a tick of each dense rank, as owners' rules count it."""
        self._made[rows, self._ranks] += self._ranks
        self._come[rows, self._ranks] += self._ranks

    def sent(self, rows: Ints, places: Ints) -> None:
        """Rows as they are have gone there: with all that has come of the others."""
        self._seen[rows, places] = self._come[rows].sum(axis=1) - self._come[rows, places]

    def missing(self, rows: Ints, places: Ints) -> Ints:
        """What each read lacks of what the others have made, int64 [K]."""
        return np.asarray(self._made[rows].sum(axis=1) - self._made[rows, places] - self._seen[rows, places])

    def held_back(self) -> tuple[Ints, Ints]:
        """Rows and places of which not just what was made has come."""
        rows, places = np.nonzero(self._made != self._come)
        return rows.astype(np.int64), places.astype(np.int64)

    def difference(self, row: int, place: int) -> int:
        """Ticks made there that have not come."""
        return int(self._made[row, place] - self._come[row, place])

    def forget(self) -> None:
        """There are no copies, and nothing is held back."""
        for of in (self._made, self._come, self._seen):
            of[:] = 0


class StalenessCheck:
    """Of one exchange; on every rank of it, for its verbs are collective.

    Parameters
    ----------
    collectives : Collectives
    entries : sequence of (Family, int)
        Of this owner's entries of conditional forms: the family and the part; none on other ranks.
    keeping : Keeping

    Attributes
    ----------
    missing : Missing
        Of the reads so far; a row counts at its first owner.
    ticks : list of Ticks
        By entry.
    """

    def __init__(self, collectives: Collectives, entries: Sequence[tuple[Family, int]], keeping: Keeping) -> None:
        self._collectives, self._entries, self._keeping = collectives, entries, keeping
        self._dense = np.array(keeping.dense, np.int64)
        self.allowed = keeping.most_missing
        self.missing = Missing(self.allowed)
        self.ticks = [Ticks(family.part_rows(part), len(keeping.dense)) for family, part in entries]

    def read(self, asked: Served | None, step: int) -> None:
        """A training step's rows are answered: ``asked.follows_K`` are sent. Collective.

        Raises
        ------
        HpcrecError
            A read lacks more than the policy promises; on every rank.
        """
        broken = None
        for e, ticks in enumerate(self.ticks if asked is not None else ()):
            assert asked is not None
            mine = np.flatnonzero(asked.entry_K == e)
            rows, places = asked.row_K[mine], np.searchsorted(self._dense, asked.peer_K[mine])
            sent = asked.follows_K[mine]
            ticks.sent(rows[sent], places[sent])
            missing = ticks.missing(rows, places)
            if stands(*self._entries[e]):
                self.missing.add(missing)
            if broken is None and len(missing) and missing.max() > self.allowed:
                at = int(missing.argmax())
                broken = (
                    f"{self._named(e, int(rows[at]))}, as dense rank {self._dense[places[at]]} reads it in step "
                    f"{step}, lacks {missing[at]} ticks, and policy.staleness = {self._keeping.staleness} allows "
                    f"{self.allowed} with {len(self._dense)} dense ranks"
                )
        self._agree(broken)

    def learned(self, asked: Served | None, pushed: Served, *, learned: bool, drain: bool, step: int) -> None:
        """A step is over: its ticks are made, and these have come. Collective where it is a drain point.

        Raises
        ------
        HpcrecError
            Not just the ticks that were made have come by a drain point; on every rank.
        """
        broken = None
        for e, ticks in enumerate(self.ticks):
            if asked is not None and learned:
                mine = np.flatnonzero(asked.entry_K == e)
                ticks.made(asked.row_K[mine], np.searchsorted(self._dense, asked.peer_K[mine]))
            mine = np.flatnonzero(pushed.entry_K == e)
            ticks.come(pushed.row_K[mine], np.searchsorted(self._dense, pushed.peer_K[mine]), pushed.ticks_K[mine])
            if not drain:
                continue
            rows, places = ticks.held_back()
            if len(rows) and broken is None:
                row, place = int(rows[0]), int(places[0])
                broken = (
                    f"{self._named(e, row)}: at the drain point after step {step}, {ticks.difference(row, place)} "
                    f"ticks of dense rank {self._dense[place]} have not come, and 0 are allowed"
                )
        if drain:
            self._agree(broken)

    def forget(self) -> None:
        """All copies are forgotten, and what was held back has come or was given up."""
        for ticks in self.ticks:
            ticks.forget()

    def _agree(self, broken: str | None) -> None:
        """All ranks fail together."""
        any_of_them = self._collectives.allreduce(np.array([broken is not None], np.int64), "check", op="max")
        if any_of_them[0]:
            said = f"run.check_staleness: {broken}. This is a fault of the form's rule, or of what ranks tell it."
            agree(self._collectives, None if broken is None else HpcrecError(said))

    def _named(self, entry: int, row: int) -> str:
        """A row by its table and the number that the data set has for it."""
        family, part = self._entries[entry]
        if family.kind == "row":
            parts, there = family.deal(np.arange(family.rows))
            row = int(np.flatnonzero((parts == part) & (there == row))[0])
        return f"table {', '.join(family.tables)}: row {row}"


def stands(family: Family, part: int) -> bool:
    """Whether a row counts at the owner of this part: of those that have some of its columns, at the first."""
    return family.kind != "column" or part == 0
