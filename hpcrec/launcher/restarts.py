"""Starts a job, says how it died where its ranks could not, and starts it again as often as it may.

A training run goes on from its newest checkpoint then, whatever ``checkpoint.resume`` said for the first start. Knows
exit codes and a run's folder; how a job is started it is told. Imports no MPI.
"""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrec.again import names_in
from hpcrec.comm.board import Left
from hpcrec.errors import UnreadableError
from hpcrec.launcher.last_words import LastWords
from hpcrec.launcher.nodes import JobNodes
from hpcrec.launcher.relay import Heard, say
from hpcrec.launcher.watch import Watch, left_in_order
from hpcrec.training import attempts

_NOT_RUN = 2
_STOPPED = 75
_AS_ASKED = (0, _NOT_RUN, _STOPPED)  # finished, cannot be run, stopped on request: another start would be no better
# Where one of these is set, the launcher of ranks finds other hosts by itself.
_OTHER_HOSTS = ("SLURM_HET_SIZE", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE")

Start = Callable[[Sequence[str], Mapping[str, str], Heard], int]


@dataclass(frozen=True)
class Run:
    """A training run as it is first started: its folder, and its ``checkpoint.resume``."""

    folder: Path
    resume: str


@dataclass(frozen=True)
class _Failure:
    """How an attempt ended: in a line, after so many steps, and with which newest checkpoint (-1: none)."""

    reason: str
    step: int | None
    newest: int


def on_several_hosts(hostfile: str | None, environment: Mapping[str, str]) -> bool:
    """Whether ranks may be started on other hosts than this one."""
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    return hostfile is not None or nodes != "1" or any(name in environment for name in _OTHER_HOSTS)


def run_attempts(
    start: Start,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    run: Run | None = None,
    restarts: int = 0,
    several_hosts: bool = False,
    nodes: JobNodes | None = None,
) -> int:
    """Runs ``hpcrec ARGUMENTS``, and again up to ``restarts`` times where it fails; returns the last exit code.

    It is not started again where it finished, cannot be run at all, was asked to stop, or failed twice after the same
    number of steps without a new checkpoint in between.

    Parameters
    ----------
    start : callable
        ``(arguments, environment, heard) -> exit code``: runs the job to its end.
    run : Run or None
        What ``arguments`` train; None where they do not. Needed for restarts.
    several_hosts : bool
        Whether boards must lie where all hosts see them: in the run's folder.
    nodes : JobNodes or None
        Nodes of a job that goes on without those that it loses, which is no restart: the run is started again on the
        ones that are left. Where they are too few, or Slurm does not say which they are, it ends with 75, which asks
        for the job to be requeued.
    """
    before = None if run is None else (attempts.last_begin(run.folder), _newest(run.folder))
    more: Sequence[str] = ()
    failed: _Failure | None = None
    fewer = False  # nodes than the job began with
    numbers = itertools.count(1)
    while True:
        heard, noted = Heard(), _newest_event(run)
        with Watch(run.folder if run is not None and several_hosts else None) as watch:
            heard.all_left = watch.all_left
            told = {**environment, **({} if nodes is None else nodes.environment), **watch.environment}
            with contextlib.nullcontext() if nodes is None else nodes.guarded():
                code = start((*arguments, *more), told, heard)
            if code == 0 and run is not None and _cut_off(watch.boards(), run, noted):
                code = 137
                say("the launcher of the ranks ends with 0, and ranks have not left in order: it has lost a host")
            elif run is not None and not heard.killing:
                code = _told(code, watch.boards(), run, noted)
            words = None if heard.killing else watch.last_words(code, heard)
            boards = watch.boards()
        lost = None if nodes is None or heard.stopping or code in _AS_ASKED else _Lost.of(nodes)
        if code == _NOT_RUN and fewer:  # by ranks that a lost node has left, which write the run still, for one
            say("not gone on on fewer nodes, as is said above: the job is to be requeued")
            return _STOPPED
        if words is not None and lost is None:
            say(f"error: {words.line}", *(f"  {line}" for line in words.positions))
        if run is None or before is None or code in _AS_ASKED:
            return code
        try:
            now = _failure(run, code, words, boards, lost)
            begun = attempts.last_begin(run.folder) != before[0]
            more = _going_on(run, before)
        except UnreadableError as error:  # several times; ranks could not go on from there either
            say(f"not started again: {error}")
            return code if lost is None else _STOPPED
        if now.step is not None and begun:
            failed_itself = code == 1 and not heard.killing and lost is None
            _note_end(run, now.step, "failed" if failed_itself else "killed", () if lost is None else lost.names)
        if nodes is not None and lost is not None:
            if lost.forbids:
                say(f"not started again in this job, which is to be requeued: {now.reason}, {lost.forbids}")
                return _STOPPED
            say(f"started again on {lost.left}, {_place(run, more, now.newest)}: {now.reason}")
            more, failed, fewer = (*more, *nodes.arguments), None, True
            continue
        if restarts == 0 or heard.stopping or _is_hopeless(failed, now, number := next(numbers), restarts):
            return code
        failed = now
        say(f"restart {number} of {restarts}, {_place(run, more, now.newest)}: {now.reason}")
        more = more if nodes is None else (*more, *nodes.arguments)


@dataclass(frozen=True)
class _Lost:
    """Nodes that a job has lost: which, what it has left, and why the run may not go on there (empty: it may)."""

    names: tuple[str, ...]
    left: str
    forbids: str

    @classmethod
    def of(cls, nodes: JobNodes) -> "_Lost | None":
        """What ``nodes`` have lost, now that ranks have ended; None where it was not a node."""
        names = nodes.lose(say)
        if names is None:
            return cls((), "", "and Slurm does not say which nodes of the job are left, asked several times")
        few = f"{len(nodes.names)} nodes are left, and --min-nodes is {nodes.fewest}"
        left = f"{nodes.ranks} ranks of {', '.join(nodes.names)}"
        return cls(names, left, "" if nodes.enough else few) if names else None

    @property
    def reason(self) -> str:
        """What was lost, in words."""
        if not self.names:
            return "the ranks were ended"
        return f"node{'s' * (len(self.names) > 1)} {', '.join(self.names)} went down"


def _note_end(run: Run, step: int, status: str, lost: Sequence[str]) -> None:
    """Notes how an attempt ended, if it has not said it."""
    try:
        attempts.end(run.folder, step, status, lost=lost)
    except OSError as error:  # a full disk; the next attempt will say it
        say(f"{error}")


def _newest_event(run: Run | None) -> object:
    """What the run's record of attempts says last; None without one, or where it cannot be read."""
    with contextlib.suppress(UnreadableError):
        return next(reversed(attempts.read(run.folder)), None) if run is not None else None
    return None


def _cut_off(boards: Mapping[int, Left], run: Run, before: object) -> bool:
    """Whether ranks were killed though their launcher ends with 0, as Open MPI's mpirun does where it loses a host.

    A rank that leaves in order says so on its board, also where it could not note the end of its run; one of a program
    of one's own may leave as it likes. ``before`` is what the record of attempts said last before they were started.
    """
    now = _newest_event(run)
    if isinstance(now, dict) and now != before and now["event"] == "end":
        return False  # a host that is lost after that is no loss
    if boards:
        return any(left.ended_s is None for left in boards.values())
    return isinstance(now, dict) and now != before


def _told(code: int, boards: Mapping[int, Left], run: Run, before: object) -> int:
    """The exit code of ranks that have all left in order, told by the record where their launcher's own end hides it.

    Open MPI's mpirun was seen to end by signal 6, and not to end, after its ranks had: the run is what they said.
    """
    now = _newest_event(run)
    if code in _AS_ASKED or not isinstance(now, dict) or now == before or now["event"] != "end":
        return code
    found = {"finished": 0, "stopped": _STOPPED}.get(now["status"], code)
    if found == code or not left_in_order(boards) or any(left.error for left in boards.values()):
        return code
    say(f"the launcher of the ranks ends with {code}, after all of them had left in order: the run is {now['status']}")
    return found


def _is_hopeless(failed: _Failure | None, now: _Failure, number: int, restarts: int) -> bool:
    """Whether restart ``number`` would be one too many, or fail as the one before; says why."""
    if failed is not None and (failed.step, failed.newest) == (now.step, now.newest):
        at = "before the first step" if now.step is None else f"at step {now.step}"
        say(f"not started again: it failed twice {at} without a new checkpoint in between ({now.reason})")
        return True
    if number > restarts:
        say(f"not started again: that was restart {restarts} of {restarts} ({now.reason})")
        return True
    return False


def _going_on(run: Run, before: tuple[object, int]) -> Sequence[str]:
    """What is added to the command line of a restart, so that it goes on from what this run has saved.

    A run that starts anew (``never``) has cleared its folder once it has begun, and what is there then is its own. One
    that starts from a given checkpoint has saved something where there is a newer one than before.
    """
    if run.resume == "auto":
        return ()
    if run.resume == "never":
        return ("--resume", "auto") if attempts.last_begin(run.folder) != before[0] else ()
    return ("--resume", "auto") if _newest(run.folder) > before[1] else ()


def _place(run: Run, more: Sequence[str], newest: int) -> str:
    """Where a restart starts from, in words."""
    if run.resume != "auto" and not more:
        return "as at first (nothing is saved yet)"
    return f"from the checkpoint of step {newest}" if newest >= 0 else "from the beginning (nothing is saved yet)"


def _failure(run: Run, code: int, words: LastWords | None, boards: Mapping[int, Left], lost: _Lost | None) -> _Failure:
    step = max((left.step for left in boards.values() if left.step is not None), default=None)
    if lost is not None:
        reason = lost.reason
    elif words is not None:
        reason = words.brief
    else:
        told = min((left for left in boards.values() if left.error), key=lambda left: left.ended_s or 0.0, default=None)
        reason = f"exit status {code}" if told is None else f"rank {told.rank}: {told.error.splitlines()[0]}"
    return _Failure(reason, step, _newest(run.folder))


def _newest(run: Path) -> int:
    """The step of a run's newest checkpoint; -1 where it has none.

    Raises
    ------
    UnreadableError
        Its folder cannot be listed, at any try.
    """
    names = (name.removeprefix("step-") for name in names_in(run / "checkpoints") if name.startswith("step-"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)
