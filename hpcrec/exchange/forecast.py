"""What copies of rows are expected to cost a layout: rates of its rows, counted, and bytes that follow from them.

Each dense rank counts in how many of its first steps each row is asked for. Rows that were seen a few times, and those
that were not seen, have rates by a power of their rank: the one by which as many of them would have been seen as were,
and as often in all. Of any layout the pools of its copies follow, of a pool what is sent and pushed (``expected``), and
of these bytes (``copy_bytes``). Knows layouts and batches; knows no MPI.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from hpcrec.comm.sizes import UNIT_BYTES
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.copy_bytes import ENTRY_BYTES, RowBytes, parts_of
from hpcrec.exchange.expected import Rates, shares
from hpcrec.exchange.forms.conditional import Conditional, Keeping
from hpcrec.exchange.layout import Entry, Layout, Leg
from hpcrec.types import Bags, Ints

SEEN_SELDOM = 5  # times, up to which a row's own count tells little
RANKS_APART, STEEPEST = 60, 4.0  # classes of rows by rank; the steepest power
Bundle = tuple[str, ...]
Histogram = tuple[Ints, Ints]
"""In how many steps, rising, and how many rows were seen in so many."""
Counted = tuple[int, dict[Bundle, Histogram]]
"""One rank's: steps, and what of each bundle was seen in them."""


class RateCounter:
    """Counts rows of a dense rank's part of some batches.

    Parameters
    ----------
    splitter : Splitter
        Of the features that may have copies, under the form that has them.
    """

    def __init__(self, splitter: Splitter) -> None:
        self._splitter = splitter
        self._keys: list[list[Ints]] = [[] for _ in splitter.forms]
        self._steps = 0

    def add(self, bags: Bags, samples: int) -> None:
        """Counts one batch.

        Raises
        ------
        DataError
            An id outside its table.
        """
        self._steps += 1
        columns = self._splitter.columns(bags, samples, slice(0, samples))
        for form, keys in zip(self._splitter.forms, self._keys, strict=True):
            dealt, _ = form.ask(columns)
            parts = max(1, form.family.row_parts)
            keys.append(dealt.rows if dealt.part is None else dealt.rows * parts + dealt.part)

    def counted(self) -> Counted:
        """Steps, and of each bundle how many rows were seen how often."""
        found: dict[Bundle, Histogram] = {}
        for form, keys in zip(self._splitter.forms, self._keys, strict=True):
            times = np.unique(np.concatenate(keys), return_counts=True)[1] if keys else np.zeros(0, np.int64)
            found[form.features] = np.unique(times, return_counts=True)
        return self._steps, found


def rates_of(counted: Sequence[Counted], rows_of: Mapping[Bundle, int]) -> dict[Bundle, Rates]:
    """Of each bundle, from what every dense rank has counted: the mean of what each says.

    ``rows_of``: how many rows its tables have; of dynamic ones, have room for.
    """
    found = {}
    for bundle, rows in rows_of.items():
        of_ranks = [_estimated(*histograms[bundle], steps, rows) for steps, histograms in counted]
        joined = Rates.joined(of_ranks)
        found[bundle] = Rates(joined.chance, joined.rows / max(len(of_ranks), 1))
    return found


def _estimated(times: Ints, rows: Ints, steps: int, total: int) -> Rates:
    """What one rank's counts say of all rows; those that were seen seldom or never by a power of their rank."""
    often = times > SEEN_SELDOM
    known = Rates(times[often] / max(steps, 1), rows[often].astype(np.float64))
    uses, seen = float(times[~often] @ rows[~often]), float(rows[~often].sum())
    others = total - known.rows.sum()
    if others <= seen or uses <= seen:  # there are no more rows; or none was seen twice, which tells nothing
        return Rates(times / max(steps, 1), rows.astype(np.float64))
    first = known.rows.sum() + 1
    edges = np.geomspace(first, first + others, RANKS_APART + 1)

    def expected(power: float) -> Rates:
        """So many uses, by that power of the rank."""
        middle = np.sqrt(edges[1:] * edges[:-1]) ** -power
        number = np.diff(edges)
        return Rates(middle * uses / (middle @ number), number)

    low, high = 0.0, STEEPEST
    for _ in range(40):
        power = (low + high) / 2
        found = expected(power)
        low, high = (power, high) if -np.expm1(-found.chance) @ found.rows > seen else (low, power)
    rest = expected(low)
    return Rates.joined([known, Rates(np.minimum(rest.chance / steps, 1.0), rest.rows)])


class Forecast:
    """What copies cost the layouts that may be chosen.

    Parameters
    ----------
    rates : mapping of tuple of str to Rates
        Of each bundle that may have copies.
    keeping : Keeping
    item : int
        Bytes of a number that no codec writes.
    """

    def __init__(self, rates: Mapping[Bundle, Rates], keeping: Keeping, item: int) -> None:
        self._rates, self._keeping, self._item = rates, keeping, item
        self._found: dict[tuple[Bundle, ...], dict[Bundle, tuple[float, float]]] = {}

    def of(self, layout: Layout) -> dict[Bundle, tuple[float, float]]:
        """Of each bundle with copies: rows that are sent, and pushed, a row that is asked for."""
        forms = [form for form in layout.bundled() if isinstance(form, Conditional)]
        key = tuple(form.features for form in forms)
        if key not in self._found:
            self._found[key] = self._shares(layout, forms)
        return self._found[key]

    def _shares(self, layout: Layout, forms: Sequence[Conditional]) -> dict[Bundle, tuple[float, float]]:
        out: dict[Bundle, tuple[float, float]] = {}
        kinds = sorted(forms, key=lambda form: form.name)
        for _, of_kind in groupby(kinds, key=type):
            some = list(of_kind)
            tables = [layout.tables_of[form.features[0]] for form in some]
            for numbers, capacity in type(some[0]).rooms(some, tables, self._keeping):
                bundles = [some[b].features for b in numbers]
                out |= self._of_pool(bundles, capacity)
        return out

    def _of_pool(self, bundles: Sequence[Bundle], capacity: int) -> dict[Bundle, tuple[float, float]]:
        rates = [self._rates[bundle] for bundle in bundles]
        found = shares(Rates.joined(rates), capacity, self._keeping)
        out, at = {}, 0
        for bundle, of in zip(bundles, rates, strict=True):
            mine, asked = slice(at, at + len(of.chance)), max(of.asked, 1e-300)
            sent = (found.missed + found.too_old)[mine] @ (of.chance * of.rows)
            out[bundle] = float(sent) / asked, float(found.pushed[mine] @ (of.chance * of.rows)) / asked
            at = mine.stop
        return out

    def entry(
        self, layout: Layout, leg: Leg, entry: Entry, counted: tuple[float, float], item_bytes: float
    ) -> dict[str, float]:
        """Bytes by tag of one entry, of which bytes of ids and rows asked for were counted; without padding."""
        requests, asked = counted
        sent, pushed = (asked * share for share in self.of(layout)[entry.features])
        streams = [s for s in leg.apart if leg.entries[s.entry] is entry]
        adds = [s for s in streams if self._keeping.accumulates(s.table)]
        vectors = item_bytes * sum(s.width for s in streams)
        row = RowBytes(
            vectors,
            vectors,
            self._item * sum(s.columns[0] == 0 for s in adds),
            self._item * len(adds),
        )
        tags = {"ids": requests, "values": 0.0, "gradients": 0.0}
        for part in parts_of(
            asked, sent, pushed, row, staleness=self._keeping.staleness, dynamic=_any_dynamic(layout)
        ):  # fmt: skip
            tags[part.tag] += part.exact
        return tags

    def beside(self, layout: Layout, pairs: int, links: int) -> dict[str, float]:
        """What a layout with copies costs beside its entries: padding, half a unit a message, and counts of entries.

        ``pairs`` of a dense rank and an owner between whom messages cross, ``links`` of any two ranks.
        """
        one = RowBytes(1, 1, 1, int(any(map(self._keeping.accumulates, _tables(layout)))))
        tags = {"ids": 0.0, "values": 0.0, "gradients": 0.0, "control": 0.0}
        for part in parts_of(1.0, 1.0, 1.0, one, staleness=self._keeping.staleness, dynamic=_any_dynamic(layout)):
            tags[part.tag] += UNIT_BYTES / 2 * pairs
        most = max(sum(entry.form.conditional for entry in leg.entries) for leg in layout.legs.values())
        tags["control"] = float(ENTRY_BYTES * most * links)
        return tags


def _tables(layout: Layout) -> list[str]:
    return [table for feature in layout.conditional for table in layout.tables_of[feature]]


def _any_dynamic(layout: Layout) -> bool:
    return any(layout.family_of[feature].dynamic is not None for feature in layout.conditional)
