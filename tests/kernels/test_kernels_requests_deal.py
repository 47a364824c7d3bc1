"""Ids dealt to entries: native = reference = a loop over ids, and what is refused."""

from dataclasses import dataclass

import numpy as np
import pytest
from all_backends import same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels

ITEM = 4


@dataclass
class Bundles:
    """What is dealt."""

    ids: list[np.ndarray]
    lengths: list[np.ndarray]
    parts: list[np.ndarray | None]
    weights: list[np.ndarray | None]
    entries: np.ndarray
    first_B: np.ndarray
    every: np.ndarray

    def deal(self) -> kernels.DealtRequests:
        return kernels.deal_requests(
            self.ids, self.lengths, self.parts, self.weights, self.entries, self.first_B, self.every, ITEM
        )


def bundles_of(
    seed: int, kinds: list[str], *, n_bags: int = 12, longest: int = 3, every: float = 0.3, left_out: float = 0.2
) -> Bundles:
    """``kinds``: "dealt", each id at one part, or "whole"; with "+w" each has a weight."""
    rng = np.random.default_rng(seed)
    lengths = [rng.integers(0, longest + 1, n_bags + b) for b in range(len(kinds))]
    ids = [rng.integers(-(2**62), 2**62, int(of.sum())) for of in lengths]
    n_parts = rng.integers(1, 5, len(kinds))
    entries = rng.permutation(int(n_parts.sum())).astype(np.int64)
    entries[rng.random(len(entries)) < left_out] = -1
    return Bundles(
        ids,
        lengths,
        [
            rng.integers(0, n, len(of)) if kind.startswith("dealt") else None
            for of, n, kind in zip(ids, n_parts, kinds, strict=True)
        ],
        [
            rng.integers(0, 256, ITEM * len(of), np.uint8) if kind.endswith("+w") else None
            for of, kind in zip(ids, kinds, strict=True)
        ],
        entries,
        np.concatenate([[0], np.cumsum(n_parts)]).astype(np.int64),
        rng.random(len(entries)) < every,
    )


def by_loop(of: Bundles) -> kernels.DealtRequests:
    """Entry by entry, bag by bag, id by id."""
    at = {int(e): (b, p) for b in range(len(of.ids)) for p, e in enumerate(_entries(of, b)) if e >= 0}
    ids, lengths, bag, weights = [], [], [], []
    ids_E, bags_E = np.zeros(len(of.every), np.int64), np.zeros(len(of.every), np.int64)
    for e, (b, p) in sorted(at.items()):
        k = 0
        for v, n in enumerate(of.lengths[b].tolist()):
            mine = [j for j in range(k, k + n) if of.parts[b] is None or of.parts[b][j] == p]
            k += n
            if mine or of.every[e]:
                lengths.append(len(mine))
                bag.append(v)
                bags_E[e] += 1
            ids_E[e] += len(mine)
            ids += [int(of.ids[b][j]) for j in mine]
            if of.weights[b] is not None:
                weights += [of.weights[b][ITEM * j : ITEM * (j + 1)] for j in mine]
    every = [np.array(column, np.int64) for column in (ids, lengths, bag)]
    return kernels.DealtRequests(*every, np.concatenate([np.empty(0, np.uint8), *weights]), ids_E, bags_E)


def _entries(of: Bundles, b: int) -> list[int]:
    return of.entries[of.first_B[b] : of.first_B[b + 1]].tolist()


def dealt(of: Bundles) -> kernels.DealtRequests:
    """The same from all, and from the loop."""
    found = same_from_all(lambda: tuple(of.deal()))
    for name, mine, wanted in zip(kernels.DealtRequests._fields, found, by_loop(of), strict=True):
        np.testing.assert_array_equal(mine, wanted, err_msg=name)
    return kernels.DealtRequests(*found)


KINDS = st.lists(st.sampled_from(["dealt", "whole", "dealt+w", "whole+w"]), max_size=5)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), KINDS, st.sampled_from([0, 1, 3, 12]), st.sampled_from([0, 1, 3]))
def test_any_bundles(seed, kinds, n_bags, longest):
    dealt(bundles_of(seed, kinds, n_bags=n_bags, longest=longest))


def test_many_ids():
    of = bundles_of(3, ["dealt+w", "whole", "dealt", "whole+w"], n_bags=5000, longest=12)
    found = same_from_all(lambda: tuple(of.deal()))
    assert len(found[0]) > 50_000


@pytest.mark.parametrize(("every", "asked"), [(1, 1000), (0, 1), (1, 1), (0, 1000)])
def test_room_is_taken_for_what_is_asked(every: int, asked: int):
    """Of 1,000 parts; one entry may be asked for empty bags too."""
    n_bags, n_parts = 500, 1000
    of = bundles_of(1, ["dealt+w"], n_bags=n_bags)
    of.parts[0] = np.arange(len(of.ids[0])) % n_parts
    of.entries, of.first_B = np.arange(n_parts), np.array([0, n_parts])
    of.entries[asked:] = -1
    of.every = np.arange(n_parts) < every
    found, n = of.deal(), len(of.ids[0])
    room = [len(column.base) for column in found[:4]]
    assert room[0] == n and room[1] == room[2] <= every * n_bags + n and room[3] == ITEM * n
    dealt(of)


def test_bags_that_owners_must_all_know():
    of = bundles_of(5, ["dealt", "whole"], every=1.0, left_out=0.0)
    found = dealt(of)
    n_parts = np.diff(of.first_B)
    assert len(found.lengths) == int((n_parts * [len(bags) for bags in of.lengths]).sum())
    assert (found.lengths == 0).any()


def test_no_bundles_and_no_parts_that_are_asked():
    assert [len(column) for column in dealt(bundles_of(0, []))] == [0] * 6
    found = dealt(bundles_of(0, ["dealt", "whole+w"], left_out=1.0))
    assert len(found.ids) == len(found.weights) == 0 and found.bags_E.sum() == 0


def refused(of: Bundles, match: str) -> None:
    said = []
    for backend in ("native", "reference"):
        kernels.use(backend)
        with pytest.raises(ValueError, match=match) as error:
            of.deal()
        said.append(str(error.value))
    kernels.use("native")
    assert said[0] == said[1]


def test_what_is_refused():
    fine = bundles_of(9, ["dealt+w", "whole"], left_out=0.0)
    fine.deal()
    n = len(fine.ids[0])

    def changed(name: str, value: object, b: int | None = None) -> Bundles:
        of = bundles_of(9, ["dealt+w", "whole"], left_out=0.0)
        if b is None:
            setattr(of, name, value)
        else:
            getattr(of, name)[b] = value
        return of

    refused(
        changed("lengths", fine.lengths[0][:-1], 0), f"bundle 0: the lengths of its bags do not add up to its {n} ids"
    )
    minus = fine.lengths[1].copy()
    minus[:2] = [-1, minus[0] + minus[1] + 1]
    refused(changed("lengths", minus, 1), "bundle 1: the lengths of its bags do not add up")
    for wrong in (-1, 99, 2**62):
        parts = fine.parts[0].copy()
        parts[n // 2] = wrong
        refused(changed("parts", parts, 0), f"bundle 0: an id goes to part {wrong}; it has {fine.first_B[1]}")
    entries = fine.entries.copy()
    entries[0] = len(entries)
    refused(changed("entries", entries), f"bundle 0: entry {len(entries)} is not one of {len(entries)}, or is that of")
    entries[0] = entries[-1]
    refused(changed("entries", entries), f"bundle 1: entry {entries[-1]} is not one of .*, or is that of another part")
    for below in (-2, -(2**63)):
        entries[0] = below
        refused(changed("entries", entries), f"bundle 0: entry {below} is not one of")
    two = changed("lengths", minus, 1)
    two.parts[0][n // 2] = 99
    refused(two, "bundle 0: an id goes to part 99")  # the first of them, whatever it is
    refused(changed("weights", np.empty(0, np.uint8), 0), "bundle 0: its weights are 0 bytes, not those of")
    refused(changed("parts", fine.parts[0][:-1], 0), f"bundle 0: parts are {n - 1}, its ids {n}")
    refused(changed("weights", fine.weights[0][:-1], 0), "bundle 0: its weights are .* bytes, not those of")
    for first in ([0, 2, 99], [-1, 2, 3], [0, 3, 2]):
        refused(changed("first_B", np.array(first)), "these are no bounds of")
    refused(changed("first_B", np.array([0, 1])), "the last has one more than there are bundles")
    refused(
        changed("ids", fine.ids[0].astype(np.int32), 0),
        r"ids, lengths or parts is int32\[.*needed is an aligned C-contiguous array",
    )
    refused(changed("every", fine.every.astype(np.int64)), r"every is int64")
