"""Exchange ``auto``: the form of each feature by which the fewest bytes cross in a step, owners' computing counted in.

From counts of real batches (``measure``) the bytes of any choice follow. Forms whose vectors cross, and copies on every
dense rank, cost each bundle of features its own bytes, whatever the others do; so there the cheapest is taken for each.
A form whose operators may be computed at holders pays by operator and holder, however many features take part: of those
whose own bytes it saves, all take part, or none of some holders'. Dense layers that holders compute for dense ranks
count by the time that steps take longer by it: that of the busiest holder, less what each dense rank is spared, with
the bytes that could have crossed meanwhile between these holders and the dense ranks, whichever are fewer. But for
that, what is chosen is never predicted to cost more than any single form for all features. A pure function of the
counts, so every rank chooses alike. Knows layouts, counts and what forms say of themselves; knows no MPI. Source:
[DES], which has one form for all.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import Asks, ItemBytes, entry_bytes, owner_flops, step_bytes
from hpcrec.exchange.offers import TRIED_APART, Offers
from hpcrec.exchange.reduction import Reduction
from hpcrec.operators.base import Learned

WORTH = 0.005  # of the fewest bytes: what is to be saved before a simpler choice is left for another
FLOPS_A_BYTE = 50  # a core does about 50 Gflop/s of products of matrices while its rank sends 1 GB/s


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes
    ----------
    forms : dict of str to str
        Feature -> form, of all that are not replicated.
    replicated : tuple of str
        Names of the families that are copied to every dense rank.
    predicted : dict of str to float
        Bytes a step by tag.
    single : dict of str to float
        Bytes a step, had all features that may be chosen for one form.
    flops : float
        Floating-point operations a step that all holders do with dense parameters, in place of dense ranks.
    """

    forms: dict[str, str]
    replicated: tuple[str, ...]
    predicted: dict[str, float]
    single: dict[str, float]
    flops: float = 0.0


class Chooser:
    """Chooses among offers.

    Parameters
    ----------
    offers : Offers
    asks : Asks
        Of the entries of ``offers.counted()``.
    item_bytes : ItemBytes
    budget_bytes : int
        Memory that copies may take on a dense rank.
    dense_elements : int
        Of all dense parameters that are trained.
    dense_item_bytes : float
        Of an element of their gradients.
    samples : int
        Of a batch.
    groups : int
        Of dense ranks, each of which sums its gradients by itself.
    near : float
        What a byte of vectors and ids inside a host counts for, beside one between hosts.
    levels : callable, optional
        ``levels(layout)``: which owners add partial results, where messages go by levels.
    """

    def __init__(
        self,
        offers: Offers,
        asks: Asks,
        *,
        item_bytes: ItemBytes,
        budget_bytes: int,
        dense_elements: int,
        dense_item_bytes: float,
        samples: int,
        groups: int = 1,
        near: float = 1.0,
        levels: Callable[[Layout], Reduction] | None = None,
    ) -> None:
        self._offers, self._near, self._levels = offers, near, levels
        self._asks = asks
        self._item_bytes = item_bytes
        self._budget_bytes = budget_bytes
        self._dense_elements = dense_elements
        self._dense_item_bytes = dense_item_bytes
        self._samples = samples
        self._groups = groups
        self._separable = tuple(name for name in offers.forms if not FORMS[name].stays)
        self._staying = tuple(name for name in offers.forms if FORMS[name].stays)

    def choose(self) -> Choice:
        """The cheapest that was found, or the simplest that is at most ``WORTH`` above it.

        So a way that is harder to follow is taken only where it saves something.
        """
        offers = self._offers
        alone = self._apart()
        learned = offers.learned and any(isinstance(o, Learned) for o in offers.operators.values())
        stays = [(name, most) for name in self._staying for most in (False, True)[: 1 + learned]]  # else the same
        ways: list[tuple[dict[str, str], tuple[str, ...]]] = [(offers.single(form), ()) for form in offers.forms]
        partials = [self._with_partial(alone, name, most_stay=most) for name, most in stays]
        ways += [(forms, ()) for forms in (alone, *partials)]
        for forms in (*partials, alone):  # copies of what is left, or of anything
            copied = self._copies(forms)
            ways += [(self._with_partial(alone, name, copied, most_stay=most), copied) for name, most in stays]
            ways.append((forms, copied))
        totals = [self.total(*way) for way in ways]
        fewest = min(totals)
        enough = fewest + WORTH * abs(fewest)  # what slices spare the sum of dense gradients may be more than all else
        best, replicated = next(way for way, total in zip(ways, totals, strict=True) if total <= enough)
        return self._made(best, replicated)

    def single(self, form: str) -> Choice:
        """One form for all features that may be chosen for."""
        return self._made(self._offers.single(form), ())

    def _made(self, given: Mapping[str, str], replicated: tuple[str, ...]) -> Choice:
        layout = self._offers.layout(given, replicated)
        forms = {f: form for f, form in layout.form_of.items() if not FORMS[form].local}
        flops = sum(owner_flops(layout, self._samples).values())
        single = {form: sum(self.predicted(self._offers.single(form)).values()) for form in self._offers.forms}
        return Choice(forms, replicated, self.predicted(given, replicated), single, flops)

    def predicted(self, forms: Mapping[str, str], replicated: Iterable[str] = ()) -> dict[str, float]:
        """Bytes of a step by tag."""
        return self._bytes_of(self._offers.layout(forms, replicated))

    def _bytes_of(self, layout: Layout) -> dict[str, float]:
        return step_bytes(
            layout,
            self._asks,
            item_bytes=self._item_bytes,
            dense_elements=self._dense_elements,
            dense_item_bytes=self._dense_item_bytes,
            dense_ranks=len(self._offers.dense),
            groups=self._groups,
            levels=self._levels,
        )

    def total(self, forms: Mapping[str, str], replicated: Iterable[str] = ()) -> float:
        """What a choice is judged by: bytes that not every choice has, and those that owners' computing stands for."""
        layout = self._offers.layout(forms, replicated)
        flops = owner_flops(layout, self._samples)
        longer = max(0.0, max(flops.values(), default=0.0) - sum(flops.values()) / len(self._offers.dense))
        links = min(sum(n > 0 for n in flops.values()), len(self._offers.dense))
        always = 2 * (len(self._offers.dense) - 1) * self._dense_item_bytes * self._dense_elements
        spared = (1 - self._near) * sum(self._inside(layout).values()) if self._near != 1 else 0.0
        return sum(self._bytes_of(layout).values()) - always - spared + links * longer / FLOPS_A_BYTE

    def by_entry(self, layout: Layout) -> dict[tuple[str, ...], float]:
        """Bytes of a step by what travels together, without partial results: what they cost belongs to no entry."""
        if self._near == 1 and self._levels is None:
            return self._by_entry(layout, self._asks, self._item_bytes)
        assert self._asks.far is not None, "asks are those of a counter"
        far = self._by_entry(layout, self._asks.far, self._item_bytes, inside=False)
        inside = self._inside(layout)
        return {features: far.get(features, 0.0) + self._near * n for features, n in inside.items()}

    def _inside(self, layout: Layout) -> dict[tuple[str, ...], float]:
        """Those of them that stay inside a host."""
        assert self._asks.far is not None, "asks are those of a counter"
        of = self._item_bytes if self._levels is None or layout.copied else self._item_bytes.as_held()
        far = self._by_entry(layout, self._asks.far, of, inside=False)
        return {features: n - far.get(features, 0.0) for features, n in self._by_entry(layout, self._asks, of).items()}

    def _by_entry(
        self, layout: Layout, asks: Asks, item_bytes: ItemBytes, *, inside: bool = True
    ) -> dict[tuple[str, ...], float]:
        out: dict[tuple[str, ...], float] = {}
        for _, entry, tags in entry_bytes(layout, asks, item_bytes, inside=inside):
            out[entry.features] = out.get(entry.features, 0) + sum(tags.values())
        return out

    def _apart(self) -> dict[str, str]:
        """The separable form of fewest bytes: of each feature by itself, then of features that share tables.

        Of those all take another form, or each that saves by itself, where that is fewer bytes.
        """
        offers = self._offers
        by_form = {n: self.by_entry(offers.layout(offers.single(n))) for n in self._separable if not FORMS[n].bundled}
        forms = {f: min(by_form, key=lambda name: by_form[name].get((f,), 0.0)) for f in offers.free}
        for name in self._separable:
            if not FORMS[name].bundled:
                continue
            layout, before = offers.layout(offers.single(name)), dict(forms)
            all_so, now = self.by_entry(layout), self.by_entry(offers.layout(before))
            for _, bundle in layout.bundles(name):
                free = [f for f in bundle if f in offers.free]
                as_now = sum_of(now, bundle)
                ways: list[tuple[float, list[str]]] = [(as_now, []), (all_so[bundle], free)]
                if 1 < len(bundle) <= TRIED_APART:
                    mixed = [f for f in free if self._mixed(before, bundle, [f], name) < as_now]
                    ways.append((self._mixed(before, bundle, mixed, name), mixed))
                forms |= dict.fromkeys(min(ways, key=lambda way: way[0])[1], name)
        return forms

    def _mixed(self, forms: Mapping[str, str], bundle: Iterable[str], some: Iterable[str], name: str) -> float:
        """Bytes of a bundle of which some features have that form, and the others what they have."""
        return sum_of(self.by_entry(self._offers.layout({**forms, **dict.fromkeys(some, name)})), bundle)

    def _with_partial(
        self, alone: dict[str, str], name: str, copied: Iterable[str] = (), *, most_stay: bool
    ) -> dict[str, str]:
        """``alone``, but that staying form where it is fewer bytes; not of families that are copied.

        Looked at are features by themselves, under the layout in which all take part, where perhaps no layer is folded;
        or, with ``most_stay``, every one that can be.
        """
        offers = self._offers
        out = {f for family in offers.families if family.name in set(copied) for f in family.features}
        every = offers.layout(offers.single(name), most_stay=most_stay)
        can = {k.feature for some in every.substituted.values() for k in some if k.feature in offers.free} - out
        by_partial, by_alone = self.by_entry(every), self.by_entry(offers.layout(alone))
        shared = {f for features in by_alone for f in features if len(features) > 1}  # whose bytes are not theirs alone
        groups: dict[tuple[int, ...], list[str]] = {}
        for feature in offers.free:
            if feature in can and (feature in shared or by_partial[feature,] < by_alone[feature,]):
                groups.setdefault(every.family_of[feature].holders, []).append(feature)
        forms = {**alone, **{f: name for features in groups.values() for f in features}}
        total = self.total(forms)
        for features in (*groups.values(), *([f] for f in sorted(shared.intersection(can))[:TRIED_APART])):
            without = {**forms, **{f: alone[f] for f in features}}
            if without != forms and (less := self.total(without)) < total:
                forms, total = without, less
        return forms

    def _copies(self, forms: Mapping[str, str]) -> tuple[str, ...]:
        """Families that cost less where every dense rank has them, those first that save most for their memory."""
        offers = self._offers
        layout = offers.layout(forms)
        now, copied = self.by_entry(layout), self.by_entry(offers.layout(forms, offers.replicable))
        stay = {k.feature for some in layout.substituted.values() for k in some}
        saved: dict[str, float] = {}
        for family in offers.families:
            if family.name in offers.replicable and stay.isdisjoint(family.features):
                saved[family.name] = sum_of(now, family.features) - sum_of(copied, family.features)
        left_bytes, chosen = self._budget_bytes, []
        for name in sorted((n for n in saved if saved[n] > 0), key=lambda n: -saved[n] / offers.replicable[n]):
            if offers.replicable[name] <= left_bytes:
                chosen.append(name)
                left_bytes -= offers.replicable[name]
        return tuple(family.name for family in offers.families if family.name in chosen)


def sum_of(by_entry: Mapping[tuple[str, ...], float], features: Iterable[str]) -> float:
    """Bytes of the entries that these features have to themselves."""
    mine = tuple(features)
    if len(mine) == 1:
        return by_entry.get(mine, 0.0)
    return sum(n_bytes for entry, n_bytes in by_entry.items() if set(mine).issuperset(entry))
