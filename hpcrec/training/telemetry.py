"""What a run tells about itself: phase and step times, metrics.jsonl, TensorBoard, a progress bar, summary.json.

Rank 0 writes; every rank may time. Knows numbers and files, not what is trained; counts of bytes come from the ledger,
qualities from ``metrics``. The page and the table that show them are ``report``.
"""

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import resource
import socket
import struct
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from hpcrec.again import is_there, read_json_lines
from hpcrec.clock import Seconds
from hpcrec.comm.failure import say
from hpcrec.data.files import write_text, writing
from hpcrec.errors import OutputError
from hpcrec.training.bar import Bar
from hpcrec.training.calibration import told
from hpcrec.training.callbacks import tell
from hpcrec.training.metric_names import TABLES
from hpcrec.units import KiB

STATUSES = ("finished", "stopped", "failed")
# What summary.json consists of: a nested mapping says which keys, None that anything goes.
SUMMARY_KEYS: dict[str, Any] = {
    "status": None,
    "ended": dict.fromkeys(("by", "total_steps", "metric", "evaluations", "signal")),
    "steps": None,
    "samples": None,
    "skipped_steps": None,
    "dropped_features": None,
    "attempts": dict.fromkeys(("number", "total_s", "lost_steps", "lost_s")),
    "eval": None,  # metrics have names that a run chooses
    "throughput": {"samples_per_s": None, "step_ms": {"p50": None, "p95": None}},
    "wire_bytes": None,
    "wire_messages": None,  # empty where a run went on from a checkpoint that does not say them
    "dense_compression": None,
    "exchange_thresholds": None,
    "exchange": None,
    "time": dict.fromkeys(("ranks", "roles")),
    "phase_s": None,
    "drains": {"number": None, "s": None},
    "slow_ranks": None,
    "read_age": None,  # empty where rows lack no update
    "peak_rss_bytes": None,
    "owners": None,
    "imbalance": None,
    "copies": None,
    "rows_ahead": None,
    "dynamic_tables": None,
    "threads": None,
    "topology": None,
    "versions": None,
    "advice": None,
}
_OPTIONAL = ("attempts", "ended.metric", "ended.evaluations", "ended.signal")  # the last three: of one that ended early
_FAILED_KEYS: dict[str, Any] = {"error": None}  # besides, in the summary of a run that failed
_PACKAGES = ("hpcrec", "torch", "numpy", "h5py", "horovod", "mpi4py")
_RECENT_STEPS = 20  # over which the samples/s that are shown are taken


class Telemetry:
    """Writes what a run tells; on other ranks than the first it only counts.

    Parameters
    ----------
    folder : Path
        The run's folder.
    active : bool
        Whether this rank writes.
    first_step, total_steps : int
        Steps done before (a resumed run) and steps of the whole run. Lines of metrics.jsonl past ``first_step`` are
        from a run that was interrupted after its last checkpoint; they are dropped, and written anew.
    tensorboard, progress : bool
        Whether to write TensorBoard's files, and to show progress on stderr (``bar``).
    columns : int, optional
        Of the launcher's terminal, as ``bar`` knows it; by default stderr is asked itself.
    parts : callable
        What this rank's thread that steps did so far, as ``PhaseTimer.parts``.
    callbacks : sequence
        Told of what happens, on the rank that writes: see ``callbacks.Callback``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        active: bool,
        first_step: int = 0,
        total_steps: int | None = None,
        tensorboard: bool = True,
        progress: bool = True,
        columns: int | None = None,
        parts: Callable[[], Mapping[str, Seconds]] = dict,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self.folder = Path(folder)
        self._samples = 0
        self._step_s = array("d")
        self._lines: _Appended | None = None
        self._board: _TensorBoard | None = None
        self._bar: Bar | None = None
        self._callbacks: list[Any] = []
        if not active:
            return
        self._callbacks += callbacks
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "metrics.jsonl"
        _keep_until(path, first_step)
        self._lines = _Appended(path, "lines")
        if tensorboard:
            try:
                self._board = _TensorBoard(self.folder / "tensorboard", first_step)
                self._callbacks.insert(0, self._board)
            except OutputError as error:
                say(f"hpcrec: {error} TensorBoard is left out: the run goes on without it.\n")
        if progress:
            self._bar = Bar(sys.stderr, columns=columns, first_step=first_step, total_steps=total_steps, parts=parts)

    def begin(self, step: int) -> None:
        """Training begins after so many steps."""
        tell(self._callbacks, "on_begin", step)

    def step(self, seconds: float, samples: int, *, loss: float | None = None, wire_bytes: float | None = None) -> None:
        """Counts one step.

        Parameters
        ----------
        seconds : float
            That it took.
        samples : int
            Of the global batch.
        loss : float, optional
            Mean over the global batch, where it is known.
        wire_bytes : float, optional
            Sent by all ranks in this step, where it is known.
        """
        self._samples += samples
        self._step_s.append(seconds)
        if self._bar is None:
            return
        recent_s = self._step_s[-_RECENT_STEPS:]
        if sum(recent_s) > 0:
            self._bar.show({"samples_per_s": samples * len(recent_s) / sum(recent_s)})
        self._bar.show({"loss": loss, "wire_bytes_per_step": wire_bytes})
        self._bar.step()

    def log(self, step: int, values: Mapping[str, Any], *, evaluation: bool = False) -> None:
        """Writes a line of metrics.jsonl: ``{"step", "time", **values}``, of steps or of an ``evaluation``.

        Numbers that JSON cannot hold (nan, infinities) become null. ``Bar.show`` says which of them are shown. What
        cannot be written of either file is kept, and written with a later line.
        """
        if self._lines is None:
            return
        line = as_json({"step": step, "time": round(time.time(), 3), **values})
        self._lines.add((json.dumps(line) + "\n").encode())
        if self._bar is not None:
            self._bar.show({name: value for name, value in values.items() if name != "samples_per_s"})  # it has newer
        tell(self._callbacks, "on_evaluation" if evaluation else "on_step", step, line)

    def saved(self, step: int, folder: Path) -> None:
        """The checkpoint of a step is whole, in this folder."""
        tell(self._callbacks, "on_checkpoint", step, folder)

    def throughput(self) -> dict[str, Any]:
        """Samples a second, and the median and 95th percentile of step times, as summary.json has them."""
        if not self._step_s:
            return {"samples_per_s": 0.0, "step_ms": {"p50": 0.0, "p95": 0.0}}
        p50, p95 = np.percentile(np.array(self._step_s), (50, 95)) * 1e3
        total_s = sum(self._step_s)
        rate = self._samples / total_s if total_s > 0 else 0.0
        return {"samples_per_s": rate, "step_ms": {"p50": float(p50), "p95": float(p95)}}

    def close(self) -> None:
        """Ends the bar and the files; again does nothing."""
        for thing in (self._bar, self._board, self._lines):
            if thing is not None:
                with contextlib.suppress(OSError):  # a full disk
                    thing.close()
        self._bar = self._board = self._lines = None
        self._callbacks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Appended:
    """A file to whose end pieces are added. What the disk does not take is kept until it does: it is said once.

    Parameters
    ----------
    path : Path
    unit : str
        What a piece is called, in the plural.

    Raises
    ------
    OutputError
        It cannot be opened.
    """

    def __init__(self, path: Path, unit: str) -> None:
        self._path, self._unit = path, unit
        self._left = deque[bytes]()
        with writing(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._at = os.fstat(self._file).st_size
        self._refused = False

    def add(self, *pieces: bytes) -> None:
        """Adds pieces, after what was left of earlier ones."""
        self._left += pieces
        try:
            while self._left:  # at its place: what a cut write has left there is written over
                n_bytes = os.pwrite(self._file, self._left[0], self._at)
                self._at, self._left[0] = self._at + n_bytes, self._left[0][n_bytes:]
                if not self._left[0]:
                    self._left.popleft()
        except OSError as error:
            if not self._refused:
                kept = f"its {self._unit} are kept, and tried with the next"
                say(f"hpcrec: {self._path}: cannot be written ({error.strerror}); {kept}\n")
            self._refused = True
        else:
            self._refused = False

    def close(self) -> None:
        """Tries what is left once more, and says how much is lost."""
        self.add()
        if self._left:
            say(f"hpcrec: {self._path}: its last {len(self._left)} {self._unit} could not be written\n")
        os.close(self._file)


class _TensorBoard:
    """A file of TensorBoard's events: one a line of metrics.jsonl, with its numbers.

    Only the events are tensorboardX's: its writer has a thread, which ends by an error where the disk is full, and then
    blocks whoever adds to it.

    Parameters
    ----------
    folder : Path
        Is made.
    first_step : int
        Of a resumed run: what TensorBoard has found past it in other files is of no more account.

    Raises
    ------
    OutputError
        The file, or its folder, cannot be made.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboardX import proto, record_writer, summary  # only where it is asked for

        self._checksum, self._scalar = record_writer.masked_crc32c, summary.scalar
        self._events = events = proto.event_pb2
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._file = _Appended(folder / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}", "records")
        self._add(file_version="brain.Event:2")
        if first_step > 0:
            self._add(step=first_step, session_log=events.SessionLog(status=events.SessionLog.START))

    def on_step(self, step: int, line: Mapping[str, Any]) -> None:
        """Adds the numbers of a line of metrics.jsonl, by name; of tables those that they tell."""
        said = {name: value for name, value in line.items() if name not in ("step", "time")}
        for name in [name for name in said if name.endswith(TABLES)]:
            said |= told(name, said[name])
        numbers = {name: float(value) for name, value in said.items() if isinstance(value, int | float)}
        if numbers:
            values = [value for name, number in numbers.items() for value in self._scalar(name, number).value]
            self._add(step=step, summary={"value": values})

    on_evaluation = on_step

    def close(self) -> None:
        """Ends the file, as ``_Appended`` does."""
        self._file.close()

    def _add(self, **event: Any) -> None:
        content = self._events.Event(wall_time=time.time(), **event).SerializeToString()
        size = struct.pack("<Q", len(content))
        sums = [struct.pack("<I", self._checksum(part)) for part in (size, content)]
        self._file.add(size + sums[0] + content + sums[1])


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; what is not whole is left out."""
    return [line for line in read_json_lines(Path(folder) / "metrics.jsonl") if type(line.get("step")) is int]


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes summary.json, whole or not at all.

    Raises
    ------
    ValueError
        Keys other than ``SUMMARY_KEYS``, or a status other than ``STATUSES``.
    """
    _check_keys(summary, {**SUMMARY_KEYS, **(_FAILED_KEYS if summary.get("status") == "failed" else {})}, "")
    if summary["status"] not in STATUSES:
        raise ValueError(f"summary.json: status is {summary['status']!r}. Allowed: {', '.join(STATUSES)}.")
    for name in ("wire_bytes", "wire_messages"):
        for tag, counts in summary[name].items():
            _check_keys(counts, {"same_host": None, "cross_host": None}, f"{name}.{tag}.")
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_text(Path(folder) / "summary.json", json.dumps(as_json(summary), indent=2) + "\n")


def _check_keys(found: Mapping[str, Any], wanted: Mapping[str, Any], above: str) -> None:
    missing = [key for key in wanted if key not in found and above + key not in _OPTIONAL]
    unknown = [key for key in found if key not in wanted]
    if missing or unknown:
        said = f"has no {above}{missing[0]}" if missing else f"has an unknown key {above}{unknown[0]}"
        raise ValueError(f"summary.json: {said}. Allowed: {', '.join(above + key for key in wanted)}.")
    for key, inner in wanted.items():
        if inner is not None and key in found:
            _check_keys(found[key], inner, f"{above}{key}.")


def as_json(value: Any) -> Any:
    """A value as strict JSON holds it: arrays as lists, paths as text, nan and infinities as None, keys as text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return as_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value


def peak_rss_bytes() -> int:
    """Most memory that this process has held at once."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * KiB
    unit_bytes = 1 if sys.platform == "darwin" else KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes


def versions() -> dict[str, str]:
    """What the bits of a result depend on besides its configuration; MPI's part is ``comm.world.versions``."""
    found = {"python": platform.python_version(), "cpu": _cpu_model(), "threads": str(torch.get_num_threads())}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _keep_until(path: Path, step: int) -> None:
    """Drops the lines after ``step``, and all of them at step 0."""
    if not is_there(path):
        return
    lines = read_metrics(path.parent) if step > 0 else []
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines if line["step"] <= step))
