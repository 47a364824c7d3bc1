"""Arrays in a file, in place: written and read where they lie, a piece at a time. safetensors or HDF5.

Both hold an array as its bytes, one after the other, somewhere in the file; so an array that is larger than memory is
filled in any order, and looked up without being read. Knows files and arrays; what they mean is for others.
"""

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from h5py import h5l
from safetensors import safe_open

from hpcrec.again import read_again
from hpcrec.data.files import synced, writing
from hpcrec.errors import CheckpointError, UnreadableError
from hpcrec.types import Ints

_TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8"}  # of safetensors
_ALIGNED = 64  # bytes: where arrays begin
_OF_RUST = re.compile(r"\bos error (\d+)")  # within what safetensors says of an error of the system

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]  # name -> type as NumPy writes it, shape
Region = tuple[int, np.dtype, tuple[int, ...]]  # first byte, type, shape


class ArrayFile:
    """A file of arrays that are written in place; by its suffix, ``.safetensors`` or ``.h5``.

    Parameters
    ----------
    shapes : mapping of str to (str, tuple of int)
        Type (``<f4``, ``<f8`` or ``<i8``) and shape of each array.
    attributes : mapping of str to str
        What else is said in the file.

    Raises
    ------
    OutputError
        From the constructor, where the disk has no room for all of it.
    """

    def __init__(self, path: Path, shapes: Shapes, attributes: Mapping[str, str]) -> None:
        self.path = path
        with writing(path):
            (_create_safetensors if path.suffix == ".safetensors" else _create_hdf5)(path, shapes, attributes)
            self._regions = regions(path)
            end = max(_end(region) for region in self._regions.values())
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, max(end, 1))  # a full disk is told now, not by a signal later

    def put(self, name: str, where: Ints | slice, values: np.ndarray, columns: slice = slice(None)) -> None:
        """Sets rows of an array, and of these some columns."""
        with writing(self.path):
            array = _mapped(self.path, self._regions[name], "r+")
            array[(where, columns) if array.ndim > 1 else where] = values
            if isinstance(array, np.memmap):
                array.flush()  # let go with the map: what has been written is no memory of this process

    def sync(self) -> None:
        """Brings all of it to disk."""
        with writing(self.path), self.path.open("rb") as file:
            os.fsync(file.fileno())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, mapped into memory, read-only.

    Raises
    ------
    CheckpointError
        It is no such file, or holds anything but arrays of numbers that lie in it whole.
    UnreadableError
        It cannot be read just now.
    """

    def read() -> dict[str, np.ndarray]:
        if path.suffix == ".safetensors":
            _check_header(path)
        return {name: _mapped(path, region, "r") for name, region in regions(path).items()}

    try:
        return read_again(path, read)
    except UnreadableError:
        raise
    except Exception as error:  # HDF5 and h5py raise all sorts of things
        said = " ".join(str(error).split())
        raise CheckpointError(f"{path}: cannot be read ({type(error).__name__}: {said}). Export it again.") from error


def regions(path: Path) -> dict[str, Region]:
    """Where the arrays of a file lie in it."""
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            header, start = _header(file)
        return {
            name: (start + entry["data_offsets"][0], np.dtype(_TYPES[entry["dtype"]]), tuple(entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    found: dict[str, Region] = {}
    with h5py.File(path, "r", locking=False) as hdf5:
        for name in hdf5:
            if hdf5.id.links.get_info(name.encode()).type != h5l.TYPE_HARD:  # `get` takes what it cannot read for none
                link = hdf5.get(name, getlink=True)
                raise ValueError(f"{name} is a {type(link).__name__}, which is not followed")
            dataset = hdf5[name]
            if not isinstance(dataset, h5py.Dataset) or dataset.dtype.str not in _TYPES.values():
                raise ValueError(f"{name} is no array of {', '.join(_TYPES.values())}")
            offset = dataset.id.get_offset()
            if offset is None and dataset.size:
                raise ValueError(f"{name} is not contiguous, as an export's arrays are")
            found[name] = (offset or 0, dataset.dtype, dataset.shape)
    return found


def _mapped(path: Path, region: Region, mode: Any) -> np.ndarray:
    start, dtype, shape = region
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, mode, start, shape)


def _end(region: Region) -> int:
    start, dtype, shape = region
    return start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))


def _check_header(path: Path) -> None:
    """Checks every entry of the header, and reads nothing else."""
    try:
        with safe_open(path, "numpy"):
            pass
    except OSError as error:  # of whatever keeps it from a file, safetensors says that there is none
        found = _OF_RUST.search(str(error))
        number = int(found[1]) if found else error.errno or errno.ENOENT
        raise OSError(number, os.strerror(number), str(path)) from error


def _header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its arrays begin."""
    n_bytes = int.from_bytes(file.read(8), "little")
    return json.loads(file.read(n_bytes)), 8 + n_bytes


def _create_safetensors(path: Path, shapes: Shapes, attributes: Mapping[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": dict(attributes)}
    at = 0
    for name, (dtype, shape) in shapes.items():
        stop = at + np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        kind = next(kind for kind, known in _TYPES.items() if known == dtype)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    with synced(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def _create_hdf5(path: Path, shapes: Shapes, attributes: Mapping[str, str]) -> None:
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        for name, (dtype, shape) in shapes.items():
            wanted = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            wanted.set_layout(h5py.h5d.CONTIGUOUS)
            wanted.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            wanted.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
            space = h5py.h5s.create_simple(shape)
            h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype)), space, wanted)
        file.flush()
        os.fsync(file.id.get_vfd_handle())
