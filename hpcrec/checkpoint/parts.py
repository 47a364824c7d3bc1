"""One file of a checkpoint's table: what it has to hold, and what it says of ids that have their rows as they came.

Knows a file; which parts are taken, and where they go, is known above. The format is docs/checkpoint.md.

Legend: ``U`` ids in a part or block, ``D`` its columns, ``P`` ids that wait for a row.
"""

import contextlib
import errno
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np

from hpcrec.again import read_again, refused
from hpcrec.checkpoint import files
from hpcrec.data.hdf5_filled import Filled, Shape
from hpcrec.data.hdf5_lookup import found_in, items_in
from hpcrec.errors import CheckpointError, UnreadableError
from hpcrec.types import Floats, Ints

T = TypeVar("T")

Block = tuple[Ints, Floats, Mapping[str, Floats]]

_ATTRIBUTES = ("table", "rows", "width", "column_start", "column_stop")
_NUMBERS = ("clock", "evicted", "refused")
PENDING = ("pending_ids", "pending_counts", "pending_clocks")


@dataclass(frozen=True, kw_only=True)
class TableBlock:
    """Some rows of a table.

    Attributes
    ----------
    ids : int64 [U]
        Row numbers in the whole table.
    rows : float [U, D]
    states : dict of str to float [U] or [U, D]
        Optimizer states by plain name.
    columns : (int, int)
        Columns of the whole table that ``rows`` are.
    """

    ids: Ints
    rows: Floats
    states: dict[str, Floats]
    columns: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What one owner knew of the ids that had rows, and of those that waited for one.

    Attributes
    ----------
    counts, clocks : int64 [U] or None
        Steps that had used an id, and the last of them; None where no id loses its row.
    pending_ids, pending_counts, pending_clocks : int64 [P]
    clock, evicted, refused : int
        Steps, ids that had lost their rows, and ids that had been left without one.
    """

    counts: Ints | None
    clocks: Ints | None
    pending_ids: Ints
    pending_counts: Ints
    pending_clocks: Ints
    clock: int
    evicted: int
    refused: int


def read_hdf5(path: Path, read: Callable[[h5py.File], T]) -> T:
    """What ``read`` finds in a file; it is given the file anew where the system refused a part of it.

    Raises
    ------
    CheckpointError
        Whatever is found wrong with what is in the file, said as one error.
    UnreadableError
        It cannot be read just now.
    """

    def once() -> T:
        with h5py.File(path, "r", locking=False) as file:
            return read(file)

    try:
        return read_again(path, once)
    except Exception as error:
        raise _as_said(path, error) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """The file, for what cannot be done again, as what yields blocks of it; errors are as `read_hdf5` says them."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except Exception as error:
        raise _as_said(path, error) from error


def _as_said(path: Path, error: Exception) -> Exception:
    """What is raised for an error: HDF5 and h5py raise all sorts of things."""
    if isinstance(error, CheckpointError | UnreadableError):
        return error
    said = " ".join(f"{type(error).__name__}: {error}".split())
    if refused(error) not in (None, errno.ENOENT):
        return UnreadableError(f"{path}: cannot be read just now ({said}).")
    return CheckpointError(f"{path}: is not as docs/checkpoint.md says ({said}).")


def n_ids_in(file: h5py.File) -> int:
    """Ids of a part."""
    ids = found_in(file, "ids")
    return 0 if ids is None else len(ids)


def check_block(block: TableBlock, rows: int | None) -> None:
    """Whether the arrays of a block fit each other, and the table; ``rows`` None: ids may be any.

    Raises
    ------
    ValueError
        They do not.
    """
    ids, n, width = block.ids, len(block.ids), block.columns[1] - block.columns[0]
    if ids.dtype.kind != "i" or (rows is not None and (ids.min(initial=0) < 0 or ids.max(initial=0) >= rows)):
        raise ValueError(f"ids are {ids.dtype} and not all in {'int64' if rows is None else f'[0, {rows})'}")
    for name, values in {"rows": block.rows, **block.states}.items():
        wanted = (n,) if values.ndim == 1 and name != "rows" else (n, width)
        if values.shape != wanted or values.dtype.kind != "f":
            raise ValueError(f"{name} is {values.dtype} {list(values.shape)} for {n} ids, not float {list(wanted)}")


def found_facts(file: h5py.File) -> dict[str, Any] | None:
    """What a part says of its rows where these are links to a store's files; None where they are in it."""
    said = found_in(file.attrs, "linked")
    return None if said is None else dict(json.loads(said))


def is_dynamic(file: h5py.File) -> bool:
    """Whether the ids of a part's table have their rows as they came."""
    return bool(found_in(file.attrs, "dynamic", False))


def part_facts(path: Path) -> dict[str, Any]:
    """What a part says of its table, and which states it has.

    Raises
    ------
    CheckpointError
        It is not as it should be.
    """

    def read(file: h5py.File) -> dict[str, Any]:
        if missing := [name for name in _ATTRIBUTES if found_in(file.attrs, name) is None]:
            raise CheckpointError(f"{path}: has no attribute {missing[0]!r}. See docs/checkpoint.md.")
        facts: dict[str, Any] = {name: int(file.attrs[name]) for name in _ATTRIBUTES[1:]}
        facts["dynamic"] = is_dynamic(file)
        if facts["dynamic"] and (facts["column_start"], facts["column_stop"]) != (0, facts["width"]):
            raise CheckpointError(f"{path}: has not all columns, which each part of a dynamic table has.")
        hashed = found_in(file.attrs, "hashed")
        facts["hashed"] = None if hashed is None else bool(hashed)
        facts["n_ids"], facts["linked"] = n_ids_in(file), found_facts(file)
        if (linked := facts["linked"]) is not None:
            facts["n_ids"] = facts["n_ids"] if facts["dynamic"] else int(linked["rows"])
            facts["states"] = {state_said(n, 1 + len(shape)) for n, shape in linked["record"] if n}
            return facts
        facts["states"] = {state_said(files.unquoted(n), s.ndim) for n, s in items_in(file, "state")}
        return facts

    return read_hdf5(path, read)


def check_kind(path: Path, table: str, *, rows: int, dynamic: bool, hashed: bool) -> None:
    """Whether a part's row numbers mean what the model's table of ``rows`` takes them for.

    Raises
    ------
    CheckpointError
        They are any ids, or hashes of ids, or neither, and the model's are not. Parts that do not say whether they are
        hashed are taken as they are wanted.
    """
    found, key = part_facts(path), f"embedding.tables.{table}"
    if found["dynamic"] and not dynamic:
        raise CheckpointError(
            f"{path}: table {table!r} is dynamic: its ids are any numbers, not one for each of the {rows} "
            f"rows of the model's. Set {key}.dynamic, or start from another checkpoint."
        )
    if found["hashed"] and not hashed:
        raise CheckpointError(
            f"{path}: table {table!r} is hashed: its row numbers are hashes, and the model's are ids. Set {key}.rows = "
            f"{found['rows']} and {key}.hashed = true{' in place of dynamic' if dynamic else ''}, or start from "
            "another checkpoint."
        )
    if hashed and found["hashed"] is False:
        raise CheckpointError(
            f"{path}: table {table!r} is not hashed: its row numbers are ids, and the model's are hashes. Remove "
            f"{key}.hashed, or start from another checkpoint."
        )


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(sorted(names)) or "none"


def state_said(name: str, n_dims: int) -> str:
    """A state as messages call it: optimizers may use one name for a number a row and for one a value."""
    return f"{name} (one number a {'row' if n_dims == 1 else 'value'})"


def write_part(
    path: Path, describe: Callable[[h5py.File], None], blocks: Iterable[Block], n_ids: int
) -> tuple[int, int]:
    """Writes ids, rows, states of a part by blocks, and ``describe`` the rest; returns its bytes and its CRC-32."""
    coming = iter(blocks)
    block = next(coming, None)
    shapes: dict[str, Shape] = {}
    if block is not None:
        shapes = {name: ((n_ids, *array.shape[1:]), array.dtype) for name, array in _arrays(block).items()}
    with Filled(path, shapes, describe) as file:
        while block is not None:
            _append(file, block)
            block = None  # its memory is given back before the next one takes as much
            block = next(coming, None)
    return file.n_bytes, file.crc32


def _append(file: Filled, block: Block) -> None:
    for name, array in _arrays(block).items():
        file.append(name, array)


def _arrays(block: Block) -> dict[str, Ints | Floats]:
    """By the names that they have in a part."""
    ids, rows, states = block
    named = {f"state/{files.quoted(name)}": state for name, state in states.items()}
    return {"ids": np.asarray(ids, np.int64), "rows": rows, **named}


def write_admission(file: h5py.File, admission: Admission) -> None:
    """Puts it beside the ids of a part."""
    group = file.create_group("admission")
    group.attrs.update({name: getattr(admission, name) for name in _NUMBERS})
    for name in ("counts", "clocks", *PENDING):
        if (values := getattr(admission, name)) is not None:
            group.create_dataset(name, data=values)


def read_admission(file: h5py.File) -> Admission:
    """What a part has of it; nothing was ever asked for, where it has none.

    Raises
    ------
    ValueError
        Lists do not fit each other, or a number is none.
    """
    n_ids, group = n_ids_in(file), found_in(file, "admission")
    found = {name: None if group is None else found_in(group, name) for name in ("counts", "clocks", *PENDING)}
    lists: dict[str, Ints] = {name: values[()] for name, values in found.items() if values is not None}
    n_pending = len(lists.get(PENDING[0], ()))
    for name, values in lists.items():
        n = n_pending if name in PENDING else n_ids
        if values.shape != (n,) or values.dtype.kind != "i":
            raise ValueError(f"admission/{name} is {values.dtype} {list(values.shape)}, not int64 [{n}]")
    if len(lists.keys() & {"counts", "clocks"}) == 1 or len(lists.keys() & set(PENDING)) not in (0, len(PENDING)):
        raise ValueError(f"admission has {listed(lists)}; allowed are counts with clocks, and all of {listed(PENDING)}")
    numbers = {name: 0 if group is None else int(group.attrs[name]) for name in _NUMBERS}
    if min(numbers.values()) < 0:
        raise ValueError(f"admission has {numbers}; allowed are 0 and more")
    waiting = [lists.get(name, np.zeros(0, np.int64)) for name in PENDING]
    return Admission(
        counts=lists.get("counts"),
        clocks=lists.get("clocks"),
        pending_ids=waiting[0],
        pending_counts=waiting[1],
        pending_clocks=waiting[2],
        clock=numbers["clock"],
        evicted=numbers["evicted"],
        refused=numbers["refused"],
    )
