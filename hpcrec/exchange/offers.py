"""What exchange ``auto`` may choose from: the layouts of every form, and of tables copied to every dense rank.

Knows tables, families and operators; bytes are for ``measure``, the choice for ``choose``.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import replace

from hpcrec.embedding.shards import Family
from hpcrec.exchange.forms import FORMS, offered
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.meetings import Places
from hpcrec.operators.base import Operator
from hpcrec.types import Lookup, TableSpec

TRIED_APART = 16  # features that share tables are looked at apart up to so many, which makes a layout for each


class Offers:
    """The layouts that may be chosen.

    Parameters
    ----------
    tables : mapping of str to TableSpec
    families : sequence of Family
        As placed; a family that is chosen to be replicated leaves the others where they are.
    lookups : sequence of Lookup
    operators : mapping of str to Operator
    one_hot : set of str
        Features of which every sample has exactly one id.
    forms : mapping of str to str
        Feature -> form, or ``auto`` where it is to be chosen.
    default_form : str
        Likewise, of the other features.
    replicable : mapping of str to int
        Families that may be replicated, and bytes of a copy.
    dense : sequence of int
        World ranks that would have the copies.
    thresholded : bool
        Whether vectors are, with which not every form can be had.
    learned : bool
        Whether operators with dense parameters may be computed at holders, who then train these for all dense ranks.
    kept : str, optional
        The form under which dense ranks keep rows, where the policy has one: what features have that do not leave it.
    added, merged, places
        As of ``Layout``.

    Attributes
    ----------
    forms : tuple of str
        What may be chosen, each for all; the simplest first.
    operators : dict of str to Operator
    free : tuple of str
        Features whose form is to be chosen.
    replicable : dict of str to int
        Families that may be replicated, all of whose features are free.
    """

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        families: Sequence[Family],
        lookups: Sequence[Lookup],
        operators: Mapping[str, Operator],
        one_hot: AbstractSet[str],
        *,
        forms: Mapping[str, str],
        default_form: str,
        replicable: Mapping[str, int],
        dense: Sequence[int],
        thresholded: bool = False,
        learned: bool = True,
        kept: str | None = None,
        added: AbstractSet[str] = frozenset(),
        merged: AbstractSet[str] = frozenset(),
        places: Places | None = None,
    ) -> None:
        self.forms = offered(thresholded=thresholded)
        self.kept = kept
        self.learned = learned
        self.families = tuple(families)
        self._forms = dict(forms)
        self._default_form = default_form
        self._parts = tables, lookups, operators, one_hot
        self._added, self._merged, self._places = added, merged, places
        self.operators = dict(operators)
        self.dense = tuple(dense)
        sharded = [f for family in families if family.kind != "replicate" for f in family.features]
        self.free = tuple(f for f in sharded if forms.get(f, default_form) == "auto")
        self.replicable = {
            family.name: replicable[family.name]
            for family in families
            if family.name in replicable and family.kind != "replicate" and set(self.free).issuperset(family.features)
        }

    def family_of(self, feature: str) -> Family:
        """That of its tables."""
        return next(family for family in self.families if feature in family.features)

    def fixed(self, forms: Mapping[str, str]) -> "Offers":
        """What is left to choose from where these free features have forms."""
        out = copy(self)
        out._forms = {**self._forms, **forms}
        out.free = tuple(f for f in self.free if f not in forms)
        out.replicable = {
            family.name: self.replicable[family.name]
            for family in self.families
            if family.name in self.replicable and set(out.free).issuperset(family.features)
        }
        return out

    def families_with(self, replicated: Iterable[str]) -> tuple[Family, ...]:
        """The families, some of them replicated."""
        names = set(replicated)
        return tuple(replace(f, kind="replicate", holders=self.dense) if f.name in names else f for f in self.families)

    def layout(self, forms: Mapping[str, str], replicated: Iterable[str] = (), *, most_stay: bool = False) -> Layout:
        """The layout of a choice; ``forms`` of free features, where they do not say ``kept`` or the simplest."""
        simplest = self.kept or self.forms[0]
        tables, lookups, operators, one_hot = self._parts
        families = self.families_with(replicated)
        copied = {f for family in families if family.name in set(replicated) for f in family.features}
        chosen = {**self._forms, **self.single(simplest), **forms}
        return Layout(
            tables,
            families,
            lookups,
            forms={f: form for f, form in chosen.items() if f not in copied},
            default_form=simplest if self._default_form == "auto" else self._default_form,
            operators=operators,
            one_hot=one_hot,
            most_stay=most_stay,
            learned=self.learned,
            added=self._added,
            merged=self._merged,
            places=self._places,
        )

    def single(self, form: str) -> dict[str, str]:
        """One form for all free features."""
        return dict.fromkeys(self.free, form)

    def counted(self) -> list[Layout]:
        """Layouts that have between them every entry that a choice may send."""
        simplest, layouts = self.single(self.forms[0]), list[Layout]()
        for name in self.forms:
            layouts.append(self.layout(self.single(name)))
            if FORMS[name].stays:  # what may stay where some features do
                layouts.append(self.layout(self.single(name), most_stay=True))
            bundles = [feats for _, feats in layouts[-1].bundles(name) if 1 < len(feats) <= TRIED_APART]
            for number in range(max((len(feats) for feats in bundles), default=0)):
                alone = {feats[number]: name for feats in bundles if number < len(feats) and feats[number] in self.free}
                layouts.append(self.layout({**simplest, **alone}))
        if self.replicable:
            layouts.append(self.layout(simplest, self.replicable))
        if self.kept is not None:
            layouts.append(self.layout(self.single(self.kept)))
        return layouts
