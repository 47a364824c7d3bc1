"""Whether a checkpoint is whole and sound: files, structure, values. Lists all that is wrong, not the first of it."""

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.dense import dense_file, read_dense, read_snapshot
from hpcrec.checkpoint.find import base_problem
from hpcrec.checkpoint.parts import (
    Admission,
    TableBlock,
    check_block,
    is_dynamic,
    opened,
    part_facts,
    read_admission,
)
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.tools.by_id import edges_of, in_ranges, together
from hpcrec.checkpoint.tools.look import checkpoint_at, reader_of
from hpcrec.checkpoint.tools.tables import TableFacts, ids_in, table_facts
from hpcrec.data.hdf5_lookup import found_in, items_in
from hpcrec.errors import CheckpointError

_BLOCK_ROWS = 1 << 16


@dataclass
class Verdict:
    """What was read of a checkpoint, and what is wrong with it.

    Attributes
    ----------
    files, n_bytes, tables, ids : int
        Files of the manifest, their bytes, tables, and ids with rows.
    problems : list of str
        Each names the file or table, and what was found.
    """

    path: Path
    files: int = 0
    n_bytes: int = 0
    tables: int = 0
    ids: int = 0
    problems: list[str] = field(default_factory=list)


def verify(path: Path, scratch: Path | None = None) -> Verdict:
    """Reads a checkpoint whole, or the newest of a run folder; that there is none is a problem as any.

    Parameters
    ----------
    scratch : Path, optional
        Folder with room for the ids of a table that has many; the system's for temporary files by default.
    """
    verdict = Verdict(path)
    try:
        folder = verdict.path = checkpoint_at(path)
        manifest = files.read_manifest(folder)
    except CheckpointError as error:
        verdict.problems.append(str(error))
        return verdict
    both = manifest["files"] | manifest.get("segments", {})
    verdict.files, verdict.n_bytes = len(both), sum(entry["bytes"] for entry in both.values())
    damaged = _damaged(folder, manifest)
    verdict.problems += damaged.values()
    base = files.base_of(folder, manifest)
    if base is not None and (wrong := base_problem(folder, manifest, base)):
        verdict.problems.append(wrong)
        return verdict
    try:
        checkpoint = reader_of(folder)
    except CheckpointError as error:
        if files.STATE not in damaged:
            verdict.problems.append(str(error))
        return verdict
    if "step" in checkpoint.state and checkpoint.state["step"] != checkpoint.step:
        verdict.problems.append(
            f"{folder / files.STATE}: step is {checkpoint.state['step']}, the manifest says {checkpoint.step}"
        )
    if checkpoint.base is not None:
        verdict.problems += verify(checkpoint.base.folder, scratch).problems
    verdict.problems += _links(checkpoint, damaged)
    for table in checkpoint.tables:
        verdict.tables += 1
        verdict.problems += _table(checkpoint, table, damaged, verdict, scratch)
    verdict.problems += _dense(checkpoint, manifest, damaged)
    return verdict


def _damaged(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Files that are not as the manifest says, and those that it does not list, by name."""
    listed, links = dict(manifest["files"]), dict(manifest.get("segments", {}))
    found = {name: text for name, entry in listed.items() if (text := files.file_damage(folder / name, entry))}
    found |= {name: text for name, entry in links.items() if (text := files.segment_damage(folder / name, entry))}
    listed |= links
    there = (str(p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file())
    stray = {n: f"{folder / n} is not in the manifest, which lists every file" for n in there if n not in listed}
    return found | {name: text for name, text in stray.items() if name != files.MANIFEST}


def _links(checkpoint: Checkpoint, damaged: dict[str, str]) -> Iterator[str]:
    """What is wrong in a store's files that are linked, but for those that are ``damaged``; they are, after that.

    Each block is read once, whatever the number of tables in it.
    """
    seen = set()
    for path in (path for table in checkpoint.tables for path in checkpoint.part_paths(table)):
        if str(path.relative_to(checkpoint.folder)) in damaged or (said := _linked_of(path)) is None:
            continue
        key = said["folder"], said["generation"], said["block"]
        if key in seen or any(name.startswith(f"{said['folder']}/") for name in damaged):
            continue
        seen.add(key)
        found = list(checkpoint.wrong_links(path))
        if found:
            damaged[f"{said['folder']}/"] = found[0]
        yield from found


def _linked_of(path: Path) -> dict[str, Any] | None:
    """What a part says of its rows where they are links; None where they are not, or where it cannot be read."""
    with contextlib.suppress(CheckpointError):  # which is said of the part
        linked: dict[str, Any] | None = part_facts(path)["linked"]
        return linked
    return None


# ---- tables ----------------------------------------------------------------------------------------------------------


def _table(
    checkpoint: Checkpoint, table: str, damaged: Mapping[str, str], verdict: Verdict, scratch: Path | None
) -> Iterator[str]:
    paths = [p for p in checkpoint.part_paths(table) if str(p.relative_to(checkpoint.folder)) not in damaged]
    found: list[str] = []
    broken = {name.partition("/")[0] for name in damaged}
    for path in paths:
        found += _part(checkpoint, path, table, broken)
    yield from found
    if any((said := _linked_of(path)) is not None and said["folder"] in broken for path in paths):
        return
    if found or len(paths) < len(checkpoint.part_paths(table)):
        return  # what is in no part, or in two, would follow from that
    try:
        facts = table_facts(checkpoint, table)
        verdict.ids += facts.ids
        yield from _coverage(checkpoint, facts, scratch)
    except CheckpointError as error:
        yield str(error)


def _part(checkpoint: Checkpoint, path: Path, table: str, broken: Collection[str]) -> Iterator[str]:
    """What is wrong with a part by itself: its structure, and values that are not finite."""
    wrong: dict[str, int] = {}
    try:
        facts = part_facts(path)
        start, stop, width = facts["column_start"], facts["column_stop"], facts["width"]
        if not 0 <= start < stop <= width:
            yield f"{path}: has columns {start} to {stop} of a table of width {width}"
            return
        if facts["linked"] is not None:
            if facts["linked"]["folder"] not in broken:
                yield from _linked_part(checkpoint, path, table, facts["n_ids"])
            return
        with opened(path) as file:
            if str(file.attrs["table"]) != table:
                yield f"{path}: is of table {str(file.attrs['table'])!r}, but in the folder of {table!r}"
            states = {files.unquoted(n): dataset for n, dataset in items_in(file, "state")}
            values = {"rows": found_in(file, "rows"), **states}
            for name, dataset in values.items():
                n_values = 0 if dataset is None else len(dataset)
                if n_values != facts["n_ids"]:
                    yield f"{path}: {name} has {n_values} entries for {facts['n_ids']} ids"
                    return
            for first in range(0, facts["n_ids"], _BLOCK_ROWS):
                here = slice(first, first + _BLOCK_ROWS)
                own = {name: dataset[here] for name, dataset in states.items()}
                block = TableBlock(ids=file["ids"][here], rows=file["rows"][here], states=own, columns=(start, stop))
                check_block(block, None if is_dynamic(file) else int(file.attrs["rows"]))
                for name, numbers in {"rows": block.rows, **own}.items():
                    if bad := int(numbers.size - np.isfinite(numbers).sum()):
                        wrong[name] = wrong.get(name, 0) + bad
            if found_in(file, "admission") is not None:
                yield from _admission(path, read_admission(file))
    except CheckpointError as error:
        yield str(error)
    for name, bad in wrong.items():
        yield f"{path}: {bad} values of {name} are not finite"


def _linked_part(checkpoint: Checkpoint, path: Path, table: str, n_ids: int) -> Iterator[str]:
    """The same of one whose rows are in a store's files."""
    wrong: dict[str, int] = {}
    n_found = 0
    with opened(path) as file:
        if str(file.attrs["table"]) != table:
            yield f"{path}: is of table {str(file.attrs['table'])!r}, but in the folder of {table!r}"
            return
        if found_in(file, "admission") is not None:
            yield from _admission(path, read_admission(file))
    for stretch in checkpoint.stretches(table):
        if stretch.path != path:
            continue
        block = checkpoint.block(stretch)
        n_found += len(block.ids)
        for name, numbers in {"rows": block.rows, **block.states}.items():
            if bad := int(numbers.size - np.isfinite(numbers).sum()):
                wrong[name] = wrong.get(name, 0) + bad
    if n_found != n_ids:
        yield f"{path}: has {n_found} rows for {n_ids} ids"
    for name, bad in wrong.items():
        yield f"{path}: {bad} values of {name} are not finite"


def _admission(path: Path, known: Admission) -> Iterator[str]:
    """What is known of ids, held to its own clock."""
    for name in ("counts", "clocks", "pending_counts", "pending_clocks"):
        values = getattr(known, name)
        if values is None or not len(values):
            continue
        last = known.clock if name.endswith("clocks") else None
        if values.min() < 0 or (last is not None and values.max() > last):
            yield (
                f"{path}: admission/{name} are {values.min()} to {values.max()}; allowed are 0 to "
                f"{'any' if last is None else f'the clock, {last}'}"
            )
    if len(np.unique(known.pending_ids)) < len(known.pending_ids):
        yield f"{path}: admission/pending_ids has ids more than once"


def _coverage(checkpoint: Checkpoint, facts: TableFacts, scratch: Path | None) -> Iterator[str]:
    """Ids whose columns are not all in exactly one part. Of rows only the ids are kept."""

    def places() -> Iterator[TableBlock]:
        """Column pieces, each as one column: all of its columns are where it is."""
        for block in checkpoint.table_parts(facts.name):
            for n in range(len(cuts) - 1):
                if block.columns[0] <= cuts[n] < block.columns[1]:
                    rows = np.zeros((len(block.ids), 1), np.uint8)
                    yield TableBlock(ids=block.ids, rows=rows, states={}, columns=(n, n + 1))

    columns = {
        facts_of[key] for facts_of in _headers(checkpoint, facts.name) for key in ("column_start", "column_stop")
    }
    cuts = sorted(columns | {0, facts.width})
    slim = TableFacts(**{**vars(facts), "width": len(cuts) - 1, "dtype": "uint8", "states": {}})
    edges = edges_of(slim, lambda: ids_in(checkpoint, facts.name))
    bounds = [None if facts.dynamic else 0, *edges.tolist(), None if facts.dynamic else facts.rows]
    for pieces, (start, stop) in zip(in_ranges(places, edges, scratch), itertools.pairwise(bounds), strict=True):
        for problem in together(pieces, slim, start, stop).problems:
            where = problem.replace(", column ", ", column piece ") if len(cuts) > 2 else problem
            yield f"{checkpoint.folder}: table {facts.name!r}: {where}"


def _headers(checkpoint: Checkpoint, table: str) -> Iterator[dict[str, Any]]:
    return (part_facts(path) for path in checkpoint.part_paths(table))


# ---- dense -----------------------------------------------------------------------------------------------------------


def _dense(checkpoint: Checkpoint, manifest: Mapping[str, Any], damaged: Mapping[str, str]) -> Iterator[str]:
    """Parameters, their optimizer state, snapshots and unsent gradients."""
    groups = checkpoint.state.get("groups", 1)
    names = set(manifest["files"]) - set(damaged)
    for group in range(groups):
        name = dense_file(group)
        path = checkpoint.folder / name
        if group and name not in manifest["files"]:
            yield f"{path} is missing: state.json says that there are {groups} groups of dense ranks"
        if name not in names:
            continue
        try:
            state = read_dense(path)
        except CheckpointError as error:
            yield str(error)
            continue
        yield from _nonfinite(path, "parameters", state.parameters)
        yield from _nonfinite(path, "extra", state.extra)
        for parameter, states in state.optimizer.items():
            yield from _nonfinite(path, f"optimizer/{parameter}", states)
            if parameter not in state.parameters:
                yield f"{path}: has optimizer state of {parameter!r}, which is none of its parameters"
    for name in sorted(n for n in names if n.startswith(files.SNAPSHOT) and "/" not in n):
        try:
            yield from _nonfinite(checkpoint.folder / name, "values", read_snapshot(checkpoint.folder / name))
        except CheckpointError as error:
            yield str(error)
    for part in range(checkpoint.residual_ranks):
        try:
            checkpoint.unsent(part)  # which are held to be finite there
        except CheckpointError as error:
            yield str(error)


def _nonfinite(path: Path, kind: str, values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        array = np.asarray(value)
        if array.dtype.kind == "f" and (bad := int(array.size - np.isfinite(array).sum())):
            yield f"{path}: {bad} values of {kind}/{name} are not finite"
