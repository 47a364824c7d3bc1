"""Arrays of samples from some ranks to others. Knows their shapes, and who is due which; not what they are."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import padded_bytes
from hpcrec.exchange.bags import cumulative
from hpcrec.exchange.codec import make_codec
from hpcrec.types import Floats


class Swap:
    """Swaps arrays among some ranks; collective over these.

    Parameters
    ----------
    collectives : Collectives
    dtype : numpy float type
    codec : str
        How they are written on the wire; by default as they are.
    uncoded : collection of int
        World ranks to and from whom they cross as they are, whatever the codec.
    """

    def __init__(
        self, collectives: Collectives, dtype: np.dtype[Any], codec: str = "fp32", uncoded: Collection[int] = ()
    ) -> None:
        self._ranks, self.dtype = collectives.ranks, dtype
        self._codec = make_codec(codec, collectives, dtype, uncoded)

    def __call__(
        self, given: Mapping[int, Sequence[Floats]], due: Mapping[int, Sequence[tuple[int, int]]], tag: str
    ) -> dict[int, Iterator[Floats]]:
        """Arrays to other ranks, one after the other; from each rank those of the shapes that are due, in order."""
        ranks, item = self._ranks, self.dtype.itemsize
        sent_R = padded_bytes(np.array([item * sum(a.size for a in given.get(r, ())) for r in ranks], np.int64))
        due_R = padded_bytes(np.array([item * sum(n * p for n, p in due.get(r, ())) for r in ranks], np.int64))
        message = self._codec.message(sent_R)
        for rank, at in zip(ranks, (cumulative(sent_R)[:-1] // item).tolist(), strict=True):
            for array in given.get(rank, ()):
                message[at : at + array.size] = array.reshape(-1)
                at += array.size
        received = self._codec.alltoallv(message, sent_R, due_R, tag)
        places = zip(ranks, (cumulative(due_R)[:-1] // item).tolist(), strict=True)
        return {rank: _cut(received[at:], due[rank]) for rank, at in places if rank in due}


def put(rows: Sequence[Floats], values_NP: Floats) -> None:
    """Consecutive rows into those views."""
    at = 0
    for row in rows:
        row[:] = values_NP[at : at + len(row)]
        at += len(row)


def _cut(flat: Floats, shapes: Sequence[tuple[int, int]]) -> Iterator[Floats]:
    """Consecutive arrays of these shapes, views."""
    at = 0
    for n, p in shapes:
        yield flat[at : at + n * p].reshape(n, p)
        at += n * p
