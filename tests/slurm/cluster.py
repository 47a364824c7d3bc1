"""A Slurm to test on, and jobs on it: submit, wait, interrupt. Knows sbatch and its kin; not what jobs do."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRATCH = Path(os.environ.get("SLURM_CONF", "")).parent / "scratch"  # a folder on each node's own disk, of 8 MB
START_S = 180  # a job's start and its ranks', with other work on the machine
ENV_SH = """
. {root}/slurm/env.sh
HPCREC_LAUNCHER={launcher}
# Nodes claim cores that this machine may not have, and all have the same ones.
HPCREC_SRUN_OPTIONS=--cpu-bind=none
HPCREC_MPIRUN_OPTIONS='--bind-to none'
HPCREC_STOP_S=25
export OMP_NUM_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1
{more}
"""


def slurm(*command: str) -> str:
    """What a command of Slurm prints; an error shows what it said."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def until(what: str, holds: Callable[[], bool], limit_s: float = START_S, every_s: float = 0.2) -> None:
    """Waits until something holds."""
    end_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end_s, f"{what}: not within {limit_s} s\n{as_things_are()}"
        time.sleep(every_s)


def as_things_are() -> str:
    """The queue, the nodes, and the end of what each job in the queue has said: all that is left of one that hangs."""
    said = [slurm("squeue", "--all", "--format=%i %T %r %M %N"), slurm("sinfo", "--Node", "--format=%N %T %E")]
    in_queue = {line.split()[0].partition("+")[0] for line in said[0].splitlines()[1:]}
    left = [batch for batch in SUBMITTED if batch.number in in_queue]
    return "\n".join(said + [f"the end of {batch.log}:\n{batch.said()[-3000:]}" for batch in left])


@dataclass
class BatchJob:
    """A job by its number, with the file of its output."""

    number: str
    log: Path

    def field(self, name: str) -> str:
        """A field of ``scontrol show job``, of a heterogeneous job's first part."""
        said = slurm("scontrol", "show", "job", self.number).split("\n\n")[0]
        return next(word.partition("=")[2] for word in said.split() if word.startswith(name + "="))

    @property
    def state(self) -> str:
        return self.field("JobState")

    def hosts(self) -> list[str]:
        """Its nodes, of all its parts."""
        parts = slurm("scontrol", "show", "job", self.number).split("\n\n")
        lists = [word.partition("=")[2] for part in parts for word in part.split() if word.startswith("NodeList=")]
        return [node for text in lists for node in slurm("scontrol", "show", "hostnames", text).split()]

    @property
    def requeues(self) -> int:
        return int(self.field("Restarts"))

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else "(no output)"

    def wait_requeued(self, times: int = 1, limit_s: float = START_S) -> None:
        """Until the job went back to the queue so often."""
        until(f"requeue of {self.number}", lambda: self.requeues >= times or self.ended(), limit_s)
        assert self.requeues >= times, (self.state, self.said())

    def ended(self) -> bool:
        return self.state not in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED")

    def wait_completed(self, limit_s: float = START_S) -> None:
        until(f"end of {self.number}", self.ended, limit_s)
        assert (self.state, self.field("ExitCode")) == ("COMPLETED", "0:0"), self.said()

    def cancel(self) -> None:
        subprocess.run(["scancel", self.number], capture_output=True, timeout=60)


def site(folder: Path, launcher: str, **variables: str) -> Path:
    """A site's env.sh for these nodes, with further variables of env.sh."""
    more = "\n".join(f"{name}={value}" for name, value in variables.items())
    path = folder / f"env-{'-'.join([launcher, *variables])}.sh"
    path.write_text(ENV_SH.format(root=ROOT, launcher=launcher, more=more))
    return path


def submit(arguments: Sequence[str], env_sh: Path, log: Path) -> BatchJob:
    """``sbatch ARGUMENTS`` from the checkout."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("PMIX_", "OMPI_COMM", "PRTE_MCA", "SLURM_"))
    }
    environment |= {"HPCREC_ENV": str(env_sh), "SLURM_CONF": os.environ["SLURM_CONF"]}
    command = ["sbatch", "--parsable", f"--output={log}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (command, done.stderr)
    SUBMITTED.append(BatchJob(done.stdout.strip().split(";")[0], log))
    return SUBMITTED[-1]


SUBMITTED: list[BatchJob] = []  # by any test


def last_checkpoint(run: Path) -> int:
    """Step of the newest checkpoint of a run; 0 where there is none."""
    return max((int(p.name[5:]) for p in run.glob("checkpoints/step-*")), default=0)


def summary(run: Path) -> dict:
    return json.loads((run / "summary.json").read_text())
