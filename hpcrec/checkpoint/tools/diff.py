"""What differs between two checkpoints: rows and their states by id, dense parameters and theirs by name.

Parts, their order and their columns do not count. Values are compared as float64; two that are both not a number are
equal. Knows checkpoints in bounded memory; what a difference means is for the reader.

Legend: ``U`` ids of a range, ``D`` columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.checkpoint.dense import DenseState, dense_file
from hpcrec.checkpoint.parts import TableBlock, opened, read_admission
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.tools.by_id import by_id, edges_of, in_ranges, together, whole
from hpcrec.checkpoint.tools.look import checkpoint_at, reader_of
from hpcrec.checkpoint.tools.tables import TableFacts, admission_blocks, ids_in, table_facts
from hpcrec.errors import CheckpointError
from hpcrec.types import Floats, Ints

_SHOWN_IDS = 5
_COMPARED = 1 << 17  # values compared at a time


@dataclass
class Values:
    """How arrays of one name differ.

    Attributes
    ----------
    compared, differ : int
        Values; of them those that differ by more than the tolerance.
    largest, mean : float
        Of the absolute differences of all that were compared; infinite where one of two is not finite.
    """

    compared: int = 0
    differ: int = 0
    largest: float = 0.0
    mean: float = 0.0

    def add(self, a: Floats, b: Floats, tolerance: float) -> np.ndarray:
        """Counts two arrays of one shape; where they differ."""
        wrong = np.zeros(np.shape(a), bool)
        if wrong.ndim == 0:
            wrong[()] = self._add(np.asarray(a), np.asarray(b), tolerance)
            return wrong
        step = max(1, _COMPARED // max(1, int(np.prod(wrong.shape[1:]))))
        for start in range(0, len(wrong), step):
            here = slice(start, start + step)
            wrong[here] = self._add(a[here], b[here], tolerance)
        return wrong

    def _add(self, a: Floats, b: Floats, tolerance: float) -> np.ndarray:
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            by = np.abs(x - y)
        equal = (x == y) | (np.isnan(x) & np.isnan(y))
        by = np.where(equal, 0.0, np.where(np.isfinite(by), by, np.inf))
        wrong = by > tolerance
        if by.size:
            self.mean = (self.mean * self.compared + float(by.sum())) / (self.compared + by.size)
            self.largest = max(self.largest, float(by.max()))
        self.compared, self.differ = self.compared + by.size, self.differ + int(wrong.sum())
        return wrong


@dataclass
class TableDifference:
    """How a table differs.

    Attributes
    ----------
    said : list of str
        What differs in shape or kind; then rows are not compared.
    ids, only_a, only_b : int
        Ids in both, and in one alone.
    rows_differ : int
        Ids whose row or a state of it differs.
    first_ids : list of int
        The first of these, and of those in one alone.
    values : dict of str to Values
        Of ``rows`` and of each state.
    uses_differ : int
        Ids of a dynamic table of which another use is known, waiting ones too.
    """

    said: list[str] = field(default_factory=list)
    ids: int = 0
    only_a: int = 0
    only_b: int = 0
    rows_differ: int = 0
    first_ids: list[int] = field(default_factory=list)
    values: dict[str, Values] = field(default_factory=dict)
    uses_differ: int = 0

    @property
    def equal(self) -> bool:
        """Whether nothing differs by more than the tolerance."""
        return not (self.said or self.only_a or self.only_b or self.rows_differ or self.uses_differ)

    def note(self, ids: Ints) -> None:
        """Remembers the first ids that are not the same."""
        self.first_ids += ids[: max(0, _SHOWN_IDS - len(self.first_ids))].tolist()


def diff(path_a: Path, path_b: Path, *, tolerance: float = 0.0, scratch: Path | None = None) -> dict[str, Any]:
    """What differs between two checkpoints, or the newest of run folders; JSON-like.

    Parameters
    ----------
    tolerance : float
        Absolute differences up to this are none.
    scratch : Path, optional
        Folder with room for a large table of both; the system's for temporary files by default.

    Returns
    -------
    dict
        ``equal``, and what differs: ``position``, ``tables``, ``dense``.

    Raises
    ------
    CheckpointError
        One of them cannot be read.
    """
    a, b = (reader_of(checkpoint_at(path)) for path in (path_a, path_b))
    position = {
        name: [a.state.get(name), b.state.get(name)]
        for name in ("step", "seed", "batch_size", "data")
        if a.state.get(name) != b.state.get(name)
    }
    tables = {
        name: compare_tables(a, b, name, tolerance=tolerance, scratch=scratch)
        for name in sorted(set(a.tables) & set(b.tables))
    }
    dense = _dense(a, b, tolerance)
    only = {
        "tables_only_a": sorted(set(a.tables) - set(b.tables)),
        "tables_only_b": sorted(set(b.tables) - set(a.tables)),
    }
    equal = not (any(only.values()) or "step" in position) and all(t.equal for t in tables.values())
    return {
        "a": str(a.folder),
        "b": str(b.folder),
        "tolerance": tolerance,
        "equal": equal and not any(found["differs"] for found in dense.values()),
        "position": position,
        **only,
        "tables": {name: {"equal": found.equal, **asdict(found)} for name, found in tables.items()},
        "dense": dense,
    }


# ---- tables ----------------------------------------------------------------------------------------------------------


def compare_tables(
    a: Checkpoint, b: Checkpoint, table: str, *, tolerance: float, scratch: Path | None
) -> TableDifference:
    """Compares a table that both have."""
    facts_a, facts_b = table_facts(a, table), table_facts(b, table)
    found = TableDifference()
    for name in ("rows", "width", "dynamic", "hashed"):
        x, y = getattr(facts_a, name), getattr(facts_b, name)
        if x != y:
            found.said.append(f"{name}: {x} and {y}")
    states = [
        {f"{n} (one number a {'row' if d == 1 else 'value'})" for n, d in f.states.items()} for f in (facts_a, facts_b)
    ]
    if facts_a.ids and facts_b.ids and states[0] != states[1]:
        found.said += [f"states: {', '.join(sorted(s)) or 'none'}" for s in states]
    if facts_a.width != facts_b.width or facts_a.dynamic != facts_b.dynamic:
        return found
    found.values = {name: Values() for name in ("rows", *sorted(facts_a.states.keys() & facts_b.states.keys()))}
    # cut alike, as most that are compared: then nothing has to be put in order
    if not _same_blocks(a, b, table):
        edges = edges_of(facts_a if facts_a.ids >= facts_b.ids else facts_b, lambda: ids_in(a, table))
        for x, y in zip(by_id(a, facts_a, edges, scratch), by_id(b, facts_b, edges, scratch), strict=True):
            _compare(whole(x, a, table), whole(y, b, table), found, tolerance)
    else:
        for block_a, block_b in zip(a.table_parts(table), b.table_parts(table), strict=True):
            _compare(block_a, block_b, found, tolerance)
        found.ids //= max(1, facts_a.columns)
    if facts_a.dynamic:
        _compare_uses(a, b, facts_a, found, scratch)
    return found


def _same_blocks(a: Checkpoint, b: Checkpoint, table: str) -> bool:
    """Whether both have the same ids and columns in the same order, part by part."""
    paths = a.part_paths(table), b.part_paths(table)
    if len(paths[0]) != len(paths[1]) or a.holder(table) is not a or b.holder(table) is not b:
        return False
    if a.linked(table) or b.linked(table):
        return False  # in the order in which a store has them
    for path_a, path_b in zip(*paths, strict=True):
        with opened(path_a) as x, opened(path_b) as y:
            if any(int(x.attrs[n]) != int(y.attrs[n]) for n in ("column_start", "column_stop")):
                return False
            if ("ids" in x) != ("ids" in y) or ("ids" in x and len(x["ids"]) != len(y["ids"])):
                return False
    return all(np.array_equal(x, y) for x, y in zip(ids_in(a, table), ids_in(b, table), strict=True))


def _compare(a: TableBlock, b: TableBlock, found: TableDifference, tolerance: float) -> None:
    ids, in_a, in_b = np.intersect1d(a.ids, b.ids, assume_unique=True, return_indices=True)
    for side, own, other in (("only_a", a.ids, b.ids), ("only_b", b.ids, a.ids)):
        alone = np.setdiff1d(own, other, assume_unique=True)
        setattr(found, side, getattr(found, side) + len(alone))
        found.note(alone)
    found.ids += len(ids)
    wrong_U = np.zeros(len(ids), bool)
    for name, values in found.values.items():
        x, y = (t.rows if name == "rows" else t.states[name] for t in (a, b))
        x, y = x[in_a], y[in_b]
        if x.shape == y.shape:
            wrong_U |= values.add(x, y, tolerance).reshape(len(ids), -1).any(1)
    found.rows_differ += int(wrong_U.sum())
    found.note(ids[wrong_U])


def _compare_uses(
    a: Checkpoint, b: Checkpoint, facts: TableFacts, found: TableDifference, scratch: Path | None
) -> None:
    """What is known of the use of a dynamic table's ids, and of those that wait."""
    slim = TableFacts(**{**vars(facts), "width": 2, "dtype": "int64", "states": {}})
    edges = edges_of(slim, lambda: ids_in(a, facts.name))

    def uses(of: Checkpoint) -> Iterator[TableBlock]:
        for pieces in in_ranges(lambda: admission_blocks(of, facts.name), edges, scratch):
            yield together(pieces, slim, None, None).block

    for x, y in zip(uses(a), uses(b), strict=True):
        _, in_x, in_y = np.intersect1d(x.ids, y.ids, assume_unique=True, return_indices=True)
        same = int((x.rows[in_x] == y.rows[in_y]).all(1).sum())
        found.uses_differ += len(np.union1d(x.ids, y.ids)) - same
    waiting, totals = zip(*(_waiting(of, facts.name) for of in (a, b)), strict=True)
    found.uses_differ += len(waiting[0].items() ^ waiting[1].items())
    if totals[0] != totals[1]:
        found.said.append(f"steps, ids evicted and refused: {list(totals[0])} and {list(totals[1])}")


def _waiting(of: Checkpoint, table: str) -> tuple[dict[int, tuple[int, int]], tuple[int, int, int]]:
    """Ids without a row with their counts and clocks; the clock, and how many ids were evicted and refused."""
    waiting: dict[int, tuple[int, int]] = {}
    clock = evicted = refused = 0
    for path in of.part_paths(table):
        with opened(path) as file:
            known = read_admission(file)
        numbers = (known.pending_ids, known.pending_counts, known.pending_clocks)
        waiting |= {i: (n, c) for i, n, c in zip(*(x.tolist() for x in numbers), strict=True)}
        clock, evicted, refused = max(clock, known.clock), evicted + known.evicted, refused + known.refused
    return waiting, (clock, evicted, refused)


# ---- dense -----------------------------------------------------------------------------------------------------------


def _dense(a: Checkpoint, b: Checkpoint, tolerance: float) -> dict[str, dict[str, Any]]:
    """By group of dense ranks, as the file is called."""
    groups = max(int(of.state.get("groups", 1)) for of in (a, b))
    return {dense_file(g): _group(_state(a, g), _state(b, g), tolerance) for g in range(groups)}


def _state(of: Checkpoint, group: int) -> DenseState:
    try:
        return of.dense(group)
    except CheckpointError:
        if (of.folder / dense_file(group)).exists():
            raise
        return DenseState(parameters={}, optimizer={}, extra={})


def _group(a: DenseState, b: DenseState, tolerance: float) -> dict[str, Any]:
    x, y = _flat(a), _flat(b)
    out: dict[str, Any] = {"only_a": sorted(x.keys() - y.keys()), "only_b": sorted(y.keys() - x.keys())}
    values, shapes = {}, []
    for name in sorted(x.keys() & y.keys()):
        if np.shape(x[name]) != np.shape(y[name]):
            shapes.append(f"{name}: {list(np.shape(x[name]))} and {list(np.shape(y[name]))}")
            continue
        one = Values()
        one.add(x[name], y[name], tolerance)
        values[name] = one
    differ = {name: asdict(found) for name, found in values.items() if found.differ}
    wrong = bool(differ or shapes or out["only_a"] or out["only_b"])
    return {"differs": wrong, **out, "shapes": shapes, "compared": len(values), "values": differ}


def _flat(state: DenseState) -> Mapping[str, Any]:
    """Parameters, buffers and optimizer states by one name each."""
    states = {f"optimizer/{p}/{name}": value for p, of in state.optimizer.items() for name, value in of.items()}
    return {**state.parameters, **{f"extra/{n}": v for n, v in state.extra.items()}, **states}
