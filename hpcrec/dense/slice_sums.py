"""Gradients of slices that several ranks train together, summed among these: in two exchanges, in the order of ranks.

::

    each of m ranks -- a part of its gradients to each --> adds the m of its part -- the sum to each --> the same sum

Of a group of m ranks and E elements 2 (m - 1) E elements cross in all, tag ``dense``; every rank has the same bits.
Where no group has more than 2 ranks these exchange all they have at once, which is as many. The exchanges serve all
groups that lie within some ranks. Knows arrays and ranks; knows no parameters.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import padded_bytes

Group = tuple[int, ...]
Array = NDArray[np.floating]


class SliceSums:
    """Sums within groups of some ranks; collective over all of them.

    Parameters
    ----------
    ranks : Collectives
    largest : int
        Ranks of the largest group that any of them is in.
    """

    def __init__(self, ranks: Collectives, largest: int) -> None:
        self._ranks, self._at_once = ranks, largest <= 2
        self._place = {rank: place for place, rank in enumerate(ranks.ranks)}
        self._me = ranks.ranks[ranks.rank]

    def __call__(self, flat_of: Mapping[Group, Array], dtype: np.dtype) -> dict[Group, Array]:
        """Sums of each group's arrays, which are of one length; those of this rank's groups.

        Parameters
        ----------
        flat_of : mapping of tuple of int to array [E]
            By world ranks, ascending, this one among them.
        dtype : numpy float type
            Of all of them, on every rank.
        """
        if self._at_once:
            return self._added_at_once(flat_of, dtype)
        groups = sorted(flat_of)
        spans = {group: np.linspace(0, len(flat_of[group]), len(group) + 1).astype(int).tolist() for group in groups}
        mine = {group: group.index(self._me) for group in groups}

        def part(group: Group, rank: int) -> slice:
            at = group.index(rank)
            return slice(spans[group][at], spans[group][at + 1])

        own = {group: spans[group][at + 1] - spans[group][at] for group, at in mine.items()}
        sent = {r: [flat_of[g][part(g, r)] for g in groups if r in g] for r in self._place}
        due = {r: [own[g] for g in groups if r in g] for r in self._place}
        came = self._exchange(sent, due, dtype)
        sums = {group: np.zeros(own[group], dtype) for group in groups}
        for rank in self._place:  # ascending: the order of every sum
            for group, piece in zip((g for g in groups if rank in g), came[rank], strict=True):
                sums[group] += piece
        sent = {r: [sums[g] for g in groups if r in g] for r in self._place}
        due = {r: [len(flat_of[g][part(g, r)]) for g in groups if r in g] for r in self._place}
        came = self._exchange(sent, due, dtype)
        found = {group: np.empty(len(flat_of[group]), dtype) for group in groups}
        for rank in self._place:
            for group, piece in zip((g for g in groups if rank in g), came[rank], strict=True):
                found[group][part(group, rank)] = piece
        return found

    def _added_at_once(self, flat_of: Mapping[Group, Array], dtype: np.dtype) -> dict[Group, Array]:
        groups = sorted(flat_of)
        sent = {r: [flat_of[g] for g in groups if r in g] for r in self._place}
        came = self._exchange(sent, {r: list(map(len, some)) for r, some in sent.items()}, dtype)
        sums = {group: np.zeros(len(flat_of[group]), dtype) for group in groups}
        for rank in self._place:
            for group, piece in zip((g for g in groups if rank in g), came[rank], strict=True):
                sums[group] += piece
        return sums

    def _exchange(
        self, sent: Mapping[int, list[Array]], due: Mapping[int, list[int]], dtype: np.dtype
    ) -> dict[int, list[Array]]:
        """Arrays to each rank, and those of the lengths that are due from each."""
        item, order = dtype.itemsize, self._ranks.ranks
        sent_R = padded_bytes(np.array([item * sum(map(len, sent[r])) for r in order], np.int64))
        due_R = padded_bytes(np.array([item * sum(due[r]) for r in order], np.int64))
        message = self._ranks.message(sent_R, dtype)
        for rank, end in zip(order, (np.cumsum(sent_R) // item).tolist(), strict=True):
            at = end - int(sent_R[self._place[rank]]) // item
            for array in sent[rank]:
                message[at : at + len(array)] = array
                at += len(array)
        came = self._ranks.alltoallv(message, sent_R, due_R, "dense")
        found: dict[int, list[Array]] = {}
        for rank, end in zip(order, (np.cumsum(due_R) // item).tolist(), strict=True):
            at = end - int(due_R[self._place[rank]]) // item
            found[rank] = []
            for length in due[rank]:
                found[rank].append(came[at : at + length])
                at += length
        return found
