"""How far a run is, shown while it trains: a bar that moves on a terminal, whole lines in a file or a pipe.

Under ``hpcrec run`` the ranks' stderr is a pipe to the launcher. Whether that writes to a terminal, and how wide it
was at the start, the launcher alone knows: it says so by ``HPCREC_TERMINAL``. An mpirun that the user started says
nothing; where its ranks are beside it, Linux says what its own stderr is. Knows figures and a stream, not what is
trained, and imports nothing heavy, for the launcher reads it too.
"""

import contextlib
import itertools
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from hpcrec.clock import Seconds
from hpcrec.errors import ConfigError
from hpcrec.output import forgiving
from hpcrec.training.times import of_groups
from hpcrec.units import format_bytes, format_duration

TERMINAL = "HPCREC_TERMINAL"  # columns of the terminal that stderr ends at; not set where it ends at none
STDERR = 2  # its descriptor: a notebook's sys.stderr need not be a file
COLUMNS = 80  # of a terminal that does not say it
BAR_EVERY_S = 0.1
LINE_EVERY_S = 30.0
# What hands ranks' stderr on as it comes, by the names of processes; and options by which it changes it, or keeps it.
_LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "mpiexec.hydra", "hydra_pmi_proxy")
_CHANGES = (
    *("output", "output-filename", "tag-output", "timestamp-output", "xml", "merge-stderr-to-stdout"),  # Open MPI
    *("l", "prepend-rank", "prepend-pattern", "errfile-pattern"),  # MPICH
)
_BAR, _COUNT = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}", "{n_fmt} steps{postfix}"
# On a bar, what has to be seen on 80 columns, in few letters (samples a second is /s); the rest follows as far as there
# is room for it. One quality is among these, the first of these that is known.
_ON_BAR = {"loss": "loss {}", "auc": "auc {}", "samples/s": "{}/s", "waiting": "wait {}", "memory": "{}"}
_QUALITIES = ("validation_auc", "train_auc")


def columns_at(descriptor: int) -> int | None:
    """Columns of the terminal that a file descriptor is; None where it is none."""
    if not os.isatty(descriptor):
        return None
    with contextlib.suppress(OSError):
        return os.get_terminal_size(descriptor).columns or COLUMNS
    return COLUMNS


def columns_told(environment: Mapping[str, str]) -> int | None:
    """Columns of the launcher's terminal; None where it says of none.

    Raises
    ------
    ConfigError
        What stands there is no number of columns.
    """
    text = environment.get(TERMINAL)
    if text is not None and not (text.isdecimal() and int(text)):
        raise ConfigError(
            f"{TERMINAL} is {text!r}. Allowed: a number of columns, as 80. It is set by 'hpcrec run'; do not set it."
        )
    return None if text is None else int(text)


def columns_of(environment: Mapping[str, str]) -> int | None:
    """Columns of the terminal that this rank's stderr ends at by its launcher; None where it ends at none.

    Raises
    ------
    ConfigError
        As of ``columns_told``.
    """
    told = columns_told(environment)
    with contextlib.suppress(OSError, ValueError, AttributeError):  # what stands for stderr need be no file
        if told is None and sys.stderr.fileno() == STDERR:
            return columns_above(os.getppid())
    return told


def columns_above(process: int, own: int = STDERR) -> int | None:
    """Columns of the terminal that the launcher on this host writes ranks' stderr to; None where it writes to none.

    Parameters
    ----------
    process : int
        The rank's parent. A launcher may have been started by another one; the first of them is asked, by ``/proc``.
    own : int, optional
        The rank's stderr, which has to be a pipe: else it does not go to the launcher.
    """
    where = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        kind = os.fstat(own).st_mode
        handed_on = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
        while handed_on and (proc := Path(f"/proc/{process}")).joinpath("comm").read_text().strip() in _LAUNCHERS:
            words = proc.joinpath("cmdline").read_text().split("\0")[1:]
            # The program's own words are among them: where one of them is called so too, there are lines and no bar.
            if any(word.startswith("-") and word.lstrip("-").partition("=")[0] in _CHANGES for word in words):
                return None
            where = proc / "fd" / str(STDERR)
            process = int(proc.joinpath("stat").read_text().rpartition(")")[2].split()[1])
        # Not opened before it is known to be no file, which may be on a server that does not answer.
        if where is not None and str(where.readlink()).startswith("/dev/"):
            descriptor = os.open(where, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
            try:
                return columns_at(descriptor)
            finally:
                os.close(descriptor)
    return None


class Bar:
    """Shows steps as they are done, and what is known of them. What the stream does not take is left out.

    Parameters
    ----------
    stream : text file
    columns : int, optional
        Of the terminal that it ends at; by default it is asked itself whether it is one, and how wide.
    first_step, total_steps : int
        Steps done before, and steps of the whole run; None: not known.
    parts : callable
        What this rank's thread that steps did so far, as ``PhaseTimer.parts``.
    clock : callable
        Seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        columns: int | None = None,
        first_step: int = 0,
        total_steps: int | None = None,
        parts: Callable[[], Mapping[str, Seconds]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream, self._parts, self._clock = _Forgiving(stream), parts, clock
        self._first, self._step, self._total = first_step, first_step, total_steps
        self._shown: dict[str, str] = {}
        self._began_s, self._shown_s, self._shown_step = clock(), float("-inf"), first_step
        self._bar, self._columns = None, columns
        if columns is not None or stream.isatty():
            self._bar = tqdm(
                file=self._stream,
                total=total_steps,
                initial=first_step,
                bar_format=_COUNT if total_steps is None else _BAR,
                ncols=columns,
                dynamic_ncols=columns is None,
                mininterval=0,  # when it is drawn is decided here
                miniters=0,
            )

    def show(self, values: Mapping[str, Any]) -> None:
        """Takes ``loss``, ``samples_per_s``, ``wire_bytes_per_step`` and any ``auc``, to be shown from now on."""
        for name, value in values.items():
            if not isinstance(value, int | float):
                continue
            if name == "loss" or name.endswith("auc"):
                self._shown[name] = f"{value:.4f}"
            elif name == "samples_per_s":
                self._shown["samples/s"] = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
            elif name == "wire_bytes_per_step":
                self._shown["sent"] = f"{format_bytes(value)}/step"

    def step(self) -> None:
        """A step is done; shown if that is due."""
        self._step += 1
        if self._clock() - self._shown_s >= (LINE_EVERY_S if self._bar is None else BAR_EVERY_S):
            self._write()

    def close(self) -> None:
        """Shows the last step, and ends the bar; again does nothing."""
        if self._shown_step < self._step:
            self._write()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _write(self) -> None:
        self._shown_s, self._shown_step = self._clock(), self._step
        groups = of_groups(self._parts())
        if step_s := sum(worked_s + waited_s for worked_s, waited_s in groups.values()):
            self._shown["waiting"] = f"{sum(waited_s for _, waited_s in groups.values()) / step_s:.0%}"
        if (n_bytes := resident_bytes()) is not None:
            self._shown["memory"] = format_bytes(n_bytes)
        shown = dict(sorted(self._shown.items(), key=_place))
        left = []
        if self._total is not None and self._step > self._first:
            pace_s = (self._shown_s - self._began_s) / (self._step - self._first)
            left.append(f"{format_duration(max(self._total - self._step, 0) * pace_s)} left")
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._fitting([*left, *_on_bar(shown)])), refresh=False)
            self._bar.update(self._step - self._bar.n)
            return
        of = "" if self._total is None else f" of {self._total}"
        figures = [f"step {self._step}{of}", *(f"{name} {text}" for name, text in shown.items()), *left]
        self._stream.write(", ".join(figures) + "\n")  # in one piece: other ranks may write there too
        self._stream.flush()

    def _fitting(self, fields: Sequence[str]) -> list[str]:
        """As many of them, from the first on, as there is room for beside a bar of a column."""
        columns = self._columns
        if columns is None:
            with contextlib.suppress(OSError, ValueError):  # some consoles have no descriptor
                columns = columns_at(self._stream.fileno())
        columns = columns or COLUMNS
        counted = f"100%|x| {self._total}/{self._total}" if self._total is not None else f"{self._step} steps"
        ends = itertools.accumulate((len(field) + 2 for field in fields), initial=len(counted))
        return [field for field, end in zip(fields, itertools.islice(ends, 1, None), strict=False) if end <= columns]


def _on_bar(shown: Mapping[str, str]) -> list[str]:
    named = dict(shown)
    quality = next((name for name in _QUALITIES if name in named), None)
    if quality is not None:
        named["auc"] = named.pop(quality)
    first = [form.format(named.pop(name)) for name, form in _ON_BAR.items() if name in named]
    return [*first, *(f"{name} {text}" for name, text in named.items())]


def _place(shown: tuple[str, str]) -> int:
    """What comes first, the same in every line. Qualities follow the loss."""
    order = ("loss", "samples/s", "waiting", "memory", "sent")
    return 2 * order.index(shown[0]) if shown[0] in order else 1


class _Forgiving:
    """A stream: what it does not take, as under a full quota on a log, is no reason to fail."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # its encoding, for one

    def write(self, text: str) -> None:
        with forgiving(self._stream):
            self._stream.write(text)

    def flush(self) -> None:
        with forgiving(self._stream):
            self._stream.flush()


def resident_bytes() -> int | None:
    """Memory that this process holds now; None where the system does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None
