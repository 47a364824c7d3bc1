"""Messages, and what says where things are in them, in the memory of the device that has the rows, or the model.

Messages cross between ranks in the host's memory. Each that a device's kernels write or read is copied once: when it is
all there, or before any of it is read; vectors and gradients that stay behind messages are in the device's memory
alone. Arrays of positions are copied as ids are asked for or arrive, ahead of the step. Without a device nothing is
copied. Knows arrays; knows no rows and no MPI.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked
from hpcrec.exchange.moves import Move, PoolMove
from hpcrec.types import Floats

Array = Any  # of the host, or of a device


@contextmanager
def written(device: kernels.Device | None, message: Floats, behind: int) -> Iterator[Floats]:
    """What to write a message and ``behind`` more elements into; the message is complete at the end."""
    if device is None:
        yield message
        return
    if isinstance(message, kernels.DeviceArray):  # it crosses from there
        with device.together():
            yield message
        return
    there = device.zeros(message.size, message.dtype)  # padding crosses too
    with device.together():
        yield there
    n = message.size - behind
    there[:n].copy_to(message[:n])


@contextmanager
def brought(device: kernels.Device | None, message: Floats, n: int, behind: int) -> Iterator[Floats]:
    """What to read a message of ``n`` elements from, with room for ``behind`` more."""
    if device is None:
        yield message
        return
    if isinstance(message, kernels.DeviceArray):
        with device.together():
            yield message
        return
    there = device.empty(n + behind, message.dtype)
    there[:n] = message[:n]
    with device.together():
        yield there


class Mover:
    """Brings arrays to a device, each once, however often it is used; without one they stay where they are."""

    def __init__(self, device: kernels.Device | None) -> None:
        self._device = device
        self._there: dict[int, tuple[Array, Array]] = {}  # by identity, which holds as long as the array does

    def __call__(self, array: Array) -> Array:
        """The array there; None is None."""
        if self._device is None or not isinstance(array, np.ndarray):
            return array
        if id(array) not in self._there:
            self._there[id(array)] = array, self._device.array(array)
        return self._there[id(array)][1]

    def asked(self, asked: Asked) -> Asked:
        """Of one block."""
        if self._device is None:
            return asked
        maxima = asked.maxima and replace(asked.maxima, **self._fields(asked.maxima))
        return replace(asked, **self._fields(asked), maxima=maxima)

    def move(self, move: Move) -> Move:
        """One of a dense rank's; those that pool rows themselves compute with positions, which stay on the host."""
        if self._device is None or isinstance(move, PoolMove):
            return move
        return replace(move, **self._fields(move))

    def _fields(self, of: Any) -> dict[str, Array]:
        found = {field.name: getattr(of, field.name) for field in fields(of)}
        return {name: self(array) for name, array in found.items() if isinstance(array, np.ndarray)}
