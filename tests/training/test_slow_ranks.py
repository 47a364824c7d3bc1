"""Slow ranks are named, by role, host and how slow; healthy ones are not, whatever noise and unequal work there is."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.comm.progress import Lane, Waiting, working_time
from hpcrec.exchange.exchange import Exchange
from hpcrec.launcher import status
from hpcrec.training import slow_ranks, work
from hpcrec.training.session import Session
from hpcrec.training.slow_ranks import LIMIT, LINES, MIN_S, SlowRank, SlowRanks, describe
from hpcrec.training.telemetry import read_metrics
from tests.cost import times_a_plain_block
from tests.counts import share_of
from tests.training.runs import config_for, write_data

OWNER, DENSE = "owner", "dense rank"


def watch(*roles: str) -> SlowRanks:
    return SlowRanks(roles, [f"node{rank}" for rank in range(len(roles))])


def given(*counts: float) -> np.ndarray:
    return np.array(counts, np.float64)[:, None]


def test_a_rank_at_half_speed_is_found_once_and_again_after_it_was_well() -> None:
    found = watch(OWNER, OWNER, OWNER, DENSE, DENSE)
    well, ill = np.array([2.0, 2.0, 2.0, 9.0, 9.0]), np.array([2.0, 4.0, 2.0, 9.0, 9.0])
    work_RK = given(100, 100, 100, 64, 64)
    told = [found.add(ill, work_RK) for _ in range(LINES + 3)]
    one = SlowRank(1, "node1", OWNER, 2.0, LINES + 3)
    assert [len(new) for new in told] == [0] * (LINES - 1) + [1] + [0] * 3
    assert found.now == found.found == [one] and told[LINES - 1] == [one]
    said = one.report(40)
    assert said.startswith(
        "hpcrec: slow: rank 1 on node1 (owner): 2.0 times the median of its role for its work, in 11 "
    )
    assert "up to step 40" in said
    for _ in range(LINES - 1):
        assert found.add(well, work_RK) == [] and [of.rank for of in found.now] == [1]
    found.add(ill, work_RK)  # not yet well: it has to be for as many lines in a row
    for _ in range(LINES - 1):
        assert found.add(well, work_RK) == [] and [of.rank for of in found.now] == [1]
    assert found.add(well, work_RK) == [] and found.now == []
    assert found.found == [SlowRank(1, "node1", OWNER, 2.0, LINES + 4)]
    told = [found.add(np.array([2.0, 6.0, 2.0, 9.0, 9.0]), work_RK) for _ in range(LINES)]
    assert [len(new) for new in told] == [0] * (LINES - 1) + [1]
    assert found.now[0].lines == 2 * LINES + 4
    assert found.now[0].ratio == pytest.approx((2.0 * (LINES + 4) + 3.0 * LINES) / (2 * LINES + 4))


def test_lines_that_are_not_in_a_row_say_nothing() -> None:
    found = watch(*[DENSE] * 4)
    for _ in range(100):
        for line in range(LINES):
            seconds_R = np.array([2.0, 2.0, 2.0, 2.0 if line == 0 else 20.0])
            assert found.add(seconds_R, given(1, 1, 1, 1)) == []
    assert found.found == []


def test_short_lines_are_judged_together() -> None:
    found, n = watch(DENSE, DENSE, DENSE), 0
    line_s = MIN_S / 7
    while not found.add(np.array([1.0, 1.0, 2.0]) * line_s * 1.0001, given(1, 1, 1)):
        n += 1
    assert n + 1 == 7 * LINES and found.found == [SlowRank(2, "node2", DENSE, 2.0, 7 * LINES)]


def test_roles_are_judged_by_themselves_and_a_rank_alone_is_not() -> None:
    found = watch(OWNER, DENSE, DENSE)
    for _ in range(3 * LINES):  # an owner that takes ten times as long as dense ranks has its reason
        assert found.add(np.array([20.0, 2.0, 2.0]), np.array([[900.0, 0], [0, 64], [0, 64]])) == []
    for _ in range(LINES):
        new = found.add(np.array([20.0, 2.0, 3.2]), np.array([[900.0, 0], [0, 64], [0, 64]]))
    assert new == [SlowRank(2, "node2", DENSE, pytest.approx(1.6), LINES)]


@pytest.mark.parametrize(
    ("seconds", "counts"),
    [
        ([4.0, 2.0, 2.0], [[200, 10], [100, 10], [100, 10]]),  # twice the rows, all of the time for them
        ([2.0, 2.0, 2.0], [[100, 10], [400, 10], [400, 10]]),  # little to do, all of the time for the step itself
        ([5.0, 2.0, 2.0], [[100, 30], [100, 10], [100, 10]]),  # three times the bytes for as many rows
        ([9.0, 2.0, 2.0], [[100, 1], [100, 0], [100, 0]]),  # it alone has something of a kind
    ],
)
def test_more_work_is_not_slowness_and_slowness_is_seen_beside_it(seconds, counts) -> None:
    roles, work_RK = [OWNER] * len(seconds), np.array(counts, np.float64)
    found = watch(*roles)
    for _ in range(10 * LINES):
        assert found.add(np.array(seconds), work_RK) == []
    for _ in range(LINES):
        new = found.add(np.array([*seconds[:-1], 2.5 * seconds[-1] * max(seconds) / 2]), work_RK)
    assert [one.rank for one in new] == [len(seconds) - 1]


def test_what_others_do_one_half_of_each_is_not_held_against_the_middle_of_them() -> None:
    found, work_RK = watch(*[OWNER] * 5), np.array([[10.0, 10], [10, 0], [10, 0], [0, 10], [0, 10]])
    for _ in range(10 * LINES):
        assert found.add(np.array([4.0, 2.0, 2.0, 2.0, 2.0]), work_RK) == []


def lines_of(rng: np.random.Generator, n: int, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Lines of a run whose ranks are alike: a cost of each step, one of the work, heavy tails, common drift."""
    drift, fixed = 0.0, rng.uniform(0.2, 0.8)
    for _ in range(n):
        drift = 0.98 * drift + 0.05 * rng.standard_normal()
        work_R = counts * rng.uniform(0.95, 1.05, len(counts))
        noise_R = rng.lognormal(0.0, 0.25, len(counts))
        noise_R[rng.random(len(counts)) < 0.02] *= 3.0
        yield 2.0 * np.exp(drift) * noise_R * (fixed + (1 - fixed) * work_R / counts.mean()), work_R[:, None]


@pytest.mark.parametrize("ranks", [2, 3, 8, 100])
def test_healthy_ranks_are_not_named_in_1000_lines_and_one_at_half_speed_is(ranks) -> None:
    needed = list[int]()
    for seed in range(2 if ranks == 100 else 8):
        rng = np.random.default_rng(seed)
        counts = rng.uniform(500, 2000, ranks)  # some are given four times what others are
        found = watch(*[OWNER] * ranks)
        for seconds_R, work_RK in lines_of(rng, 1000, counts):
            assert found.add(seconds_R, work_RK) == [], f"seed {seed}"
        ill = int(rng.integers(ranks))
        counts = np.full(ranks, 1000.0)
        for n, (seconds_R, work_RK) in enumerate(lines_of(rng, 1000, counts), start=1):
            seconds_R[ill] *= 2.0
            if found.add(seconds_R, work_RK):
                needed.append(n)
                break
        assert [one.rank for one in found.found] == [ill], f"seed {seed}"
    assert np.median(needed) < 4 * LINES and max(needed) < 25 * LINES


def test_of_many_ranks_a_line_costs_little() -> None:
    found, rng = watch(*[OWNER, DENSE] * 2000), np.random.default_rng(0)
    seconds_R, work_RK = rng.uniform(2, 3, 4000), rng.uniform(50, 60, (4000, 7))
    seconds_R[17] = 9.0
    best_s = 9.0
    for _ in range(LINES):
        began_s = time.perf_counter()
        new = found.add(seconds_R, work_RK)
        best_s = min(best_s, time.perf_counter() - began_s)
    assert [one.rank for one in new] == [17] and new[0].ratio > LIMIT and best_s < 0.5


def test_the_clock_of_a_thread_stands_still_where_it_waits() -> None:
    lane, other = Lane("main", (0, 1)), Lane("route", (0, 1))
    began_s, wall_s = working_time(), time.monotonic()
    with lane.inside("ids"):
        time.sleep(0.05)
    with Waiting():
        with other.inside("ids"):
            time.sleep(0.05)
        time.sleep(0.05)
    thread = threading.Thread(target=lambda: lane.inside("ids") and time.sleep(0.05))  # another one's wait
    thread.start()
    thread.join()
    lane.works("checkpoint")
    time.sleep(0.05)
    lane.rests()
    worked_s, wall_s = working_time() - began_s, time.monotonic() - wall_s
    assert worked_s == pytest.approx(wall_s - 0.15, abs=0.04) and worked_s >= 0.1


def test_the_clock_costs_little() -> None:
    @contextmanager
    def block() -> Iterator[None]:
        with Waiting():
            working_time()
            yield

    assert times_a_plain_block(block) < 40  # 6 on an idle core


def test_status_names_them_while_the_run_goes_on_and_afterwards(tmp_path: Path) -> None:
    one = asdict(SlowRank(3, "node7", OWNER, 2.04, 250))
    said = "slow              rank 3 on node7 (owner): 2.0 times the median of its role for its work"
    (tmp_path / "config.toml").write_text("[train]\nsteps = 1000\n")
    metrics = [
        {"step": 50, "time": 1.0, "loss": 0.6, "slow_ranks": [one]},
        {"step": 50, "time": 1.0, "validation_auc": 0.6},
    ]

    def write(*lines: dict[str, object]) -> None:
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    write(*metrics)
    assert status.status_of(tmp_path).slow_ranks == [one] and said in status.lines(tmp_path)
    assert json.loads(status.as_json(tmp_path))["slow_ranks"] == [one]
    write(*metrics, {"step": 100, "time": 2.0, "loss": 0.6})  # it is well again
    assert status.status_of(tmp_path).slow_ranks == [] and not any("slow" in x for x in status.lines(tmp_path))
    (tmp_path / "summary.json").write_text(json.dumps({"status": "finished", "steps": 1000, "slow_ranks": [one]}))
    assert said in status.lines(tmp_path)
    (tmp_path / "summary.json").unlink()
    for odd in ("rank 3", [{"rank": 3}], [3], [{**one, "ratio": "two"}]):
        write({"step": 100, "time": 2.0, "loss": 0.6, "slow_ranks": odd})
        assert status.status_of(tmp_path).slow_ranks == []


# ---- Real ranks ------------------------------------------------------------------------------------------------------

TOPOLOGIES = {
    "fused": {"mode": "fused"},
    "split": {"mode": "split", "owners": 1},
    "owners": {"mode": "split", "owners": 2},
}


def halved(monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> None:
    """This rank takes twice as long in that method, waits left out."""
    whole = getattr(where, name)

    def half(*given, **named):
        began_s = working_time()
        result = whole(*given, **named)
        time.sleep(working_time() - began_s)
        return result

    monkeypatch.setattr(where, name, half)


def trained(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    steps: int,
    slow: int | None = None,
    min_s: float = 0.1,
    **sizes: int,
) -> tuple[Path, list[str]]:
    """Trains on all ranks, one of them at half speed, until one is named; run folder, and what rank 0 said of it."""
    said, folder = list[str](), Path(MPI.COMM_WORLD.bcast(str(folder)))

    def say(text: str) -> None:
        said.append(text)
        signal.raise_signal(signal.SIGUSR1)  # the rest of the run would show nothing more

    write_data(folder / "data.h5", samples=2000)
    monkeypatch.setattr(slow_ranks, "MIN_S", min_s)
    monkeypatch.setattr(work, "say", say)
    if MPI.COMM_WORLD.rank == slow:
        halved(monkeypatch, Session, "run_step")
        halved(monkeypatch, Exchange, "route")
    tables = {name: {"shard": "row"} for name in ("user", "item", "tag")}  # owners are given equal work
    commands.train(
        config_for(folder, train={"steps": steps, **sizes}, topology=TOPOLOGIES[kind], embedding={"tables": tables})
    )
    return folder / "run", MPI.COMM_WORLD.bcast(said)


@pytest.mark.parallel([4])
@pytest.mark.parametrize(
    ("kind", "slow", "role"),
    [
        pytest.param("fused", 2, "owner and dense rank", marks=pytest.mark.slow),
        pytest.param("split", 3, DENSE, marks=pytest.mark.slow),
        ("owners", 1, OWNER),
    ],
)
def test_a_real_rank_at_half_speed_is_named(tmp_path, monkeypatch, kind, slow, role) -> None:
    run, said = trained(tmp_path, monkeypatch, kind, 5000, slow, batch_size=128, log_every=5)
    host = socket.gethostname()
    told = [text[: text.index(":", 14)] for text in said]
    parallel_assert(told == [f"hpcrec: slow: rank {slow} on {host} ({role})"], msg=str(said))
    (found,) = json.loads((run / "summary.json").read_text())["slow_ranks"]
    parallel_assert((found["rank"], found["host"], found["role"]) == (slow, host, role), msg=str(found))
    parallel_assert(LIMIT < found["ratio"] < 3.5 and found["lines"] >= LINES, msg=str(found))
    logged = [line.get("slow_ranks", []) for line in read_metrics(run)]
    first = next(n for n, line in enumerate(logged) if line)
    parallel_assert(all([one["rank"] for one in line] == [slow] for line in logged[first:]), msg=str(logged))
    named = f"slow              {describe(found)}"
    shown = status.lines(run)
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        (run / "summary.json").unlink()  # as while it goes on
    MPI.COMM_WORLD.Barrier()
    parallel_assert(named in shown and named in status.lines(run), msg=str(shown))
    parallel_assert(describe(found) in (run / "report.html").read_text())


@pytest.mark.parallel([4])
@pytest.mark.parametrize("kind", ["fused", *(pytest.param(k, marks=pytest.mark.slow) for k in ("split", "owners"))])
def test_of_healthy_real_ranks_none_is_named(tmp_path, monkeypatch, kind) -> None:
    run, said = trained(tmp_path, monkeypatch, kind, 200, batch_size=128, log_every=5)
    found = json.loads((run / "summary.json").read_text())["slow_ranks"]
    named = [line for line in read_metrics(run) if "slow_ranks" in line]
    parallel_assert(said == found == named == [] and not any("slow" in x for x in status.lines(run)), msg=str(said))


@pytest.mark.slow
@pytest.mark.parallel([4])
@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_in_1000_lines_of_healthy_real_ranks_none_is_named(tmp_path, monkeypatch, kind) -> None:
    wanted = share_of(1000)
    run, said = trained(tmp_path, monkeypatch, kind, wanted, batch_size=64, log_every=1)
    lines = read_metrics(run)
    parallel_assert(
        len(lines) == wanted and not any("slow_ranks" in line for line in lines) and not said, msg=str(said)
    )


@pytest.mark.slow
@pytest.mark.parallel([4])
@pytest.mark.timeout(3500)
def test_in_1000_judgements_of_healthy_real_ranks_none_is_named_as_it_is_set_in_use(tmp_path, monkeypatch) -> None:
    """Of each role; each is of as many lines as have a second's work. The run ends at the last role's last."""
    wanted = share_of(1000)
    judged, begin = dict[int, int](), slow_ranks._Role.begin

    def counted(role) -> None:
        begin(role)
        judged[id(role)] = judged.get(id(role), -1) + 1  # it begins once before a line
        if len(judged) == 2 and judged[id(role)] == min(judged.values()) == wanted:
            signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(slow_ranks._Role, "begin", counted)
    run, said = trained(tmp_path, monkeypatch, "owners", 1_000_000, min_s=MIN_S, batch_size=128, log_every=10)
    n = MPI.COMM_WORLD.bcast(min(judged.values()))
    summary = json.loads((run / "summary.json").read_text())
    parallel_assert(summary["status"] == "stopped" and n >= wanted, msg=f"{n} judgements, {summary['status']}")
    parallel_assert(not said and summary["slow_ranks"] == [], msg=str(said))
