"""Dense parameters in a checkpoint: a file for each group of dense ranks, and what groups had of each other.

Knows arrays and files; does not know the model. The format is docs/checkpoint.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.parts import listed, read_hdf5
from hpcrec.data.hdf5_lookup import found_in, items_in
from hpcrec.errors import CheckpointError
from hpcrec.types import Floats

Number = float | int


@dataclass(frozen=True, kw_only=True)
class DenseState:
    """Dense parameters, their optimizer state by parameter and plain name, and further arrays such as buffers."""

    parameters: dict[str, Floats]
    optimizer: dict[str, dict[str, Floats | Number]]
    extra: dict[str, Floats | Number]


def dense_file(group: int) -> str:
    """The file of a group of dense ranks."""
    return f"{files.DENSE_GROUP}{group}.h5" if group else files.DENSE


def snapshot_file(group: int) -> str:
    """The file of what the other groups had of a group."""
    return f"{files.SNAPSHOT}{group}.h5"


def write_dense(file: h5py.File, state: DenseState) -> None:
    """Writes parameters and state. Values are NumPy arrays, torch tensors or numbers."""
    _put(file.create_group("parameters"), state.parameters)
    _put(file.create_group("extra"), state.extra)
    states = file.create_group("optimizer")
    for name, values in state.optimizer.items():
        _put(states.create_group(files.quoted(name)), values)


def read_dense(path: Path) -> DenseState:
    """What ``write_dense`` was given; left out is empty.

    Raises
    ------
    CheckpointError
        The file is not as it should be.
    """
    return read_hdf5(
        path,
        lambda file: DenseState(
            parameters=_arrays(file, "parameters"),
            optimizer={files.unquoted(n): _values(g) for n, g in items_in(file, "optimizer")},
            extra={} if (extra := found_in(file, "extra")) is None else _values(extra),
        ),
    )


def write_snapshot(file: h5py.File, values: Mapping[str, Any]) -> None:
    """Writes what the other groups have of a group: parameters and buffers alike."""
    _put(file.create_group("values"), values)


def read_snapshot(path: Path) -> dict[str, Floats | Number]:
    """What ``write_snapshot`` was given.

    Raises
    ------
    CheckpointError
        The file is not as it should be.
    """
    return read_hdf5(path, lambda file: _values(file["values"]))


def check_dense(
    folder: Path,
    state: DenseState,
    trained: Mapping[str, tuple[int, ...]],
    others: Mapping[str, tuple[int, ...]],
    *,
    some: bool = False,
) -> None:
    """Holds dense parameters to a model's, by name and shape.

    Parameters
    ----------
    folder : Path
        The checkpoint's, for messages.
    trained, others : mapping of str to tuple of int
        Shapes of those that are trained; of those that are not, and of buffers.
    some : bool
        The model has others besides.

    Raises
    ------
    CheckpointError
        The first parameter that is missing, of another shape, or unknown to the model.
    """
    for what, wanted, saved in (
        ("dense parameter", trained, state.parameters),
        ("dense parameter that is not trained, or buffer,", others, state.extra),
    ):
        check_values(folder, what, wanted, saved, some=some)


def check_values(
    folder: Path, what: str, wanted: Mapping[str, tuple[int, ...]], saved: Mapping[str, Any], *, some: bool = False
) -> None:
    """Holds values, called ``what``, to the shapes that are wanted; raises as ``check_dense``."""
    change = "Use the model.name and model.options that the checkpoint was trained with."
    found = {name: list(np.shape(value)) for name, value in saved.items()}
    for name, shape in wanted.items():
        if name not in found:
            raise CheckpointError(f"{folder}: has no {what} {name!r}. It has: {listed(found)}. {change}")
        if found[name] != list(shape):
            raise CheckpointError(
                f"{folder}: {what} {name!r} has shape {found[name]}, the model's has {list(shape)}. {change}"
            )
    if not some and (left := sorted(set(found) - set(wanted))):
        raise CheckpointError(f"{folder}: has {what} {left[0]!r}, which the model has not. {change}")


def _put(group: h5py.Group, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if hasattr(value, "detach"):  # a torch tensor; its own state may be one of a single number
            value = value.detach().cpu().numpy()
        group.create_dataset(files.quoted(name), data=value).attrs["number"] = isinstance(value, int | float)


def _values(group: h5py.Group) -> dict[str, Floats | Number]:
    return {files.unquoted(name): _value(group[name]) for name in group}


def _value(dataset: h5py.Dataset) -> Floats | Number:
    is_number = found_in(dataset.attrs, "number", False)
    return dataset[()].item() if is_number else np.asarray(dataset[()])


def _arrays(file: h5py.File, name: str) -> dict[str, Floats]:
    return {files.unquoted(inner): np.asarray(dataset[()]) for inner, dataset in items_in(file, name)}
