"""Ranks that are steps apart under policy ``hybrid``: lines of metrics do not hold them, a rank that stops does."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.checkpoint.files import step_folder
from hpcrec.config import Config
from hpcrec.training.lines import Lines
from hpcrec.training.telemetry import read_metrics
from hpcrec.training.work import MEASURED
from tests.policy.reference import hybrid
from tests.policy.test_hybrid import config_of
from tests.policy.test_hybrid_stores import dynamic_of
from tests.together import on_every_rank
from tests.training import dynamic_runs
from tests.training.runs import write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_nonfinite import SKIP, spoil

COMM = MPI.COMM_WORLD
STEPS, EVERY = 9, 2


def bits_of(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what is measured."""
    return {key: value for key, value in line.items() if key not in (*MEASURED, "time")}


def told(
    config: Config, naps: random.Random | None, left_out: Sequence[int] = (), resumes: bool = False
) -> tuple[list[tuple[int, dict[str, Any]]], int, int]:
    """Lines of a run, the bytes that all ranks have sent in it, and those that no line tells of.

    Batches of the steps ``left_out`` are not finite. One that ``resumes`` goes on from its last checkpoint.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    telemetry = SimpleNamespace(log=lambda step, values: found.append((step, values)))
    with open_session(config) as session:
        ledger, main = session.parts.world.ledger, session.parts.world.main
        if resumes:
            state.load(session, find_checkpoint(Path(config.run.folder), "last", main), resume=True)
        lines, before = Lines(session, EVERY), ledger.total_bytes()
        lines.begin(telemetry)  # type: ignore[arg-type]
        lines.begin_step()
        for step in session.steps():
            if naps is not None:
                time.sleep(0.02 * naps.random())
            if step.number in left_out:
                spoil(session, step)
            loss = step.run()
            lines.end_step(step)
            lines.write(loss)
            lines.begin_step()
        lines.settle()
        mine = [ledger.total_bytes() - before, ledger.take(STEPS // EVERY)]
        sent, left = COMM.allreduce(np.array(mine))
    return found, int(sent), int(left)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("tau", [None, 1, 3])
def test_lines_are_of_their_steps_at_any_speed(tau: int | None, folder: Path) -> None:
    """Bytes are those of the steps, whenever they were sent; figures of dynamic tables those after the step."""
    dynamic_runs.write_data(folder / "data.h5")
    for roles in roles_for(COMM.size)[-2:]:
        config = dynamic_of(folder, tau, "lru", roles, train={"steps": STEPS, "log_every": EVERY})
        found, sent, left = told(config, None)
        again = told(config, random.Random(COMM.rank))[0]
        with on_every_rank():
            assert [step for step, _ in found] == [2, 4, 6, 8]
            for (_, line), (_, other) in zip(found, again, strict=True):
                assert bits_of(line) == bits_of(other)
                assert line["loss"] > 0 and line["user.rows"] > 0
                assert ("read_age" in line) == (tau is not None)
            assert EVERY * sum(line["wire_bytes_per_step"] for _, line in found) + left == sent
            assert (sent > left > 0) == (COMM.size > 1)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("policy", [hybrid(2), {"name": "ahead"}], ids=["hybrid", "ahead"])
def test_lines_of_steps_left_out_are_in_their_place(policy: dict[str, Any], folder: Path) -> None:
    write_data(folder / "data.h5")
    train = {**SKIP, "steps": STEPS, "log_every": EVERY}
    config = config_of(folder, None, "rows", policy=policy, train=train)
    found, sent, left = told(config, None, left_out=(2, 5, 6))
    again = told(config, random.Random(COMM.rank), left_out=(2, 5, 6))[0]
    with on_every_rank():
        assert [(step, line["skipped_steps"]) for step, line in found] == [
            (2, 0),
            (3, 1),
            (4, 1),
            (6, 2),
            (7, 3),
            (8, 3),
        ]
        whole = [line for _, line in found if "loss" in line]
        assert EVERY * sum(line["wire_bytes_per_step"] for line in whole) + left == sent
        for (_, line), (_, other) in zip(found, again, strict=True):
            assert str(bits_of(line)) == str(bits_of(other))  # nan is nan


@pytest.mark.parallel([1, 2, 3])
def test_lines_of_a_run_that_goes_on_in_the_midst_of_one(folder: Path) -> None:
    """Bytes are a mean over the steps since."""
    write_data(folder / "data.h5")
    more: dict[str, Any] = {"checkpoint": {"every": 5}, "train": {"steps": STEPS, "log_every": EVERY}}
    config = config_of(folder, 2, "pooled", **more)
    assert commands.train(config) == 0
    if COMM.rank == 0:
        shutil.rmtree(step_folder(folder / "run", STEPS))
    COMM.barrier()
    whole = [line for line in read_metrics(folder / "run") if "loss" in line]
    found, sent, left = told(config, None, resumes=True)
    with on_every_rank():
        assert [step for step, _ in found] == [6, 8]
        for (step, line), other in zip(found, whole[-2:], strict=True):
            assert (line["loss"], line["read_age"], step) == (other["loss"], other["read_age"], other["step"])
        assert sum(n * line["wire_bytes_per_step"] for n, (_, line) in zip((1, 2), found, strict=True)) + left == sent


def stopped_run(config: Config, who: str, at: int, stop_s: float) -> dict[int, list[float]]:
    """When each rank had done each of its steps, from when a rank stopped for so long before step ``at``, by rank.

    All that the others can do with what it has given them they have done by then.
    """
    ended_s, stopped_s = [], 0.0
    with open_session(config) as session:
        topology, telemetry = session.topology, SimpleNamespace(log=lambda step, values: None)
        lines = Lines(session, 1)
        lines.begin(telemetry)  # type: ignore[arg-type]
        stops = topology.rank == (topology.owners[0] if who == "owner" else topology.dense[-1])
        lines.begin_step()
        for step in session.steps():
            if stops and step.number == at:
                time.sleep(0.5)
                pid, stopped_s = os.getpid(), time.monotonic()
                with subprocess.Popen(["sh", "-c", f"sleep {stop_s}; kill -CONT {pid}"]):
                    os.kill(pid, signal.SIGSTOP)
            loss = step.run()
            lines.end_step(step)
            lines.write(loss)
            ended_s.append(time.monotonic())
            lines.begin_step()
        lines.settle()
        stopped_s = COMM.allreduce(stopped_s)
        return dict(enumerate(COMM.allgather([at_s - stopped_s for at_s in ended_s])))


@pytest.mark.parallel([3])
@pytest.mark.parametrize("who", ["owner", "dense rank"])
@pytest.mark.parametrize("tau", [2, 4])
def test_others_go_on_for_as_many_steps_as_the_bound_allows(who: str, tau: int, folder: Path) -> None:
    """By when their steps ended. Every step has a line of metrics, which holds nobody."""
    write_data(folder / "data.h5")
    at, stop_s = 6, 2.0
    run = {"train": {"steps": 16, "log_every": 1}, "run": {"folder": str(folder / "run"), "stall_report_s": 10.0}}
    config = config_of(folder, tau, "pooled", topology={"mode": "split", "owners": 1}, **run)
    ended_s = stopped_run(config, who, at, stop_s)
    with open_session(config) as session:
        topology = session.topology
    others = [r for r in topology.dense if who == "owner" or r != topology.dense[-1]]
    done = {r: sum(s < stop_s for s in ended_s[r]) for r in others}
    with on_every_rank():
        assert all(len(of) == 16 for of in ended_s.values())
        # rows of which an owner's updates up to step ``at`` are in are read for tau steps more; dense sums wait at once
        assert done == dict.fromkeys(others, at + tau + 1 if who == "owner" else at), json.dumps(ended_s)
        assert all(ended_s[r][at + tau] < 0.5 for r in others if who == "owner")
