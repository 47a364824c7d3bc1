"""Reads that are tried again: a file server that hiccups says nothing about the file.

What the system refuses (EIO, ESTALE, EMFILE, ETIMEDOUT, ...) is read again after pauses that grow, each time through a
descriptor of its own, for a stale one stays stale. What is not there is told from what cannot be reached just now by
listing its folder. Knows nothing of what is in the files: that what was read is wrong is for who asked.
"""

import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hpcrec.clock import Waits
from hpcrec.errors import UnreadableError

T = TypeVar("T")

PAUSES_S = (0.1, 0.4, 1.5, 5.0)  # between tries
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_NOT_SUCH_A_FILE = (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)  # as it will be found at every try
_LOCKED = (errno.EAGAIN,)  # by another program: who opened it says so
_DENIED = (errno.EACCES, errno.EPERM)  # until somebody changes that
_OF_HDF5 = re.compile(r"\berrno = (\d+)")  # within what h5py says of an error of the system


def read_again(path: Path, read: Callable[[], T]) -> T:
    """What ``read`` returns; tried again while the system refuses it.

    Parameters
    ----------
    path : Path
        What is read, for messages.
    read : callable
        Opens what it reads, and may be called any number of times.

    Raises
    ------
    UnreadableError
        It cannot be read, at any try.
    Exception
        What ``read`` raised where the system refused nothing, or the file is not there.
    """
    for n_tries, pause_s in enumerate((*PAUSES_S, None), 1):
        try:
            return read()
        except UnreadableError:
            raise
        except Exception as error:
            number = refused(error)
            if number is None or number in _NOT_SUCH_A_FILE + _LOCKED or (number in _ABSENT and not _is_listed(path)):
                raise
            if pause_s is None or number in _DENIED:
                tries = f"{n_tries} tries" if n_tries > 1 else "one try"
                raise UnreadableError(
                    f"{path}: cannot be read just now ({os.strerror(number)}, {tries}). Nothing says that it is "
                    "damaged: look at its file system and server, and at who may read it."
                ) from error
        with Waits():
            time.sleep(pause_s)
    raise AssertionError("the last try returns or raises")


def read_numbers(path: Path, dtype: npt.DTypeLike, count: int = -1, offset: int = 0) -> npt.NDArray[Any]:
    """Numbers of a file from byte ``offset`` on: all, or at most ``count``.

    NumPy's own reader takes an error for an end.

    Raises
    ------
    UnreadableError
        They cannot be read, at any try.
    """

    def read() -> npt.NDArray[Any]:
        with path.open("rb", buffering=0) as file:
            there = max(os.fstat(file.fileno()).st_size - offset, 0) // np.dtype(dtype).itemsize
            values = np.empty(there if count < 0 else min(count, there), dtype)
            file.seek(offset)
            left = values.view(np.uint8).data
            while left:
                if not (n_bytes := file.readinto(left)):
                    raise OSError(errno.EIO, "the file ends before its size", str(path))
                left = left[n_bytes:]
            return values

    return read_again(path, read)


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file that has one on each line; none where it is not there.

    What is no such line is left out: one that a kill cut short, or of which a lost node has left a hole.

    Raises
    ------
    UnreadableError
        It cannot be read, at any try.
    """
    try:
        text = read_again(path, path.read_bytes).decode(errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found


def is_there(path: Path) -> bool:
    """Whether a file or folder is there. ``Path.exists`` says no of one that cannot be reached just now, as of 3.14.

    Raises
    ------
    UnreadableError
        That cannot be found out, at any try.
    """
    return _mode(path) is not None


def is_folder(path: Path) -> bool:
    """Whether a folder is there; raises as ``is_there``."""
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def names_in(folder: Path) -> list[str]:
    """Names in a folder; none where it is not there. ``Path.glob`` finds none in one that cannot be read, as of 3.13.

    Raises
    ------
    UnreadableError
        It cannot be listed, at any try.
    """
    try:
        return read_again(folder, lambda: [path.name for path in folder.iterdir()])
    except (FileNotFoundError, NotADirectoryError):
        return []


def _mode(path: Path) -> int | None:
    try:
        return read_again(path, path.stat).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def refused(error: BaseException) -> int | None:
    """The number of the system's error that an error is, or came from; None where it is none of the system's."""
    seen: BaseException | None = error
    while seen is not None:
        # h5py raises errors of several classes for what HDF5 could not read, some without a number
        found = getattr(seen, "errno", None) or next((int(n) for n in _OF_HDF5.findall(str(seen))), 0)
        if found:
            return int(found)
        seen = seen.__cause__
    return None


def _is_listed(path: Path) -> bool:
    """Whether a folder has a name, found by listing it; True where it cannot be listed, though it is there."""
    try:
        return any(entry.name == path.name for entry in os.scandir(path.parent))
    except OSError as error:
        return error.errno not in (*_ABSENT, *_NOT_SUCH_A_FILE)
