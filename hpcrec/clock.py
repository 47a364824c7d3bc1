"""Where the time of each thread goes: into parts that exclude each other, each by its own reads of the clock.

A thread is in one part at a time, in which it works, waits or idles. Who enters a part, or begins to wait in it, stops
what the thread was counted for before; who leaves goes on with that. So the parts of a thread add up to its wall clock,
with what it spends in none. A part within another is one of its own: ``evaluate/values``. What a call of MPI does
itself, such as copying, is counted as waiting in it. Written by each thread alone, without a lock (under 1 microsecond
a part); read by ``training.timer``. Knows no part by name.
"""

import threading
from time import monotonic
from types import TracebackType

WORKS, WAITS, IDLES = KINDS = range(3)
Seconds = tuple[float, float, float]  # worked, waited and idle


class Part:
    """Seconds of one part of a thread's time, and the parts within it."""

    __slots__ = ("inside", "name", "seconds")

    def __init__(self, name: str) -> None:
        self.name = name
        self.seconds = [0.0] * len(KINDS)
        self.inside: dict[str, Part] = {}


class Clock:
    """Of one thread.

    Attributes
    ----------
    thread : threading.Thread
    root : Part
        What is spent in no part, and all parts.
    part : Part
    kind : int
        What the thread is in, and does there: ``WORKS``, ``WAITS`` or ``IDLES``.
    since_s : float
        From when on, by ``time.monotonic``.
    behind_s : float
        For which it has waited for other ranks (``comm.progress``).
    """

    __slots__ = ("behind_s", "kind", "part", "root", "since_s", "thread")

    def __init__(self, thread: threading.Thread, root: Part) -> None:
        self.thread, self.root = thread, root
        self.part, self.kind, self.since_s = root, WORKS, monotonic()
        self.behind_s = 0.0

    @property
    def name(self) -> str:
        """The thread's; those of pools have a number behind it, and share it."""
        return self.thread.name.partition("_")[0]

    def turn(self, kind: int, now_s: float) -> int:
        """From now on it does this in the same part; returns what it did until now."""
        before = self.kind
        self.part.seconds[before] += now_s - self.since_s
        self.kind, self.since_s = kind, now_s
        return before

    def read(self, now_s: float) -> dict[str, Seconds]:
        """Seconds by part, what is under way included; those in no part under an empty name. By any thread.

        Of another thread's clock it is what that was within a part or two.
        """
        current, under_way = (self.part, self.kind), now_s - self.since_s
        found: dict[str, Seconds] = {}

        def add(name: str, part: Part) -> None:
            seconds = list(part.seconds)
            if part is current[0]:
                seconds[current[1]] += max(under_way, 0.0)
            found[name] = seconds[WORKS], seconds[WAITS], seconds[IDLES]
            for inner, of in list(part.inside.items()):
                add(f"{name}/{inner}" if name else inner, of)

        add("", self.root)
        return found


class _Here(threading.local):
    """Each thread's clock. One that follows on another of its name goes on with its parts."""

    def __init__(self) -> None:
        thread = threading.current_thread()
        with _lock:
            over = next((c for c in _clocks if c.thread.name == thread.name and not c.thread.is_alive()), None)
            if over is not None:
                _clocks.remove(over)
            self.clock = Clock(thread, Part("") if over is None else over.root)
            _clocks.append(self.clock)


_lock = threading.Lock()
_clocks: list[Clock] = []  # of all threads that have counted anything
_here = _Here()


def here() -> Clock:
    """The clock of this thread."""
    return _here.clock


def clocks() -> list[Clock]:
    """Those of all threads so far, of the last one of each name."""
    with _lock:
        return list(_clocks)


class Phase:
    """A context manager: what this thread does meanwhile is counted for the part of that name.

    One within itself is the same.
    """

    __slots__ = ("_clock", "_kind", "_part", "began_s", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        now_s = self.began_s = monotonic()  # first: what it takes to enter is of the phase
        clock = self._clock = _here.clock
        part = self._part = clock.part
        inner = part if part.name == self.name else part.inside.get(self.name)
        if inner is None:
            inner = part.inside[self.name] = Part(self.name)
        self._kind = clock.turn(WORKS, now_s)
        clock.part = inner

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock = self._clock
        clock.turn(self._kind, monotonic())
        clock.part = self._part


class Waits:
    """A context manager: this thread waits, for another one or for what is beside the process."""

    __slots__ = ("_clock", "_kind")
    does = WAITS

    def __enter__(self) -> None:
        self._clock = _here.clock
        self._kind = self._clock.turn(self.does, monotonic())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.turn(self._kind, monotonic())


class Idles(Waits):
    """A context manager: this thread pauses, of itself."""

    __slots__ = ()
    does = IDLES
