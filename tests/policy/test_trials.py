"""``policy.staleness = "auto"``: what is found, by what, and that a run is what it says."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import saved, state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.checkpoint.files import step_folder
from hpcrec.config import load_config
from hpcrec.errors import CheckpointError
from hpcrec.exchange.exchange import Exchange
from hpcrec.policy import trials as seeking
from hpcrec.policy.hybrid import Hybrid, HybridOptions
from hpcrec.policy.trials import STALENESS, Trials
from hpcrec.training.telemetry import read_metrics
from tests.policy.reference import HybridReference
from tests.policy.test_hybrid import config_of, results, same_bits
from tests.together import on_every_rank
from tests.training.runs import global_batches, reference_for, write_data
from tests.training.test_equivalence import roles_for

COMM = MPI.COMM_WORLD
AUTO = {"name": "hybrid", "staleness": "auto"}


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        ([0.01], 1),
        ([0.4, 0.01], 2),
        ([0.4, 0.39], 1),  # no jitter: more is of no use
        ([0.4, 0.3, 0.28], 2),
        ([0.4, 0.3, 0.2, 0.1, 0.05, 0.021, 0.019], 10),
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], 10),
    ],
)
def test_the_smallest_that_does(shares: Sequence[float], found: int) -> None:
    trials = Trials()
    for number, share in enumerate(shares):
        assert not trials.found and trials.staleness == STALENESS[number]
        trials.tell(share, 40 * (number + 1))
    assert trials.found and trials.staleness == found
    policy = Hybrid(HybridOptions(staleness="auto"))
    assert policy.in_flight == 11 and policy.trials is not None
    policy.trials.tell(0.5, 40)
    policy.trials.tell(0.1, 80)
    # what began before a drain point keeps its staleness, whenever it is asked
    assert [policy.version(60, 0), policy.version(60, 40), policy.version(90, 80)] == [59, 58, 87]


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a trial."""
    monkeypatch.setattr("hpcrec.policy.flight.STEPS", 12)
    monkeypatch.setattr("hpcrec.policy.flight.SKIPPED", 2)


def told(shares: Sequence[float]) -> Callable[[Exchange, float], float]:
    """In place of what ranks agree on; what they have measured is looked at."""
    left = list(shares)

    def agreed(exchange: Exchange, number: float) -> float:
        assert 0 <= number < 1
        return left.pop(0)

    return agreed


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parallel([1, 2, 3, 4])
def test_equals_one_process_whatever_is_tried(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each trial has its staleness, and ends at a drain point; what is found holds from there on."""
    write_data(folder / "data.h5")
    for number, roles in enumerate(roles_for(COMM.size)[:2]):
        shares, of = [([0.5, 0.2, 0.01], (1, 2, 3, 3)), ([0.5, 0.49], (1, 2, 1, 1))][number]
        monkeypatch.setattr(Exchange, "most_of_all", told(shares))
        more: dict[str, Any] = {"policy": AUTO, "topology": roles, "checkpoint": {"every": 17}}
        config = config_of(folder, 1, ("pooled", "rows")[number], **more, train={"steps": 48})
        drains = [12, 17, 24, 34, 36][: None if len(shares) == 3 else 4]
        with open_session(config) as session:
            reference, batches = reference_for(session, config), global_batches(session, 48)
            one = HybridReference(reference, 1, drains)
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                one._staleness = of[step.number // 12]
                expected = one.step(batches[step.number])
                with on_every_rank():
                    assert abs(loss - expected) < 1e-12, (step.number, roles)
            found, trials = results(session), session.parts.pipeline.trials
        with on_every_rank():
            assert trials is not None and trials.found and trials.staleness == of[-1]
            for name in reference.tables:
                np.testing.assert_allclose(found[name], reference.rows(name), rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_dense_ranks_that_wait_are_seen_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that take longer than a step are waited for with any staleness; those that take less with none."""
    write_data(folder / "data.h5")
    read = Exchange.read
    # Others use this machine too, and a trial may catch a quiet moment: what is measured is far from both.
    monkeypatch.setattr(seeking, "ENOUGH", 0.2)
    monkeypatch.setattr(seeking, "_LEFT", 0.5)
    for nap_s, step_s, least, most in ((0.03, 0.0, 0.5, 1.0), (0.005, 0.06, 0.0, 0.2)):
        with monkeypatch.context() as patch:

            def slow(exchange: Exchange, *given: Any, nap_s: float = nap_s, **named: Any) -> None:
                time.sleep(nap_s)
                read(exchange, *given, **named)

            patch.setattr(Exchange, "read", slow)
            topology = {"mode": "split", "owners": 1}
            config = config_of(folder, 1, "pooled", policy=AUTO, topology=topology, train={"steps": 40})
            with open_session(config) as session:
                for step in session.steps():
                    time.sleep(step_s)
                    step.run()
                trials = session.parts.pipeline.trials
            with on_every_rank():
                assert trials is not None and trials.found and trials.staleness == 1
                assert least <= trials.shares[1] <= most, trials.shares


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parallel([1, 3])
@pytest.mark.in_turn
def test_what_is_found_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the run's configuration, its checkpoints and metrics; a run that goes on from one does not seek again."""
    write_data(folder / "data.h5")
    monkeypatch.setattr(Exchange, "most_of_all", told([0.5, 0.2, 0.01]))
    more: dict[str, Any] = {"policy": AUTO, "checkpoint": {"every": 40, "keep": 9}, "train": {"steps": 50}}
    whole = config_of(folder, 1, "pooled", **more, run={"folder": str(folder / "whole")})
    assert commands.train(whole) == 0
    run = folder / "whole"
    with on_every_rank():
        assert load_config(run / "config.toml").policy.staleness == 3
        lines = [line for line in read_metrics(run) if "staleness" in line]
        assert [(line["step"], line["staleness"]) for line in lines] == [(37, 3)]
        assert lines[0]["waited_for_rows"] == {"1": 0.5, "2": 0.2, "3": 0.01}
        assert json.loads((step_folder(run, 40) / "state.json").read_text())["staleness"] == 3
        assert json.loads((run / "summary.json").read_text())["drains"]["number"] == 1  # those of trials are no one's
        assert saved.staleness(find_checkpoint(run), STALENESS) == 3
    monkeypatch.setattr(Exchange, "most_of_all", told([]))  # nothing is asked for
    again = config_of(
        folder,
        1,
        "pooled",
        **{**more, "checkpoint": {**more["checkpoint"], "resume": str(step_folder(run, 40))}},
        run={"folder": str(folder / "again")},
    )
    assert commands.train(again) == 0
    with on_every_rank():
        assert load_config(folder / "again" / "config.toml").policy.staleness == 3
        ends = [find_checkpoint(f) for f in (run, folder / "again")]
        states = [{k: v for k, v in end.state.items() if k in ("step", "staleness")} for end in ends]
        assert states[0] == states[1] == {"step": 50, "staleness": 3}
    learned = []
    for config in (whole, again):
        with open_session(config) as session:
            state.load(session, find_checkpoint(Path(config.run.folder), "last", session.parts.world.main), resume=True)
            learned.append(results(session))
    same_bits(learned[1], learned[0])


def test_a_checkpoint_may_be_anybodys(folder: Path) -> None:
    class Made:
        folder, state = Path("there"), {"staleness": 5}

    with pytest.raises(CheckpointError, match=r"staleness is 5. Allowed: one of 1, 2, 3, 4, 6, 8, 10"):
        saved.staleness(Made(), STALENESS)  # type: ignore[arg-type]
