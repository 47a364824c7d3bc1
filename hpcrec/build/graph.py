"""From torch's graph of a model to that of an export: calls of operators as JSON, weights as safetensors.

Knows ``torch.export`` and what ``serving.graph`` reads; knows no model.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import Node

from hpcrec.data.files import synced, write_text, writing
from hpcrec.errors import ConfigError
from hpcrec.serving.graph import DTYPES, FORMAT, MEMORY_FORMATS, VERSION
from hpcrec.serving.operators import ALLOWED, NAME_OF, find_operator

_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_PLACES = ("device", "layout", "pin_memory")  # arguments that are not written: on a CPU all have their defaults
_METADATA = torch.ops.aten._assert_tensor_metadata.default  # says what holds of every graph as it was made


class NotExportableError(Exception):
    """What a graph has and an export cannot hold."""


def write_graph(program: ExportedProgram, model: str, graph: Path, weights: Path) -> None:
    """Writes both files.

    Parameters
    ----------
    program : ExportedProgram
        Of a function from dense inputs and vectors to logits, on a CPU.
    model : str
        Its name, for errors.

    Raises
    ------
    ConfigError
        The graph has what an export cannot hold: an operator that is not allowed, or another output than logits.
    OutputError
        A file cannot be written.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)  # of torch's own copies
        program = program.run_decompositions({})  # no regions of autocast any more, no writing in place
    try:
        written, held = _written(program)
    except NotExportableError as error:
        raise ConfigError(
            f"model {model}: its graph has {error} (docs/checkpoint.md, An export). Change its forward."
        ) from error
    write_text(graph, json.dumps(written, indent=1) + "\n")
    with writing(weights), synced(weights) as file:
        file.write(save(held))


def _written(program: ExportedProgram) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``model.json`` says, and the weights by name."""
    signature = program.graph_signature
    stored = {**program.state_dict, **program.constants}
    inputs: list[str] = []
    weight_of: dict[str, str] = {}  # by the name of the placeholder
    for spec in signature.input_specs:
        if spec.kind == InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument):
            inputs.append(spec.arg.name)
        elif spec.kind in _WEIGHTS and spec.target is not None:
            weight_of[spec.arg.name] = spec.target
        else:
            raise NotExportableError(f"an input of kind {spec.kind.name}; allowed are tensors")
    outputs = signature.output_specs
    if [spec.kind for spec in outputs] != [OutputKind.USER_OUTPUT] or not isinstance(outputs[0].arg, TensorArgument):
        kinds = ", ".join(spec.kind.name for spec in outputs)
        raise NotExportableError(f"outputs {kinds}; allowed is one tensor, the logits, and no change of buffers")
    calls = [n for n in program.graph.nodes if n.op not in ("placeholder", "output") and n.target != _METADATA]
    nodes = [_node(node, weight_of) for node in calls]
    output = outputs[0].arg.name
    if output in weight_of:
        raise NotExportableError("a weight as its output; allowed are logits of samples")
    held = {name: stored[name].detach().contiguous().clone() for name in sorted({*weight_of.values()})}
    said = {name: {"dtype": _dtype(value.dtype), "shape": list(value.shape)} for name, value in held.items()}
    graph = {"format": FORMAT, "version": VERSION, "inputs": inputs, "weights": said, "nodes": nodes, "output": output}
    return graph, held


def _node(node: Node, weight_of: dict[str, str]) -> dict[str, Any]:
    name = NAME_OF.get(node.target, str(node.target))
    if node.op != "call_function" or find_operator(name) is None:
        raise NotExportableError(f"the operator {name}; allowed are {ALLOWED}")
    kwargs = {k: _argument(x, weight_of) for k, x in node.kwargs.items() if k not in _PLACES}
    args = [_argument(x, weight_of) for x in node.args]
    return {"name": node.name, "operator": name, "args": args, **({"kwargs": kwargs} if kwargs else {})}


def _argument(x: Any, weight_of: dict[str, str]) -> Any:
    if isinstance(x, Node):
        return {"weight": weight_of[x.name]} if x.name in weight_of else {"value": x.name}
    if isinstance(x, list | tuple):
        return [_argument(item, weight_of) for item in x]
    if isinstance(x, torch.dtype):
        return {"dtype": _dtype(x)}
    if isinstance(x, torch.memory_format):
        return {"memory_format": _named(x, MEMORY_FORMATS)}
    if x is None or isinstance(x, bool | int | float | str):
        return x
    raise NotExportableError(f"an argument of type {type(x).__name__}")


def _dtype(dtype: torch.dtype) -> str:
    return _named(dtype, DTYPES)


def _named(x: Any, names: dict[str, Any]) -> str:
    for name, known in names.items():
        if x == known:
            return name
    raise NotExportableError(f"{x}; allowed are {', '.join(names)}")
