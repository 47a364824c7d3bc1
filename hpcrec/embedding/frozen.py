"""Rows as they were at one step, read by another thread while steps go on.

A step tells which rows it is about to change (``keep``); those that nobody has read yet are copied first. So what is
copied is what was changed since, once a row, and not the table. Copies beyond a budget of memory go to a file. Knows
rows by number; does not know what reads them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from hpcrec.errors import HpcrecError
from hpcrec.types import Floats, Ints

Values = dict[str, Floats]  # by state's name, "" being the rows'


@dataclass(frozen=True)
class _Run:
    """Copies of rows, by rising number."""

    rows: Ints
    values: Values

    @property
    def n_bytes(self) -> int:
        return self.rows.nbytes + sum(v.nbytes for v in self.values.values())


class FrozenRows:
    """Of one arena. ``keep`` is the step's thread's, ``take`` another one's; each row is taken once.

    Parameters
    ----------
    arrays : mapping of str to float [N, ...]
        Rows, under "", and states.
    wanted : bool [N]
        Which rows will be taken; the array is used up.
    spill : Path
        The file for copies beyond the budget; made when there are any.
    budget_bytes : int
        Of memory for copies. Some more are used for a moment when they are sorted.
    """

    def __init__(self, arrays: Mapping[str, Any], wanted: np.ndarray, spill: Path, budget_bytes: int) -> None:
        self._arrays = dict(arrays)
        self._done = np.logical_not(wanted, out=wanted)  # taken, or copied
        self._spill, self._budget_bytes, self._spilled_bytes = spill, budget_bytes, 0
        self._fresh: list[_Run] = []  # in the order in which they came
        self._fresh_bytes = 0
        self._runs: list[_Run] = []
        self._lock = Lock()  # of what is done and what is fresh: held for a moment
        self._sorting = Lock()  # of runs
        self._failure: OSError | None = None

    def keep(self, rows: Any) -> None:
        """Copies those of these distinct rows [U] that nobody has taken or copied; they are about to change."""
        numbers = np.asarray(rows)
        with self._lock:
            new = numbers[~self._done[numbers]]
            if not len(new) or self._failure is not None:
                return
            run = _Run(new, {name: _picked(array, new) for name, array in self._arrays.items()})
            self._done[new] = True
            self._fresh.append(run)
            self._fresh_bytes += run.n_bytes
            full = self._fresh_bytes > self._budget_bytes // 4
        if full:
            self._sort()

    def take(self, rows: slice | Ints) -> Values:
        """Values of these rows as they were.

        Raises
        ------
        HpcrecError
            Copies could not be written to the file.
        """
        found = {name: _picked(array, rows) for name, array in self._arrays.items()}
        with self._lock:
            kept = np.flatnonzero(self._done[rows])
            self._done[rows] = True
        if len(kept):
            self._sort()
            if self._failure is not None:
                raise HpcrecError(
                    f"{self._spill}: rows that changed while a checkpoint was written cannot be kept there "
                    f"({self._failure.strerror}). Free space there, or set checkpoint.background = false."
                )
            with self._sorting:
                for run in self._runs:
                    _fill(found, run, rows, kept)
        return found

    def close(self) -> None:
        """Everything is taken, or will not be: copies go."""
        with self._sorting, self._lock:
            self._done[:] = True
            self._fresh, self._runs = [], []
            self._spill.unlink(missing_ok=True)

    def _sort(self) -> None:
        """Makes one run of what is fresh, of similar ones one, and takes them to the file where they are too much."""
        with self._sorting:
            with self._lock:
                fresh, self._fresh, self._fresh_bytes = self._fresh, [], 0
            if not fresh:
                return
            self._runs.append(_joined(fresh))
            in_memory = [run for run in self._runs if not isinstance(run.rows, np.memmap)]
            if sum(run.n_bytes for run in in_memory) > self._budget_bytes // 2:
                on_disk = [run for run in self._runs if isinstance(run.rows, np.memmap)]
                try:
                    self._runs = [*on_disk, self._written(_joined(in_memory))]
                except OSError as error:  # whoever takes rows says so
                    self._failure, self._runs = error, []
                return
            while len(self._runs) > 1 and _alike(*self._runs[-2:]):
                self._runs[-2:] = [_joined(self._runs[-2:])]

    def _written(self, run: _Run) -> _Run:
        """The same, in the file."""
        arrays: dict[str, Any] = {"rows": run.rows, **{"/" + name: v for name, v in run.values.items()}}
        with self._spill.open("ab") as file:
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)
        for name, array in arrays.items():
            arrays[name] = np.memmap(self._spill, array.dtype, "r", self._spilled_bytes, array.shape)
            self._spilled_bytes += array.nbytes
        return _Run(arrays.pop("rows"), {name[1:]: array for name, array in arrays.items()})


def _picked(array: Any, rows: slice | Ints) -> Floats:
    """A copy, in the host's memory."""
    if not isinstance(array, np.ndarray):
        return np.asarray(array[rows])
    picked: Floats = array[rows].copy() if isinstance(rows, slice) else array.take(rows, axis=0)
    return picked


def _alike(one: _Run, other: _Run) -> bool:
    return not isinstance(one.rows, np.memmap) and len(other.rows) > len(one.rows) // 2


def _joined(runs: list[_Run]) -> _Run:
    """One run; no row is in two."""
    rows = np.concatenate([run.rows for run in runs])
    order = np.argsort(rows)
    return _Run(rows[order], {n: np.concatenate([r.values[n] for r in runs])[order] for n in runs[0].values})


def _fill(found: Values, run: _Run, rows: slice | Ints, kept: Ints) -> None:
    """Puts the copies of a run where the rows are that were kept."""
    if isinstance(rows, slice):
        first, last = np.searchsorted(run.rows, (rows.start, rows.stop))
        source: slice | Ints = slice(first, last)
        target = np.asarray(run.rows[source]) - rows.start
    else:
        at = np.searchsorted(run.rows, rows[kept]).clip(max=len(run.rows) - 1)
        hit = run.rows[at] == rows[kept]
        source, target = at[hit], kept[hit]
    for name, values in run.values.items():
        found[name][target] = values[source]
