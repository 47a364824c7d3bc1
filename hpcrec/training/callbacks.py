"""Callbacks: what a run tells a user's own code while it goes on. Knows when and what, not what is done with it.

They are called on rank 0, on the main thread, between steps; what they raise ends the run as an error of its own would.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrec.errors import ConfigError

NAMES = ("on_begin", "on_step", "on_evaluation", "on_checkpoint", "on_end")
_COLUMNS = ("step", "name", "value")  # of CsvLog's files


class Callback:
    """What may be told; anything that has one of these methods or more is a callback, of this class or not."""

    def on_begin(self, step: int) -> None:
        """Training begins after so many steps: 0, or where the run goes on; what was told of later steps comes anew."""

    def on_step(self, step: int, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl was written that tells of training; ``line`` is what it says.

        There is one every ``train.log_every`` steps: with 1, one a step.
        """

    def on_evaluation(self, step: int, line: Mapping[str, Any]) -> None:
        """The same of an evaluation on the validation data: ``validation_auc`` and so on."""

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """The checkpoint of ``step`` is whole, in ``folder``."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """The run has ended; ``summary`` is what summary.json says, ``status`` how: finished, stopped or failed."""


class CsvLog(Callback):
    """Writes the numbers of a run to a CSV file, one a line: step, name, value.

    What the file held is replaced; where a run goes on, that of the steps before stays.

    Parameters
    ----------
    path : Path or str
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    def on_begin(self, step: int) -> None:
        """See ``Callback``."""
        before: list[list[str]] = []
        if step > 0 and self._path.exists():
            with self._path.open(newline="") as file:
                held = csv.reader(file)
                if next(held, None) == list(_COLUMNS):
                    before = [row for row in held if row[:1] and row[0].isdigit() and int(row[0]) <= step]
        with self._path.open("w", newline="") as file:
            csv.writer(file).writerows([_COLUMNS, *before])

    def on_step(self, step: int, line: Mapping[str, Any]) -> None:
        """See ``Callback``."""
        numbers = {name: value for name, value in line.items() if isinstance(value, int | float) and name != "step"}
        with self._path.open("a", newline="") as file:
            csv.writer(file).writerows((step, name, value) for name, value in numbers.items())

    on_evaluation = on_step


def check(callbacks: Sequence[Any]) -> tuple[Any, ...]:
    """The callbacks themselves.

    Raises
    ------
    ConfigError
        One has none of a callback's methods: it would never be called.
    """
    for one in callbacks:
        if isinstance(one, type) or not any(callable(getattr(one, name, None)) for name in NAMES):
            raise ConfigError(
                f"callbacks: {one!r} would never be called. Allowed: objects with one or more of the methods "
                f"{', '.join(NAMES)}. Give one of them one, or leave it out."
            )
    return tuple(callbacks)


def tell(callbacks: Sequence[Any], name: str, *said: Any) -> None:
    """Calls the method of this name of each callback that has it."""
    for one in callbacks:
        if (method := getattr(one, name, None)) is not None:
            method(*said)
