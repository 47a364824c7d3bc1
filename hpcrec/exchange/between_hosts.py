"""Messages between hosts that hold sums: owners of a host add parts of bags, dense ranks of a host gradients of rows.

The way of messages (as ``way``) with one transfer, before which owners and behind which dense ranks of a host meet:
``host_sums``, ``host_rows``. All of it may run ahead of the step. Knows messages, and who has a part in them; does not
know what they hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrec.comm.sizes import UNIT_BYTES, clear_padding
from hpcrec.comm.world import World
from hpcrec.exchange import verdict
from hpcrec.exchange.bags import Received
from hpcrec.exchange.codec import Codec, Elementwise, Kept
from hpcrec.exchange.dense_side import Asked
from hpcrec.exchange.host_rows import HostRows
from hpcrec.exchange.host_sums import Added, HostSums
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.passage import Passage
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.work import Served
from hpcrec.types import Floats, Ints


@dataclass(kw_only=True)
class HostPassage(Passage):
    """One step's messages; ``added`` where owners add, ``kept`` where not all elements cross, else None."""

    asked: Asked | None
    served: Served | None
    added: Added | None
    kept: Kept | None = None


class BetweenHosts:
    """One rank's part in them.

    Parameters
    ----------
    world : World
    layout : Layout
    dtype : numpy float type
    codec : Codec
        Of what crosses.
    teller : int
        As of ``HostSums``.
    rows : HostRows or None
        Of a dense rank whose host asks for rows together.

    Attributes
    ----------
    ahead, current, slices
        See ``way.Way``.
    """

    ahead: Sequence[Any] = (None,)
    current: Sequence[Any] = ()
    slices: Sequence[Slice] = ()

    def __init__(
        self, world: World, layout: Layout, dtype: np.dtype[Any], codec: Codec, teller: int, rows: HostRows | None
    ) -> None:
        assert rows is None or isinstance(codec, Elementwise), "no row is thresholded"
        self._codec, self._dtype, self._rows, self._teller = codec, np.dtype(dtype), rows, teller
        self._sums = HostSums(world, layout, dtype, codec, teller) if layout.added else None
        self._none_R = np.zeros(world.topology.size, np.int64)
        self._told_R = UNIT_BYTES * (np.arange(world.topology.size) == teller)

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "gradients") -> Floats:
        """See ``Passing``: values that no owner adds are written where they are sent from."""
        if tag == "values" and self._sums is None:
            return self._codec.message(bytes_R, behind_bytes, tag)
        room = np.empty(int(bytes_R.sum()) + behind_bytes, np.uint8)
        clear_padding(room, bytes_R)
        return room.view(self._dtype)

    def without_empty(self, received: Received) -> Received:
        """What an owner was asked, but for empty bags of what is added, which are answered by nothing."""
        return received if self._sums is None else self._sums.without_empty(received)

    def passage(self, asked: Asked | None, served: Served | None, received: Received | None) -> HostPassage:
        """One step's; ``received`` as it came, with empty bags; None where nothing is held."""
        added = None if self._sums is None else self._sums.added(served, received)
        return HostPassage(asked=asked, served=served, added=added)

    def forward(self, passage: HostPassage, flat: Floats, hops: Sequence[Any], *, train: bool) -> Floats:
        """Values of this owner's messages -> those of a dense rank's."""
        if not hops:
            return flat
        asked, served = passage.asked, passage.served
        sent_R, message = self._none_R if served is None else served.value_bytes_R, flat
        spans = None if served is None else served.spans
        if self._sums is not None and passage.added is not None:
            summed = self._sums.sum(passage.added, flat, train=train)
            message, sent_R, spans = summed or (flat[: int(sent_R.sum()) // flat.itemsize], sent_R, spans)
        due_R = self._none_R if asked is None else asked.crossing_bytes_R[0]
        came, passage.kept = self._codec.values(message, sent_R.copy(), due_R.copy(), spans, train=train)
        if self._rows is not None and asked is not None and asked.together is not None:
            return self._rows.forward(asked.together, came)
        return came

    def backward(self, passage: HostPassage, flat: Floats, hops: Sequence[Any], behind_bytes: int = 0) -> Floats:
        """Gradients of a dense rank's messages -> those of this owner's, with room behind them."""
        if not hops:
            return flat
        asked, served, sums, added = passage.asked, passage.served, self._sums, passage.added
        if self._rows is not None and asked is not None and asked.together is not None:
            flat = self._rows.backward(asked.together, flat, self._codec.message)
        sent_R = self._none_R if asked is None else asked.crossing_bytes_R[1]
        due_R = self._told_R if served is None else served.gradient_bytes_R
        crossing = None if sums is None or added is None else sums.crossing(added)
        behind, verdict_in = behind_bytes, 0 if served is None else served.verdict_in
        if crossing is not None:
            due_R, behind, verdict_in = crossing.bytes_R, 0, crossing.verdict_in
        kept = passage.kept
        if kept is not None:
            heard = {} if self._teller < 0 else {self._teller: verdict_in}
            kept = verdict.kept_with(kept, {} if asked is None else asked.told, heard)
        came = self._codec.gradients(flat, sent_R.copy(), due_R.copy(), behind, kept)
        if sums is None or added is None:
            return came
        return sums.part(added, came, crossing, lambda bytes_R: self.message(bytes_R, behind_bytes))
