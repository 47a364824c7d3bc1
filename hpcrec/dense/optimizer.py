"""The dense optimizer: any of torch's by name, and its state by parameter name, bit for bit.

Checkpoints know a parameter by its name; torch numbers them. Knows nothing of ranks: every dense rank holds the same
state.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hpcrec.errors import CheckpointError, ConfigError

# LBFGS wants a closure that evaluates the loss again, SparseAdam sparse gradients, Muon matrices only; Adafactor's
# state has not its parameter's shape.
_UNFIT = ("Adafactor", "LBFGS", "Muon", "Optimizer", "SparseAdam")

State = dict[str, dict[str, torch.Tensor | float]]


def optimizer_names() -> list[str]:
    """Class names of torch's optimizers that can train the dense part."""
    return sorted(
        name
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name not in _UNFIT
    )


def build_optimizer(
    name: str, named_parameters: Sequence[tuple[str, nn.Parameter]], lr: float, options: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """A torch optimizer by its class name, upper or lower case.

    Parameters
    ----------
    named_parameters : list of (str, nn.Parameter)
        Those that require a gradient are trained.
    options : mapping
        Its further arguments, by torch's names.

    Raises
    ------
    ConfigError
        No such optimizer, no such option, or a value that torch refuses.
    """
    found = [known for known in optimizer_names() if known.lower() == name.lower()]
    if not found:
        raise ConfigError(f"dense.optimizer.name is {name!r}. Allowed: {', '.join(optimizer_names())}.")
    kind = getattr(torch.optim, found[0])
    allowed = [option for option in inspect.signature(kind).parameters if option not in ("params", "lr")]
    unknown = sorted(set(options) - set(allowed))
    if unknown:
        raise ConfigError(f"dense.optimizer.options: {found[0]} has no {unknown[0]!r}. Allowed: {', '.join(allowed)}.")
    trained = [p for _, p in named_parameters if p.requires_grad]
    try:
        with _without_compiler():
            values = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
            return kind([{"params": trained}], lr=lr, **values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"dense.optimizer: {found[0]} refuses lr = {lr}, options = {dict(options)}: {error}"
        ) from error


def step(optimizer: torch.optim.Optimizer) -> None:
    """One step. Of hooks that torch calls around it, it calls none, unless its compiler is there."""
    if _COMPILER in sys.modules:
        optimizer.step()
        return
    with torch.set_grad_enabled(bool(optimizer.defaults.get("differentiable", False))):
        inspect.unwrap(type(optimizer).step)(optimizer)


_COMPILER = "torch._dynamo"


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Torch's compiler is not imported for what it is told here: to leave an optimizer's own functions alone.

    It takes every rank a second or two of its start, and what is not there compiles nothing. Torch looks for what the
    compiler has made of such a function in an attribute of it; where later versions do not, they import it.
    """
    functions = () if _COMPILER in sys.modules else (inspect.unwrap(torch.optim.Optimizer.add_param_group),)
    for function in functions:
        function.__dynamo_disable = function
    try:
        yield
    finally:
        for function in functions:
            function.__dict__.pop("__dynamo_disable", None)


def optimizer_state(optimizer: torch.optim.Optimizer, named_parameters: Sequence[tuple[str, nn.Parameter]]) -> State:
    """State of each parameter by name; empty for one that has not been stepped. Tensors are not copied."""
    out: State = {}
    for name, parameter in named_parameters:
        if parameter.requires_grad:
            held = optimizer.state.get(parameter, {})
            out[name] = {key: value for key, value in held.items() if value is not None}
    return out


def load_optimizer_state(
    optimizer: torch.optim.Optimizer,
    named_parameters: Sequence[tuple[str, nn.Parameter]],
    state: Mapping[str, Mapping[str, torch.Tensor | float]],
) -> None:
    """Replaces the optimizer's state by what ``optimizer_state`` gave; a parameter left out has not been stepped.

    Raises
    ------
    CheckpointError
        State of another model or of another optimizer.
    """
    trained = {name: p for name, p in named_parameters if p.requires_grad}
    unknown = sorted(set(state) - set(trained))
    if unknown:
        raise CheckpointError(
            f"dense optimizer state of {unknown[0]!r} is in the checkpoint, but the model has no such parameter. "
            f"It has: {', '.join(trained)}."
        )
    expected = _state_names(optimizer)
    fresh = _alike(optimizer, list(trained.values())).state if trained else {}
    for name, parameter in trained.items():
        held = state.get(name, {})
        if held and set(held) != expected:
            raise CheckpointError(
                f"dense optimizer state of {name!r} is {sorted(held)}, but {type(optimizer).__name__} keeps "
                f"{sorted(expected)}. Set dense.optimizer.name and its options to those of the checkpoint."
            )
        if held:
            optimizer.state[parameter] = {
                key: _copy(value, parameter, name, key, optimizer.defaults) for key, value in held.items()
            }
        else:
            optimizer.state[parameter] = dict(fresh.get(parameter, {}))


def _copy(
    value: torch.Tensor | float, parameter: nn.Parameter, name: str, key: str, options: Mapping[str, Any]
) -> torch.Tensor | float:
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim == 0:  # step counts are where torch keeps them: on the CPU, unless its kernels read them
        there = options.get("fused") or options.get("capturable")
        return value.to(parameter.device, copy=True) if there else value.clone()
    if value.shape != parameter.shape:
        raise CheckpointError(
            f"dense optimizer state {key!r} of {name!r} has shape {tuple(value.shape)} in the checkpoint, the "
            f"parameter {tuple(parameter.shape)}. The model differs from the one that was saved."
        )
    return value.to(device=parameter.device, copy=True)


def _state_names(optimizer: torch.optim.Optimizer) -> set[str]:
    """Names of the state that this optimizer keeps, found by stepping one like it once."""
    device = optimizer.param_groups[0]["params"][0].device
    probe = nn.Parameter(torch.ones(2, 2, device=device))
    probe.grad = torch.ones(2, 2, device=device)
    twin = _alike(optimizer, [probe])
    step(twin)
    return {key for key, value in twin.state.get(probe, {}).items() if value is not None}


def _alike(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    known = inspect.signature(type(optimizer)).parameters
    with _without_compiler():
        return type(optimizer)(parameters, **{key: v for key, v in optimizer.defaults.items() if key in known})
