"""Interleaved timing: what is compared takes turns, so that a noisy neighbour slows both sides of a ratio alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


class Rounds:
    """Milliseconds of each of several runs, by name, round by round."""

    def __init__(self, runs: Mapping[str, Callable[[], Any]], n_rounds: int) -> None:
        """Runs each once to warm up, then ``n_rounds`` times in turn. A run that returns a float has timed itself."""
        self.ms: dict[str, list[float]] = {name: [] for name in runs}
        for round_ in range(-1, n_rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                own = run()
                ms = own if isinstance(own, float) else (time.perf_counter() - start) * 1e3
                if round_ >= 0:
                    self.ms[name].append(ms)

    def median(self, name: str) -> float:
        return statistics.median(self.ms[name])

    def fastest(self, start: str) -> str:
        """The run with the least median among those whose name begins with ``start``."""
        return min((name for name in self.ms if name.startswith(start)), key=self.median)

    def ratio(self, over: Callable[[Callable[[str], float]], float]) -> float:
        """Median over rounds of ``over(ms)``, where ``ms(name)`` is a time of that round."""
        n = len(next(iter(self.ms.values())))
        return statistics.median(over(lambda name, i=i: self.ms[name][i]) for i in range(n))
