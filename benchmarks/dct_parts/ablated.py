"""The command ``hpcrec`` with one piece of thresholded dense sums taken out or replaced, to see what it is good for.

    hpcrec run -n 2 -- benchmarks/dct_parts/ablated.py WITHOUT train CONFIG [...]

WITHOUT is ``feedback``: what is not sent is forgotten; or ``magnitude``: of each parameter as many entries are sent as
its density asks for, but at random, others on each rank and in each step. Replaces functions of ``hpcrec.dense``; all
else is the command's.
"""

import sys
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from hpcrec.cli.main import main
from hpcrec.dense import dct
from hpcrec.dense.dct_choose import Chosen, kept_of
from hpcrec.dense.dct_parts import Part, Segment
from hpcrec.dense.residuals import Piece
from hpcrec.types import Floats


def forget(chosen: Chosen) -> None:
    """In place of ``Chosen.take``: thresholds stay, nothing is left over."""
    for _, piece, tau in chosen.found:
        piece.tau = tau


class AtRandom:
    """In place of ``choose``: without regard to magnitudes."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(MPI.COMM_WORLD.rank)  # of each rank others

    def __call__(
        self, part: Part, values: Floats, piece_of: Callable[[Segment], Piece], *, density: float, due: bool
    ) -> Chosen:
        """Entries of a part to be sent, and what that leaves."""
        positions, chosen, out = [], [], Chosen(values, np.zeros(0, np.int64), values[:0], scheduled=int(due))
        for segment in part.segments:
            piece, own = piece_of(segment), values[segment.place]
            own += piece.left
            found = np.sort(self._random.choice(segment.n, kept_of(segment.n, density), replace=False))
            positions.append(found + segment.at)
            chosen.append(own[found].copy())
            own[found] = 0
            out.found.append((segment, piece, 0.0))
        if positions:
            out.positions, out.values = np.concatenate(positions), np.concatenate(chosen)
        return out


def without(piece: str) -> None:
    """Takes it out."""
    if piece == "feedback":
        Chosen.take = forget  # type: ignore[method-assign]
    elif piece == "magnitude":
        dct.choose = AtRandom()  # type: ignore[assignment]
    else:
        sys.exit(f"{piece!r} cannot be taken out; allowed are feedback and magnitude")


if __name__ == "__main__":
    without(sys.argv.pop(1))
    main()
