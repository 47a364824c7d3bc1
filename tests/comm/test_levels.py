"""Messages by way of one rank of each host are those that each rank would send itself, in fewer messages."""

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.comm import levels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import TAGS, Ledger
from hpcrec.comm.levels import pairs_of
from hpcrec.errors import HpcrecError
from tests.comm.job import Job
from tests.comm.late import take_late
from tests.comm.test_window import content, rounds

HOSTS = {
    "one host": (0, 0, 0, 0),
    "two, in turn": (0, 1, 0, 1),
    "two": (0, 0, 1, 1),
    "three and one": (0, 1, 0, 0),
    "three hosts": (0, 1, 2, 1),
    "a rank each": (0, 1, 2, 3),
}


def make(hosts: tuple[int, ...], *, by_levels: bool) -> Collectives:
    comm = MPI.COMM_WORLD
    ledger, host_of = Ledger(comm.rank, hosts[: comm.size]), hosts[: comm.size] if by_levels else None
    return Collectives(comm.Dup(), range(comm.size), ledger, windows=by_levels, host_of=host_of)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
@pytest.mark.parametrize("limits", [(1, 1), (1, 1 << 30), (400, 800), (8192, 65536), (1 << 30, 1 << 30)])
def test_messages_arrive_as_they_were_sent(
    hosts: tuple[int, ...], limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether those between two hosts go together, those of each rank do, each by itself, or some so and some so."""
    monkeypatch.setattr(levels, "FEW", 0)
    monkeypatch.setattr(levels, "PEER_BYTES", limits[0])
    monkeypatch.setattr(levels, "ALONE_BYTES", limits[1])
    c, plain = make(hosts, by_levels=True), make(hosts, by_levels=False)
    me, hosts = c.rank, hosts[: c.size]
    for number, bytes_RR in enumerate(rounds(12, c.size)):
        c.take_path("flat" if number % 4 == 3 else "levels")  # as while prices are measured
        sent = np.concatenate([content(me, to, number, n) for to, n in enumerate(bytes_RR[me])])
        message = c.message(bytes_RR[me], np.uint8)
        message[:] = sent
        words = np.arange(c.size * 3, dtype=np.int64).reshape(c.size, 3) + 100 * me + number
        heard = np.array_equal(c.alltoall(words, "control"), plain.alltoall(words, "control"))  # between the two
        came = c.alltoallv(message, bytes_RR[me], bytes_RR[:, me], "values", behind_bytes=64 * number)
        end = len(came) - 64 * number
        same = np.array_equal(came[:end], plain.alltoallv(sent, bytes_RR[me], bytes_RR[:, me], "values"))
        again = np.array_equal(c.alltoallv(sent, bytes_RR[me], bytes_RR[:, me], "ids")[:end], came[:end])
        parallel_assert(heard and same and again, msg=f"{number}: {heard} {same} {again}")
    far = [MPI.COMM_WORLD.allreduce(of.ledger.snapshot()[:, 1]) for of in (c, plain)]
    values = TAGS.index("values")
    parallel_assert(far[0][values] == far[1][values] == far[0][TAGS.index("ids")], msg=f"{far}")
    c.close()
    plain.close()


@pytest.mark.parallel([4])
@pytest.mark.parametrize("few", [0, 16])
def test_more_messages_where_more_crosses(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mean of pairs of ranks of (0, 0, 1, 1): one each way, two from 8 KiB on, and four from 64 KiB on.

    Where two in place of four are too few to save, it is four from 8 KiB on.
    """
    monkeypatch.setattr(levels, "FEW", few)
    c = make((0, 0, 1, 1), by_levels=True)
    at, seen = TAGS.index("values"), []
    peers, alone = levels.PEER_BYTES, levels.ALONE_BYTES
    sizes = [np.full(4, peers - 64), np.array([peers + 64, peers - 64] * 2), np.full(4, peers)]
    for bytes_R in (*sizes, np.full(4, alone - 64), np.full(4, alone)):
        before = MPI.COMM_WORLD.allreduce(c.ledger.messages())[at, 1]
        due_R = np.array([bytes_R[c.rank]] * 4)
        came = c.alltoallv(c.message(bytes_R, np.uint8), bytes_R, due_R, "values")
        seen.append((int(MPI.COMM_WORLD.allreduce(c.ledger.messages())[at, 1] - before), len(came)))
    parallel_assert([n for n, _ in seen] == ([2, 8, 8, 8, 8] if few else [2, 4, 4, 4, 8]), msg=f"{seen}")
    c.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("hosts", HOSTS.values(), ids=HOSTS)
def test_one_message_each_way_between_two_hosts(hosts: tuple[int, ...]) -> None:
    """Bytes count as if each rank had sent its own."""
    c, hosts = make(hosts, by_levels=True), hosts[: MPI.COMM_WORLD.size]
    bytes_R, sizes_R = np.full(c.size, 64 * (1 + c.rank)), np.array([64 * (1 + r) for r in range(c.size)])
    c.alltoallv(c.message(bytes_R, np.uint8), bytes_R, sizes_R, "values")
    at, n_hosts = TAGS.index("values"), len(set(hosts))
    far = int(sum(MPI.COMM_WORLD.allgather(c.ledger.messages()[at, 1])))
    alone = n_hosts == c.size or n_hosts == 1  # nothing to be saved: each rank sends its own
    wanted = (
        sum(hosts[a] != hosts[b] for a in range(c.size) for b in range(c.size)) if alone else n_hosts * (n_hosts - 1)
    )
    parallel_assert(far == wanted, msg=f"{far} {wanted}")
    plain = make(hosts, by_levels=False)
    plain.alltoallv(np.zeros(int(bytes_R.sum()), np.uint8), bytes_R, sizes_R, "values")
    parallel_assert(np.array_equal(c.ledger.snapshot(), plain.ledger.snapshot()), msg="bytes count as ever")
    c.close()
    plain.close()


@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("slow", [0, 2])
@pytest.mark.parametrize("peers", [False, True])
def test_a_slow_reader_reads_what_was_meant(slow: int, peers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates, and peers, receive the next messages for others once these have taken the last ones."""
    monkeypatch.setattr(levels, "FEW", 0)
    monkeypatch.setattr(levels, "PEER_BYTES", 1 if peers else 8192)
    c = make((0, 0, 1, 1), by_levels=True)
    if c.rank == slow:
        take_late(monkeypatch.setattr, 0.01, relayed=True)
    for number in range(6):
        bytes_R = np.full(c.size, 64)
        sent = np.concatenate([content(c.rank, to, number, 64) for to in range(c.size)])
        came = c.alltoallv(sent, bytes_R, bytes_R.copy(), "values")
        wanted = np.concatenate([content(source, c.rank, number, 64) for source in range(c.size)])
        parallel_assert(np.array_equal(came, wanted), msg=str(number))
    c.close()


@pytest.mark.parallel([3])
def test_messages_are_refused_that_are_not_as_long_as_was_told() -> None:
    """What a rank of the other host expects is told apart from what comes: nobody is given another's bytes."""
    c = make((0, 0, 1), by_levels=True)
    send_R, recv_R = np.full(3, 64), np.full(3, 64)
    if c.rank == 2:
        recv_R[1] = 128
    wrong = ""
    try:
        c.alltoallv(np.zeros(192, np.uint8), send_R, recv_R, "values")
    except HpcrecError as error:
        wrong = str(error)
    parallel_assert((c.rank == 2) == ("128 bytes came" in wrong and "were told of 192" in wrong), msg=wrong)
    # the others have gone on: nothing more is collective here


SIX = """
import numpy as np
from hpcrec.comm import levels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.levels import pairs_of
from tests.comm.late import take_late
HOSTS = (0, 0, 1, 2, 3, 3)
rng = np.random.default_rng(7)
ready()
c = Collectives(world.Dup(), range(6), Ledger(world.rank, HOSTS), windows=True, host_of=HOSTS)
plain = Collectives(world.Dup(), range(6), Ledger(world.rank, HOSTS))
gates = sum(pair.gate == world.rank for pair in pairs_of(HOSTS, world.rank))
assert gates == (2, 1, 3, 3, 2, 1)[world.rank], gates
if world.rank == 1:
    take_late(setattr, 0.002, relayed=True)
for number in range(20):
    bytes_RR = rng.integers(0, 5, (6, 6)) * rng.integers(0, 2, (6, 6)) * (64 if number % 4 else 6400)
    mine, due = bytes_RR[world.rank].copy(), bytes_RR[:, world.rank].copy()
    sent = rng.integers(0, 256, (6, int(bytes_RR.sum(1).max()))).astype(np.uint8)[world.rank, : mine.sum()]
    came, wanted = (of.alltoallv(sent, mine.copy(), due.copy(), "values") for of in (c, plain))
    assert np.array_equal(came, wanted), number
    words = np.arange(12).reshape(6, 2) + 100 * world.rank + number
    assert np.array_equal(c.alltoall(words, "control"), plain.alltoall(words, "control")), number
c.close()
plain.close()
say(f"alike on rank {world.rank}")
"""


def test_a_gate_of_several_hosts_has_what_is_for_others(tmp_path: Path) -> None:
    """Six ranks on four hosts: what comes from each host lies apart in the gate's memory, which another rank reads."""
    ended = Job(tmp_path, SIX, ranks=6).end(limit_s=60)
    assert ended.code == 0, ended.err
    assert ended.out.count("alike on rank") == 6, ended.out


@pytest.mark.parametrize(("hosts", "ranks"), [(8, 8), (128, 8), (1250, 8), (3, 5), (7, 1)])
def test_gates_share_the_other_hosts(hosts: int, ranks: int) -> None:
    """Each host's pairs are dealt over its ranks, and both sides of a pair name the same two."""
    host_of = [host for host in range(hosts) for _ in range(ranks)]
    looked = range(0, hosts * ranks, max(hosts * ranks // 50, 1))
    for rank in looked:
        pairs = pairs_of(host_of, rank)
        assert len(pairs) == hosts - 1
        mine = [pair for pair in pairs if pair.gate == rank]
        assert len(mine) in {(hosts - 1) // ranks, -(-(hosts - 1) // ranks)}
        for pair in mine[:3]:
            back = next(p for p in pairs_of(host_of, pair.other_gate) if rank in p.there)
            assert back.gate == pair.other_gate and back.other_gate == rank
