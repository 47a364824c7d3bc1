"""The checks on ranks, with a fault on one of them: injected where a check meets the machine, found and named by it."""

import contextlib
import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.comm.probe import Probe, pair_rounds
from hpcrec.doctor import examine as examining
from hpcrec.doctor import folder as folders
from hpcrec.doctor import software
from hpcrec.doctor.base import Check, Site, ok
from hpcrec.doctor.examine import examine
from hpcrec.doctor.registry import CHECKS, CONFIG_CHECKS, LAST_CHECKS
from tests.doctor.site import fake_root
from tests.training.runs import config_for, write_data

CHECK = {check.name: check for check in (*CHECKS, *CONFIG_CHECKS, *LAST_CHECKS)}
WORLD = MPI.COMM_WORLD


class Faulty(Probe):
    """A probe whose last rank has a fault: ``threads``, ``clock``, ``corrupt`` or ``slow`` (to rank 0).

    Or a slow network between pretended hosts: ``link`` (what the first host sends to the last) or ``host`` (all that
    the last host sends).
    """

    fault = ""

    @property
    def last(self) -> bool:
        return self.rank == self.size - 1

    @property
    def mpi(self):
        level = "funneled" if self.fault == "threads" and self.last else "multiple"
        return {**super().mpi, "mpi_threads": level}

    def clock_s(self):
        return super().clock_s() + (30.0 if self.fault == "clock" and self.last else 0.0)

    def alltoallv(self, send, send_bytes_R, recv_bytes_R, *, windows):
        recv = super().alltoallv(send, send_bytes_R, recv_bytes_R, windows=windows)
        if self.fault == ("corrupt windows" if windows else "corrupt") and self.last:
            recv[5] ^= 16  # one bit of what rank 0 sent
        return recv

    def swap(self, peer, send, recv):
        super().swap(peer, send, recv)
        if self.fault == "slow" and {peer, self.rank} == {0, self.size - 1}:
            time.sleep(0.02)

    @contextlib.contextmanager
    def meeting(self, other_host):
        with super().meeting(other_host) as meeting:
            pair, last = {self.host_of[self.rank], other_host}, max(self.host_of)
            slow = {"link": 0 if pair == {0, last} else None, "host": last}.get(self.fault)
            yield _Slowed(meeting, slow) if meeting is not None and self.fault in ("link", "host") else meeting


class _Slowed:
    """A meeting of two hosts of which one sends a hundred times slower; no clock is read, for cores are shared."""

    GBS = 2.0

    def __init__(self, meeting, slow):
        self.meeting, self.slow, self.links = meeting, slow, meeting.links

    def send_s(self, source_host, to_each_bytes):
        self.meeting.send_s(source_host, 64)
        return 1e-9 * to_each_bytes * self.links() / self.GBS * (100 if source_host == self.slow else 1)


def shared(path: Path) -> Path:
    """Rank 0's path on every rank."""
    return Path(WORLD.bcast(str(path)))


def examined(
    names, *, fault="", folder=None, as_json=False, root=None, config=None, limit_s=60.0, host_of=None, **more
):
    """Exit code and what was said, on every rank."""
    said = []
    probe = Faulty()
    probe.fault = fault
    probe.host_of = host_of or probe.host_of

    def make_site() -> Site:
        site = Site(
            probe=probe, environment={}, folder=folder or Path(), host=f"node{probe.rank}", config=config, **more
        )
        return site if root is None else replace(site, root=root)

    checks = [CHECK[name] if isinstance(name, str) else name for name in names]
    code = examine(probe, make_site, checks, said.append, limit_s=limit_s, as_json=as_json)
    probe.close()
    return code, WORLD.bcast("\n".join(said))


@pytest.mark.parallel([2, 3])
def test_a_thread_level_that_one_rank_lacks() -> None:
    code, said = examined(["mpi"], fault="threads")
    last = WORLD.size - 1
    words = f"FAIL  mpi threads     funneled on rank {last} on node{last}"
    parallel_assert(code == 1 and words in said and said.endswith("not ready: 1 problem"), msg=said)


@pytest.mark.parallel([2, 3])
def test_a_clock_that_is_ahead() -> None:
    code, said = examined(["clocks"], fault="clock")
    last = WORLD.size - 1
    by = "+30.0" if WORLD.size == 3 else "+15.0"  # of two clocks neither is the right one
    who = f"rank {last} on node{last}" if WORLD.size == 3 else "every rank"
    parallel_assert(code == 0 and said.endswith("ready, 1 warning") and who in said, msg=said)
    parallel_assert(by in said or WORLD.size == 2, msg=said)


@pytest.mark.parallel([2, 3])
def test_contents_that_a_network_spoils() -> None:
    code, said = examined(["alltoallv"], fault="corrupt")
    last = WORLD.size - 1
    words = f"contents differ from what was sent: rank 0 on node0 to rank {last} on node{last}, 1.02 kB by "
    parallel_assert(code == 1 and words + "MPI" in said and "memory" not in said, msg=said)
    code, said = examined(["alltoallv"], fault="corrupt windows")
    parallel_assert(code == 1 and words + "shared memory" in said and "exchange.windows = false" in said, msg=said)
    code, said = examined(["alltoallv"])
    parallel_assert(code == 0 and "contents right" in said and "by shared memory 1.02 kB" in said, msg=said)
    with pytest.MonkeyPatch.context() as patch:
        if WORLD.rank == last:
            patch.delattr(os, "memfd_create")
        code, said = examined(["alltoallv"])
    why = f"not by shared memory: rank {last} cannot make shared memory: module 'os' has no attribute"
    parallel_assert(code == 0 and why in said and "; by shared memory" not in said, msg=said)


@pytest.mark.parallel(3)
def test_a_slow_pair_is_named_and_only_that() -> None:
    code, said = examined(["pairs"], fault="slow")
    slow = [line for line in said.splitlines() if "slow pair" in line]
    words = "rank 0 on node0 and rank 2 on node2"
    parallel_assert(code == 0 and any(words in line for line in slow), msg=said)


@pytest.mark.parallel([1, 2, 3, 4])
def test_links_between_hosts() -> None:
    """Ranks of one machine play hosts: each for itself, and two on a host."""
    size = WORLD.size
    code, said = examined(["hosts"], host_of=tuple(range(size)), as_json=True)
    found = [f["data"] for f in json.loads(said)["findings"] if f["level"] == "ok"]
    parallel_assert(code == 0 and len(found) == (size > 1), msg=said)
    if size > 1:
        gbs = found[0]["gbs"]
        measured = all((gbs[a][b] is None) == (a == b) for a in range(size) for b in range(size))
        positive = all(v > 0 for row in gbs for v in row if v is not None)
        parallel_assert(measured and positive and found[0]["hosts"] == [f"node{r}" for r in range(size)], msg=said)
    code, said = examined(["hosts"], host_of=tuple(r // 2 for r in range(size)))
    parallel_assert(code == 0 and ("1 pairs of 2 hosts" in said) == (size > 2), msg=said)


@pytest.mark.parallel([2, 3, 4])
def test_a_slow_network_is_named() -> None:
    hosts, last = tuple(range(WORLD.size)), WORLD.size - 1
    code, said = examined(["hosts"], fault="link", host_of=hosts)
    words = f"warn  slow link       node0 to node{last}: 0."
    parallel_assert(code == 0 and words in said and f"node{last} sends" not in said, msg=said)
    code, said = examined(["hosts"], fault="host", host_of=hosts)
    words = f"slow host       node{last} sends" if last > 1 else "slow link       node1 to node0"
    parallel_assert(code == 0 and words in said, msg=said)


@pytest.mark.parallel([2, 3])
def test_a_version_that_differs(monkeypatch) -> None:
    real = software.telemetry.versions
    if WORLD.rank == WORLD.size - 1:
        monkeypatch.setattr(software.telemetry, "versions", lambda: {**real(), "numpy": "1.0.0"})
    code, said = examined(["versions"])
    # of two ranks the first counts as usual
    last = WORLD.size - 1
    parallel_assert(code == 1 and f"numpy is 1.0.0 on rank {last} on node{last}" in said, msg=said)


@pytest.mark.parallel([2, 3])
def test_folders(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(folders, "_VISIBLE_S", 0.3)
    folder = shared(tmp_path)
    code, said = examined(["folder"], folder=folder)
    parallel_assert(code == 0 and "written and seen by every rank" in said, msg=said)
    parallel_assert(list(folder.iterdir()) == [], msg="something was left behind")
    last = WORLD.size - 1
    code, said = examined(["folder"], folder=folder / "none" if WORLD.rank == last else folder)
    words = f"rank {last} on node{last} cannot write there"
    parallel_assert(code == 1 and words in said and "No such file" in said, msg=said)
    own = tmp_path / "own" if WORLD.rank == last else folder  # writable, but not the others'
    own.mkdir(exist_ok=True)
    code, said = examined(["folder"], folder=own)
    words = "does not see what rank"
    parallel_assert(code == 1 and words in said and "all hosts share" in said, msg=said)


@pytest.mark.parallel([2, 3])
def test_a_new_name_that_a_host_does_not_see(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(folders, "_VISIBLE_S", 0.3)
    last = WORLD.size - 1
    if WORLD.rank == last:
        monkeypatch.setattr(folders, "_new_name_holds", lambda _: False)
    code, said = examined(["folder"], folder=shared(tmp_path))
    words = f"rank {last} on node{last} does not see a folder under the new name"
    parallel_assert(code == 1 and words in said, msg=said)


@pytest.mark.parallel([1, 2, 3])
def test_files_that_one_rank_alone_makes(tmp_path) -> None:
    folder, last = shared(tmp_path), WORLD.size - 1
    code, said = examined(["folder"], folder=folder)
    parallel_assert(code == 0 and said.endswith("files are made exclusively\nready"), msg=said)

    def fault(opens) -> str:
        with pytest.MonkeyPatch.context() as patch:
            if WORLD.rank == last:
                patch.setattr(os, "open", opens)
            code, said = examined(["folder"], folder=folder)
        parallel_assert(code == 0, msg=said)
        parallel_assert(list(folder.iterdir()) == [], msg="something was left behind")
        return said

    original = os.open

    def refusing(path, *more, **named):
        if Path(path).name == "alone":
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return original(path, *more, **named)

    def sharing(path, flags, *more, **named):
        while Path(path).name == "alone" and WORLD.size > 1 and not Path(path).exists():
            time.sleep(0.01)
        return original(path, flags & ~os.O_EXCL, *more, **named)

    said = fault(refusing)
    words = (
        f"warn  claims          {folder}: rank {last} on node{last} cannot make a file exclusively there: Operation not"
    )
    parallel_assert(words in said and "made exclusively\n" not in said and said.endswith("ready, 1 warning"), msg=said)
    said = fault(sharing)  # it makes one that is there
    parallel_assert(("all made one file, exclusively" in said) == (WORLD.size > 1), msg=said)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_speeds_of_disks(tmp_path) -> None:
    folder, size = shared(tmp_path), WORLD.size
    write_data(folder / "data.h5", samples=30_000)
    config = config_for(folder, checkpoint={"every": 100}, topology={"mode": "fused"})
    names = ["disk of the run", "local scratch", "disk of data"]
    more = {"folder": folder, "config": config, "host_of": tuple(range(size)), "as_json": True}
    code, said = examined(names, scratch=folder, samples_per_s=130.0, **more)
    found = {f["what"]: f for f in json.loads(said)["findings"]}
    parallel_assert(code == 0 and {*names, "checkpoint", "reading"} <= set(found), msg=said)
    for name in names:
        data = found[name]["data"]
        parallel_assert(data["read"]["gbs"] > 0 and len(data["read"]["gbs_by_host"]) == size, msg=said)
        parallel_assert(name == "disk of data" or data["write"]["bytes"] >= 2**20 * size // 64, msg=said)
    seconds = found["checkpoint"]["data"]["every_s"]
    parallel_assert(abs(seconds - 100 * 13 / 130.0) < 1e-9, msg=said)
    parallel_assert(sorted(p.name for p in folder.iterdir()) == ["data.h5"], msg="something was left behind")
    code, said = examined(names[:1], checkpoint_s=1e-9, **{**more, "as_json": False})
    parallel_assert(
        code == 0 and "warn  checkpoint" in said and "1e-09 s are allowed (--checkpoint-s)" in said, msg=said
    )
    last = size - 1
    away = folder / "none" if WORLD.rank == last else folder
    code, said = examined(["local scratch"], scratch=away, as_json=False)
    who = f"rank {last} on node{last}"
    parallel_assert(code == 1 and f"{who} cannot write to it: [Errno 2] No such file" in said, msg=said)


@pytest.mark.parallel([2, 3])
def test_sums_by_either_reducer(monkeypatch) -> None:
    config = config_for(Path("/nowhere"))  # dense.reducer is mpi there
    code, said = examined(["allreduce"], config=config)
    parallel_assert(code == 0 and "mpi: 1.05 MB in" in said, msg=said)
    from hpcrec.dense import horovod
    from hpcrec.errors import MissingError

    def none():
        raise MissingError("horovod.torch cannot be imported (undefined symbol). Set dense.reducer = 'mpi'.")

    if WORLD.rank == 1:
        monkeypatch.setattr(horovod, "import_horovod", none)
    code, said = examined(["allreduce"])
    parallel_assert(code == 0 and "warn  horovod" in said and "rank 1: horovod.torch cannot" in said, msg=said)
    parallel_assert('dense.reducer = "mpi"' in said and "ok    allreduce       mpi" in said, msg=said)
    needed = replace(config, dense=replace(config.dense, reducer="horovod"))
    code, said = examined(["allreduce"], config=needed)
    parallel_assert(code == 1 and "FAIL  horovod" in said, msg=said)
    code, said = examined(["allreduce"], fault="threads")
    parallel_assert("warn  horovod         not tried" in said and "ok    allreduce       mpi" in said, msg=said)


@pytest.mark.parallel(2)
def test_a_configuration(tmp_path) -> None:
    folder = shared(tmp_path)
    write_data(folder / "data.h5", samples=40)
    names = ["topology", "data", "memory of a run"]
    config = config_for(folder, topology={"mode": "split", "owners": 1, "dense": 1})
    code, said = examined(names, config=config)
    parallel_assert(code == 0 and "2 ranks: 1 owners, 1 dense" in said and "40 samples" in said, msg=said)
    parallel_assert("owner (rank 0): " in said and "dense (rank 1): " in said, msg=said)
    code, said = examined(names, config=config_for(folder, topology={"mode": "split", "owners": 3, "dense": 1}))
    parallel_assert(code == 1 and "FAIL  topology        topology.owners is 3. Allowed: 1 to 2" in said, msg=said)
    gone = config if WORLD.rank == 0 else config_for(folder, data={"train": str(folder / "gone.h5")})
    code, said = examined(["data"], config=gone)
    parallel_assert(code == 1 and "FAIL  data.train      rank 1 on node1: " in said and "gone.h5" in said, msg=said)
    write_data(folder / "other.h5", samples=41)
    other = config if WORLD.rank == 0 else config_for(folder, data={"train": str(folder / "other.h5")})
    code, said = examined(["data"], config=other)
    parallel_assert(code == 1 and "is another data set on rank 1 on node1" in said, msg=said)
    root = fake_root(tmp_path / "host", available_bytes=10**8 if WORLD.rank == 0 else 10**11)
    code, said = examined(["memory of a run"], config=config, root=root)
    parallel_assert(code == 1 and "2 ranks on node0 will need" in said and "of 100.00 MB" in said, msg=said)


@pytest.mark.parallel([2, 3])
def test_a_check_that_fails_on_one_rank_is_a_finding() -> None:
    def measure(site):
        if site.probe.rank == 1:
            raise OSError("no such device")
        return 1

    code, said = examined([Check(name="odd", measure=measure, judge=lambda answers, _: iter([ok("odd", "fine")]))])
    parallel_assert(code == 1 and "FAIL  odd             rank 1 on node1: OSError: no such device" in said, msg=said)


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_a_check_that_hangs_is_named_with_its_rank(monkeypatch) -> None:
    """The job's end is replaced by a note: here, the rank that hangs goes on after a while."""
    ended = []
    monkeypatch.setattr(Faulty, "abort", lambda _, code: ended.append(code))
    monkeypatch.setattr(examining, "_OTHERS_WAIT_S", 5.0)

    def measure(site):
        time.sleep(1.5 if site.probe.rank == 1 else 0.0)

    check = Check(name="asleep", measure=measure, judge=lambda answers, _: iter([]))
    code, said = examined([check], limit_s=0.5)
    words = "FAIL  asleep          timed out: asleep, after 0.5 s; no answer from rank 1 on node1"
    parallel_assert(words in said and code == 1, msg=said)
    parallel_assert(ended == ([1] if WORLD.rank == 0 else []), msg=str(ended))


@pytest.mark.parallel([2, 3])
def test_json() -> None:
    code, said = examined(["mpi", "pairs"], as_json=True)
    found = json.loads(said)
    parallel_assert(code == 0 and found["ready"] and found["ranks"] == WORLD.size, msg=said)
    parallel_assert(found["hosts"] == [f"node{r}" for r in range(WORLD.size)], msg=said)
    parallel_assert([f["what"] for f in found["findings"]][:1] == ["mpi"], msg=said)
    seconds = found["findings"][-1]["data"]["seconds"]
    parallel_assert(len(seconds["65536"]) == WORLD.size and seconds["65536"][0][1] > 0, msg=said)


@pytest.mark.parametrize("size", range(1, 9))
def test_each_pair_meets_once(size: int) -> None:
    rounds = [pair_rounds(size, rank) for rank in range(size)]
    met = set()
    for number in range(len(rounds[0])):
        for rank in range(size):
            peer = rounds[rank][number]
            assert peer is None or (peer != rank and rounds[peer][number] == rank)
            met |= set() if peer is None else {frozenset((rank, peer))}
    assert len(met) == size * (size - 1) // 2
