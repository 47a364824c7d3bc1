"""Holds data set files, whole, to the schema, to what their values may be, and to the checksums that they carry.

Reads every value once, in bounded memory, and goes on after a problem: all that is wrong is listed, one line a column.
A vocabulary that a preparation left beside them is checked as what it is. Knows nothing of order or batches.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcrec.data import checks, checksum, layout, vocabulary
from hpcrec.data.hdf5 import File
from hpcrec.data.index import open_files
from hpcrec.data.reader import DataSet
from hpcrec.errors import DataError

_BLOCK = layout.CHUNK_SAMPLES  # rows read at once


@dataclass(frozen=True)
class Verdict:
    """What was found in one file.

    Attributes
    ----------
    path : Path
    problems : tuple of str
        Each names file and dataset; empty where all is well.
    samples, columns, unchecked : int
        Samples, datasets, and how many of these have no checksum; 0 for an index file, or one that cannot be opened.
    values : int, optional
        Of a vocabulary, of all its features, each of which is a dataset; None of all other files.
    """

    path: Path
    problems: tuple[str, ...]
    samples: int = 0
    columns: int = 0
    unchecked: int = 0
    values: int | None = None


def verify(paths: Sequence[Path]) -> Iterator[Verdict]:
    """A verdict on each file: data set files, those of index files, and those of folders (not of folders in them).

    A file named ``vocabulary.h5`` is a preparation's, and held to what that writes.

    Raises
    ------
    DataError
        A folder without a data set.
    UnreadableError
        A file cannot be read just now: the verification ends there, and says nothing of that file.
    """
    seen: set[Path] = set()
    for path in paths:
        for file in _in_folder(path) if path.is_dir() else [path]:
            yield from _verify(file, seen)


def _in_folder(folder: Path) -> list[Path]:
    endings = (".h5", ".hdf5", layout.INDEX_SUFFIX)
    found = sorted(path for path in folder.iterdir() if path.name.endswith(endings) and not path.name.startswith("."))
    if not found:
        raise DataError(f"{folder}: holds no data set ({', '.join(endings)}). Give the folder that does, or files.")
    return found


def _verify(path: Path, seen: set[Path]) -> Iterator[Verdict]:
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    try:
        if path.name == layout.VOCABULARY:
            found = vocabulary.check(path)
            yield Verdict(path, (), columns=found.features, unchecked=found.unchecked, values=found.values)
            return
        files, _ = open_files(path)
        if path.name.endswith(layout.INDEX_SUFFIX):
            DataSet(path).close()  # the files fit each other
            yield Verdict(path, ())
    except DataError as error:
        yield Verdict(path, (str(error),))
        return
    for file in files:
        if file.path == path or file.path.resolve() not in seen:
            seen.add(file.path.resolve())
            yield _verify_file(file)


def _verify_file(file: File) -> Verdict:
    problems = tuple(text for name in file.columns for text in _problems(file, name))
    file.close()
    unchecked = sum(crc is None for crc in file.columns.values())
    return Verdict(file.path, problems, file.samples, len(file.columns), unchecked)


def _problems(file: File, name: str) -> Iterator[str]:
    """What is wrong with a column: at most that it cannot be read, or a value and the checksum."""
    _, sparse, feature, part = name.split("/") if name.count("/") == 3 else ("", "", "", name)
    crc, first, n_wrong = 0, None, 0
    n_rows = file.n_ids[feature] if sparse and part != "offsets" else file.samples
    cardinality = next((f.cardinality for f in file.features if f.name == feature), None)
    try:
        for start in range(0, n_rows, _BLOCK):
            stop = min(start + _BLOCK, n_rows)
            if part == "offsets":
                file.read_offsets(feature, start, stop)  # rises
                stored = file.read(name, start, stop + 1)
                crc = checksum.update(crc, np.diff(stored), stored.dtype)
                continue
            stored = file.read(name, start, stop)
            crc = checksum.update(crc, stored, stored.dtype)
            with np.errstate(over="ignore"):
                values = stored.astype(np.float32 if stored.dtype.kind == "f" else np.int64, copy=False)
            if (bad := checks.first_wrong(name, values, cardinality)) is not None:
                n_wrong += bad.count
                first = first or (start + bad.row, bad)
    except DataError as error:
        yield str(error)
        return
    if first is not None:
        row, bad = first
        more = f" ({n_wrong} such values)" if n_wrong > 1 else ""
        yield f"{file.path}: {name}: {_sample(file, feature, row)} {bad.found}; {bad.allowed}{more}."
    recorded = file.columns[name]
    if recorded not in (None, crc):
        found = f"checksum {crc:08x}, recorded as {recorded:08x}"
        yield f"{file.path}: {name}: {found}; it has changed since it was written: copy or convert it again."


def _sample(file: File, feature: str, row: int) -> str:
    """The sample of row `row` of a column, as messages call it."""
    if feature not in file.jagged:
        return f"sample {row} (from 0)"
    try:
        for start in range(0, file.samples, _BLOCK):
            offsets = file.read_offsets(feature, start, min(start + _BLOCK, file.samples))
            if offsets[-1] > row:
                return f"sample {start + int(np.searchsorted(offsets, row, side='right')) - 1} (from 0)"
    except DataError:
        pass  # told with the offsets
    return f"id {row} (from 0)"
