"""Copies between the host and a device through pinned memory, two buffers in turn.

A device's copy engine reads and writes pinned memory alone; what lies elsewhere, as messages do, is copied to or from
such memory first. With two buffers the processor fills (or empties) one while the engine is at the other. Buffers are
the calling thread's, so that the thread that runs ahead does not wait for the step. The processor's copies are by as
many threads as torch has, whatever ``kernels.set_threads`` says. Knows bytes.
"""

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

BUFFER_BYTES = 8 << 20  # at 10 GB/s of a processor's copy 0.8 ms, of which starting the engine takes some 1 %
SMALL_BYTES = 64 << 10  # up to here the driver itself queues a copy without waiting for the device


class Staging:
    """Copies of one device.

    Parameters
    ----------
    place : str
        Where torch has its memory; ``cpu`` for the emulator, which takes the same ways.
    buffer_bytes : int
    """

    def __init__(self, place: str, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._pins = place != "cpu"
        self._bytes = buffer_bytes
        self._small = min(SMALL_BYTES, buffer_bytes)
        self._local = threading.local()

    def to_device(self, host: NDArray[Any], there: "Tensor") -> None:
        """Queues the copy of a contiguous array to one of as many bytes; ``host`` may change once it returns."""
        import torch

        if not host.nbytes:
            return
        source, target = host.reshape(-1).view(np.uint8), there.reshape(-1).view(torch.uint8)
        if host.nbytes <= self._small:
            given = source if source.flags.writeable else source.copy()
            target.copy_(torch.from_numpy(given), non_blocking=True)  # read before it returns: see SMALL_BYTES
            return
        for turn, start in enumerate(range(0, len(source), self._bytes)):
            part = source[start : start + self._bytes]
            buffer = self._buffer(turn)
            buffer.wait()
            buffer.fill(part)
            target[start : start + len(part)].copy_(buffer.tensor[: len(part)], non_blocking=True)
            buffer.used()

    def to_host(self, there: "Tensor", host: NDArray[Any]) -> None:
        """Copies an array of the device to a contiguous one of as many bytes; waits for what is queued before it.

        Raises
        ------
        ValueError
            It cannot be written.
        """
        import torch

        if not host.nbytes:
            return
        if not host.flags.writeable:
            raise ValueError("the array of the host that a device's array is copied to is read-only")
        source, target = there.reshape(-1).view(torch.uint8), host.reshape(-1).view(np.uint8)
        if host.nbytes <= self._small:
            target[:] = source.cpu().numpy()
            return
        due: list[tuple[_Buffer, NDArray[np.uint8]]] = []
        for turn, start in enumerate(range(0, len(target), self._bytes)):
            part = target[start : start + self._bytes]
            if len(due) == 2:
                _arrive(*due.pop(0))
            buffer = self._buffer(turn)
            buffer.wait()
            buffer.tensor[: len(part)].copy_(source[start : start + len(part)], non_blocking=True)
            buffer.used()
            due.append((buffer, part))
        for arriving in due:
            _arrive(*arriving)

    def _buffer(self, turn: int) -> "_Buffer":
        if not hasattr(self._local, "buffers"):
            self._local.buffers = [_Buffer(self._bytes, pins=self._pins) for _ in range(2)]
        return self._local.buffers[turn % 2]


class _Buffer:
    """Pinned memory, and the copy that was last queued to or from it."""

    def __init__(self, n_bytes: int, *, pins: bool) -> None:
        import torch

        self.tensor = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=pins)
        self.bytes: NDArray[np.uint8] = self.tensor.numpy()
        self._done = torch.cuda.Event() if pins else None

    def fill(self, part: NDArray[np.uint8]) -> None:
        """Takes a copy, with torch's threads: one alone fills no bus."""
        import torch

        if part.flags.writeable:
            self.tensor[: len(part)].copy_(torch.from_numpy(part))
        else:  # torch takes no such array
            np.copyto(self.bytes[: len(part)], part)

    def empty(self, part: NDArray[np.uint8]) -> None:
        """Gives what it has, likewise."""
        import torch

        torch.from_numpy(part).copy_(self.tensor[: len(part)])

    def used(self) -> None:
        if self._done is not None:
            self._done.record()

    def wait(self) -> None:
        if self._done is not None:
            self._done.synchronize()  # returns at once where nothing was recorded yet


def _arrive(buffer: _Buffer, part: NDArray[np.uint8]) -> None:
    buffer.wait()
    buffer.empty(part)
