"""What compression takes of a step: processor time, section by section, without the messages between.

Processor time of the thread that is in a section, and not what passes meanwhile: where ranks share cores, whatever
comes after a message is where the others' turn comes. A section's time is without those that it calls; messages are a
section, too, which is left out. Knows names of functions; does not know what they are for.
"""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives, Started
from hpcrec.dense import dct
from hpcrec.exchange import thresholds

KERNELS = (
    "select_largest", "select_above", "select_with_feedback", "threshold_of", "positions_bytes", "write_positions",
    "read_positions", "expand", "scatter_add", "gather", "write_halves", "read_halves",
)  # fmt: skip
VECTORS, SUMS, MESSAGES = "around vectors", "around dense sums", "messages"
METHODS = (
    (thresholds.Thresholded, ("values", "gradients"), VECTORS),
    (dct.Thresholded, ("start", "wait"), SUMS),
    (Collectives, ("alltoall", "alltoallv", "message"), MESSAGES),
    (Collectives, ("start_allreduce", "start_alltoall", "start_alltoallv"), MESSAGES),
    (Collectives, ("start_allgather", "start_allgatherv"), MESSAGES),
    (Started, ("wait",), MESSAGES),
)
SECTIONS = (*KERNELS, VECTORS, SUMS)


class Clock:
    """Seconds in each section, from when it was begun until it is stopped."""

    def __init__(self) -> None:
        self.taken_s = dict.fromkeys((*SECTIONS, MESSAGES), 0.0)
        self._of_thread = threading.local()
        self._before: list[tuple[Any, str, Any]] = []
        for name in KERNELS:
            self._put(kernels, name, name)
        for owner, names, section in METHODS:
            for name in names:
                self._put(owner, name, section)

    def begin(self) -> None:
        """Counts from now on."""
        for section in self.taken_s:
            self.taken_s[section] = 0.0

    def of_slowest(self, ranks: Collectives, steps: int) -> dict[str, float]:
        """Of a step on the rank where all sections take most; collective."""
        mine = {section: self.taken_s[section] / steps for section in SECTIONS}
        return max(ranks.allgather(mine), key=lambda taken_s: sum(taken_s.values()))

    def stop(self) -> None:
        """Puts back what was there before."""
        for owner, name, function in reversed(self._before):
            setattr(owner, name, function)

    def _put(self, owner: Any, name: str, section: str) -> None:
        function = getattr(owner, name)
        self._before.append((owner, name, function))
        setattr(owner, name, self._clocked(function, section))

    def _clocked(self, function: Callable[..., Any], section: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any, **named: Any) -> Any:
            above, began_s = getattr(self._of_thread, "inside_s", 0.0), time.thread_time()
            self._of_thread.inside_s = 0.0
            try:
                return function(*arguments, **named)
            finally:
                took_s = time.thread_time() - began_s
                self.taken_s[section] += took_s - self._of_thread.inside_s
                self._of_thread.inside_s = above + took_s

        return run
