"""What has to hold of an operator's arguments before torch computes it, where torch itself does not look.

torch checks indices and most sizes, and not all: some operators read as far as a number says, some multiply or add
sizes of 64 bits that wrap around, and types, layouts and missing tensors are taken as they come. So of every operator
each argument has the kind that its schema says, numbers and results stay far from where sizes wrap around, and the
operators that torch is known to leave unchecked have a check of their own. Knows nothing of files and of graphs.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_MOST = 2**40  # elements of a result, and numbers that say sizes: above any memory, far below where 64 bits end
_WINDOW = 2**15  # kernels, strides, paddings and dilations: a product of two fits in 32 bits, which some kernels use
_PLACES = ("device", "layout", "pin_memory")
_CLAMPED = ("start", "end")  # of a slice, which torch brings into the tensor; the end is often the largest number


def checked(operator: Any) -> Callable[..., Any]:
    """The operator, which raises TypeError or ValueError for arguments that it must not be given."""
    schema = operator._schema
    check, names = _CHECKS.get(schema.name.removeprefix("aten::")), [a.name for a in schema.arguments]
    optional = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}

    def compute(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for argument in schema.arguments:
            if argument.name in given:
                _check_kind(argument, given[argument.name], schema.name == "aten::slice")
        if check is not None:
            check({**optional, **given})
        found = operator(*args, **kwargs)
        for tensor in [found] if isinstance(found, Tensor) else found:
            _check_elements(tensor)
        return found

    return compute


def _check_kind(argument: Any, value: Any, of_slice: bool) -> None:
    name, kind = argument.name, str(argument.real_type)
    if name in _PLACES and value not in (None, False):
        raise ValueError(f"{name} is given, which an export does not do")
    if "ScalarType" in kind and not isinstance(value, torch.dtype | None):
        raise TypeError(f"{name} has to be a dtype")
    if "MemoryFormat" in kind and not isinstance(value, torch.memory_format | None):
        raise TypeError(f"{name} has to be a memory_format")
    if kind == "Tensor" and value is None:
        raise TypeError(f"{name} has to be a tensor")
    if kind == "List[Tensor]" and any(not isinstance(item, Tensor) for item in value):
        raise TypeError(f"{name} has to be a list of tensors")
    if "int" in kind and not (of_slice and name in _CLAMPED):
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int) and abs(number) > _MOST:
                raise ValueError(f"{name} is {number}, and at most 2**40 is allowed")


def _check_elements(tensor: Tensor) -> None:
    if math.prod(max(size, 1) for size in tensor.shape) > _MOST:
        raise ValueError(f"its result is {list(tensor.shape)}, and at most 2**40 elements are allowed")


# ---- operators that torch does not check -----------------------------------------------------------------------------

Given = dict[str, Any]  # arguments by name, those with a default too


def _check_length(given: Given, names: Sequence[str], n: int) -> None:
    for name in names:
        tensor = given[name]
        if tensor is not None and tuple(tensor.shape) != (n,):
            raise ValueError(f"{name} has the shape {list(tensor.shape)}, and [{n}] is needed")


def _batch_norm(given: Given) -> None:
    """Statistics and weights of channels are read up to the number of channels."""
    x = given["input"]
    if x.dim() < 2:
        raise ValueError(f"input has the shape {list(x.shape)}, and channels are needed")
    for name in ("running_mean", "running_var"):
        if given[name] is None:
            raise ValueError(f"{name} is missing")
    _check_length(given, ("running_mean", "running_var", "weight", "bias"), x.shape[1])


def _group_norm(given: Given) -> None:
    """Sizes are said beside the tensor; torch compares their product, which may wrap around, with its own."""
    x, groups = given["input"], given["group"]
    batch, channels, rest = sizes = [given[name] for name in ("N", "C", "HxW")]
    if min(sizes) < 0 or x.dim() < 2 or (batch, channels) != tuple(x.shape[:2]) or rest != math.prod(x.shape[2:]):
        raise ValueError(f"N, C, HxW are {sizes}, and the input has the shape {list(x.shape)}")
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels cannot be divided into {groups} groups")
    _check_length(given, ("weight", "bias"), channels)


def _repeat_interleave(given: Given) -> None:
    """The sum of repeats may wrap around, and as many elements are written as they say."""
    repeats = given["repeats"]
    if isinstance(repeats, Tensor) and repeats.numel():
        if repeats.dtype not in (torch.int64, torch.int32) or int(repeats.min()) < 0:
            raise ValueError("repeats have to be whole numbers that are not negative")
        if int(repeats.max()) * repeats.numel() > _MOST:
            raise ValueError("repeats ask for more than 2**40 elements")


def _divide(given: Given) -> None:
    """The smallest whole number by -1 does not fit, which the processor ends the program for."""
    x, by = (torch.as_tensor(given[name]) for name in ("self", "other"))
    kind = torch.result_type(given["self"], given["other"])
    if given.get("rounding_mode") != "trunc" or kind.is_floating_point or kind == torch.bool:
        return
    if bool((by == -1).any()) and bool((x == torch.iinfo(kind).min).any()):
        raise ValueError(f"the smallest number of {kind} cannot be divided by -1")


def _windows(given: Given) -> None:
    """Kernels, strides, paddings and dilations are multiplied, some as numbers of 32 bits."""
    for name in ("kernel_size", "stride", "padding", "dilation", "output_padding", "groups"):
        value = given.get(name)
        for number in value if isinstance(value, list | tuple) else [value]:
            if isinstance(number, int) and not (0 if "padding" in name else 1) <= number <= _WINDOW:
                raise ValueError(f"{name} is {value}; allowed are numbers up to {_WINDOW}, above 0 but for paddings")


def _pad(given: Given) -> None:
    """What is cut off is no more than there is."""
    x, pads = given["self"], given["pad"]
    for i, n in enumerate(pads):
        if i // 2 >= x.dim() or n < -x.shape[-1 - i // 2]:
            raise ValueError(f"pad is {list(pads)}, which a tensor of the shape {list(x.shape)} cannot be given")


def _attention(given: Given) -> None:
    """Keys and values are read for each batch and head of the queries, and values up to the length of the keys."""
    query, key, value = (given[name] for name in ("query", "key", "value"))
    if min(x.dim() for x in (query, key, value)) < 2 or key.shape[:-1] != value.shape[:-1]:
        raise ValueError(f"key and value have the shapes {list(key.shape)} and {list(value.shape)}")
    if query.shape[:-2] != key.shape[:-2] or query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query and key have the shapes {list(query.shape)} and {list(key.shape)}")
    if given["enable_gqa"]:
        raise ValueError("enable_gqa is not allowed")


def _triangle(given: Given) -> None:
    """Indices are counted by a product of both sizes."""
    if min(given["row"], given["col"]) < 0 or given["row"] * given["col"] > _MOST:
        raise ValueError(f"row and col are {given['row']} and {given['col']}; allowed are 2**40 elements")


_CHECKS: dict[str, Callable[[Given], None]] = {
    "_native_batch_norm_legit_no_training": _batch_norm,
    "native_group_norm": _group_norm,
    "repeat_interleave": _repeat_interleave,
    **dict.fromkeys(("div", "divide"), _divide),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d"), _windows),
    **dict.fromkeys(("conv1d", "conv2d", "convolution"), _windows),
    **dict.fromkeys(("constant_pad_nd", "pad"), _pad),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("tril_indices", "triu_indices"), _triangle),
}
