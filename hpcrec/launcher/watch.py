"""The launcher's watch over one job: its boards, the order in which its processes end, and memory that ran out.

What all of it means is for ``last_words``. Imports no MPI and starts no ranks.
"""

import contextlib
import os
import re
import select
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from hpcrec.comm.board import FOLDER, Left, read_boards
from hpcrec.launcher.last_words import LastWords, last_words, remark_in
from hpcrec.launcher.relay import Heard

_PF_EXITING = 0x4  # among the flags of /proc/PID/stat
_LOOK_S = 0.2  # between looks for boards of ranks that have just started
# What started ranks ends within a second of the last one's end, mostly; Open MPI's mpirun was seen to hang there.
_LINGERS_S = 30.0


class Watch:
    """The boards of one job, from before its start until it is known how it ended; a context manager.

    Parameters
    ----------
    parent : Path or None
        Where the folder for boards is made: on a file system that all hosts see, or None for this host's own.

    Attributes
    ----------
    environment : dict of str to str
        What the ranks need in theirs.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._folder: Path | None = None
        with contextlib.suppress(OSError):  # where nothing can be written the run itself says so
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=".boards-" if parent else "hpcrec-boards-", dir=parent))
        self.environment = {} if self._folder is None else {FOLDER: str(self._folder)}
        self._killed_before = _killed_for_memory()
        self._deaths: list[tuple[float, set[int]]] = []  # when (seconds since the epoch), and who, in order
        self._ending: set[int] = set()  # ranks whose end had begun when the first death was seen
        self._gone_s: float | None = None  # by the monotonic clock, since when no rank of this host is left
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rank-watch", daemon=True)

    def __enter__(self) -> Self:
        if self._folder is not None and hasattr(os, "pidfd_open"):
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _stop(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def boards(self) -> dict[int, Left]:
        """What the ranks have noted so far."""
        return {} if self._folder is None else read_boards(self._folder)

    def all_left(self) -> bool:
        """Whether every rank has left in order, those of this host ``_LINGERS_S`` ago; False where it has none."""
        gone_s = self._gone_s
        if gone_s is None or time.monotonic() - gone_s < _LINGERS_S:
            return False
        return left_in_order(self.boards())

    def last_words(self, code: int, heard: Heard) -> LastWords | None:
        """How the job ended, once it has; None where its ranks have said it themselves, or nothing is known."""
        self._stop()
        found = self.boards()
        remark, memory = remark_in(bytes(heard.tail)), self._lacked_memory(heard)
        return last_words(found, self._deaths, remark, code, memory, self._ending)

    def _lacked_memory(self, heard: Heard) -> str:
        """The sign that this host's kernel, or Slurm, has killed for memory since the start; empty without one."""
        for name, count in _killed_for_memory().items():
            if count > self._killed_before.get(name, count):
                return f"{name} of {socket.gethostname()}"
        return "Slurm's report" if re.search(rb"oom.kill|Out Of Memory", heard.tail, re.IGNORECASE) else ""

    def _watch(self) -> None:
        """Notes the order in which ranks of this host end."""
        assert self._folder is not None
        here, poll, known = socket.gethostname(), select.poll(), set()
        ranks: dict[int, Left] = {}  # by descriptor
        try:
            complete, n_gone = False, 0
            while not self._ended.is_set():
                if not complete:
                    boards = read_boards(self._folder)
                    for left in boards.values():
                        if left.rank not in known and left.host == here:
                            with contextlib.suppress(OSError):
                                descriptor = os.pidfd_open(left.pid)
                                ranks[descriptor] = left
                                poll.register(descriptor, select.POLLIN)
                        known.add(left.rank)
                    complete = any(len(boards) == left.ranks for left in boards.values())
                gone = {descriptor for descriptor, _ in poll.poll(_LOOK_S * 1000)}
                if gone and not self._deaths:
                    self._ending = {left.rank for at, left in ranks.items() if at not in gone and _is_ending(left.pid)}
                if gone:
                    self._deaths.append((time.time(), {ranks[descriptor].rank for descriptor in gone}))
                for descriptor in gone:
                    poll.unregister(descriptor)
                n_gone += len(gone)
                if complete and ranks and n_gone == len(ranks) and self._gone_s is None:
                    self._gone_s = time.monotonic()
        finally:
            for descriptor in ranks:
                os.close(descriptor)


def left_in_order(boards: Mapping[int, Left]) -> bool:
    """Whether these are the boards of all ranks, and each has left in order, with an error or without."""
    n_ranks = max((left.ranks for left in boards.values()), default=0)
    return 0 < n_ranks == len(boards) and all(left.ended_s is not None for left in boards.values())


def _is_ending(pid: int) -> bool:
    """Whether a process has begun to end: its connections may be closed, and others ended for it, before it is gone."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    return state in "ZX" or bool(int(fields[5]) & _PF_EXITING)


def _killed_for_memory() -> dict[str, int]:
    """Processes that this host's kernel has killed for memory, by the file that says so: of our limits, and of all."""
    files = {"/proc/vmstat": "oom_kill"}
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                files[f"/sys/fs/cgroup{path.rstrip('/')}/memory.events"] = "oom_kill"
            elif "memory" in controllers.split(","):
                files[f"/sys/fs/cgroup/memory{path.rstrip('/')}/memory.oom_control"] = "oom_kill"
    found = {}
    for file, key in reversed(files.items()):
        with contextlib.suppress(OSError, ValueError):
            for line in Path(file).read_text().splitlines():
                if line.split()[0] == key:
                    found[file] = int(line.split()[1])
    return found
