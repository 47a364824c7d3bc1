"""``vocabulary.h5`` as a preparation leaves it beside its data sets: read whole, and held to its checksums.

The file has one dataset for each feature whose ids are a vocabulary: the value of each id, id 2 first. Knows nothing
of how values are counted and numbered (``preparation.vocabulary``), or of the data sets beside it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py

from hpcrec.again import read_again, refused
from hpcrec.data import checksum, layout
from hpcrec.data.hdf5 import open_hdf5
from hpcrec.data.hdf5_lookup import found_in
from hpcrec.errors import DataError

_CHANGE = "prepare the data again with --restart, or copy the file again"


@dataclass(frozen=True)
class Found:
    """What is in a vocabulary file: how many features, values of all of them, and features without a checksum."""

    features: int
    values: int
    unchecked: int


def check(path: Path) -> Found:
    """Read a vocabulary file whole, in bounded memory.

    Raises
    ------
    DataError
        The first thing that is wrong with it: it cannot be read, has something else than values, or has changed.
    UnreadableError
        It cannot be read just now.
    """
    return read_again(path, lambda: _checked(path))


def _checked(path: Path) -> Found:
    with open_hdf5(path) as file:
        try:
            features = list(_datasets(file))
            unchecked = sum(not _check_values(path, data) for data in features)
            found = Found(len(features), sum(len(data) for data in features), unchecked)
        except DataError:
            raise
        except Exception as error:  # HDF5 and h5py raise all sorts of things for a file that is damaged
            if refused(error) is not None:
                raise
            said = " ".join(str(error).split())
            raise DataError(f"{path}: cannot be understood ({type(error).__name__}: {said}); {_CHANGE}.") from error
    if not features:
        raise DataError(f"{path}: has no feature, where a vocabulary has one or more; {_CHANGE}.")
    return found


def _datasets(group: h5py.Group) -> Iterator[h5py.Dataset]:
    """All datasets below a group: the name of a feature may have slashes."""
    for name in group:
        found = group[name]
        if isinstance(found, h5py.Group):
            yield from _datasets(found)
        else:
            yield found


def _check_values(path: Path, data: h5py.Dataset) -> bool:
    """Whether a feature's values have a checksum, which is then theirs."""
    if data.dtype.kind not in "iu" or data.ndim != 1:
        found = f"{data.dtype} with {data.ndim} dimensions"
        raise DataError(f"{path}: {data.name}: {found}; values are integers with 1 dimension: {_CHANGE}.")
    crc = 0
    for start in range(0, len(data), layout.CHUNK_SAMPLES):
        crc = checksum.update(crc, data[start : start + layout.CHUNK_SAMPLES], data.dtype)
    recorded = found_in(data.attrs, layout.CHECKSUM_ATTRIBUTE)
    if recorded is not None and int(recorded) != crc:
        raise DataError(
            f"{path}: {data.name}: checksum {crc:08x}, recorded as {int(recorded):08x}; it has changed since it was "
            f"written: {_CHANGE}."
        )
    return recorded is not None
