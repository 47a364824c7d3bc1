"""Which vectors stay with their holders: those that no dense rank needs. Knows forms, families and operators."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from hpcrec.embedding.shards import Family
from hpcrec.exchange.forms import FORMS
from hpcrec.operators.base import Learned, Operator, elements_of, meets
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
    """

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        family_of: Mapping[str, Family],
        form_of: Mapping[str, str],
        operators: Mapping[str, Operator],
        *,
        learned: bool = True,
    ) -> None:
        self._learned = learned
        self._tables = tables
        self._family_of = family_of
        self._form_of = form_of
        self._operators = operators

    def of(self, lookups: Sequence[Lookup], one_hot: AbstractSet[str], *, most: bool = False) -> set[Lookup]:
        """Lookups whose vectors stay; with ``most`` all that can, whatever crosses then.

        An operator with dense parameters (``Learned``) is computed at holders only where so fewer elements cross a
        sample, had no sample an empty bag: all that it could leave there, or nothing. The others take what they can.
        """
        away = list(self._operators)
        stay = self._stay(lookups, one_hot, away)
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
            if names and may.issuperset(names) and all(self._substitutable(k, self._operators[n]) for n in names)
        }
        crossing = {k.feature for k in lookups if k not in can}
        never_empty = {f for f in one_hot if f in self._family_of and self._family_of[f].kind != "row"}
        return {k for k in can if k.feature not in crossing or k.feature in never_empty}

    def _substitutable(self, lookup: Lookup, operator: Operator) -> bool:
        if not FORMS[self._form_of[lookup.feature]].stays or operator.shapes is None:
            return False
        if meets(operator) or (isinstance(operator, Learned) and not self._learned):
            return False
        kind = self._family_of[lookup.feature].kind
        return kind in ("table", "column") or (kind == "row" and operator.splits_bags and lookup.pooling == "sum")

    def _elements(self, lookups: Sequence[Lookup], stay: AbstractSet[Lookup]) -> int:
        """What crosses of a sample, if a vector of every lookup does that does not stay, and each partial result."""
        vectors = sum(self._tables[k.table].width for k in dict.fromkeys(lookups) if k not in stay)
        partials = 0
        for operator in self._operators.values():
            asked = {at for k in operator.lookups if k in stay for at in self._places(k)}
            partials += sum(elements_of(operator, stop - start) for _, (start, stop) in asked)
        return vectors + partials

    def _places(self, lookup: Lookup) -> list[tuple[int, tuple[int, int]]]:
        """Each holder of a lookup's rows, with its columns."""
        family, width = self._family_of[lookup.feature], self._tables[lookup.table].width
        spans = [family.part_columns(width, part) for part in range(len(family.holders))]
        return [(rank, span) for rank, span in zip(family.holders, spans, strict=True) if span[0] < span[1]]
