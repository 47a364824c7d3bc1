"""What an operator is: a function of pooled vectors that can be computed in parts.

Knows torch and the lookups that an operator reads; does not know which rank holds which row, nor what crosses between
ranks. Source: [DES].

Legend: ``B`` samples, ``F`` lookups of the operator, ``D`` row width.
"""

import math
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from itertools import accumulate
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpcrec.errors import ConfigError
from hpcrec.types import POOLINGS, Lookup


@runtime_checkable
class Operator(Protocol):
    """A function of pooled vectors that splits into partial results, one for each holder of rows.

    Let holder p have the rows ``W_p`` and let ``x_p`` be those ids of a sample that it holds. An operator is
    ``finish(partial(x_1; W_1) + ... + partial(x_P; W_P))``, where ``+`` stands for ``reduce``, which is associative
    and commutative. So the model receives the same number, up to the order of summation, wherever the partials were
    computed: all on the dense rank that pooled the vectors itself (``finish(partial(pooled))``), or one on each holder.

    ``partial`` gets a vector for each of the operator's lookups that a holder has, in their order; zeros stand for an
    empty bag, which is the neutral element of every reduction here. An operator whose dense parameters holders may
    train is ``Learned``.

    All methods are plain torch and run under autograd: the gradients need no code of their own.

    Three more attributes may be left out, and say what an operator needs (``is_pooled``, ``meets``,
    ``has_parameters``):

    ``pooled`` = True
        It reads one vector a lookup and sample, the pooled bag. False: a vector for each id of a bag, and the lengths
        of bags, to pool them itself (sequences). No form hands these out yet, so such an operator is refused.
    ``meets`` = False
        Its partial result is defined over any of its lookups. True: only over all of them together, for it is no
        reduction over lookups (a tower). So it is computed where all their vectors meet, which is the dense rank, or an
        owner of the host that has all their rows (``shapes`` says then what it sends); ``reduce`` is never called.
    ``parametrized`` = False
        Its result follows from vectors alone. True: from dense parameters of the model too, which are no weights of a
        lookup each, so that another model of the same kind has another result. Where it meets at owners these are the
        parameters of its ``module``, which is a module of the model, and used by nothing else.

    Attributes
    ----------
    lookups : tuple of Lookup
        What is read. All tables have the same width.
    width : int
        ``D``, the width of those tables.
    shapes : tuple of tuple of int, or None
        Shape of each tensor of a partial result, without B, where holders may compute it, over any of the lookups; None
        where their partial result is the pooled vectors themselves.
    by_column : tuple of bool
        For each of those tensors, whether its last dimension is that of the columns: of holders that have some columns
        of every row it holds those; the others are sums over columns too.
    splits_bags : bool
        Whether a bag may be split over holders.
    """

    @property
    def lookups(self) -> tuple[Lookup, ...]:
        """What is read, in the order of ``pooled_BFD``."""

    @property
    def width(self) -> int:
        """Width of every table that is read."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...] | None:
        """Of the tensors of a partial result, without B."""

    @property
    def by_column(self) -> tuple[bool, ...]:
        """Of the tensors of a partial result: whether it has columns, or sums over them."""

    @property
    def splits_bags(self) -> bool:
        """Whether a bag may be split over holders."""

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        """Partial result of one holder: tensors whose first dimension is B."""

    def reduce(self, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Partial result of both holders; over the same columns, all of them or those that both have."""

    def finish(self, partials: tuple[Tensor, ...]) -> Tensor:
        """What the model receives, from the partial result of all holders."""


@runtime_checkable
class Learned(Operator, Protocol):
    """An operator with dense parameters, one for each lookup, that are trained where it is computed.

    A holder that computes it has, of each of its lookups there, those rows of the weight that meet its columns, and
    trains them by what the ``[dense]`` section says; they change nowhere else meanwhile. So the partial result has to
    be a sum over lookups and columns. Each weight is also a parameter of the model, under a name by which it is saved,
    and used by nothing else.

    Attributes
    ----------
    weights : tuple of nn.Parameter [D, ...]
        Of each lookup: a row for each of its columns; two dimensions or more.
    """

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """Of each lookup: a row for each of its columns."""

    def over(self, lookups: Sequence[Lookup], weights: Sequence[nn.Parameter]) -> "Learned":
        """The same operator over some of the lookups, with these weights: [columns, ...], the same columns of all."""


def weights_of(operator: Operator, lookups: Sequence[Lookup]) -> list[nn.Parameter]:
    """The dense parameters of these lookups; none of an operator that has none."""
    if not isinstance(operator, Learned):
        return []
    weight_of = dict(zip(operator.lookups, operator.weights, strict=True))
    return [weight_of[k] for k in lookups]


def over(operator: Operator, lookups: Sequence[Lookup]) -> Operator:
    """The operator as it is computed of some of its lookups."""
    if tuple(lookups) == operator.lookups or not isinstance(operator, Learned):
        return operator
    return operator.over(lookups, weights_of(operator, lookups))


def is_pooled(operator: Operator) -> bool:
    """Whether it reads pooled vectors; of an operator that does not say so it does."""
    return bool(getattr(operator, "pooled", True))


def meets(operator: Operator) -> bool:
    """Whether its partial result exists only where all of its lookups meet; of one that does not say so it does not."""
    return bool(getattr(operator, "meets", False))


def module_of(operator: Operator) -> nn.Module | None:
    """The module of one that meets: whose parameters are trained where it is computed."""
    module = getattr(operator, "module", None)
    return module if meets(operator) and isinstance(module, nn.Module) else None


def module_weights(operator: Operator) -> list[nn.Parameter]:
    """Dense parameters of the module of one that meets."""
    module = module_of(operator)
    return [] if module is None else list(module.parameters())


def layer_elements(operator: Operator) -> int:
    """Elements that the linear layers of the module of one that meets make of a sample."""
    module = module_of(operator)
    return 0 if module is None else sum(int(getattr(m, "out_features", 0)) for m in module.modules())


def why_on_dense_ranks(operator: Operator) -> str:
    """Of one that meets: why dense ranks have to compute it, wherever its rows are; empty where owners may.

    Owners save parameters of a module and nothing else, and each has other samples than a dense rank.
    """
    module = module_of(operator)
    if operator.shapes is None:
        return "it does not say what its result is (shapes)"
    if has_parameters(operator) and module is None:
        return "it has dense parameters, and no module that says which"
    for name, part in () if module is None else module.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            return f"its module draws random numbers ({name or type(part).__name__}), other ones at each owner"
        if isinstance(part, nn.modules.batchnorm._NormBase):
            return f"its module computes with other samples of its part of a batch ({name or type(part).__name__})"
    saved = set() if module is None else module.state_dict().keys() - {name for name, _ in module.named_parameters()}
    if saved:
        return f"its module has a buffer ({min(saved)}), which only dense ranks save"
    for name, weight in () if module is None else module.named_parameters():
        if weight.ndim == 0:
            return f"parameter {name} of its module has no dimension; give it one"
    return ""


def shared_parameters(name: str, operators: Mapping[str, Operator]) -> str:
    """Which other operator has parameters of the module of one that meets too, as a reason; empty where none has."""
    mine = {id(weight) for weight in module_weights(operators[name])}
    for other, operator in operators.items():
        theirs = (*module_weights(operator), *weights_of(operator, operator.lookups))
        if other != name and not mine.isdisjoint(map(id, theirs)):
            return f"operator {other!r} has parameters of its module too"
    return ""


def with_module(operator: Operator) -> Operator:
    """One that meets, with a module of its own on the host that has the values of the other now; itself without one."""
    module = module_of(operator)
    if module is None:
        return operator
    own = copy(operator)
    object.__setattr__(own, "module", deepcopy(module).cpu())  # operators are frozen, most of them
    return own


def has_parameters(operator: Operator) -> bool:
    """Whether its result follows from dense parameters too."""
    return isinstance(operator, Learned) or bool(getattr(operator, "parametrized", False))


def check_pooled(operators: Mapping[str, Operator]) -> None:
    """Refuse what no form can hand out.

    Raises
    ------
    ConfigError
        An operator asks for its vectors unpooled.
    """
    for name, operator in operators.items():
        if not is_pooled(operator):
            raise ConfigError(
                f"model: operator {name!r}, a {type(operator).__name__}, asks for its vectors unpooled (its pooled is "
                "False), but every form hands out one vector a bag. Allowed: pooled = True, or no such attribute. "
                "Have its lookups pooled by 'sum', 'mean' or 'max', and change partial to take [B, F, D] of them."
            )


OPERATOR_ATTRIBUTES = ("lookups", "width", "shapes", "by_column", "splits_bags", "partial", "reduce", "finish")


def part_shapes(operator: Operator, columns: int) -> list[tuple[int, ...]]:
    """Shapes of a sample's partial result over so many columns."""
    assert operator.shapes is not None, "its partial result is the pooled vectors"
    return [
        (*shape[:-1], columns) if by_column else shape
        for shape, by_column in zip(operator.shapes, operator.by_column, strict=True)
    ]


def elements_of(operator: Operator, columns: int) -> int:
    """Elements of a sample's partial result over so many columns."""
    return sum(math.prod(shape) for shape in part_shapes(operator, columns))


def flatten(partials: tuple[Tensor, ...]) -> Tensor:
    """A partial result as it travels: [B, P]."""
    return torch.cat([part.reshape(len(part), math.prod(part.shape[1:])) for part in partials], 1)


def unflatten(operator: Operator, flat_BP: Tensor, columns: tuple[int, int]) -> tuple[Tensor, ...]:
    """The other way: a partial result over columns [start, stop), zeros for the others."""
    start, stop = columns
    widened = []
    for own, by_column in zip(parts_of(operator, flat_BP, stop - start), operator.by_column, strict=True):
        some = by_column and (start, stop) != (0, operator.width)
        widened.append(functional.pad(own, (start, operator.width - stop)) if some else own)
    return tuple(widened)


def parts_of(operator: Operator, flat_BP: Tensor, columns: int) -> tuple[Tensor, ...]:
    """The tensors of a partial result over so many columns, as ``partial`` gave them."""
    shapes = part_shapes(operator, columns)
    ends = list(accumulate(math.prod(shape) for shape in shapes))
    return tuple(
        flat_BP[:, end - math.prod(shape) : end].reshape(len(flat_BP), *shape)
        for end, shape in zip(ends, shapes, strict=True)
    )


def add_partials(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Elementwise sum: the ``reduce`` of all operators whose partials are sums."""
    return tuple(x + y for x, y in zip(a, b, strict=True))


def check_lookups(operator: str, lookups: tuple[Lookup, ...], width: int) -> None:
    """Refuse what no operator can read.

    Raises
    ------
    ConfigError
        No lookup, the same lookup twice, an unknown pooling, or a width below 1.
    """
    if not lookups:
        raise ConfigError(f"operator {operator}: it reads no feature; give it at least one lookup")
    if width < 1:
        raise ConfigError(f"operator {operator}: width is {width}; it must be at least 1")
    seen = set()
    for lookup in lookups:
        if lookup.pooling not in POOLINGS:
            raise ConfigError(
                f"operator {operator}: pooling of feature {lookup.feature!r} is {lookup.pooling!r}; "
                "allowed are 'sum', 'mean' and 'max'"
            )
        key = (lookup.feature, lookup.table)
        if key in seen:
            raise ConfigError(
                f"operator {operator}: feature {lookup.feature!r} is read twice from table {lookup.table!r}; "
                "leave one of the lookups out"
            )
        seen.add(key)
