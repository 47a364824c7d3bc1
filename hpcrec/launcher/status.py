"""How far a run is: what its folder holds, and what Slurm's queue says of its jobs.

Reads files that a run may be writing at this moment; starts and changes nothing.
"""

import dataclasses
import json
import re
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from hpcrec import toml
from hpcrec.again import names_in, read_json_lines
from hpcrec.errors import ConfigError
from hpcrec.launcher.submit import Queued, jobs_of, queued
from hpcrec.training.ended import ended_words, evaluated_words, metrics_words
from hpcrec.training.slow_ranks import describe

_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is known of a run; None is what is not.

    Attributes
    ----------
    state : str
        ``queued`` (not begun), ``running``, ``requeued`` (stopped, waits in the queue to go on), ``stopped`` (goes on
        when submitted again), ``finished``, ``failed``, ``cut off`` (without a word: killed), ``not begun``, or
        ``unknown``: without a word and nobody can be asked, so it may be running.
    step, total_steps, checkpoint_step : int or None
        Last step that was written to metrics.jsonl or saved; steps of the run; the newest checkpoint.
    attempts : int or None
        Starts of the run; None where it does not count them.
    lost_nodes : list of str
        Nodes that went down and ended attempts.
    job, nodes, reason, starts : str or None
        Of its newest job that is in the queue.
    allocation_left : str or None
        [D-]HH:MM:SS of that job.
    run_left_s : float or None
        Seconds that the steps to go would take at the pace of the last logged ones.
    slow_ranks : list of dict
        Ranks that are slow, by the last logged line; or that were, in the last attempt of a run that has ended
        (``training.slow_ranks.SlowRank``).
    ended, evaluation : dict or None
        Why it ended, and what was measured then, of which data and weights: ``ended`` and ``eval`` of summary.json.
    error : str or None
        What a failed run ended with.
    log : str or None
        The output of its newest job.
    """

    state: str
    step: int | None = None
    total_steps: int | None = None
    checkpoint_step: int | None = None
    attempts: int | None = None
    lost_nodes: list[str] = dataclasses.field(default_factory=list)
    job: str | None = None
    nodes: str | None = None
    reason: str | None = None
    starts: str | None = None
    allocation_left: str | None = None
    run_left_s: float | None = None
    slow_ranks: list[dict[str, Any]] = field(default_factory=list)
    ended: dict[str, Any] | None = None
    evaluation: dict[str, Any] | None = None
    error: str | None = None
    log: str | None = None


def status_of(folder: Path) -> Status:
    """The status of the run in ``folder``.

    Raises
    ------
    ConfigError
        It is no run folder, nor one that a job was submitted for.
    """
    config_file = folder / "config.toml"
    jobs = jobs_of(folder)
    if not config_file.is_file() and not jobs:
        raise ConfigError(f"{folder}: no config.toml, and no job was submitted for it. Give the run.folder of a run.")
    in_queue = queued(jobs)
    row = in_queue[-1] if in_queue else None
    summary = _summary(folder)
    saved = _newest_checkpoint(folder)
    metrics = [line for line in read_json_lines(folder / "metrics.jsonl") if isinstance(line.get("step"), int)]
    steps = [int(str(line["step"])) for line in metrics[-1:]] + ([] if saved is None else [saved])
    events = list(read_json_lines(folder / "attempts.jsonl"))
    begins = [event for event in events if event.get("event") == "begin"]
    lost = [event.get("lost_nodes") for event in events]
    done = summary.get("steps") if summary else None
    step = done if isinstance(done, int) else max(steps, default=None)
    total = _total_steps(config_file, metrics)
    state = _state(row, in_queue is not None, summary, begun=config_file.is_file(), knows_jobs=bool(jobs))
    waits = row is not None and row.state == "PENDING"
    return Status(
        state=state,
        step=step,
        total_steps=total,
        checkpoint_step=saved,
        attempts=len(begins) or None,
        lost_nodes=[str(node) for nodes in lost if isinstance(nodes, list) for node in nodes],
        job=row.number if row else None,
        nodes=(row.nodes or None) if row else None,
        reason=row.reason if row and waits else None,
        starts=row.starts if row and waits and row.starts != "N/A" else None,
        allocation_left=row.left if row and not waits else None,
        run_left_s=_run_left_s(metrics, begins, step, total) if state in ("running", "requeued", "stopped") else None,
        slow_ranks=_slow_ranks(summary, metrics, begins),
        ended=_mapping(summary, "ended"),
        evaluation=_mapping(summary, "eval"),
        error=str(summary["error"]) if summary and summary.get("error") else None,
        log=_log(folder, jobs),
    )


def lines(folder: Path) -> list[str]:
    """The status, for people."""
    found = status_of(folder)
    where = f"job {found.job}" + (f" on {found.nodes}" if found.nodes else "") if found.job else None
    waits = f"{found.reason}" + (f", expected {found.starts}" if found.starts else "") if found.reason else None
    left = None if found.run_left_s is None else f"about {_duration(found.run_left_s)} at the last pace"
    rows = {
        "state": found.state + (f", {where}" if where else ""),
        "waits for": waits,
        "step": None if found.step is None else f"{found.step} of {found.total_steps or 'an unknown number'}",
        "ended": ended_words({"steps": found.step, "ended": found.ended}),
        "evaluated": _evaluated(found.evaluation or {}),
        "last checkpoint": None if found.checkpoint_step is None else f"step {found.checkpoint_step}",
        "starts of the run": None if found.attempts is None else str(found.attempts),
        "lost nodes": ", ".join(found.lost_nodes) or None,
        "allocation left": found.allocation_left,
        "run left": left,
        "slow": "; ".join(map(describe, found.slow_ranks)) or None,
        "error": found.error,
        "log": found.log,
        "goes on by": "submitting it again" if found.state in ("stopped", "cut off", "failed") else None,
    }
    return [f"{name:<18}{value}" for name, value in rows.items() if value is not None]


def as_json(folder: Path) -> str:
    """The status, for programs."""
    return json.dumps(dataclasses.asdict(status_of(folder)), indent=1)


def _state(
    row: Queued | None,
    asked: bool,
    summary: dict[str, Any] | None,
    *,
    begun: bool,
    knows_jobs: bool,
) -> str:
    if row is not None and row.state == "PENDING":
        return "requeued" if begun else "queued"
    if row is not None:
        return "running"
    if summary is not None:
        return str(summary.get("status", "unknown"))
    if knows_jobs and not asked:
        return "unknown"
    if not begun:
        return "not begun"
    return "cut off" if knows_jobs else "unknown"


def _summary(folder: Path) -> dict[str, Any] | None:
    """summary.json, which a run removes when it goes on."""
    try:
        found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _mapping(summary: dict[str, Any] | None, key: str) -> dict[str, Any] | None:
    """What a summary has under a key; None where that, in one of another release, is something else."""
    found = (summary or {}).get(key)
    return found if isinstance(found, dict) else None


def _evaluated(found: dict[str, Any]) -> str | None:
    of = evaluated_words(found)
    return None if of is None else f"{of}: {metrics_words(found)}"


def _newest_checkpoint(folder: Path) -> int | None:
    names = map(_STEP.fullmatch, names_in(folder / "checkpoints"))
    return max((int(name[1]) for name in names if name), default=None)


def _total_steps(config_file: Path, metrics: list[dict[str, object]]) -> int | None:
    """``train.steps``; else what so many epochs take, by a logged line that says how far in them it is."""
    train = toml.read(config_file).get("train", {}) if config_file.is_file() else {}
    if isinstance(train.get("steps"), int):
        return int(train["steps"])
    if not isinstance(train.get("epochs", 1), int):
        return None
    for line in reversed(metrics):
        step, epoch = line.get("step"), line.get("epoch")
        if isinstance(step, int) and isinstance(epoch, int | float) and epoch > 0:
            return round(step / epoch) * int(train.get("epochs", 1))
    return None


def _run_left_s(
    metrics: list[dict[str, object]], begins: list[dict[str, object]], step: int | None, total: int | None
) -> float | None:
    """By the pace between the last two logged losses since the last start."""
    since_s = _began_s(begins[-1]) if begins else 0.0
    timed = [(int(str(m["step"])), float(str(m["time"]))) for m in metrics if "loss" in m and "time" in m]
    logged = [(number, at_s) for number, at_s in timed if at_s >= since_s][-2:]
    if len(logged) < 2 or step is None or total is None or logged[1][0] <= logged[0][0]:
        return None
    pace_s = (logged[1][1] - logged[0][1]) / (logged[1][0] - logged[0][0])
    return max(0, total - step) * pace_s


def _slow_ranks(
    summary: dict[str, Any] | None, metrics: list[dict[str, object]], begins: list[dict[str, object]]
) -> list[dict[str, Any]]:
    """By the summary, else by the last logged loss since the last start; what is no such list says nothing."""
    since_s = _began_s(begins[-1]) if begins else 0.0
    logged = [m for m in metrics if "loss" in m and isinstance(at := m.get("time"), int | float) and at >= since_s]
    found = (summary or (logged[-1] if logged else {})).get("slow_ranks")
    try:
        return [one for one in found if describe(one)] if isinstance(found, list) else []
    except (KeyError, TypeError, ValueError):
        return []


def _began_s(begin: dict[str, object]) -> float:
    try:
        return datetime.fromisoformat(str(begin.get("at"))).timestamp()
    except ValueError:
        return 0.0


def _log(folder: Path, jobs: list[str]) -> str | None:
    found = [folder / f"slurm-{job}.out" for job in jobs if (folder / f"slurm-{job}.out").is_file()]
    return str(found[-1]) if found else None


def _duration(seconds_s: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(seconds_s)) if seconds_s < 86400 else f"{seconds_s / 3600:.0f} h"
