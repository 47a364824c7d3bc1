"""Ids that holders read themselves: the messages that dense ranks would send, made without them.

The data set is columnar, and which samples a batch has is known to every rank, so a holder can read the columns of its
own features for the whole batch. It makes of them the messages that would have come, uncoded, because none of them
crosses, and goes on as if they had: results do not depend on which way ids took. Knows the layout and one batch; knows
no MPI and no data set.
"""

from collections.abc import Callable, Sequence

import numpy as np

from hpcrec.exchange.layout import Layout
from hpcrec.exchange.split import Splitter
from hpcrec.exchange.wire import Coded, cumulative, message_bytes, plain, write_message
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
        self._rank = rank
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
        messages: dict[int, list[Coded]] = {}
        bytes_R = np.zeros(self._size, np.int64)
        for d, rank in enumerate(self._dense):
            pieces = self._splitter.asked_of(self._rank, ids.bags, first[-1], slice(first[d], first[d + 1]))
            messages[rank] = [plain(pieces[key]) for key in self._keys]
            bytes_R[rank] = message_bytes(messages[rank])
        padded_R = self._pad(bytes_R)
        received = np.empty(int(padded_R.sum()), np.uint8)
        for rank, at in enumerate(cumulative(padded_R)[:-1].tolist()):
            if rank in messages:
                write_message(messages[rank], received[at : at + bytes_R[rank]])
        return received, padded_R
