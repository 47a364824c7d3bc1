"""How many rows a step has to read against how many memory holds: curves of one table, by two rules.

Of rows that memory keeps by how lately they were used (LRU), those that were asked for in the last w steps are held. So
a point of a curve is a number of steps: how many distinct rows so many steps ask for in the mean, which is the memory
that it takes, and how many rows a step come back after more. Of the best fixed set, memory keeps the rows that come
most often; from that curve follows too how many rows come how often (``plan.aging``). A part of a table whose rows are
dealt has its share of both.

Rows that no step has asked for yet are not read, for they are nowhere: ``new`` of them come a step. Knows numbers of
rows and steps; no bytes, no ids and no files. Source: P. Denning, S. Schwartz, Properties of the working-set model
(1972); X. Xiang et al., HOTL: a higher order theory of locality (2013).
"""

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
    epochs : float
        How often a run comes by the steps that were looked at, which is in ``new``, ``lru`` and ``fixed``.
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
    epochs: float = 1.0

    def reads(self, held: float) -> float:
        """Rows read a step, by LRU, with memory for so many."""
        return float(np.interp(held, self.held, self.lru))

    def best(self, held: float) -> float:
        """The same by the best fixed set of so many rows."""
        return float(np.interp(held, self.top, self.fixed))

    def uses(self) -> tuple[Floats, Floats]:
        """Numbers of steps of an epoch that ask for a row, and rows that have about as many, float [Q - 1] each."""
        rows = np.diff(self.top)
        some = rows > 0
        a_step = -np.diff(self.fixed)[some] / rows[some]
        return np.maximum(a_step * self.steps + 1 / self.epochs, 1.0), rows[some]

    def part(self, share: float) -> "Curve":
        """Of a share of the rows, dealt at random."""
        scaled = {name: getattr(self, name) * share for name in (*_NUMBERS, *_ARRAYS) if name != "within"}
        return replace(self, **scaled)

    def later(self, share: float) -> "Curve":
        """Of a run of which that share of steps comes after the first epoch: rows that are new in it are read then."""
        more = share * self.new
        fixed = self.fixed + more * (1 - self.top / max(self.distinct, 1e-9))
        epochs = 1 / (1 - share)
        return replace(self, new=self.new - more, lru=self.lru + share * self.again, fixed=fixed, epochs=epochs)

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
    within = np.unique(np.concatenate([of.within for of in curves]))
    sums = {name: sum(getattr(of, name) for of in curves) for name in _NUMBERS}
    rows = {n: sum(np.interp(within, of.within, getattr(of, n)) for of in curves) for n in ("held", "lru", "again")}
    some, less = (np.concatenate([np.diff(getattr(of, name)) for of in curves]) for name in ("top", "fixed"))
    some, less = some[some > 0], -less[some > 0]
    often = np.argsort(-less / some, kind="stable")  # the best set of all has the best rows of each
    top = np.concatenate([[0.0], np.cumsum(some[often])])
    fixed = np.append(np.cumsum(less[often][::-1])[::-1], 0.0)
    values: dict[str, Any] = {**sums, **rows, "within": within, "top": top, "fixed": fixed}
    return Curve(steps=max(of.steps for of in curves), epochs=curves[0].epochs, **values)


def by_last_use(curves: Sequence[Curve], rows: float) -> float:
    """Rows read a step of tables that share a memory for so many rows, where those stay that were used last.

    They have in common in how many steps what is held was asked for.
    """
    within = np.unique(np.concatenate([of.within for of in curves]))
    held = np.sum([np.interp(within, of.within, of.held) for of in curves], axis=0)
    last = np.interp(rows, held, within)
    return float(sum(np.interp(last, of.within, of.lru) for of in curves))
