"""The nodes of a Slurm job that goes on without those that it loses (``sbatch --no-kill``).

Slurm takes a node that is down out of such a job, ends the steps on it and leaves the rest of the job alone: which
nodes are left, it is asked. Knows squeue, scontrol, srun and Slurm's variables; neither what runs on the nodes nor the
folder of a run.
"""

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from hpcrec.errors import ConfigError, MissingError
from hpcrec.launcher.srun import groups_of
from hpcrec.training import queue

LOOK_S = 10.0  # between looks at a job's nodes while ranks run: controllers answer many jobs
_ASK_S, _ASKS = 2.0, 5  # between questions, and how many may fail in a row
_COMMAND_S = 60.0  # for an answer of a controller that has much to do
_END_S = 5.0
_NOTICE_S = 400.0  # from a node's last answer until it counts as down: SlurmdTimeout, by default 300 s, and a ping
# Requeues job $1, looked at every $2 s, once the node of its script is no longer among its nodes.
_GUARD = """while sleep "$2"; do
  set -- "$1" "$2" $(squeue --all --noheader --jobs "$1" --format "%B %N")
  [ $# -eq 4 ] && names=$(scontrol show hostnames "$4") || continue
  echo "$names" | grep -qx "$3" || exec scontrol requeue "$1"
done"""
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


class JobNodes:
    """Nodes that a job still has, with the ranks of each, and what a job of these nodes would have been told.

    Parameters
    ----------
    environment : mapping
        Of a job of one part, as Slurm has set it.
    ranks : int
        Ranks of the run: all tasks of the job.
    fewest : int
        Nodes with which the run may go on.
    owners, dense : int or None
        Counts of ``[topology]``, which fewer ranks share in the same proportion; None where it has none.
    wait : callable
        Sleeps for so many seconds.

    Attributes
    ----------
    names : tuple of str
        The nodes that are left, in Slurm's order.

    Raises
    ------
    ConfigError
        This is no job of several nodes and one part; ranks or ``fewest`` do not go with it.
    MissingError
        Slurm does not say which nodes the job began with.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        ranks: int,
        fewest: int,
        owners: int | None = None,
        dense: int | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._environment, self._wait, self.fewest = environment, wait, fewest
        self._owners, self._dense = owners, dense
        tasks = _counts(environment.get("SLURM_TASKS_PER_NODE", ""))
        if len(groups_of(environment)) != 1 or len(tasks) < 2:
            raise ConfigError(
                f"hpcrec run: --min-nodes is {fewest}, but this is no Slurm job of several nodes of one kind, of which "
                "some may be lost. Leave it out."
            )
        if not 1 <= fewest <= len(tasks):
            raise ConfigError(f"hpcrec run: --min-nodes is {fewest}. Allowed: 1 to {len(tasks)}, the nodes of the job.")
        if ranks != sum(tasks):
            raise ConfigError(
                f"hpcrec run: --min-nodes with -n {ranks}. Allowed: -n {sum(tasks)}, all tasks of the job, so that it "
                "is known how many are left with fewer nodes."
            )
        names = self._expanded(environment.get("SLURM_JOB_NODELIST", ""))
        if names is None or len(names) != len(tasks):
            raise MissingError(
                "hpcrec run: --min-nodes, but 'scontrol show hostnames' does not say which nodes this job has "
                f"(SLURM_JOB_NODELIST={environment.get('SLURM_JOB_NODELIST')!r}). Leave --min-nodes out."
            )
        self.names: tuple[str, ...] = tuple(names)
        self._tasks = dict(zip(names, tasks, strict=True))
        cores = _counts(environment.get("SLURM_JOB_CPUS_PER_NODE", ""))
        self._cores = dict(zip(names, cores, strict=True)) if len(cores) == len(names) else {}

    @property
    def enough(self) -> bool:
        """Whether the run may go on with the nodes that are left."""
        return len(self.names) >= self.fewest

    @property
    def ranks(self) -> int:
        """Tasks of the nodes that are left."""
        return sum(self.tasks)

    @property
    def tasks(self) -> tuple[int, ...]:
        """Ranks of each node that is left."""
        return tuple(self._tasks[name] for name in self.names)

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm would have told a job of these nodes; srun and mpirun go by it. Empty while none is lost."""
        if len(self.names) == len(self._tasks):
            return {}
        told = {
            **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), ",".join(self.names)),
            **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(self.names))),
            **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(self.ranks)),
            "SLURM_TASKS_PER_NODE": ",".join(map(str, self.tasks)),
        }
        if self._cores:
            told["SLURM_JOB_CPUS_PER_NODE"] = ",".join(str(self._cores[name]) for name in self.names)
        return told

    @property
    def arguments(self) -> tuple[str, ...]:
        """What ``hpcrec train`` is told of the roles of the ranks that are left."""
        if len(self.names) == len(self._tasks):
            return ()
        roles = roles_of(self._owners, self._dense, sum(self._tasks.values()), self.ranks)
        return tuple(word for name, count in roles.items() for word in ("--set", f"topology.{name}={count}"))

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Has the job requeued, for as long as the block lasts, should the node of its script be lost.

        Slurm (22.05) leaves such a job running without its script, until its time limit. What sees to it is a step on
        another node, which outlives this process there.
        """
        here = self._environment.get("SLURMD_NODENAME", self.names[0])
        there = [name for name in self.names if name != here][:1]
        job = self._environment["SLURM_JOB_ID"]
        guard = self._step(there, "sh", "-c", _GUARD, "guard", job, f"{LOOK_S:g}") if there else None
        try:
            yield
        finally:
            _end(guard)

    def is_short(self) -> bool:
        """Whether Slurm has taken a node out of the job that is still among ``names``; not where it does not say."""
        left = self._left()
        return left is not None and not set(self.names) <= set(left)

    def lose(self, say: Callable[[str], None]) -> tuple[str, ...] | None:
        """Takes the nodes out that Slurm has taken out of the job; to be called once a run has ended badly.

        Ranks may end before Slurm knows why: a node that does not answer is waited for, until Slurm has taken it out.

        Parameters
        ----------
        say : callable
            Is told why it waits.

        Returns
        -------
        tuple of str or None
            The nodes that were lost, none where all answer; None where Slurm does not say, asked several times.
        """
        silent, waited_s = 0, 0.0
        probe: subprocess.Popen[bytes] | None = None
        try:
            while True:
                left = self._left()
                silent = silent + 1 if left is None else 0
                if silent == _ASKS:
                    return None
                if left is not None:
                    gone = tuple(name for name in self.names if name not in left)
                    # All answer, or it is not a node: Slurm would have said so by now.
                    if gone or (probe is not None and probe.poll() == 0) or waited_s > _NOTICE_S:
                        self.names = tuple(name for name in self.names if name in left)
                        return gone
                    if 30.0 <= waited_s < 30.0 + _ASK_S:
                        say(f"not all nodes of the job answer: waiting for Slurm's word, up to {_NOTICE_S:.0f} s")
                    probe = probe or self._step(self.names, "true")
                self._wait(_ASK_S)
                waited_s += _ASK_S
        finally:
            _end(probe)

    def _step(self, names: Sequence[str], *command: str) -> subprocess.Popen[bytes] | None:
        """Starts a command on each of these nodes, beside whatever runs there; None where there is no srun."""
        srun = shutil.which("srun", path=self._environment.get("PATH"))
        if srun is None:
            return None
        size = str(len(names))
        line = [srun, "--overlap", "--mpi=none", "--mem=0", "--gres=none", "--input=none"]
        line += [
            "--nodelist",
            ",".join(names),
            "--nodes",
            size,
            "--ntasks",
            size,
            "--ntasks-per-node=1",
            "--cpus-per-task=1",
            *command,
        ]
        told = queue.unfiltered({**self._environment, **self.environment})
        none = subprocess.DEVNULL
        return subprocess.Popen(line, env=told, stdin=none, stdout=none, stderr=none, start_new_session=True)

    def _left(self) -> list[str] | None:
        """The job's nodes, as Slurm has them; None where it does not say."""
        job = self._environment["SLURM_JOB_ID"]
        listed = _said(lambda: queue.asked("-j", job, "-o", "%N", limit_s=_COMMAND_S, environment=self._environment))
        return self._expanded(listed.strip()) if listed and listed.strip() else None

    def _expanded(self, listed: str) -> list[str] | None:
        if not listed:
            return None
        line, told = ["scontrol", "show", "hostnames", listed], dict(self._environment)
        said = _said(
            lambda: subprocess.run(line, env=told, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
        )
        return (said.split() or None) if said else None


def _said(ask: Callable[[], subprocess.CompletedProcess[str]]) -> str | None:
    """What a command prints; None where it fails, is not there or does not end in time."""
    try:
        done = ask()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def roles_of(owners: int | None, dense: int | None, before: int, ranks: int) -> dict[str, int]:
    """Counts of owners and dense ranks of ``ranks`` in the proportion that they have of ``before``, at least 1 each.

    Where every rank has one role, so it is with fewer; where roles overlap, none is left without.
    """
    if owners is not None and dense is not None and owners + dense == before and ranks > 1:
        own = min(max(round(owners * ranks / before), 1), ranks - 1)
        return {"owners": own, "dense": ranks - own}
    given = {"owners": owners, "dense": dense}
    return {name: -(-count * ranks // before) for name, count in given.items() if count is not None}


def _end(step: subprocess.Popen[bytes] | None) -> None:
    """Ends an srun with its step: by TERM, and by KILL where it does not heed that."""
    if step is not None and step.poll() is None:
        step.terminate()
        try:
            step.wait(_END_S)
        except subprocess.TimeoutExpired:
            step.kill()
            step.wait()


def _counts(text: str) -> list[int]:
    """The numbers of ``2(x3),1``: 2, 2, 2, 1."""
    found = [_COUNT.fullmatch(part) for part in text.split(",")] if text else []
    return [int(part[1]) for part in found if part is not None for _ in range(int(part[2] or 1))]
