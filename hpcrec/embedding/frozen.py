"""Rows as they were at one step, read by another thread while steps go on.

A step tells which rows it is about to change (``keep``); those that nobody has read yet are copied first. So what is
copied is what was changed since, once a row, and not the table. Copies beyond a budget of memory go to a file. Knows
rows by number; does not know what reads them.
"""

import errno
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from hpcrec.errors import CheckpointError
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


_Place = tuple[int, np.dtype[Any], tuple[int, ...]]
_BLOCK = 64  # rows of a run in a file of which memory has the first one's number


@dataclass(frozen=True)
class _Written:
    """Where a run's arrays are in the file: offset, type and shape of its rows, and of its values by name.

    ``firsts`` are the numbers of every ``_BLOCK``-th row: what is looked for is read in blocks, not the whole run.
    """

    rows: _Place
    values: dict[str, _Place]
    firsts: Ints


class _File:
    """Runs in a file, which is made with the first one; one descriptor, however many there are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._n_bytes = 0
        self._made = False

    def write(self, run: _Run) -> _Written:
        self._made = True
        with self.path.open("ab") as file:
            values = {name: self._put(file, array) for name, array in run.values.items()}
            return _Written(self._put(file, run.rows), values, run.rows[::_BLOCK].copy())

    def _put(self, file: IO[bytes], array: np.ndarray) -> _Place:
        at = self._n_bytes
        file.write(np.ascontiguousarray(array).data)
        self._n_bytes += array.nbytes
        return at, array.dtype, array.shape

    def read(self, written: _Written, bounds: Iterable[tuple[int, int]]) -> Iterator[_Run]:
        """What there is of a run of rows from a number to another one, for each of these bounds."""
        # Not mapped: what a server does not give would be a signal.
        with self.path.open("rb", buffering=0) as file:
            for first, last in bounds:
                begin = max(0, int(np.searchsorted(written.firsts, first, "right")) - 1) * _BLOCK
                end = min(int(np.searchsorted(written.firsts, last)) * _BLOCK, written.rows[2][0])
                if begin >= end:
                    continue
                rows = self._get(file, written.rows, begin, end)
                low, high = begin + np.searchsorted(rows, (first, last))
                if low < high:
                    values = {name: self._get(file, place, low, high) for name, place in written.values.items()}
                    yield _Run(rows[low - begin : high - begin], values)

    def _get(self, file: FileIO, place: _Place, begin: int, end: int) -> np.ndarray:
        at, dtype, (_, *row) = place
        values = np.empty((end - begin, *row), dtype)
        left = values.reshape(-1).view(np.uint8).data
        file.seek(at + begin * math.prod(row) * dtype.itemsize)
        while left:
            if not (n_bytes := file.readinto(left)):
                raise OSError(errno.EIO, "the file ends before its size", str(self.path))
            left = left[n_bytes:]
        return values

    def remove(self) -> None:
        """Where it was never made, no file server is asked."""
        if self._made:
            self.path.unlink(missing_ok=True)


class FrozenRows:
    """Of one block. ``keep`` is the step's thread's, ``take`` another one's; each row is taken once.

    Parameters
    ----------
    copies : callable
        Rows by number, a slice or int64 [U] -> copies of them, under "", and of their states, the host's; as
        ``copied`` makes them of arrays. Called by both threads.
    a_row_bytes : int
        Of one, as ``row_bytes`` says.
    wanted : bool [N]
        Which rows will be taken; the array is used up.
    spill : Path
        The file for copies beyond the budget; made when there are any.
    budget_bytes : int
        Of memory for copies. Up to twice as much more is used for a moment when they are sorted.
    """

    def __init__(
        self,
        copies: Callable[[slice | Ints], Values],
        a_row_bytes: int,
        wanted: np.ndarray,
        spill: Path,
        budget_bytes: int,
    ) -> None:
        self._copies = copies
        self._wanted = wanted  # and neither taken nor copied
        self._file, self._budget_bytes = _File(spill), budget_bytes
        self._most_rows = max(1, budget_bytes // 4 // a_row_bytes)  # copied at once
        self._fresh: list[_Run] = []  # in the order in which they came
        self._fresh_bytes = 0
        self._runs: list[_Run | _Written] = []
        self._lock = Lock()  # of what is wanted and what is fresh: held for a moment
        self._sorting = Lock()  # of runs
        self._failure: OSError | None = None

    def keep(self, rows: Any) -> None:
        """Copies those of these distinct rows [U] that nobody has taken or copied; they are about to change."""
        numbers = np.asarray(rows)
        for start in range(0, len(numbers), self._most_rows):
            self._keep(numbers[start : start + self._most_rows])

    def _keep(self, numbers: Ints) -> None:
        with self._lock:
            new = numbers[self._wanted[numbers]]
            if not len(new) or self._failure is not None:
                return
            run = _Run(new, self._copies(new))
            self._wanted[new] = False
            self._fresh.append(run)
            self._fresh_bytes += run.n_bytes
            full = self._fresh_bytes > self._budget_bytes // 4
        if full:
            self._sort()

    def take(self, rows: slice | Ints) -> Values:
        """Values of these rows, all of them wanted, as they were.

        Raises
        ------
        CheckpointError
            Copies could not be written to the file.
        OSError
            They cannot be read from it.
        """
        found = self._copies(rows)
        with self._lock:
            kept = np.flatnonzero(~self._wanted[rows])
            self._wanted[rows] = False
        if len(kept):
            self._sort()
        with self._sorting:
            runs, failure = list(self._runs), self._failure
        if failure is not None:
            raise CheckpointError(
                f"{self._file.path}: rows that change while a checkpoint is written cannot be kept there "
                f"({failure.strerror}). Mend that, or set checkpoint.background = false."
            )
        for run in runs if len(kept) else ():  # outside the lock, which a step may wait for
            parts = self._file.read(run, _bounds(rows, kept, run.firsts)) if isinstance(run, _Written) else (run,)
            for part in parts:
                _fill(found, part, rows, kept)
        return found

    def close(self) -> None:
        """Everything is taken, or will not be: copies go."""
        with self._sorting, self._lock:
            self._wanted = np.zeros(len(self._wanted), bool)
            self._fresh, self._runs = [], []
            self._file.remove()

    def _sort(self) -> None:
        """Makes one run of what is fresh, of similar ones one, and takes them to the file where they are too much."""
        with self._sorting:
            with self._lock:
                fresh, self._fresh, self._fresh_bytes = self._fresh, [], 0
            if not fresh:
                return
            in_memory = [run for run in self._runs if isinstance(run, _Run)]
            written = [run for run in self._runs if isinstance(run, _Written)]
            in_memory.append(_joined(fresh))
            if sum(run.n_bytes for run in in_memory) > self._budget_bytes // 2:
                try:
                    written.append(self._file.write(_joined(in_memory)))
                except OSError as error:  # whoever takes rows says so
                    self._failure, written = error, []
                in_memory = []
            while len(in_memory) > 1 and len(in_memory[-1].rows) > len(in_memory[-2].rows) // 2:
                in_memory[-2:] = [_joined(in_memory[-2:])]
            self._runs = [*written, *in_memory]


def row_bytes(arrays: Mapping[str, Any]) -> int:
    """Of one row in all of these arrays, and its id."""
    return 8 + sum(array.dtype.itemsize * math.prod(array.shape[1:]) for array in arrays.values())


def copied(arrays: Mapping[str, Any], rows: slice | Ints) -> Values:
    """Copies of rows of arrays [N, ...], in the host's memory."""
    return {name: _picked(array, rows) for name, array in arrays.items()}


def _picked(array: Any, rows: slice | Ints) -> Floats:
    if not isinstance(array, np.ndarray):
        return np.asarray(array[rows])
    picked: Floats = array[rows].copy() if isinstance(rows, slice) else array.take(rows, axis=0)
    return picked


def _joined(runs: list[_Run]) -> _Run:
    """One run; no row is in two."""
    rows = np.concatenate([run.rows for run in runs])
    order = np.argsort(rows)
    return _Run(rows[order], {n: np.concatenate([r.values[n] for r in runs])[order] for n in runs[0].values})


def _bounds(rows: slice | Ints, kept: Ints, firsts: Ints) -> list[tuple[int, int]]:
    """From which number to which one rows of a run are looked for, whose blocks begin with these: few, and short."""
    if isinstance(rows, slice):
        return [(rows.start, rows.stop)]
    wanted = np.sort(rows[kept])
    block = np.searchsorted(firsts, wanted, "right")
    starts = np.flatnonzero(np.diff(block, prepend=block[0] - 2) > 1)  # neighbours are read together
    ends = np.append(starts[1:], len(wanted)) - 1
    return list(zip(wanted[starts].tolist(), (wanted[ends] + 1).tolist(), strict=True))


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
