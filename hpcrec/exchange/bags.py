"""Bags from file to row: what a dense rank asks of owners, as flat arrays, and what owners were asked, likewise.

A batch's bags are dealt to the *entries* of all owners (``layout.Entry``: ids that travel together to one owner) by one
call, owner after owner, so that no owner costs a call or an object. How ids are dealt and requests written is for
``kernels`` (``deal_requests``, ``plan_requests``). Knows the layout and one batch; knows no MPI.

Legend: ``E`` entries of all owners, ``K`` ids, ``V`` bags, ``N`` cells (entries that are asked for something), ``R``
ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hpcrec import kernels
from hpcrec.embedding.shards import table_seed
from hpcrec.errors import DataError
from hpcrec.exchange.columns import Column, Dealt
from hpcrec.exchange.layout import Layout
from hpcrec.types import Bags, Floats, Ints

_SHARED_BYTES = 5  # of a message: the number of its entries, and how wide four numbers are that each of them has


@dataclass(frozen=True)
class Requests:
    """What is asked of all owners, one after the other; see ``kernels.plan_requests``.

    Attributes
    ----------
    ids : int64 [K]
    lengths : int64 [V]
    cells : int64 [N, 4]
    weights : uint8
    bag : int64 [V]
        Which bag of its bundle each is.
    bags_E : int64 [E]
        Bags of each entry.
    """

    ids: Ints
    lengths: Ints
    cells: Ints
    weights: np.ndarray
    bag: Ints
    bags_E: Ints


class Entries:
    """The entries of all owners, or of one, in the order in which they are asked.

    Parameters
    ----------
    layout : Layout
    bundles : sequence of tuple of str
        Features that travel together.
    weighted : set of str
        Features whose ids carry weights.
    only : int, optional
        The one owner; default: all.

    Attributes
    ----------
    owner_E, bundle_E : int64 [E]
        Whose entry it is, and the number of its bundle, by which messages name it.
    part_E : int64 [E]
        Which part of its family the owner has.
    every_bag_E : bool [E]
    weighted : bool [...]
        By bundle, of all that the layout has.
    """

    def __init__(
        self,
        layout: Layout,
        bundles: Sequence[tuple[str, ...]],
        weighted: set[str],
        *,
        only: int | None = None,
    ) -> None:
        wanted, every = set(bundles), layout.bundled()
        number = {form.features: b for b, form in enumerate(every)}
        legs = {r: leg for r, leg in sorted(layout.legs.items()) if only in (None, r)}
        found = [(r, entry) for r, leg in legs.items() for entry in leg.entries if entry.features in wanted]
        self.owner_E = np.array([r for r, _ in found], np.int64)
        self.bundle_E = np.array([number[entry.features] for _, entry in found], np.int64)
        self.part_E = np.array([entry.part for _, entry in found], np.int64)
        self.weighted = np.array([form.carries_weights(weighted) for form in every], bool)
        self.every_bag_E = np.array([entry.every_bag for _, entry in found], bool)
        self._names = [(r, entry.features) for r, entry in found]
        at = {(entry.features, entry.part): i for i, (_, entry) in enumerate(found)}
        of_part = [  # by bundle: entries by part, -1 where a part has no columns of it, or is another owner's
            [at.get((bundle, p), -1) for p in range(len(layout.family_of[bundle[0]].holders))] for bundle in bundles
        ]
        self._of_part = np.array([e for of in of_part for e in of], np.int64)
        self._first_B = cumulative(np.array([len(of) for of in of_part], np.int64))
        self._weighs_B = [bool(self.weighted[number[bundle]]) for bundle in bundles]
        self.carries_weights = any(self._weighs_B)

    def __len__(self) -> int:
        return len(self.owner_E)

    def requests(self, dealt: Sequence[Dealt], dtype: np.dtype) -> Requests:
        """Everything that is asked, owner after owner, entry after entry, bag after bag; ``dealt`` is by bundle."""
        found = kernels.deal_requests(
            [of.rows for of in dealt],
            [of.lengths for of in dealt],
            [of.part for of in dealt],
            [_bytes_of(of, dtype) if weighs else None for of, weighs in zip(dealt, self._weighs_B, strict=True)],
            self._of_part,
            self._first_B,
            self.every_bag_E,
            dtype.itemsize,
        )
        asked = np.flatnonzero(found.bags_E)
        cells = np.stack([self.owner_E[asked], self.bundle_E[asked], found.ids_E[asked], found.bags_E[asked]], axis=1)
        return Requests(found.ids, found.lengths, cells, found.weights, found.bag, found.bags_E)

    def names(self) -> list[tuple[int, tuple[str, ...]]]:
        """Whose entry each is, and its bundle."""
        return self._names

    def bytes_of(self, requests: Requests, far_R: np.ndarray, item: int) -> Ints:
        """Bytes that each entry adds to a message of many, to within 2: those of one by itself, less what all share."""
        asked = np.flatnonzero(requests.bags_E)
        cells = np.column_stack([asked, requests.cells[:, 1:]])
        plan = kernels.plan_requests(
            requests.ids, requests.lengths, cells, far_R[self.owner_E], self.weighted, item
        )  # fmt: skip
        return np.maximum(plan.bytes_R - _SHARED_BYTES, 0)


def _bytes_of(dealt: Dealt, dtype: np.dtype) -> np.ndarray:
    """The weights that travel with these ids."""
    assert dealt.weights is not None, "a bundle that carries weights has them"
    return dealt.weights.astype(dtype, copy=False).view(np.uint8)


class Sums:
    """Vectors that a dense rank is sent for what it asks, where owners of a host add theirs (``roots``).

    Parameters
    ----------
    entries : Entries
        Of all owners.
    added : set of str
        Features of which they do.
    root : callable
        A bundle and who has a part of its bags -> who sends that, added up, to this dense rank.
    """

    def __init__(self, entries: Entries, added: AbstractSet[str], root: Callable[[tuple[str, ...], int], int]) -> None:
        at = {name: e for e, name in enumerate(entries.names())}
        self._adds_E = np.array([features[0] in added for _, features in at], bool)
        self._root_E = np.array([at[root(features, holder), features] for holder, features in at], np.int64)
        self._gives_E = self._root_E != np.arange(len(at))

    def answers(self, requests: Requests) -> Requests:
        """``bag`` and ``bags_E`` of the vectors that come: of bags that are not empty, from their root, in order."""
        bags_E, adds_E = requests.bags_E, self._adds_E
        mine, bag_V, some_V = self._some(requests)
        sent_ES = np.zeros((len(bags_E), int(bags_E[mine].max()) if len(mine) else 0), bool)
        sent_ES[np.repeat(self._root_E[mine], bags_E[mine])[some_V], bag_V[some_V]] = True
        sent_E = np.where(adds_E, sent_ES.sum(axis=1), bags_E)
        bag, begins_E = np.empty(int(sent_E.sum()), np.int64), cumulative(sent_E)[:-1]
        bag[ranges(begins_E[adds_E], sent_E[adds_E])] = np.nonzero(sent_ES)[1]
        others, first_E = ~adds_E, cumulative(bags_E)[:-1]
        bag[ranges(begins_E[others], sent_E[others])] = requests.bag[ranges(first_E[others], bags_E[others])]
        return replace(requests, bag=bag, bags_E=sent_E)

    def given(self, requests: Requests) -> Ints:
        """Vectors that each entry's owner gives to another one to be added, int64 [E]."""
        mine, _, some_V = self._some(requests)
        number_V = np.repeat(mine, requests.bags_E[mine])
        return np.bincount(number_V[some_V], minlength=len(self._gives_E)) * self._gives_E

    def _some(self, requests: Requests) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Entries of what is added that are asked for bags; these; and which of them are not empty."""
        mine = np.flatnonzero(self._adds_E & (requests.bags_E > 0))
        at = ranges(cumulative(requests.bags_E)[mine], requests.bags_E[mine])
        return mine, requests.bag[at], requests.lengths[at] > 0


class Splitter:
    """From bags to what each owner is asked for.

    Parameters
    ----------
    layout : Layout
    features : set of str
        Those that it is given.
    seed : int
        The run's seed, for hashed ids.
    weighted : set of str
        Features whose ids carry weights.
    dtype : numpy float type
    only : int, optional
        The one owner for whom requests are made; default: all.

    Attributes
    ----------
    forms : list of Form
        Each with a bundle of its own, in the order of the layout's entries.
    entries : Entries
    """

    def __init__(
        self,
        layout: Layout,
        features: set[str],
        *,
        seed: int,
        weighted: set[str],
        dtype: np.dtype,
        only: int | None = None,
    ) -> None:
        self._layout = layout
        self._seed = seed
        self._weighted = weighted
        self.dtype = np.dtype(dtype)
        self._features = [f for f in layout.form_of if f in features]
        self.forms = [form for form in layout.bundled() if features.issuperset(form.features)]
        self.entries = Entries(layout, [form.features for form in self.forms], weighted, only=only)
        self._sums: Sums | None = None

    def columns(self, bags: Bags, n_samples: int, samples: slice) -> dict[str, Column]:
        """The bags of some of ``n_samples`` samples, feature by feature.

        Raises
        ------
        DataError
            An id outside its table.
        """
        return {f: self._column(bags, f, n_samples, samples) for f in self._features}

    def requests(self, columns: Mapping[str, Column]) -> Requests:
        """What is asked of the owners."""
        return self.asked([form.ask(columns)[0] for form in self.forms])

    def add_up(self, added: AbstractSet[str], root: Callable[[tuple[str, ...], int], int]) -> None:
        """Owners of a host add vectors; arguments as of ``Sums``."""
        self._sums = Sums(self.entries, added, root)

    def answers(self, requests: Requests) -> Requests:
        """The same with ``bag`` and ``bags_E`` of the vectors that answer them: one a bag, or ``Sums.answers``."""
        return requests if self._sums is None else self._sums.answers(requests)

    def given(self, requests: Requests) -> Ints:
        """See ``Sums.given``."""
        return np.zeros(len(self.entries), np.int64) if self._sums is None else self._sums.given(requests)

    def asked(self, dealt: Sequence[Dealt]) -> Requests:
        """The same, of what each form has dealt."""
        return self.entries.requests(dealt, self.dtype)

    def _column(self, bags: Bags, feature: str, n_samples: int, samples: slice) -> Column:
        f = bags.features.index(feature)
        offsets = bags.offsets[f * n_samples + samples.start : f * n_samples + samples.stop + 1]
        here = slice(int(offsets[0]), int(offsets[-1]))
        ids, lengths = bags.ids[here], offsets[1:] - offsets[:-1]
        family = self._layout.family_of[feature]
        if family.hashed:
            ids = kernels.hash_ids(ids, family.rows, table_seed(self._seed, family.name))
        elif family.dynamic is None and not all_below(ids, family.rows):
            bad = ids[(ids < 0) | (ids >= family.rows)][0]
            raise DataError(
                f"feature {feature!r} has id {bad}. Allowed: 0 to {family.rows - 1}, the rows of table "
                f"{family.name!r}. Set embedding.tables.{family.name}.hashed = true, or raise its rows."
            )
        weights = None
        if feature in self._weighted:
            weights = np.ones(len(ids), self.dtype) if bags.weights is None else bags.weights[here]
            weights = weights.astype(self.dtype, copy=False)
        scale = None
        if self._layout.pooling[feature] == "mean":
            scale = (1.0 / np.maximum(lengths, 1)).astype(self.dtype)
        return Column(ids, lengths, weights, scale)


@dataclass(frozen=True)
class Received:
    """What an owner was asked by all dense ranks that ask something.

    Attributes
    ----------
    senders : int64 [P]
        World ranks.
    ids : int64 [K]
        May be overwritten once they are read (``OwnerSide.read``).
    offsets : int64 [V + 1]
    cells : int64 [N, 4]
        Number of the sender, entry, ids and bags.
    weights : float [K] or None
        1 where ids carry none; None where no entry has any.
    """

    senders: Ints
    ids: Ints
    offsets: Ints
    cells: Ints
    weights: Floats | None


def weights_by_id(cells: Ints, weighted_E: np.ndarray, weights: np.ndarray, dtype: np.dtype) -> Floats | None:
    """One for each id, of those that weighted cells carry; None where no entry has any."""
    if not weighted_E.any():
        return None
    carries = np.repeat(weighted_E[cells[:, 1]], cells[:, 2])
    out = np.ones(len(carries), dtype)
    out[carries] = np.frombuffer(weights.tobytes(), dtype)
    return out


def ranges(first: Ints, counts: Ints) -> Ints:
    """``first[i], first[i] + 1, ...``, so many of each, one range after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - counts), counts)


def all_below(ids: Ints, limit: int) -> bool:
    """Whether all ids are at least 0 and below ``limit``, in one look: one below 0 is a large number without a sign."""
    return len(ids) == 0 or bool(np.maximum.reduce(ids.view(np.uint64)) < limit)


def cumulative(counts: Ints, first: int = 0) -> Ints:
    """``[first, first + c0, first + c0 + c1, ...]``: offsets of consecutive pieces, int64 [len + 1]."""
    out = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=out[1:])
    return out + first if first else out
