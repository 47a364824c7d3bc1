"""What a batch asks of holders under every form: counted on real batches, before any bytes cross.

Each dense rank splits its part of some batches as each form would, and keeps for every entry that might be sent the
bytes of its ids and its bags. From sums over dense ranks follow the bytes of a step for any layout (``step_bytes``), by
the formula of ``exchange.exchange``, but for the padding of messages and the norms of column shards, and to within 2
bytes of ids an entry, since entries of a message share some; and those of them that cross hosts (``cross_host_bytes``).
What ranks of a host ask together they tell each other by ``HostAsks``. Knows layouts and batches; chooses nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from hpcrec.exchange.bags import Entries, Requests, Splitter
from hpcrec.exchange.forecast import Forecast
from hpcrec.exchange.host_rows import HostAsks
from hpcrec.exchange.layout import Entry, Layout
from hpcrec.exchange.reduction import Reduction, Transfer
from hpcrec.exchange.verdict import tellers
from hpcrec.types import Bags, Floats, Ints

Key = tuple[tuple[str, bool, bool, bool], tuple[str, ...]]
"""What is sent (``Form.sends``; whether empty bags are, vectors are added, rows asked for together); and features."""


def key_of(entry: Entry) -> Key:
    """What is sent for an entry."""
    return (entry.form.sends, entry.every_bag, entry.added, entry.merged), entry.features


@dataclass(frozen=True)
class ItemBytes:
    """Bytes of an element on the wire, in messages of many.

    Attributes
    ----------
    whole : float
        Of what crosses whole: partial results, and vectors of width 1.
    thresholded : callable or None
        Width of vectors -> that of their elements, and of their gradients; None where nothing is thresholded.
    held : float or None
        Of what no codec writes; None: as ``whole``.
    """

    whole: float
    thresholded: Callable[[int], tuple[float, float]] | None = None
    held: float | None = None

    def of(self, width: int) -> tuple[float, float]:
        """Of vectors of a width, and of their gradients."""
        return (self.whole, self.whole) if width == 1 or self.thresholded is None else self.thresholded(width)

    @property
    def written(self) -> bool:
        """Whether a codec writes elements in another way than they are held."""
        return self.thresholded is not None or self.held not in (None, self.whole)

    def as_held(self) -> "ItemBytes":
        """Those of what crosses as it is."""
        return self if self.held is None else ItemBytes(self.held)


@dataclass(frozen=True)
class Asks:
    """What is asked of each holder by all dense ranks but itself: means over batches.

    Attributes
    ----------
    samples : mapping of int to float
        By holder.
    entries : mapping of Key to mapping of int to (float, float, float)
        By holder: bytes of ids (0 where holders read them), bags that are answered, and those whose vectors cross
        inside a host besides: to another holder, to be added, or from the dense rank that has asked for them.
    own_samples : mapping of int to float
        By dense rank: those of its own part of a batch.
    far : Asks or None
        What is asked by dense ranks of other hosts alone.
    forecast : Forecast or None
        What copies of rows cost; None: no layout has any.
    """

    samples: Mapping[int, float]
    entries: Mapping[Key, Mapping[int, tuple[float, float, float]]]
    own_samples: Mapping[int, float]
    far: "Asks | None" = None
    forecast: Forecast | None = None

    def with_forecast(self, forecast: Forecast) -> "Asks":
        """The same, of layouts with copies too."""
        far = None if self.far is None else replace(self.far, forecast=forecast)
        return replace(self, forecast=forecast, far=far)

    def of(self, entry: Entry, holder: int) -> tuple[float, float, float]:
        """What is counted of an entry; at most so many where just wider ones, or its features, were counted.

        Of the bytes about so many: fewer ids that rise are further apart, which can take a bit more of each.
        """
        kind, features = key_of(entry)
        if (kind, features) in self.entries:
            return self.entries[kind, features][holder]
        mine = set(features)
        wider = [found[holder] for (k, f), found in self.entries.items() if k == kind and mine.issubset(f)]
        bounds = [min(wider, key=lambda n: n[1])]
        if all((kind, (f,)) in self.entries for f in features):
            alone = [self.entries[kind, (f,)][holder] for f in features]
            bounds.append((sum(n for n, _, _ in alone), sum(n for _, n, _ in alone), sum(n for _, _, n in alone)))
        return min(bounds, key=lambda n: n[1])


@dataclass(frozen=True)
class _Work:
    """What is counted by one splitter: number of each entry, holder, and key; and what waits for others of the host."""

    splitter: Splitter
    wanted: list[tuple[int, int, Key]]
    asks: HostAsks | None
    waiting: list[Requests] = field(default_factory=list)


class Counter:
    """Counts what a dense rank's part of some batches would ask.

    Parameters
    ----------
    layouts : sequence of Layout
        Those whose entries are counted; an entry that several have is counted once.
    splitter : callable
        ``splitter(layout, features)``.
    reads_ids : bool
        Holders read the ids: their bytes are 0.
    rank : int
        This rank, whose own rows are asked for nothing.
    dense : sequence of int
        World ranks of all that count.
    far : set of int
        World ranks on other hosts.
    together : callable, optional
        ``together(layout, entries)``: how dense ranks of this one's host ask together, or None.
    """

    def __init__(
        self,
        layouts: Sequence[Layout],
        splitter: Callable[[Layout, set[str]], Splitter],
        *,
        reads_ids: bool,
        rank: int,
        dense: Sequence[int],
        far: AbstractSet[int] = frozenset(),
        together: Callable[[Layout, Entries], HostAsks | None] = lambda *_: None,
    ) -> None:
        self._reads_ids = reads_ids
        self._rank = rank
        self._dense = tuple(dense)
        self._far = far
        self._sums: dict[Key, dict[int, np.ndarray]] = {}
        self._samples: list[int] = []
        self._work: list[_Work] = []
        self._far_R = np.zeros(1 + max((holder for layout in layouts for holder in layout.legs), default=0), bool)
        self._far_R[[holder for holder in far if holder < len(self._far_R)]] = True
        for layout in layouts:
            wanted: dict[tuple[int, tuple[str, ...]], Key] = {}
            for holder, leg in layout.legs.items():
                for entry in leg.entries:
                    key = key_of(entry)
                    if holder not in self._sums.setdefault(key, {}):
                        self._sums[key][holder] = np.zeros(3)
                        wanted[holder, entry.features] = key
            if wanted:
                split = splitter(layout, {f for key in wanted.values() for f in key[1]})
                named = enumerate(split.entries.names())
                mine = [(e, at[0], wanted[at]) for e, at in named if at in wanted]
                self._work.append(_Work(split, mine, together(layout, split.entries)))

    def add(self, bags: Bags, samples: int) -> None:
        """Counts one batch.

        Raises
        ------
        DataError
            An id outside its table.
        """
        self._samples.append(samples)
        for work in self._work:
            requests = work.splitter.requests(work.splitter.columns(bags, samples, slice(0, samples)))
            if work.asks is None:
                self._count(work, requests, work.splitter.answers(requests).bags_E, work.splitter.given(requests))
            else:
                work.waiting.append(requests)

    def meet(self) -> None:
        """Counts what dense ranks of a host ask together; collective among these, once no rank has failed."""
        for work in self._work:
            for wanted in work.waiting if work.asks is not None else ():
                assert work.asks is not None, "looked at above"
                asked, together = work.asks.merge(wanted)
                answers_E = work.asks.sent_E(together, work.splitter.answers(wanted).bags_E)
                self._count(work, asked, answers_E, work.splitter.given(wanted) + work.asks.handed(wanted))
            work.waiting.clear()

    def _count(self, work: "_Work", asked: Requests, answers_E: Ints, beside_E: Ints) -> None:
        bytes_E = work.splitter.entries.bytes_of(asked, self._far_R, work.splitter.dtype.itemsize)
        for e, holder, key in work.wanted:
            self._sums[key][holder] += 0 if self._reads_ids else bytes_E[e], answers_E[e], beside_E[e]

    def totals(self) -> Floats:
        """Means over batches, flat float64, to be summed over dense ranks; zeros where nothing was counted."""
        n = max(len(self._samples), 1)
        samples = sum(self._samples) / n
        counted = [np.array([samples * (d == self._rank) for d in self._dense])]
        holders = self._holders()
        for near in (True, False):  # all that it asks, then what it asks of other hosts
            asked = {h for h in holders if h != self._rank and (near or h in self._far)}
            counted.append(np.array([samples * (h in asked) for h in holders]))
            for by_holder in self._sums.values():
                counted += [sums / n * (h in asked) for h, sums in by_holder.items()]
        return np.concatenate(counted)

    def asks(self, totals: Floats) -> Asks:
        """From sums of the totals of all dense ranks."""
        numbers = iter(totals.tolist())
        own_samples = {d: next(numbers) for d in self._dense}
        found: list[Asks] = []
        for _ in range(2):
            samples = {h: next(numbers) for h in self._holders()}
            entries = {
                key: {h: (next(numbers), next(numbers), next(numbers)) for h in by_holder}
                for key, by_holder in self._sums.items()
            }
            found.append(Asks(samples, entries, own_samples))
        return replace(found[0], far=found[1])

    def _holders(self) -> list[int]:
        return list({h: None for by_holder in self._sums.values() for h in by_holder})


BAG_BYTES = 4  # by which who gives vectors to be added says which bag each is of
ROW_BYTES = 8  # by which who is given rows has said which
FLOPS_A_WEIGHT = 6  # a multiplication and an addition for the result, the vectors' gradient and the weight's


def step_bytes(
    layout: Layout,
    asks: Asks,
    *,
    item_bytes: ItemBytes,
    dense_elements: int,
    dense_item_bytes: float,
    dense_ranks: int,
    groups: int = 1,
    levels: Callable[[Layout], Reduction] | None = None,
) -> dict[str, float]:
    """Bytes that cross in a training step, by tag; without padding, and what a rank sends to itself.

    The same whichever owners add partial results among them: ``exchange.reduction`` says why.

    Parameters
    ----------
    layout : Layout
    asks : Asks
    item_bytes : ItemBytes
    dense_elements : int
        Of all dense parameters that are trained; those that holders train take no part in the sum over dense ranks.
    dense_item_bytes : float
        Bytes of an element of their gradients.
    dense_ranks, groups : int
        All of them, and the groups that sum by themselves.
    levels : callable, optional
        Messages go by levels, so that what stays inside a host crosses as it is; ``levels(layout)`` is which owners
        add partial results.
    """
    if levels is not None and item_bytes.written and not layout.copied:
        of = {
            "dense_elements": dense_elements,
            "dense_item_bytes": dense_item_bytes,
            "dense_ranks": dense_ranks,
            "groups": groups,
        }
        whole = step_bytes(layout, asks, item_bytes=item_bytes.as_held(), **of)  # type: ignore[arg-type]
        both, reduction = (item_bytes, item_bytes.as_held()), levels(layout)
        far, whole_far = (cross_host_bytes(layout, asks, reduction, item_bytes=items) for items in both)
        return {tag: n - whole_far.get(tag, 0.0) + far.get(tag, 0.0) for tag, n in whole.items()}
    met = {m.operator for m in layout.meetings}
    partials = sum(
        asks.samples[h] * p.elements for h, leg in layout.legs.items() for p in leg.partials if p.operator not in met
    )
    partials += sum(asks.own_samples[d] * m.elements for m in layout.meetings for d in m.dense if d != m.root)
    reduced = dense_elements - sum(weight.numel() for weight in layout.away if weight.requires_grad)
    told = [1 for holder, teller in _verdicts(layout, asks) if teller != holder]
    found = _by_tag(layout, asks, partials, len(told), _pairs(asks, _differ), item_bytes)
    for tag in ("values", "gradients"):
        found[tag] += _meeting_bytes(layout, asks, item_bytes)
    held = item_bytes.whole if item_bytes.held is None else item_bytes.held
    modules = sum(2 * (len(m.roots) - 1) * m.weights for m in layout.meetings if m.root == m.roots[0])
    return {
        **found,
        "dense": 2.0 * (dense_ranks - groups) * dense_item_bytes * reduced + held * modules,
    }


def _meeting_bytes(layout: Layout, asks: Asks, item_bytes: ItemBytes) -> float:
    """Of vectors that owners of a host give to who computes an operator of them, which no codec writes."""
    total = 0.0
    for m in layout.meetings:
        others = sum(n for member, n in zip(m.members, m.given, strict=True) if member != m.root)
        total += others * sum(asks.own_samples[d] for d in m.dense)
    return total * (item_bytes.whole if item_bytes.held is None else item_bytes.held)


def cross_host_bytes(layout: Layout, asks: Asks, reduction: Reduction, *, item_bytes: ItemBytes) -> dict[str, float]:
    """Those of ``step_bytes`` that cross from host to host, which are fewer where owners add partial results."""
    assert asks.far is not None, "asks are those of a counter"
    partials = sum(asks.own_samples[t.dense] * t.elements for t in chain(*reduction.rounds()) if reduction.crosses(t))

    def crosses(one: int, other: int) -> bool:
        return reduction.crosses(Transfer(one, other, one, 1))

    told = [1 for holder, teller in _verdicts(layout, asks) if crosses(teller, holder)]
    return _by_tag(layout, asks.far, partials, len(told), _pairs(asks, crosses), item_bytes, inside=False)


def busiest_host(
    layout: Layout, asks: Asks, reduction: Reduction, host_of: Sequence[int], *, item_bytes: ItemBytes
) -> float:
    """Times as many bytes of values as a host sends to others on average, of the one that sends most; at least 1."""
    assert asks.far is not None, "asks are those of a counter"
    sent_H = np.zeros(max(host_of) + 1)
    for holder, _, tags in entry_bytes(layout, asks.far, item_bytes, inside=False):
        sent_H[host_of[holder]] += tags["values"]
    for t in chain(*reduction.rounds()):
        if reduction.crosses(t):
            sent_H[host_of[t.sender]] += asks.own_samples[t.dense] * t.elements * item_bytes.whole
    return float(sent_H.max() / sent_H.mean()) if sent_H.any() else 1.0


def _verdicts(layout: Layout, asks: Asks) -> list[tuple[int, int]]:
    """Holders, and who tells each the verdict on a step; owners without rows, which are told too, left out."""
    return list(tellers(layout.legs, (), tuple(asks.own_samples)).items())


def _by_tag(
    layout: Layout,
    asks: Asks,
    partials: float,
    verdicts: int,
    pairs: tuple[int, int],
    item_bytes: ItemBytes,
    *,
    inside: bool = True,
) -> dict[str, float]:
    """Bytes of what is asked, and of so many elements of partial results, and of verdicts beside the gradients.

    ``pairs`` as of ``_pairs``, ``inside`` of ``entry_bytes``.
    """
    elements = partials, partials + verdicts
    totals = {"ids": 0.0, "values": item_bytes.whole * elements[0], "gradients": item_bytes.whole * elements[1]}
    for _, _, tags in entry_bytes(layout, asks, item_bytes, inside=inside):
        for tag, n_bytes in tags.items():
            totals[tag] += n_bytes
    if layout.conditional:
        for tag, n_bytes in _forecast(asks).beside(layout, *pairs).items():
            totals[tag] = totals.get(tag, 0.0) + n_bytes
    return totals


def _pairs(asks: Asks, crosses: Callable[[int, int], bool]) -> tuple[int, int]:
    """Pairs of a dense rank and a holder between whom messages cross, and of all ranks."""
    every = {*asks.own_samples, *asks.samples}
    asked = sum(crosses(rank, holder) for rank in asks.own_samples for holder in asks.samples)
    return asked, sum(crosses(a, b) for a in every for b in every)


def kept_bytes(layout: Layout, asks: Asks, item_bytes: ItemBytes, *, levels: bool = False) -> float:
    """Those of ``step_bytes`` that cross because dense ranks keep rows: of these features all but the requests."""
    if not layout.conditional:
        return 0.0
    beside, found = sum(_forecast(asks).beside(layout, *_pairs(asks, _differ)).values()), item_bytes
    if levels and not layout.copied:
        assert asks.far is not None, "asks are those of a counter"
        found, far = item_bytes.as_held(), asks.far
        beside += _kept_rows_bytes(layout, far, item_bytes) - _kept_rows_bytes(layout, far, found)
    return beside + _kept_rows_bytes(layout, asks, found)


def _kept_rows_bytes(layout: Layout, asks: Asks, item_bytes: ItemBytes) -> float:
    """Of these, what is of rows one by one."""
    total = 0.0
    for holder, leg in layout.legs.items():
        for entry in leg.entries:
            if entry.form.conditional:
                _, asked, _ = asks.of(entry, holder)
                total += sum(_forecast(asks).entry(layout, leg, entry, (0.0, asked), item_bytes.whole).values())
    return total


def _differ(one: int, other: int) -> bool:
    return one != other


def _forecast(asks: Asks) -> Forecast:
    assert asks.forecast is not None, "a layout with copies is counted with their forecast"
    return asks.forecast


def entry_bytes(
    layout: Layout, asks: Asks, item_bytes: ItemBytes, *, inside: bool = True
) -> Iterator[tuple[int, Entry, dict[str, float]]]:
    """Bytes by tag of each entry of each holder, by the formula of its form; and which holder.

    ``inside``: with those that cross inside a host besides.
    """
    held = item_bytes.whole if item_bytes.held is None else item_bytes.held
    for holder, leg in layout.legs.items():
        widths: list[list[int]] = [[] for _ in leg.entries]
        for stream in leg.streams:
            widths[stream.entry].append(stream.width)
        for entry, columns in zip(leg.entries, widths, strict=True):
            id_bytes, bags, beside = asks.of(entry, holder)
            if entry.form.conditional:
                yield holder, entry, _forecast(asks).entry(layout, leg, entry, (id_bytes, bags), item_bytes.whole)
            else:
                tags = entry.form.wire_bytes(id_bytes, bags, columns, item_bytes.of)
                if inside:
                    tags["values"] += held * beside * sum(columns) + BAG_BYTES * beside * entry.added
                    tags["gradients"] += held * beside * sum(columns)
                    tags["ids"] += ROW_BYTES * beside * entry.merged
                yield holder, entry, tags


def owner_flops(layout: Layout, samples: int) -> dict[int, float]:
    """Floating-point operations of a training step with dense parameters at holders, by holder; else a dense rank's."""
    found = {rank: float(FLOPS_A_WEIGHT * samples * layout.weights_at(rank)[0]) for rank in layout.legs}
    n_dense = len({d for m in layout.meetings for d in m.dense})
    for m in layout.meetings:  # of the samples of other dense ranks another one computes
        found[m.root] -= FLOPS_A_WEIGHT * samples * m.weights * (1 - len(m.dense) / n_dense)
    return found
