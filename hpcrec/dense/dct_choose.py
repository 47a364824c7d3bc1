"""Which entries of a part are sent in a step, and what that leaves, until the step is taken or left out. See ``dct``.

Knows arrays and thresholds; knows neither ranks nor messages.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields

import numpy as np

from hpcrec.dense.dct_parts import Part, Segment
from hpcrec.dense.residuals import Piece
from hpcrec.dense.sparse import add_and_take_above, kept_of, most_of, take_above, threshold
from hpcrec.types import Floats, Ints


@dataclass
class Counts:
    """What one rank has done.

    Attributes
    ----------
    entries, kept : int
        Entries of its gradients that were thresholded, and those of them that were sent.
    sent_bytes, plain_bytes : int
        What it sent for all sums, whole ones too, and what plain sums would have taken by their formula.
    scheduled, drifted : int
        Thresholds found anew because they were due, and because too much passed.
    sums, whole : int
        Sums of buckets, and those of them that were whole.
    """

    entries: int = 0
    kept: int = 0
    sent_bytes: int = 0
    plain_bytes: int = 0
    scheduled: int = 0
    drifted: int = 0
    sums: int = 0
    whole: int = 0

    def as_array(self) -> Ints:
        """In the order of the fields."""
        return np.array([getattr(self, f.name) for f in fields(self)], np.int64)

    @classmethod
    def of(cls, values: Iterable[int]) -> "Counts":
        """From ``as_array``."""
        return cls(*(int(v) for v in values))


@dataclass
class Chosen:
    """Entries of a part to be sent.

    Attributes
    ----------
    left : float [n]
        The array that they were chosen from; has then what they leave.
    positions : int64 [k]
        In the part, rising.
    values : float [k]
    found : list of (Segment, Piece, float)
        Where what is left goes, and its threshold from this step on.
    scheduled, drifted : int
    """

    left: Floats
    positions: Ints
    values: Floats
    found: list[tuple[Segment, Piece, float]] = field(default_factory=list)
    scheduled: int = 0
    drifted: int = 0

    def take(self) -> None:
        """The step is taken: residuals and thresholds are those that it leaves."""
        for segment, piece, tau in self.found:
            piece.left[:] = self.left[segment.place]
            piece.tau = tau


def choose(part: Part, values: Floats, piece_of: Callable[[Segment], Piece], *, density: float, due: bool) -> Chosen:
    """Entries of a part to be sent, by the threshold of each segment.

    Parameters
    ----------
    values : float [n]
        What is added to the residuals; has afterwards what is left of both, the entries that are sent as 0.
    piece_of : callable
        The residual of a segment, which is not changed here.
    due : bool
        Whether thresholds are found anew.
    """
    positions, chosen, out = [], [], Chosen(values, np.zeros(0, np.int64), values[:0])
    for segment in part.segments:
        piece, own = piece_of(segment), values[segment.place]
        tau, keep = piece.tau, kept_of(segment.n, density)
        if tau is not None and not due:
            found, taken = add_and_take_above(own, piece.left, tau)
            if len(found) > most_of(segment.n, density):
                own[found] = taken
                tau = None
                out.drifted += 1
        else:
            own += piece.left
            tau = None
            out.scheduled += 1
        if tau is None:
            tau = threshold(own, keep)
            found, taken = take_above(own, tau)
        positions.append(found + segment.at)
        chosen.append(taken)
        out.found.append((segment, piece, tau))
    if positions:
        out.positions, out.values = np.concatenate(positions), np.concatenate(chosen)
    return out
