"""Codec ``dct``: of values only the chosen elements cross, and gradients of just those come back [DCT].

Of pooled vectors ``masks`` chooses the elements of large magnitude; they are sent with their positions, the rest is
read as zeros. Gradients come back for the elements that were sent, without positions; the others get none. Nothing is
left over for the next step: a sample's activations have none.

::

    holder -> dense   int64 [4] (tag ``control``): how many elements, how their positions are written, their bytes
                      positions, in the message's floats: a mask or packed (``kernels.positions_bytes``)
                      values, as ``codec`` writes them
    dense -> holder   gradients of the same elements, written alike

Where messages go by levels (``comm.levels``) those inside a host have all elements, as they are.
Knows messages and where streams are in them; does not know what they are for.
"""

import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import padded_bytes
from hpcrec.exchange.codec import Halves, Kept, wire_item_bytes
from hpcrec.exchange.masks import Masks, Thresholding
from hpcrec.exchange.work import Spans
from hpcrec.types import Floats, Ints

_ITEM = 4
_WIDEST_GAP = 5.4  # of a block of 128 positions, in mean gaps: the bits that each of them is packed in


def thresholded_bytes(how: Thresholding, width: int, kind: str) -> tuple[float, float]:
    """Bytes of an element of vectors of that width that are written as ``kind``: there, and of gradients back.

    With positions as ``kernels.positions_bytes`` writes them, where they lie at random.
    """
    density = how.density_of(width)
    value = density * wire_item_bytes(kind, np.dtype(np.float32))
    positions = min(1.0, density * math.log2(_WIDEST_GAP / density)) / 8 if density < 1 else 0.0
    return value + positions, value


class Thresholded:
    """The codec of one rank.

    Parameters
    ----------
    collectives : Collectives
    masks : Masks or None
        Of a holder; None elsewhere.
    kind : str
        How values are written: ``fp32``, ``bf16`` or ``fp16``.
    how : Thresholding
        Says whether evaluations are thresholded too; else all their values cross, as ``kind``.
    uncoded : collection of int
        World ranks to and from whom all elements cross, as they are.
    """

    def __init__(
        self,
        collectives: Collectives,
        masks: Masks | None,
        kind: str,
        how: Thresholding,
        uncoded: Collection[int] = (),
    ) -> None:
        self._collectives = collectives
        self._all = Halves(collectives, kind, uncoded)
        self._uncoded, self._uncoded_R = uncoded, np.isin(collectives.ranks, list(uncoded))
        self._kind = kind
        self._masks = masks
        self._how = how

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "values") -> Floats:  # noqa: ARG002
        """See ``Codec``."""
        return self._all.message(bytes_R, behind_bytes)

    def values(
        self, sent: Floats, sent_R: Ints, due_R: Ints, spans: Spans | None, *, train: bool
    ) -> tuple[Floats, Kept | None]:
        """See ``Codec``."""
        if not train and not self._how.evaluates:
            return self._all.alltoallv(sent, sent_R, due_R, "values"), None
        size = self._collectives.size
        picked: dict[int, tuple[Ints, Floats]] = {}
        if self._masks is not None and spans is not None:
            cut = spans.without(self._uncoded)
            found = self._masks.picked(sent, cut, train=train)
            picked = dict(zip(cut.ranks_P.tolist(), found, strict=True))
        control_RM = np.zeros((size, 4), np.int64)
        for rank, (positions, _) in picked.items():
            n_bytes, coding = kernels.positions_bytes(positions, int(sent_R[rank]) // _ITEM)
            control_RM[rank, :3] = len(positions), coding, n_bytes
        heard_RM = self._collectives.alltoall(control_RM, "control")
        wire_R, wire_due_R = self._bytes(control_RM, sent_R), self._bytes(heard_RM, due_R)
        message = self._collectives.message(wire_R, np.uint8)
        self._copy_uncoded(sent, sent_R, message, wire_R)
        for rank, at in _begins(wire_R, picked):
            positions, chosen = picked[rank]
            _, coding, n_bytes, _ = control_RM[rank].tolist()
            kernels.write_positions(positions, int(sent_R[rank]) // _ITEM, coding, message[at : at + n_bytes])
            self._write(chosen, message, at + n_bytes)
        came = self._collectives.alltoallv(message, wire_R, wire_due_R, "values")
        received = np.empty(int(due_R.sum()) // _ITEM, np.float32)
        kept = Kept({rank: positions for rank, (positions, _) in picked.items()}, {})
        self._copy_uncoded(came, wire_due_R, received, due_R)
        floats_R = (np.cumsum(due_R) - due_R) // _ITEM
        for rank, at in _begins(wire_due_R, self._cut(np.flatnonzero(due_R).tolist())):
            k, coding, n_bytes, _ = heard_RM[rank].tolist()
            n, first = int(due_R[rank]) // _ITEM, int(floats_R[rank])
            positions = kernels.read_positions(came[at : at + n_bytes], k, n, coding)
            kernels.expand(received[first : first + n], positions, self._read(came, at + n_bytes, k))
            kept.came[rank] = positions
        return received, kept

    def gradients(self, sent: Floats, sent_R: Ints, due_R: Ints, behind_bytes: int, kept: Kept | None) -> Floats:
        """See ``Codec``."""
        assert kept is not None, "gradients of values that were not thresholded"
        wire_R, wire_due_R = self._counted(kept.came, sent_R), self._counted(kept.sent, due_R)
        message = self._collectives.message(wire_R, np.uint8)
        self._copy_uncoded(sent, sent_R, message, wire_R)
        floats_R = (np.cumsum(sent_R) - sent_R) // _ITEM
        for rank, at in _begins(wire_R, self._cut(kept.came)):
            first = int(floats_R[rank])
            of_rank = sent[first : first + int(sent_R[rank]) // _ITEM]
            self._write(kernels.gather(of_rank, kept.came[rank]), message, at)
        came = self._collectives.alltoallv(message, wire_R, wire_due_R, "gradients")
        received = np.empty((int(due_R.sum()) + behind_bytes) // _ITEM, np.float32)
        self._copy_uncoded(came, wire_due_R, received, due_R)
        floats_R = (np.cumsum(due_R) - due_R) // _ITEM
        for rank, at in _begins(wire_due_R, self._cut(np.flatnonzero(due_R).tolist())):
            first, positions = int(floats_R[rank]), kept.sent[rank]
            of_rank = received[first : first + int(due_R[rank]) // _ITEM]
            kernels.expand(of_rank, positions, self._read(came, at, len(positions)))
        return received

    def _bytes(self, control_RM: Ints, uncoded_bytes_R: Ints) -> Ints:
        """Of messages with positions and values; of those that no codec writes, these."""
        exact = [n_bytes + kernels.half_bytes(k, self._kind) for k, _, n_bytes, _ in control_RM.tolist()]
        return np.where(self._uncoded_R, uncoded_bytes_R, padded_bytes(np.array(exact, np.int64)))

    def _counted(self, positions: Mapping[int, Ints], uncoded_bytes_R: Ints) -> Ints:
        """Of messages with values alone; of those that no codec writes, these."""
        size = self._collectives.size
        exact = [kernels.half_bytes(len(positions.get(r, ())), self._kind) for r in range(size)]
        return np.where(self._uncoded_R, uncoded_bytes_R, padded_bytes(np.array(exact, np.int64)))

    def _cut(self, ranks: Iterable[int]) -> list[int]:
        """Those of them whose messages the codec writes."""
        return [rank for rank in ranks if not self._uncoded_R[rank]]

    def _copy_uncoded(self, sent: np.ndarray, sent_R: Ints, out: np.ndarray, out_R: Ints) -> None:
        """Messages that no codec writes, from where they are to where they are to be: floats, or bytes on the wire."""
        if not self._uncoded_R.any():
            return
        from_R, to_R = np.cumsum(sent_R) - sent_R, np.cumsum(out_R) - out_R
        sent_bytes, out_bytes = sent.view(np.uint8), out.view(np.uint8)
        for rank in np.flatnonzero(self._uncoded_R & (sent_R > 0)).tolist():
            n_bytes, start, to = int(sent_R[rank]), int(from_R[rank]), int(to_R[rank])
            out_bytes[to : to + n_bytes] = sent_bytes[start : start + n_bytes]

    def _write(self, values: Floats, message: np.ndarray, at: int) -> None:
        kernels.write_halves(values, message[at : at + kernels.half_bytes(len(values), self._kind)], self._kind)

    def _read(self, came: np.ndarray, at: int, k: int) -> Floats:
        values = np.empty(k, np.float32)
        kernels.read_halves(came[at : at + kernels.half_bytes(k, self._kind)], values, self._kind)
        return values


def _begins(wire_R: Ints, ranks: Iterable[int]) -> list[tuple[int, int]]:
    """Those ranks, in order, and where the message of each begins."""
    at_R = np.cumsum(wire_R) - wire_R
    return [(rank, int(at_R[rank])) for rank in sorted(ranks)]
