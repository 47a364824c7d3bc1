"""What thresholded gradients leave unsent on one rank, by parameter, with the thresholds in use. See ``dct``.

Two kinds: what a rank has not sent of its own gradients (``first``, whole parameters), and what it has not passed on of
sums that it makes for all ranks (``second``, the stretch of a parameter that falls to it). Both are in units of the
summed gradient, so their sum over all ranks is what training still owes the parameter: whatever happens to ranks and
buckets, that sum stays. Knows names and arrays; knows neither ranks nor messages.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from hpcrec.types import Floats


@dataclass
class Piece:
    """What is unsent of entries [start, start + n) of a parameter, flat, and its threshold.

    Attributes
    ----------
    start : int
    left : float [n]
    tau : float or None
        None: to be found in the next step.
    """

    start: int
    left: Floats
    tau: float | None = None

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + len(self.left)


@dataclass
class Residuals:
    """One rank's, by parameter name. A parameter without an entry has nothing unsent."""

    first: dict[str, Piece] = field(default_factory=dict)
    second: dict[str, Piece] = field(default_factory=dict)

    def first_of(self, name: str, n: int, dtype: np.dtype) -> Piece:
        """That of a whole parameter of ``n`` entries; zeros where there is none yet."""
        if name not in self.first:
            self.first[name] = Piece(0, np.zeros(n, dtype))
        return self.first[name]

    def second_of(self, name: str, start: int, stop: int, dtype: np.dtype) -> Piece:
        """That of a stretch of a parameter; zeros where there is none yet."""
        if name not in self.second:
            self.second[name] = Piece(start, np.zeros(stop - start, dtype))
        return self.second[name]

    def settle(self, stretches: Mapping[str, tuple[int, int]], sizes: Mapping[str, int]) -> None:
        """Moves second residuals to first ones where the stretch of a parameter is no longer this rank's.

        Parameters
        ----------
        stretches : mapping of str to (int, int)
            This rank's, by parameter: start and stop.
        sizes : mapping of str to int
            Entries of parameters whose stretches are settled.
        """
        for name in [n for n in self.second if n in sizes]:
            piece = self.second[name]
            if stretches.get(name) != (piece.start, piece.stop):
                del self.second[name]
                first = self.first_of(name, sizes[name], piece.left.dtype)
                first.left[piece.start : piece.stop] += piece.left

    def owed(self, name: str) -> Iterable[tuple[int, Floats]]:
        """What is unsent of a parameter: where each stretch starts, and what it is."""
        return [(piece.start, piece.left) for held in (self.first, self.second) if (piece := held.get(name))]

    def clear(self, name: str) -> None:
        """Nothing of a parameter is unsent any more."""
        self.first.pop(name, None)
        self.second.pop(name, None)
