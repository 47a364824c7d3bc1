"""A folder that one process has at a time, and that another one which ends may remove meanwhile. Knows no rows."""

import fcntl
import os
from pathlib import Path
from typing import IO

from hpcrec.disk.segment import not_written
from hpcrec.errors import ConfigError

_TRIES = 100  # to get the folder


def locked(folder: Path) -> IO[str]:
    """The folder, made and held by this process, until what is returned is closed.

    Raises
    ------
    ConfigError
        Another process has it.
    OutputError
        It cannot be made.
    """
    path = folder / "lock"
    for left in reversed(range(_TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = path.open("a+")
        except OSError as error:
            if left and isinstance(error, FileNotFoundError):
                continue  # who had the folder has just removed it
            raise not_written(path, error.errno, "the lock of the folder") from error
        if _held(lock, path):
            return lock
        lock.close()
    raise ConfigError(f"{folder}: others take this folder and remove it all the time. Give another store.path.")


def _held(lock: IO[str], path: Path) -> bool:
    """Whether this process holds it now; not where it is of a folder that was removed meanwhile."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            there = path.stat()
        except FileNotFoundError:
            return False
        if not os.path.samestat(there, os.fstat(lock.fileno())):
            return False
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
    except BlockingIOError:
        lock.seek(0)
        by = lock.read().strip() or "unknown"
        lock.close()
        raise ConfigError(
            f"{path.parent}: another process (pid {by}) has its rows in this folder now. Wait for its end, or give "
            "another store.path."
        ) from None
    except OSError as error:
        lock.close()
        raise not_written(path, error.errno, "the lock of the folder") from error
    return True
