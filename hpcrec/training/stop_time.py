"""When a run in a Slurm job has to begin its stop by itself: where a stop takes longer than the job script gives it.

A stop waits for the checkpoint under way and writes the last one. How long that may take is known from the checkpoints
of this attempt, so from its first one on; what the job script gives is ``HPCREC_STOP_S``, seconds from its warning to
its kill. Where that is less, rank 0 asks Slurm for the end of the job and sets the flag that a signal sets. Knows
seconds and squeue; how ranks agree on a stop is for ``session``, and what a stop writes for ``loop``.
"""

import math
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from hpcrec.comm.failure import StopSignal, attempt, say
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.training import queue
from hpcrec.training.ended import TIME_LIMIT

# A stop has to be over this long before the job's end: the warning may come 60 s early, HPCREC_STOP_S is 30 s less than
# the warning's lead, and to ask squeue may take another 30 s.
SPARE_S = 120.0
SCRIPT_S = 30  # of these: the warning's lead less HPCREC_STOP_S
ASK_LIMIT_S = 30.0
AGAIN_S = 120.0  # after this squeue is asked again: a limit may be changed while the job runs
SAY_LIMIT_S = 5.0  # for a line of a log that takes no more
LEAST_S = 1.0  # and not before: it counts in whole seconds, so that in the last one it would be asked again and again
LONGER = 1.25  # what is said of a stop is said again where it may take so many times as long
_FORGETS = 0.99  # what one step that took long counts for at the next


def stop_seconds(environment: Mapping[str, str]) -> float | None:
    """Seconds that the job script gives a warned run to end, ``HPCREC_STOP_S``; None where it does not say.

    Raises
    ------
    ConfigError
        It is no number of seconds.
    """
    text = environment.get("HPCREC_STOP_S")
    if text is not None and not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ConfigError(f"HPCREC_STOP_S is {text!r}. Allowed: a number of seconds, as 90. Set it in env.sh.")
    return None if text is None else float(text)


def seconds_left(job: str, environment: Mapping[str, str]) -> float:
    """Seconds to the time limit of a Slurm job, as squeue says; of a heterogeneous one, of the part that ends first.

    Returns
    -------
    float
        Infinity where there is no limit; 0 where the job is past it.

    Raises
    ------
    HpcrecError
        squeue does not say, and why.
    """
    try:
        done = queue.asked("-j", job, "-o", "%i|%A|%L", limit_s=ASK_LIMIT_S, environment=environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HpcrecError(f"squeue: {error}") from None
    if done.returncode:
        raise HpcrecError(f"squeue: {(done.stderr.strip() or done.stdout.strip())[-200:]}")
    rows = [row.split("|") for row in done.stdout.split() if row.count("|") == 2]
    left = [_parsed(text) for number, alone, text in rows if alone == job or number.startswith(f"{job}+")]
    if not left or None in left:
        raise HpcrecError(f"squeue does not say how much time job {job} has left: {done.stdout.strip()[-200:]!r}")
    return min(seconds for seconds in left if seconds is not None)


def seconds_left_at_start(environment: Mapping[str, str]) -> float | None:
    """The same by ``SLURM_JOB_END_TIME``, which knows of no later change; None where Slurm has not set it."""
    text = environment.get("SLURM_JOB_END_TIME", "")
    return float(text) - time.time() if text.isdigit() else None


def _parsed(text: str) -> float | None:
    """Seconds of ``[D-][HH:]MM:SS``; None of what is no time."""
    if text in ("UNLIMITED", "INVALID"):  # squeue's word for less than none left
        return math.inf if text == "UNLIMITED" else 0.0
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(piece or 0) for piece in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


class StopTime:
    """Keeps how long steps and checkpoints take; as a context on rank 0, a thread begins the stop in time.

    Nothing is begun before the attempt has a checkpoint that is a whole interval past its first step: an allocation
    that is too short for more still takes the run on.

    Parameters
    ----------
    signal : StopSignal
        What is set.
    job : str or None
        Slurm's number of the job; None outside of Slurm: then nothing is done.
    given_s : float or None
        What the job script gives a stop; None: it is no script of ours, and nothing is done.
    first_step : int
        Of this attempt.
    interval : int
        Steps from checkpoint to checkpoint; 0 where none is due.
    steps : int
        Most that are run from a stop's request to its last checkpoint.
    left_s, left_at_start_s : callable
        Seconds that the job has left, as of ``seconds_left``; and, where that has never said, of
        ``seconds_left_at_start``.
    clock : callable
    """

    def __init__(
        self,
        signal: StopSignal,
        *,
        job: str | None,
        given_s: float | None,
        first_step: int,
        interval: int,
        steps: int,
        left_s: Callable[[], float],
        left_at_start_s: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signal, self._job, self._given_s = signal, job, given_s
        self._first, self._interval, self._steps = first_step, interval, steps
        self._left_s, self._left_at_start_s, self._clock = left_s, left_at_start_s, clock
        self._step_s = self._evaluation_s = self._save_s = 0.0  # the longest of each
        self._saved_step = first_step
        self._ends_s: float | None = None  # by the clock; None where squeue has not said it
        self._asked_s = -math.inf
        self._told_s = 0.0  # the time that a stop may take, when it was last said
        self._told_problem = self._begun = self._closed = False
        self._news = threading.Event()

    # What the loop tells.

    def stepped(self, took_s: float) -> None:
        """A step took so long. One that took long by chance is forgotten over the next hundreds."""
        self._step_s = max(took_s, self._step_s * _FORGETS)

    def evaluated(self, took_s: float) -> None:
        """An evaluation that a stop could not have ended took so long."""
        self._evaluation_s = max(took_s, self._evaluation_s)

    def saved(self, step: int, took_s: float) -> None:
        """The checkpoint of ``step`` is whole, so long after it was begun."""
        self._save_s = max(took_s, self._save_s)
        self._saved_step = step
        self._news.set()

    # What follows from it.

    @property
    def needed_s(self) -> float:
        """How long a stop may take, at worst: it is asked for when a checkpoint has just begun."""
        return 2 * self._save_s + self._steps * self._step_s + self._evaluation_s

    @property
    def goes_on_from(self) -> int | None:
        """The step of the newest whole checkpoint where a stop was begun here, and by no signal; else None."""
        return self._saved_step if self._signal.name == TIME_LIMIT else None

    def look(self) -> float | None:
        """Begins the stop where it is time for it, and says what there is to say.

        Returns
        -------
        float or None
            Seconds after which to look again at the latest; None: when another checkpoint is whole.
        """
        needed_s = self.needed_s
        went_on = self._saved_step - self._first >= max(self._interval, 1)
        if self._begun or self._closed or not went_on or self._given_s is None or needed_s <= self._given_s:
            return None
        now_s, reserved_s = self._clock(), needed_s + SPARE_S
        if self._ends_s is None or now_s >= min(self._asked_s + AGAIN_S, self._ends_s - reserved_s):
            self._ask(needed_s)
        if self._ends_s is None or self._ends_s == math.inf:
            return AGAIN_S
        left_s = self._ends_s - self._clock()
        if left_s <= reserved_s:
            self._begin(needed_s, left_s)
            return None
        if needed_s > LONGER * self._told_s:
            self._told_s = needed_s
            _say(
                f"{self._needs(needed_s)}. Job {self._job} ends in {left_s:.0f} s: this run begins its stop by itself, "
                f"{reserved_s:.0f} s before that. {_advice(needed_s)}"
            )
        return min(max(left_s - reserved_s, LEAST_S), AGAIN_S)

    def _ask(self, needed_s: float) -> None:
        """Asks for the job's end. Where squeue does not say, what it said before stands."""
        self._asked_s = self._clock()
        try:
            self._ends_s = self._asked_s + self._left_s()
        except HpcrecError as error:
            left_s = self._left_at_start_s() if self._ends_s is None else None
            if left_s is not None:
                self._ends_s = self._asked_s + left_s
                _say(f"warning: {error}. The time limit that job {self._job} had at its start is taken.")
            elif self._ends_s is None and not self._told_problem:
                self._told_problem = True
                _say(
                    f"warning: {self._needs(needed_s)}. When job {self._job} ends is not known ({error}): the run "
                    f"cannot begin its stop by itself until squeue says it. {_advice(needed_s)}"
                )

    def _begin(self, needed_s: float, left_s: float) -> None:
        if self._closed:  # the run has ended meanwhile
            return
        self._begun = True
        self._signal.request(TIME_LIMIT)
        said = f"job {self._job} ends in {left_s:.0f} s, and {self._needs(needed_s)}"
        if self._told_s == 0 and not self._told_problem:  # it was so from the first checkpoint on
            _say(
                f"{said}: the ranks stop after this step. This allocation has no time for more than the "
                f"{self._saved_step - self._first} steps to its checkpoint of step {self._saved_step}; what follows it "
                f"may be lost. Give the job a longer --time."
            )
        else:
            _say(f"{said}: the ranks stop after this step and write a checkpoint")

    def _needs(self, needed_s: float) -> str:
        return (
            f"a stop may take {needed_s:.0f} s, for the checkpoint under way and a last one (up to {self._save_s:.1f} "
            f"s each) and the steps before it; HPCREC_STOP_S gives {self._given_s:g} s"
        )

    # The thread.

    def _watch(self) -> None:
        wait_s: float | None = None
        while not self._closed:
            self._news.wait(wait_s)
            self._news.clear()
            wait_s = self.look()

    def __enter__(self) -> Self:
        if self._job is not None and self._given_s is not None:
            threading.Thread(target=self._watch, name="stop-time", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True  # the thread is not waited for: squeue may hang
        self._news.set()


def _say(text: str) -> None:
    """Says it where it can be said soon: a log that blocks holds up no stop."""
    attempt(lambda: say(f"hpcrec: {text}\n"), SAY_LIMIT_S)


def _advice(needed_s: float) -> str:
    """What a user sets, so that a warning comes early enough; with room for checkpoints that take longer."""
    stop_s = math.ceil(LONGER * needed_s)
    return f"With HPCREC_STOP_S={stop_s} and #SBATCH --signal=B:USR1@{stop_s + SCRIPT_S} the warning comes in time."
