"""One job at a time writes a run's folder: rank 0 holds a lock on ``claim.json`` in it, which says whose it is.

The system lets go of the lock when its process ends, however it ends; a file server does so for a lost host after a
while. Knows files of a run's folder, neither sessions nor what they write.
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

from hpcrec.comm.ranks import Ranks
from hpcrec.data.files import writing
from hpcrec.errors import OutputError
from hpcrec.train.attempts import now
from hpcrec.train.ranks import on_root

FILE = "claim.json"
WAIT_S = 30.0  # for the ranks of an attempt that was killed to be gone
_POLL_S = 0.25
_TAKEN = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # as Lustre mounted without them


@contextlib.contextmanager
def claimed(run: Path, job: str | None, ranks: Ranks, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Within it no other job can claim ``run``, which it makes; collective.

    Parameters
    ----------
    job : str or None
        Slurm's number of the job, to be told to one that comes second.
    wait_s : float
        How long to wait for one that claimed it before.

    Raises
    ------
    CheckpointError
        Another job has claimed it, and keeps it; or the folder cannot be written to.
    """
    held: list[int] = []
    on_root(ranks, lambda: held.extend(_hold(run, job, wait_s)))
    try:
        yield
    finally:
        for lock in held:
            with contextlib.suppress(OSError):
                (run / FILE).unlink()
            os.close(lock)


def _hold(run: Path, job: str | None, wait_s: float) -> list[int]:
    """The descriptor of the locked file; none where there are no locks."""
    path, end_s = run / FILE, time.monotonic() + wait_s
    with writing(run):
        run.mkdir(parents=True, exist_ok=True)
    while True:
        with writing(path):
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(lock, path):
                with writing(path):
                    _say_whose(lock, job)
                return [lock]
            os.close(lock)  # of a file that its holder has removed meanwhile
        except OSError as error:
            whose = _whose(path)
            os.close(lock)
            if error.errno in _NO_LOCKS:
                warnings.warn(f"{path}: its file system has no locks; see that one job runs it at a time", stacklevel=2)
                return []
            if error.errno not in _TAKEN:
                raise
            if time.monotonic() >= end_s:
                raise OutputError(
                    f"{run}: {whose} is writing this run, and two would spoil it. Wait for it or end it, or give "
                    "this one a run.folder of its own."
                ) from None
            time.sleep(_POLL_S)


def _is(lock: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(lock)
    return (mine.st_ino, mine.st_dev) == (there.st_ino, there.st_dev)


def _say_whose(lock: int, job: str | None) -> None:
    mine = {"job": job, "host": socket.gethostname(), "process": os.getpid(), "since": now()}
    os.ftruncate(lock, 0)
    os.pwrite(lock, (json.dumps(mine) + "\n").encode(), 0)


def _whose(path: Path) -> str:
    """Who holds the claim, as the file says; closed here, it takes no lock of another process with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        job = "" if found["job"] is None else f"job {found['job']}, "
        return f"another one ({job}process {found['process']} on {found['host']}, since {found['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another one"
