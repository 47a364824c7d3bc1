"""How values became the inputs of a data set, held to those of another one: equal ids may stand for other values.

``hpcrec prepare`` leaves the column map in ``prepare.json`` and the values of vocabularies in ``vocabulary.h5``, beside
data sets. Where a folder has no map nothing is known of it, and nothing is said. Knows these two files, not the data.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py

from hpcrec.again import is_there, read_again
from hpcrec.data.carried import MAP, VOCABULARY
from hpcrec.data.hdf5 import open_hdf5
from hpcrec.data.layout import CHECKSUM_ATTRIBUTE
from hpcrec.errors import DataError

# Of a column, what says nothing of what a value becomes: where it stands in a table, how it is cut, what a vocabulary
# leaves out, which its values tell.
_ASIDE = ("column", "separator", "list", "max_length", "min_count")
_KINDS = {"sparse": "feature", "dense": "dense input"}
_Origins = dict[tuple[str, str], dict[str, Any]]


def other_origin(mine: Path, other: Path) -> tuple[str, str] | None:
    """What the data sets in ``mine`` have, and those in ``other`` in its stead, of the first input that differs.

    None where none does, of those that both have, or it is not known.

    Raises
    ------
    UnreadableError
        A file cannot be read just now.
    """
    if mine.absolute() == other.absolute():
        return None
    here, there = _origins(mine), _origins(other)
    for kind, name in there:
        a, b = here.get((kind, name)), there[kind, name]
        if a is None or a == b:
            continue
        key = next(key for key in (*b, *a) if a.get(key) != b.get(key))
        said, said_there = (f"{_KINDS[kind]} {name!r} {_said(key, of.get(key))}" for of in (a, b))
        return said, said_there
    return None


def _said(key: str, value: Any) -> str:
    if key == "vocabulary":
        return "with " + ("no vocabulary" if value is None else f"the vocabulary of {value[0]:,} values {value[1]:08x}")
    return f"with {key} {value!r}"


def _origins(folder: Path) -> _Origins:
    """By kind and name of an input: what its column map says, and the length and checksum of its vocabulary."""
    path = folder / MAP
    if not is_there(path):
        return {}
    try:
        table = json.loads(read_again(path, path.read_bytes))["identity"]["table"]
        found: _Origins = {
            (kind, str(name)): {key: value for key, value in column.items() if key not in _ASIDE}
            for kind in _KINDS
            for name, column in table[kind].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}  # no map of a preparation's: 'hpcrec data verify' says so
    if is_there(folder / VOCABULARY):
        try:
            vocabularies = read_again(folder / VOCABULARY, lambda: _vocabularies(folder / VOCABULARY))
        except DataError:
            return {}  # damaged: no run needs it, and 'hpcrec data verify' says so
        for name, values in vocabularies.items():
            if ("sparse", name) in found:
                found["sparse", name]["vocabulary"] = values
    return found


def _vocabularies(path: Path) -> Mapping[str, tuple[int, int]]:
    """Of each feature how many values its vocabulary has, and their checksum; those of a file without are left out."""
    found = dict[str, tuple[int, int]]()

    def visit(name: str, data: Any) -> None:
        if isinstance(data, h5py.Dataset) and CHECKSUM_ATTRIBUTE in data.attrs:
            found[name] = len(data), int(data.attrs[CHECKSUM_ATTRIBUTE])

    with open_hdf5(path) as file:
        file.visititems(visit)
    return found
