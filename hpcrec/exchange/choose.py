"""Exchange ``auto``: the form of each feature by which the fewest bytes cross in a step, owners' computing counted in.

From counts of real batches (``measure``) the bytes of any choice follow. ``pooled``, ``rows`` and copies on every dense
rank cost each bundle of features its own bytes, whatever the others do; so there the cheapest is taken for each.
``partial`` pays by operator and holder, however many features take part: of those whose own bytes it saves, all take
part, or none of some holders'. Dense layers that holders compute for dense ranks count by the time that steps take
longer by it: that of the busiest holder, less what each dense rank is spared, with the bytes that could have crossed
meanwhile between these holders and the dense ranks, whichever are fewer. But for that, what is chosen is never
predicted to cost more than any single form for all features. A pure function of the counts, so every rank chooses
alike. Knows layouts and counts; knows no MPI. Source: [DES], which has one form for all.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import Asks, ItemBytes, owner_flops, step_bytes
from hpcrec.exchange.offers import TRIED_APART, Offers
from hpcrec.operators.base import Learned

SIMPLEST = ("pooled", "rows", "partial")  # first: what is taken where others hardly cost less
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
    ) -> None:
        self._offers = offers
        self._asks = asks
        self._item_bytes = item_bytes
        self._budget_bytes = budget_bytes
        self._dense_elements = dense_elements
        self._dense_item_bytes = dense_item_bytes
        self._samples = samples
        self._groups = groups

    def choose(self) -> Choice:
        """The cheapest that was found, or the simplest that is at most ``WORTH`` above it.

        So a way that is harder to follow is taken only where it saves something.
        """
        offers = self._offers
        single = {form: sum(self._predicted(offers.single(form)).values()) for form in offers.forms}
        alone = self._separable()
        learned = offers.learned and any(isinstance(o, Learned) for o in offers.operators.values())
        stays = (False, True)[: 1 + learned]  # else the same
        ways: list[tuple[dict[str, str], tuple[str, ...]]] = [
            (offers.single(form), ()) for form in SIMPLEST if form in offers.forms
        ]
        partials = [self._with_partial(alone, most_stay=most) for most in stays]
        ways += [(forms, ()) for forms in (alone, *partials)]
        for forms in (*partials, alone):  # copies of what is left, or of anything
            copied = self._copies(forms)
            ways += [(self._with_partial(alone, copied, most_stay=most), copied) for most in stays]
            ways.append((forms, copied))
        totals = [self._total(*way) for way in ways]
        fewest = min(totals)
        enough = fewest + WORTH * abs(fewest)  # what slices spare the sum of dense gradients may be more than all else
        best, replicated = next(way for way, total in zip(ways, totals, strict=True) if total <= enough)
        layout = offers.layout(best, replicated)
        forms = {f: form for f, form in layout.form_of.items() if form != "replicate"}
        flops = sum(owner_flops(layout, self._samples).values())
        return Choice(forms, replicated, self._predicted(best, replicated), single, flops)

    def _predicted(self, forms: Mapping[str, str], replicated: Iterable[str] = ()) -> dict[str, float]:
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
        )

    def _total(self, forms: Mapping[str, str], replicated: Iterable[str] = ()) -> float:
        """What a choice is judged by: bytes that not every choice has, and those that owners' computing stands for."""
        layout = self._offers.layout(forms, replicated)
        flops = owner_flops(layout, self._samples)
        longer = max(0.0, max(flops.values(), default=0.0) - sum(flops.values()) / len(self._offers.dense))
        links = min(sum(n > 0 for n in flops.values()), len(self._offers.dense))
        always = 2 * (len(self._offers.dense) - 1) * self._dense_item_bytes * self._dense_elements
        return sum(self._bytes_of(layout).values()) - always + links * longer / FLOPS_A_BYTE

    def _by_entry(self, layout: Layout) -> dict[tuple[str, ...], float]:
        """Bytes of a step by what travels together, without partial results: what they cost belongs to no entry."""
        out: dict[tuple[str, ...], float] = {}
        for holder, leg in layout.legs.items():
            bag_bytes = [0.0] * len(leg.entries)
            for stream in leg.streams:
                values, gradients = self._item_bytes.of(stream.width)
                copied = leg.entries[stream.entry].form == "replicate"
                bag_bytes[stream.entry] += stream.width * (gradients if copied else values + gradients)
            for entry, n_bytes in zip(leg.entries, bag_bytes, strict=True):
                id_bytes, bags = self._asks.of(entry, holder)
                out[entry.features] = out.get(entry.features, 0) + id_bytes + n_bytes * bags
        return out

    def _separable(self) -> dict[str, str]:
        """``rows`` or ``pooled``, whichever is fewer bytes, of each bundle of features that read the same tables."""
        offers = self._offers
        all_pooled = offers.single("pooled")
        if "rows" not in offers.forms:
            return all_pooled
        layout = offers.layout(offers.single("rows"))
        rows, pooled = self._by_entry(layout), self._by_entry(offers.layout(all_pooled))
        forms = dict(all_pooled)
        for _, bundle in layout.bundles("rows"):
            free = [f for f in bundle if f in offers.free]
            as_pooled = _sum_of(pooled, bundle)
            ways: list[tuple[float, list[str]]] = [(as_pooled, []), (rows[bundle], free)]
            if 1 < len(bundle) <= TRIED_APART:
                mixed = [f for f in free if self._mixed(bundle, [f]) < as_pooled]
                ways.append((self._mixed(bundle, mixed), mixed))
            forms |= dict.fromkeys(min(ways, key=lambda way: way[0])[1], "rows")
        return forms

    def _mixed(self, bundle: tuple[str, ...], as_rows: Iterable[str]) -> float:
        """Bytes of a bundle of which some features are ``rows`` and the others ``pooled``."""
        layout = self._offers.layout({**self._offers.single("pooled"), **dict.fromkeys(as_rows, "rows")})
        return _sum_of(self._by_entry(layout), bundle)

    def _with_partial(self, alone: dict[str, str], copied: Iterable[str] = (), *, most_stay: bool) -> dict[str, str]:
        """``alone``, but ``partial`` where that is fewer bytes; not of families that are copied.

        Looked at are features by themselves, under the layout in which all take part, where perhaps no layer is folded;
        or, with ``most_stay``, every one that can be.
        """
        offers = self._offers
        out = {f for family in offers.families if family.name in set(copied) for f in family.features}
        every = offers.layout(offers.single("partial"), most_stay=most_stay)
        can = {k.feature for some in every.substituted.values() for k in some if k.feature in offers.free} - out
        by_partial, by_alone = self._by_entry(every), self._by_entry(offers.layout(alone))
        shared = {f for features in by_alone for f in features if len(features) > 1}  # whose bytes are not theirs alone
        groups: dict[tuple[int, ...], list[str]] = {}
        for feature in offers.free:
            if feature in can and (feature in shared or by_partial[feature,] < by_alone[feature,]):
                groups.setdefault(every.family_of[feature].holders, []).append(feature)
        forms = {**alone, **{f: "partial" for features in groups.values() for f in features}}
        total = self._total(forms)
        for features in (*groups.values(), *([f] for f in sorted(shared.intersection(can))[:TRIED_APART])):
            without = {**forms, **{f: alone[f] for f in features}}
            if without != forms and (less := self._total(without)) < total:
                forms, total = without, less
        return forms

    def _copies(self, forms: Mapping[str, str]) -> tuple[str, ...]:
        """Families that cost less where every dense rank has them, those first that save most for their memory."""
        offers = self._offers
        layout = offers.layout(forms)
        now, copied = self._by_entry(layout), self._by_entry(offers.layout(forms, offers.replicable))
        stay = {k.feature for some in layout.substituted.values() for k in some}
        saved: dict[str, float] = {}
        for family in offers.families:
            if family.name in offers.replicable and stay.isdisjoint(family.features):
                saved[family.name] = _sum_of(now, family.features) - _sum_of(copied, family.features)
        left_bytes, chosen = self._budget_bytes, []
        for name in sorted((n for n in saved if saved[n] > 0), key=lambda n: -saved[n] / offers.replicable[n]):
            if offers.replicable[name] <= left_bytes:
                chosen.append(name)
                left_bytes -= offers.replicable[name]
        return tuple(family.name for family in offers.families if family.name in chosen)


def _sum_of(by_entry: Mapping[tuple[str, ...], float], features: Iterable[str]) -> float:
    """Bytes of the entries that these features have to themselves."""
    mine = tuple(features)
    if len(mine) == 1:
        return by_entry.get(mine, 0.0)
    return sum(n_bytes for entry, n_bytes in by_entry.items() if set(mine).issuperset(entry))
