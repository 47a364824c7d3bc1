"""Starts a job, says how it died where its ranks could not, and starts it again as often as it may.

A training run goes on from its newest checkpoint then, whatever ``checkpoint.resume`` said for the first start. Knows
exit codes and a run's folder; how a job is started it is told. Imports no MPI.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrec.comm.board import Left
from hpcrec.launcher.last_words import LastWords
from hpcrec.launcher.relay import Heard
from hpcrec.launcher.watch import Watch
from hpcrec.training import attempts

_AS_ASKED = (0, 2, 75)  # finished, cannot be run, stopped on request: another start would be no better
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
    """
    before = None if run is None else (attempts.last_begin(run.folder), _newest(run.folder))
    more: Sequence[str] = ()
    failed: _Failure | None = None
    for number in range(restarts + 1):
        heard = Heard()
        with Watch(run.folder if run is not None and several_hosts else None) as watch:
            code = start((*arguments, *more), {**environment, **watch.environment}, heard)
            words = None if heard.killing else watch.last_words(code, heard)
            boards = watch.boards()
        if words is not None:
            _say(f"error: {words.line}", *(f"  {line}" for line in words.positions))
        if run is None or before is None or code in _AS_ASKED:
            return code
        now = _failure(run, code, words, boards)
        if now.step is not None and attempts.last_begin(run.folder) != before[0]:
            status = "failed" if code == 1 and not heard.killing else "killed"
            attempts.end(run.folder, now.step, status)  # where the run itself has not said it
        if restarts == 0 or heard.stopping:
            return code
        if failed is not None and (failed.step, failed.newest) == (now.step, now.newest):
            at = "before the first step" if now.step is None else f"at step {now.step}"
            _say(f"not started again: it failed twice {at} without a new checkpoint in between ({now.reason})")
            return code
        if number == restarts:
            _say(f"not started again: that was restart {restarts} of {restarts} ({now.reason})")
            return code
        more, failed = _going_on(run, before), now
        _say(f"restart {number + 1} of {restarts}, {_place(run, more, now.newest)}: {now.reason}")
    raise AssertionError("unreachable")


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


def _failure(run: Run, code: int, words: LastWords | None, boards: Mapping[int, Left]) -> _Failure:
    step = max((left.step for left in boards.values() if left.step is not None), default=None)
    if words is not None:
        reason = words.brief
    else:
        told = min((left for left in boards.values() if left.error), key=lambda left: left.ended_s or 0.0, default=None)
        reason = f"exit status {code}" if told is None else f"rank {told.rank}: {told.error.splitlines()[0]}"
    return _Failure(reason, step, _newest(run.folder))


def _newest(run: Path) -> int:
    """The step of a run's newest checkpoint; -1 where it has none."""
    names = (path.name.removeprefix("step-") for path in (run / "checkpoints").glob("step-*"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _say(*lines: str) -> None:
    with contextlib.suppress(OSError):  # a full log is no reason not to start a run again
        print("\n".join(f"hpcrec: {line}" for line in lines), file=sys.stderr, flush=True)
