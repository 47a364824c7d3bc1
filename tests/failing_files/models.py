"""What whole runs do while calls fail: training, an export of what was trained, predictions by it.

Knows nothing of how calls fail.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

from hpcrec.api import commands
from hpcrec.build.export import export
from hpcrec.comm.ranks import Ranks
from hpcrec.config import Config, load_config, to_toml
from hpcrec.data.reader import DataSet
from hpcrec.serving.exported import Exported
from hpcrec.serving.folder import damages
from hpcrec.serving.predict import predict_data
from hpcrec.training.telemetry import read_metrics
from tests.failing_files.scenarios import Mark, Scenario
from tests.training.learned import check_equal
from tests.training.runs import config_for, write_data


def trained(config: Config, file: Path) -> None:
    """Trains in a process of its own: ours forks, and could not with the threads that training leaves."""
    file.write_text(to_toml(config))
    line = [sys.executable, "-m", "hpcrec", "train", str(file)]
    without = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(line, capture_output=True, text=True, env=without, check=False)
    assert done.returncode == 0, done.stderr


class Train(Scenario):
    """A whole run on one rank: dynamic tables, thresholds with their residuals, increments, evaluations.

    Whatever fails, the same command once more ends with the bits of a run in which nothing did.
    """

    steps, every = 12, 3

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder / "data.h5", samples=40)
        trained(self._config(folder, "right"), folder / "config.toml")

    def _config(self, folder: Path, run: str) -> Config:
        tables = {"user": {"dynamic": {"capacity": 64}}}
        return config_for(
            folder,
            data={"train": str(folder / "data.h5"), "validation": str(folder / "data.h5")},
            embedding={"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}, "tables": tables},
            train={"steps": self.steps, "dtype": "float32", "eval_every": 4, "log_every": 2},
            dense={"reducer": "mpi", "compression": "dct", "dct": {"density": 0.2, "warmup_steps": 2}},
            checkpoint={"every": self.every, "full_every": 2, "keep": 2},
            run={"folder": str(folder / run), "tensorboard": True, "progress": False},
        )

    def _train(self, folder: Path, run: str) -> None:
        commands.train(self._config(folder, run))

    def watched(self, folder: Path) -> Path:
        return folder / "run"

    def act(self, folder: Path) -> None:
        self._train(folder, "run")

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        if whole:  # what was saved is all there; of what only tells, a line may be lost
            self._compare(folder)
        self._train(folder, "run")
        self._compare(folder)
        mine, right = ([self._told(line) for line in read_metrics(folder / run)] for run in ("run", "right"))
        # A line that one write refused is written later; what a close takes away, or a disk that stays full, is lost.
        kept = right if self.one_write else [line for line in right if line in mine]
        ended = whole and self.closes  # the run that failed did all steps: nobody writes its last line again
        if mine != kept or (mine[-1:] != right[-1:] and not ended):
            return [f"other metrics: {mine}, not some of {right}"]
        summary = json.loads((folder / "run" / "summary.json").read_text())
        if (summary["status"], summary["steps"]) != ("finished", self.steps):
            return [f"summary.json says {summary['status']} after {summary['steps']} steps"]
        return [] if "</html>" in (folder / "run" / "report.html").read_text() else ["report.html is cut short"]

    def _compare(self, folder: Path) -> None:
        mine, right = (folder / run / "checkpoints" / f"step-{self.steps}" for run in ("run", "right"))
        check_equal(mine, right)

    @staticmethod
    def _told(line: dict[str, Any]) -> tuple[Any, ...]:
        """Of a line what does not depend on time."""
        return (line["step"], line.get("loss"), line.get("validation_auc"))


class Export(Scenario):
    """A run's last checkpoint as an export, which is read and predicts; torch's tracing is done once, beforehand."""

    def begin(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder / "data.h5", samples=40)
        config = config_for(
            folder,
            train={"steps": 2, "dtype": "float32"},
            embedding={"optimizer": {"name": "sgd", "lr": 0.1}, "tables": {"user": {"dynamic": {"capacity": 64}}}},
            checkpoint={"every": 2},
        )
        trained(config, folder / "config.toml")
        self._traced = torch.export.export
        self._program: Any = None
        for kind in ("safetensors", "hdf5"):
            self._exported(folder, f"right-{kind}", kind)
        self._wanted = self._predicted(folder / "right-safetensors", folder)

    def _once(self, *given: Any, **options: Any) -> Any:
        self._program = self._program or self._traced(*given, **options)
        return self._program

    def _exported(self, folder: Path, name: str, kind: str) -> None:
        torch.export.export = self._once
        try:
            export(load_config(folder / "config.toml"), folder / name, embeddings=kind)
        finally:
            torch.export.export = self._traced

    def _predicted(self, export_folder: Path, folder: Path) -> np.ndarray:
        with DataSet(folder / "data.h5") as data:
            columns = data.read_ranges([(0, data.samples)], [f.name for f in data.features], ())
        return Exported(export_folder).predict(columns.sparse, columns.dense)

    def act(self, folder: Path) -> None:
        for kind in ("safetensors", "hdf5"):
            self._exported(folder, f"out-{kind}", kind)

    def act_on(self, folder: Path, ranks: Ranks, mark: Mark) -> None:
        for kind in ("safetensors", "hdf5"):
            self._exported(folder, f"out-{kind}", kind)
            mark(f"returned {kind}")

    def judge_cut(self, folder: Path, marks: Sequence[str]) -> list[str]:
        returned = [kind for kind in ("safetensors", "hdf5") if f"returned {kind}" in marks]
        return self._wrong(folder, returned)

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        return self._wrong(folder, ("safetensors", "hdf5") if whole else ())

    def _wrong(self, folder: Path, returned: Sequence[str]) -> list[str]:
        """Each export is whole or absent, and those that had returned are there."""
        found = []
        for kind in ("safetensors", "hdf5"):
            out = folder / f"out-{kind}"
            if not out.exists():
                found += [f"no export {kind}"] if kind in returned else []
            elif damages(out):
                found += damages(out)
            elif not np.array_equal(self._predicted(out, folder), self._wanted):
                found.append(f"the export {kind} predicts something else")
        return found


class Predict(Export):
    """The data set's predictions by an export that is there, into a file."""

    def act(self, folder: Path) -> None:
        for kind in ("safetensors", "hdf5"):
            predict_data(folder / f"right-{kind}", folder / "data.h5", folder / f"{kind}.h5")

    def judge(self, folder: Path, *, whole: bool) -> list[str]:
        found = []
        for kind in ("safetensors", "hdf5"):
            if (out := folder / f"{kind}.h5").exists():
                with h5py.File(out, locking=False) as file:
                    if not np.array_equal(file["prediction"][()], self._wanted):
                        found.append(f"other predictions by {kind}")
            elif whole:
                found.append(f"no predictions by {kind}")
        return found
