"""Multipliers of every schedule, at the steps where something changes."""

import ast
import itertools
import math
from pathlib import Path

import pytest

from hpcrec.errors import ConfigError
from hpcrec.training import schedule
from hpcrec.training.schedule import Schedule


def at(steps, **fields):
    return [Schedule(**fields).multiplier(step) for step in steps]


def test_constant_with_and_without_warm_up():
    assert at([0, 1, 10**9]) == [1.0, 1.0, 1.0]
    assert at([0, 1, 2, 3, 4, 5], warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decays_from_the_end_of_the_warm_up():
    fields = {"kind": "linear", "warmup_steps": 2, "decay_steps": 4, "final": 0.2}
    assert at(range(8), **fields) == pytest.approx([0.5, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2], abs=1e-15)
    assert at([0, 9, 10, 12, 15], kind="linear", decay_start=10, decay_steps=4) == [1.0, 1.0, 1.0, 0.5, 0.0]


def test_cosine_polynomial_and_step():
    assert at([0, 25, 50, 100, 200], kind="cosine", decay_steps=100) == pytest.approx(
        [1.0, (1 + math.sqrt(0.5)) / 2, 0.5, 0.0, 0.0], abs=1e-15
    )
    assert at([0, 5, 10], kind="polynomial", decay_steps=10, power=3.0, final=0.5) == [1.0, 0.5625, 0.5]
    fields = {"kind": "step", "decay_start": 3, "decay_steps": 2, "factor": 0.5, "final": 0.2}
    assert at([0, 2, 3, 4, 5, 6, 7, 9, 50], **fields) == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.2, 0.2]


def test_every_kind_stays_between_final_and_one_and_ends_there():
    for kind in schedule.KINDS[1:]:
        values = at(range(60), kind=kind, warmup_steps=5, decay_steps=7, final=0.3)
        assert values[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
        assert all(later <= earlier for earlier, later in itertools.pairwise(values[5:]))
        assert values[-1] == 0.3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "exponential"}, r"schedule.kind is 'exponential'. Allowed: constant, linear"),
        ({"warmup_steps": -1}, r"schedule.warmup_steps is -1. Allowed: 0 and more"),
        ({"kind": "cosine"}, r"needs schedule.decay_steps"),
        ({"kind": "cosine", "decay_steps": 0}, r"schedule.decay_steps is 0"),
        ({"kind": "linear", "decay_steps": 5, "warmup_steps": 9, "decay_start": 8}, r"decay_start is 8. Allowed: 9"),
        ({"kind": "linear", "decay_steps": 5, "final": 1.5}, r"schedule.final is 1.5. Allowed: 0 to 1"),
        ({"kind": "polynomial", "decay_steps": 5, "power": 0.0}, r"schedule.power is 0.0"),
        ({"kind": "step", "decay_steps": 5, "factor": 1.0}, r"schedule.factor is 1.0"),
        ({"decay_steps": 5}, r"schedule.decay_steps is set, but schedule.kind is 'constant'"),
        ({"kind": "linear", "decay_steps": 5, "power": 3.0}, r"schedule.power is set, but schedule.kind is 'linear'"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        Schedule(**fields)


def test_owners_can_use_it_without_torch():
    tree = ast.parse(Path(schedule.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"math", "dataclasses", "hpcrec.errors"}
