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
        made = _Phase()
        made.seconds, made.lock, made.phase = self._seconds, self._lock, phase
        return made

    def add(self, phase: str, seconds: float) -> None:
        """Counts time that was measured elsewhere."""
        with self._lock:
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase so far, the longest first."""
        with self._lock:
            return dict(sorted(self._seconds.items(), key=lambda item: -item[1]))


class _Phase:
    """One phase of one thread. A step has many: what it needs is set and added up without further calls."""

    __slots__ = ("began_s", "lock", "phase", "seconds")
    seconds: dict[str, float]
    lock: threading.Lock
    phase: str

    def __enter__(self) -> None:
        self.began_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        took_s = time.perf_counter() - self.began_s
        with self.lock:
            self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + took_s
