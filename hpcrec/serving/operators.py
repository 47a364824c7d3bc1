"""Which operators the graph of an export may hold: a list of names, and torch is asked for nothing that is not on it.

A graph comes as a file that anyone may have written. torch has operators that read and write files
(``aten.from_file``), that take memory without looking at its bounds (``aten._sparse_csr_tensor_unsafe``,
``aten.set_``), that hand out memory as it was (``aten.empty``), that run a module or a stored object (higher-order and
TorchScript ones); and a name such as ``torch.hub.load`` or ``operator.attrgetter``, looked up by attribute, is Python.
So operators are allowed by name, not refused by name: what the models here are made of, and what a model of one's own
is likely to be: arithmetic, comparisons, reductions, products, shapes, selections, activations and normalisations. Of a
name every overload will do that writes into none of its arguments and returns tensors, but those in ``_REFUSED``. What
torch does not check of their arguments is checked by ``arguments`` before each call. A model that needs another is
refused when it is exported; its name is then added here, once it is sure that it touches neither files nor memory
outside of its tensors, whatever it is given (``tests/bad_input/operators.py`` draws arguments, and tensors that lie
before memory that cannot be read).
"""

import operator
from collections.abc import Callable
from typing import Any

import torch

from hpcrec.serving.arguments import checked

# Arithmetic; comparisons; reductions; products; shapes; selections; new tensors; activations and normalisations.
_NAMES = """
abs add addcdiv addcmul ceil clamp clamp_max clamp_min div divide exp exp2 expm1 floor floor_divide fmod frac lerp
log log10 log1p log2 logaddexp maximum minimum mul multiply neg pow reciprocal remainder round rsqrt rsub sign sqrt
square sub subtract true_divide trunc xlogy acos acosh asin asinh atan atan2 atanh cos cosh erf erfc sin sinc sinh
tan tanh

bitwise_and bitwise_not bitwise_or bitwise_xor eq ge gt isfinite isinf isnan le logical_and logical_not logical_or
logical_xor lt nan_to_num ne where

all amax amin any argmax argmin cummax cummin cumprod cumsum logsumexp max mean median min norm prod std sum var
var_mean linalg_vector_norm

addbmm addmm addmv baddbmm bmm dot einsum inner linear matmul mm mv outer tensordot bilinear conv1d conv2d
convolution cosine_similarity scaled_dot_product_attention

_to_copy _unsafe_view alias broadcast_to cat clone concat constant_pad_nd contiguous detach diagonal expand
expand_as flatten flip lift_fresh lift_fresh_copy movedim pad permute repeat repeat_interleave reshape roll squeeze
stack t to tril triu transpose type_as unflatten unsqueeze view view_as

chunk embedding gather index index_select masked_fill narrow one_hot scatter scatter_add select slice sort split
split_with_sizes take_along_dim topk unbind

arange full full_like linspace new_full new_ones new_zeros ones ones_like scalar_tensor tril_indices triu_indices zeros
zeros_like

celu elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax mish prelu relu relu6
selu sigmoid silu softmax softplus _log_softmax _softmax _native_batch_norm_legit_no_training group_norm
layer_norm native_group_norm native_layer_norm rms_norm avg_pool1d avg_pool2d max_pool1d max_pool2d
"""
_ATEN = frozenset(_NAMES.split())
# Bytes as another type, of which truth values may be neither 0 nor 1; and casts that take a type as a number.
_REFUSED = frozenset(("view.dtype", "to.prim_Device", "to.prim_dtype", "to.prim_other"))


def _of_whole_numbers(function: Callable[..., int]) -> Callable[..., int]:
    """The same for whole numbers of 64 bits alone: sizes are no others, and Python's may grow without end."""

    def checked(*numbers: int) -> int:
        for number in numbers:
            _check_word(number)
        return _check_word(function(*numbers))

    return checked


def _check_word(number: Any) -> int:
    if type(number) is not int or not -(2**63) <= number < 2**63:
        raise TypeError("its arguments and its result have to be whole numbers of 64 bits")
    return number


def _item(of: Any, at: int) -> Any:
    """A tensor of several that an operator returned."""
    if not isinstance(of, list | tuple) or type(at) is not int:
        raise TypeError("its arguments have to be the result of an operator that returns several, and a whole number")
    return of[at]


def _size(tensor: torch.Tensor, at: int) -> int:
    """A size of a tensor."""
    return int(tensor.size(at))


# By Python's function, as a graph of torch.export holds it: its name in the file. What is done is beside it.
NAME_OF: dict[Any, str] = {
    function: f"operator.{function.__name__}"
    for function in (
        *(operator.getitem, operator.add, operator.sub, operator.mul),
        *(operator.floordiv, operator.mod, operator.neg),
    )
}
_PYTHON: dict[str, Callable[..., Any]] = {
    name: _item if function is operator.getitem else _of_whole_numbers(function) for function, name in NAME_OF.items()
}
_PYTHON["aten.sym_size.int"] = _size  # the one of torch's that returns a number
ALLOWED = f"{', '.join(_PYTHON)}, and those of torch.ops.aten that hpcrec/serving/operators.py lists"


def find_operator(name: str) -> Callable[..., Any] | None:
    """What computes an operator, by its name (``aten.add.Tensor``, ``operator.mul``); None: it is not allowed."""
    if name in _PYTHON:
        return _PYTHON[name]
    namespace, _, rest = name.partition(".")
    base, _, overload = rest.partition(".")
    if namespace != "aten" or base not in _ATEN or rest in _REFUSED:
        return None
    packet = getattr(torch.ops.aten, base)
    if overload not in packet.overloads():
        return None
    found = getattr(packet, overload)
    return checked(found) if _returns_tensors(found._schema) else None


def _returns_tensors(schema: torch.FunctionSchema) -> bool:
    writes = any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)
    return (
        bool(schema.returns) and not writes and all(str(r.type) in ("Tensor", "List[Tensor]") for r in schema.returns)
    )
