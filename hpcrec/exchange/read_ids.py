"""Ids that holders read themselves: the messages that dense ranks would send, made without them.

The data set is columnar, and which samples a batch has is known to every rank, so a holder can read the columns of its
own features for the whole batch. It makes of them the very messages that would have come, and goes on as if they had:
results do not depend on which way ids took. Knows the layout and one batch; knows no MPI and no data set.
"""

from collections.abc import Callable, Sequence

import numpy as np

from hpcrec.exchange.layout import Layout
from hpcrec.exchange.split import Splitter
from hpcrec.exchange.wire import encode
from hpcrec.types import GlobalIds, Ints


class IdReader:
    """A holder's: makes the messages of all dense ranks to it from the ids of the global batch.

    Parameters
    ----------
    splitter : Splitter
        Of the features that it holds.
    layout : Layout
    rank : int
        This rank.
    dense : sequence of int
        Dense ranks, in the order of their parts of a batch.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes as on the wire.
    """

    def __init__(
        self,
        splitter: Splitter,
        layout: Layout,
        rank: int,
        dense: Sequence[int],
        *,
        size: int,
        pad: Callable[[Ints], Ints],
    ) -> None:
        self._splitter = splitter
        self._keys = [(rank, e) for e in range(len(layout.legs[rank].entries))]
        self._dense = tuple(dense)
        self._size = size
        self._pad = pad

    def messages(self, ids: GlobalIds) -> tuple[np.ndarray, Ints]:
        """What all dense ranks would send: uint8, one message after the other in rank order, and int64 [R] their sizes.

        Raises
        ------
        DataError
            An id outside its table.
        """
        first = ids.first_D.tolist()
        parts: list[bytes | memoryview] = []
        bytes_R = np.zeros(self._size, np.int64)
        for d, rank in enumerate(self._dense):
            split = self._splitter.split(ids.bags, first[-1], slice(first[d], first[d + 1]))
            pieces = {key: piece for part in split for key, piece in part.pieces.items()}
            message = encode([pieces[key] for key in self._keys])
            n_bytes = sum(len(part) for part in message)
            bytes_R[rank] = self._pad(np.array([n_bytes], np.int64))[0]
            parts += [*message, bytes(int(bytes_R[rank]) - n_bytes)]
        return np.frombuffer(b"".join(parts), np.uint8), bytes_R
