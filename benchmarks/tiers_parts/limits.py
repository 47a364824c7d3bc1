"""Groups of the kernel (cgroup v1): of memory, of which processes over the limit are killed; and of reads of a disk.

Memory of files that a process reads is the group's too, but for pages that another group had read before: ``dropped``
takes files out of the page cache first. Knows processes by number.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

MEMORY, BLOCKS = (Path(f"/sys/fs/cgroup/{name}") for name in ("memory", "blkio"))
TRIES = 100  # to remove a group whose last process is about to be gone


def why_none() -> str | None:
    """Why memory cannot be limited here, if it cannot."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        return f"{MEMORY} has no memory controller (cgroup v1)"
    return None if os.access(MEMORY, os.W_OK) else f"{MEMORY} is not writable: memory groups need root"


class Group:
    """A memory group, without limit until ``limit`` is called.

    Parameters
    ----------
    name : str
        Of a folder below the controller's, with this process's number.
    """

    def __init__(self, name: str) -> None:
        self.path = MEMORY / f"hpcrec-{os.getpid()}-{name}"
        self.path.mkdir()

    def limit(self, n_bytes: int) -> None:
        """From now on its processes have so much."""
        (self.path / "memory.limit_in_bytes").write_text(str(n_bytes))

    def inside(self, line: Sequence[str]) -> list[str]:
        """The command, run inside."""
        return _inside(self.path, line)

    @property
    def taken_bytes(self) -> int:
        """Memory that is no file's, and of files what is mapped: what cannot be had back without a cost."""
        found = dict(line.split() for line in (self.path / "memory.stat").read_text().splitlines())
        return int(found["total_rss"]) + int(found["total_mapped_file"])

    @property
    def peak_bytes(self) -> int:
        """The most that it ever had, pages of files included."""
        return int((self.path / "memory.max_usage_in_bytes").read_text())

    @property
    def hits(self) -> int:
        """How often the limit was reached, and pages of files had to go, or a process."""
        return int((self.path / "memory.failcnt").read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        _gone(self.path)


class SlowDisk:
    """A disk that gives its processes so many reads a second, at most.

    Parameters
    ----------
    name : str
        Of the group.
    folder : Path
        On that disk.
    reads_per_s : int, optional
        Default: as many as it has.
    """

    def __init__(self, name: str, folder: Path, reads_per_s: int | None) -> None:
        self.path = BLOCKS / f"hpcrec-{os.getpid()}-{name}"
        self.path.mkdir()
        device = folder.stat().st_dev
        if reads_per_s is not None:
            limit = f"{os.major(device)}:{os.minor(device)} {reads_per_s}"
            (self.path / "blkio.throttle.read_iops_device").write_text(limit)

    def inside(self, line: Sequence[str]) -> list[str]:
        """The command, run inside."""
        return _inside(self.path, line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        _gone(self.path)


def why_no_slow_disk(folder: Path) -> str | None:
    """Why the disk of a folder cannot be had slower, if it cannot."""
    if not os.access(BLOCKS / "blkio.throttle.read_iops_device", os.F_OK) or not os.access(BLOCKS, os.W_OK):
        return f"{BLOCKS} has no controller of reads (cgroup v1) that can be written"
    if os.major(folder.stat().st_dev) == 0:
        return f"{folder} is on no block device"
    return None


def _inside(group: Path, line: Sequence[str]) -> list[str]:
    return ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *line]


def _gone(group: Path) -> None:
    for _try in range(TRIES):
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.1)


def dropped(folder: Path) -> None:
    """Writes the folder's files to the disk, and takes them out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)
