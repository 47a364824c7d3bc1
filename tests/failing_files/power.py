"""What a disk may hold when power goes: replays noted calls, keeps back what is not synced, and loses any part of it.

The rules. A sync of a file keeps the bytes that the host that calls it wrote to it, and a sync of a folder the names
that this host made, changed or removed in it; what another host did there stays in that host's memory until its own
sync, though all hosts see it. A rename is one change, even of two folders. What is not kept is lost or not, each change
of a name and each 512 bytes by itself, in any order; a file may have its new length without the bytes. A link is one
more name of the same bytes. After a sync that failed the bytes are gone. Knows nothing of what the files are.
"""

import os
import random
import shutil
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.failing_files.library import CALLS, kind_of

SECTOR = 512
TRUNCATE, RMDIR, LINK, MARK = 100, 101, 102, -1  # as in preload.c, beside the numbers of CALLS
_HEAD = struct.Struct("=6i2q")
_OPEN, _WRITE, _FSYNC, _CLOSE, _RENAME, _UNLINK, _MKDIR = (
    CALLS.index(name) for name in ("open", "write", "fsync", "close", "rename", "unlink", "mkdir")
)
_NAMES = {**dict(enumerate(CALLS)), TRUNCATE: "write", RMDIR: "unlink", LINK: "link"}
_SURVIVE = (0.0, 0.5, 0.9, 1.0)


@dataclass(frozen=True)
class Record:
    """One call that succeeded, or a mark of the test."""

    call: int
    fd: int
    host: int
    offset: int
    path: str
    other: str
    data: bytes

    @property
    def name(self) -> str:
        return _NAMES[self.call]


def records(log: bytes) -> Iterator[Record]:
    """What ``preload.c`` noted."""
    at = 0
    while at < len(log):
        call, fd, host, path_bytes, other_bytes, _, offset, n_bytes = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        parts = []
        for n in (path_bytes, other_bytes, n_bytes):
            parts.append(log[at : at + n])
            at += n
        yield Record(call, fd, host, offset, parts[0].decode(), parts[1].decode(), parts[2])


@dataclass
class _File:
    """A file or a folder: what is kept of it, and what was done since; ``names`` None: a file."""

    kept: bytes = b""
    pending: list[tuple[int, int, bytes | None]] = field(default_factory=list)  # host, at, bytes; None: new length
    names: dict[str, int] | None = None
    kind: str = "folder"


@dataclass(frozen=True)
class _Change:
    """Names in folders, and what they are of from then on; None: of nothing."""

    host: int
    sets: tuple[tuple[int, str, int | None], ...]
    path: str


@dataclass(frozen=True)
class Cut:
    """What went: the hosts, and how many changes by kind of file; empty: nothing was lost."""

    hosts: tuple[int, ...]
    lost: tuple[tuple[str, int], ...]


class Disk:
    """A folder as it was when noting began, and what became of it since.

    Parameters
    ----------
    folder : Path
        All that is in it is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._files: list[_File] = []
        self._live: dict[int, dict[str, int]] = {}
        self._changes: list[_Change] = []
        self._open: dict[int, int] = {}
        self.hosts: set[int] = {0}
        self._root = self._take(folder)

    def _take(self, path: Path) -> int:
        number = len(self._files)
        if path.is_dir():
            self._files.append(_File(names={}))
            found = {child.name: self._take(child) for child in sorted(path.iterdir())}
            self._files[number].names = found
            self._live[number] = dict(found)
        else:
            self._files.append(
                _File(path.read_bytes() if path.exists() else b"", kind=kind_of(str(path), self._folder))
            )
        return number

    def _at(self, path: str) -> tuple[int, str]:
        """The folder that has a path, and the name there."""
        *above, name = path.removeprefix(self._folder).strip("/").split("/")
        folder = self._root
        for part in above:
            folder = self._live[folder][part]
        return folder, name

    def _set(self, host: int, path: str, *sets: tuple[int, str, int | None]) -> None:
        for folder, name, number in sets:
            if number is None:
                self._live[folder].pop(name, None)
            else:
                self._live[folder][name] = number
        self._changes.append(_Change(host, sets, path))

    def apply(self, record: Record) -> None:
        """Goes on by one call."""
        self.hosts.add(record.host)
        if record.call == _OPEN:
            self._opened(record)
        elif record.call in (_WRITE, TRUNCATE):
            data = record.data if record.call == _WRITE else None
            self._files[self._open[record.fd]].pending.append((record.host, record.offset, data))
        elif record.call == _FSYNC:
            self._synced(record)
        elif record.call == _CLOSE:
            self._open.pop(record.fd, None)
        elif record.call == _RENAME:
            (folder, name), (to, new) = self._at(record.path), self._at(record.other)
            number = self._live[folder][name]
            self._set(record.host, record.other, (folder, name, None), (to, new, number))
        elif record.call == LINK:
            (folder, name), (to, new) = self._at(record.path), self._at(record.other)
            self._set(record.host, record.other, (to, new, self._live[folder][name]))
        elif record.call == _MKDIR:
            folder, name = self._at(record.path)
            self._live[len(self._files)] = {}
            self._files.append(_File(names={}))
            self._set(record.host, record.path, (folder, name, len(self._files) - 1))
        elif record.call in (_UNLINK, RMDIR):
            folder, name = self._at(record.path)
            self._set(record.host, record.path, (folder, name, None))

    def _opened(self, record: Record) -> None:
        if record.path == self._folder:
            self._open[record.fd] = self._root
            return
        folder, name = self._at(record.path)
        number = self._live[folder].get(name)
        if number is None:
            number = len(self._files)
            self._files.append(_File(kind=kind_of(record.path, self._folder)))
            self._set(record.host, record.path, (folder, name, number))
        elif record.offset & os.O_TRUNC:
            self._files[number].pending.append((record.host, 0, None))
        self._open[record.fd] = number

    def _synced(self, record: Record) -> None:
        number = self._open[record.fd]
        file = self._files[number]
        if file.names is None:
            mine = [change for change in file.pending if change[0] == record.host]
            file.pending = [change for change in file.pending if change[0] != record.host]
            if record.offset == 0:  # the error of one that failed
                file.kept = _after(file.kept, mine)
            return
        if record.offset:
            return
        left = []
        for change in self._changes:
            if change.host == record.host and any(folder == number for folder, _, _ in change.sets):
                self._keep(change)
            else:
                left.append(change)
        self._changes = left

    def _keep(self, change: _Change) -> None:
        for folder, name, number in change.sets:
            names = self._files[folder].names
            assert names is not None
            _put(names, name, number)

    def cut(self, target: Path, hosts: tuple[int, ...], draw: random.Random) -> Cut:
        """Makes ``target`` what is left when these hosts lose power."""
        lost: Counter[str] = Counter()
        names = {n: dict(file.names) for n, file in enumerate(self._files) if file.names is not None}
        share = draw.choice(_SURVIVE)
        for change in self._changes:
            if change.host in hosts and draw.random() >= share:
                lost["name of " + kind_of(change.path, self._folder)] += 1
                continue
            for folder, name, number in change.sets:
                _put(names[folder], name, number)
        shutil.rmtree(target, ignore_errors=True)
        self._made: dict[int, Path] = {}
        self._write(self._root, target, names, hosts, draw, lost)
        return Cut(hosts, tuple(sorted(lost.items())))

    def _write(
        self, number: int, path: Path, names: dict[int, dict[str, int]], hosts: tuple[int, ...], draw: random.Random,
        lost: Counter[str],
    ) -> None:  # fmt: skip
        file = self._files[number]
        if file.names is None:
            if number in self._made:
                path.hardlink_to(self._made[number])
                return
            path.write_bytes(self._left(file, hosts, draw, lost))
            self._made[number] = path
            return
        path.mkdir(parents=True)
        for name, child in names[number].items():
            self._write(child, path / name, names, hosts, draw, lost)

    def _left(self, file: _File, hosts: tuple[int, ...], draw: random.Random, lost: Counter[str]) -> bytes:
        if not any(host in hosts for host, _, _ in file.pending):
            return _after(file.kept, file.pending)
        share = draw.choice(_SURVIVE)
        kept: list[tuple[int, int, bytes | None]] = []
        n_lost = 0
        for host, at, data in file.pending:
            if host not in hosts:
                kept.append((host, at, data))
                continue
            for start, piece in [(at, None)] if data is None else _sectors(at, data):
                if draw.random() < share:
                    kept.append((host, start, piece))
                else:
                    n_lost += 1
        if n_lost > 0:
            lost[file.kind] += n_lost
        left, whole = _after(file.kept, kept), len(_after(file.kept, file.pending))
        return left.ljust(whole, b"\0") if draw.random() < 0.3 else left


def _put(names: dict[str, int], name: str, number: int | None) -> None:
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number


def _after(kept: bytes, changes: list[tuple[int, int, bytes | None]]) -> bytes:
    if not changes:
        return kept
    out = bytearray(kept)
    for _, at, data in changes:
        if data is None:
            del out[at:]
            out.extend(bytes(at - len(out)))
        else:
            out.extend(bytes(max(at - len(out), 0)))
            out[at : at + len(data)] = data
    return bytes(out)


def _sectors(at: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    start = at
    while start < at + len(data):
        stop = min((start // SECTOR + 1) * SECTOR, at + len(data))
        yield start, data[start - at : stop - at]
        start = stop
