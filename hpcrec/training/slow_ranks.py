"""Which ranks are slow: far above the median of their role, for their work, in several lines of metrics.jsonl in a row.

A rank is compared with the others of its role by the time that it works, not waits, since the line before
(``comm.progress.working_time``), and by counts of the work that it was given. A step costs something whatever a rank is
given, and something more for each count. So between two equally fast ranks the longer time is longer by no factor
above that of the count that differs most, or 1 where none is higher; what is beyond that is a difference in speed. Its
median over the other ranks is a rank's *ratio*. It is too low where a rank was given less than the others, never too
high.

Knows numbers; does not know what the counts are of, nor how they come from one rank to another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hpcrec.types import Floats

LINES = 8  # in a row
LIMIT = 1.5  # a rank at half speed has 2
# Lines are taken together until the ranks of a role, in the median, have worked for so long, and judged as one: where
# there are more ranks than cores a healthy one has been seen at 1.5 for half a second, not for a second.
MIN_S = 1.0
_PEERS = 64  # with so many of its role a rank is compared, at most


@dataclass
class SlowRank:
    """A rank that is slow, or was.

    Attributes
    ----------
    rank : int
    host, role : str
    ratio : float
        How many times as long as the median of its role it took for its work; a mean over those lines.
    lines : int
        Of metrics.jsonl in which it was slow.
    """

    rank: int
    host: str
    role: str
    ratio: float
    lines: int

    def report(self, step: int) -> str:
        """What the log has of it when it is found, at a step."""
        lines = f"in {self.lines} lines of metrics.jsonl in a row up to step {step}"
        return f"hpcrec: slow: {describe(asdict(self))}, {lines}. The other ranks wait for it: look at its host.\n"


def describe(rank: Mapping[str, Any]) -> str:
    """One of ``slow_ranks``, as files have it, for a reader.

    Raises
    ------
    KeyError, TypeError, ValueError
        It is none.
    """
    said = f"{rank['ratio']:.1f} times the median of its role"
    return f"rank {rank['rank']} on {rank['host']} ({rank['role']}): {said} for its work"


@dataclass
class _Watched:
    """A rank, and how it was judged last."""

    found: SlowRank
    slow: bool = False
    in_row: int = 0  # judgements that it is not as ``slow`` says
    ratios: float = 0.0  # sum over ``lines``, which are not yet in ``found``
    lines: int = 0

    def judge(self, ratio: float, lines: int) -> bool:
        """Takes its ratio over so many lines; whether it is found slow by it, and was not before."""
        above, before = ratio > LIMIT, self.slow
        self.in_row = self.in_row + 1 if above != before else 0
        if above:
            self.ratios, self.lines = self.ratios + ratio * lines, self.lines + lines
        elif not before:
            self.ratios, self.lines = 0.0, 0
        if self.in_row == LINES:
            self.slow, self.in_row = above, 0
        if self.slow and self.lines:
            found, total = self.found, self.found.lines + self.lines
            found.ratio, found.lines = (found.ratio * found.lines + self.ratios) / total, total
            self.ratios, self.lines = 0.0, 0
        return self.slow and not before


class _Role:
    """The ranks of a role, and what they did in the lines that are judged together."""

    def __init__(self, watched: list[_Watched]) -> None:
        self.watched = watched
        self._ranks_N = np.array([one.found.rank for one in watched], np.int64)
        self.begin()

    def begin(self) -> None:
        """No line is taken yet."""
        self.lines, self.seconds_N, self._work_NK = 0, np.zeros(len(self.watched)), np.zeros((len(self.watched), 1))

    def add(self, seconds_R: Floats, work_RK: Floats) -> None:
        """Takes a line."""
        self.lines += 1
        self.seconds_N = self.seconds_N + seconds_R[self._ranks_N]
        self._work_NK = self._work_NK + work_RK[self._ranks_N]

    def ratios(self) -> Floats:
        """Of each rank, [N]."""
        seconds_N, n = np.maximum(self.seconds_N, 1e-9), len(self.watched)
        peers_P = np.arange(0, n, -(-n // _PEERS))
        given_NPK, theirs_PK = self._work_NK[:, None], self._work_NK[peers_P]
        with np.errstate(divide="ignore", invalid="ignore"):
            more_NPK = np.where((given_NPK == 0) & (theirs_PK == 0), 1.0, given_NPK / theirs_PK)
        ratios_NP = seconds_N[:, None] / seconds_N[peers_P] / np.maximum(more_NPK.max(axis=2), 1.0)
        ratios_NP[peers_P, np.arange(len(peers_P))] = np.nan  # itself
        return np.asarray(np.nanmedian(ratios_NP, axis=1))


class SlowRanks:
    """Finds slow ranks.

    Parameters
    ----------
    roles, hosts : sequence of str
        Of each rank. A role of one rank has nobody to be compared with; of two, each is compared with the other.
    """

    def __init__(self, roles: Sequence[str], hosts: Sequence[str]) -> None:
        ranks = [_Watched(SlowRank(r, host, of, 0.0, 0)) for r, (of, host) in enumerate(zip(roles, hosts, strict=True))]
        members = ([one for one in ranks if one.found.role == role] for role in dict.fromkeys(roles))
        self._ranks, self._roles = ranks, [_Role(of) for of in members if len(of) > 1]

    def add(self, seconds_R: Floats, work_RK: Floats) -> list[SlowRank]:
        """Takes a line; returns the ranks that are found slow by it and were not before.

        Parameters
        ----------
        seconds_R : float64 [R]
            For which each rank has worked since the line before.
        work_RK : float64 [R, K]
            What it was given since then: counts of K kinds.
        """
        new = list[SlowRank]()
        for role in self._roles:
            role.add(seconds_R, work_RK)
            if np.median(role.seconds_N) < MIN_S:
                continue
            judged = zip(role.watched, role.ratios().tolist(), strict=True)
            new += [one.found for one, ratio in judged if one.judge(ratio, role.lines)]
            role.begin()
        return new

    @property
    def now(self) -> list[SlowRank]:
        """Those that are slow."""
        return [one.found for one in self._ranks if one.slow]

    @property
    def found(self) -> list[SlowRank]:
        """Those that are or were."""
        return [one.found for one in self._ranks if one.found.lines]
