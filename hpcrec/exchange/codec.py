"""Codecs: how values and gradients are written on the wire.

``fp32``   as they are (in float64 runs as float64)
``bf16``   the upper half of a float32, rounded to nearest: at most 2^-8 of each value away from it, where that lies
           between 2^-126 and 2^127 (below, at most 2^-134; above, what rounds up is infinite); 2 bytes
``fp16``   in blocks of 128, divided by the largest magnitude of the block, rounded to nearest: at most 2^-12 + 2^-23 of
           that magnitude, and 2^-149, away; 2 bytes, and 4 a block

A message is a run of elements for one rank; it is written as one, whatever vectors are in it, and read back before
anything is computed of it. All messages are, those that cross nothing too, so that what is read does not depend on who
sends it to whom; but where messages go by levels (``comm.levels``) those inside a host cross as they are, for there
nothing is saved. Bytes of a message of n elements, padded to a multiple of 16: ``kernels.half_bytes`` of it, rounded up
to 64. What is not written element by element is ``thresholds``. Knows messages; does not know what they are for.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import clear_padding, padded_bytes
from hpcrec.exchange.bags import cumulative
from hpcrec.exchange.work import Spans
from hpcrec.types import Floats, Ints

_Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Kept:
    """Positions in messages, of elements that crossed: by the rank they were sent to, and by that they came from."""

    sent: dict[int, Ints]
    came: dict[int, Ints]


@dataclass(frozen=True)
class Bundles:
    """Messages to, or from, all ranks, those of one rank one after the other.

    Attributes
    ----------
    bytes_N : int64 [N]
        Size of each in memory.
    rank_N : int64 [N]
        Rank of each, rising.
    """

    bytes_N: Ints
    rank_N: Ints

    def by_rank(self, bytes_N: Ints, size: int) -> Ints:
        """Bytes of all messages of each of so many ranks, where those of each are these: int64 [R]."""
        ends = cumulative(bytes_N)[np.searchsorted(self.rank_N, np.arange(size + 1))]
        return np.diff(ends)


class Codec(Protocol):
    """How floats cross between some ranks. Sizes are those of the floats in memory, whole units (``comm``)."""

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "values") -> Floats:
        """Where the messages of the next phase, ``tag``, are written, and room behind them; see ``Collectives``."""

    def values(
        self, sent: Floats, sent_R: Ints, due_R: Ints, spans: Spans | None, *, train: bool
    ) -> tuple[Floats, Kept | None]:
        """Phase ``values``: what came from each rank, and what ``gradients`` has to know of it.

        ``spans`` says where streams are, at a holder; ``train``: whether gradients will come back.
        """

    def gradients(self, sent: Floats, sent_R: Ints, due_R: Ints, behind_bytes: int, kept: Kept | None) -> Floats:
        """Phase ``gradients``: what came, and room behind it."""


class Elementwise:
    """What all codecs do that write every element, whatever it is of."""

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "values") -> Floats:
        """See ``Codec``."""
        raise NotImplementedError

    def alltoallv(self, sent: Floats, sent_R: Ints, due_R: Ints, tag: str, behind_bytes: int = 0) -> Floats:
        """What came from each rank, and room behind it; see ``Collectives``."""
        raise NotImplementedError

    def pass_on(self, sent: Floats, out: "Bundles", due: "Bundles", tag: str) -> Floats:
        """The same of several messages to and from a rank, each of which is written as one: see ``way``."""
        raise NotImplementedError

    def values(
        self,
        sent: Floats,
        sent_R: Ints,
        due_R: Ints,
        spans: Spans | None,  # noqa: ARG002
        *,
        train: bool,  # noqa: ARG002
    ) -> tuple[Floats, Kept | None]:
        """See ``Codec``."""
        return self.alltoallv(sent, sent_R, due_R, "values"), None

    def gradients(self, sent: Floats, sent_R: Ints, due_R: Ints, behind_bytes: int, kept: Kept | None) -> Floats:  # noqa: ARG002
        """See ``Codec``."""
        return self.alltoallv(sent, sent_R, due_R, "gradients", behind_bytes)


class Plain(Elementwise):
    """``fp32``.

    Parameters
    ----------
    collectives : Collectives
    dtype : numpy float type
    """

    def __init__(self, collectives: Collectives, dtype: np.dtype[Any]) -> None:
        self._collectives = collectives
        self._dtype = np.dtype(dtype)

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "values") -> Floats:  # noqa: ARG002
        """See ``Codec``."""
        return self._collectives.message(bytes_R, self._dtype, behind_bytes)

    def alltoallv(self, sent: Floats, sent_R: Ints, due_R: Ints, tag: str, behind_bytes: int = 0) -> Floats:
        """See ``Codec``."""
        return self._collectives.alltoallv(sent, sent_R, due_R, tag, behind_bytes)

    def pass_on(self, sent: Floats, out: Bundles, due: Bundles, tag: str) -> Floats:
        """See ``Elementwise``."""
        size = self._collectives.size
        return self._collectives.alltoallv(
            sent, out.by_rank(out.bytes_N, size), due.by_rank(due.bytes_N, size), tag
        )  # fmt: skip


class Halves(Elementwise):
    """``bf16`` and ``fp16``.

    Parameters
    ----------
    collectives : Collectives
    kind : str
    uncoded : collection of int
        World ranks to and from whom messages cross as they are.
    """

    def __init__(self, collectives: Collectives, kind: str, uncoded: Collection[int] = ()) -> None:
        self._collectives = collectives
        self._kind = kind
        self._uncoded_R = np.isin(collectives.ranks, list(uncoded))

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "values") -> Floats:  # noqa: ARG002
        """See ``Codec``. Not shared memory: what is written there is what it makes of this."""
        room = np.empty(int(bytes_R.sum()) + behind_bytes, np.uint8)
        clear_padding(room, bytes_R)
        return room.view(np.float32)

    def alltoallv(self, sent: Floats, sent_R: Ints, due_R: Ints, tag: str, behind_bytes: int = 0) -> Floats:
        """See ``Codec``."""
        uncoded_R = self._uncoded_R
        wire_R, wire_due_R = self._wire_bytes(sent_R, uncoded_R), self._wire_bytes(due_R, uncoded_R)
        message = self._written(sent, sent_R, wire_R, uncoded_R)
        came = self._collectives.alltoallv(message, wire_R, wire_due_R, tag)
        return self._read(came, due_R, wire_due_R, uncoded_R, behind_bytes)

    def pass_on(self, sent: Floats, out: Bundles, due: Bundles, tag: str) -> Floats:
        """See ``Elementwise``. What was read is rounded already: to write it again changes no bit."""
        uncoded_N, uncoded_due_N, size = (
            self._uncoded_R[out.rank_N],
            self._uncoded_R[due.rank_N],
            self._collectives.size,
        )
        wire_N, wire_due_N = self._wire_bytes(out.bytes_N, uncoded_N), self._wire_bytes(due.bytes_N, uncoded_due_N)
        message = self._written(sent, out.bytes_N, wire_N, uncoded_N)
        came = self._collectives.alltoallv(message, out.by_rank(wire_N, size), due.by_rank(wire_due_N, size), tag)
        return self._read(came, due.bytes_N, wire_due_N, uncoded_due_N, 0)

    def _written(self, sent: Floats, sent_N: Ints, wire_N: Ints, uncoded_N: _Marks) -> np.ndarray:
        message = self._collectives.message(wire_N, np.uint8)
        for n, floats, written in pieces_of(sent_N, wire_N):
            values = sent[floats]
            if uncoded_N[n]:
                message[written] = values.view(np.uint8)
            else:
                kernels.write_halves(values, message[written][: self._exact(len(values))], self._kind)
        return message

    def _read(self, came: np.ndarray, due_N: Ints, wire_due_N: Ints, uncoded_N: _Marks, behind_bytes: int) -> Floats:
        received = np.empty((int(due_N.sum()) + behind_bytes) // _FLOAT_BYTES, np.float32)
        for n, floats, written in pieces_of(due_N, wire_due_N):
            values = received[floats]
            if uncoded_N[n]:
                values.view(np.uint8)[:] = came[written]
            else:
                kernels.read_halves(came[written][: self._exact(len(values))], values, self._kind)
        return received

    def _exact(self, n: int) -> int:
        return kernels.half_bytes(n, self._kind)

    def _wire_bytes(self, bytes_N: Ints, uncoded_N: _Marks) -> Ints:
        exact = [self._exact(n // _FLOAT_BYTES) for n in bytes_N.tolist()]
        return np.where(uncoded_N, bytes_N, padded_bytes(np.array(exact, np.int64)))


def make_codec(
    name: str, collectives: Collectives, dtype: np.dtype[Any], uncoded: Collection[int] = ()
) -> Plain | Halves:
    """The codec of that name, ``fp32``, ``bf16`` or ``fp16``; all but ``fp32`` are for float32 alone.

    ``uncoded``: world ranks to and from whom messages cross as they are.
    """
    return Plain(collectives, dtype) if name == "fp32" else Halves(collectives, name, uncoded)


def wire_item_bytes(name: str, dtype: np.dtype[Any]) -> float:
    """Bytes that an element takes on the wire, in messages of many."""
    block = kernels.HALF_BLOCK
    return dtype.itemsize if name == "fp32" else kernels.half_bytes(block, name) / block


_FLOAT_BYTES = 4


def pieces_of(bytes_N: Ints, wire_N: Ints) -> list[tuple[int, slice, slice]]:
    """Of each message that is not empty: its number, its floats, and its bytes on the wire."""
    floats, written = (cumulative(bytes_N) // _FLOAT_BYTES).tolist(), cumulative(wire_N).tolist()
    places = enumerate(zip(floats, floats[1:], written, written[1:], strict=False))
    return [(n, slice(a, b), slice(c, d)) for n, (a, b, c, d) in places if b > a]
