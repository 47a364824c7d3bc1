"""What is said of a job whose ranks could not say it: which one died first, where, and where the others were.

Ranks note on their boards where they are, and that they leave in order. Which of the others died first is told by
mpirun's remark, by the order in which processes of the launcher's host ended (``watch``), and else by who was
waited for. Knows boards and text, neither files nor processes.
"""

import re
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcrec.comm.board import Left
from hpcrec.comm.progress import WORKING
from hpcrec.comm.stall_report import Standing, find_waits, listed

_MOST_LINES = 24  # of positions
_SAID_BY_RANKS = (0, 1, 2, 75)  # exit codes with a message or a checkpoint behind them
_BY_SIGNAL = re.compile(rb"process rank (\d+) with PID \d+ on node \S+\s+exited\s+on\s+signal\s+(\d+)")
_BY_STATUS = re.compile(rb"Process name: \[[^\]]*,(\d+)\]\s+Exit code:\s+(\d+)")
_BY_SRUN = re.compile(rb"srun: error: \S+: tasks? (\d+)[^:\n]*: (Exited with exit code (\d+)|[A-Z][A-Za-z ]+)")
_SRUN_ABORTS = b"srun: Job step aborted"
_LOST_ANOTHER = b"14"  # the exit status of a rank that Open MPI ends because it lost another, "Socket closed"
_SIGNALS = {(signal.strsignal(number) or ""): int(number) for number in signal.valid_signals()}
_HINTS = {
    signal.SIGKILL: "often a memory limit, the kernel's or Slurm's",
    signal.SIGBUS: "often a full disk, or a full /dev/shm",
    signal.SIGSEGV: "an error in native code",
    signal.SIGABRT: "native code gave up: it may have said why above",
}


@dataclass(frozen=True)
class Remark:
    """What mpirun or srun says of the first rank that ended badly."""

    rank: int
    signal: int | None = None
    status: int | None = None
    no_memory: bool = False


@dataclass(frozen=True)
class LastWords:
    """How a job ended that did not say so itself.

    Attributes
    ----------
    line, brief : str
        The rank that died first, in one line: with its place, and how and at which step alone.
    positions : tuple of str
        Where the other ranks were.
    step : int or None
        Steps done when it ended, as far as is known.
    """

    line: str
    brief: str
    positions: tuple[str, ...]
    step: int | None


def remark_in(text: bytes) -> Remark | None:
    """What mpirun's or srun's stderr says of the first rank that ended badly, where it does."""
    if found := _BY_SIGNAL.search(text):
        return Remark(int(found[1]), signal=int(found[2]))
    aborted = text.find(_SRUN_ABORTS)
    for found in _BY_SRUN.finditer(text):
        if (said := found[2].decode().strip()) == "Out Of Memory":
            return Remark(int(found[1]), signal=int(signal.SIGKILL), no_memory=True)
        if 0 <= aborted < found.start() or found[3] == _LOST_ANOTHER:
            continue  # srun may have killed it itself, or it gave up for another
        if found[3] is not None:
            return Remark(int(found[1]), status=int(found[3]))
        if said.removesuffix(" (core dumped)") in _SIGNALS:
            return Remark(int(found[1]), signal=_SIGNALS[said.removesuffix(" (core dumped)")])
    if (found := _BY_STATUS.search(text)) and found[2] != _LOST_ANOTHER:
        return Remark(int(found[1]), status=int(found[2]))
    return None


def last_words(
    boards: Mapping[int, Left],
    deaths: list[tuple[float, set[int]]],
    remark: Remark | None,
    code: int,
    lacked_memory: str = "",
    ending: Collection[int] = (),
) -> LastWords | None:
    """How a job ended.

    Parameters
    ----------
    boards : mapping of rank to Left
    deaths : list of (seconds since the epoch, ranks)
        Of the launcher's host, in the order in which their processes ended, as far as that was seen.
    remark : Remark or None
        What mpirun says.
    code : int
        The job's exit code.
    lacked_memory : str
        What says that a process was killed for memory on the launcher's host; empty where nothing does.
    ending : collection of int
        Ranks that were ending already when the first of ``deaths`` was seen.

    Returns
    -------
    LastWords or None
        None where the ranks have said it themselves.
    """
    first, sure = _first(boards, deaths, set(ending), remark, code)
    if first is None:
        return None
    died_s = next((when_s for when_s, ranks in deaths if first in ranks), deaths[0][0] if deaths else time.time())
    how, number = _how(first, remark, code)
    left = boards.get(first)
    if left is None:
        line = f"rank {first} {how}"
    else:
        role = f"{left.role}, " if left.role else ""
        line = f"rank {first} on {left.host} ({role}process {left.pid}) {how}{_place(left, died_s)}"
    if lacked_memory and number == signal.SIGKILL:
        line += f"; memory ran out meanwhile, says {lacked_memory}"
    elif number in _HINTS:
        line += f"; {_HINTS[signal.Signals(number)]}"
    line += "" if sure else " (by the positions of the others: the launcher does not say which rank was the first)"
    step = max((b.step for b in boards.values() if b.step is not None), default=None)
    brief = f"rank {first} {how}" + ("" if left is None or left.step is None else f" at step {left.step}")
    brief += "" if sure else " (by the positions of the others)"
    return LastWords(line, brief, tuple(_positions(boards, first, died_s)), step)


def _first(
    boards: Mapping[int, Left],
    deaths: list[tuple[float, set[int]]],
    ending: set[int],
    remark: Remark | None,
    code: int,
) -> tuple[int | None, bool]:
    """The rank that died first without a word, and whether that is certain; None where none did."""
    vanished = {rank for rank, left in boards.items() if left.ended_s is None}
    first_word_s = min((b.ended_s for b in boards.values() if b.ended_s is not None and b.error), default=None)
    dead = [(when_s, ranks) for when_s, ranks in deaths if first_word_s is None or when_s < first_word_s]
    waits = find_waits(_standings(boards, time.time()), _members(boards), 0.0)
    waited_for = {rank for wait in waits for rank in wait.missing}
    suspects = dead[0][1] & vanished if dead else set()
    if suspects and not suspects & waited_for:  # one that was ended for another may be gone before it
        suspects |= ending & vanished & waited_for

    def likeliest() -> int:
        return min(waited_for & suspects or suspects, key=lambda rank: (boards[rank].noted_s, rank))

    if code in _SAID_BY_RANKS:  # a rank may have failed by the loss of another; else nothing is left to say
        return (likeliest(), len(suspects) == 1) if suspects and code == 1 else (None, True)
    if remark is not None and remark.signal is not None and (remark.rank in vanished or remark.rank not in boards):
        return remark.rank, True
    suspects = suspects or (vanished if first_word_s is None else set())
    here = {boards[rank].host for _, ranks in deaths for rank in ranks if rank in boards}
    elsewhere = {rank for rank in vanished if boards[rank].host not in here}
    if suspects and dead:  # of other hosts nobody saw who ended when: this host's ranks may have been ended for one
        suspects |= elsewhere
    if len(suspects) == 1 and dead:
        return min(suspects), True
    if remark is not None and (remark.rank in suspects or not boards):
        return remark.rank, True
    if not suspects:
        return None, True
    return likeliest(), False


def _how(rank: int, remark: Remark | None, code: int) -> tuple[str, int | None]:
    """How it died, in words, and by which signal."""
    number, status = None, None
    if remark is not None and remark.rank == rank:
        number, status = remark.signal, remark.status
    elif code > 128 or code in (int(signal.SIGKILL), int(signal.SIGSEGV), int(signal.SIGABRT), int(signal.SIGBUS)):
        number = code - 128 if code > 128 else code  # of MPICH, which hands on the bare signal
    if number is None:
        return ("vanished" if status is None else f"left without a word (exit status {status})"), None
    name = signal.Signals(number).name if number in set(signal.valid_signals()) else "unknown"
    return f"was {'killed' if number == signal.SIGKILL else 'ended'} by signal {number} ({name})", number


def _place(left: Left, at_s: float) -> str:
    """Its step and the collectives that it was in."""
    if left.step is None:
        return " before its first step"
    inside = [
        f"in collective '{tag}' on communicator '{lane}' for {max(at_s - since_s, 0.0):.3g} s"
        for lane, (_, number, tag, since_s) in left.lanes.items()
        if number > 0
    ]
    if not inside and left.lanes:
        lanes = {name: lane for name, lane in left.lanes.items() if lane[1] != WORKING} or left.lanes
        lane, (_, _, tag, since_s) = max(lanes.items(), key=lambda item: item[1][3])
        after = f", the last being '{tag}' on communicator '{lane}'" if tag else ""
        inside = [f"in no collective for {max(at_s - since_s, 0.0):.3g} s{after}"]
    inside += [f"at work for a {tag}" for _, number, tag, _ in left.lanes.values() if number == WORKING]
    return f" at step {left.step}, {' and '.join(inside)}"


def _positions(boards: Mapping[int, Left], first: int, at_s: float) -> list[str]:
    """Where the ranks were when the first died, those at the same place in one line."""
    standings = _standings(boards, at_s)
    lines = [
        f"step {w.step}, collective '{w.tag}' on communicator '{w.lane}': {listed(w.waiting)} waited "
        f"{w.seconds_s:.3g} s" + (f" for {listed(w.missing)}" if w.missing else ", all ranks are there")
        for w in find_waits(standings, _members(boards), 0.0)
        if w.waiting != (first,)
    ]
    elsewhere: dict[str, list[int]] = {}
    for rank, left in boards.items():
        if rank == first or (left.ended_s is None and any(number > 0 for _, number, _, _ in left.lanes.values())):
            continue
        if left.ended_s is not None:
            where = f"had left by an error: {left.error.splitlines()[0]}" if left.error else "had left in order"
        elif left.step is None:
            where = "before the first step, in no collective"
        else:
            where = f"step {left.step}, in no collective"
        elsewhere.setdefault(where, []).append(rank)
    lines += [f"{where}: {listed(ranks)}" for where, ranks in elsewhere.items()]
    n_ranks = max((left.ranks for left in boards.values()), default=0)
    if unseen := [rank for rank in range(n_ranks) if rank not in boards and rank != first]:
        lines.append(f"position not known, their hosts do not see the launcher's folder: {listed(unseen)}")
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {more} more positions"]


def _standings(boards: Mapping[int, Left], at_s: float) -> dict[int, Standing]:
    return {
        rank: Standing(
            left.step or 0,
            {
                lane: (count, number if left.ended_s is None else 0, tag, max(at_s - since_s, 0.0))
                for lane, (count, number, tag, since_s) in left.lanes.items()
            },
            left.host,
        )
        for rank, left in boards.items()
    }


def _members(boards: Mapping[int, Left]) -> dict[str, list[int]]:
    """The ranks of each communicator, as far as there are boards."""
    members: dict[str, list[int]] = {}
    for rank, left in boards.items():
        for lane in left.lanes:
            members.setdefault(lane, []).append(rank)
    return members
