"""Training runs that tests interrupt: their configurations, their jobs, what a finished one must be equal to."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hpcrec.comm.board import Left, read_boards
from hpcrec.config import to_toml
from tests.slurm.cluster import BatchJob, last_checkpoint, site, submit, summary, until
from tests.training.learned import check_equal
from tests.training.runs import config_for

STEPS, EVERY = 45, 3
HERE = Path(__file__).resolve().parent
ONE_KIND = ["--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=1"]
TWO_KINDS = [
    *["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--constraint=memory", "--mem=100", "--time=10", ":"],
    *["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--gres=none", "--time=10"],
]


class Run:
    """A run of its own folder below ``shared``; ``held`` is slow until ``let_go``. Data sets are in ``data``.

    One that is ``exact`` learns the same on any number of ranks, to rounding, and logs every step.
    """

    def __init__(
        self,
        shared: Path,
        name: str,
        *,
        held: bool,
        mode: str = "split",
        data: Path | None = None,
        save_s: float = 0.0,
        said_bytes: int = 0,
        exact: bool = False,
    ) -> None:
        self.folder = shared / name
        self.hold = shared / f"{name}.hold"
        if held:
            self.hold.touch()
        self.config = shared / f"{name}.toml"
        dropout = 0.0 if exact else 0.2
        options = {"hold": str(self.hold), "dropout": dropout, "save_s": save_s, "said_bytes": said_bytes}
        wanted = config_for(
            shared,
            data={name: str((data or shared) / f"{name}.h5") for name in ("train", "validation")},
            topology={"mode": mode, "owner_threads": 1, "dense_threads": 1, **self._roles(mode)},
            model={"name": "held:build", "folder": str(HERE), "options": options},
            embedding={"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}, "tables": {"user": {"shard": "row"}}},
            dense={"reducer": "mpi", "optimizer": {"name": "Adam", "lr": 0.05}},
            schedule={"kind": "cosine", "warmup_steps": 5},
            train={
                "dtype": "float64" if exact else "float32",
                "steps": STEPS,
                "eval_every": 9,
                "log_every": 1 if exact else 5,
            },
            checkpoint={"every": EVERY, "keep": 2},
            run={"folder": str(self.folder), "tensorboard": False, "progress": False},
        )
        self.config.write_text(to_toml(wanted))

    @staticmethod
    def _roles(mode: str) -> dict[str, int]:
        return {"owners": 2, "dense": 2} if mode == "split" else {}

    def under_way(self) -> bool:
        """Whether it has a checkpoint, and steps to go."""
        return 0 < last_checkpoint(self.folder) < STEPS

    def boards(self) -> dict[int, Left]:
        """What the ranks of its attempt under way note, once all do."""
        for folder in self.folder.glob(".boards-*"):
            found = read_boards(folder)
            if found and len(found) == found[0].ranks:
                return found
        return {}

    def let_go(self) -> None:
        self.hold.unlink()

    def check_equals(self, reference: "Run") -> None:
        """The last checkpoint, bit for bit, and what the summaries count."""
        last = f"checkpoints/step-{STEPS}"
        check_equal(self.folder / last, reference.folder / last)
        mine, theirs = summary(self.folder), summary(reference.folder)
        assert mine["status"] == theirs["status"] == "finished"
        for key in ("steps", "samples", "skipped_steps", "eval"):
            assert mine[key] == theirs[key], key
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        assert sorted({line["step"] for line in lines if "loss" in line})[-1] == STEPS


def data_in(shared: Path, name: str) -> Path:
    """A folder with the data sets, and nothing else."""
    folder = shared / name
    folder.mkdir()
    for data in ("train.h5", "validation.h5"):
        shutil.copy(shared / data, folder)
    return folder


@contextmanager
def job(
    shared: Path,
    run: Run,
    script: str,
    *options: str,
    launcher: str = "mpirun",
    log: str = "",
    settings: Mapping[str, object] | None = None,
    **variables: str,
) -> Iterator[BatchJob]:
    """A job of a script for a run, with further variables of env.sh; gone after the block.

    ``log``: another's name. ``settings``: of the configuration, by their names, over those of the run.
    """
    said = shared / f"{log or run.folder.name}.log"
    given = [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
    line = [*options, f"slurm/{script}.sbatch", str(run.config), *given]
    found = submit(line, site(shared, launcher, **variables), said)
    try:
        yield found
    finally:
        found.cancel()
        until(f"end of {found.number}", found.ended)


def under_way(run: Run, batch: BatchJob) -> None:
    until(f"first checkpoint of {run.folder.name}", lambda: run.under_way() or batch.ended())
    assert batch.state == "RUNNING", batch.said()
