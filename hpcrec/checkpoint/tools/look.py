"""What is in a checkpoint: position, tables, dense parameters, what wrote it. Reads headers, not rows."""

from pathlib import Path
from typing import Any

from hpcrec.checkpoint import files
from hpcrec.checkpoint.dense import dense_file
from hpcrec.checkpoint.parts import opened
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.checkpoint.tools.tables import table_facts
from hpcrec.data.hdf5_lookup import items_in
from hpcrec.errors import CheckpointError

_SAID = ("seed", "batch_size", "dtype", "shuffle", "skipped_steps")  # entries of state.json that are shown as they are


def checkpoint_at(path: Path) -> Path:
    """The folder of a checkpoint: the one given, or the newest of a run folder.

    Raises
    ------
    CheckpointError
        It is neither.
    """
    if (path / files.MANIFEST).is_file():
        return path
    steps = files.steps_in(path)
    if steps:
        return files.step_folder(path, steps[-1])
    raise CheckpointError(
        f"{path}: has neither a {files.MANIFEST}, as a checkpoint has, nor checkpoints/step-<n>, as a run folder has. "
        "Give one of the two."
    )


def reader_of(folder: Path) -> Checkpoint:
    """A checkpoint, by whichever program it was written, to be looked at.

    Raises
    ------
    CheckpointError
        It cannot be read; what its state says is of another type than is wanted here.
    """
    checkpoint = Checkpoint(folder)
    for name, kind, said in (
        ("groups", int, "a number"),
        ("progress", dict, "an object"),
        ("ran_on", dict, "an object"),
    ):
        found = checkpoint.state.get(name)
        if found is not None and not isinstance(found, kind):
            raise CheckpointError(f"{folder / files.STATE}: {name} is {found!r}, not {said}. See docs/checkpoint.md.")
    return checkpoint


def look(path: Path) -> dict[str, Any]:
    """What is in the checkpoint at ``path`` (see ``checkpoint_at``), as JSON-like values.

    Raises
    ------
    CheckpointError
        It cannot be read.
    """
    checkpoint = reader_of(checkpoint_at(path))
    state, folder = checkpoint.state, checkpoint.folder
    manifest = files.read_manifest(folder)
    found = manifest["files"], manifest.get("segments", {})
    progress = state.get("progress") or {}
    best = files.read_best(folder.parent.parent) if folder.parent.name == "checkpoints" else None
    groups = state.get("groups", 1)
    dense = {name: _dense(folder / name) for g in range(groups) if (name := dense_file(g)) in manifest["files"]}
    return {
        "path": str(folder),
        "step": checkpoint.step,
        "base": None if checkpoint.base is None else checkpoint.base.step,
        "samples": progress.get("samples"),
        "best": None if best is None else best["step"] == checkpoint.step,
        "bytes": sum(int(entry["bytes"]) for of in found for entry in of.values()),
        "files": sum(map(len, found)),
        "linked_bytes": sum(int(entry["bytes"]) for entry in found[1].values()),
        **{name: state[name] for name in _SAID if name in state},
        "groups": groups,
        "tables": {name: _table(checkpoint, name) for name in checkpoint.tables},
        "dense": dense,
        "unsent_gradients_of_ranks": checkpoint.residual_ranks,
        "ran_on": state.get("ran_on", {}),
    }


def _table(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    facts = table_facts(checkpoint, name)
    return {
        "rows": facts.rows,
        "width": facts.width,
        "kind": "dynamic" if facts.dynamic else "hashed" if facts.hashed else "declared",
        "ids": facts.ids,
        "dtype": facts.dtype,
        "states": {n: "a value" if dims == 2 else "a row" for n, dims in facts.states.items()},
        "parts": facts.parts,
        "column_pieces": facts.columns,
        "bytes": facts.n_bytes,
    }


def _dense(path: Path) -> dict[str, Any]:
    """Shapes of the parameters and buffers of a group of dense ranks, and the states that its optimizer keeps."""
    with opened(path) as file:
        parameters, extra = items_in(file, "parameters"), items_in(file, "extra")
        states = {files.unquoted(name) for _, group in items_in(file, "optimizer") for name in group}
        elements = sum(dataset.size for _, dataset in parameters)
        shapes, buffers = _shapes(parameters), _shapes(extra)
    return {
        "parameters": shapes,
        "buffers": buffers,
        "elements": int(elements),
        "optimizer_states": sorted(states),
        "bytes": path.stat().st_size,
    }


def _shapes(datasets: list[tuple[str, Any]]) -> dict[str, list[int]]:
    return {files.unquoted(name): list(dataset.shape) for name, dataset in datasets}
