"""Compiles and calls the loops of ``_limits.cpp``: what the memory allows a kernel that touches given rows.

They share the OpenMP runtime, and with it the threads, of the native kernels. Knows nothing of what kernels compute.
"""

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from hpcrec.kernels import native

DISTANCES = (8, 16, 32, 64)  # rows asked for ahead; the fastest counts
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-fopenmp")


class Limits:
    """The loops, on a number of threads."""

    def __init__(self, threads: int) -> None:
        native.module()  # loads the OpenMP runtime, which the library is linked against as little as the kernels are
        self.threads = threads
        source = Path(__file__).with_name("_limits.cpp")
        compiler = os.environ.get("CXX", "c++")
        with tempfile.TemporaryDirectory() as folder:
            compiled, library = Path(folder) / "limits.o", Path(folder) / "limits.so"
            subprocess.run([compiler, *FLAGS, "-c", str(source), "-o", str(compiled)], check=True)
            subprocess.run([compiler, "-shared", str(compiled), "-o", str(library)], check=True)
            self._library = ctypes.CDLL(str(library))
        self._library.read_rows.restype = self._library.touch_rows.restype = ctypes.c_bool

    def read(self, rows: np.ndarray, index: np.ndarray, ahead: int) -> float:
        """Reads rows [N, D] in the order of ``index``; returns the sum of all their elements."""
        total = ctypes.c_float()
        known = self._library.read_rows(
            *_pointers(rows, index),
            *_sizes(index.size, rows[0].nbytes, ahead),
            self.threads,
            ctypes.byref(total),
        )
        assert known, f"no loop for rows of {rows[0].nbytes} bytes"
        return total.value

    def touch(self, rows: np.ndarray, state: np.ndarray, index: np.ndarray, ahead: int) -> None:
        """Reads and writes rows [N, D] and states [N] in the order of ``index``, which has each row once."""
        known = self._library.touch_rows(
            *_pointers(rows, state, index),
            *_sizes(index.size, rows[0].nbytes, ahead),
            self.threads,
            ctypes.c_float(1e-9),
        )
        assert known, f"no loop for rows of {rows[0].nbytes} bytes"

    def copy(self, source: np.ndarray, target: np.ndarray) -> None:
        """Copies an array of whole cache lines."""
        self._library.copy_bytes(*_pointers(source, target), ctypes.c_int64(source.nbytes), self.threads)


def _pointers(*arrays: np.ndarray) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(a.ctypes.data) for a in arrays]


def _sizes(*values: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(v) for v in values]
