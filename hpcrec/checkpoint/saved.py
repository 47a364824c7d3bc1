"""What a resumed run takes over from a checkpoint's state.json, held to what hpcrec writes there.

A checkpoint may be anybody's (docs/checkpoint.md), and be whole without these. Knows values; where they go is for
``state`` and ``loop``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from hpcrec.checkpoint.checkpoint import Checkpoint
from hpcrec.checkpoint.files import STATE
from hpcrec.comm.ledger import TAGS
from hpcrec.errors import CheckpointError
from hpcrec.types import Ints

_MOST_SHOWN = 100  # characters of a value
_LATER_TAGS = 3  # of the ledger, that runs of before did not count


@dataclass
class Progress:
    """What a resumed run needs to know besides the session's state."""

    best_value: float | None = None
    best_step: int | None = None
    misses: int = 0
    samples: int = 0
    ended: bool = False  # by early stopping
    evaluations: list[dict[str, Any]] = field(default_factory=list)


def progress(checkpoint: Checkpoint) -> Progress:
    """The progress that was saved.

    Raises
    ------
    CheckpointError
        There is none, or it is none; as of the others here.
    """
    value = checkpoint.state.get("progress")
    names = [f.name for f in fields(Progress)]
    allowed = f"an object with {', '.join(names)}"
    found = _checked(checkpoint, "progress", allowed, value, isinstance(value, Mapping) and set(value) == set(names))
    for name, (kind, fits) in _FITS.items():
        _checked(checkpoint, f"progress.{name}", kind, found[name], fits(found[name]))
    return Progress(**found)


def wire_bytes(checkpoint: Checkpoint) -> Ints:
    """Bytes sent by all ranks, by tag, as ``Ledger.restore`` takes them."""
    return _by_tag(checkpoint, "wire_bytes")


def wire_messages(checkpoint: Checkpoint) -> Ints | None:
    """Messages likewise; None of a run that did not know them."""
    return _by_tag(checkpoint, "wire_messages") if "wire_messages" in checkpoint.state else None


def _by_tag(checkpoint: Checkpoint, name: str) -> Ints:
    value = checkpoint.state.get(name)
    if isinstance(value, list) and len(TAGS) - _LATER_TAGS <= len(value) < len(TAGS):
        value = [*value, *[[0, 0]] * (len(TAGS) - len(value))]  # of a run that did not yet count the last tags
    rows = value if isinstance(value, list) and len(value) == len(TAGS) else [None]
    fits = all(isinstance(row, list) and len(row) == 2 and all(map(_is_count, row)) for row in rows)
    allowed = f"{len(TAGS)} pairs of whole numbers, one for each of {', '.join(TAGS)}"
    return np.array(_checked(checkpoint, name, allowed, value, fits), np.int64)


def skipped(checkpoint: Checkpoint) -> tuple[int, int, int]:
    """Steps that were left out, in the run and by its last steps, and features; 0 where nothing is said of them."""

    def count(name: str) -> int:
        value = checkpoint.state.get(name, 0)
        return int(_checked(checkpoint, name, "a whole number", value, _is_count(value)))

    return count("skipped_steps"), count("skipped_in_a_row"), count("dropped_features")


def staleness(checkpoint: Checkpoint, allowed: Sequence[int]) -> int | None:
    """What ``policy.staleness = "auto"`` had found, of those that it may; None where it had not."""
    value = checkpoint.state.get("staleness")
    fits = value is None or (_is_count(value) and value in allowed)
    found: int | None = _checked(checkpoint, "staleness", f"one of {', '.join(map(str, allowed))}", value, fits)
    return found


def ran_on(checkpoint: Checkpoint) -> dict[str, Any]:
    """Software and ranks; empty where nothing is said of them."""
    value = checkpoint.state.get("ran_on", {})
    return dict(_checked(checkpoint, "ran_on", "an object", value, isinstance(value, Mapping)))


def _checked(checkpoint: Checkpoint, name: str, allowed: str, value: Any, fits: bool) -> Any:
    if fits:
        return value
    absent = value is None and name.partition(".")[0] not in checkpoint.state
    said = repr(value) if len(repr(value)) <= _MOST_SHOWN else f"{repr(value)[:_MOST_SHOWN]}..."
    raise CheckpointError(
        f"{checkpoint.folder / STATE}: {'has no ' + name if absent else name + ' is ' + said}. Allowed: {allowed}. A "
        "run goes on only from what hpcrec has written there: resume from another checkpoint, or start anew with "
        "checkpoint.resume = 'never' in another run.folder."
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63  # a bool is an int too, but none of these


def _is_evaluation(value: Any) -> bool:
    return isinstance(value, Mapping) and _is_count(value.get("step"))


_FITS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "best_value": ("a number or null", lambda v: v is None or type(v) in (int, float)),
    "best_step": ("a whole number or null", lambda v: v is None or _is_count(v)),
    "misses": ("a whole number", _is_count),
    "samples": ("a whole number", _is_count),
    "ended": ("true or false", lambda v: type(v) is bool),
    "evaluations": (
        "a list of objects, each with its step",
        lambda v: isinstance(v, list) and all(map(_is_evaluation, v)),
    ),
}
