"""Values and gradients that cross from and to devices' memory, by an MPI library that takes it: no copy on the host.

The sizes on the wire are those of ``codec``, and so are the bits. Ranks without a device take part with the host's
memory. Not through shared memory within hosts: there the library copies from GPU to GPU. Knows messages; does not know
what they are for.
"""

from contextlib import ExitStack
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import padded_bytes
from hpcrec.exchange.codec import Elementwise, pieces_of
from hpcrec.types import Floats, Ints


class Direct(Elementwise):
    """A ``Codec``.

    Parameters
    ----------
    collectives : Collectives
    kind : str
        ``fp32``, ``bf16`` or ``fp16``.
    dtype : numpy float type
    holder, model : Device or None
        Whose memory has this rank's rows, and its model's inputs; None: the host's.
    """

    def __init__(
        self,
        collectives: Collectives,
        kind: str,
        dtype: np.dtype[Any],
        holder: kernels.Device | None,
        model: kernels.Device | None,
    ) -> None:
        self._collectives, self._kind, self._dtype = collectives, kind, np.dtype(dtype)
        self._holder, self._model = holder, model

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "values") -> Floats:
        """See ``Codec``: where the values are made, or the gradients."""
        device = self._holder if tag == "values" else self._model
        return self._room(device, int(bytes_R.sum()) + behind_bytes, self._dtype)

    def alltoallv(self, sent: Floats, sent_R: Ints, due_R: Ints, tag: str, behind_bytes: int = 0) -> Floats:
        """See ``Elementwise``."""
        device = self._model if tag == "values" else self._holder
        received = self._room(device, int(due_R.sum()) + behind_bytes, self._dtype)
        if self._kind == "fp32":
            self._cross(sent, sent_R, received, due_R, tag)
            return received
        wire_R, wire_due_R = self._wire_bytes(sent_R), self._wire_bytes(due_R)
        wire = self._room(self._holder if tag == "values" else self._model, int(wire_R.sum()), np.uint8)
        came = self._room(device, int(wire_due_R.sum()), np.uint8)
        for _, floats, written in pieces_of(sent_R, wire_R):
            kernels.write_halves(sent[floats], wire[written][: self._exact(floats)], self._kind)
        self._cross(wire, wire_R, came, wire_due_R, tag)
        for _, floats, written in pieces_of(due_R, wire_due_R):
            kernels.read_halves(came[written][: self._exact(floats)], received[floats], self._kind)
        return received

    def _cross(self, sent: Any, sent_R: Ints, received: Any, due_R: Ints, tag: str) -> None:
        with ExitStack() as there:
            for array in (sent, received):
                if isinstance(array, kernels.DeviceArray):
                    array.device.wait()  # MPI knows no streams
                    there.enter_context(array.device.guard())
            self._collectives.alltoallv_between(_buffer(sent), sent_R, _buffer(received), due_R, tag)

    def _exact(self, floats: slice) -> int:
        return kernels.half_bytes(floats.stop - floats.start, self._kind)

    def _wire_bytes(self, bytes_R: Ints) -> Ints:
        item = self._dtype.itemsize
        exact = [kernels.half_bytes(n // item, self._kind) for n in bytes_R.tolist()]
        return padded_bytes(np.array(exact, np.int64))

    @staticmethod
    def _room(device: kernels.Device | None, n_bytes: int, dtype: Any) -> Any:
        """Zeros: what is between messages crosses too."""
        n = n_bytes // np.dtype(dtype).itemsize
        return np.zeros(n, dtype) if device is None else device.zeros(n, dtype)


def _buffer(array: Any) -> Any:
    """What MPI takes: torch's tensors say where they are."""
    return array.tensor if isinstance(array, kernels.DeviceArray) else array
