"""A read in two parts, by bag, and a learn in two parts, by row: what looking ahead exactly needs of the exchange.

A bag of step t + 1 is *early* where step t asks for none of its ids: no update of t changes what it is answered with.
Owners know both steps' ids when t + 1 is routed, and answer with a byte a bag, in the phase ids. The early bags'
vectors may cross before t is learned, the others' after the rows have learned that t + 1 asks for; the rest of t's
rows learn whenever that is convenient, before a later step reads them. Vectors keep their places in the values; what
crosses in one part is packed, in that order. Knows places and bags; when a part comes, ``policy`` says.

Legend: ``V`` vectors that cross, peer after peer, stream after stream, bag after bag.
"""

from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.comm.sizes import padded_bytes
from hpcrec.exchange.bags import Received, cumulative, ranges
from hpcrec.types import Floats, Ints

Bools = np.ndarray


@dataclass(frozen=True)
class Places:
    """The vectors of one step between this rank and its peers.

    Attributes
    ----------
    peer_V, width_V : int64 [V]
    start_V : int64 [V]
        First element of each in the values.
    bag_V : int64 [V]
        Its bag, among all that are asked, in the order of the requests.
    """

    peer_V: Ints
    width_V: Ints
    start_V: Ints
    bag_V: Ints

    def of(self, bags: Bools, size: int, item: int) -> "Packed":
        """Those of some bags, bool [bags], as they cross."""
        taken = np.flatnonzero(bags[self.bag_V])
        peer, width = self.peer_V[taken], self.width_V[taken]
        exact_R = np.bincount(peer, width, size).astype(np.int64)
        bytes_R = padded_bytes(exact_R * item)
        at = np.cumsum(width) - width - cumulative(exact_R)[peer] + cumulative(bytes_R)[peer] // item
        return Packed(bytes_R, width, self.start_V[taken], at)


@dataclass(frozen=True)
class Packed:
    """Some vectors: their messages' sizes [R], and where they are in the values and in the messages."""

    bytes_R: Ints
    width: Ints
    start: Ints
    at: Ints

    def pack(self, values: Floats, message: Floats) -> None:
        """Values -> messages."""
        for width, mine in self._by_width():
            kernels.copy_vectors(values, message, width, source_start=self.start[mine], target_start=self.at[mine])

    def unpack(self, message: Floats, values: Floats) -> None:
        """Messages -> values."""
        for width, mine in self._by_width():
            kernels.copy_vectors(message, values, width, source_start=self.at[mine], target_start=self.start[mine])

    def _by_width(self) -> list[tuple[int, Ints]]:
        return [(width, np.flatnonzero(self.width == width)) for width in np.unique(self.width).tolist()]


class Early:
    """Which bags of each training step are early at one owner; steps are shown to it in their order.

    Parameters
    ----------
    family_E : int64 [E]
        Family of each entry of the owner, by any number.
    whole_E : bool [E]
        Entries whose bags cross together, late.
    """

    def __init__(self, family_E: Ints, whole_E: Bools) -> None:
        self._family_E, self._whole_E = family_E, whole_E
        self._before: dict[int, Ints] = {}

    def of(self, received: Received, entry_N: Ints) -> Bools:
        """By bag, bool; ``entry_N``: the entry of each cell."""
        cells = received.cells
        first_K, first_V = cumulative(cells[:, 2])[:-1], cumulative(cells[:, 3])[:-1]
        met, now = np.zeros(len(received.ids), bool), dict[int, Ints]()
        for family in np.unique(self._family_E[entry_N]).tolist():
            mine = np.flatnonzero(self._family_E[entry_N] == family)
            at = ranges(first_K[mine], cells[mine, 2])
            now[family] = np.unique(received.ids[at])
            if family in self._before:
                met[at] = np.isin(received.ids[at], self._before[family])
        self._before = now
        early = np.diff(np.append(0, np.cumsum(met))[received.offsets]) == 0
        whole = np.flatnonzero(self._whole_E[entry_N])
        early[ranges(first_V[whole], cells[whole, 3])] = False
        return early
