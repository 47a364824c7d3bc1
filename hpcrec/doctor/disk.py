"""How fast all ranks at once write files and read them: measured in growing rounds, so that a slow disk takes seconds.

Writes count when they are on disk (fsync). Before reads the page cache of the pages is given up, and looked at: what
stays in it is said. What a disk's controller or a file server keeps in its own memory cannot be told from the disk.
Knows files and clocks; judges nothing.
"""

import contextlib
import errno
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrec.comm.probe import Probe, random_bytes
from hpcrec.doctor.base import text_of
from hpcrec.units import KiB, MiB

ALL_BYTES = 256 * MiB  # of all ranks together, at most; a rank's part is at least ``LEAST_BYTES``
LEAST_BYTES, MOST_BYTES = MiB, 64 * MiB
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_FIRST_PART = 64  # the first round's part of all
_GROWS = 4  # from round to round
_ROUNDS_S = 2.0  # a round that would take longer is not begun
_SLOW = 3.0
_LEAST_COMPARED = 3  # hosts
_BLOCK_BYTES = MiB
_LOOKED_AT = 16  # pages of a range
_PAGE_BYTES = 4 * KiB


@dataclass(frozen=True, kw_only=True)
class Speed:
    """The last round of all ranks at once.

    Attributes
    ----------
    bytes : int
        By all ranks together.
    slowest_s : float
        Until the last rank was done.
    gbs_of_host : dict of int to float
        GB/s of each host's ranks together, all hosts being at it.
    cached : float or None
        Of what was read, the part that was still in the page cache; None: cannot be told.
    errors : dict of int to str
        What went wrong, by rank; then the rest is not to be used.
    """

    bytes: int
    slowest_s: float
    gbs_of_host: dict[int, float]
    cached: float | None
    errors: dict[int, str]

    @property
    def gbs(self) -> float:
        """GB/s of all ranks together."""
        return self.bytes / max(self.slowest_s, 1e-9) / 1e9

    @property
    def slow_hosts(self) -> list[int]:
        """Hosts that are much slower than the median of hosts."""
        if len(self.gbs_of_host) < _LEAST_COMPARED:
            return []
        usual = statistics.median(self.gbs_of_host.values())
        return [host for host, gbs in self.gbs_of_host.items() if gbs < usual / _SLOW]


class Extent:
    """Part of a file that a rank writes, or reads.

    ``prepare`` is not timed, ``work`` is; both are given where in the extent and how many bytes, and ``work`` says how
    many there were.
    """

    cached: float | None = None

    def prepare(self, start: int, n_bytes: int) -> None:
        """What has to be there, or must not be."""
        raise NotImplementedError

    def work(self, start: int, n_bytes: int) -> int:
        """What is timed."""
        raise NotImplementedError


class Written(Extent):
    """Writes to a file; on disk when it is done.

    Parameters
    ----------
    path : Path
    seed : int
        Of its contents, which no file system can pack.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed
        self._contents = memoryview(b"")

    def prepare(self, start: int, n_bytes: int) -> None:  # noqa: D102
        self._contents = memoryview(random_bytes(n_bytes, (self._seed << 32) + start).tobytes())

    def work(self, start: int, n_bytes: int) -> int:  # noqa: D102
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            for at in range(0, n_bytes, _BLOCK_BYTES):
                block = self._contents[at : at + _BLOCK_BYTES]
                while block:
                    block = block[
                        os.pwrite(descriptor, block, start + at + min(n_bytes - at, _BLOCK_BYTES) - len(block)) :
                    ]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return n_bytes


class Read(Extent):
    """Reads of a file from ``offset`` on, from the disk where the page cache lets go of it."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset

    def prepare(self, start: int, n_bytes: int) -> None:  # noqa: D102
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, self._offset + start, n_bytes, os.POSIX_FADV_DONTNEED)
            self.cached = cached_part(descriptor, self._offset + start, n_bytes)
        finally:
            os.close(descriptor)

    def work(self, start: int, n_bytes: int) -> int:  # noqa: D102
        done, buffer = 0, bytearray(min(_BLOCK_BYTES, n_bytes))
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            while done < n_bytes:
                into = memoryview(buffer)[: n_bytes - done]
                got = os.preadv(descriptor, [into], self._offset + start + done)
                if not got:
                    break
                done += got
        finally:
            os.close(descriptor)
        return done


class Nothing(Extent):
    """Of a rank that has no file to read."""

    def prepare(self, start: int, n_bytes: int) -> None:
        """Nothing."""

    def work(self, start: int, n_bytes: int) -> int:  # noqa: ARG002
        """Nothing."""
        return 0


def cached_part(descriptor: int, start: int, n_bytes: int) -> float | None:
    """The part of a range that is in the page cache, by a few of its pages; None where the file system does not say."""
    places = range(start, start + n_bytes, max(n_bytes // _LOOKED_AT, _PAGE_BYTES))
    found = 0
    for place in places:
        try:
            found += os.preadv(descriptor, [bytearray(1)], place, os.RWF_NOWAIT) == 1
        except OSError as error:
            if error.errno != errno.EAGAIN:
                return None
    return found / max(len(places), 1)


def share_bytes(size: int) -> int:
    """What one of so many ranks writes or reads, at most."""
    return min(max(ALL_BYTES // size, LEAST_BYTES), MOST_BYTES)


def timed(probe: Probe, by_host: dict[int, list[int]], extent: Extent, most_bytes: int) -> Speed:
    """All ranks at their extents at once, in rounds that grow; collective, and the same on every rank.

    Where a host seems slow the last round is made once more, and the better of both counts: others use the disk too.
    """
    start, n_bytes = 0, max(most_bytes // _FIRST_PART, 1)
    while True:
        speed = _round(probe, by_host, extent, start, n_bytes)
        after = start + n_bytes
        if speed.errors or after >= most_bytes or speed.slowest_s * _GROWS > _ROUNDS_S:
            break
        start, n_bytes = after, min(n_bytes * _GROWS, most_bytes - after)
    if speed.errors or not speed.slow_hosts:
        return speed
    again = _round(probe, by_host, extent, start, n_bytes)
    if again.errors:
        return again
    hosts = {host: max(gbs, again.gbs_of_host[host]) for host, gbs in speed.gbs_of_host.items()}
    better = min(speed, again, key=lambda s: s.slowest_s)
    return Speed(
        bytes=better.bytes, slowest_s=better.slowest_s, gbs_of_host=hosts, cached=better.cached, errors=better.errors
    )


def _round(probe: Probe, by_host: dict[int, list[int]], extent: Extent, start: int, n_bytes: int) -> Speed:
    failed, done, took_s = None, 0, 0.0

    def attempt(step: Callable[[], int | None]) -> int:
        nonlocal failed
        if failed is None:
            try:
                return step() or 0
            except OSError as error:
                failed = str(error)
        return 0

    attempt(lambda: extent.prepare(start, n_bytes))
    probe.barrier()
    began_s = time.perf_counter()
    done = attempt(lambda: extent.work(start, n_bytes))
    took_s = time.perf_counter() - began_s
    return joined(probe.share((done, took_s, extent.cached, failed)), by_host)


def joined(answers: Sequence[tuple[int, float, float | None, str | None]], by_host: dict[int, list[int]]) -> Speed:
    """One round's (bytes, seconds, part that was cached, error) of each rank."""
    working = {host: [r for r in ranks if answers[r][0]] for host, ranks in by_host.items()}
    cached = [c for n, _, c, _ in answers if n]
    known = [c for c in cached if c is not None]
    return Speed(
        bytes=sum(n for n, *_ in answers),
        slowest_s=max((s for n, s, *_ in answers if n), default=0.0),
        gbs_of_host={
            host: sum(answers[r][0] for r in ranks) / max([1e-9, *(answers[r][1] for r in ranks)]) / 1e9
            for host, ranks in working.items()
            if ranks
        },
        cached=statistics.mean(known) if known and len(known) == len(cached) else None,
        errors={rank: text for rank, (*_, text) in enumerate(answers) if text is not None},
    )


def file_system(path: Path, root: Path = Path("/")) -> str:
    """Kind of the file system that a path is on, by ``proc/self/mountinfo``; ``unknown`` where it is not there."""
    kinds: dict[Path, str] = {}
    for line in (text_of(root / "proc/self/mountinfo") or "").splitlines():
        place, _, rest = line.partition(" - ")
        if rest:
            kinds[Path(place.split()[4].replace("\\040", " "))] = rest.split()[0]  # of two on one place the later hides
    with contextlib.suppress(OSError):
        path = path.resolve()
    return next((kinds[p] for p in (path, *path.parents) if p in kinds), "unknown")


def nearest(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next((p for p in (path, *path.parents) if p.is_dir()), path)
