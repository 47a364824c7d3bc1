"""Boards: where a rank is, in a small file that outlives it, for the launcher to read when the rank was killed.

A rank maps its file into memory, so a note is a few stores and reaches the kernel with them: ``kill -9`` at the next
instruction loses nothing. Without a folder the notes go to plain memory and nobody reads them. What a rank is in comes
from ``comm.progress``; what the boards of a job say together is found by ``last_words``. Knows no MPI.
"""

import atexit
import contextlib
import mmap
import os
import socket
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FOLDER = "HPCREC_BOARDS"  # the environment variable by which the launcher names the folder of a job's boards
SIZE_BYTES = 4096

_MAGIC = b"hpcrec 1"
_DOUBLE = 8
_HEAD = 8  # doubles from here on: pid, rank, ranks, step, wall clock - monotonic clock, lanes, tags, when it ended
_PID, _RANK, _RANKS, _STEP, _CLOCK, _LANES, _TAGS, _ENDED = range(8)
_HOST, _ROLE, _ERROR = (96, 64), (160, 32), (192, 512)  # (offset, bytes) of texts
_LANE, _LANE_NAME, _LANE_ROW, _MOST_LANES = 704, 40, 4 * _DOUBLE, 16
_TAG, _TAG_NAME, _MOST_TAGS = _LANE + _MOST_LANES * (_LANE_NAME + _LANE_ROW), 32, 64
_NO_STEP = -1.0
assert _TAG + _MOST_TAGS * _TAG_NAME <= SIZE_BYTES


class Row(Protocol):
    """Floats that are stored one by one."""

    def __setitem__(self, place: int, value: float, /) -> None:
        """Stores one."""


def _put(memory: memoryview, at: int, room: int, text: str) -> None:
    """Writes as much of a text as there is room for, and zeros behind it."""
    memory[at : at + room] = text.encode()[:room].ljust(room, b"\0")


def _text(memory: bytes, at: int, room: int) -> str:
    return memory[at : at + room].rstrip(b"\0").decode(errors="ignore")


@dataclass(frozen=True)
class Left:
    """What one rank's board says.

    Attributes
    ----------
    rank, ranks, pid : int
        Its number, that of all ranks, and its process.
    host, role : str
        The role is empty until the ranks have theirs.
    step : int or None
        Steps done; None before the first.
    lanes : dict of str to (count, number, tag, since)
        By communicator: collectives started, the one waited in (0: none), its tag or the last one's, and when that wait
        began or ended, in seconds since the epoch.
    ended_s : float or None
        When the rank left in order, with an error or without, in seconds since the epoch; None where it has not.
    error : str
        What it left by; empty where there was no error.
    """

    rank: int
    ranks: int
    pid: int
    host: str
    role: str
    step: int | None
    lanes: dict[str, tuple[int, int, str, float]]
    ended_s: float | None
    error: str

    @property
    def noted_s(self) -> float:
        """When it last noted anything of a collective, in seconds since the epoch; 0 before the first."""
        return max((since_s for _, _, _, since_s in self.lanes.values()), default=0.0)


class _Tags(dict[str, int]):
    """Numbers of tags, each written to the board when it is first met; past the last place the tag is left out."""

    def __init__(self, memory: memoryview, count: Row) -> None:
        super().__init__({"": 0})
        self._memory, self._count = memory, count

    def __missing__(self, tag: str) -> int:
        number = len(self)
        if number > _MOST_TAGS:
            return 0
        _put(self._memory, _TAG + (number - 1) * _TAG_NAME, _TAG_NAME, tag)
        self[tag] = number
        self._count[_TAGS] = number
        return number


class Board:
    """The notes of one rank.

    Parameters
    ----------
    memory : mmap or bytearray
        ``SIZE_BYTES`` bytes, all 0.
    rank, ranks : int
        Its number, and that of all ranks.

    Attributes
    ----------
    tags : mapping of str to number
        For the third value of a lane's row.
    """

    def __init__(self, memory: mmap.mmap | bytearray, rank: int = 0, ranks: int = 1) -> None:
        self._memory = memoryview(memory)
        self._head = self._memory[_HEAD : _HEAD + 8 * _DOUBLE].cast("d")
        self._lanes: list[str] = []
        self.tags = _Tags(self._memory, self._head)
        for place, value in ((_PID, os.getpid()), (_RANK, rank), (_RANKS, ranks), (_STEP, _NO_STEP)):
            self._head[place] = value
        self._head[_CLOCK] = time.time() - time.monotonic()
        _put(self._memory, *_HOST, socket.gethostname())
        self._memory[: len(_MAGIC)] = _MAGIC  # last: a reader takes no half-made board

    def set_step(self, step: int) -> None:
        """Notes the steps done."""
        self._head[_STEP] = step

    def set_role(self, role: str) -> None:
        """Notes what the rank is."""
        _put(self._memory, *_ROLE, role)

    def clear_lanes(self) -> None:
        """Forgets all lanes: new communicators are made."""
        self._head[_LANES] = 0
        self._lanes = []

    def lane(self, name: str) -> Row:
        """Room for a lane's notes: count, number waited in, tag (by ``tags``), since when by ``time.monotonic``."""
        if name not in self._lanes and len(self._lanes) == _MOST_LANES:
            return [0.0] * 4  # seen by nobody
        if name not in self._lanes:
            self._lanes.append(name)
        at = _LANE + self._lanes.index(name) * (_LANE_NAME + _LANE_ROW)
        _put(self._memory, at, _LANE_NAME, name)
        row = self._memory[at + _LANE_NAME : at + _LANE_NAME + _LANE_ROW].cast("d")
        for place, value in enumerate((0.0, 0.0, 0.0, time.monotonic())):
            row[place] = value
        self._head[_LANES] = len(self._lanes)
        return row

    def end(self, error: str = "") -> None:
        """Notes that this rank leaves in order; what was noted first stays."""
        if not self._head[_ENDED]:
            _put(self._memory, *_ERROR, error)
            self._head[_ENDED] = time.monotonic()


_mine = [Board(bytearray(SIZE_BYTES))]  # one, of this process


def mine() -> Board:
    """This process's board."""
    return _mine[0]


def open_board(folder: str | None, rank: int, ranks: int) -> None:
    """Has this process's notes kept in ``folder`` from now on, where there is one that this host can write to."""
    if not folder:
        return
    with contextlib.suppress(OSError):  # another host's folder: the launcher will say that it has no position
        with (Path(folder) / f"rank-{rank}").open("x+b") as file:
            file.write(bytes(SIZE_BYTES))  # all of it, for a store to a page that a full disk lacks is a bus error
            file.flush()
            _mine[0] = Board(mmap.mmap(file.fileno(), SIZE_BYTES), rank, ranks)
        atexit.register(_mine[0].end)


def read_boards(folder: Path) -> dict[int, Left]:
    """All boards of a folder, by rank; those that are not yet made are left out."""
    found: dict[int, Left] = {}
    with contextlib.suppress(OSError):
        for path in Path(folder).glob("rank-*"):
            memory = path.read_bytes()
            if len(memory) == SIZE_BYTES and memory.startswith(_MAGIC):
                left = _read(memory)
                found[left.rank] = left
    return dict(sorted(found.items()))


def _read(memory: bytes) -> Left:
    head = struct.unpack_from("8d", memory, _HEAD)
    tags = ["", *(_text(memory, _TAG + i * _TAG_NAME, _TAG_NAME) for i in range(int(head[_TAGS])))]
    lanes = {}
    for i in range(int(head[_LANES])):
        at = _LANE + i * (_LANE_NAME + _LANE_ROW)
        count, number, tag, since_s = struct.unpack_from("4d", memory, at + _LANE_NAME)
        lanes[_text(memory, at, _LANE_NAME)] = (int(count), int(number), tags[int(tag)], since_s + head[_CLOCK])
    return Left(
        rank=int(head[_RANK]),
        ranks=int(head[_RANKS]),
        pid=int(head[_PID]),
        host=_text(memory, *_HOST),
        role=_text(memory, *_ROLE),
        step=None if head[_STEP] == _NO_STEP else int(head[_STEP]),
        lanes=lanes,
        ended_s=head[_ENDED] + head[_CLOCK] if head[_ENDED] else None,
        error=_text(memory, *_ERROR),
    )


def describe_role(*, owner: bool, dense: bool) -> str:
    """A rank's role in words."""
    return " and ".join(name for name, has in (("owner", owner), ("dense rank", dense)) if has)
