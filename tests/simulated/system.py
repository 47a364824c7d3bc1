"""What tasks of a simulation see of the system: files, locks, clocks, threads, who and where they are.

``os``, ``io.open``, ``fcntl``, ``time``, ``threading`` and the like are replaced for as long as ``installed`` lasts,
whatever module of hpcrec uses them. Each call of a task that touches a file of the simulation (a relative path, or a
descriptor of one) is a scheduling point and may fail as drawn; a call by anybody else goes through. HDF5 opens files
for reading by itself, which is no point.

Locks are a table here, so that they can be kept, ignored or refused. Times of files are the simulation's clock.
"""

import builtins
import concurrent.futures
import contextlib
import datetime as dt
import errno
import fcntl
import functools
import io
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import greenlet

from tests.simulated.scheduler import Killed, Process, Simulation, Task

READS = ("stat", "lstat", "listdir", "scandir")
CHANGES = ("mkdir", "rename", "replace", "unlink", "remove", "rmdir", "link", "truncate", "utime")
TWO_NAMES = ("rename", "replace", "link")
BY_DESCRIPTOR = ("write", "pwrite", "ftruncate", "fsync", "fdatasync")
# Errors that a call can meet.
ERRORS = {
    "open": (errno.EIO, errno.ESTALE, errno.EMFILE),
    **dict.fromkeys(("create", "mkdir", "write", "pwrite"), (errno.EIO, errno.ENOSPC, errno.EDQUOT)),
    **dict.fromkeys(("fsync", "fdatasync", "close"), (errno.EIO, errno.ENOSPC, errno.EDQUOT)),
    **dict.fromkeys(("stat", "lstat", "listdir", "scandir"), (errno.EIO, errno.ESTALE)),
    **dict.fromkeys(("rename", "replace", "link", "unlink", "remove", "rmdir", "utime"), (errno.EIO, errno.ESTALE)),
    **dict.fromkeys(("ftruncate", "truncate"), (errno.EIO, errno.ENOSPC)),
}
LOCKS = ("kept", "ignored", "local", "refused")
EPOCH_S = 1_700_000_000.0
_original = {name: getattr(os, name) for name in (*READS, *CHANGES, *BY_DESCRIPTOR, "open", "close", "fstat")}
_real_open = io.open
_gettid = greenlet.getcurrent


class System:
    """Files, locks and clocks of one simulation.

    Parameters
    ----------
    locks : str
        ``kept``: as locks are; ``ignored``: taken by whoever asks; ``local``: seen on one host only; ``refused``:
        ENOLCK.
    fault : callable, optional
        ``(task, call, path) -> errno or 0``: whether a call (one of ``ERRORS``) fails.

    Attributes
    ----------
    said : list of str
        Warnings.
    squeue : callable or None
        The state of each job by number, None where it fails; None where there is no squeue.
    """

    def __init__(
        self,
        simulation: Simulation,
        locks: str = "kept",
        fault: Callable[[Task, str, str], int] = lambda *_: 0,
    ) -> None:
        assert locks in LOCKS
        self.simulation, self.locks, self.fault = simulation, locks, fault
        self.said: list[str] = []
        self.tokens = random.Random(f"tokens {simulation.seed}")
        self.squeue: Callable[[], dict[str, str] | None] | None = None
        self.changed: list[Callable[[Task, str, list[str]], None]] = []  # called before a change of names takes effect
        self._held: dict[int, tuple[Process, int | None]] = {}  # inode -> whose lock, by which descriptor (flock)
        self._times: dict[int, float] = {}  # inode -> seconds by the simulation's clock
        self._opened: dict[int, tuple[Process, str, bool]] = {}  # descriptors, and whether they are written by
        self._followed: set[int] = set()

    # Files.

    def touch(self, task: Task, call: str, path: str) -> None:
        """A call of a task: a scheduling point; raises what was drawn for it."""
        self.simulation.point(f"{call} {'/'.join(path.split('/')[-2:])}")
        self.meet(task, call, path)

    def meet(self, task: Task, call: str, path: str) -> None:
        """Raises what was drawn for a call."""
        if call in ERRORS and (number := self.fault(task, call, path)):
            self.simulation.events[f"fault {errno.errorcode[number]} in {call}"] += 1
            self.simulation.trace.append(f"{errno.errorcode[number]} {call} {'/'.join(path.split('/')[-2:])}")
            raise OSError(number, os.strerror(number), path)

    def note_time(self, descriptor: int) -> None:
        """A file was written now."""
        with contextlib.suppress(OSError):
            self._times[_original["fstat"](descriptor).st_ino] = self.simulation.now_s

    def dated(self, found: os.stat_result) -> os.stat_result:
        """With the time of the simulation's clock."""
        at_s = self._times.get(found.st_ino)
        if at_s is None:
            return found
        at_s += EPOCH_S
        fields = {name: getattr(found, name) for name in ("st_blksize", "st_blocks", "st_rdev")}
        times = {"st_atime": at_s, "st_mtime": at_s, "st_ctime": at_s}
        in_ns = {f"{name}_ns": int(value * 1e9) for name, value in times.items()}
        return os.stat_result([*found[:7], int(at_s), int(at_s), int(at_s)], {**fields, **times, **in_ns})

    def opened(self, descriptor: int, process: Process, path: str, *, writes: bool) -> None:
        """A descriptor that is closed where its process ends."""
        self._opened[descriptor] = (process, path, writes)
        self._follow(process)

    def path_of(self, descriptor: int) -> str | None:
        """Of a descriptor that a task has opened."""
        found = self._opened.get(descriptor)
        return None if found is None else found[1]

    def closing(self, process: Process, descriptor: int) -> None:
        """A descriptor is about to be closed: POSIX locks of its process on that file go with any of them."""
        self._opened.pop(descriptor, None)
        with contextlib.suppress(OSError):
            number = _original["fstat"](descriptor).st_ino
            held = self._held.get(number)
            if held is not None and held[0] is process and held[1] in (None, descriptor):
                del self._held[number]

    def _follow(self, process: Process) -> None:
        """Its locks and descriptors go where it ends, however it does."""
        if process.number not in self._followed:
            self._followed.add(process.number)
            process.at_end.append(functools.partial(self._end, process))

    def _end(self, process: Process) -> None:
        self._held = {number: held for number, held in self._held.items() if held[0] is not process}
        for descriptor in [d for d, (whose, *_) in self._opened.items() if whose is process]:
            del self._opened[descriptor]
            with contextlib.suppress(OSError):
                _original["close"](descriptor)

    # Locks.

    def lock(self, process: Process, descriptor: int, how: int, *, by_descriptor: bool) -> None:
        """As ``fcntl.lockf``, or ``flock``."""
        if self.locks == "refused":
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        number = _original["fstat"](descriptor).st_ino
        mine = (process, descriptor if by_descriptor else None)
        if how & fcntl.LOCK_UN:
            if self._held.get(number) == mine:
                del self._held[number]
            return
        held = self._held.get(number)
        seen = held is not None and held != mine and self.locks != "ignored"
        if seen and self.locks == "local" and held is not None:
            seen = held[0].host == process.host
        if seen:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._held[number] = mine
        self._follow(process)

    def holds(self, process: Process) -> bool:
        """Whether it has any lock."""
        return any(held[0] is process for held in self._held.values())


_system: list[System] = []  # the one that is installed
_judging: list[bool] = []


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """For who judges: what a task does inside goes to the real system, at once."""
    _judging.append(True)
    try:
        yield
    finally:
        _judging.pop()


def _task() -> Task | None:
    """The task that runs now; None where the caller is none."""
    if not _system or _judging:
        return None
    task = _system[0].simulation.current
    return task if task is not None and task.greenlet is _gettid() else None


def _simulated(path: Any) -> str | None:
    """A path that is in the simulation: a relative one."""
    if isinstance(path, str | bytes | os.PathLike):
        text = os.fsdecode(path)
        return None if text.startswith("/") else text
    return None


def _wrapped_path(name: str) -> Callable[..., Any]:
    original = _original[name]

    def call(*args: Any, **more: Any) -> Any:
        task = _task()
        if task is None or not args:
            return original(*args, **more)
        system = _system[0]
        path = _simulated(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else system.path_of(args[0])
        if path is None:
            return original(*args, **more)
        if name == "stat" and isinstance(args[0], int):
            return system.dated(original(*args, **more))
        system.touch(task, name, path)
        for call in system.changed if name in CHANGES else ():
            call(task, name, [path, *map(os.fsdecode, args[1:2] if name in TWO_NAMES else ())])
        done = original(*args, **more)
        if name in ("stat", "lstat"):
            return system.dated(done)
        if name == "utime":
            system._times[os.lstat(path).st_ino] = system.simulation.now_s
        return done

    return call


def _wrapped_descriptor(name: str) -> Callable[..., Any]:
    original = _original[name]

    def call(descriptor: Any, *args: Any, **more: Any) -> Any:
        task = _task()
        if task is None:
            return original(descriptor, *args, **more)
        system = _system[0]
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        system.touch(task, name, system.path_of(number) or "")
        if name in ("fsync", "fdatasync"):
            return None  # nothing is lost here but by what is drawn
        done = original(descriptor, *args, **more)
        system.note_time(number)
        return done

    return call


def _open_descriptor(path: Any, flags: int, *args: Any, **more: Any) -> int:
    task, text = _task(), _simulated(path)
    if task is None or text is None:
        return int(_original["open"](path, flags, *args, **more))
    system = _system[0]
    writes = bool(flags & (os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_RDWR))
    system.touch(task, "create" if writes else "open", text)
    descriptor = int(_original["open"](path, flags, *args, **more))
    system.opened(descriptor, task.process, text, writes=writes)
    if flags & (os.O_CREAT | os.O_TRUNC):
        system.note_time(descriptor)
    return descriptor


def _close_descriptor(descriptor: int) -> None:
    task = _task()
    if task is not None and not task.process.alive:
        return None  # its descriptors are closed, and the number may be another's
    found = None if task is None else _system[0]._opened.get(descriptor)
    if task is None or found is None:
        return _original["close"](descriptor)
    _system[0].closing(task.process, descriptor)
    _original["close"](descriptor)
    if task.process.alive and found[2]:  # else there is nothing that could not be written
        _system[0].touch(task, "close", found[1])
    return None


def _fstat(descriptor: int) -> os.stat_result:
    found = _original["fstat"](descriptor)
    return found if _task() is None else _system[0].dated(found)


class _File(io.FileIO):
    """A file that a task has opened: its writes may fail, and are dropped where its process is gone."""

    def __init__(self, path: Any, mode: str, task: Task) -> None:
        self._system, self._process, self._at = _system[0], task.process, os.fsdecode(path)
        self._writes = any(letter in mode for letter in "wax+")
        super().__init__(path, mode)
        if any(letter in mode for letter in "wx"):
            self._system.note_time(self.fileno())

    def write(self, data: Any) -> int:
        task = _task()
        if not self._process.alive:
            raise Killed
        if task is not None:
            self._system.meet(task, "write", self._at)
        done = super().write(data)
        self._system.note_time(self.fileno())
        return done

    def close(self) -> None:
        if not self.closed:
            self._system.closing(self._process, self.fileno())
        super().close()


def _open(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    task, text = _task(), _simulated(file)
    if task is not None and text is None and str(file).startswith("/proc/"):
        return io.StringIO(_proc(str(file), task))
    if task is None or text is None:
        return _real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
    writes = any(letter in mode for letter in "wax+")
    _system[0].touch(task, "create" if writes else "open", text)
    raw = _File(file, mode.replace("b", "").replace("t", ""), task)
    if buffering == 0:
        return raw
    buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw) if writes else io.BufferedReader(raw)
    return buffer if "b" in mode else io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline)


# ---- locks and threads ---------------------------------------------------------------------------------------------


def _lock_by_process(descriptor: Any, how: int, *more: Any) -> None:
    task = _task()
    if task is None:
        return _real_locks["lockf"](descriptor, how, *more)
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    _system[0].touch(task, "lockf", _system[0].path_of(number) or "")
    return _system[0].lock(task.process, number, how, by_descriptor=False)


def _lock_by_descriptor(descriptor: Any, how: int) -> None:
    task = _task()
    if task is None:
        return _real_locks["flock"](descriptor, how)
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    _system[0].touch(task, "flock", "")
    return _system[0].lock(task.process, number, how, by_descriptor=True)


_real_locks: dict[str, Callable[..., Any]] = {"lockf": fcntl.lockf, "flock": fcntl.flock}


class _Lock:
    """As ``threading.Lock``, between tasks; with ``again`` as ``RLock``."""

    def __init__(self, *, again: bool) -> None:
        self._again, self._owner, self._times = again, None, 0

    _owner: Any

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = _task()
        me = task or _gettid()
        if self._again and self._owner is me:
            self._times += 1
            return True
        if self._owner is not None:
            if not blocking or task is None:
                return False
            free = lambda: self._owner is None  # noqa: E731
            while self._owner is not None:
                if not task.simulation.wait("lock", free, None if timeout < 0 else timeout):
                    return False
        self._owner, self._times = me, 1
        return True

    def release(self) -> None:
        self._times -= 1
        if self._times <= 0:
            self._owner, self._times = None, 0

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner is (_task() or _gettid())

    def _release_save(self) -> tuple[Any, int]:
        state = self._owner, self._times
        self._owner, self._times = None, 0
        return state

    def _acquire_restore(self, state: tuple[Any, int]) -> None:
        self.acquire()
        self._owner, self._times = state


def _condition_wait(self: threading.Condition, timeout: float | None = None) -> bool:
    task = _task()
    if task is None:
        return bool(_real_threads["condition"](self, timeout))
    waiter = _Lock(again=False)
    waiter.acquire()
    self._waiters.append(waiter)  # type: ignore[attr-defined]
    saved = self._release_save()  # type: ignore[attr-defined]
    try:
        told = task.simulation.wait("condition", lambda: not waiter.locked(), timeout)
        if not told:
            with contextlib.suppress(ValueError):
                self._waiters.remove(waiter)  # type: ignore[attr-defined]
        return told
    finally:
        self._acquire_restore(saved)  # type: ignore[attr-defined]


def _thread_start(self: threading.Thread) -> None:
    task = _task()
    if task is None:
        return _real_threads["start"](self)

    def work() -> None:
        try:
            self.run()
        except Exception as error:
            task.process.tasks[0].error = task.process.tasks[0].error or error
            task.process.end()  # as ``comm.failure`` has it

    task.simulation.events["threads"] += 1
    self._simulated = task.simulation.spawn(f"{task.process.name} {self.name}", task.process, work)  # type: ignore[attr-defined]
    self._started.set()  # type: ignore[attr-defined]
    task.simulation.point("thread started")
    return None


def _thread_join(self: threading.Thread, timeout: float | None = None) -> None:
    task, other = _task(), getattr(self, "_simulated", None)
    if task is None or other is None:
        return _real_threads["join"](self, timeout)
    if not other.done:
        task.simulation.wait("join", lambda: other.done, timeout)
    return None


def _thread_is_alive(self: threading.Thread) -> bool:
    other = getattr(self, "_simulated", None)
    return bool(_real_threads["alive"](self)) if other is None else not other.done


def _submit(self: Any, work: Any, /, *args: Any, **more: Any) -> Any:
    """One thread works through what is handed in."""
    task = _task()
    if task is None:
        return _real_threads["submit"](self, work, *args, **more)
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    queue: deque[Any] = self.__dict__.setdefault("_simulated_queue", deque())
    queue.append((future, functools.partial(work, *args, **more)))

    def drain() -> None:
        while queue:
            one, call = queue.popleft()
            try:
                one.set_result(call())
            except Exception as error:
                one.set_exception(error)

    worker = self.__dict__.get("_simulated_worker")
    if worker is None or worker.done:
        self._simulated_worker = task.simulation.spawn(f"{task.process.name} pool", task.process, drain)
    task.simulation.point("submit")
    return future


def _shutdown(self: Any, wait: bool = True, *, cancel_futures: bool = False) -> None:
    task, worker = _task(), self.__dict__.get("_simulated_worker")
    if task is None:
        return _real_threads["shutdown"](self, wait, cancel_futures=cancel_futures)
    if cancel_futures:
        self.__dict__.get("_simulated_queue", deque()).clear()
    if wait and worker is not None and not worker.done:
        task.simulation.wait("shutdown", lambda: worker.done)
    return None


_real_threads: dict[str, Callable[..., Any]] = {
    "condition": threading.Condition.wait,
    "start": threading.Thread.start,
    "join": threading.Thread.join,
    "alive": threading.Thread.is_alive,
    "submit": concurrent.futures.ThreadPoolExecutor.submit,
    "shutdown": concurrent.futures.ThreadPoolExecutor.shutdown,
}


def _replaced(original: Callable[..., Any], simulated: Callable[[Task], Callable[..., Any]]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        task = _task()
        return original(*args, **more) if task is None else simulated(task)(*args, **more)

    return call


def _warn(text: Any, *_: Any, **__: Any) -> None:
    _system[0].said.append(str(text))


def _token(n_bytes: int = 32) -> str:
    return _system[0].tokens.randbytes(n_bytes).hex()


def _run(line: Any, **_: Any) -> subprocess.CompletedProcess[str]:
    """``squeue -h -o ID|STATE``; nothing else is there."""
    system = _system[0]
    system.simulation.point(f"run {line[0]}")
    if line[0] != "squeue" or system.squeue is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), line[0])
    states = system.squeue()
    if states is None:
        return subprocess.CompletedProcess(line, 1, "", "slurm_load_jobs error: Unable to contact slurm controller\n")
    text = "".join(f"{job}|{state}\n" for job, state in states.items())
    return subprocess.CompletedProcess(line, 0, text, "")


def _proc(path: str, task: Task) -> str:
    """A file of ``/proc``."""
    if path.endswith("boot_id"):
        return f"{task.process.host}\n"
    for other in task.simulation.tasks:
        process = other.process
        if path == f"/proc/{process.number}/stat" and process.alive and process.host == task.process.host:
            return f"{process.number} (hpcrec) S " + " ".join(str(process.number) for _ in range(49))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Datetime(dt.datetime):
    """Whose ``now`` is the simulation's for tasks."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        task = _task()
        if task is None:
            return dt.datetime.now(tz)
        return dt.datetime.fromtimestamp(task.simulation.now_s + EPOCH_S, tz)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """While it lasts, tasks see the system that ``system`` has set."""
    clocks = {"time": EPOCH_S, "monotonic": 0.0, "perf_counter": 0.0}
    with contextlib.ExitStack() as stack:

        def put(where: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(where, name, value))

        for name in (*READS, *CHANGES):
            put(os, name, _wrapped_path(name))
        for name in BY_DESCRIPTOR:
            put(os, name, _wrapped_descriptor(name))
        put(os, "open", _open_descriptor)
        put(os, "close", _close_descriptor)
        put(os, "fstat", _fstat)
        put(io, "open", _open)
        put(builtins, "open", _open)
        put(os, "getpid", _replaced(os.getpid, lambda task: lambda: task.process.number))
        put(socket, "gethostname", _replaced(socket.gethostname, lambda task: lambda: task.process.host))
        put(fcntl, "lockf", _lock_by_process)
        put(fcntl, "flock", _lock_by_descriptor)
        put(time, "sleep", _replaced(time.sleep, lambda task: task.simulation.sleep))
        for name, since_s in clocks.items():
            now = lambda task, since_s=since_s: lambda: task.simulation.now_s + since_s  # noqa: E731
            put(time, name, _replaced(getattr(time, name), now))
            in_ns = lambda task, since_s=since_s: lambda: int((task.simulation.now_s + since_s) * 1e9)  # noqa: E731
            put(time, f"{name}_ns", _replaced(getattr(time, f"{name}_ns"), in_ns))
        put(warnings, "warn", _replaced(warnings.warn, lambda _: _warn))
        put(os, "readlink", _replaced(os.readlink, lambda task: lambda path: f"{path} of {task.process.host}"))
        put(secrets, "token_hex", _replaced(secrets.token_hex, lambda _: _token))
        put(subprocess, "run", _replaced(subprocess.run, lambda _: _run))
        put(threading, "Lock", _replaced(threading.Lock, lambda _: lambda: _Lock(again=False)))
        put(threading, "RLock", _replaced(threading.RLock, lambda _: lambda: _Lock(again=True)))
        put(threading.Condition, "wait", _condition_wait)
        put(threading.Thread, "start", _thread_start)
        put(threading.Thread, "join", _thread_join)
        put(threading.Thread, "is_alive", _thread_is_alive)
        put(concurrent.futures.ThreadPoolExecutor, "submit", _submit)
        put(concurrent.futures.ThreadPoolExecutor, "shutdown", _shutdown)
        for name, module in list(sys.modules.items()):
            if name.startswith("hpcrec.") and getattr(module, "datetime", None) is dt.datetime:
                put(module, "datetime", _Datetime)
        yield


@contextlib.contextmanager
def in_use(system: System) -> Iterator[None]:
    """The system of the simulation that runs while the block lasts."""
    assert not _system
    _system.append(system)
    try:
        yield
    finally:
        _system.clear()


__all__ = ["System", "in_use", "installed", "unseen"]
