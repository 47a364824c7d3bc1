"""A session's time: what each part of the thread that steps has taken, and beside it those of all other threads.

Parts are counted by ``clock``; they exclude each other, so that those of the thread that steps and what is in none of
them are the wall clock since the session was begun. Other threads run beside it and are never added to that. Knows no
phase by name; what is told of the times of all ranks is for ``times``.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from hpcrec import clock
from hpcrec.clock import Phase, Seconds


@dataclass(frozen=True)
class Times:
    """Of one rank, since its session was begun.

    Attributes
    ----------
    whole_s : float
        Of the thread that steps, by the wall clock.
    parts : dict of str to (float, float, float)
        Seconds that it has worked, waited and idled, by part.
    unaccounted_s : float
        In no part.
    beside : dict of str to dict of str to (float, float, float)
        The same of other threads, by their names; several of one name are added up.
    delayed_s : float, optional
        For which the thread that steps was ready to run and had no core; None where the system does not say it.
    """

    whole_s: float
    parts: dict[str, Seconds]
    unaccounted_s: float
    beside: dict[str, dict[str, Seconds]]
    delayed_s: float | None = None


class PhaseTimer:
    """Seconds by phase: ``with timer("values"): ...``, from any thread. Made by the thread that will step.

    What is within a phase is another one, ``evaluate/values``, and not counted in the outer one.
    """

    def __init__(self) -> None:
        self._clock = clock.here()
        self._added: dict[str, float] = {}
        self._lock = threading.Lock()
        self._began_s = monotonic()
        self._before = self._clock.read(self._began_s)
        self._before_beside = self._beside(self._began_s)
        self._thread = threading.get_native_id()
        self._delayed_before_s = _delayed_s(self._thread)

    def __call__(self, phase: str) -> Phase:
        """A context manager whose time counts as ``phase``."""
        return Phase(phase)

    def add(self, name: str, seconds: float) -> None:
        """Counts time that was measured elsewhere, and is in phases already; ``seconds`` alone tells of it."""
        with self._lock:
            self._added[name] = self._added.get(name, 0.0) + seconds

    def times(self) -> Times:
        """What was counted so far, phases under way included."""
        now_s = monotonic()
        parts = _since(self._before, self._clock.read(now_s))
        unaccounted_s = sum(parts.pop("", (0.0,)))
        beside = {}
        for name, found in self._beside(now_s).items():
            of_thread = _since(self._before_beside.get(name, {}), found)
            of_thread.pop("", None)  # a thread that does nothing of ours is in no part
            if of_thread:
                beside[name] = of_thread
        delayed_s = None if self._delayed_before_s is None else _delayed_s(self._thread)
        if delayed_s is not None and self._delayed_before_s is not None:
            delayed_s -= self._delayed_before_s
        return Times(now_s - self._began_s, parts, unaccounted_s, beside, delayed_s)

    def parts(self) -> dict[str, Seconds]:
        """Of ``times`` those of the thread that steps; quicker."""
        return _since(self._before, self._clock.read(monotonic()))

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase so far over all threads, and of what was added, the longest first."""
        times = self.times()
        found = dict(self._added)
        for parts in (times.parts, *times.beside.values()):
            for name, seconds in parts.items():
                found[name] = found.get(name, 0.0) + sum(seconds)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def _beside(self, now_s: float) -> dict[str, dict[str, Seconds]]:
        """Of all threads but the one that steps, by name."""
        found: dict[str, dict[str, Seconds]] = {}
        for other in clock.clocks():
            if other.root is not self._clock.root:
                of_name = found.setdefault(other.name, {})
                for part, seconds in other.read(now_s).items():
                    of_name[part] = _plus(of_name.get(part, (0.0, 0.0, 0.0)), seconds)
        return found


def _delayed_s(thread: int) -> float | None:
    """For which a thread of this process has been ready to run without a core, as Linux counts it."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # another system, or a kernel that does not count it
        return None


def _since(before: Mapping[str, Seconds], now: Mapping[str, Seconds]) -> dict[str, Seconds]:
    """What has come since, of parts that took any time."""
    return {
        part: (worked - then[0], waited - then[1], idled - then[2])
        for part, (worked, waited, idled) in now.items()
        if (then := before.get(part, (0.0, 0.0, 0.0))) != (worked, waited, idled)
    }


def _plus(one: Seconds, other: Seconds) -> Seconds:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
