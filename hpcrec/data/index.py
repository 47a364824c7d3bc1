"""Index files: several data set files whose samples follow each other. Knows one file (`hdf5.File`), not the whole."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrec.again import read_again
from hpcrec.data import layout
from hpcrec.data.files import write_text
from hpcrec.data.hdf5 import File
from hpcrec.errors import DataError, UnreadableError


def open_files(path: Path) -> tuple[list[File], dict[str, Any]]:
    """The files of a data set or an index, and the attributes that the index adds.

    Raises
    ------
    DataError
        A file is not there, departs from the schema, or does not fit the index.
    UnreadableError
        A file cannot be read just now.
    """
    return _open_index(path) if path.name.endswith(layout.INDEX_SUFFIX) else ([File(path)], {})


def write_index(path: Path, paths: Sequence[Path], attributes: dict[str, Any] | None = None) -> None:
    """Write the index file that makes one data set of several files.

    Parameters
    ----------
    path : Path
        ``<name>.index.json``; whole or not at all.
    paths : sequence of Path
        Data set files in the order of their samples, in or below the index file's folder.
    attributes : dict, optional
        Attributes of the whole, say its attainable AUC.
    """
    if not path.name.endswith(layout.INDEX_SUFFIX):
        raise DataError(f"{path}: the name of an index file must end in {layout.INDEX_SUFFIX}.")
    entries = []
    for file in paths:
        relative = file.resolve().relative_to(path.parent.resolve()).as_posix()
        entries.append({"path": relative, "samples": File(file).samples})
    content = {layout.VERSION_ATTRIBUTE: layout.SCHEMA_VERSION, "files": entries, "attributes": attributes or {}}
    write_text(path, json.dumps(content, indent=1) + "\n")


def _open_index(path: Path) -> tuple[list[File], dict[str, Any]]:
    try:
        content = json.loads(read_again(path, path.read_bytes))
        entries = [(path.parent / entry["path"], int(entry["samples"])) for entry in content["files"]]
        version, extra = content[layout.VERSION_ATTRIBUTE], dict(content.get("attributes", {}))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; write it by `hpcrec prepare`, or change the path.") from None
    except UnreadableError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); copy or write it again.") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path}: not an index file ({type(error).__name__}: {error}); it must be JSON with "
            f"{layout.VERSION_ATTRIBUTE!r} and 'files', a list of {{'path', 'samples'}}."
        ) from error
    if version != layout.SCHEMA_VERSION or not entries:
        raise DataError(
            f"{path}: schema version {version}, {len(entries)} files; version {layout.SCHEMA_VERSION} and at least "
            "one file are needed."
        )
    files = []
    for name, samples in entries:
        files.append(file := File(name))
        if file.samples != samples:
            raise DataError(
                f"{path}: says {samples} samples for {name}, which has {file.samples}; write the index again."
            )
    return files, extra
