"""Policy ``cached`` with a rank that stops, and with one that is slow: who waits, what is said of it, and the bits."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.comm import stall
from hpcrec.comm.topology import Topology
from hpcrec.config import Config
from hpcrec.training.session import Session, Step
from tests.policy.test_cached import as_rows, cached
from tests.policy.test_hybrid import config_of, results, same_bits, trained
from tests.together import on_every_rank
from tests.training.runs import write_data

COMM = MPI.COMM_WORLD
STOP_S, WAITS_S, REPORT_S = 2.0, 1.5, 0.7  # who waits does so for WAITS_S at least
IN_MODEL, IN_ANSWER = 2, 4  # steps in which a dense rank stops between its rows and its gradients, and an owner
STEPS = 6
ROLES = {3: ({"mode": "split", "owners": 1}, {"mode": "fused"}), 4: ({"mode": "split"}, {"mode": "fused"})}


class Stops:
    """Runs steps in two of which a rank stops; keeps each step's seconds by phase.

    Attributes
    ----------
    phases : list of dict of str to float
        By step, this rank's.
    """

    def __init__(self, session: Session) -> None:
        self._session, self.phases = session, list[dict[str, float]]()
        topology = session.topology
        self.dense, self.owner = topology.dense[-1], topology.owners[0]
        owner_side = session.parts.exchange._owner_side
        if owner_side is not None and topology.rank == self.owner:
            answer = owner_side.answer

            def late(*given: Any) -> Any:
                if session.step == IN_ANSWER:
                    time.sleep(STOP_S)
                return answer(*given)

            owner_side.answer = late  # type: ignore[method-assign]

    def run(self, step: Step) -> float:
        before = self._session.parts.timer.seconds()
        loss = step.run(self._losses)
        after = self._session.parts.timer.seconds()
        self.phases.append({name: s - before.get(name, 0.0) for name, s in after.items()})
        return loss

    def _losses(self, inputs: Any, samples: Any) -> torch.Tensor:
        session = self._session
        if session.step == IN_MODEL and session.topology.rank == self.dense:
            time.sleep(STOP_S)
        return session.default_losses(inputs, samples)


def stopped(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[list[dict[str, float]]], Topology]:
    """What was learned, all ranks' seconds by phase and step, and who is what; asserts what the watch has said."""
    said: list[str] = []
    monkeypatch.setattr(stall, "say", said.append)
    with open_session(config) as session:
        stops = Stops(session)
        for step in session.steps():
            stops.run(step)
        found = results(session)
        roles = {rank: _role(session, rank) for rank in (stops.dense, stops.owner)}
    reports = [text for of in COMM.allgather(said) for text in of]
    with on_every_rank():
        for rank, at in ((stops.dense, IN_MODEL), (stops.owner, IN_ANSWER)):
            mine = [text for text in reports if f"step {at}, collective" in text]
            assert mine, (rank, at, reports)  # a busy machine may be late to end the wait: then there are more
            assert f"Waiting for rank {rank}." in mine[0].splitlines()[0], mine[0]
            assert f"rank {rank} on " in mine[0] and f"({roles[rank]}): step {at}, in no collective for" in mine[0]
            assert "test_cached_stalls.py" in mine[0], mine[0]
    return found, COMM.allgather(stops.phases), session.topology


def _role(session: Session, rank: int) -> str:
    dense, owner = rank in session.topology.dense, rank in session.topology.owners
    return "owner and dense rank" if dense and owner else "dense rank" if dense else "owner"


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("mode", [0, 1], ids=["split", "fused"])
def test_others_wait_where_the_schedule_says(mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the step itself, in one place each: copies let nobody go on without the others. Nobody dies, no bit changes.

    A dense rank that stops in its model holds the other ones where they agree on the step, and owners where gradients
    come; an owner that stops before it has answered holds all others where values come.
    """
    write_data(folder / "data.h5")
    run = {"stall_report_s": REPORT_S, "stall_abort_s": 60.0, "folder": str(folder / "run")}
    config = config_of(folder, None, "rows", "sgd", topology=ROLES[COMM.size][mode], train={"steps": STEPS}, run=run)
    expected = trained(cached(config, 2, 9))
    expected.pop("losses")
    found, phases, topology = stopped(cached(config, 2, 9), monkeypatch)
    same_bits(found, expected, config.topology)
    with on_every_rank():
        for rank, of in enumerate(phases):
            if rank != topology.dense[-1]:
                waits(of[IN_MODEL], "agree" if rank in topology.dense else "gradients", rank)
            if rank != topology.owners[0]:
                waits(of[IN_ANSWER], "values", rank)


def waits(phases: dict[str, float], where: str, rank: int) -> None:
    """The longest of what a rank may wait in is that, and as long as another has stopped."""
    may = {name: phases.get(name, 0.0) for name in ("route_wait", "gather", "values", "agree", "gradients")}
    assert may[where] > WAITS_S and max(may, key=may.__getitem__) == where, (rank, where, may)


@pytest.mark.parallel([3])
def test_the_same_is_said_under_sync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the watch names under ``cached`` whom it names without."""
    write_data(folder / "data.h5")
    run = {"stall_report_s": REPORT_S, "stall_abort_s": 60.0}
    stopped(as_rows(config_of(folder, None, "rows", "sgd", train={"steps": STEPS}, run=run)), monkeypatch)


def one_slow(rank: int, most_s: float) -> Callable[[Session, Step], None]:
    """Makes one rank wait before each step, route, read and update, as long as chance has it, and no other."""
    chance = random.Random()

    def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*given: Any, **named: Any) -> Any:
            time.sleep(chance.uniform(0, most_s))
            return call(*given, **named)

        return wait

    def before(session: Session, step: Step) -> None:
        if session.topology.rank != rank:
            return
        if step.number == 0:
            exchange = session.parts.pipeline.exchange
            for name in ("route", "read", "learn"):
                setattr(exchange, name, waiting(getattr(exchange, name)))
        time.sleep(chance.uniform(0, most_s))

    return before


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_one_slow_rank_changes_no_bit(folder: Path) -> None:
    """By up to 50 ms at each turn, whatever it is: an owner, a dense rank or both."""
    write_data(folder / "data.h5")
    for number, mode in enumerate(({"mode": "split"}, {"mode": "fused"})):
        more = {"topology": mode, "train": {"steps": 7}, "checkpoint": {"every": 5}}
        config = config_of(folder, None, "rows", ("rowwise_adagrad", "adagrad")[number], **more)
        config = cached(config, 3, 9, cache=("lru", "lfu")[number], max_age=3)
        expected = trained(config)
        for rank in (0, COMM.size - 1)[number:]:
            same_bits(trained(config, one_slow(rank, 0.05)), expected, (mode, rank))
