"""How many rows a step has to read against how many memory holds: curves of one table, and of tables in one memory.

Of rows that memory keeps by how lately they were used (LRU), those that were asked for in the last w steps are held. So
a point of a curve is a number of steps: how many distinct rows so many steps ask for in the mean, which is the memory
that it takes, and how many rows a step come back after more. Tables that share a memory have w in common, and a part of
a table whose rows are dealt has its share of both. Of the best fixed set, memory keeps the rows that come most often.

Rows that no step has asked for yet are not read, for they are nowhere: ``new`` of them come a step. Knows numbers of
rows and steps; no bytes, no ids and no files. Source: P. Denning, S. Schwartz, Properties of the working-set model
(1972); X. Xiang et al., HOTL: a higher order theory of locality (2013).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpcrec.types import Floats


@dataclass(frozen=True)
class Curve:
    """Of one table, or of a part of it.

    Attributes
    ----------
    distinct : float
        Rows that were asked for at all.
    steps : int
        Steps that were looked at.
    asked, new : float
        Distinct rows a step; those of them that no step before has asked for.
    within : float [P]
        Steps w, rising from 0.
    held : float [P]
        Rows that memory holds which keeps those of the last w steps; never falling, from 0 to ``distinct``.
    lru : float [P]
        Rows read a step with so many held, by how lately they were used; never rising, to 0.
    again : float [P]
        Rows a step that an epoch asks for first, where another went before, whose last use in that is more than w
        steps ago; never rising, to 0.
    top, fixed : float [Q]
        Rows of a best fixed set, rising from 0 to ``distinct``, and rows read a step with it; never rising, to 0.
    """

    distinct: float
    steps: int
    asked: float
    new: float
    within: Floats
    held: Floats
    lru: Floats
    again: Floats
    top: Floats
    fixed: Floats

    def reads(self, held: float) -> float:
        """Rows read a step, by LRU, with memory for so many."""
        return float(np.interp(held, self.held, self.lru))

    def best(self, held: float) -> float:
        """The same by the best fixed set of so many rows."""
        return float(np.interp(held, self.top, self.fixed))

    def of_last(self, within: float) -> tuple[float, float]:
        """Rows held, and read a step, where those of the last so many steps are held."""
        return float(np.interp(within, self.within, self.held)), float(np.interp(within, self.within, self.lru))

    def part(self, share: float) -> "Curve":
        """Of a share of the rows, dealt at random."""
        scaled = {name: getattr(self, name) * share for name in (*_NUMBERS, *_ARRAYS) if name != "within"}
        return Curve(steps=self.steps, within=self.within, **scaled)

    def later(self, share: float) -> "Curve":
        """Of a run of which that share of steps comes after the first epoch: rows that are new in it are read then."""
        more = share * self.new
        fixed = self.fixed + more * (1 - self.top / max(self.distinct, 1e-9))
        return replace(self, new=self.new - more, lru=self.lru + share * self.again, fixed=fixed)

    def as_json(self) -> dict[str, Any]:
        """What ``from_json`` makes the same curve of, to six digits."""
        numbers = {name: float(f"{getattr(self, name):.6g}") for name in _NUMBERS}
        arrays = {name: [float(f"{x:.6g}") for x in getattr(self, name).tolist()] for name in _ARRAYS}
        return {"steps": self.steps, **numbers, **arrays}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Curve":
        """Of what ``as_json`` gave.

        Raises
        ------
        KeyError, TypeError, ValueError
            It is something else.
        """
        arrays: dict[str, Any] = {name: np.array(found[name], np.float64) for name in _ARRAYS}
        for columns in (_ARRAYS[:4], _ARRAYS[4:]):
            shapes = {arrays[name].shape for name in columns}
            if len(shapes) > 1 or len(shape := shapes.pop()) != 1 or not shape[0]:
                raise ValueError(f"{', '.join(columns)} are not of one length")
        values: dict[str, Any] = {"steps": int(found["steps"]), **{name: float(found[name]) for name in _NUMBERS}}
        return cls(**values, **arrays)


_NUMBERS = ("distinct", "asked", "new")
_ARRAYS = ("within", "held", "lru", "again", "top", "fixed")


def summed(curves: Sequence[Curve]) -> Curve:
    """Of one table that several features read, as if none of them asked for rows of another: at most as many."""
    if len(curves) == 1:
        return curves[0]
    within, parts = np.unique(np.concatenate([of.within for of in curves])), np.linspace(0, 1, 100)
    sums = {name: sum(getattr(of, name) for of in curves) for name in _NUMBERS}
    rows = {n: sum(np.interp(within, of.within, getattr(of, n)) for of in curves) for n in ("held", "lru", "again")}
    fixed = sum(np.interp(parts * of.distinct, of.top, of.fixed) for of in curves)
    values: dict[str, Any] = {**sums, **rows, "within": within, "fixed": fixed}
    return Curve(steps=max(of.steps for of in curves), top=parts * sums["distinct"], **values)


@dataclass(frozen=True)
class Shared:
    """What becomes of tables that share a memory.

    Attributes
    ----------
    within : float
        Steps whose rows it holds.
    held, reads : tuple of float
        Rows held of each table, and read of it a step.
    """

    within: float
    held: tuple[float, ...]
    reads: tuple[float, ...]


def share(curves: Sequence[Curve], rows: float, ways: int | None = None) -> Shared:
    """Of tables that share memory for so many rows, which keeps those that were used last.

    ``ways``: each row may lie in one set of so many places alone, by a hash. Then it goes when as many others of its
    set were used since, whose number is about Poisson's: some go early, and some that were used longer ago are there.
    """
    if not curves:
        return Shared(0.0, (), ())
    within = np.unique(np.concatenate([curve.within for curve in curves]))
    held = np.sum([np.interp(within, curve.within, curve.held) for curve in curves], axis=0)
    last = float(np.interp(rows, held, within))
    found = [curve.of_last(last) for curve in curves]
    reads = tuple(of for _, of in found)
    if ways is not None:
        gone = _at_least(ways, held * ways / max(rows, 1e-9))
        between = (
            gone[1:] + gone[:-1]
        ) / 2  # of rows that come back after more than one number of steps, and not another
        of_lru = [np.interp(within, curve.within, curve.lru) for curve in curves]
        reads = tuple(float((lru[:-1] - lru[1:]) @ between) for lru in of_lru)
    return Shared(last, tuple(of for of, _ in found), reads)


def _at_least(n: int, means: Floats) -> Floats:
    """Chance of n or more, where numbers are Poisson's with these means [P]."""
    logs = np.log(np.maximum(means, 1e-300))
    less = sum(np.exp(k * logs - means - math.lgamma(k + 1)) for k in range(n))
    return np.clip(1 - less, 0.0, 1.0)
