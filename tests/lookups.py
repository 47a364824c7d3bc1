"""Looks into an HDF5 file that fail as h5py lets them: one that asks raises, one that only looks finds nothing."""

import errno
from collections.abc import Callable
from typing import Any

import h5py
import pytest


class Lookups:
    """Counts looks at objects and attributes by their names; from the n-th on (from 1), so many of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n: int, times: float) -> None:
        self.count, self._n, self._times = 0, n, times
        for kind in (h5py.Group, h5py.AttributeManager):
            monkeypatch.setattr(kind, "__getitem__", self._getting(kind.__getitem__))
            monkeypatch.setattr(kind, "__contains__", self._looking(kind.__contains__))

    def _fails(self) -> bool:
        self.count += 1
        return self._n <= self.count < self._n + self._times

    def _getting(self, get: Callable[..., Any]) -> Callable[..., Any]:
        def getting(group: Any, name: str) -> Any:
            if self._fails():
                raise KeyError(f"Unable to open object (file read failed: errno = {errno.EIO}, error = '...')")
            return get(group, name)

        return getting

    def _looking(self, look: Callable[..., bool]) -> Callable[..., bool]:
        return lambda group, name: not self._fails() and look(group, name)
