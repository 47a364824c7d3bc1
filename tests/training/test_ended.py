"""The end of a run says why training ended, and of which data and weights its metrics are: everywhere it is told."""

import json
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.comm.failure import watch
from hpcrec.launcher import status
from hpcrec.training.ended import TIME_LIMIT, ended_words, evaluated_words, metrics_of, metrics_words
from hpcrec.training.session import Session
from tests.training.runs import config_for, write_data

NEVER_BETTER = 9.0  # an AUC never rises by so much: the first evaluation is the best


def run(folder: Path, **train: Any) -> tuple[dict[str, Any], list[str], str]:
    """What a run's summary.json, status and report.html say."""
    data = str(folder / "data.h5")
    config = config_for(
        folder,
        data={"train": data, "validation": data, "test": data},
        train={"steps": 9, "eval_every": 2, **train},
        checkpoint={"resume": "never"},
    )
    commands.train(config)
    MPI.COMM_WORLD.Barrier()
    where = folder / "run"
    return json.loads((where / "summary.json").read_text()), status.lines(where), (where / "report.html").read_text()


@pytest.mark.parallel([2])
def test_a_run_that_stops_early_says_so_and_what_its_metrics_are_of(folder: Path, capfd: Any) -> None:
    write_data(folder / "data.h5")
    told, shown, page = run(folder, early_stop={"patience": 2, "min_delta": NEVER_BETTER})
    said = MPI.COMM_WORLD.bcast(capfd.readouterr().out)
    wanted = {"by": "early stop", "total_steps": 9, "metric": "auc", "evaluations": 2}
    parallel_assert((told["steps"], told["ended"]) == (6, wanted), msg=str(told["ended"]))
    of = {name: told["eval"][name] for name in ("split", "checkpoint", "step")}
    parallel_assert(of == {"split": "test", "checkpoint": "best", "step": 2}, msg=str(of))
    why = "early stop: auc did not improve for 2 evaluations, after step 6 of 9"
    auc = f"test auc {told['eval']['auc']:.6g}"
    parallel_assert(f"{'ended':<18}{why}" in shown, msg=str(shown))
    parallel_assert(any(x.startswith(f"{'evaluated':<18}test data, best checkpoint, step 2: {auc}") for x in shown))
    for text in (" ".join(text.split()) for text in (page, said)):  # the screen folds its lines
        parallel_assert(why in text and "test data, best checkpoint, step 2" in text and "test auc" in text, msg=text)
    parallel_assert(status.status_of(folder / "run").ended == wanted)


@pytest.mark.parallel([2])
def test_a_run_to_its_last_step_without_a_best_checkpoint(folder: Path) -> None:
    write_data(folder / "data.h5")
    data = str(folder / "data.h5")
    config = config_for(
        folder,
        data={"train": data, "validation": data},
        train={"steps": 5},
        checkpoint={"resume": "never", "keep_best": False},
    )
    commands.train(config)
    MPI.COMM_WORLD.Barrier()
    told = json.loads((folder / "run/summary.json").read_text())
    parallel_assert(told["ended"] == {"by": "steps", "total_steps": 5})
    parallel_assert(evaluated_words(told["eval"]) == "validation data, last checkpoint, step 5")
    parallel_assert("all steps done, 5 of 5" in " ".join(status.lines(folder / "run")))


@pytest.mark.parallel([2])
@pytest.mark.parametrize(
    ("name", "why"), [("SIGUSR1", "signal SIGUSR1"), (TIME_LIMIT, "time limit of its job")], ids=["signal", "limit"]
)
def test_a_run_that_is_stopped_says_by_what(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str) -> None:
    write_data(folder / "data.h5")
    real = Session.run_step

    def run_step(self: Session, *given: Any) -> float:
        if self.step == 3 and self.topology.rank == 1:  # one rank alone knows of it
            watch().request(name)
        return real(self, *given)

    monkeypatch.setattr(Session, "run_step", run_step)
    told, shown, _ = run(folder)
    step = told["steps"]
    parallel_assert(told["status"] == "stopped" and 3 < step < 9)
    parallel_assert(f"{'ended':<18}{why}, after step {step} of 9" in shown, msg=str(shown))
    parallel_assert(not any(line.startswith("evaluated") for line in shown) and "split" not in told["eval"])


def test_words() -> None:
    early = {"by": "early stop", "total_steps": 316, "metric": "logloss", "evaluations": 1}
    said = "early stop: logloss did not improve for 1 evaluation, after step 273 of 316"
    assert ended_words({"steps": 273, "ended": early}) == said
    assert ended_words({"steps": 7, "ended": {"by": "error", "total_steps": 9}}) == "error, after step 7 of 9"
    assert ended_words({"steps": 7}) is None and evaluated_words({"auc": None}) is None, "of a release before"
    found = {"split": "test", "checkpoint": "last", "step": 9, "auc": [0.5, 0.75], "logloss": {"buy": 0.25}, "x": None}
    assert metrics_of(found) == {"test auc": [0.5, 0.75], "test logloss": {"buy": 0.25}}
    assert metrics_words(found) == "test auc 0.5, 0.75; test logloss buy 0.25"
