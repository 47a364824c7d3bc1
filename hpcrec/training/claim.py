"""One job at a time writes a run's folder: rank 0 holds a lock on ``claim.json`` in it, which says whose it is.

The system lets go of the lock when its process ends, however it ends. For a host that is lost a file server does so
after a while, some never: a user then removes the file. Knows files of a run's folder, neither sessions nor what they
write.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from hpcrec.comm.failure import say
from hpcrec.comm.ranks import Ranks
from hpcrec.data.files import writing
from hpcrec.errors import ConfigError
from hpcrec.training.attempts import now
from hpcrec.training.ranks import on_root

FILE = "claim.json"
WAIT_S = 30.0  # for the ranks of an attempt that was killed to be gone
WAIT_FOR_HOST_S = 180.0  # for a host that may be lost: NFSv4 keeps its locks for 90 s
_POLL_S = 0.25
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # as Lustre mounted without them


@contextlib.contextmanager
def claimed(run: Path, job: str | None, ranks: Ranks) -> Iterator[None]:
    """Within it no other job can claim ``run``, which it makes; collective.

    An error inside keeps the claim until the process ends: threads that write in the background may still do so.

    Parameters
    ----------
    job : str or None
        Slurm's number of the job, to be told to one that comes second.

    Raises
    ------
    ConfigError
        Another job has claimed it, and keeps it; on all ranks.
    CheckpointError
        The folder, or the file in it, cannot be written to or locked.
    """
    claim = _Claim(run, job)
    ended, refusal = False, ""
    while not ended:  # each try is told to all ranks: one long wait for rank 0 would be reported as a stall
        ended, refusal = on_root(ranks, claim.attempt)
    if refusal:
        raise ConfigError(refusal)
    yield
    claim.release()


class _Claim:
    """What rank 0 does for a claim; other ranks' holds nothing."""

    def __init__(self, run: Path, job: str | None) -> None:
        self._run, self._path, self._job = run, run / FILE, job
        self._began_s = time.monotonic()
        self._stale_s: float | None = None  # since when the file vanishes at each try
        self._lock: int | None = None
        self._holder: tuple[str | None, str] | None = None  # the one that is waited for: its host, and in words

    def attempt(self) -> tuple[bool, str]:
        """Tries once, and rests where it has to be tried again; whether that was the last, and why it is refused."""
        with writing(self._run):
            self._run.mkdir(parents=True, exist_ok=True)
        with writing(self._path):
            try:
                if self._take():
                    return True, ""
            except OSError as error:
                now_s = time.monotonic()
                self._stale_s = now_s if self._stale_s is None else self._stale_s
                if error.errno != errno.ESTALE or now_s - self._stale_s >= WAIT_S:
                    raise
            else:
                self._stale_s = None
                if refusal := self._refusal():
                    return True, refusal
        time.sleep(_POLL_S)  # after ESTALE too: somebody has removed the file, and the next try makes a new one
        return False, ""

    @property
    def _waited_s(self) -> float:
        return time.monotonic() - self._began_s

    def release(self) -> None:
        """Lets another one claim it. The file stays: who has just opened it would lock a removed one."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError):  # the run is whole by now
            try:
                os.ftruncate(self._lock, 0)
            finally:
                os.close(self._lock)

    def _take(self) -> bool:
        lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if self._locked(lock):
                _check_named(lock, self._path)
                _say_whose(lock, self._job)
                self._lock = lock
        finally:
            if self._lock is None:
                os.close(lock)
        return self._lock is not None

    def _locked(self, lock: int) -> bool:
        """Whether nobody else holds it."""
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            if error.errno not in _NO_LOCKS:
                raise
            said = f"{self._path}: its file system has no locks; see that one job runs it at a time"
            warnings.warn(said, stacklevel=2)
        return True

    def _refusal(self) -> str:
        """Why the other one is not waited for any longer; empty where it is, which is said once."""
        found, before = _holder(self._path), self._holder
        changed = before is None or (found is not None and found != before)
        if changed:
            if before is not None and before[0] is not None:
                self._began_s = time.monotonic()  # the next of several that wait: this one may end soon too
            self._holder = found or (None, "another one")
        assert self._holder is not None
        host, whose = self._holder
        limit_s = WAIT_S if host in (None, socket.gethostname()) else WAIT_FOR_HOST_S
        if self._waited_s >= limit_s:
            return (
                f"{self._run}: {whose} is writing this run, and two would spoil it. Wait for it or end it, or give "
                f"this one a run.folder of its own; if that host is gone, remove {self._path}."
            )
        if changed:
            say(f"hpcrec: {self._run}: {whose} is writing this run; waiting up to {limit_s:g} s for its end\n")
        return ""


def _check_named(lock: int, path: Path) -> None:
    """Raises ESTALE where this file lost its name meanwhile: another job may lock the one that has it now."""
    mine, named = os.fstat(lock), None
    with contextlib.suppress(FileNotFoundError):
        named = path.stat()
    if named is None or (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def _say_whose(lock: int, job: str | None) -> None:
    mine = {"job": job, "host": socket.gethostname(), "process": os.getpid(), "since": now()}
    os.ftruncate(lock, 0)
    os.pwrite(lock, (json.dumps(mine) + "\n").encode(), 0)
    os.fsync(lock)  # NFS would keep it on this host while the file is open


def _holder(path: Path) -> tuple[str | None, str] | None:
    """The host of who holds the claim, and who it is in words; None where the file does not say."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        job = "" if found["job"] is None else f"job {found['job']}, "
        whose = f"another one ({job}process {found['process']} on {found['host']}, since {found['since']})"
        return str(found["host"]), whose
    except (OSError, ValueError, KeyError, TypeError):
        return None
