"""The attempts that one run took: attempts.jsonl in its folder, over any number of jobs, kills and restarts.

A line says when an attempt began or ended, and at which step, or that a checkpoint failed and is tried again. An
attempt that is killed says nothing of its end: the launcher says it then, or the next attempt, by the last that is
found of it. Knows files of a run's folder, neither sessions nor
ranks, and imports nothing heavy, for the launcher reads it too.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcrec.again import is_there, names_in, read_again, read_json_lines
from hpcrec.data.files import named, sync, writing

FILE = "attempts.jsonl"


def now() -> str:
    """The time of day as the file has it: ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class Allocation:
    """What a run computes in: a job of Slurm, None outside of it, how often it has been requeued, and its cluster."""

    job: str | None = None
    restart: int = 0
    cluster: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Allocation":
        """The one that Slurm's variables tell of."""
        restart = int(environment.get("SLURM_RESTART_COUNT", "0"))
        return cls(environment.get("SLURM_JOB_ID"), restart, environment.get("SLURM_CLUSTER_NAME"))


def begin(run: Path, at: str, step: int, ranks: int, hosts: Sequence[str], allocation: Allocation) -> None:
    """Adds that an attempt began, and first the end of the one before where that has none. On one rank.

    Parameters
    ----------
    at : str
        When, as ``now``.
    step : int
        Steps done before: what earlier attempts did past it has to be done again, and counts as lost.

    Raises
    ------
    OutputError
        The file cannot be written; as of ``end``.
    """
    events = read(run)
    if step == 0 and events and events[-1].get("status") == "finished":  # the run before this one, done with
        (run / FILE).unlink()
        events = []
    if events and events[-1]["event"] == "begin":
        seen_s, seen = _last_seen(run, events[-1])
        end(run, seen, "killed", _iso(seen_s))
        events = read(run)
    lost_steps, lost_s = _lost(run, events, step)
    of = {"job": allocation.job, "restart": allocation.restart}
    whole = {"event": "begin", "at": at, "step": step, "ranks": ranks, "hosts": list(hosts), **of}
    _append(run, {**whole, "lost_steps": lost_steps, "lost_s": lost_s})


def end(run: Path, step: int, status: str, at: str | None = None, *, lost: Sequence[str] = ()) -> None:
    """Adds that the attempt under way ended; does nothing where its end is told, or none is under way.

    Parameters
    ----------
    step : int
        Steps done.
    status : str
        ``finished``, ``stopped``, ``failed`` or ``killed``.
    at : str, optional
        When; now by default.
    lost : sequence of str
        Nodes that went down, for which it ended.
    """
    events = read(run)
    if events and events[-1]["event"] == "begin":
        why = {"lost_nodes": list(lost)} if lost else {}
        _append(run, {"event": "end", "at": at or now(), "step": step, "status": status, **why})


def note_retry(run: Path, step: int, due_at: int, why: str) -> None:
    """Adds that a checkpoint failed, as was known after ``step``, and after which step it is tried again.

    Nothing is in flight after that step: who repeats the run has to know of it.
    """
    _append(run, {"event": "retry", "at": now(), "step": step, "due_at": due_at, "why": why})


def read(run: Path) -> list[dict[str, Any]]:
    """When attempts began and ended so far; a line that was cut short by a kill is left out.

    An attempt ends once: ranks that fail together may each have found that its end was not told yet, and told it.
    """
    found: list[dict[str, Any]] = []
    for event in read_json_lines(Path(run) / FILE):
        if event.get("event") == "begin" or (event.get("event") == "end" and found and found[-1]["event"] == "begin"):
            found.append(event)
    return found


def last_begin(run: Path) -> dict[str, Any] | None:
    """When the newest attempt began, and where."""
    return next((event for event in reversed(read(run)) if event["event"] == "begin"), None)


def first_step_of(run: Path, allocation: Allocation) -> int | None:
    """The step from which an earlier allocation of the same job first began here; None where none did."""
    for event in read(run):
        if event["event"] == "begin" and event["job"] == allocation.job is not None:
            # A line from before the count was noted may be of any allocation, and must not be cleared by a later one.
            return int(event["step"]) if event.get("restart", 0) < allocation.restart else None
    return None


def figures(run: Path) -> dict[str, Any]:
    """What summary.json says of a run's attempts: how many, seconds of all, and what was done more than once."""
    events = read(run)
    begins = [event for event in events if event["event"] == "begin"]
    return {
        "number": len(begins),
        "total_s": round(sum(to_s - from_s for from_s, to_s in spans(events)), 3),
        "lost_steps": sum(event["lost_steps"] for event in begins),
        "lost_s": round(sum(event["lost_s"] for event in begins), 3),
    }


def rows(run: Path) -> list[tuple[str, ...]]:
    """Each attempt for a reader: when it began, from which step to which, how it ended, on what."""
    found: list[tuple[str, ...]] = []
    events = read(run)
    for i, event in enumerate(events):
        if event["event"] == "begin":
            after = events[i + 1] if i + 1 < len(events) and events[i + 1]["event"] == "end" else {}
            steps = f"{event['step']:,} to {after['step']:,}" if after else f"from {event['step']:,}"
            hosts = f"{event['ranks']} ranks on {', '.join(event['hosts'])}"
            hosts += f"; lost {', '.join(after['lost_nodes'])}" if after.get("lost_nodes") else ""
            job = "" if event["job"] is None else f"job {event['job']}"
            began = event["at"].partition(".")[0].replace("T", " ")
            found.append((began, steps, after.get("status", "under way"), hosts, job))
    return found


ROW_HEADS = ("began (UTC)", "steps", "", "", "")


def _append(run: Path, event: dict[str, Any]) -> None:
    append_line(run / FILE, event)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line to a file of JSON lines, and has it on disk; one that was cut short before stays by itself.

    Raises
    ------
    OutputError
        The file cannot be written.
    """
    with writing(path):
        before = read_again(path, path.read_bytes) if is_there(path) else None
        cut = before is not None and len(before) > 0 and not before.endswith(b"\n")
        with named(path), path.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut else "") + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if before is None:
            sync(path.parent)  # that there are attempts decides what becomes of resume = "never"


def spans(events: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Beginning and end of each attempt, in seconds since the epoch; one under way lasts until now."""
    found = []
    for i, event in enumerate(events):
        if event["event"] == "begin":
            ended = i + 1 < len(events) and events[i + 1]["event"] == "end"
            to_s = _seconds(events[i + 1]["at"]) if ended else datetime.now(UTC).timestamp()
            found.append((_seconds(event["at"]), max(to_s, _seconds(event["at"]))))
    return found


def _lost(run: Path, events: Sequence[dict[str, Any]], step: int) -> tuple[int, float]:
    """Steps, and seconds, of earlier attempts that an attempt from ``step`` on has to do again."""
    if not events:
        return 0, 0.0
    steps = max(events[-1]["step"] - step, 0)
    if not steps:
        return 0, 0.0
    since_s = _saved_s(run, step)
    seconds_s = sum(max(to_s - max(from_s, since_s), 0.0) for from_s, to_s in spans(events))
    begins = [event for event in events if event["event"] == "begin" and _seconds(event["at"]) >= since_s]
    return steps, round(max(seconds_s - sum(event["lost_s"] for event in begins), 0.0), 3)


def _last_seen(run: Path, begun: dict[str, Any]) -> tuple[float, int]:
    """When an attempt was last heard of, and after how many steps: by its metrics and its checkpoints."""
    seen = [(_seconds(begun["at"]), int(begun["step"]))]
    seen += [
        (float(line["time"]), line["step"])
        for line in read_json_lines(run / "metrics.jsonl")
        if isinstance(line.get("time"), int | float) and isinstance(line.get("step"), int)
    ]
    names = [n.removeprefix("step-") for n in names_in(run / "checkpoints") if n.startswith("step-")]
    seen += [(_saved_s(run, int(name)), int(name)) for name in names if name.isdecimal()]
    since_s = seen[0][0]
    seen = [(at_s, step) for at_s, step in seen if at_s >= since_s]
    return max(at_s for at_s, _ in seen), max(step for _, step in seen)


def _saved_s(run: Path, step: int) -> float:
    """When the checkpoint of a step was whole, in seconds since the epoch; 0 where there is none."""
    try:
        return (run / "checkpoints" / f"step-{step}" / "manifest.json").stat().st_mtime
    except OSError:
        return 0.0


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
