"""Messages through windows are those that MPI brings, whatever their sizes, the pace of the ranks and the hosts."""

import errno
import gc
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.comm import window
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.sizes import UNIT_BYTES
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.errors import HpcrecError
from tests.comm.late import take_late

HOSTS = {"one host": (0, 0, 0, 0), "two, in turn": (0, 1, 0, 1), "two": (0, 0, 1, 1), "one alone": (0, 1, 0, 0)}


def make(hosts: tuple[int, ...], *, windows: bool = True) -> Collectives:
    comm = MPI.COMM_WORLD
    ledger = Ledger(comm.rank, hosts[: comm.size])
    return Collectives(comm.Dup(), range(comm.size), ledger, windows=windows)


def rounds(n: int, size: int) -> list[np.ndarray]:
    """Bytes from each rank to each, by round; grown, empty, and of one rank alone among them."""
    rng = np.random.default_rng(7)
    units = [rng.integers(0, 40, (size, size)) * rng.integers(0, 2, (size, size)) for _ in range(n)]
    for number, grown in enumerate((100, 500, 1, 2000)):
        units[2 * number + 1] *= grown
    units[4][:] = 0
    units[6][1:] = 0
    return [u * UNIT_BYTES for u in units]


def content(source: int, to: int, number: int, n_bytes: int) -> np.ndarray:
    return (np.arange(n_bytes) * (source + 3) + 7 * to + 11 * number).astype(np.uint8)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("room", [True, False])
def test_messages_whose_sizes_only_senders_know(windows: bool, room: bool) -> None:
    """What came is read until the next message; between two of them come others whose sizes are known."""
    c = make((0, 0, 0, 0), windows=windows)
    for number, bytes_RR in enumerate(rounds(12, c.size)):
        mine, due = bytes_RR[c.rank], bytes_RR[:, c.rank]
        sent = np.concatenate([content(c.rank, to, number, n) for to, n in enumerate(mine)])
        message = c.message(mine, np.uint8) if room else sent
        message[:] = sent
        came = c.alltoallv_told(message, mine.copy(), "values")
        wanted = [content(source, c.rank, number, n) for source, n in enumerate(due)]
        if c.rank == number % c.size:
            time.sleep(0.002)  # a slow reader
        same = len(came) == c.size and all(np.array_equal(a, b) for a, b in zip(came, wanted, strict=True))
        again = True
        if number % 3:  # so that each kind of message grows either side first
            again = np.array_equal(c.alltoallv(sent, mine.copy(), due.copy(), "values"), np.concatenate(wanted))
        parallel_assert(same and again, msg=f"{number}: {same} {again}")
    c.close()


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("given", ["room", "array", "both"])
def test_messages_arrive_as_they_were_sent(hosts: tuple[int, ...], given: str) -> None:
    c, plain = make(hosts), make(hosts, windows=False)
    me = c.rank
    parallel_assert(c.without_windows == "" and (c._windows is not None) == (hosts[: c.size].count(hosts[me]) > 1))
    for number, bytes_RR in enumerate(rounds(12, c.size)):
        sent = np.concatenate([content(me, to, number, n) for to, n in enumerate(bytes_RR[me])])
        if given == "room" or (given == "both" and number % 3):
            message = c.message(bytes_RR[me], np.uint8)
            padding = [slice(end - UNIT_BYTES, end) for end in np.cumsum(bytes_RR[me])[bytes_RR[me] > 0]]
            clear = not any(message[span].any() for span in padding)
            message[:] = sent
        else:
            message, clear = sent.copy(), True
        came = c.alltoallv(message, bytes_RR[me], bytes_RR[:, me], "values")
        expected = [content(source, me, number, n) for source, n in enumerate(bytes_RR[:, me])]
        same = np.array_equal(came, np.concatenate(expected))
        again = np.array_equal(came, plain.alltoallv(sent, bytes_RR[me], bytes_RR[:, me], "values"))
        parallel_assert(clear and same and again, msg=f"{number}: {clear} {same} {again}")
    parallel_assert(np.array_equal(c.ledger.snapshot(), plain.ledger.snapshot()))
    c.close()
    plain.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_reader_reads_what_was_meant(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are one message ahead of it at most: two, and they would write over what it reads."""
    c = make((0, 0, 0, 0))
    if c.rank == slow:
        take_late(monkeypatch.setattr, 0.01, relayed=False)
    sizes_R, seen = np.full(c.size, 64 * UNIT_BYTES, np.int64), []
    for number in range(12):
        message = c.message(sizes_R, np.int64)
        message[:] = 1000 * number + c.rank
        came = c.alltoallv(message, sizes_R, sizes_R, "values").reshape(c.size, -1)
        expected = np.broadcast_to(1000 * number + np.arange(c.size)[:, None], came.shape)
        seen.append(np.array_equal(came, expected))  # said once all are through: no collective may lie between messages
    parallel_assert(all(seen), msg=f"{seen}")
    c.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("too many", "cannot make shared memory: .*Too many open"),
        ("no such call", "cannot make shared memory: .*no attribute"),
        ("no entry", "cannot open a neighbour's memory: .*No such file"),
        ("another rank's", "is not the memory of that rank"),
        ("a file", "is not the memory of that rank"),
        ("a pipe", "is not the memory of that rank"),
    ],
)
def test_where_one_rank_cannot_all_send_messages(fault: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = window.Windows.names
    ends = os.pipe()  # opening one that nobody writes to would wait for ever
    with Path(__file__).open() as file:
        if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
            if fault == "too many":
                error = OSError(errno.EMFILE, "Too many open files")
                monkeypatch.setattr(os, "memfd_create", lambda *_: (_ for _ in ()).throw(error))
            elif fault == "no such call":
                monkeypatch.delattr(os, "memfd_create")
            else:
                changed = {
                    "no entry": lambda process, fd, token: (process, 10_000 + fd, token),
                    "another rank's": lambda process, fd, token: (process, fd, token + 1),
                    "a file": lambda process, _, token: (process, file.fileno(), token),
                    "a pipe": lambda process, _, token: (process, ends[0], token),
                }[fault]

                def told(self: window.Windows) -> window.Names:
                    sides, *machine = names(self)
                    return [changed(*side) for side in sides], *machine

                monkeypatch.setattr(window.Windows, "names", told)
        c = make((0, 0, 0, 0))
    assert c._windows is None
    assert c.comm.allgather(c.without_windows) == [c.without_windows] * c.size
    assert re.search(said, c.without_windows), c.without_windows
    sizes_R = np.full(c.size, UNIT_BYTES, np.int64)
    message = c.message(sizes_R, np.int64)
    message[:] = c.rank
    came = c.alltoallv(message, sizes_R, sizes_R, "values").reshape(c.size, -1)
    np.testing.assert_array_equal(came[:, 0], np.arange(c.size))
    c.close()
    os.close(ends[0])
    os.close(ends[1])


@pytest.mark.parallel([2, 4])
def test_who_waits_for_the_host_lets_messages_under_way_come_on() -> None:
    """Also where one that nobody has asked for yet lies there, as what another host sends ahead does."""
    c, aside = make((0, 0, 0, 0)), MPI.COMM_WORLD.Dup()
    large, ahead = np.full(1 << 23, c.rank, np.uint8), np.zeros(8, np.uint8)
    if c.rank == 0:
        sent = [aside.Isend(large, other) for other in range(1, c.size)]
        c._windows.meet()
        MPI.Request.Waitall(sent)
        for _ in range(1, c.size):
            c.comm.Recv(ahead)
    else:
        c.comm.Send(ahead, 0)
        aside.Recv(large, 0)
        c._windows.meet()
    parallel_assert(not large.any())
    c.close()
    aside.Free()


@pytest.mark.parallel(2)
def test_a_window_that_cannot_grow_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    c = make((0, 0, 0, 0))
    small_R, large_R = (np.full(c.size, n * UNIT_BYTES, np.int64) for n in (1, 1000))
    c.alltoallv(c.message(small_R, np.uint8), small_R, small_R, "values")

    def refused(*_: object) -> None:
        raise OSError(errno.EFBIG, "File too large")

    with monkeypatch.context() as patch, pytest.raises(HpcrecError, match=r"128.00 kB .*File too large.*windows = fal"):
        patch.setattr(os, "ftruncate", refused)
        c.message(large_R, np.uint8)
    c.alltoallv(c.message(large_R, np.uint8), large_R, large_R, "values")  # the side that this one did not use
    with monkeypatch.context() as patch, pytest.raises(HpcrecError, match=r"memory of 1\d\d\.\d\d kB .*Too many open"):
        message = c.message(large_R, np.uint8)
        time.sleep(0.02 * c.rank)  # the other rank waits for it, and closes all the same
        patch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
        c.alltoallv(message, large_R, large_R, "values")
    c.close()


@pytest.mark.parallel([2, 4])
def test_nothing_stays_open() -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        files = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        maps = Path("/proc/self/maps").read_text().splitlines()
        return sum("hpcrec-window" in file for file in files), sum("hpcrec-window" in line for line in maps)

    before = held()  # of other tests' worlds, which nobody closed
    world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))
    assert world.describe()["windows"] is True
    ranks, parts, sides = MPI.COMM_WORLD.size, 2, 2
    # its own are open twice, once for the map; of a neighbour's only the map has it open
    assert held() == (before[0] + parts * sides * (1 + ranks), before[1] + parts * sides * ranks)
    world.close()
    assert held() == before
    world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))
    world.abandon()
    del world
    assert held() == before
    plain = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"), windows=False)
    assert plain.describe()["windows"] == "not asked for"
    assert held() == before
    plain.close()


def test_alone_there_is_nothing_to_share() -> None:
    world = World(MPI.COMM_SELF, lambda hosts: assign_roles(hosts, mode="fused"))
    assert world.describe()["windows"] is False
    sizes_R = np.full(1, UNIT_BYTES, np.int64)
    message = world.main.message(sizes_R, np.int64)
    assert world.main.alltoallv(message, sizes_R, sizes_R, "values") is message
    world.close()
