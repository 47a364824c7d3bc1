"""How rows learn: the states each optimizer keeps and the numbers it needs in a step.

Shared by both backends, so that a bias correction or a step size is the same double in either. The arithmetic on rows
is in ``reference.py`` and ``native/include/hpcrec/optimizer.h``. Names are FBGEMM's and torch's.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from hpcrec.kernels.memory import aligned_empty
from hpcrec.types import Floats, OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class Rule:
    """An optimizer: its code in the native module, and its states by name and kind (one value a row, or an element)."""

    code: int
    states: dict[str, Literal["row", "element"]]

    def sizes(self, n_rows: str, width: str) -> list[str]:
        """Sizes of the states, in their order, as parameters of native kernels name them."""
        return [f"{n_rows}, {width}" if kind == "element" else n_rows for kind in self.states.values()]


RULES = {
    "sgd": Rule(code=0, states={}),
    "adagrad": Rule(code=1, states={"accumulator": "element"}),
    "rowwise_adagrad": Rule(code=2, states={"accumulator": "row"}),
    "adam": Rule(code=3, states={"exp_avg": "element", "exp_avg_sq": "element"}),
}


class StepNumbers(NamedTuple):
    """Scalars of one step. ``rate`` is the learning rate, or Adam's step size; ``rest`` is 1 - beta.

    ``bound`` is the largest magnitude of a weight after it, perhaps infinite.

    ``step`` counts from 1; of it the random bits are drawn by which half rows are rounded.
    """

    rate: float
    eps: float
    rest1: float
    rest2: float
    bound: float
    step: int


def rule_of(spec: OptimizerSpec) -> Rule:
    """The rule that ``spec`` names.

    Raises
    ------
    ValueError
        The name is not one of ``RULES``.
    """
    try:
        return RULES[spec.name]
    except KeyError:
        raise ValueError(f"optimizer {spec.name!r} is not known; allowed are {', '.join(RULES)}") from None


def step_numbers(spec: OptimizerSpec, *, lr: float, step: int) -> StepNumbers:
    """Scalars for global step ``step``, counted from 1 (read by Adam, and where rows are rounded)."""
    rate = lr
    if spec.name == "adam":
        if step < 1:
            raise ValueError(f"step is {step}; Adam counts steps from 1")
        rate = lr * math.sqrt(1.0 - spec.beta2**step) / (1.0 - spec.beta1**step)
    rest1, rest2 = 1.0 - spec.beta1, 1.0 - spec.beta2
    return StepNumbers(rate=rate, eps=spec.eps, rest1=rest1, rest2=rest2, bound=spec.bound, step=step)


def state_shapes(spec: OptimizerSpec, n_rows: int, width: int) -> dict[str, tuple[int, ...]]:
    """Shape of each state of ``n_rows`` rows: ``[n_rows, width]``, or ``[n_rows]`` for one value a row."""
    return {name: (n_rows, width) if kind == "element" else (n_rows,) for name, kind in rule_of(spec).states.items()}


def state_values(spec: OptimizerSpec) -> dict[str, float]:
    """What each state starts from: ``initial_accumulator`` for the Adagrads, 0 for Adam."""
    return {name: spec.initial_accumulator if name == "accumulator" else 0.0 for name in rule_of(spec).states}


def initial_states(spec: OptimizerSpec, n_rows: int, width: int, dtype: np.dtype | type) -> dict[str, Floats]:
    """Fresh states of ``n_rows`` rows, aligned."""
    states = {name: aligned_empty(shape, dtype) for name, shape in state_shapes(spec, n_rows, width).items()}
    for name, value in state_values(spec).items():
        states[name].fill(value)
    return states
