"""Reads columns of an HDF5 file past the HDF5 library: where their chunks lie is asked once, then bytes are read there.

For columns that need no more than a copy or int32 -> int64, which is what the writer makes by default. Decides which
those are; raises nothing of its own: what it does not read is for HDF5 to read, or to say why not.
"""

import sys
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5i, h5t, h5z
from numpy.typing import DTypeLike, NDArray

from hpcrec import kernels

# Types on disk that can be read so, and what they are read as.
_TYPES: tuple[tuple[Any, int, DTypeLike], ...] = (
    (h5t.STD_I32LE, 4, np.int64),
    (h5t.STD_I64LE, 8, np.int64),
    (h5t.IEEE_F32LE, 4, np.float32),
)
_CHECKSUM_BYTES = 4

# Of a column, as `kernels.read_chunks` wants them: its first chunk, chunks, numbers of a chunk, bytes of a number; and
# what it is read as, and numbers of a row.
_Place = tuple[tuple[int, int, int, int], np.dtype, int]


def stored_plainly(data: h5py.Dataset) -> bool:
    """Whether any rows of a dataset can be had for the cost of reading them, by its type and layout."""
    return sys.byteorder == "little" and _type(data) is not None and _checksums(data) is not None


def readable(file: h5py.File) -> bool:
    """Whether HDF5's part of a file is all of it, and its bytes are those of a descriptor."""
    return file.driver == "sec2" and file.userblock_size == 0


class Chunks:
    """Where the chunks of a file's columns lie, while it is open; to be forgotten when it is closed.

    A chunk's checksum is compared when it is first read here, and not again.
    """

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._places: dict[str, _Place | None] = {}
        self._at, self._checked = np.empty(0, np.int64), np.empty(0, np.uint8)
        self._readable = readable(file)

    def read(
        self, names: Sequence[str], starts: Sequence[int], rows: Sequence[int], limits: Sequence[int], out: NDArray[Any]
    ) -> bool:
        """Rows of columns into `out`, one column after the other.

        Parameters
        ----------
        names : sequence of str
            Paths of datasets.
        starts, rows : sequence of int
            The first row of each, and how many.
        limits : sequence of int
            What the numbers of each are below, from 0 on; 0 where they may be any.
        out : array

        Returns
        -------
        bool
            False where one of them cannot be read, or has other numbers; `out` then holds anything.
        """
        wanted = []
        for name, start, n, limit in zip(names, starts, rows, limits, strict=True):
            place = self._places[name] if name in self._places else self._find(name)
            if place is None or place[1] != out.dtype:
                return False
            wanted.append((*place[0], start * place[2], n * place[2], limit))
        if not out.flags.c_contiguous:
            return False
        table = np.array(wanted, np.int64).reshape(-1, 7)
        return kernels.read_chunks(self._file.id.get_vfd_handle(), self._at, self._checked, table, out) == len(names)

    def _find(self, name: str) -> _Place | None:
        """Where a column's chunks are; None for one that only HDF5 can read."""
        place = self._places[name] = self._ask(self._file[name]) if self._readable else None
        return place

    def _ask(self, data: h5py.Dataset) -> _Place | None:
        kind, checksums = _type(data), _checksums(data)
        here = h5i.get_file_id(data.id).get_vfd_handle() == self._file.id.get_vfd_handle()  # a link may lead elsewhere
        if kind is None or checksums is None or not here:
            return None
        item_bytes, read_as = kind
        rows, row_items = data.chunks[0], int(np.prod(data.shape[1:]))
        at = np.full(-(-len(data) // rows), -1, np.int64)
        n_bytes = rows * row_items * item_bytes + checksums * _CHECKSUM_BYTES
        found: list[Any] = []
        data.id.chunk_iter(found.append)
        for chunk in found:
            number, inside = divmod(chunk.chunk_offset[0], rows)
            if inside or number >= len(at) or chunk.filter_mask or chunk.size != n_bytes or not chunk.byte_offset:
                return None
            at[number] = chunk.byte_offset
        if (at < 0).any():  # never written: HDF5 knows what is read there
            return None
        first = len(self._at)
        self._at = np.concatenate([self._at, at])
        self._checked = np.concatenate([self._checked, np.full(len(at), not checksums, np.uint8)])
        return (first, len(at), rows * row_items, item_bytes), read_as, row_items


def _type(data: h5py.Dataset) -> tuple[int, np.dtype] | None:
    """Bytes of its numbers on disk and what they are read as; None where they need another conversion."""
    found = data.id.get_type()
    return next(((n_bytes, np.dtype(read_as)) for kind, n_bytes, read_as in _TYPES if found.equal(kind)), None)


def _checksums(data: h5py.Dataset) -> bool | None:
    """Whether chunks, each of whole rows, have a Fletcher-32; None where they have other filters, or other shapes."""
    made = data.id.get_create_plist()
    if made.get_layout() != h5d.CHUNKED or data.chunks[1:] != data.shape[1:] or 0 in data.shape[1:]:
        return None
    filters = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
    return {(): False, (h5z.FILTER_FLETCHER32,): True}.get(tuple(filters))
