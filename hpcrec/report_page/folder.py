"""A run folder, read for its page: what it has written so far, whether it has ended or not.

Knows the files of a run folder and what may be wrong with them; nothing of how they are shown.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrec import toml
from hpcrec.again import is_folder, is_there, read_again
from hpcrec.errors import ConfigError, DataError
from hpcrec.training import attempts
from hpcrec.training.telemetry import SUMMARY_KEYS

NEEDED = ("status", "steps", "samples", "eval", "throughput")  # a summary without one of these says nothing
_NOTHING: dict[str, Any] = {  # of a summary that says nothing; keys that are not here have an empty mapping
    "status": "",
    "steps": 0,
    "samples": 0,
    "skipped_steps": 0,
    "dropped_features": 0,
    "slow_ranks": [],
    "advice": [],
    "time": {"ranks": {}, "roles": {}},
    "drains": {"number": 0, "s": 0.0},
}
_SHOWN = 60  # characters of a damaged line in a message


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What is known of a run.

    Attributes
    ----------
    name : str
        As the page calls it.
    folder : Path
    state : str
        ``finished``, ``stopped``, ``failed``; of a run without a summary what ``hpcrec status`` says of it.
    summary : mapping
        Of summary.json, with every key that the tables ask for; empty where the run has none.
    lines : sequence of mapping
        The whole lines of metrics.jsonl.
    left_out : int
        Lines that are not whole.
    config : mapping
        Of config.toml, by section.
    config_text : str
        The same, as it is written.
    attempts : sequence of tuple of str
        Rows under ``attempts.ROW_HEADS``.
    spans_s : sequence of (float, float)
        When each attempt began and ended, in seconds since the epoch.
    """

    name: str
    folder: Path
    state: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    lines: Sequence[Mapping[str, Any]] = ()
    left_out: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    attempts: Sequence[tuple[str, ...]] = ()
    spans_s: Sequence[tuple[float, float]] = ()


def read_run(folder: Path, name: str, state_of: Callable[[Path], str]) -> Ran:
    """The run in a folder, which may be written to at this moment.

    Parameters
    ----------
    name : str
        What the page calls it.
    state_of : callable
        Asked for the state of a run that has written no summary.

    Raises
    ------
    ConfigError
        It is no folder, or no run folder.
    DataError
        A file in it is damaged: summary.json, or metrics.jsonl before its end. A last line that is cut short is not
        damaged: a run may be writing it.
    UnreadableError
        A file cannot be read, at any try.
    """
    folder = Path(folder)
    if not is_folder(folder):
        what = "is a file" if is_there(folder) else "no such folder"
        raise ConfigError(f"{folder}: {what}. Give the run.folder of a run, which has config.toml in it.")
    if not is_there(folder / "config.toml"):
        raise ConfigError(f"{folder}: has no config.toml, so it is no run folder. Give the run.folder of a run.")
    summary = _summary(folder / "summary.json")
    lines, left_out = _lines(folder / "metrics.jsonl", strict=True)
    state = str(summary["status"]) if summary else state_of(folder)
    return _whole(folder, name, state, summary, lines, left_out)


def of_ended(folder: Path, summary: Mapping[str, Any]) -> Ran:
    """A run that ends here with this summary; lines that are not whole are left out wherever they are.

    Parameters
    ----------
    summary : mapping
        As summary.json has it.
    """
    lines, left_out = _lines(folder / "metrics.jsonl", strict=False)
    return _whole(folder, folder.absolute().name, str(summary["status"]), filled(summary), lines, left_out)


def filled(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary with all keys that a release of hpcrec writes: one of before may lack those that were not known."""
    return {**{key: _NOTHING.get(key, {}) for key in SUMMARY_KEYS if key != "attempts"}, **summary}


def _whole(
    folder: Path, name: str, state: str, summary: Mapping[str, Any], lines: list[dict[str, Any]], left_out: int
) -> Ran:
    config = folder / "config.toml"
    text = read_again(config, config.read_bytes).decode(errors="replace") if is_there(config) else ""
    return Ran(
        name=name,
        folder=folder.absolute(),
        state=state,
        summary=summary,
        lines=lines,
        left_out=left_out,
        config=toml.read(config) if text else {},
        config_text=text,
        attempts=attempts.rows(folder),
        spans_s=attempts.spans(attempts.read(folder)),
    )


def _summary(path: Path) -> dict[str, Any]:
    """Of summary.json; empty where it is not there."""
    if not is_there(path):
        return {}
    again = "Write the page without it: move it away, or let the run go on, which writes it anew."
    try:
        found = json.loads(read_again(path, path.read_bytes))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}), as a run writes it. {again}") from error
    missing = [key for key in NEEDED if key not in found] if isinstance(found, dict) else ["keys"]
    if missing:
        raise DataError(f"{path}: has no {missing[0]}, so it is no summary of a run. {again}")
    for key, nothing in filled({}).items():
        value = found.get(key, nothing)
        if not isinstance(value, type(nothing)) and value != []:  # as empty mappings have been written, too
            raise DataError(f"{path}: {key} is {json.dumps(value)[:_SHOWN]}, and not what a run writes there. {again}")
    return filled(found)


def _lines(path: Path, *, strict: bool) -> tuple[list[dict[str, Any]], int]:
    """The whole lines of metrics.jsonl, and how many are not; with ``strict`` only behind the last whole one."""
    if not is_there(path):
        return [], 0
    whole: list[dict[str, Any]] = []
    damaged: list[tuple[int, str]] = []
    for number, text in enumerate(read_again(path, path.read_bytes).decode(errors="replace").splitlines(), start=1):
        line = _line(text)
        if line is None:
            damaged.append((number, text))
            continue
        if damaged and strict:
            bad, said = damaged[0]
            raise DataError(
                f"{path}, line {bad}: is {said[:_SHOWN]!r}, and not a JSON object with a whole number as its step, "
                "though whole lines follow. Take the line out, or restore the file."
            )
        whole.append(line)
    return whole, len(damaged)


def _line(text: str) -> dict[str, Any] | None:
    """A line of metrics, if it is one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and type(found.get("step")) is int else None
