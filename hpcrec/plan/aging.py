"""What a memory reads whose rows go by counts that age (``lfu_aging``), from how often each row is asked for in a run.

Such a memory has what a best fixed set has, but for what it does not know yet: at each moment it holds those rows that
were asked for most often so far. Of a row that a run asks for in N of n steps, the chance of c of them among those so
far is the binomial's, as if steps came in any order. With as many rows of each N as there are, that gives the count
from which on rows are held, of those that have just this count some, and the chance that a row is read when it is asked
for. To count for ever is to know the best fixed set. Three things differ, and are in it: counts reach back no further
than they are halved; rows of steps under way have places, whatever their counts are; and a row that every epoch asks
for once was used longer ago than all others with its count, so of these it goes first.

Where rows come in waves, steps do not come in any order: then to keep those that were used last reads less than this
says, and the rule, which takes equal counts by their last use, is between the two. So reads are this to the power of a
third times those by last use to that of two thirds: the one thing here that was fitted.

Against the map itself it is mostly 1 to 5 % off, too low rather than too high, and up to 20 % in waves (docs/tiers.md).
What it leaves out: counts of rows without a place are forgotten where there are many, and sets may be full before the
memory is.

Knows numbers of rows and uses; no ids, and nothing of steps to come that a run may be told of: then it reads less.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpcrec.plan.curves import Curve, by_last_use
from hpcrec.types import Floats

AGE_AFTER = 10  # rows that were given places, by places: then counts are halved
_REACH = 1.5  # of these: a count is of twice as many before it is halved, and of as many after
_MOMENTS = 6  # of a first epoch, and of all later ones, that are looked at
_MOST = 40.0  # uses of a row on the verge: more do not tell rows apart much better, and take longer here
_TOLD_APART, _AN_OCTAVE = 32, 16  # numbers of uses; larger ones fall into so many classes a factor of two
_ROUNDS = 3  # reads are known from reads
_BY_LAST_USE = 2 / 3  # in waves


@dataclass(frozen=True)
class Kept:
    """What becomes of tables that share a memory.

    Attributes
    ----------
    held, reads : tuple of float
        Rows held of each table at the end, and read of it a step.
    a_step_U : float64 [U]
        Chance that a step asks for a row, by classes of rows alike.
    reads_TU : float64 [T, U]
        ``reads`` by class.
    """

    held: tuple[float, ...]
    reads: tuple[float, ...]
    a_step_U: Floats
    reads_TU: Floats

    def soon(self, steps: float) -> tuple[float, ...]:
        """Of ``reads``, of each table, those of rows that went at most so many steps before."""
        within_U = -np.expm1(steps * np.log1p(-np.minimum(self.a_step_U, 1 - 1e-12)))
        return tuple((self.reads_TU @ within_U).tolist())


def kept(curves: Sequence[Curve], places: float, ahead: int = 0) -> Kept:
    """Of tables that share a memory with places for so many rows, and curves of as many steps and epochs.

    ``ahead``: steps whose rows are brought before they are used, as far as half of the places are enough for these.
    """
    if not curves:
        return Kept((), (), np.zeros(0), np.zeros((0, 0)))
    steps, epochs = curves[0].steps, curves[0].epochs
    times, by_table = _classes(curves)
    rows = by_table.sum(axis=0)
    often = np.cumsum(rows[::-1])
    verge = float(times[::-1][min(int(np.searchsorted(often, places)), len(rows) - 1)])  # uses of the last row held
    asked = float(rows @ times) / steps
    under_way = 1 + min(ahead, max(places / 2 / asked, 1.0))  # steps whose rows have places, whatever their counts are
    moments = [((k + 0.5) / _MOMENTS, 1.0) for k in range(_MOMENTS)]
    missed, reads_TU = asked, np.zeros_like(by_table)
    if epochs > 1:
        moments += [(1 + (epochs - 1) * (k + 0.5) / _MOMENTS, epochs - 1) for k in range(_MOMENTS)]
    held = np.ones(len(times))
    for when, weight in moments:
        back = min(when, _REACH * AGE_AFTER * places / max(missed, 1e-9) / steps, max(_MOST / verge, 1e-3))
        moment = _Moment.of(times, rows, steps, when, back, verge)
        for _ in range(_ROUNDS):
            chances, missed = moment.missed(places, missed, under_way)
        reads_TU += by_table * chances * weight / _MOMENTS
        held = moment.held
    reads_TU /= epochs
    reads_TU *= min(by_last_use(curves, places) / max(float(reads_TU.sum()), 1e-9), 1.0) ** _BY_LAST_USE
    reads = tuple(reads_TU.sum(axis=1).tolist())
    return Kept(tuple((by_table @ held).tolist()), reads, times / steps, reads_TU)


def _classes(curves: Sequence[Curve]) -> tuple[Floats, Floats]:
    """Numbers of uses an epoch [U], rising, and rows of each table that have them [T, U]."""
    found = [curve.uses() for curve in curves]
    split = []
    for n, rows in found:
        few = n <= _TOLD_APART
        low = np.maximum(np.floor(n[few] + 1e-6), 1)
        part = np.clip(n[few] - low, 0, 1)
        many = np.round(2 ** (np.round(_AN_OCTAVE * np.log2(n[~few])) / _AN_OCTAVE))
        split.append(
            (np.concatenate([low, low + 1, many]),
             np.concatenate([rows[few] * (1 - part), rows[few] * part, rows[~few] * n[~few] / many]))
        )  # fmt: skip
    times = np.unique(np.concatenate([n for n, _ in split]))
    by_table = np.stack([np.bincount(np.searchsorted(times, n), of, len(times)) for n, of in split])
    some = by_table.sum(axis=0) > 0
    return times[some], by_table[:, some]


@dataclass
class _Moment:
    """What counts are then, of rows by the number of their uses."""

    times: Floats
    rows: Floats
    steps: int
    counts: Floats  # rows by count [C]
    own: Floats  # chance of each count, the use itself left out [U, C]
    all_of_them: Floats  # the same with all uses [U, C]
    unseen: Floats  # chance that a use is the first of all [U]
    once: Floats  # whether all counts of a class are as long ago as can be [U]
    held: Floats  # share of rows that are [U]

    @classmethod
    def of(cls, times: Floats, rows: Floats, steps: int, when: float, back: float, verge: float) -> "_Moment":
        top = verge * back
        n_counts = int(top + 6 * math.sqrt(top) + 12)
        whole, part = math.floor(back), back - math.floor(back)
        all_of_them, own = np.zeros((len(times), n_counts)), np.zeros((len(times), n_counts))
        log_factorials = _log_factorials(1 << int(times[-1]).bit_length())
        for u, n in enumerate(times.astype(np.int64).tolist()):
            since = whole * n
            stop = min(n + 1, n_counts - since)
            if stop <= 0 or n * part - 8 * math.sqrt(n * part) > stop:
                break  # rows that are asked for more often have higher counts yet
            c = np.arange(stop)
            if part == 0:
                chance = (c == 0).astype(float)
            else:
                logs = log_factorials[n] - log_factorials[c] - log_factorials[n - c]
                chance = np.exp(logs + c * math.log(part) + (n - c) * math.log1p(-part))
            all_of_them[u, since : since + stop] = chance
            own[u, since : since + stop] = chance * (n - c) / (n * (1 - part))
        unseen = (1 - when) ** (times - 1) if when < 1 else np.zeros(len(times))
        once = (times == 1) & (when >= 1)
        return cls(times, rows, steps, rows @ all_of_them, own, all_of_them, unseen, once, np.ones(len(times)))

    def missed(self, places: float, before: float, under_way: float) -> tuple[Floats, float]:
        """Rows read a step, of each row of a class [U]; and rows read or new, of all. ``before``: about as many."""
        total = float(self.rows.sum())
        seen = total - float(self.counts[0])
        brought = before * under_way
        left = max(places - brought * max(1 - places / max(seen, 1e-9), 0.0), 0.0)
        more = total - np.cumsum(self.counts)
        share = np.clip((left - more) / np.maximum(self.counts, 1e-9), 0, 1)
        oldest = np.where(share < 0.999, 0.0, share)
        here = np.where(self.once[:, None], oldest, share)
        gone = np.maximum((self.own * (1 - here)).sum(axis=1) - self.unseen, 0.0)
        a_step = self.times / self.steps
        just_brought = np.minimum(a_step * under_way, 1) * min(places / max(brought, 1e-9), 1)
        reads = a_step * gone * (1 - just_brought)
        held = np.clip(1 - (self.all_of_them * (1 - share)).sum(axis=1), 0, 1)
        latest = a_step * (gone + self.unseen)
        spare = min(places, seen) - float(self.rows @ held)
        self.held = np.clip(held + latest * spare / max(float(self.rows @ latest), 1e-9), 0, 1)
        return reads, (before + float(self.rows @ (reads + a_step * self.unseen))) / 2


@lru_cache(1)
def _log_factorials(n: int) -> Floats:
    """Of 0 to n."""
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1, dtype=np.float64)))])
