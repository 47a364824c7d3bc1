"""``hpcrec.train`` in this process: what it gives and leaves, errors, interrupts, models that nobody can import."""

import csv
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

import hpcrec
from hpcrec.errors import ConfigError, DataError, HpcrecError, NonFiniteError
from hpcrec.models import block_operators
from hpcrec.preparation.prepare_synthetic import prepare_synthetic
from tests.api.clicks import sections

ROOT = Path(__file__).resolve().parent.parent.parent
Found = TypeVar("Found")


class Noted:
    """A callback that no class of ours is above."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def on_begin(self, step: int) -> None:
        self.said.append(("begin", step, ""))

    def on_step(self, step: int, line: dict[str, Any]) -> None:
        self.said.append(("step", step, line["loss"]))

    def on_evaluation(self, step: int, line: dict[str, Any]) -> None:
        self.said.append(("evaluation", step, line["validation_auc"]))

    def on_checkpoint(self, step: int, folder: Path) -> None:
        assert (folder / "state.json").exists() or any(folder.iterdir())
        self.said.append(("checkpoint", step, folder.name))

    def on_end(self, summary: dict[str, Any]) -> None:
        self.said.append(("end", summary["steps"], summary["status"]))


class OnlyEnd:
    def on_end(self, summary: dict[str, Any]) -> None:
        self.status = summary["status"]


class Interrupting:
    """Presses Ctrl-C after a step."""

    def __init__(self, after: int, number: int = signal.SIGINT, times: int = 1) -> None:
        self._after, self._number, self._times = after, number, times

    def on_step(self, step: int, line: dict[str, Any]) -> None:
        if step == self._after:
            for _ in range(self._times):
                signal.raise_signal(self._number)


class Linear(nn.Module):
    """A model as one writes it in a notebook."""

    def __init__(self, features: Any, n_dense: int, *, width: int, n_labels: int = 1) -> None:
        super().__init__()
        self.operators = block_operators(features, width)
        self.top = nn.Linear(len(features) * width + n_dense, n_labels)

    def forward(self, inputs: Any, dense: torch.Tensor) -> torch.Tensor:
        return self.top(torch.cat([inputs["block"].flatten(1), dense], 1)).squeeze(1)


def test_a_run_tells_of_itself(files: dict[str, str], tmp_path: Path) -> None:
    noted, table = Noted(), hpcrec.CsvLog(tmp_path / "log.csv")
    run = hpcrec.train(callbacks=[noted, table], **sections(files, tmp_path / "run"))
    assert run.status == "finished" and run.folder == tmp_path / "run"
    assert [line["step"] for line in run.history if "loss" in line] == [2, 4, 6]
    assert run.metrics["step"] == 6 and 0 <= run.metrics["auc"] <= 1
    assert run.metrics["auc"] == json.loads((run.folder / "summary.json").read_text())["eval"]["auc"]
    assert run.config["train"]["steps"] == 6 and run.config["policy"]["name"] == "sync"
    kinds = [one[:2] for one in noted.said]
    assert [k for k in kinds if k[0] == "step"] == [("step", 2), ("step", 4), ("step", 6)]
    assert ("checkpoint", 3) in kinds and ("checkpoint", 6) in kinds and ("evaluation", 6) in kinds
    assert noted.said[-1] == ("end", 6, "finished")
    assert [loss for kind, _, loss in noted.said if kind == "step"] == [h["loss"] for h in run.history if "loss" in h]
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[0] == "step,name,value" and f"4,loss,{run.history[1]['loss']}" in rows
    hpcrec.train(run.config, callbacks=[table], run={"folder": tmp_path / "other"})
    assert len((tmp_path / "log.csv").read_text().splitlines()) == len(rows), "what the file held is replaced"


def test_a_csv_file_goes_on_with_its_run(files: dict[str, str], tmp_path: Path) -> None:
    log, noted = tmp_path / "log.csv", Noted()
    given = sections(files, tmp_path / "run")
    stopped = hpcrec.train(callbacks=[Interrupting(2), hpcrec.CsvLog(log)], **given)
    first = stopped.summary["steps"]
    assert stopped.status == "stopped" and 2 <= first < 6
    with log.open("a") as file:
        file.write(f"{first + 1},loss,0.5\n")  # of a step that was lost
    run = hpcrec.train(callbacks=[hpcrec.CsvLog(log), noted], **given)
    with log.open(newline="") as file:
        found = [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file) if row["name"] == "loss"]
    assert found == [(line["step"], line["loss"]) for line in run.history if "loss" in line]
    assert [step for step, _ in found] == [2, 4, 6] and noted.said[0] == ("begin", first, "")


def test_a_run_imports_no_compiler(files: dict[str, str], tmp_path: Path) -> None:
    """Which torch would import for its optimizers, and which takes longer than all else that a rank starts with."""
    given = sections(files, tmp_path / "run")
    given["run"]["folder"] = str(tmp_path / "run")
    asked = (
        f"import hpcrec, sys; hpcrec.train(**{given!r}); "
        "sys.exit(', '.join({'torch._dynamo', 'sympy'} & sys.modules.keys()) or None)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_that_evaluated_nothing_has_no_metrics(tmp_path: Path) -> None:
    """Also where its data set says what AUC can be had."""
    prepare_synthetic(tmp_path / "data", samples=400)
    files = {part: str(tmp_path / "data" / f"{part}.h5") for part in ("train", "validation")}
    stopped = hpcrec.train(callbacks=[Interrupting(2)], **sections(files, tmp_path / "run"))
    assert stopped.status == "stopped" and "attainable_auc" in stopped.summary["eval"] and stopped.metrics == {}
    run = hpcrec.train(stopped.config)
    assert {"auc", "attainable_auc", "split", "checkpoint", "step", "calibration_by_decile"} <= run.metrics.keys()


def test_a_metric_that_nobody_can_import_is_to_be_in_a_module(files: dict[str, str], tmp_path: Path) -> None:
    own = {"metrics": ["__main__:no_such_metric"]}
    with pytest.raises(ConfigError, match=r"^metric __main__:no_such_metric: .* Put the function into a module\.$"):
        hpcrec.train(**sections(files, tmp_path / "run", evaluation=own))


def test_a_configuration_is_a_file_a_dict_or_keywords(files: dict[str, str], tmp_path: Path) -> None:
    wanted = sections(files, tmp_path / "a", train={"steps": 2, "log_every": 1})
    first = hpcrec.train(**wanted)
    again = hpcrec.train(first.config, run={"folder": tmp_path / "b"})
    file = hpcrec.train(first.folder / "config.toml", run={"folder": str(tmp_path / "c")}, train={"seed": 5})
    losses = [[line["loss"] for line in run.history if "loss" in line] for run in (first, again, file)]
    assert losses[0] == losses[1] != losses[2] and len(losses[0]) == 2
    assert file.config["train"]["seed"] == 5 and file.config["train"]["steps"] == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train": {"stepz": 1}}, r"train\.stepz is not a key.*Did you mean train\.steps"),
        ({"trains": {"steps": 1}}, "trains is not a key"),
        ({"train": 3}, "train is 3. Allowed: a dict"),
        ({"model": {"name": "dlrn"}}, "model.name is 'dlrn'"),
        ({"callbacks": [object()]}, "would never be called"),
        ({"callbacks": [OnlyEnd]}, "would never be called"),
        ({"config": 5}, "config is 5. Allowed: the path of a TOML file"),
    ],
)
def test_what_is_not_allowed_is_refused(files: dict[str, str], tmp_path: Path, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        hpcrec.train(**{**sections(files, tmp_path / "run"), **given})


def test_neither_mpi_nor_horovod_is_needed(files: dict[str, str], tmp_path: Path) -> None:
    """The bits are those with an MPI library."""
    given = sections(files, tmp_path / "without", train={"steps": 2, "log_every": 1})
    given["run"]["folder"] = str(tmp_path / "without")
    asked = f"""
import sys
sys.modules["mpi4py"] = sys.modules["horovod"] = None
import hpcrec
run = hpcrec.train(**{given!r})
assert run.summary["versions"]["mpi_library"] == "none: one rank", run.summary["versions"]
"""
    subprocess.run([sys.executable, "-c", asked], check=True, cwd=ROOT)
    run = hpcrec.train(given, run={"folder": tmp_path / "with"})
    without = [json.loads(line) for line in (tmp_path / "without" / "metrics.jsonl").read_text().splitlines()]
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (without, run.history)]
    assert losses[0] == losses[1] and len(losses[0]) == 2


def test_another_thread_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            hpcrec.train(**sections(files, tmp_path / "run"))
        except HpcrecError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(found[0])


def test_a_run_within_a_run_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    class Nested:
        def on_step(self, step: int, line: dict[str, Any]) -> None:
            hpcrec.train(**sections(files, tmp_path / "inner"))

    with pytest.raises(HpcrecError, match="in this process already"):
        hpcrec.train(callbacks=[Nested()], **sections(files, tmp_path / "run"))


def test_an_error_is_raised_and_the_process_goes_on(files: dict[str, str], tmp_path: Path) -> None:
    class Breaks:
        def on_step(self, step: int, line: dict[str, Any]) -> None:
            raise KeyError("mine")

    end = OnlyEnd()
    with pytest.raises(KeyError, match="mine"):
        hpcrec.train(callbacks=[Breaks(), end], **sections(files, tmp_path / "run"))
    assert end.status == "failed"

    class BreaksFirst:
        def on_begin(self, step: int) -> None:
            raise KeyError("first")

    end = OnlyEnd()
    with pytest.raises(KeyError, match="first"):
        hpcrec.train(callbacks=[BreaksFirst(), end], **sections(files, tmp_path / "begun"))
    assert (
        end.status == "failed" and json.loads((tmp_path / "begun" / "summary.json").read_text())["status"] == "failed"
    )
    with pytest.raises(DataError, match="no such file"):
        hpcrec.train(**sections({"train": str(tmp_path / "absent.h5")}, tmp_path / "run"))
    with pytest.raises(NonFiniteError):
        hpcrec.train(
            **sections(files, tmp_path / "far", dense={"optimizer": {"name": "SGD", "lr": 1e38}}, train={"steps": 20})
        )
    assert hpcrec.train(**sections(files, tmp_path / "run")).status == "finished"


def test_an_interrupt_stops_with_a_checkpoint_and_the_same_call_goes_on(files: dict[str, str], tmp_path: Path) -> None:
    whole = hpcrec.train(**sections(files, tmp_path / "whole"))
    before = signal.getsignal(signal.SIGINT)
    stopped = hpcrec.train(callbacks=[Interrupting(2)], **sections(files, tmp_path / "run"))
    assert stopped.status == "stopped" and signal.getsignal(signal.SIGINT) is before
    assert 2 <= stopped.summary["steps"] < 6 and stopped.metrics == {}
    gone_on = hpcrec.train(**sections(files, tmp_path / "run"))
    assert gone_on.status == "finished" and gone_on.metrics == whole.metrics
    losses = [[line["loss"] for line in run.history if "loss" in line] for run in (gone_on, whole)]
    assert losses[0] == losses[1]


def test_a_second_interrupt_is_raised(files: dict[str, str], tmp_path: Path) -> None:
    before, threads = signal.getsignal(signal.SIGINT), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        hpcrec.train(callbacks=[Interrupting(2, times=2)], **sections(files, tmp_path / "run"))
    assert signal.getsignal(signal.SIGINT) is before
    assert threading.active_count() == threads, threading.enumerate()
    assert hpcrec.train(**sections(files, tmp_path / "run")).status == "finished"


def test_a_term_saves_the_run_and_is_then_the_process_own(files: dict[str, str], tmp_path: Path) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        run = hpcrec.train(callbacks=[Interrupting(2, signal.SIGTERM)], **sections(files, tmp_path / "run"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert run.status == "stopped" and came == [signal.SIGTERM]


def _soon(found: Callable[[], Found], wanted: Found) -> Found:
    """What is found once that is ``wanted``, or after 10 s: threads that have been joined may be listed still."""
    deadline_s = time.monotonic() + 10
    while (last := found()) != wanted and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return last


def _steady(found: Callable[[], Found]) -> Found:
    """What is found twice in a row, or after 10 s."""
    deadline_s, last = time.monotonic() + 10, found()
    while time.monotonic() < deadline_s:
        time.sleep(0.1)
        if (now := found()) == last:
            break
        last = now
    return last


def _held() -> tuple[Any, ...]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    return (
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        threading.active_count(),
        sum(1 for _ in Path("/proc/self/task").iterdir()),
        [signal.getsignal(number) for number in numbers],
        sys.excepthook,
        threading.excepthook,
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
        gc.get_freeze_count(),
    )


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_twenty_runs_leave_nothing(files: dict[str, str], tmp_path: Path) -> None:
    """Each of the later ones in turn ends well, by an interrupt, and by an error."""

    class Breaks:
        def on_step(self, step: int, line: dict[str, Any]) -> None:
            raise KeyError("mine")

    held, memory = None, 0
    wanted = {"train": {"steps": 2, "log_every": 1}, "checkpoint": {"every": 1}}
    for number in range(20):
        what = [[], [Interrupting(1)], [Breaks()]][number % 3]
        try:
            hpcrec.train(callbacks=what, **sections(files, tmp_path / f"{number}", **wanted))
        except KeyError:
            assert number % 3 == 2
        gc.collect()
        if number == 4:
            held, memory = _steady(_held), _memory_bytes()
    assert _soon(_held, held) == held
    assert _memory_bytes() - memory < 24 * 2**20  # a session's threads and torch's pools; a run's rows are 6 MB here


def test_models_need_not_be_importable(files: dict[str, str], tmp_path: Path) -> None:
    class Local(Linear):
        pass

    run = hpcrec.train(**sections(files, tmp_path / "local", model={"name": Local, "options": {}}))
    assert run.config["model"]["name"].endswith("<locals>.Local")
    module = hpcrec.train(**sections(files, tmp_path / "module", model={"name": Linear, "options": {}}))
    assert module.config["model"]["name"] == f"{__name__}:Linear"
    assert [h["loss"] for h in run.history if "loss" in h] == [h["loss"] for h in module.history if "loss" in h]
    asked = f"import hpcrec; hpcrec.load({str(run.folder)!r}, trust=True)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "was made in a notebook, a script or a function" in done.stderr and "model=Local" in done.stderr
    with pytest.raises(ConfigError, match="has no name of its own"):
        hpcrec.train(**sections(files, tmp_path / "x", model={"name": partial(Linear)}))
