"""An owner's side of conditional forms: which copies are too old, by each form's rule, and rows that are pushed.

Knows the owner's leg, its store's geometry and the rules; messages are ``copies``.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from hpcrec.embedding.asked import Asked, with_rows
from hpcrec.embedding.blocks import Part
from hpcrec.embedding.shards import Family
from hpcrec.embedding.store import Store
from hpcrec.exchange.copies import Numbers, Served, Streams, Vectors
from hpcrec.exchange.exact import Ticks, stands
from hpcrec.exchange.forms.conditional import NOBODY, Conditional, Keeping, OwnerRule
from hpcrec.exchange.forms.form import Form
from hpcrec.exchange.forms.missing import Missing
from hpcrec.exchange.layout import Leg
from hpcrec.types import Floats, Ints


class _Ruled:
    """A rule over the rows of some entries, which it has one entry after the other.

    Of several where each has a family by itself whose rows change by pushes alone, so that a step asks once for all.

    Attributes
    ----------
    rule : OwnerRule
    entries : list of int
        Which.
    family : Family
        Of the first entry.
    spare : int
        Row of ids that have none; -1: there are no such ids.
    lives : int64 [rows] or None
        Of dynamic tables.
    mixed : bool
        Whether the rows change by other forms too.
    """

    def __init__(
        self, rule: OwnerRule, entries: Sequence[int], family: Family, spare: int, lives: Ints | None, *, mixed: bool
    ) -> None:
        self.rule, self.family, self.spare, self.lives, self.mixed = rule, family, spare, lives, mixed
        self.entries = list(entries)
        self._seen = None if lives is None else lives.copy()

    def answer(self, rows: Ints, places: Ints, has: np.ndarray, *, train: bool) -> np.ndarray:
        """Which rows follow; those of which there is no copy, and ids without a row, always do."""
        if self.lives is not None and self._seen is not None:
            anew = np.unique(rows[self.lives[rows] != self._seen[rows]])
            if len(anew):
                self._seen[anew] = self.lives[anew]
                self.rule.restarted(anew)
        follows = ~has | (rows == self.spare)
        some = np.flatnonzero(~follows)
        follows[some] = self.rule.answer(rows[some], places[some])
        if train:  # an evaluation leaves copies as they are
            self.rule.sent(rows[follows], places[follows])
            self.rule.missing.add_none(int(np.count_nonzero(follows)))
        return follows


class OwnerRules:
    """One owner's.

    Parameters
    ----------
    leg : Leg
    store : Store
    size : int
        Ranks.
    keeping : Keeping

    Attributes
    ----------
    entries : list of (Family, int)
        Of each entry of a conditional form: the family and the part.
    exact : list of Ticks
        Of each entry, what is counted exactly; empty where nothing is.
    """

    def __init__(self, leg: Leg, store: Store, size: int, keeping: Keeping) -> None:
        self.entries = [(entry.family, entry.part) for entry in leg.entries if entry.form.conditional]
        self.exact = list[Ticks]()
        self._store, self._keeping = store, keeping
        entries = [e for e, entry in enumerate(leg.entries) if entry.form.conditional]
        number = {e: i for i, e in enumerate(entries)}
        self.number_E = np.array([number.get(e, -1) for e in range(len(leg.entries))], np.int64)
        entry_S = np.array([number[s.entry] for s in leg.apart], np.int64)
        width_S = np.array([s.width for s in leg.apart], np.int64)
        self._streams = Streams(entry_S, width_S, len(entries), size=size, dtype=store.dtype)
        with_S = np.array([keeping.accumulates(s.table) for s in leg.apart], bool)
        first_S = np.array([s.columns[0] == 0 for s in leg.apart], bool)
        self.squares, self.accumulators = (
            Numbers(some, entry_S, entries=len(entries), size=size, dtype=store.dtype)
            for some in (with_S, with_S & first_S)
        )
        places = [store.place(s.table) for s in leg.apart]
        self._block_S = np.array([found[0] for found in places if found is not None], np.int64)
        self._base_S = np.array([found[1].base for found in places if found is not None], np.int64)
        self._mixed = {entry.family.name for entry in leg.entries if not entry.form.conditional}
        self._dense = np.array(keeping.dense, np.int64)
        self._base_E, self._rule_E = np.zeros(len(entries), np.int64), np.zeros(len(entries), np.int64)
        alike: dict[Hashable, list[int]] = {}
        of_family = Counter(family.name for family, _ in self.entries)
        for i, (e, (family, part)) in enumerate(zip(entries, self.entries, strict=True)):
            alone = family.dynamic is not None or family.name in self._mixed or of_family[family.name] > 1
            alike.setdefault(i if alone else (leg.entries[e].form, stands(family, part)), []).append(i)
        self._ruled = [self._rule(some, leg.entries[entries[some[0]]].form) for some in alike.values()]
        for g, ruled in enumerate(self._ruled):
            self._rule_E[ruled.entries] = g

    def _rule(self, some: Sequence[int], form: type[Form]) -> _Ruled:
        assert issubclass(form, Conditional)
        rows_E = np.array([family.part_rows(part) for family, part in (self.entries[i] for i in some)], np.int64)
        self._base_E[list(some)] = np.cumsum(rows_E) - rows_E
        family, rows = self.entries[some[0]][0], int(rows_E.sum())
        dynamic = family.dynamic is not None
        lives = self._store.lives(family.name) if dynamic else None
        rule = form.owner_rule(rows + dynamic, self._keeping)
        return _Ruled(rule, some, family, rows if dynamic else -1, lives, mixed=family.name in self._mixed)

    def answer(self, served: Served, has_K: np.ndarray, *, train: bool) -> None:
        """Fills in ``served.follows_K`` and ``rowless_K``."""
        places_K = self._places(served)
        served.follows_K, served.rowless_K = np.zeros(len(has_K), bool), np.zeros(len(has_K), bool)
        rows_K = self._rows(served)
        for g, ruled in enumerate(self._ruled):
            mine = self._of(g, served)
            served.rowless_K[mine] = rows_K[mine] == ruled.spare
            served.follows_K[mine] = ruled.answer(rows_K[mine], places_K[mine], has_K[mine], train=train)

    def _rows(self, served: Served) -> Ints:
        """As the rules call them."""
        return served.row_K + self._base_E[served.entry_K]

    def _of(self, g: int, served: Served) -> Ints | slice:
        """Those of a rule."""
        return slice(None) if len(self._ruled) == 1 else np.flatnonzero(self._rule_E[served.entry_K] == g)

    def _places(self, served: Served) -> Ints:
        """Those of who asks, or pushes, among the dense ranks."""
        return np.searchsorted(self._dense, served.peer_K)

    def vectors(self, served: Served, rows: Ints) -> Vectors:
        """Those of some of the rows."""
        return self._streams.vectors(served.peer_K, served.entry_K, rows)

    def note_accumulators(self, served: Served, step: int) -> None:
        """Fills in ``served.accumulators``: those of rows that are sent, of a step that is gathered."""
        if not len(self.accumulators.of_S):
            served.accumulators = np.zeros(0, self._store.dtype)
            return
        v = self.accumulators.vectors(served, np.flatnonzero(served.follows_K))
        served.accumulators = np.zeros(len(v.start), self._store.dtype)
        for s in self.accumulators.of_S.tolist():
            mine = np.flatnonzero(v.stream == s)
            rows = served.row_K[v.row[mine]] + self._base_S[s]
            served.accumulators[mine] = self._store.accumulators(step, int(self._block_S[s]), rows)

    def found(self, pushed: Served) -> None:
        """Rows in place of ids, of dynamic tables; gradients of ids that have none are dropped, and counted."""
        for g, ruled in enumerate(self._ruled):
            if ruled.lives is not None:
                mine = self._of(g, pushed)
                pushed.row_K[mine] = self._store.find(ruled.family.name, pushed.row_K[mine], admit=False)
                self._store.dynamic[ruled.family.name].dropped += int((pushed.row_K[mine] == ruled.spare).sum())

    def with_rows(
        self,
        works: Sequence[Asked],
        served: Served,
        v: Vectors,
        at: int,
        *,
        train: bool,
        squares_P: Floats | None = None,
    ) -> list[Asked]:
        """What a step asks of each block, and these vectors, which lie behind ``at``: gathered, or to learn from.

        ``squares_P``: of the vectors of streams that have some; of others, whatever.
        """
        out = []
        for b, asked in enumerate(works):
            mine = np.flatnonzero(self._block_S[v.stream] == b)
            row, stream = v.row[mine], v.stream[mine]
            sums: dict[str, Any] = {}
            if squares_P is not None and len(mine) and self.squares.some_S[stream[0]]:
                sums = {"ticks": served.ticks_K[row], "squares": squares_P[mine]}
            rows, start = served.row_K[row] + self._base_S[stream], v.start[mine] + at
            out.append(with_rows(asked, rows, start, train=train, device=self._store.device, **sums))
        return out

    def learned(self, works: Sequence[Asked], pushed: Served | None) -> None:
        """Tells the rules which rows have changed: what was pushed, and rows that other forms have learned."""
        if pushed is not None:
            places_K, rows_K = self._places(pushed), self._rows(pushed)
        for g, ruled in enumerate(self._ruled):
            if ruled.mixed:
                found = [self._rows_of(self._store.place(table), works) for table in ruled.family.tables]
                rows = np.unique(np.concatenate(found))
                ruled.rule.changed(rows[rows != ruled.spare])
                if self.exact:
                    self.exact[ruled.entries[0]].changed(rows)
            for other, of in enumerate(self._ruled if pushed is not None else ()):
                if of.family is ruled.family and pushed is not None:
                    mine = self._of(other, pushed)
                    known = rows_K[mine] != ruled.spare
                    places = places_K[mine] if other == g else np.full(len(known), NOBODY)
                    ruled.rule.learned(rows_K[mine][known], places[known], pushed.ticks_K[mine][known])

    def missing(self) -> list[Missing]:
        """How many ticks reads have lacked, by the rules; a row counts at its first owner."""
        return [ruled.rule.missing for ruled in self._ruled if self._stands(ruled)]

    def _stands(self, ruled: _Ruled) -> bool:
        return stands(*self.entries[ruled.entries[0]])

    def figures(self) -> dict[str, float]:
        """Sums of what the rules say of themselves, likewise."""
        total: dict[str, float] = {}
        for ruled in self._ruled:
            for name, value in ruled.rule.figures().items() if self._stands(ruled) else ():
                total[name] = total.get(name, 0.0) + value
        return total

    @staticmethod
    def _rows_of(place: tuple[int, Part] | None, works: Sequence[Asked]) -> Ints:
        if place is None:
            return np.zeros(0, np.int64)
        block, part = place
        grouping = works[block].grouping
        assert grouping is not None, "the step is learned from"
        unique = np.asarray(grouping.unique)
        return unique[slice(*np.searchsorted(unique, (part.base, part.end)).tolist())] - part.base
