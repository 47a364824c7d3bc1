"""Streams that take no more, as a log under a full quota: a process goes on without what nobody can read.

Knows descriptors and Python's buffers; nothing of what is printed.
"""

import atexit
import contextlib
import os
from collections.abc import Iterator
from typing import TextIO

_unwritten: list[TextIO] = []


@contextlib.contextmanager
def forgiving(stream: TextIO) -> Iterator[None]:
    """What a stream does not take in this block is no reason to fail.

    It stays in Python's buffer, which is tried again by whoever writes next, and last as the process ends. There an
    error would be the process's exit status, 120: what cannot be written then is dropped.
    """
    try:
        yield
    except (OSError, ValueError):  # ValueError: it is closed
        if stream not in _unwritten:
            _unwritten.append(stream)
            atexit.register(_end, stream)


def send_nowhere(stream: TextIO) -> None:
    """From now on it takes everything, what Python's buffer still has too, and shows nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _end(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):  # one without a descriptor, or closed
            send_nowhere(stream)
