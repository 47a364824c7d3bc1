"""A read in two parts, by bag, and a learn in two parts, by row: what looking ahead exactly needs of the exchange.

A bag of step t + 1 is *early* where step t asks for none of its ids: no update of t changes what it is answered with.
A bag of t is *urgent* where t + 1 asks for some of its ids: these rows learn before t + 1 reads them. Owners know both
steps' ids when t + 1 is routed, and answer with a byte a bag of either, in the phase ids. The early bags' vectors may
cross before t is learned, the others' after the urgent bags' gradients have crossed and the rows have learned that
t + 1 asks for; the other gradients cross, and the rest of t's rows learn, while t + 1 is computed. Vectors keep their
places in the values and the gradients; what crosses in one part is packed, in that order. Knows places and bags; when a
part comes, ``policy`` says.

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
        First element of each in the values, or in the gradients.
    bag_V : int64 [V]
        Its bag, among all that are asked, in the order of the requests.
    """

    peer_V: Ints
    width_V: Ints
    start_V: Ints
    bag_V: Ints

    def of(self, bags: Bools, item: int, more_R: Ints) -> "Packed":
        """Those of some bags, bool [bags], as they cross, and so many elements more behind each rank's."""
        taken = np.flatnonzero(bags[self.bag_V])
        peer, width = self.peer_V[taken], self.width_V[taken]
        exact_R = np.bincount(peer, width, len(more_R)).astype(np.int64)
        bytes_R = padded_bytes((exact_R + more_R) * item)
        at_R = cumulative(bytes_R)[:-1] // item
        at = np.cumsum(width) - width - cumulative(exact_R)[peer] + at_R[peer]
        return Packed(bytes_R, width, self.start_V[taken], at, at_R + exact_R)


def places_of(received: Received, cell_PS: Ints, start_PS: Ints, width_S: Ints) -> Places:
    """Of what an owner was asked for: the cell of each sender and stream, -1 for none, and where its vectors begin."""
    cells = received.cells
    p_I, s_I = np.nonzero(cell_PS >= 0)
    cell_I = cell_PS[p_I, s_I]
    bags_I, width_I = cells[cell_I, 3], width_S[s_I]
    width_V = np.repeat(width_I, bags_I)
    inside = ranges(np.zeros_like(bags_I), bags_I)
    return Places(
        np.repeat(received.senders[p_I], bags_I),
        width_V,
        np.repeat(start_PS[p_I, s_I], bags_I) + inside * width_V,
        ranges(cumulative(cells[:, 3])[cell_I], bags_I),
    )


@dataclass(frozen=True)
class Packed:
    """Some vectors: their messages' sizes, and where they are in the values or gradients, and in the messages.

    ``end_R`` is the first element behind each message's vectors.
    """

    bytes_R: Ints
    width: Ints
    start: Ints
    at: Ints
    end_R: Ints

    def pack(self, values: Floats, message: Floats) -> None:
        """Values or gradients -> messages."""
        for width, mine in self._by_width():
            kernels.copy_vectors(values, message, width, source_start=self.start[mine], target_start=self.at[mine])

    def unpack(self, message: Floats, values: Floats) -> None:
        """Messages -> values or gradients."""
        for width, mine in self._by_width():
            kernels.copy_vectors(message, values, width, source_start=self.at[mine], target_start=self.start[mine])

    def _by_width(self) -> list[tuple[int, Ints]]:
        return [(width, np.flatnonzero(self.width == width)) for width in np.unique(self.width).tolist()]


@dataclass(frozen=True)
class _Step:
    """Of a step that was shown: its ids by family, grouped, where these are in the request, and what tells its bags."""

    ids_of: dict[int, kernels.Grouping]
    at_of: dict[int, Ints]
    offsets: Ints
    whole: Ints

    def met(self, other: "_Step | None") -> Bools:
        """By bag: whether the other step asks for some of its ids; those that cross whole are all said to be."""
        met = np.zeros(int(self.offsets[-1]), bool)
        for family, mine in self.ids_of.items():
            if other is not None and family in other.ids_of:
                unique, theirs = np.asarray(mine.unique), np.asarray(other.ids_of[family].unique)
                place = np.minimum(np.searchsorted(theirs, unique), len(theirs) - 1)
                ends: Ints = np.asarray(mine.segments)
                met[self.at_of[family][np.asarray(mine.order)]] = np.repeat(
                    theirs[place] == unique, ends[1:] - ends[:-1]
                )
        found: Bools = np.diff(np.append(0, np.cumsum(met))[self.offsets]) > 0
        found[self.whole] = True
        return found


class Marks:
    """Which bags of each training step are early at one owner, and urgent; steps are shown to it in their order.

    Parameters
    ----------
    family_E : int64 [E]
        Family of each entry of the owner, by any number.
    whole_E : bool [E]
        Entries whose bags cross together: their values late, their gradients first.
    """

    def __init__(self, family_E: Ints, whole_E: Bools) -> None:
        self._family_E, self._whole_E = family_E, whole_E
        self._before: _Step | None = None

    def of(self, received: Received, entry_N: Ints) -> tuple[Bools, Bools]:
        """Which bags of this step are early, and which of the one shown before are urgent.

        ``entry_N``: the entry of each cell.
        """
        cells, before = received.cells, self._before
        first_K, first_V = cumulative(cells[:, 2])[:-1], cumulative(cells[:, 3])[:-1]
        ids_of, at_of = dict[int, kernels.Grouping](), dict[int, Ints]()
        for family in np.unique(self._family_E[entry_N]).tolist():
            mine = np.flatnonzero(self._family_E[entry_N] == family)
            at = ranges(first_K[mine], cells[mine, 2])
            if len(at):
                at_of[family], ids_of[family] = at, kernels.group(received.ids[at])
        whole = np.flatnonzero(self._whole_E[entry_N])
        now = _Step(ids_of, at_of, received.offsets.copy(), ranges(first_V[whole], cells[whole, 3]))
        self._before = now
        return ~now.met(before), np.zeros(0, bool) if before is None else before.met(now)
