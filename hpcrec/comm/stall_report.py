"""What a stall's report says: which collective who waits in, for whom, and where those are.

Compares the standings that ranks have sent. Knows neither MPI nor when a report is due (``comm.stall``).
"""

import contextlib
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcrec.comm.progress import AFTER, ASIDE, BEFORE, FROM, WORKING, Hop

_MOST_HOPS = 8  # lines of a collective, so that of a thousand hosts not each has one


@dataclass(frozen=True)
class Standing:
    """Where one rank is.

    Attributes
    ----------
    step : int
        Steps done.
    lanes : dict of str to (count, number, tag, seconds)
        By communicator: collectives started, the one waited in (0: none, ``WORKING``: it works for the next), its tag,
        seconds since it waits (since its last wait ended, since that work last came on).
    host, where : str
        Its host, and the line that its main thread is at.
    stacks : str
        Of all its threads; empty where they were not asked for.
    role, aside : str
        What it is, and the line that the thread is at that works on files; empty where there is none.
    hops : dict of str to Hop
        By communicator: where in the collective that it waits in, if that goes by hops.
    """

    step: int
    lanes: dict[str, tuple[int, int, str, float]]
    host: str = ""
    where: str = ""
    stacks: str = ""
    role: str = ""
    aside: str = ""
    hops: dict[str, Hop] = field(default_factory=dict)


@dataclass(frozen=True)
class Wait:
    """One collective that some ranks wait in, ``missing`` being those that have not come to it.

    Where nobody waits in it yet, the missing ones are those whose work for it does not come on.
    """

    lane: str
    number: int
    tag: str
    step: int
    seconds_s: float
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


def find_waits(
    standings: Mapping[int, Standing], members: Mapping[str, Iterable[int]], at_least_s: float
) -> list[Wait]:
    """Every collective that ranks have waited in for some time, those with the longest waits first.

    While all that are missing come on with their work for it, a wait is as long as the longest time that one did not.

    Parameters
    ----------
    standings : mapping of world rank to Standing
        Of the ranks that answered.
    members : mapping of str to world ranks
        By communicator.
    at_least_s : float
        Shorter waits are left out.
    """
    waits = []
    for lane, ranks in members.items():
        found: dict[int, list[int]] = {}
        for rank in ranks:
            if rank in standings:
                _, number, _, seconds_s = standings[rank].lanes[lane]
                if number > 0 and seconds_s >= at_least_s:
                    found.setdefault(number, []).append(rank)
        for number, waiting in found.items():
            first = standings[waiting[0]]
            missing = [r for r in ranks if r not in standings or standings[r].lanes[lane][0] < number]
            longest_s = max(standings[r].lanes[lane][3] for r in waiting)
            if not missing:  # whoever came last may have done so after the others told how long they waited
                longest_s = min(standings[r].lanes[lane][3] for r in ranks)
            elif all(r in standings and standings[r].lanes[lane][1] == WORKING for r in missing):
                longest_s = min(longest_s, max(standings[r].lanes[lane][3] for r in missing))
            tag = first.lanes[lane][2]
            if longest_s >= at_least_s:
                waits.append(Wait(lane, number, tag, first.step, longest_s, tuple(waiting), tuple(missing)))
    return sorted(waits, key=lambda wait: -wait.seconds_s)


def find_held_up(
    standings: Mapping[int, Standing], members: Mapping[str, Iterable[int]], waits: list[Wait], at_least_s: float
) -> list[Wait]:
    """Work for a collective that has not come on for some time and that none of ``waits`` is for yet."""
    found = []
    for lane, ranks in members.items():
        late: dict[int, list[int]] = {}  # number of the collective to come -> ranks
        for rank in ranks:
            if rank in standings:
                count, number, _, seconds_s = standings[rank].lanes[lane]
                waited_for = any(w.lane == lane and rank in w.missing for w in waits)
                if number == WORKING and seconds_s >= at_least_s and not waited_for:
                    late.setdefault(count + 1, []).append(rank)
        for number, missing in late.items():
            first = standings[missing[0]]
            longest_s = max(standings[r].lanes[lane][3] for r in missing)
            found.append(Wait(lane, number, first.lanes[lane][2], first.step, longest_s, (), tuple(missing)))
    return found


def describe(waits: list[Wait], standings: Mapping[int, Standing]) -> tuple[str, tuple[int, ...]]:
    """The report's lines, and the ranks that hold up the others: missing, and waiting for nobody."""
    missing = {rank for wait in waits for rank in wait.missing}
    blamed = tuple(
        sorted({r for w in waits for r in w.missing if r not in standings or _is_free(standings[r], w.lane)})
    )
    longest_s = max((wait.seconds_s for wait in waits), default=0.0)
    lines = [f"no progress for {longest_s:.3g} s. "]
    if blamed:
        lines[0] += f"Waiting for {listed(blamed)}."
    elif missing:
        lines[0] += "Ranks wait for each other: they are in different collectives, by a different path of the program."
    else:
        lines[0] += "Every rank has come to the collective, which does not end: look at the network."
    for w in waits:
        said = (
            f"{listed(w.waiting)} waited {w.seconds_s:.3g} s for {listed(w.missing) or 'its end'}"
            if w.waiting
            else f"{listed(w.missing)} did not come on with the work for it for {w.seconds_s:.3g} s"
        )
        lines.append(f"  step {w.step}, collective '{w.tag}' on communicator '{w.lane}': {said}")
        hops = list(_hops(w, standings))
        lines += hops[:_MOST_HOPS] + [f"    and {len(hops) - _MOST_HOPS} more"] * (len(hops) > _MOST_HOPS)
    for rank in blamed:
        if rank not in standings:
            lines.append(f"  rank {rank} does not answer: stopped, held up in native code, or its host is gone")
            continue
        standing = standings[rank]
        role = f" ({standing.role})" if standing.role else ""
        lines.append(f"  rank {rank} on {standing.host}{role}: step {standing.step}, {_place(standing)}")
    return "\n".join(lines), blamed


def _hops(wait: Wait, standings: Mapping[int, Standing]) -> Iterator[str]:
    """For whom ranks wait at which level of a collective that goes by hops: a line for each host, and each gate."""
    found: dict[Hop, list[int]] = {}
    for rank in wait.waiting:
        if rank in standings and (hop := standings[rank].hops.get(wait.lane)) is not None:
            found.setdefault(hop, []).append(rank)
    for hop, ranks in sorted(found.items()):
        who, wait_s = listed(ranks), "wait" if len(ranks) > 1 else "waits"
        if hop.number in (BEFORE, AFTER):
            late = [r for r in hop.ranks if r not in ranks and not _is_past(standings.get(r), wait, hop.number)]
            when = "before messages are put together" if hop.number == BEFORE else "after gates have received"
            yield f"    in its host, {when}: {who} {wait_s} for {listed(late) or 'each other'}"
        elif hop.number == FROM:
            yield f"    between hosts: {who} {wait_s} for what {listed(hop.ranks)} sends"
        else:
            yield f"    between hosts: {who} {wait_s} for {listed(hop.ranks)} to take what is sent"


def _is_past(standing: Standing | None, wait: Wait, number: int) -> bool:
    """Whether a rank has come to that hop of the collective, or farther."""
    if standing is None:
        return False
    count, waited, _, _ = standing.lanes[wait.lane]
    hop = standing.hops.get(wait.lane)
    return count > wait.number or (waited == wait.number and hop is not None and hop.number >= number)


def _is_free(standing: Standing, lane: str) -> bool:
    """Whether the thread that a collective of ``lane`` waits for waits in none itself."""
    return not any(n > 0 for name, (_, n, _, _) in standing.lanes.items() if (name == ASIDE) == (lane == ASIDE))


def _place(standing: Standing) -> str:
    """What a rank that is waited for does instead."""
    parts = []
    _, number, tag, since_s = standing.lanes.get(ASIDE, (0, 0, "", 0.0))
    if number == WORKING:
        parts.append(f"its {tag} thread came on {since_s:.3g} s ago and is at {standing.aside}")
    others = [(n, s) for name, (_, n, _, s) in standing.lanes.items() if name != ASIDE]
    if any(n for n, _ in others):
        parts.append(f"its main thread is at {standing.where}")
    else:
        idle_s = min((s for _, s in others), default=0.0)
        parts.append(f"in no collective for {idle_s:.3g} s, its main thread is at {standing.where}")
    return "; ".join(parts)


def listed(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0 to 2, 5``, or nothing."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [str(r[0]) if len(r) == 1 else f"{r[0]}{', ' if len(r) == 2 else ' to '}{r[-1]}" for r in runs]
    many = len(runs) > 1 or (bool(runs) and len(runs[0]) > 1)
    return f"rank{'s' if many else ''} {', '.join(parts)}" if runs else ""


def where(ident: int | None = None) -> str:
    """The line that a thread is at; the main one, where none is given."""
    frame = sys._current_frames().get(ident or threading.main_thread().ident or 0)
    if frame is None:
        return "its end"
    path = Path(*Path(frame.f_code.co_filename).parts[-2:])
    return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"


def stacks() -> str:
    """Stacks of all threads but the calling one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    text = ""
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            with contextlib.suppress(OSError):  # a source file that is gone
                text += f"  thread {names.get(ident, ident)}:\n" + "".join(traceback.format_stack(frame))
    return text
