"""What form ``auto`` chose before the first step, and the bytes that this process has sent in its steps since.

Holds what ``metrics.jsonl`` and ``summary.json`` say of the choice; does not know how it was made.
"""

from typing import Any

import numpy as np

from hpcrec.comm.ledger import TAGS
from hpcrec.comm.world import World


class Chosen:
    """A choice, for the records of a run.

    Parameters
    ----------
    world : World
    found : dict
        What was chosen and what it was predicted to cost, JSON-like.
    saved : bool
        Whether checkpoints are to have it, by which a run that goes on has the same: it was chosen by measurement.

    Attributes
    ----------
    found : dict
    saved : bool
    """

    def __init__(self, world: World, found: dict[str, Any], *, saved: bool = False) -> None:
        self.found, self.saved = found, saved
        self._world = world
        self._began: tuple[int, np.ndarray] | None = None  # first step of this process, and the bytes sent before it

    def begin(self, step: int) -> None:
        """Steps of this process follow from this one on, which may be that of a checkpoint; collective."""
        if self._began is None:
            self._began = step, self._sent()

    def record(self, step: int) -> dict[str, Any]:
        """The choice, with the bytes a step by tag that were sent from ``begin`` until this step; collective.

        ``counted_steps`` is how many steps those were.
        """
        counted: dict[str, float] = {}
        steps = 0 if self._began is None else step - self._began[0]
        if self._began is not None and steps > 0:
            first, before = self._began
            counted = dict(zip(TAGS, ((self._sent() - before) / (step - first)).tolist(), strict=True))
        return {**self.found, "counted_steps": steps, "counted_bytes_per_step": counted}

    def _sent(self) -> np.ndarray:
        total: np.ndarray = self._world.total_wire_bytes().sum(axis=1)
        return total
