"""Rows of a part of a table that are records in files, and not in arrays: which ids they have, what they start from.

A store that has its rows in such files says what is needed to read them without it, as values that JSON holds
(``facts_of``); whoever has these and a record has the id, the row and its states (``RecordPart``), and the first values
of rows that have no record. Knows tables and records; knows no files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.blocks import Block, Part, ids_of_rows
from hpcrec.embedding.shards import table_seed
from hpcrec.types import Floats, Ints

Start = tuple[float, float]  # a table's ``init_scale`` and ``init_decay``


class LinkedRows(Protocol):
    """Rows of a store as they were at one moment, in files that never change until ``drop``."""

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """By table: ``facts_of`` its part, and ``generation``."""

    @property
    def nonfinite(self) -> frozenset[str]:
        """Tables that have values that are not finite."""

    @property
    def list_file(self) -> Path:
        """The small file that names the segments."""

    @property
    def segments(self) -> tuple[Path, ...]:
        """Files that never change."""

    def settle(self) -> None:
        """Flushes all of it to the disk; called before any link is made, perhaps by another thread than the steps'."""

    def seal(self, segment: Path) -> int:
        """What tells a segment from any other one."""

    def linked_in(self, checkpoints: Path, name: str) -> None:
        """Links are made in a folder of this name in each of these checkpoints."""

    def drop(self) -> None:
        """It is needed no longer. May be called several times."""


def first_rows(
    seed: int,
    table: str,
    ids: Any,
    columns: tuple[int, int],
    start: Start,
    dtype: np.dtype,
) -> Floats:
    """Columns [start, stop) of the first values of rows, from (seed, table, id) alone; computed where the ids are."""
    first, stop = columns
    scale, decay = start
    rows = kernels.init_rows(table_seed(seed, table), ids, stop - first, column_start=first, scale=scale, dtype=dtype)
    if decay:
        rows *= (np.arange(first + 1, stop + 1) ** -decay).astype(dtype)  # may be 0; its inverse overflow
    return rows


def facts_of(block: Block, number: int, part: Part, *, seed: int, start: Start, dtype: np.dtype) -> dict[str, Any]:
    """What is needed to read a part's records, in block ``number`` of a store's files; JSON-like."""
    shapes = {"": (1, block.width), **kernels.state_shapes(block.spec, 1, block.width)}
    return {
        "block": number,
        "base": part.base,
        "rows": part.rows,
        "dtype": np.dtype(dtype).name,
        "record": [[name, list(shape[1:])] for name, shape in shapes.items()],
        "ids": None
        if part.family.dynamic is not None
        else {"dealt": part.family.kind == "row", "parts": part.family.row_parts, "number": part.number},
        "start": {
            "seed": seed,
            "scale": start[0],
            "decay": start[1],
            "states": {name: float(value) for name, value in kernels.state_values(block.spec).items()},
        },
    }


@dataclass(frozen=True)
class RecordPart:
    """A part of a table of ``table_rows`` rows, by its ``facts_of``.

    Raises
    ------
    ValueError, KeyError, TypeError
        They are none.
    """

    table: str
    table_rows: int
    columns: tuple[int, int]
    facts: Mapping[str, Any]

    def __post_init__(self) -> None:
        facts, width = self.facts, self.columns[1] - self.columns[0]
        numbers = [facts["block"], facts["base"], facts["rows"]]
        if any(type(n) is not int or n < 0 for n in numbers) or facts["dtype"] not in ("float32", "float64"):
            raise ValueError(f"block, base and rows are {numbers}, dtype {facts['dtype']!r}")
        if [name for name, _ in facts["record"]][:1] != [""] or any(
            shape not in ([], [width]) for _, shape in facts["record"]
        ):
            raise ValueError(f"a record is {facts['record']}, for {width} columns")

    @property
    def dtype(self) -> np.dtype:
        """Of rows and states."""
        return np.dtype(self.facts["dtype"])

    @property
    def states(self) -> dict[str, int]:
        """Optimizer states, and their dimensions: 1 is a number a row, 2 one a value."""
        return {name: 1 + len(shape) for name, shape in self.facts["record"] if name}

    @property
    def span(self) -> tuple[int, int]:
        """Which rows of the block it has."""
        return self.facts["base"], self.facts["base"] + self.facts["rows"]

    def ids(self, rows: Ints) -> Ints:
        """Of rows [U] of the block, of a table that is not dynamic."""
        said = self.facts["ids"]
        local = rows - self.facts["base"]
        return ids_of_rows(
            local, dealt=said["dealt"], parts=said["parts"], number=said["number"], table_rows=self.table_rows
        )

    def values(self, records: np.ndarray) -> tuple[Floats, dict[str, Floats]]:
        """Rows [U, D] and states of records, bytes [U, bytes of one]."""
        at, found = 0, {}
        for name, shape in self.facts["record"]:
            n_bytes = self.dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            found[name] = np.ascontiguousarray(records[:, at : at + n_bytes]).view(self.dtype).reshape(-1, *shape)
            at += n_bytes
        return found.pop(""), found

    def first(self, ids: Ints) -> tuple[Floats, dict[str, Floats]]:
        """What rows of these ids start from, which were never written."""
        start = self.facts["start"]
        rows = first_rows(start["seed"], self.table, ids, self.columns, (start["scale"], start["decay"]), self.dtype)
        shapes = {name: shape for name, shape in self.facts["record"] if name}
        states = {n: np.full((len(ids), *shape), start["states"][n], self.dtype) for n, shape in shapes.items()}
        return rows, states
