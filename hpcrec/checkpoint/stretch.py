"""Stretches of a checkpoint's parts, read one at a time; of a base's part, without what changed since. Knows files.

Values that lie one after the other are read past HDF5, which would keep Python's lock meanwhile.

Legend: ``U`` ids of a stretch.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.linked import Piece, Reader
from hpcrec.checkpoint.parts import TableBlock, check_block, is_dynamic, n_ids_in, read_hdf5
from hpcrec.data.direct import readable
from hpcrec.data.hdf5_lookup import items_in
from hpcrec.types import Ints

BLOCK_ROWS = 1 << 16  # rows read at once: bounds the memory beside the rows


@dataclass(frozen=True)
class Stretch:
    """Ids ``[start, stop)`` of a table's part; without those of the part ``newer``, where there is one.

    Where the part's rows are linked, it is a ``piece`` of them.
    """

    path: Path
    start: int
    stop: int
    newer: Path | None = None
    piece: Piece | None = None


class Newer:
    """Reads stretches; of the last part ``newer`` it remembers the ids."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._rising = np.zeros(0, np.int64)
        self.linked = Reader()

    def block(self, stretch: Stretch) -> TableBlock:
        """What a stretch holds.

        Raises
        ------
        CheckpointError
            The file is not as it should be.
        UnreadableError
            It cannot be read just now.
        """
        if stretch.piece is not None:
            return self.linked.block(stretch.piece)
        here = slice(stretch.start, stretch.stop)

        def read(file: h5py.File) -> TableBlock:
            states = {files.unquoted(name): _values(dataset, here) for name, dataset in items_in(file, "state")}
            columns = (int(file.attrs["column_start"]), int(file.attrs["column_stop"]))
            ids, rows = _values(file["ids"], here), _values(file["rows"], here)
            block = TableBlock(ids=ids, rows=rows, states=states, columns=columns)
            check_block(block, None if is_dynamic(file) else int(file.attrs["rows"]))
            return block

        block = read_hdf5(stretch.path, read)
        if stretch.newer is None:
            return block
        left = self._left(stretch.newer, block.ids)
        states = {name: values[left] for name, values in block.states.items()}
        return replace(block, ids=block.ids[left], rows=block.rows[left], states=states)

    def ids(self, stretch: Stretch) -> Ints:
        """The ids of ``block``, int64 [U]; raises as it does."""
        if stretch.piece is not None:
            return self.linked.ids(stretch.piece)
        ids = read_hdf5(stretch.path, lambda file: np.asarray(file["ids"][stretch.start : stretch.stop], np.int64))
        return ids if stretch.newer is None else ids[self._left(stretch.newer, ids)]

    def _left(self, newer: Path, ids: Ints) -> Ints:
        """Places of those that are not in the part ``newer``."""
        if self._path != newer:
            self._rising = np.sort(
                read_hdf5(newer, lambda file: file["ids"][:] if n_ids_in(file) else np.zeros(0, np.int64))
            )
            self._path = newer
        if not len(self._rising):
            return np.arange(len(ids))
        at = np.searchsorted(self._rising, ids).clip(max=len(self._rising) - 1)
        return np.flatnonzero(self._rising[at] != ids)


def _values(data: h5py.Dataset, here: slice) -> Any:
    at = data.id.get_offset()
    as_stored = data.id.get_type().equal(h5py.h5t.py_create(data.dtype))  # not bfloat16, say, which HDF5 converts
    if at is None or data.dtype.kind not in "if" or not as_stored or not readable(data.file):
        return data[here]
    rows = range(*here.indices(len(data)))
    values = np.empty((len(rows), *data.shape[1:]), data.dtype)
    left = values.reshape(-1).view(np.uint8)
    at += rows.start * (left.nbytes // max(1, len(rows)))
    while len(left):
        n_bytes = os.preadv(data.file.id.get_vfd_handle(), [left.data], at)
        if not n_bytes:
            raise ValueError(f"the file ends within {data.name}")
        left, at = left[n_bytes:], at + n_bytes
    return values
