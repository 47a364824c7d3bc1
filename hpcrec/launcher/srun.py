"""What ``hpcrec run`` makes of a Slurm job: the command line of ``srun``, and what mpirun should know of the job.

``srun`` passes USR1 on to every rank, as mpirun does. Ranks find each other by PMIx; over the two parts of a
heterogeneous job only ``srun`` starts them as one world, each part with cores of its own. There srun may stay when all
ranks have ended, which ``Step`` finds. Knows Slurm's variables, squeue and what srun prints, and nothing of what is
started.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcrec.errors import ConfigError, MissingError
from hpcrec.launcher.relay import say
from hpcrec.training import queue

_COMMAND_S = 60.0  # for an answer of a controller that has much to do
_OF_RANKS = re.compile(r"^\S+\.\d+$", re.MULTILINE)  # a step's name; the script's ends with .batch
_ENDED_BADLY = re.compile(rb"srun: error: \S+: tasks? [\d,-]+: (?:Exited with exit code (\d+)|[A-Z])")
_ENDED = re.compile(rb"srun: (First task exited|Job step aborted|error: \S+: tasks? [\d,-]+: [A-Z])")
_KILLED = 128 + 9
_WAIT_S = 30  # after the first rank has ended; the others end with it, unless it vanished without a word


@dataclass(frozen=True)
class Group:
    """A part of a job whose nodes are alike: its ranks, and cores a rank where the job says."""

    ranks: int
    threads: int | None


def groups_of(environment: Mapping[str, str]) -> tuple[Group, ...]:
    """The parts of the Slurm job that this process is in: one, or those of a heterogeneous job; none without a job."""
    if "SLURM_JOB_ID" not in environment:
        return ()
    parts = _number(environment, "SLURM_HET_SIZE")
    suffixes = [""] if parts is None else [f"_HET_GROUP_{part}" for part in range(parts)]
    return tuple(
        Group(
            _number(environment, f"SLURM_NTASKS{suffix}") or 1,
            _number(environment, f"SLURM_CPUS_PER_TASK{suffix}"),
        )
        for suffix in suffixes
    )


class Step:
    """The step of ranks over the parts of a heterogeneous job, whose end srun may not notice.

    Both parts' threads of such an srun (22.05) stop its PMIx agent at once, and now and then one waits for ever: every
    rank has ended, Slurm has no step of the job any more, and the job would last until its time limit.

    Parameters
    ----------
    environment : mapping
        Of the job, as Slurm has set it.
    heard : bytes-like
        The end of what has come on srun's stderr, as it comes.
    """

    def __init__(self, environment: Mapping[str, str], heard: bytearray) -> None:
        self._environment, self._heard, self._seen = environment, heard, False

    def is_over(self) -> bool:
        """Whether there was a step and Slurm has none of this job any more; not where squeue does not say."""
        own = self._environment
        parts = [name for name in own if name.startswith("SLURM_JOB_ID_HET_GROUP_")]  # each a job to squeue
        jobs = ",".join(own[name] for name in sorted(parts)) or own["SLURM_JOB_ID"]
        try:
            done = queue.asked("--steps", "--jobs", jobs, "--format=%i", limit_s=_COMMAND_S, environment=own)
        except (OSError, subprocess.TimeoutExpired):
            return False
        if done.returncode:
            return False
        if _OF_RANKS.search(done.stdout):
            self._seen = True
            return False
        # A short one may not have been seen; one that waits for its nodes has not said anything of a task's end.
        return self._seen or _ENDED.search(bytes(self._heard)) is not None

    def status(self) -> int:
        """What srun would have ended with: the most of its tasks' statuses, which it says where they are not 0."""
        said = bytes(self._heard)
        bad = list(_ENDED_BADLY.finditer(said))
        statuses = [int(found[1]) for found in bad if found[1] is not None]
        if statuses:
            return max(statuses)
        return _KILLED if bad or b"srun: Job step aborted" in said else 0


def nodes_of(environment: Mapping[str, str]) -> int:
    """Nodes of the Slurm job; 1 where there is none."""
    return _number(environment, "SLURM_JOB_NUM_NODES") or 1


def check_mpirun(environment: Mapping[str, str]) -> None:
    """Refuses mpirun in a heterogeneous job.

    Raises
    ------
    ConfigError
        It would start ranks on the nodes of the first part alone.
    """
    if len(groups_of(environment)) > 1:
        raise ConfigError(
            f"hpcrec run: this is a heterogeneous Slurm job of {len(groups_of(environment))} parts, of which mpirun "
            "sees the first alone. Use --launcher srun, which starts one world over all of them."
        )


def find_srun(environment: Mapping[str, str]) -> str:
    """The path of ``srun``, which must speak PMIx.

    Raises
    ------
    ConfigError
        This is no Slurm job.
    MissingError
        No ``srun``, or one without PMIx, under which each rank would believe to be alone.
    """
    if "SLURM_JOB_ID" not in environment:
        raise ConfigError(
            "hpcrec run: --launcher srun, but this is no Slurm job (no SLURM_JOB_ID). Start it by sbatch, salloc or "
            "'hpcrec submit', or use --launcher mpirun."
        )
    srun = shutil.which("srun", path=environment.get("PATH"))
    if srun is None:
        raise MissingError("hpcrec run: no srun in PATH. Use --launcher mpirun.")
    said = subprocess.run([srun, "--mpi=list"], capture_output=True, text=True, timeout=60, check=False)
    if "pmix" not in said.stdout + said.stderr:
        known = " ".join((said.stdout + said.stderr).split())
        raise MissingError(f"hpcrec run: this Slurm has no PMIx ({known}). Use --launcher mpirun.")
    return srun


def found_srun_line(
    ranks: int,
    program: Sequence[str],
    environment: Mapping[str, str],
    *,
    threads: int | None,
    hostfile: str | None,
    options: Sequence[str],
) -> tuple[list[str], dict[str, str]]:
    """``srun_line`` with the srun at hand, and what it needs in the environment beside ``environment``.

    Raises
    ------
    ConfigError
        A host file, which only mpirun takes; what ``find_srun`` and ``srun_line`` refuse.
    """
    if hostfile is not None:
        raise ConfigError("hpcrec run: --hostfile is mpirun's; srun takes the nodes of its job. Leave one of them out.")
    line = srun_line(find_srun(environment), ranks, program, environment, threads=threads, options=options)
    for group in groups_of(environment):
        if threads is None and group.threads is None and (n := _threads(None, environment)) > 1:
            say(
                f"warning: ranks with OMP_NUM_THREADS={n} threads each in a job of one core a task: the threads of a "
                "rank take turns, which slows all of them. Give --threads (or sbatch --cpus-per-task)."
            )
    return line, {"OMPI_MCA_mpi_yield_when_idle": "1"}  # as under mpirun; MPICH's ranks give way by themselves


def srun_line(
    srun: str,
    ranks: int,
    program: Sequence[str],
    environment: Mapping[str, str],
    *,
    threads: int | None = None,
    options: Sequence[str] = (),
) -> list[str]:
    """The command line that starts ``program`` on ``ranks`` ranks of this job.

    Parameters
    ----------
    threads : int or None
        OpenMP threads, and cores, of a rank; None takes what the job has for a task, part for part.
    options : sequence of str
        Further options for ``srun``, of each part.

    Raises
    ------
    ConfigError
        Other than the job's number of ranks.
    """
    groups = groups_of(environment)
    allotted = sum(group.ranks for group in groups)
    if ranks > allotted or (len(groups) > 1 and ranks != allotted):
        parts = " + ".join(str(group.ranks) for group in groups)
        allowed = f"{parts} = {allotted}, all tasks of a heterogeneous job" if len(groups) > 1 else f"1 to {allotted}"
        raise ConfigError(f"hpcrec run: -n is {ranks}. Allowed: {allowed}.")
    binding = () if any(option.startswith("--cpu-bind") for option in options) else ("--cpu-bind=cores",)
    line = [srun, "--mpi=pmix", "--export=ALL", f"--wait={_WAIT_S}"]
    for number, group in enumerate(groups):
        cores = threads or group.threads
        line += [":"] if number else []
        line += [f"--het-group={number}"] if len(groups) > 1 else []
        line += ["-n", str(group.ranks if len(groups) > 1 else ranks)]
        line += [] if cores is None else ["--cpus-per-task", str(cores)]
        line += [*binding, *options, "env", f"OMP_NUM_THREADS={_threads(cores, environment)}", *program]
    return line


def _threads(cores: int | None, environment: Mapping[str, str]) -> int:
    return cores or _number(environment, "OMP_NUM_THREADS") or 1


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """A variable's number; None where it is not there or is none above 0."""
    text = environment.get(name, "")
    return int(text) if text.isdigit() and int(text) else None
