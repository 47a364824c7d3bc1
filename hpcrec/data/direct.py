"""Reads columns of an HDF5 file past the HDF5 library: where their chunks lie is asked once, then bytes are read there.

For columns that need no more than a copy or int32 -> int64, which is what the writer makes by default. Decides which
those are; raises nothing of its own: what it cannot read is for HDF5 to read, or to say why not.
"""

import sys
from typing import Any, Self

import h5py
import numpy as np
from h5py import h5d, h5i, h5t, h5z
from numpy.typing import NDArray

from hpcrec import kernels
from hpcrec.types import Ints

# Types on disk that can be read so, and what they are read as.
_TYPES = (
    (h5t.STD_I32LE, np.int32, np.int64),
    (h5t.STD_I64LE, np.int64, np.int64),
    (h5t.IEEE_F32LE, np.float32, np.float32),
)
_CHECKSUM_BYTES = 4


def stored_plainly(data: h5py.Dataset) -> bool:
    """Whether any rows of a dataset can be had for the cost of reading them, by its type and layout."""
    return sys.byteorder == "little" and _types(data) is not None and _checksums(data) is not None


class Chunks:
    """Where the numbers of a dataset lie in its file, while that is open.

    Made by `of`. A chunk's checksum is compared when it is first read here, and not again.
    """

    def __init__(
        self,
        descriptor: int,
        chunk_at: Ints,
        rows: int,
        row_items: int,
        types: tuple[np.dtype, np.dtype],
        checksums: bool,
    ) -> None:
        self._descriptor, self._chunk_at, self._row_items = descriptor, chunk_at, row_items
        self._chunk_items = rows * row_items
        self._stored, self._read_as = types
        self._checked = np.zeros(len(chunk_at), np.uint8) if checksums else None

    @classmethod
    def of(cls, file: h5py.File, data: h5py.Dataset) -> Self | None:
        """None for a dataset that only HDF5 can read."""
        if not stored_plainly(data) or not _in_file(file, data):
            return None
        types, checksums = _types(data), bool(_checksums(data))
        assert types is not None
        rows, row_items = data.chunks[0], int(np.prod(data.shape[1:]))
        chunk_at = np.full(-(-len(data) // rows), -1, np.int64)
        n_bytes = rows * row_items * types[0].itemsize + (_CHECKSUM_BYTES if checksums else 0)
        found: list[Any] = []
        data.id.chunk_iter(found.append)
        for chunk in found:
            number, inside = divmod(chunk.chunk_offset[0], rows)
            if inside or number >= len(chunk_at) or chunk.filter_mask or chunk.size != n_bytes or not chunk.byte_offset:
                return None
            chunk_at[number] = chunk.byte_offset
        if (chunk_at < 0).any():  # never written: HDF5 knows what is read there
            return None
        return cls(file.id.get_vfd_handle(), chunk_at, rows, row_items, types, checksums)

    def read(self, start: int, out: NDArray[Any]) -> bool:
        """Rows from `start` on into `out`; False where that is for HDF5 to do."""
        if out.dtype != self._read_as or not out.flags.c_contiguous:
            return False
        first = start * self._row_items
        return kernels.read_chunks(
            self._descriptor, self._chunk_at, self._chunk_items, self._checked, self._stored, first, out
        )


def _types(data: h5py.Dataset) -> tuple[np.dtype, np.dtype] | None:
    """Its type on disk and the one that it is read as; None where it needs another conversion."""
    found = data.id.get_type()
    return next(((np.dtype(stored), np.dtype(to)) for kind, stored, to in _TYPES if found.equal(kind)), None)


def _checksums(data: h5py.Dataset) -> bool | None:
    """Whether chunks, each of whole rows, have a Fletcher-32; None where they have other filters, or other shapes."""
    made = data.id.get_create_plist()
    if made.get_layout() != h5d.CHUNKED or data.chunks[1:] != data.shape[1:] or 0 in data.shape[1:]:
        return None
    filters = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
    return {(): False, (h5z.FILTER_FLETCHER32,): True}.get(tuple(filters))


def _in_file(file: h5py.File, data: h5py.Dataset) -> bool:
    """Whether its chunks have addresses that are bytes of `file`: no link leads elsewhere, nothing stands before it."""
    if file.driver != "sec2" or file.userblock_size:
        return False
    return h5i.get_file_id(data.id).get_vfd_handle() == file.id.get_vfd_handle()
