"""Learning-rate schedules: what the rate is multiplied by, as a pure function of the step.

Owners use it for rows and dense ranks for the towers, so it needs neither torch nor state, and a resumed run goes on
where it was. Does not know any learning rate.
"""

import math
from dataclasses import dataclass

from hpcrec.errors import ConfigError

KINDS = ("constant", "linear", "cosine", "polynomial", "step")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up, then a constant rate or a decay.

    With ``t`` going from 0 at step ``decay_start`` to 1 at ``decay_start + decay_steps``, and on at 1: ``linear`` is
    ``1 - t``, ``cosine`` is ``(1 + cos(pi t)) / 2`` and ``polynomial`` is ``(1 - t) ** power``, each scaled to end at
    ``final``. ``step`` multiplies by ``factor`` after every ``decay_steps`` steps, down to ``final``.

    Attributes
    ----------
    kind : str
        ``constant``, ``linear``, ``cosine``, ``polynomial`` or ``step``.
    warmup_steps : int
        Step ``i`` below it takes ``(i + 1) / warmup_steps``.
    decay_start : int or None
        None: when the warm-up ends.
    decay_steps : int or None
        Required by all kinds but ``constant``, which takes none.
    final : float
        Multiplier that a decay ends at, in [0, 1].
    power : float
        Of ``polynomial`` only.
    factor : float
        Of ``step`` only.

    Raises
    ------
    ConfigError
        A value out of range, or one that the kind does not use.
    """

    kind: str = "constant"
    warmup_steps: int = 0
    decay_start: int | None = None
    decay_steps: int | None = None
    final: float = 0.0
    power: float = 2.0
    factor: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"schedule.kind is {self.kind!r}. Allowed: {', '.join(KINDS)}.")
        self._refuse_unused()
        _check(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "0 and more")
        if self.kind == "constant":
            return
        if self.decay_steps is None:
            raise ConfigError(f"schedule.kind is {self.kind!r}, which needs schedule.decay_steps. Set it, in steps.")
        _check(self.decay_steps >= 1, "decay_steps", self.decay_steps, "1 and more")
        _check(
            self.decay_start is None or self.decay_start >= self.warmup_steps,
            "decay_start",
            self.decay_start,
            f"{self.warmup_steps} (schedule.warmup_steps) and more",
        )
        _check(0.0 <= self.final <= 1.0, "final", self.final, "0 to 1")
        _check(self.power > 0.0, "power", self.power, "above 0")
        _check(0.0 < self.factor < 1.0, "factor", self.factor, "between 0 and 1")

    def multiplier(self, step: int) -> float:
        """What the learning rate of step ``step`` (the first is 0) is multiplied by."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        start = self.warmup_steps if self.decay_start is None else self.decay_start
        if self.decay_steps is None or step < start:
            return 1.0
        if self.kind == "step":
            return max(self.final, self.factor ** ((step - start) // self.decay_steps))
        t = min(1.0, (step - start) / self.decay_steps)
        shape = {
            "linear": 1.0 - t,
            "cosine": (1.0 + math.cos(math.pi * t)) / 2.0,
            "polynomial": (1.0 - t) ** self.power,
        }[self.kind]
        return self.final + (1.0 - self.final) * shape

    def _refuse_unused(self) -> None:
        used = {
            "decay_start": self.kind != "constant",
            "decay_steps": self.kind != "constant",
            "final": self.kind != "constant",
            "power": self.kind == "polynomial",
            "factor": self.kind == "step",
        }
        for name, is_used in used.items():
            if not is_used and getattr(self, name) != getattr(type(self), name):
                raise ConfigError(
                    f"schedule.{name} is set, but schedule.kind is {self.kind!r}, which does not use it. Remove it, or "
                    "change schedule.kind."
                )


def _check(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"schedule.{name} is {value}. Allowed: {allowed}.")
