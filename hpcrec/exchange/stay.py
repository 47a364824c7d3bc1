"""Which vectors stay with their holders: those that no dense rank needs. Knows forms, families, operators and hosts."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from hpcrec.embedding.shards import Family
from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.meetings import Places
from hpcrec.operators.base import (
    Learned,
    Operator,
    elements_of,
    has_parameters,
    meets,
    shared_parameters,
    why_on_dense_ranks,
)
from hpcrec.types import Lookup, TableSpec


class Stay:
    """Decides what stays.

    Parameters
    ----------
    tables : mapping of str to TableSpec
    family_of : mapping of str to Family
        By feature.
    form_of : mapping of str to str
        By feature.
    operators : mapping of str to Operator
    learned : bool
        Whether those with dense parameters may be computed at holders.
    places : Places, optional
        Where those that meet may be computed by owners; None: nowhere.
    """

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        family_of: Mapping[str, Family],
        form_of: Mapping[str, str],
        operators: Mapping[str, Operator],
        *,
        learned: bool = True,
        places: Places | None = None,
    ) -> None:
        self._learned = learned
        self._wanted, self._host_of = ((), ()) if places is None else (places.wanted, places.host_of)
        self._tables = tables
        self._family_of = family_of
        self._form_of = form_of
        self._operators = operators

    def of(self, lookups: Sequence[Lookup], one_hot: AbstractSet[str], *, most: bool = False) -> set[Lookup]:
        """Lookups whose vectors stay; with ``most`` all that can, whatever crosses then.

        An operator with dense parameters (``Learned``) is computed at holders only where so fewer elements cross a
        sample, had no sample an empty bag: all that it could leave there, or nothing. One that meets (``meets``) has
        all its vectors stay, or none. The others take what they can.
        """
        away = list(self._operators)
        while True:
            stay = self._stay(lookups, one_hot, away)
            apart = [n for n in away if meets(self._operators[n]) and not stay >= set(self._operators[n].lookups)]
            if not apart:
                break
            away = [n for n in away if n not in apart]  # who shares lookups with one leaves them too
        for name, operator in self._operators.items():
            if isinstance(operator, Learned) and not most:
                without = [n for n in away if n != name]
                less = self._stay(lookups, one_hot, without)
                if self._elements(lookups, less) <= self._elements(lookups, stay):
                    away, stay = without, less
        return stay

    def _stay(self, lookups: Sequence[Lookup], one_hot: AbstractSet[str], away: Iterable[str]) -> set[Lookup]:
        """Those that only operators ``away`` read, all of which can be computed where the rows are.

        Where they stay, a holder is sent empty bags too, and answers with vectors of those for the feature's other
        tables. So they stay only where there are no other tables that cross, or no empty bags.
        """
        readers: dict[Lookup, list[str]] = {k: [] for k in lookups}
        for name, operator in self._operators.items():
            for k in operator.lookups:
                readers[k].append(name)
        may = set(away)
        can = {
            k
            for k, names in readers.items()
            if names and may.issuperset(names) and all(self._substitutable(k, n) for n in names)
        }
        crossing = {k.feature for k in lookups if k not in can}
        never_empty = {f for f in one_hot if f in self._family_of and self._family_of[f].kind != "row"}
        return {k for k in can if k.feature not in crossing or k.feature in never_empty}

    def _substitutable(self, lookup: Lookup, name: str) -> bool:
        operator = self._operators[name]
        if not FORMS[self._form_of[lookup.feature]].stays or operator.shapes is None:
            return False
        if isinstance(operator, Learned) and not self._learned:
            return False
        if meets(operator) and (name not in self._wanted or self.why_apart(name)):
            return False
        kind = self._family_of[lookup.feature].kind
        return kind in ("table", "column") or (kind == "row" and operator.splits_bags and lookup.pooling == "sum")

    def why_apart(self, name: str) -> str:
        """Of an operator that is to meet at owners: why it does on dense ranks; empty where it does not."""
        operator = self._operators[name]
        if why := why_on_dense_ranks(operator):
            return why
        if has_parameters(operator) and not self._learned:
            return "each group of dense ranks has a module of its own"
        if why := shared_parameters(name, self._operators):
            return why
        for k in operator.lookups:
            family = self._family_of[k.feature]
            if family.kind not in ("table", "row"):
                return f"table {k.table!r} is placed as {family.kind!r}; it needs whole rows at owners"
            if family.kind == "row" and not (operator.splits_bags and k.pooling == "sum"):
                return f"bags of feature {k.feature!r}, pooled by {k.pooling!r}, are split over owners"
        hosts = {self._host_of[rank] for k in operator.lookups for rank in self._family_of[k.feature].holders}
        return f"its rows are on {len(hosts)} hosts" if len(hosts) > 1 else ""

    def _elements(self, lookups: Sequence[Lookup], stay: AbstractSet[Lookup]) -> int:
        """What crosses of a sample, if a vector of every lookup does that does not stay, and each partial result."""
        vectors = sum(self._tables[k.table].width for k in dict.fromkeys(lookups) if k not in stay)
        partials = 0
        for operator in self._operators.values():
            if meets(operator):
                partials += elements_of(operator, operator.width) if stay >= set(operator.lookups) else 0
                continue
            asked = {at for k in operator.lookups if k in stay for at in self._places(k)}
            partials += sum(elements_of(operator, stop - start) for _, (start, stop) in asked)
        return vectors + partials

    def _places(self, lookup: Lookup) -> list[tuple[int, tuple[int, int]]]:
        """Each holder of a lookup's rows, with its columns."""
        family, width = self._family_of[lookup.feature], self._tables[lookup.table].width
        spans = [family.part_columns(width, part) for part in range(len(family.holders))]
        return [(rank, span) for rank, span in zip(family.holders, spans, strict=True) if span[0] < span[1]]
