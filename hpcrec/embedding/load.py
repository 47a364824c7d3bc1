"""What a holder has done in training: lookups, distinct rows and time, the figures behind load imbalance.

Counts one number of each kind a step. Time is CPU time of the thread that does the work: on a core that is shared, the
wait for the core is not work of this holder. Knows sums, not whose they are.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Load:
    """Sums over the training steps of this process.

    Attributes
    ----------
    steps : int
        Steps that were routed here for training.
    lookups : int
        Ids that arrived.
    distinct : int
        Rows that they were, each counted once a step.
    elements : int
        Of the rows of all ids, and once more of each distinct row: what is read and summed, and what learns.
    seconds : dict of str to float
        CPU time of ``read`` (decode and sort ids), ``gather`` and ``update``; and of ``find``, where rows are found and
        sorted in their step, for tables are dynamic.
    """

    steps: int = 0
    lookups: int = 0
    distinct: int = 0
    elements: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"read": 0.0, "find": 0.0, "gather": 0.0, "update": 0.0})

    def add_step(self, lookups: int, distinct: int, elements: int = 0) -> None:
        """Counts one step."""
        self.steps += 1
        self.lookups += lookups
        self.distinct += distinct
        self.elements += elements

    def add_time(self, work: str, began_s: float) -> None:
        """Adds to ``work`` what this thread has computed since its ``time.thread_time()`` was ``began_s``."""
        self.seconds[work] += time.thread_time() - began_s

    def figures(self) -> dict[str, float]:
        """What summary.json says of one owner's work: training steps of this process, and means over them."""
        steps = max(self.steps, 1)
        return {
            "steps": self.steps,
            "lookups_per_step": self.lookups / steps,
            "distinct_per_step": self.distinct / steps,
            **{f"{work}_ms": 1e3 * seconds / steps for work, seconds in self.seconds.items()},
        }


def imbalance(owners: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The most of any owner divided by the mean over owners, of what is said of each in summary.json.

    ``time`` is gather and update. 1 is even, and also where there is nothing to share.
    """
    shared = {
        "bytes": [o["bytes"] for o in owners],
        "lookups": [o["lookups_per_step"] for o in owners],
        "distinct": [o["distinct_per_step"] for o in owners],
        "time": [o["gather_ms"] + o["update_ms"] for o in owners],
    }
    return {name: max(n) * len(n) / sum(n) if sum(n) else 1.0 for name, n in shared.items()}
