"""Seconds by phase, added up over steps and threads. Knows no phase by name."""

import threading
import time


class PhaseTimer:
    """Seconds by phase: ``with timer("values"): ...``, from any thread.

    A phase inside another counts in both; phases of two threads may overlap, so the seconds need not add up to the
    run's.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, phase: str) -> "_Phase":
        """A context manager whose time counts as ``phase``."""
        return _Phase(self, phase)

    def add(self, phase: str, seconds: float) -> None:
        """Counts time that was measured elsewhere."""
        with self._lock:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase so far, the longest first."""
        with self._lock:
            return dict(sorted(self._seconds.items(), key=lambda item: -item[1]))


class _Phase:
    __slots__ = ("_began_s", "_phase", "_timer")

    def __init__(self, timer: PhaseTimer, phase: str) -> None:
        self._timer, self._phase, self._began_s = timer, phase, 0.0

    def __enter__(self) -> None:
        self._began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._timer.add(self._phase, time.perf_counter() - self._began_s)
