"""How ranks fail and stop: together, within seconds, with one message and a telling exit code.

An error that every rank raises (a wrong configuration, or anything put through ``agree``) is printed once: one line, or
a traceback where it was unforeseen. An error of one rank is printed once too and ends the whole job by ``MPI_Abort``,
since the others would wait for it for ever. Either way the ranks leave at once and exit handlers do not run: what must
be on disk is written before. A signal only sets a flag; how the ranks agree on the step after which they stop is not
known here.

Imports no MPI itself: it is handed communicators.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Callable
from enum import IntEnum
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

import numpy as np

from hpcrec import errors
from hpcrec.comm import board
from hpcrec.errors import ConfigError, HpcrecError, LastCheckpointError
from hpcrec.output import forgiving, send_nowhere

_TOGETHER_S = 1.5  # ranks that fail by the same cause arrive within this; one that fails alone ends the job after it
_UNFORESEEN_S = 0.5  # the same for a traceback, which should be out before anything else happens
_FORWARDED_S = 0.3  # MPICH's mpirun drops at an MPI_Abort what ranks have written and it has not read yet
_LAST_RESORT_S = 2  # after this an MPI_Abort that hangs is cut off by the kernel


class ExitCodes(IntEnum):
    """What a run's exit code says."""

    FINISHED = 0
    ERROR = 1
    CONFIGURATION = 2  # a configuration or a command line that cannot be run
    # Start it again to go on (EX_TEMPFAIL): stopped after writing a checkpoint or, where the run began its stop by
    # itself ahead of its job's time limit, after an earlier one.
    STOPPED = 75


class Gathers(Protocol):
    """What ``agree`` needs of ``comm.collectives.Collectives``."""

    rank: int

    def allgather(self, thing: Any) -> list[Any]:
        """Small Python objects from every rank, in rank order."""


def agree(comm: Gathers, error: Exception | None) -> None:
    """Raises on every rank what any rank has caught; collective. Returns where no rank has an error.

    For set-up and checkpoints, never for steps. The failing rank with the lowest number wins; the others are told
    which rank it was, unless all have the same error.

    Raises
    ------
    HpcrecError
        Of the class that the failing rank had, where hpcrec defines it; ``HpcrecError`` for any other exception, which
        is raised as it is on the failing rank.
    """
    mine = None if error is None else (_kind(error), _text(error))
    everyone = comm.allgather(mine)
    failed = [rank for rank, told in enumerate(everyone) if told is not None]
    if not failed:
        return
    kind, text = everyone[failed[0]]
    if everyone.count(everyone[failed[0]]) < len(everyone):
        text = f"rank {failed[0]}: {text}"
    if comm.rank == failed[0] and error is not None and not isinstance(error, HpcrecError):
        raise error  # unforeseen: this rank's traceback is what helps
    raise getattr(errors, kind)(text) from error


def exit_code(error: BaseException) -> ExitCodes:
    """The exit code of a run that ends by ``error``."""
    if isinstance(error, LastCheckpointError):
        return ExitCodes.STOPPED
    return ExitCodes.CONFIGURATION if isinstance(error, ConfigError) else ExitCodes.ERROR


def install(comm: Any) -> None:
    """Makes uncaught errors of any thread end the whole job; collective, once a process.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks of the job; ``MPI.COMM_WORLD``.
    """
    last_words = _LastWords(comm)
    sys.excepthook = last_words.on_main_thread
    threading.excepthook = last_words.on_thread


def is_installed() -> bool:
    """Whether ``install`` was called, and holds."""
    return isinstance(getattr(sys.excepthook, "__self__", None), _LastWords)


class _LastWords:
    """What a rank says and does about an uncaught error."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._quiet = comm.Dup()  # for finding out who else has failed, whatever the others wait for
        self._who = f"[rank {comm.rank} on {socket.gethostname()}]"
        self._once = threading.Lock()

    def on_main_thread(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not self._once.acquire(blocking=False):
            time.sleep(_FORWARDED_S + _LAST_RESORT_S)  # another thread is about to end the job, and needs the process
            os._exit(int(exit_code(error)))
        board.mine().end(_text(error))
        if isinstance(error, KeyboardInterrupt):
            self._end(f"{self._who} interrupted\n", 128 + signal.SIGINT)
        foreseen = isinstance(error, HpcrecError)
        cause = str(error) if foreseen else "".join(traceback.format_exception(kind, error, trace))
        said_R = self._all_failed(cause, _TOGETHER_S if foreseen else _UNFORESEEN_S)
        if said_R is None:
            self._end(self._line(error) if foreseen else self._traceback(cause), exit_code(error))
        if _digest(cause) not in said_R[: self._comm.rank]:
            say(f"hpcrec: error: {cause}\n" if foreseen else self._traceback(cause))
        # The first rank to leave takes the others with it, so all say what they have to say before. No rank waits for
        # its threads, Horovod or MPI_Finalize: what they wait for may never come. One rank ends the job: where all
        # leave by themselves, MPICH kills those that are late, and its exit code is then made of both.
        _poll(self._quiet.Ibarrier(), _TOGETHER_S)
        if self._comm.rank == 0:
            self._end("", exit_code(error))
        time.sleep(_LAST_RESORT_S)
        os._exit(int(exit_code(error)))

    def on_thread(self, args: threading.ExceptHookArgs) -> None:
        if args.exc_type is SystemExit or not self._once.acquire(blocking=False):
            return
        board.mine().end(f"{args.exc_type.__name__}" if args.exc_value is None else _text(args.exc_value))
        if isinstance(args.exc_value, HpcrecError):
            self._end(self._line(args.exc_value), exit_code(args.exc_value))
        lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
        self._end(self._traceback("".join(lines)), ExitCodes.ERROR)

    def _line(self, error: BaseException) -> str:
        return f"hpcrec: error: {self._who} {error}\n"

    def _traceback(self, text: str) -> str:
        return "".join(f"{self._who} {line}\n" for line in text.splitlines())

    def _end(self, text: str, code: int) -> NoReturn:
        end_job(self._comm, text, code)

    def _all_failed(self, cause: str, within_s: float) -> list[int] | None:
        """Digests of all ranks' causes if every rank has come here, None if some rank has not in time."""
        mine = np.array([_digest(cause)], np.int64)
        everyone = np.zeros(self._quiet.size, np.int64)
        return everyone.tolist() if _poll(self._quiet.Iallgather(mine, everyone), within_s) else None


def end_job(comm: Any, text: str, code: int) -> NoReturn:
    """Says ``text`` and ends every rank of the job, from any thread of this one.

    Not at once, so that it is read, and what other ranks have just said.
    """
    board.mine().end(text.strip() or "it ended the job")
    say(text)
    time.sleep(_FORWARDED_S)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # else whoever has taken it keeps it
    signal.alarm(_LAST_RESORT_S)
    if comm.size > 1:  # else nobody is left to end, and what Open MPI says of its abort would come after our words
        comm.Abort(int(code))
    os._exit(int(code))


def attempt(work: Callable[[], None], within_s: float) -> None:
    """Does what may fail or never return (a file system that hangs), and waits for its end no longer than this."""

    def run() -> None:
        with contextlib.suppress(Exception):
            work()

    thread = threading.Thread(target=run, name="last-words", daemon=True)
    thread.start()
    thread.join(within_s)


def _poll(request: Any, within_s: float) -> bool:
    """Whether ``request`` ends in time."""
    until = time.monotonic() + within_s
    while not request.Test():
        if time.monotonic() > until:
            return False
        time.sleep(0.005)
    return True


def _digest(message: str) -> int:
    """A number that is the same on every rank for the same message."""
    return zlib.crc32(message.encode())


class StopSignal:
    """Turns TERM, INT and USR1 into a flag that the training loop looks at; the run may set it by itself too.

    A second TERM or INT does what it does by default, for a user who will not wait. USR1 only ever sets the flag:
    launchers and Slurm send it ahead of a time limit, some of them to a rank more than once.

    Made on the main thread, one at a time: ``watch`` makes it as early as a rank starts.

    Attributes
    ----------
    requested : bool
        Whether a signal has come, or ``request`` was called.
    name : str or None
        What came first, for the report.
    """

    def __init__(self) -> None:
        self.requested = False
        self.name: str | None = None
        self._signalled = False
        self._before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        }

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._signalled and number != signal.SIGUSR1:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
            signal.raise_signal(number)
            return
        self._signalled = True
        self.request(signal.Signals(number).name)

    def request(self, name: str) -> None:
        """Sets the flag, from any thread. A TERM or INT that comes then is the first: it ends no stop under way."""
        self.name = self.name or name
        self.requested = True

    def close(self) -> None:
        """Puts back the handlers that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> "StopSignal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_watching: list[StopSignal] = []  # at most one


def watch() -> StopSignal:
    """The process's ``StopSignal``, made on the first call: a signal during set-up is kept for the first step."""
    if not _watching:
        _watching.append(StopSignal())
    return _watching[0]


def unwatch() -> None:
    """Puts back the handlers that were there before ``watch``."""
    while _watching:
        _watching.pop().close()


def end_by_signals() -> None:
    """From now on a signal ends this process, as it does without ``watch``; and so does one that has come meanwhile."""
    came = any(one.requested for one in _watching)
    unwatch()
    if came:
        signal.raise_signal(signal.SIGTERM)


def _kind(error: Exception) -> str:
    """The nearest class that hpcrec defines."""
    return next((k.__name__ for k in type(error).__mro__ if k.__module__ == errors.__name__), "HpcrecError")


def _text(error: BaseException) -> str:
    return str(error) if isinstance(error, HpcrecError) else f"{type(error).__name__}: {error}"


def tell(text: str) -> None:
    """Prints lines to standard output; where it takes no more, as under a full quota, nothing is said from then on.

    A run goes on without what nobody can read: it is no reason to fail, nor to end with another exit code.
    """
    try:
        print(text, flush=True)
    except OSError:
        send_nowhere(sys.stdout)


def say(text: str) -> None:
    """Writes in one piece, so that ranks do not mix, and flushes: what follows may be the end of the process."""
    with forgiving(sys.stdout):
        sys.stdout.flush()
    with forgiving(sys.stderr):
        sys.stderr.write(text)
        sys.stderr.flush()
