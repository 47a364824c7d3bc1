"""Messages through windows are those that MPI brings, whatever their sizes, the pace of the ranks and the hosts."""

import gc
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.comm import window
from hpcrec.comm.collectives import UNIT_BYTES, Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World

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
@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("given", ["room", "array", "both"])
def test_messages_arrive_as_they_were_sent(hosts: tuple[int, ...], given: str) -> None:
    c, plain = make(hosts), make(hosts, windows=False)
    assert (c.without_windows == "") == (c.size > 1)
    me = c.rank
    for number, bytes_RR in enumerate(rounds(12, c.size)):
        sent = np.concatenate([content(me, to, number, n) for to, n in enumerate(bytes_RR[me])])
        if given == "room" or (given == "both" and number % 3):
            message = c.message(bytes_RR[me], np.uint8)
            padding = [slice(end - UNIT_BYTES, end) for end in np.cumsum(bytes_RR[me])[bytes_RR[me] > 0]]
            assert not any(message[span].any() for span in padding)
            message[:] = sent
        else:
            message = sent.copy()
        came = c.alltoallv(message, bytes_RR[me], bytes_RR[:, me], "values")
        expected = [content(source, me, number, n) for source, n in enumerate(bytes_RR[:, me])]
        np.testing.assert_array_equal(came, np.concatenate(expected))
        np.testing.assert_array_equal(came, plain.alltoallv(sent, bytes_RR[me], bytes_RR[:, me], "values"))
    np.testing.assert_array_equal(c.ledger.snapshot(), plain.ledger.snapshot())
    c.close()
    plain.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_reader_reads_what_was_meant(slow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are two messages ahead of it at most: one more, and they would write over what it reads."""
    c = make((0, 0, 0, 0))
    if c.rank == slow:
        part = window._View.part
        monkeypatch.setattr(window._View, "part", lambda *given: (time.sleep(0.01), part(*given))[1])
    sizes_R = np.full(c.size, 64 * UNIT_BYTES, np.int64)
    for number in range(12):
        message = c.message(sizes_R, np.int64)
        message[:] = 1000 * number + c.rank
        came = c.alltoallv(message, sizes_R, sizes_R, "values").reshape(c.size, -1)
        np.testing.assert_array_equal(came, np.broadcast_to(1000 * number + np.arange(c.size)[:, None], came.shape))
    c.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("fault", ["no memory", "no entry", "another process", "another host"])
def test_where_one_rank_cannot_all_send_messages(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    last = MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1
    if fault == "no memory" and last:
        monkeypatch.setattr(os, "memfd_create", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    names = window.Windows.names
    if fault == "no entry" and last:
        monkeypatch.setattr(window.Windows, "names", lambda self: [(p, 10_000 + d, t) for p, d, t in names(self)])
    if fault == "another process" and last:
        monkeypatch.setattr(window.Windows, "names", lambda self: [(p, d, t + 1) for p, d, t in names(self)])
    if fault == "another host" and last:  # where /proc has that process, but what it has open is something else
        other = os.open(__file__, os.O_RDONLY)
        monkeypatch.setattr(window.Windows, "names", lambda self: [(p, other, t) for p, d, t in names(self)])
    c = make((0, 0, 0, 0))
    reason = {"no memory": "has no shared memory: .*Too many open", "no entry": "cannot open .*10", "another host": ""}
    assert c._windows is None
    np.testing.assert_equal(c.comm.allgather(c.without_windows).count(c.without_windows), c.size)
    assert re.search(reason.get(fault, "is not the memory of that rank"), c.without_windows), c.without_windows
    sizes_R = np.full(c.size, UNIT_BYTES, np.int64)
    message = c.message(sizes_R, np.int64)
    message[:] = c.rank
    came = c.alltoallv(message, sizes_R, sizes_R, "values").reshape(c.size, -1)
    np.testing.assert_array_equal(came[:, 0], np.arange(c.size))
    c.close()


@pytest.mark.parallel([2, 4])
def test_nothing_stays_open() -> None:
    def held() -> tuple[int, int]:
        gc.collect()
        files = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        maps = Path("/proc/self/maps").read_text().splitlines()
        return sum("hpcrec-window" in file for file in files), sum("hpcrec-window" in line for line in maps)

    before = held()  # of earlier tests
    world = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"))
    assert world.describe()["windows"] is True
    ranks, parts, sides = MPI.COMM_WORLD.size, 3, 2
    # its own are open twice, once in the map; of a neighbour's only the map has it open
    assert held() == (before[0] + parts * sides * (1 + ranks), before[1] + parts * sides * ranks)
    world.close()
    del world
    assert held() == before
    plain = World(MPI.COMM_WORLD, lambda hosts: assign_roles(hosts, mode="fused"), windows=False)
    assert plain.describe()["windows"] == "not asked for"
    assert held() == before
    plain.close()
