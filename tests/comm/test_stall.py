"""A stalled run says which collective waits for whom, once, and ends past its second limit with every process gone."""

import functools
import operator
import re
import signal
import threading
import time
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from job import Job, needs_horovod
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.comm import stall
from hpcrec.comm.failure import ExitCodes
from hpcrec.comm.progress import AFTER, ASIDE, BEFORE, FROM, TO, WORKING, Hop, Lane, Progress
from hpcrec.comm.stall import StallLimits, StallWatch
from hpcrec.comm.stall_report import Standing, describe, find_held_up, find_waits, listed
from hpcrec.comm.topology import assign_roles
from hpcrec.comm.world import World
from hpcrec.training.ranks import on_root
from tests.cost import times_a_plain_block

MEMBERS = {"main": (0, 1, 2, 3), "dense": (2, 3)}


def standing(step: int, main: tuple[int, int, str, float], dense: tuple[int, int, str, float] = (0, 0, "", 9.0)):
    return Standing(step, {"main": main, "dense": dense}, "node7", "session.py:8 in run_step")


def test_waits_name_who_has_not_come() -> None:
    standings = {
        0: standing(5, (9, 9, "gradients", 61.0)),
        1: standing(5, (9, 9, "gradients", 60.5)),
        2: standing(5, (8, 0, "values", 70.0), (4, 4, "dense", 62.0)),
    }  # rank 3 does not answer
    waits = find_waits(standings, MEMBERS, 30.0)
    assert [(w.lane, w.tag, w.step, w.waiting, w.missing) for w in waits] == [
        ("dense", "dense", 5, (2,), (3,)),
        ("main", "gradients", 5, (0, 1), (2, 3)),
    ]
    text, blamed = describe(waits, standings)
    assert blamed == (3,)  # rank 2 is missing too, but waits itself
    assert text.splitlines()[0] == "no progress for 62 s. Waiting for rank 3."
    assert "step 5, collective 'gradients' on communicator 'main': ranks 0, 1 waited 61 s for ranks 2, 3" in text
    assert "rank 3 does not answer" in text
    assert not find_waits(standings, MEMBERS, 90.0)


def test_a_late_rank_is_shown_with_its_place_and_a_deadlock_is_called_one() -> None:
    standings = {r: standing(5, (9, 9, "ids", 60.0)) for r in range(3)} | {3: standing(4, (7, 0, "values", 64.0))}
    text, blamed = describe(find_waits(standings, MEMBERS, 30.0), standings)
    assert blamed == (3,)
    assert "rank 3 on node7: step 4, in no collective for 9 s, its main thread is at session.py:8 in run_step" in text
    roles = {**standings, 3: replace(standings[3], role="owner")}
    assert "rank 3 on node7 (owner): step 4" in describe(find_waits(roles, MEMBERS, 30.0), roles)[0]
    crossed = {0: standing(5, (9, 9, "ids", 60.0))} | {
        r: standing(5, (8, 0, "ids", 61.0), (3, 3, "dense", 60.0)) for r in (1, 2, 3)
    }
    text, blamed = describe(find_waits(crossed, MEMBERS, 30.0), crossed)
    assert blamed == () and "wait for each other" in text
    text, blamed = describe(find_waits({0: standing(5, (9, 9, "ids", 60.0))}, {"main": (0,)}, 30.0), {})
    assert blamed == () and "look at the network" in text


def at_work(rank: int, aside: tuple[int, int, float], main: tuple[int, int, float] = (9, 0, 0.1)) -> Standing:
    lanes = {"main": (*main[:2], "ids", main[2]), ASIDE: (*aside[:2], "checkpoint", aside[2])}
    return Standing(8, lanes, f"node{rank}", "step.py:8 in run", "", "owner", "hdf5.py:9 in write")


def test_work_that_comes_on_is_waited_for_and_work_that_does_not_is_a_stall() -> None:
    members = {"main": (0, 1, 2), ASIDE: (0, 1, 2)}
    waiting = {0: at_work(0, (3, 3, 90.0)), 1: at_work(1, (3, 3, 80.0))}
    busy = {**waiting, 2: at_work(2, (2, WORKING, 0.5))}
    waits = find_waits(busy, members, 30.0)
    assert waits == [] == find_held_up(busy, members, waits, 30.0)
    stuck = {**waiting, 2: at_work(2, (2, WORKING, 61.0), main=(10, 10, 0.2))}  # the steps beside it go on
    waits = find_waits(stuck, members, 30.0)
    assert [(w.lane, w.seconds_s, w.waiting, w.missing) for w in waits] == [(ASIDE, 61.0, (0, 1), (2,))]
    assert find_held_up(stuck, members, waits, 30.0) == []
    text, blamed = describe(waits, stuck)
    assert blamed == (2,)
    _, collective, place = text.splitlines()
    assert collective == "  step 8, collective 'checkpoint' on communicator 'aside': ranks 0, 1 waited 61 s for rank 2"
    assert place == (
        "  rank 2 on node2 (owner): step 8, its checkpoint thread came on 61 s ago and is at hdf5.py:9 in write; its "
        "main thread is at step.py:8 in run"
    )
    gone = {0: waiting[0], 1: at_work(1, (2, WORKING, 0.5))}  # rank 2 does not answer, whatever rank 1 does
    assert [w.missing for w in find_waits(gone, members, 30.0)] == [(1, 2)]


def test_work_of_all_ranks_that_does_not_come_on_is_a_stall_for_which_nobody_waits() -> None:
    members = {"main": (0, 1), ASIDE: (0, 1)}
    stuck = {rank: at_work(rank, (2, WORKING, 61.0), main=(9, 0, 60.0)) for rank in (0, 1)}
    waits = find_held_up(stuck, members, find_waits(stuck, members, 30.0), 30.0)
    text, blamed = describe(waits, stuck)
    assert blamed == (0, 1) and text.startswith("no progress for 61 s. Waiting for ranks 0, 1.")
    assert "collective 'checkpoint' on communicator 'aside': ranks 0, 1 did not come on with the work for it" in text
    assert (
        "came on 61 s ago and is at hdf5.py:9 in write; in no collective for 60 s, its main thread is at step" in text
    )


def on_hop(hop: Hop | None, main: tuple[int, int, str, float] = (9, 9, "values", 61.0)) -> Standing:
    return Standing(5, {"main": main}, "node7", "step.py:8 in run", hops={} if hop is None else {"main": hop})


def test_of_a_collective_that_goes_by_hops_it_is_said_which_level_waits_for_whom() -> None:
    """Of hosts of ranks 0 to 2, 3 and 4, and 5: rank 4 is late, so 3 waits in their host, gates 1, 5 for 3, 0 for 5."""
    members, late = {"main": (0, 1, 2, 3, 4, 5)}, standing(5, (8, 0, "ids", 62.0))
    where = {
        0: on_hop(Hop(AFTER, (0, 1, 2))),
        1: on_hop(Hop(FROM, (3,))),
        2: on_hop(Hop(AFTER, (0, 1, 2))),
        3: on_hop(Hop(BEFORE, (3, 4))),
        4: late,
        5: on_hop(Hop(FROM, (3,))),
    }
    lines = describe(find_waits(where, members, 30.0), where)[0].splitlines()
    assert lines[0] == "no progress for 61 s. Waiting for rank 4."
    assert lines[1].endswith("collective 'values' on communicator 'main': ranks 0 to 3, 5 waited 61 s for rank 4")
    assert lines[2:5] == [
        "    in its host, before messages are put together: rank 3 waits for rank 4",
        "    between hosts: ranks 1, 5 wait for what rank 3 sends",
        "    in its host, after gates have received: ranks 0, 2 wait for rank 1",
    ]
    assert lines[5].startswith("  rank 4 on node7: step 5")
    gone = {0: where[0], 1: on_hop(Hop(TO, (3, 5))), 2: where[2], 5: where[5]}  # ranks 3 and 4 do not answer
    text, blamed = describe(find_waits(gone, members, 30.0), gone)
    assert blamed == (3, 4) and "    between hosts: rank 1 waits for ranks 3, 5 to take what is sent\n" in text
    lost = {**where, 3: on_hop(Hop(AFTER, (3, 4))), 4: on_hop(Hop(AFTER, (3, 4)))}  # a message that does not come
    lines = describe(find_waits(lost, members, 30.0), lost)[0].splitlines()
    assert "Every rank has come to the collective" in lines[0]
    assert lines[2:] == [
        "    between hosts: ranks 1, 5 wait for what rank 3 sends",
        "    in its host, after gates have received: ranks 0, 2 wait for rank 1",
        "    in its host, after gates have received: ranks 3, 4 wait for each other",
    ]


def test_of_very_many_hosts_not_each_has_a_line() -> None:
    hosts, members = range(1, 100), {"main": tuple(range(200))}
    where = {2 * h + place: on_hop(Hop(AFTER, (2 * h, 2 * h + 1))) for h in hosts for place in (0, 1)}
    where |= {2 * h: on_hop(Hop(FROM, (0,))) for h in hosts}
    where |= {0: on_hop(Hop(BEFORE, (0, 1))), 1: on_hop(None, (8, 0, "ids", 62.0))}
    lines = describe(find_waits(where, members, 30.0), where)[0].splitlines()
    assert lines[2] == "    in its host, before messages are put together: rank 0 waits for rank 1"
    assert lines[3].startswith("    between hosts: ranks 2, 4, 6, ") and lines[3].endswith("wait for what rank 0 sends")
    assert lines[10] == "    and 93 more" and len(lines) == 12


@pytest.mark.parametrize(
    ("ranks", "said"),
    [((), ""), ((3,), "rank 3"), ((1, 2), "ranks 1, 2"), ((0, 1, 2, 5), "ranks 0 to 2, 5"), ((4, 9), "ranks 4, 9")],
)
def test_ranks_are_listed_in_runs(ranks, said) -> None:
    assert listed(ranks) == said


def test_lanes_count_and_cost_little() -> None:
    lane = Lane("main", (0, 1))
    with lane.inside("ids"):
        assert (lane.count, lane.waiting, lane.tag) == (1, 1, "ids")
    numbers = [lane.started(), lane.started()]
    with lane.waits(numbers[0], "dense"):
        assert (lane.count, lane.waiting) == (3, 2)
    assert lane.waiting == 0
    assert times_a_plain_block(lambda: lane.inside("ids")) < 15  # 3 on an idle core


def of_ranks(said: list[str]) -> list[str]:
    """All reports but those of a collective that all ranks have come to: a busy machine may keep it from its end."""
    return [text for text in said if "Every rank has come to the collective, which does not end" not in text]


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_a_late_rank_is_reported_once_and_the_run_goes_on(monkeypatch) -> None:
    comm, said = MPI.COMM_WORLD, []
    monkeypatch.setattr(stall, "say", said.append)
    world = World(comm, lambda host_of: assign_roles(host_of, mode="fused"), StallLimits(0.5, 60.0))
    late = comm.size - 1
    for step in range(3):
        world.progress.step = step
        world.main.barrier()
        if step == 1 and comm.rank == late:
            time.sleep(2.5)
        world.dense.barrier()
    told = comm.allgather(of_ranks(said))
    parallel_assert([len(mine) for mine in told] == [1] + [0] * (comm.size - 1), msg=str(told))
    text = told[0][0]
    waiting = listed(range(late))
    found = re.search(r"step 1, collective 'control' on communicator 'dense': (.*) waited ([\d.]+) s for (.*)", text)
    parallel_assert(found is not None and found[1] == waiting and found[3] == f"rank {late}", msg=text)
    parallel_assert(0.5 <= float(found[2]) < 2.5 and f"Waiting for rank {late}." in text, msg=text)
    parallel_assert(f"rank {late} on " in text and "in no collective" in text and "test_stall.py" in text, msg=text)
    world.close()
    parallel_assert(not world._watch._thread.is_alive())


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_a_late_rank_of_a_group_is_reported_by_the_name_of_the_group(monkeypatch) -> None:
    """Once, by rank 0, whether it is in that group or not: on 4 ranks groups are 0, 2 and 1, 3, and 3 is late."""
    comm, said = MPI.COMM_WORLD, []
    monkeypatch.setattr(stall, "say", said.append)
    outer = World(comm, lambda host_of: assign_roles(host_of, mode="fused"), StallLimits(0.5, 60.0))
    late = comm.size - 1
    groups = [tuple(range(comm.size))] if comm.size < 4 else [(0, 2), (1, 3)]
    made = [
        outer.among(ranks, lambda host_of: assign_roles(host_of, mode="fused"), name=f"tower {ranks[0]}")
        for ranks in groups
    ]
    mine, world = next((ranks, one) for ranks, one in zip(groups, made, strict=True) if one is not None)
    outer.main.barrier()
    if comm.rank == late:
        time.sleep(2.5)
    world.dense.barrier()
    comm.Barrier()  # of no lane: the other group waits here
    told = comm.allgather(of_ranks(said))
    parallel_assert([len(texts) for texts in told] == [1] + [0] * (comm.size - 1), msg=str(told))
    waiting, name = listed(r for r in groups[-1] if r != late), f"tower {groups[-1][0]}: dense"
    found = re.search(rf"collective 'control' on communicator '{name}': (.*) waited [\d.]+ s for (.*)", told[0][0])
    parallel_assert(found is not None and found[1] == waiting and found[2] == f"rank {late}", msg=told[0][0])
    parallel_assert(f"Waiting for rank {late}." in told[0][0] and mine in groups, msg=told[0][0])
    outer.close()


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_a_report_names_the_level_that_a_rank_waits_at(monkeypatch) -> None:
    """In places of two ranks: whoever is in the late one's waits for it, a gate for that place's, its peer for it."""
    comm, said = MPI.COMM_WORLD, []
    monkeypatch.setattr(stall, "say", said.append)
    fused = functools.partial(assign_roles, mode="fused")
    world = World(comm, fused, StallLimits(0.5, 60.0), levels=True, places=2)
    parallel_assert(world.by_levels)
    late, sizes = comm.size - 1, np.full(comm.size, 64)
    world.main.alltoallv(np.zeros(64 * comm.size, np.uint8), sizes, sizes.copy(), "ids")
    hops = (BEFORE, AFTER) if comm.rank % 2 else (AFTER,)  # who is no gate may have slept through both meetings
    parallel_assert(world.main.lane.hop.number in hops and world.main.lane.waiting == 0)
    if comm.rank == late:
        time.sleep(2.5)
    world.main.alltoallv(np.zeros(64 * comm.size, np.uint8), sizes, sizes.copy(), "values")
    world.main.barrier()
    parallel_assert(world.main.lane.hop is None, msg="a barrier has no levels")
    told = comm.allgather(of_ranks(said))
    parallel_assert([len(mine) for mine in told] == [1] + [0] * (comm.size - 1), msg=str(told))
    text = told[0][0]
    wanted = [
        "    between hosts: rank 0 waits for what rank 2 sends\n",
        "    in its host, after gates have received: rank 1 waits for rank 0\n",
    ]
    if comm.size == 4:
        wanted.append("    in its host, before messages are put together: rank 2 waits for rank 3\n")
    parallel_assert(all(line in text for line in wanted), msg=text)
    parallel_assert(text.count("    between hosts: ") + text.count("    in its host") == comm.size - 1, msg=text)
    world.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("stuck", ["one", "all"])
def test_files_that_take_long_are_no_stall_until_nothing_comes_on(monkeypatch, tmp_path, stuck) -> None:
    comm, said = MPI.COMM_WORLD, []
    reported = comm.bcast(tmp_path) / "reported"  # a slow machine may take seconds to say so

    def say(text: str) -> None:
        said.append(text)
        if of_ranks([text]):
            reported.touch()

    monkeypatch.setattr(stall, "say", say)
    world = World(comm, lambda host_of: assign_roles(host_of, mode="fused"), StallLimits(0.5, 60.0))
    last, told = comm.size - 1, []
    aside = world.aside
    parallel_assert(aside is not None)

    def write() -> None:
        with aside.working("checkpoint"):
            for _ in range(15):  # for three times the limit, while the others wait
                if comm.rank == last or stuck == "all":
                    time.sleep(0.1)
                    aside.comes_on()
            told.append(len(of_ranks(said)))
            if comm.rank == last or stuck == "all":
                until_s = time.monotonic() + 30.0  # a disk that does not answer
                while not reported.exists() and time.monotonic() < until_s:
                    time.sleep(0.05)
            aside.allgather(comm.rank)

    thread = threading.Thread(target=write)
    thread.start()
    while any(comm.allgather(thread.is_alive())):
        with world.main.lane.inside("ids"):  # steps go on
            comm.Barrier()
        time.sleep(0.01)
    thread.join()
    parallel_assert(comm.allgather(told) == [[0]] * comm.size, msg=str(told))
    everything = comm.allgather(of_ranks(said))
    reports_R = [len(mine) for mine in everything]
    # of ranks that hang at once, one may do so for longer than the limit where the machine is slow
    wanted = reports_R[0] == 1 if stuck == "one" else reports_R[0] >= 1
    parallel_assert(wanted and not any(reports_R[1:]), msg=str(everything))
    text = everything[0][0]
    print(text)  # whole, where what follows fails
    blamed = listed([last] if stuck == "one" else range(comm.size))
    parallel_assert(
        f"Waiting for {blamed}." in text and "collective 'checkpoint' on communicator 'aside'" in text, msg=text
    )
    parallel_assert(
        f"rank {last} on " in text and "(owner and dense rank): step 0, its checkpoint thread" in text, msg=text
    )
    parallel_assert("test_stall.py" in text and " in write; " in text, msg=text)
    world.close()


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_the_first_rank_may_work_on_files_as_long_as_it_comes_on(monkeypatch) -> None:
    """Checking, removing: the others wait in a broadcast. What does not come on is a stall, then and later."""
    comm, said = MPI.COMM_WORLD, []
    monkeypatch.setattr(stall, "say", said.append)
    world = World(comm, lambda host_of: assign_roles(host_of, mode="fused"), StallLimits(0.5, 60.0))

    def work() -> None:
        for _ in range(15):
            time.sleep(0.1)
            world.main.comes_on()

    on_root(world.main, work)
    parallel_assert(of_ranks(said) == [], msg=str(said))
    on_root(world.main, lambda: time.sleep(2.0))
    parallel_assert(world.main.lane.waiting == 0)
    reports_R = comm.allgather(of_ranks(said))
    parallel_assert([len(mine) for mine in reports_R] == [1] + [0] * (comm.size - 1), msg=str(reports_R))
    parallel_assert("Waiting for rank 0." in reports_R[0][0], msg=str(reports_R))
    time.sleep(1.0)  # nobody works any more: no stall, though nobody says that it comes on
    parallel_assert(len(of_ranks(said)) == (1 if comm.rank == 0 else 0), msg=str(said))
    world.close()


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_a_stall_is_noted_for_a_moment_before_the_job_is_ended(monkeypatch) -> None:
    comm, noted, ended = MPI.COMM_WORLD, [], []
    monkeypatch.setattr(stall, "say", lambda text: None)
    monkeypatch.setattr(stall, "end_job", lambda *given: ended.append((time.monotonic(), given[1:])))
    monkeypatch.setattr(stall, "_NOTE_S", 0.4)
    world = World(comm, lambda host_of: assign_roles(host_of, mode="fused"), StallLimits(0.4, 0.8))

    def note(text: str) -> None:
        noted.append((time.monotonic(), text))
        time.sleep(60)  # a disk that does not answer

    with world.noting_stalls(note):
        if comm.rank == comm.size - 1:
            time.sleep(3.0)
        world.main.barrier()
    told = comm.allgather((len(noted), len(ended)))
    parallel_assert(told == [(1, 1)] + [(0, 0)] * (comm.size - 1), msg=str(told))
    right = True
    if comm.rank == 0:
        right = (
            noted[0][1].startswith("stalled past run.stall_abort_s = 0.8, the job is ended: no progress for ")
            and f"Waiting for rank {comm.size - 1}." in noted[0][1]
            and 0.4 <= ended[0][0] - noted[0][0] < 1.0
            and ended[0][1] == ("", ExitCodes.ERROR)
        )
    parallel_assert(comm.bcast(right), msg=f"{noted} {ended}")
    world.close()


@pytest.mark.parallel([1, 2])
def test_no_watch_where_nothing_can_stall(monkeypatch) -> None:
    comm = MPI.COMM_WORLD
    world = World(comm, lambda host_of: assign_roles(host_of, mode="fused"), StallLimits(0.0, 0.0))
    parallel_assert(world._watch is None)
    world.close()
    world = World(comm, lambda host_of: assign_roles(host_of, mode="fused"), StallLimits(0.5, 0.0))
    parallel_assert((world._watch is None) == (comm.size == 1))
    thread = None if world._watch is None else world._watch._thread
    world.close()
    if comm.size > 1:
        dropped = StallWatch(comm, Progress(), {}, StallLimits(0.5, 0.0))
        thread = dropped._thread
        del dropped
        thread.join(timeout=5)
    parallel_assert(thread is None or not thread.is_alive())


STALLED = """
    import torch
    from hpcrec.comm.stall import StallLimits
    from hpcrec.comm.topology import assign_roles
    from hpcrec.comm.world import World
    mode = {mode!r}
    roles = dict(mode="fused") if mode == "fused" else dict(mode="split", owners=1)
    parts = World(world, lambda host_of: assign_roles(host_of, **roles), StallLimits(0.6, {abort_s}))
    parts.progress.step = 41
    parts.main.allreduce(torch.ones(2).numpy(), "gradients")
    {before}
    ready()
    {stalled}
    {after}
    time.sleep(60)
"""
HOROVOD = """
    from hpcrec.dense.horovod import HorovodAllreduce
    if parts.dense is not None:
        allreduce = HorovodAllreduce(parts.dense)
        flat = torch.ones(10)
        allreduce.wait(allreduce.start(flat, "x"))
"""
IN_DENSE = """
    if parts.dense is not None:
        allreduce.wait(allreduce.start(flat, "x"))
    else:
        parts.main.allreduce(torch.ones(2).numpy(), "values")
"""
VALUES = "parts.main.allreduce(torch.ones(2).numpy(), 'values')"
ASLEEP = "if world.rank == 2: time.sleep(60)"
CASES = {  # roles, set-up, who stalls, what the others wait in, its tag and communicator, the rank missing, who waits
    "asleep": ("fused", "", ASLEEP, "parts.main.barrier()", "control", "main", 2, "ranks 0, 1"),
    "in the dense reduction": ("split", HOROVOD, ASLEEP, IN_DENSE, "dense", "dense", 2, "rank 1"),
    "stopped": ("fused", "", "", VALUES, "values", "main", 1, "ranks 0, 2"),
    "the first rank stopped": ("fused", "", "", VALUES, "values", "main", 0, "ranks 1, 2"),
}
MARKS = {
    "asleep": [pytest.mark.slow],
    "the first rank stopped": [pytest.mark.slow],
    "in the dense reduction": [needs_horovod],
}


@pytest.mark.parametrize("case", [pytest.param(case, marks=MARKS.get(case, [])) for case in CASES])
def test_past_the_second_limit_the_job_ends_and_names_who_is_missing(tmp_path, case) -> None:
    mode, before, stalled, after, tag, lane, missing, waiting = CASES[case]
    if "stopped" in case:
        stalled = f"if world.rank == {missing}: os.kill(os.getpid(), {int(signal.SIGSTOP)})"
    abort_s = 6.0 if missing == 0 else 3.0  # a first rank that does not answer is asked, and waited for, twice
    body = STALLED.format(mode=mode, before=before, stalled=stalled, after=after, abort_s=abort_s)
    ended = Job(tmp_path, body).end(limit_s=abort_s + 2 * 2.6 + 5.0)  # two waits for an answer at most, and the end
    parts = [ExitCodes.ERROR]
    if "MPICH" in MPI.Get_library_version():  # whose mpirun ors what all ranks ended with
        # Its ranks leave an aborted job by exit handlers, where Horovod's thread cannot join itself: C++ ends it by 6.
        horovod = case == "in the dense reduction"
        parts += [signal.SIGABRT] if horovod else []
        parts += [signal.SIGKILL] if horovod or "stopped" in case else []  # of a rank that does not leave by itself
    codes = {functools.reduce(operator.or_, some) for n in range(len(parts)) for some in combinations(parts, n + 1)}
    assert ended.code in codes, ended.err
    assert ended.err.count("hpcrec: stall: no progress") == 1, ended.err
    said = f"hpcrec: error: stalled past run.stall_abort_s = {abort_s:g}, the job is ended"
    assert ended.err.count(said) == 1, ended.err
    wait = rf"step 41, collective '{tag}' on communicator '{lane}': {waiting} waited [\d.]+ s for rank {missing}\n"
    for part in ended.err.split(said):
        assert f"Waiting for rank {missing}." in part
        assert re.search(wait, part), part
    if "stopped" in case:
        assert f"rank {missing} does not answer" in ended.err
    else:
        assert f"hpcrec: stacks of rank {missing}:" in ended.err and "time.sleep(60)" in ended.err
