"""Where the time of all ranks went: each rank's sums, and by role what is between ranks and where the slowest was.

Its size hardly grows with the ranks: of each rank there are a few sums, and parts are told of roles. Knows ``Times`` of
ranks and how they are shown; measures nothing.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hpcrec.clock import WAITS, WORKS, Seconds
from hpcrec.training.timer import Times

KINDS = {"worked_s": "computing", "waited_s": "waiting", "idle_s": "idle"}  # in the order of ``Seconds``; as is shown
HEADS = ("", "slowest rank", "of its time", "least", "median", "most")
_ROLES = {"fused": "fused ranks", "dense": "dense ranks", "owner": "owners"}
GROUPS = {  # what steps do, and what for; a phase that is in none of them is between steps
    "model": ("samples", "assemble", "forward", "backward", "teachers", "finite", "disassemble", "dense_update"),
    "rows": (
        "submit",
        "route",
        "route_wait",
        "gather",
        "values",
        "values_wait",
        "copies",
        "gradients",
        "gradients_wait",
        "update",
    ),
    "sums": ("agree", "dense_reduce"),
    "data": ("load_wait",),
}
_STORES = ("gather", "update")  # phases that wait for nothing but a disk
_SHOWN = 0.005  # of the slowest rank's time: smaller parts share a line on a terminal


def role_of(*, owner: bool, dense: bool) -> str:
    """As it is called in ``times_of``."""
    return "fused" if owner and dense else "owner" if owner else "dense"


def times_of(ranks: Mapping[int, tuple[str, Times]]) -> dict[str, Any]:
    """What ``summary.json`` says of the roles and times of ranks.

    ``ranks`` has of each rank its role and sums, in seconds: ``whole_s`` is the others' sum; ``steps`` what it worked
    and waited in steps, by the groups of ``GROUPS``; ``disk_s`` what steps and threads of theirs waited for rows on a
    disk; ``delayed_s`` for how long it was ready without a core, None if that is not known. ``roles`` has of each role
    ``parts`` and, apart, what other threads did ``beside`` the steps, by thread and part: least, median and most over
    the role's ranks, and what the slowest has, which is the one that waited and idled least. Of that rank parts and
    ``unaccounted_s`` add up to ``whole_s``.
    """
    found: dict[str, Any] = {"ranks": {}, "roles": {}}
    for rank, (role, times) in ranks.items():
        sums = [sum(seconds[kind] for seconds in times.parts.values()) for kind in range(len(KINDS))]
        found["ranks"][str(rank)] = {
            "role": role,
            "whole_s": times.whole_s,
            **dict(zip(KINDS, sums, strict=True)),
            "unaccounted_s": times.unaccounted_s,
            "steps": {
                group: {"worked_s": worked_s, "waited_s": waited_s}
                for group, (worked_s, waited_s) in of_groups(times.parts).items()
            },
            "disk_s": _disk_s(times),
            "delayed_s": times.delayed_s,
        }
    for role in _ROLES:
        of_role = {rank: times for rank, (one, times) in ranks.items() if one == role}
        if of_role:
            found["roles"][role] = _role(of_role)
    return found


def of_groups(parts: Mapping[str, Seconds]) -> dict[str, tuple[float, float]]:
    """Seconds that a thread worked and waited in steps, for each of ``GROUPS``; a part within a phase counts."""
    found = {group: [of for name, of in parts.items() if name.partition("/")[0] in GROUPS[group]] for group in GROUPS}
    return {group: (sum(of[WORKS] for of in them), sum(of[WAITS] for of in them)) for group, them in found.items()}


def _disk_s(times: Times) -> float:
    """Seconds waited in what reads and writes rows, by the thread that steps and those that move rows for it."""
    threads = [times.parts, *(times.beside.get(name, {}) for name in ("values", "gradients"))]
    return sum(parts[name][WAITS] for parts in threads for name in _STORES if name in parts)


def _role(ranks: Mapping[int, Times]) -> dict[str, Any]:
    slowest = min(ranks, key=lambda rank: sum(sum(seconds[1:]) for seconds in ranks[rank].parts.values()))
    all_times = list(ranks.values())
    threads = dict.fromkeys(name for times in all_times for name in times.beside)

    def between(numbers: Sequence[float]) -> dict[str, float]:
        own = numbers[list(ranks).index(slowest)]
        found = {"least": min(numbers), "median": statistics.median(numbers), "most": max(numbers)}
        return {"slowest": own, **found}

    def parts(of: Sequence[Mapping[str, Seconds]]) -> dict[str, dict[str, dict[str, float]]]:
        """By part and kind, the longest part first; a kind is there where any rank has some of it."""
        names = list(dict.fromkeys(name for one in of for name in one))
        names.sort(key=lambda name: -max(sum(one[name]) for one in of if name in one))
        by_kind = {
            name: {kind: [one[name][i] if name in one else 0.0 for one in of] for i, kind in enumerate(KINDS)}
            for name in names
        }
        return {
            name: {kind: between(numbers) for kind, numbers in kinds.items() if any(numbers)}
            for name, kinds in by_kind.items()
        }

    return {
        "n_ranks": len(ranks),
        "slowest_rank": slowest,
        "whole_s": between([times.whole_s for times in all_times]),
        "parts": parts([times.parts for times in all_times]),
        "unaccounted_s": between([times.unaccounted_s for times in all_times]),
        "beside": {name: parts([times.beside.get(name, {}) for times in all_times]) for name in threads},
    }


def tables(time: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Of ``times_of``: a title and rows under ``HEADS`` for each role, and for what threads did beside its steps."""
    found = []
    for role, of in time["roles"].items():
        whole_s = of["whole_s"]["slowest"]
        rows = [_row(name, seconds, whole_s) for name, seconds in _lines(of["parts"])]
        rows.append(_row("unaccounted", of["unaccounted_s"], whole_s))
        rows.append(_row("whole", of["whole_s"], whole_s))
        found.append((f"Time of {_of_role(role, of)}", rows))
        beside = [
            _row(f"{thread}: {name}", seconds, whole_s)
            for thread, parts in of["beside"].items()
            for name, seconds in _lines(parts)
        ]
        if beside:
            found.append((f"Threads beside the steps of {_ROLES[role]}, in none of these times", beside))
    return found


def _spent(of: Mapping[str, Any], phases: Sequence[str], kinds: Sequence[str] = tuple(KINDS)) -> float:
    """Seconds of a role's slowest rank."""
    found = (of["parts"][name] for name in of["parts"] if name.partition("/")[0] in phases)
    return sum(parts[kind]["slowest"] for parts in found for kind in kinds if kind in parts)


def _runs_model(time: Mapping[str, Any]) -> str | None:
    return next((role for role in ("fused", "dense") if role in time["roles"]), None)


WAITS_FOR = {"rows": "rows", "sums": "dense sums", "data": "data"}  # of ``GROUPS``, and what is waited for in them


def steps_of(time: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of all steps of the slowest rank that runs the model, by what they went into; empty without one.

    ``model``, ``rows computed``, ``wait for ...`` as of ``WAITS_FOR``, and ``other``: together they are its steps.
    """
    if (role := _runs_model(time)) is None:
        return {}
    of = time["roles"][role]
    found = {
        "model": _spent(of, GROUPS["model"]),
        "rows computed": _spent(of, GROUPS["rows"], ("worked_s",)),
        **{f"wait for {word}": _spent(of, GROUPS[group], ("waited_s", "idle_s")) for group, word in WAITS_FOR.items()},
    }
    every_s = sum(_spent(of, phases) for phases in GROUPS.values())
    return {**found, "other": every_s - sum(found.values())}


def owners_compute(time: Mapping[str, Any]) -> float | None:
    """The part of its time for which the slowest rank that is an owner alone computes rows; None without one."""
    of = time["roles"].get("owner")
    return None if of is None else _spent(of, GROUPS["rows"], ("worked_s",)) / max(of["whole_s"]["slowest"], 1e-9)


def screen_rows(time: Mapping[str, Any]) -> list[tuple[str, str]]:
    """On a few lines, as (name, value): of the slowest rank that runs the model, what its whole time was spent on."""
    if (role := _runs_model(time)) is None:
        return []
    of, told = time["roles"][role], steps_of(time)
    whole_s, steps_s = of["whole_s"]["slowest"], sum(told.values())
    parts = {name: seconds for name, seconds in told.items() if seconds >= _SHOWN * whole_s}
    between = {"set-up": ("set_up",), "evaluation": ("evaluate",), "checkpoints": ("checkpoint",)}
    seconds = {name: _spent(of, phases) for name, phases in between.items()}
    left_s = whole_s - steps_s - sum(seconds.values()) - of["unaccounted_s"]["slowest"]
    rows = [("time", f"{whole_s:.1f} s of {_of_role(role, of)}")]
    said = ", ".join(f"{name} {_share(s, whole_s)}" for name, s in parts.items())
    rows.append(("  steps", f"{steps_s:.1f} s: {said}" if said else f"{steps_s:.1f} s"))
    for name, s in {**seconds, "other": left_s, "unaccounted": of["unaccounted_s"]["slowest"]}.items():
        if s >= _SHOWN * whole_s:
            rows.append((f"  {name}", f"{s:.1f} s, {_share(s, whole_s)}"))
    return rows


def short_rows(time: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same for a terminal, as (name, value): what takes less than half a percent is in one line."""
    rows: list[tuple[str, str]] = []
    for role, of in time["roles"].items():
        whole_s = of["whole_s"]["slowest"]
        rows.append((f"time of {_of_role(role, of)}", _value(of["whole_s"], whole_s)))
        rest = dict.fromkeys(of["whole_s"], 0.0)
        left = 0
        for name, seconds in _lines(of["parts"]):
            if max(seconds["slowest"], seconds["median"]) >= _SHOWN * whole_s:
                rows.append((f"  {name}", _value(seconds, whole_s)))
            else:
                rest["slowest"], left = rest["slowest"] + seconds["slowest"], left + 1
        if left:
            rows.append((f"  {left} smaller ones", f"{rest['slowest']:.2f} s, {_share(rest['slowest'], whole_s)}"))
        rows.append(("  unaccounted", _value(of["unaccounted_s"], whole_s)))
        for thread, parts in of["beside"].items():
            own = {kind: sum(of[kind]["slowest"] for of in parts.values() if kind in of) for kind in KINDS}
            said = [f"{seconds:.2f} s {KINDS[kind]}" for kind, seconds in own.items() if seconds]
            if said:
                rows.append((f"  beside it: {thread}", ", ".join(said)))
    return rows


def _lines(parts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[tuple[str, Mapping[str, float]]]:
    """(kind and name, seconds), what the slowest rank has most of first."""
    found = [(f"{KINDS[kind]}: {name}", seconds) for name, of in parts.items() for kind, seconds in of.items()]
    return sorted(found, key=lambda line: -line[1]["slowest"])


def _of_role(role: str, of: Mapping[str, Any]) -> str:
    n = of["n_ranks"]
    return f"rank {of['slowest_rank']}" + (f", the slowest of {n} {_ROLES[role]}" if n > 1 else f" ({role})")


def _share(seconds: float, whole_s: float) -> str:
    return f"{seconds / whole_s:.1%}" if whole_s else "0.0%"


def _row(name: str, seconds: Mapping[str, float], whole_s: float) -> tuple[str, ...]:
    between = (f"{seconds[of]:.2f} s" for of in ("least", "median", "most"))
    return name, f"{seconds['slowest']:.2f} s", _share(seconds["slowest"], whole_s), *between


def _value(seconds: Mapping[str, float], whole_s: float) -> str:
    own = f"{seconds['slowest']:.2f} s, {_share(seconds['slowest'], whole_s)}"
    return own + (
        f" ({seconds['least']:.2f} to {seconds['most']:.2f} s)" if seconds["least"] != seconds["most"] else ""
    )
