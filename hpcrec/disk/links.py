"""Another name for a file that never changes, or a copy of it where file systems let it have none. Knows files."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

_PIECE_BYTES = 8 << 20
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


def linked(source: Path, target: Path) -> bool:
    """Gives the file another name; False where these file systems, or the number of its names, do not let it have one.

    Raises
    ------
    OSError
        Of any other reason.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def copied(source: Path, target: Path, comes_on: Callable[[], None] = lambda: None) -> int:
    """Copies a file, to the disk; returns its bytes. ``comes_on`` is called for each piece.

    Raises
    ------
    OSError
    """
    done = 0
    with source.open("rb", buffering=0) as from_, target.open("xb", buffering=0) as to:
        while n := os.sendfile(to.fileno(), from_.fileno(), done, _PIECE_BYTES):
            done += n
            comes_on()
        os.fsync(to.fileno())
        for file in (from_, to):  # nobody reads it again soon: the memory is for others
            with contextlib.suppress(OSError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return done
