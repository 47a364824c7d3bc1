"""Which row of a dense rank's pool of copies has which place, by whatever rule rows give way to others.

Under the rule ``known`` rows of steps to come are told before, so that the copy goes which is needed last; the others
know what was asked for. Knows rows by number; knows nothing of what is at a place.
"""

from hpcrec import kernels
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.types import Ints


class Places:
    """The places of a pool.

    Parameters
    ----------
    capacity : int
    keeping : Keeping
        Rows of steps in flight keep their places (``lookahead``).
    """

    def __init__(self, capacity: int, keeping: Keeping) -> None:
        self._capacity, self._evict, self._in_use = capacity, keeping.evict, 1 + keeping.lookahead
        self._known = None
        if self._evict == "known":
            self._known = kernels.KnownMap(capacity=capacity, window=keeping.window, in_use=self._in_use)
        self.empty()

    def admit(self, rows: Ints) -> kernels.Admitted:
        """Places of a step's rows, distinct ones; under ``known`` of the first step that is foreseen."""
        return self._map.admit(rows)

    def foresee(self, rows: Ints) -> None:
        """The rows of one more step, as ``admit`` will be given them, under ``known``."""
        assert self._known is not None, "no other rule looks ahead"
        self._known.foresee(rows)

    def empty(self) -> None:
        """No row has a place; what is foreseen still comes."""
        self._map: kernels.IdMap | kernels.KnownMap
        if self._known is not None:
            self._known.clear()
            self._map = self._known
        elif self._evict != "known":
            self._map = kernels.IdMap(capacity=self._capacity, evict=self._evict, in_use=self._in_use)

    def give_up(self) -> None:
        """What is foreseen does not come."""
        if self._known is not None:
            self._known.forget()
