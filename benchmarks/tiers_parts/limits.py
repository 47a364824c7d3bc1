"""Memory groups of the kernel (cgroup v1): processes in one are killed where they take more than its limit.

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

MEMORY = Path("/sys/fs/cgroup/memory")
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
        return ["/bin/sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh", *line]

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
        for _try in range(TRIES):
            with contextlib.suppress(OSError):
                self.path.rmdir()
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
