"""The dense part of an export: ``model.json``, a graph of torch's operators, and ``model.safetensors``, its weights.

The file lists calls, one a node: an operator by its name, and arguments. There is nothing else in it: no code, no
pickle, no expressions of sizes, no paths. All of it is checked before anything is computed: every entry is known, every
operator on the list of ``operators``, every argument a number, a flag, a text, a type, a weight or what an earlier node
gave, and every weight has the type and the shape that the graph says. torch is called with these alone, and reads
neither file. Then the graph is computed once, of zeros, so that one that does not fit its inputs is told when it is
read. How long it takes to compute, and how much memory, is not bounded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from hpcrec.again import read_numbers
from hpcrec.errors import CheckpointError, UnreadableError
from hpcrec.serving.entries import Entry, read_entries, shown
from hpcrec.serving.operators import ALLOWED, find_operator

FORMAT, VERSION = "hpcrec graph", 1
_TRIED = 3  # samples of zeros
_DEEPEST = 8  # lists in lists
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
MEMORY_FORMATS = {name: getattr(torch, name) for name in ("contiguous_format", "preserve_format")}


@dataclass(frozen=True)
class _Value:
    """What an input or an earlier node gave, by its name."""

    name: str


@dataclass(frozen=True)
class _Node:
    name: str
    operator: str
    compute: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    last: tuple[str, ...] = ()  # what no later node reads


class Graph:
    """A graph that was read and checked; computes logits.

    Parameters
    ----------
    model, weights : Path
        ``model.json`` and ``model.safetensors``.
    widths : sequence of int
        Of the inputs: dense inputs first, then each vector.
    labels : int
        Logits of a sample.
    dtype : torch.dtype
        Of the inputs.

    Raises
    ------
    CheckpointError
        Something in the files is not allowed, or the graph cannot be computed of such inputs.
    """

    def __init__(self, model: Path, weights: Path, widths: Sequence[int], labels: int, dtype: torch.dtype) -> None:
        self.file, self.labels = model, labels
        said = read_entries(model).fields(("format", "version", "inputs", "weights", "nodes", "output"))
        said["format"].one_of((FORMAT,))
        said["version"].whole(VERSION, VERSION)
        held = _read_weights(weights, said["weights"])
        self._inputs = [entry.text() for entry in said["inputs"].items()]
        if len(self._inputs) != len(widths) or len(set(self._inputs)) < len(widths):
            raise said["inputs"].refused(f"{len(widths)} names, each once: dense inputs and the vectors of export.json")
        known, nodes = set(self._inputs), []
        for entry in said["nodes"].items():
            nodes.append(_node(entry, known, held))
            known.add(nodes[-1].name)
        self._output = said["output"].text()
        if self._output not in known:
            raise said["output"].refused("the name of an input or of a node")
        self._nodes = _with_last_uses(nodes, self._output)
        with torch.no_grad():
            self(*(torch.zeros(_TRIED, width, dtype=dtype) for width in widths))

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Logits [B], or [B, L] of several labels, of dense inputs [B, N] and vectors [B, D].

        Raises
        ------
        CheckpointError
            A node cannot be computed, or the result is none.
        """
        values: dict[str, Any] = dict(zip(self._inputs, inputs, strict=True))
        for node in self._nodes:
            kwargs = {name: _filled(x, values) for name, x in node.kwargs.items()}
            try:
                values[node.name] = node.compute(*_filled(node.args, values), **kwargs)
            except Exception as error:  # torch raises all sorts of things
                said = " ".join(str(error).split())[:300]
                raise CheckpointError(
                    f"{self.file}: node {shown(node.name)} ({node.operator}) cannot be computed "
                    f"({type(error).__name__}: {said}). Allowed is a graph that fits its inputs. Export the run again."
                ) from error
            for name in node.last:
                del values[name]
        return self._checked(values[self._output], len(inputs[0]))

    def _checked(self, found: Any, n: int) -> Tensor:
        wanted = (n,) if self.labels == 1 else (n, self.labels)
        if isinstance(found, Tensor) and found.is_floating_point() and tuple(found.shape) == wanted:
            return found
        what = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else f"of type {type(found).__name__}"
        raise CheckpointError(
            f"{self.file}: its output {shown(self._output)} is {what}. Allowed: logits {list(wanted)}, of a type of "
            "floating point. Export the run again."
        )


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read_weights(path: Path, said: Entry) -> dict[str, Tensor]:
    """The weights, each with the type and the shape that the graph says."""
    try:
        found = load(read_numbers(path, np.uint8).tobytes())
    except UnreadableError:
        raise
    except Exception as error:  # of safetensors, of the disk
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path}: cannot be read ({type(error).__name__}: {reason}). Export the run again."
        ) from error
    declared = said.named()
    for name in sorted(found.keys() ^ declared.keys()):
        has, lacks = (path, said.file) if name in found else (said.file, path)
        raise CheckpointError(f"{has}: has the weight {shown(name)}, which {lacks} has not. Export the run again.")
    for name, entry in declared.items():
        fields = entry.fields(("dtype", "shape"))
        dtype = DTYPES[fields["dtype"].one_of(DTYPES)]
        shape = [size.whole() for size in fields["shape"].items()]
        if found[name].dtype != dtype or list(found[name].shape) != shape:
            there = f"{str(found[name].dtype).removeprefix('torch.')} {list(found[name].shape)}"
            raise CheckpointError(
                f"{path}: weight {shown(name)} is {there}; {said.file.name} says {fields['dtype'].value} {shape}. "
                "Export the run again."
            )
        if dtype == torch.bool:  # of which a byte may be neither 0 nor 1
            found[name] = found[name].view(torch.uint8) != 0
    return found


def _node(entry: Entry, known: set[str], weights: Mapping[str, Tensor]) -> _Node:
    fields = entry.fields(("name", "operator", "args"), ("kwargs",))
    name, operator = fields["name"].text(), fields["operator"].text()
    if name in known:
        raise fields["name"].refused("a name that no input and no other node has")
    compute = find_operator(operator)
    if compute is None:
        raise fields["operator"].refused(ALLOWED)
    args = [_argument(x, known, weights) for x in fields["args"].items()]
    named = fields["kwargs"].named() if "kwargs" in fields else {}
    return _Node(name, operator, compute, args, {key: _argument(x, known, weights) for key, x in named.items()})


def _argument(entry: Entry, known: set[str], weights: Mapping[str, Tensor], depth: int = _DEEPEST) -> Any:
    value = entry.value
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return entry.whole(-(2**63))
    if isinstance(value, list):
        if depth == 0:
            raise entry.refused(f"lists in lists, {_DEEPEST} deep")
        return [_argument(item, known, weights, depth - 1) for item in entry.items()]
    allowed = "a number, true, false, null, text, a list of such, or an object with one of value, weight, dtype and "
    if len(value) != 1:
        raise entry.refused(f"{allowed}memory_format")
    ((kind, of),) = entry.named().items()
    match kind:
        case "value":
            if of.text() not in known:
                raise of.refused("the name of an input or of an earlier node")
            return _Value(of.text())
        case "weight":
            return weights[of.one_of(weights)]
        case "dtype":
            return DTYPES[of.one_of(DTYPES)]
        case "memory_format":
            return MEMORY_FORMATS[of.one_of(MEMORY_FORMATS)]
    raise entry.refused(f"{allowed}memory_format")


def _with_last_uses(nodes: Sequence[_Node], output: str) -> list[_Node]:
    """The nodes, each with what it is the last to read, so that memory is let go of as soon as it can be."""
    needed, found = {output}, []
    for node in reversed(nodes):
        read = {node.name, *_names([node.args, list(node.kwargs.values())])}
        found.append(_Node(node.name, node.operator, node.compute, node.args, node.kwargs, tuple(read - needed)))
        needed |= read
    return found[::-1]


def _names(x: Any) -> set[str]:
    if isinstance(x, list):
        return set().union(*map(_names, x))
    return {x.name} if isinstance(x, _Value) else set()


def _filled(x: Any, values: Mapping[str, Any]) -> Any:
    """An argument with values in the places of their names."""
    if isinstance(x, _Value):
        return values[x.name]
    return [_filled(item, values) for item in x] if isinstance(x, list) else x
