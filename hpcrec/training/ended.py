"""Why a run has ended, and which weights and data its metrics are of: as summary.json says it, and in words.

Knows the keys ``ended`` and ``eval`` of summary.json; imports nothing heavy, for the launcher reads it too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcrec.training.metric_names import TABLES

BY_STEPS, BY_EARLY_STOP, BY_TIME_LIMIT, BY_SIGNAL, BY_ERROR = "steps", "early stop", "time limit", "signal", "error"
TIME_LIMIT = "time limit"  # in place of the name of a signal, of a stop that a run begins ahead of its job's end


def early_stop(total_steps: int, metric: str, evaluations: int) -> dict[str, Any]:
    """Ended because ``metric`` did not improve for so many evaluations."""
    return {"by": BY_EARLY_STOP, "total_steps": total_steps, "metric": metric, "evaluations": evaluations}


def stop(total_steps: int, name: str) -> dict[str, Any]:
    """Ended by what set the flag of a stop: a signal, by its name, or ``TIME_LIMIT``."""
    if name == TIME_LIMIT:
        return {"by": BY_TIME_LIMIT, "total_steps": total_steps}
    return {"by": BY_SIGNAL, "total_steps": total_steps, "signal": name}


def ended_words(summary: Mapping[str, Any]) -> str | None:
    """Why the run ended, for a reader; None where the summary, of a release before, does not say it."""
    ended, steps = summary.get("ended"), summary.get("steps")
    if not isinstance(ended, Mapping) or not ended.get("by"):
        return None
    if ended.get("by") == BY_STEPS:
        return f"all steps done, {steps} of {ended.get('total_steps')}"
    why = str(ended.get("by"))
    if why == BY_EARLY_STOP:
        n = ended.get("evaluations")
        why += f": {ended.get('metric')} did not improve for {n} evaluation{'s' * (n != 1)}"
    elif why == BY_TIME_LIMIT:
        why += " of its job"
    elif why == BY_SIGNAL:
        why += f" {ended.get('signal')}"
    return f"{why}, after step {steps} of {ended.get('total_steps')}"


def evaluated_words(found: Mapping[str, Any]) -> str | None:
    """Of which data and which weights the metrics of a summary's ``eval`` are; None where there was no evaluation."""
    if not {"split", "checkpoint", "step"} <= found.keys():
        return None
    return f"{found['split']} data, {found['checkpoint']} checkpoint, step {found['step']}"


def metrics_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a summary's ``eval`` that were measured, by the names that a reader sees: with their split.

    Of several labels those of each, as a mapping.
    """
    before = f"{found['split']} " if "split" in found else ""
    of = ("split", "checkpoint", "step", "by_label")
    whole = {before + name: value for name, value in found.items() if name not in of and value is not None}
    return whole | {f"{before}label {label}": metrics for label, metrics in (found.get("by_label") or {}).items()}


def metrics_words(found: Mapping[str, Any]) -> str:
    """Those in a line; of several labels, or groups, the number of each. Tables are left to the report."""
    numbers = {name: value for name, value in found.items() if name not in TABLES}
    return "; ".join(f"{name} {_number(value)}" for name, value in metrics_of(numbers).items())


def _number(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_number(one)}" for name, one in value.items() if name not in TABLES)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_number, value))
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
