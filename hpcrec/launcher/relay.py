"""Copies a launcher's stderr as it comes, without its remarks on ranks that ended on purpose.

A rank that fails says why itself, and exit code 75 is no failure; Open MPI cannot be told to be quiet about either
without also losing the exit code. The end of what came is kept, for ``last_words``. Knows how Open MPI frames its
remarks, two lines of dashes, and the lines of MPICH and srun. What the launcher has to say itself goes to its stderr
the same way: nothing waits for a log that takes no more.
"""

import functools
import os
import re
import select
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_RULE = re.compile(rb"-{60,}\s*\Z")
# Exit codes 1, 2 and 75 are ours, with a message or a checkpoint behind them. Any other code is news.
_KNOWN = (
    re.compile(rb"exited with non-zero status.*Exit code:\s+(1|2|75)\s*\n", re.DOTALL),
    re.compile(rb"MPI_ABORT was invoked on rank.*?(Errorcode:|with errorcode) +(1|2|75)\b", re.DOTALL),
    re.compile(rb"has exited due to process rank \d+.*calling\s+\"abort\"", re.DOTALL),
)
_KNOWN_LINE = re.compile(
    rb"Abort\((1|2|75)\) on node \d+ .*application called MPI_Abort"
    rb"|srun: error: \S+: tasks? [\d,-]+: Exited with exit code (1|2|75)\n"
    rb"|srun: cluster configuration lacks support for cpu binding\n"
)
_BEGINNINGS = (b"-", b"Abort(", b"srun: ")  # of a line that may be a remark
_LONGEST_REMARK_LINES = 30
_HOLD_S = 1.0
_KEPT_BYTES = 65536
_MOST_WAITING_BYTES = 1 << 20
_STDERR = 2


@dataclass
class Heard:
    """What the launcher comes to know of a job beside its exit code.

    Attributes
    ----------
    tail : bytearray
        The end of what came on mpirun's stderr, its remarks included.
    stopping, killing : bool
        Whether a signal has asked the job to end, and a second one to end at once.
    all_left : callable
        Whether every rank has left in order, and that a while ago: what started them has nothing left to wait for.
    """

    tail: bytearray = field(default_factory=bytearray)
    stopping: bool = False
    killing: bool = False
    all_left: Callable[[], bool] = lambda: False


class RemarkFilter:
    """Passes text through, piece by piece, but for known remarks."""

    def __init__(self) -> None:
        self._line = b""  # an unfinished line that may be a rule, or MPICH's remark
        self._held: list[bytes] = []  # a remark so far, from its first rule on

    def feed(self, data: bytes) -> bytes:
        """What can be passed on once ``data`` has come."""
        # Open MPI ends its remark on an abort with a NUL, which no text has.
        *lines, rest = (self._line + data.replace(b"\0", b"")).split(b"\n")
        self._line = b""
        out = [self._whole(line + b"\n") for line in lines]
        if self._held or any(rest.startswith(known) or known.startswith(rest) for known in _BEGINNINGS):
            self._line = rest
        else:
            out.append(rest)  # a progress bar, or a prompt
        return b"".join(out)

    def flush(self) -> bytes:
        """All that is held back."""
        out = b"".join(self._held) + self._line
        self._held, self._line = [], b""
        return out

    @property
    def holds(self) -> bool:
        """Whether anything is held back."""
        return bool(self._held or self._line)

    def _whole(self, line: bytes) -> bytes:
        is_rule = _RULE.match(line) is not None
        if not self._held and not is_rule:
            return b"" if _KNOWN_LINE.match(line) else line
        self._held.append(line)
        if len(self._held) > 1 and is_rule:
            remark, self._held = b"".join(self._held), []
            return b"" if any(known.search(remark) for known in _KNOWN) else remark
        if len(self._held) > _LONGEST_REMARK_LINES:
            held, self._held = b"".join(self._held), []
            return held
        return b""


class Outlet:
    """Writes to a file descriptor by a thread of its own, so that nobody waits for one that blocks.

    What cannot be written, or waits in line with more than a MiB, is lost and counted, and that is said where the next
    can be written: a full quota on a log is no reason for a run to stop.

    Parameters
    ----------
    target : int
    who : str
        Who says what it writes.
    """

    def __init__(self, target: int, who: str = "the ranks") -> None:
        self._target, self._who = target, who
        self._waiting = deque[bytes]()
        self._n_waiting = self._lost = 0
        self._why = ""
        self._writing = self._ended = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        """Takes what is to be written; never waits, and may be called by a handler of signals."""
        with self._news:
            if self._n_waiting + len(data) > _MOST_WAITING_BYTES:
                self._lose(len(data), "it took nothing for too long")
                return
            self._waiting.append(data)
            self._n_waiting += len(data)
            self._news.notify_all()

    def wait(self, within_s: float) -> None:
        """Waits until all of it is written or lost, no longer than this."""
        with self._news:
            self._news.wait_for(lambda: not self._waiting and not self._writing, within_s)

    def close(self) -> None:
        """Waits a little for what is left."""
        with self._news:
            self._ended = True
            self._news.notify_all()
        self._thread.join(timeout=_HOLD_S)

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                data, self._writing = self._waiting.popleft(), True
                lost, why = self._lost, self._why
            note = f"\nhpcrec: {lost} bytes that {self._who} said are not here: {why}\n".encode() if lost else b""
            left, problem = self._write(note + data)
            with self._news:
                self._n_waiting -= len(data)
                if len(left) <= len(data):  # the note is written
                    self._lost -= lost
                if left:
                    self._lose(min(len(left), len(data)), problem)
                self._writing = False
                self._news.notify_all()

    def _write(self, data: bytes) -> tuple[bytes, str]:
        """What could not be written, and why."""
        while data:
            try:
                data = data[os.write(self._target, data) :]
            except BlockingIOError:
                select.select([], [self._target], [], _HOLD_S)
            except OSError as error:
                return data, error.strerror or str(error)
        return b"", ""

    def _lose(self, n: int, why: str) -> None:
        self._lost, self._why = self._lost + n, why


@functools.cache
def own_words() -> Outlet:
    """Where the launcher says what it has to say: its stderr. Made before a handler of signals needs it."""
    return Outlet(_STDERR, "hpcrec run")


def say(*lines: str) -> None:
    """Says lines of the launcher's, soon: a log that blocks holds up neither a start nor an end."""
    say_later(*lines)
    own_words().wait(_HOLD_S)


def say_later(*lines: str) -> None:
    """As ``say``, but never waits: for handlers of signals."""
    own_words().put("".join(f"hpcrec: {line}\n" for line in lines).encode())


def relay(source: int, target: int, heard: Heard) -> None:
    """Copies from one file descriptor to another until the end, whose tail is kept in ``heard``.

    It reads to the end whatever becomes of ``target``: ranks whose messages nobody reads would wait for it.
    """
    remarks, outlet = RemarkFilter(), Outlet(target)
    while True:
        ready, _, _ = select.select([source], [], [], _HOLD_S if remarks.holds else None)
        data = os.read(source, 65536) if ready else b""
        heard.tail += data
        del heard.tail[:-_KEPT_BYTES]
        if out := remarks.feed(data) if data else remarks.flush():
            outlet.put(out)
        if ready and not data:
            outlet.close()
            return
