"""What the parts of a checkpoint's table say of it, and its ids, without its rows. Knows checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.linked import linked_row_bytes
from hpcrec.checkpoint.parts import TableBlock, opened, part_facts, read_admission, state_said
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.data.hdf5_lookup import found_in, items_in
from hpcrec.errors import CheckpointError
from hpcrec.types import Ints

_BLOCK_IDS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What the parts of a table say of it; only their headers are read.

    Attributes
    ----------
    rows, width : int
        Shape of the whole table; the most rows of a dynamic one.
    dynamic : bool
    hashed : bool or None
        None where nothing is said of it.
    dtype : str
        Of its rows.
    states : dict of str to int
        Optimizer states, and their dimensions: 1 is a number a row, 2 one a value.
    parts, ids, n_bytes : int
        Parts, ids that have rows, and bytes of the files; of rows that are links to a store's files, their own bytes.
    linked : bool
        Whether they are.
    columns : int
        Pieces that rows are cut into.
    """

    name: str
    rows: int
    width: int
    dynamic: bool
    hashed: bool | None
    dtype: str
    states: dict[str, int]
    parts: int
    ids: int
    columns: int
    n_bytes: int
    linked: bool = False

    @property
    def row_bytes(self) -> int:
        """Of an id, its row and its states."""
        item = np.dtype(self.dtype).itemsize
        return 8 + item * (self.width + sum(self.width if n == 2 else 1 for n in self.states.values()))


def table_facts(checkpoint: Checkpoint, table: str) -> TableFacts:
    """See ``TableFacts``.

    Raises
    ------
    CheckpointError
        A part is not as it should be, or parts differ in what they say.
    """
    own = checkpoint.part_paths(table)
    holder = checkpoint.holder(table)
    paths = holder.part_paths(table)
    found = [part_facts(path) for path in paths]
    first = found[0]
    for path, other in zip(paths, found, strict=True):
        for name in ("rows", "width", "dynamic", "hashed"):
            if other[name] != first[name]:
                raise CheckpointError(
                    f"{path}: table {table!r} has {name} {other[name]}, in {paths[0]} it has {first[name]}. "
                    "Parts of a table must agree."
                )
    values = sum(f["n_ids"] * (f["column_stop"] - f["column_start"]) for f in found)
    dtype, states = "float32", {}
    for path, some in zip(paths, found, strict=True):
        if some["n_ids"] and some["linked"] is not None:
            dtype = some["linked"]["dtype"]
            states = {name: 1 + len(shape) for name, shape in some["linked"]["record"] if name}
            break
        if some["n_ids"]:
            with opened(path) as file:
                dtype = str(file["rows"].dtype)
                states = {files.unquoted(n): s.ndim for n, s in items_in(file, "state")}
            break
    wanted = {state_said(name, n) for name, n in states.items()}
    for path, some in zip(paths, found, strict=True):
        if some["n_ids"] and some["states"] != wanted:
            raise CheckpointError(f"{path}: table {table!r} has other optimizer states than {paths[0]}.")
    return TableFacts(
        name=table,
        rows=first["rows"],
        width=first["width"],
        dynamic=first["dynamic"],
        hashed=first["hashed"],
        dtype=dtype,
        states=states,
        parts=len(paths),
        ids=values // max(first["width"], 1),
        columns=len({(f["column_start"], f["column_stop"]) for f in found if f["n_ids"]}),
        n_bytes=sum(path.stat().st_size for path in {*own, *paths})
        + sum(f["n_ids"] * linked_row_bytes(f["linked"]) for f in found if f["linked"] is not None),
        linked=any(f["linked"] is not None for f in found),
    )


def ids_in(checkpoint: Checkpoint, table: str) -> Iterator[Ints]:
    """Ids of a table, as ``table_parts`` has them in its blocks."""
    return (checkpoint.ids(stretch) for stretch in checkpoint.stretches(table))


def admission_blocks(checkpoint: Checkpoint, table: str) -> Iterator[TableBlock]:
    """Of a dynamic table: what is known of the use of its ids, as blocks whose two columns are counts and clocks."""
    for path in checkpoint.part_paths(table):
        with opened(path) as file:
            known = read_admission(file)
            if known.counts is None or known.clocks is None or found_in(file, "ids") is None:
                continue
            for start in range(0, len(known.counts), _BLOCK_IDS):
                here = slice(start, start + _BLOCK_IDS)
                values = np.stack([known.counts[here], known.clocks[here]], 1)
                yield TableBlock(ids=file["ids"][here], rows=values, states={}, columns=(0, 2))
