"""What policy ``cached`` is expected to send and push, from how often rows are asked for: formulas, before a run.

Rows are asked for independently, and dense ranks alike. Of a row that a step of a rank asks for with chance p:

kept     Under ``lru`` a row stays for the characteristic time T, in steps, in which as many distinct rows are used as
         there is room for: sum of 1 - (1 - p)^T = capacity. A read finds its copy with chance h = 1 - (1 - p)^T. Rules
         that count uses protect rows that are used often, and let the rest come and go as ``lru`` does: ``PROTECTED``
pushed   A copy is pushed with each m = staleness + 1 of its uses, and as it goes: (1 - h) / (1 - h^m) pushes a use
too old  Where one of the other ranks has pushed m ticks at once since the read before, at whatever phase it is; or
         where pushes of fewer ticks, of copies that had to go, have added up to m

With a staleness of 0 every row is sent and pushed. An age (``max_age``) sends and pushes no later than that. Left out
are drain points, the steps in which copies fill, and features of the same table in other forms. Knows rates; knows no
rows, no ranks and no bytes. Source: H. Che et al., Hierarchical Web caching systems (2002); the rest is
of hpcrec.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.types import Floats

# Share of the room that belongs to the rows that are used most: what fits counts of Zipf's exponents 1.05 and 1.2.
PROTECTED = {"lru": 0.0, "lightlfu": 0.25, "lfu": 0.5}
MOST_USES, GAPS = 64, 48  # uses of another rank between two own ones that are told apart; gaps that are looked at
CLASSES_A_FACTOR_10 = 60
FOREVER = 1e15  # steps


@dataclass(frozen=True)
class Rates:
    """How often rows are asked for, in classes of rows alike.

    Attributes
    ----------
    chance : float64 [N]
        Of a step of one dense rank to ask for each row of the class, above 0 and at most 1.
    rows : float64 [N]
        How many rows those are; not whole where they are means.
    """

    chance: Floats
    rows: Floats

    @classmethod
    def of(cls, chance: Floats) -> "Rates":
        """Of rows one by one [N]; those that are never asked for are left out."""
        some = chance[chance > 0]
        number = np.floor(CLASSES_A_FACTOR_10 * np.log10(some)).astype(np.int64)
        _, at, rows = np.unique(number, return_inverse=True, return_counts=True)
        return cls(np.bincount(at, some) / np.maximum(rows, 1) if len(some) else some, rows.astype(np.float64))

    @classmethod
    def joined(cls, several: Sequence["Rates"]) -> "Rates":
        """Classes of all of them, one after the other."""
        return cls(np.concatenate([of.chance for of in several]), np.concatenate([of.rows for of in several]))

    @property
    def asked(self) -> float:
        """Distinct rows that a step of one rank asks for."""
        return float(self.chance @ self.rows)


@dataclass(frozen=True)
class Shares:
    """Of rows that are asked for, by class [N].

    Attributes
    ----------
    missed, too_old, pushed : float64 [N]
        There is no copy; there is one that is too old; and pushes, a row asked for.
    """

    missed: Floats
    too_old: Floats
    pushed: Floats


def shares(rates: Rates, capacity: float, keeping: Keeping, *, protected: float | None = None) -> Shares:
    """What becomes of the rows of a pool.

    Parameters
    ----------
    rates : Rates
        Of all rows of the pool.
    capacity : float
        Copies that there is room for.
    keeping : Keeping
        ``dense`` are the ranks that read and push; ``capacity`` is not looked at.
    protected : float, optional
        In place of ``PROTECTED``; 1: the most frequent rows stay, for ever.
    """
    if keeping.staleness == 0:
        ones = np.ones_like(rates.chance)
        return Shares(ones, 0 * ones, ones)
    share = PROTECTED[keeping.evict] if protected is None else protected
    kept, time = _kept(rates, capacity, share)
    p, m = rates.chance, keeping.staleness + 1
    hit = -np.expm1(time * np.log1p(-np.minimum(p, 1 - 1e-12)))
    of_rest, of_kept = _of(p, hit, m, keeping), _of(p, np.ones_like(p), m, keeping)
    rest = 1 - kept
    return Shares(rest * (1 - hit), *(kept * a + rest * b for a, b in zip(of_kept, of_rest, strict=True)))


def _kept(rates: Rates, capacity: float, protected: float) -> tuple[Floats, float]:
    """Which share of each class is protected [N], and how many steps the others stay."""
    order = np.argsort(-rates.chance, kind="stable")
    before = np.cumsum(rates.rows[order]) - rates.rows[order]
    kept = np.zeros_like(rates.chance)
    kept[order] = np.clip((protected * capacity - before) / np.maximum(rates.rows[order], 1e-300), 0, 1)
    left, room = rates.rows * (1 - kept), (1 - protected) * capacity
    if left.sum() <= room:
        return kept, FOREVER
    log = np.log1p(-np.minimum(rates.chance, 1 - 1e-12))
    low, high = -30.0, np.log(FOREVER)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if -left @ np.expm1(np.exp(middle) * log) < room else (low, middle)
    return kept, float(np.exp(low))


def _of(p: Floats, hit: Floats, m: int, keeping: Keeping) -> tuple[Floats, Floats]:
    """Rows that are too old, and pushes, each a use [N]."""
    gone = 1 - hit
    with np.errstate(divide="ignore", invalid="ignore"):
        pushed = np.where(gone < 1e-9, 1 / m, gone / -np.expm1(m * np.log(np.maximum(hit, 1e-300))))
        full = np.where(gone < 1e-9, 1 / m, pushed * hit ** (m - 1))
    others = len(keeping.dense) - 1
    fresh, uses = _fresh(p, hit, m, full, others)
    some = np.maximum(pushed - full, 1e-300)
    ticks = np.maximum((1 - m * full) / some, 1.0)  # of a push of a copy that had to go
    wait = np.maximum((1 + (m - 1) / ticks) / np.maximum(others * some * uses, 1e-300), 1.0)
    ends = np.clip(1 - hit * fresh, 1e-12, 1 - 1e-12)
    lasts = np.exp(wait * np.log1p(-ends))
    old = 1 - fresh * (1 - np.minimum(ends * lasts / (1 - lasts), 1.0))
    if keeping.max_age is not None:
        old, pushed = _aged(p, old, pushed, m, keeping.max_age)
    return hit * old, pushed


def _fresh(p: Floats, hit: Floats, m: int, full: Floats, others: int) -> tuple[Floats, Floats]:
    """Of reads that find a copy: the chance that no other rank has pushed m ticks since the read before.

    And how often another rank has used the row meanwhile, in the mean. A rank pushes m ticks at once with the share
    ``full`` of its uses, at any phase; between two own uses lie gaps of the quantiles of their distribution.
    """
    below = np.minimum(p, 1 - 1e-9)[:, None]
    left = 1 - hit[:, None] * (np.arange(GAPS) + 0.5) / GAPS
    gap = np.maximum(np.ceil(np.log(left) / np.log1p(-below)), 1.0)
    chance = np.exp(gap * np.log1p(-below))
    none = np.zeros_like(gap)
    for n in range(min(m, MOST_USES)):
        none += chance * np.maximum(1 - n * full[:, None], 0)
        chance *= np.maximum(gap - n, 0) / (n + 1) * below / (1 - below)
    return np.mean(np.minimum(none, 1.0) ** others, axis=1), p * gap.mean(axis=1)


def _aged(p: Floats, old: Floats, pushed: Floats, m: int, max_age: int) -> tuple[Floats, Floats]:
    """The same where a copy is asked for anew after so many steps, and what it holds back is pushed."""
    reads = 1 + (max_age - 1) * p
    with np.errstate(divide="ignore", invalid="ignore"):
        old = np.where(old < 1e-9, 1 / reads, old / -np.expm1(reads * np.log1p(-np.minimum(old, 1 - 1e-12))))
    return np.minimum(old, 1.0), np.maximum(pushed, 1 / np.minimum(m, 1 + max_age * p))
