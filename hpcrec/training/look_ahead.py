"""How many steps ahead ids are routed, and with them rows brought from a disk: as is said, or as steps wait less with.

Where it is not said, it is one step, and one window of steps after the other is measured: for which part of the time
they waited for rows. Where that is more than a fiftieth, one step more is tried, and stays where it leaves less than
nine tenths of that. Reads that vary from step to step are evened out so; a disk that is too slow for all of them is
not. Ranks agree on each share, so that all try alike; no bit of a result depends on it. Knows shares of time and counts
of steps; not who waits. Source: [MTRAINS], which brings rows of several batches to come.
"""

import time
from collections.abc import Callable, Mapping

STEPS = 64  # of a window
SKIPPED = 8  # before it, where another number is tried: as many steps as are known get to be
ENOUGH = 0.02  # of the time is waited: as good as nobody waits
_LEFT = 0.9  # of the share that was waited before: where more is left, they wait for work, not for jitter
_PAUSE = 8  # windows until what was of no use is tried again, then twice as many each time: a memory fills meanwhile


class LookAhead:
    """Of one run. Its verbs are called on the main thread, on every rank before the same steps.

    Parameters
    ----------
    first, most : int
        Steps ahead to begin with, and at most. Where both are the same nothing is measured.
    flying : int
        Steps in flight beside the one under way.
    waited_s : callable
        Seconds for which steps have waited for rows here so far.
    agreed : callable
        The largest of a number over all ranks; collective.

    Attributes
    ----------
    steps : int
        Ahead now.
    shares : dict of int to float
        Of those that were tried, which part of the time was waited, in the last window of each.
    """

    def __init__(
        self, first: int, most: int, flying: int, waited_s: Callable[[], float], agreed: Callable[[float], float]
    ) -> None:
        self.steps, self.shares = first, dict[int, float]()
        self._most, self._flying, self._seeks = most, flying, most > first
        self._waited_s, self._agreed = waited_s, agreed
        self._number = 0  # of the step in its window
        self._since_s = self._waited_since_s = 0.0
        self._before: float | None = None  # share under one step less, where this one is tried
        self._pause, self._pauses = 0, _PAUSE

    @property
    def submitted(self) -> int:
        """Batches that are submitted beyond the one under way, as it is now."""
        return self.steps + self._flying

    @property
    def most(self) -> int:
        """The same at most."""
        return self._most + self._flying

    def before_step(self) -> int:
        """``submitted``, of the next training step; collective where a window ends."""
        if self._seeks:
            if self._number == SKIPPED + STEPS:
                took_s, waited_s = time.perf_counter() - self._since_s, self._waited_s() - self._waited_since_s
                steps = self.steps
                self.tell(self._agreed(waited_s / took_s if took_s else 0.0))
                self._number = SKIPPED if steps == self.steps else 0
            if self._number == SKIPPED:
                self._since_s, self._waited_since_s = time.perf_counter(), self._waited_s()
            self._number += 1
        return self.submitted

    def begin(self) -> None:
        """Steps follow, perhaps after others that were left: their window begins anew."""
        self._number = 0

    def tell(self, share: float) -> None:
        """In a window steps have waited for so much of the time: this number stays, or another one is next."""
        self.shares[self.steps] = share
        before, self._before = self._before, None
        if before is not None:
            if share > _LEFT * before:
                self.steps -= 1
                self._pause, self._pauses = self._pauses, 2 * self._pauses
                return
            self._pauses = _PAUSE
        if self._pause:
            self._pause -= 1
        elif share > ENOUGH and self.steps < self._most:
            self._before = share
            self.steps += 1

    def record(self) -> Mapping[str, object]:
        """What summary.json says of it; empty where the number was given."""
        if not self._seeks:
            return {}
        waited = ", ".join(f"{share:.1%} with {steps}" for steps, share in sorted(self.shares.items()))
        why = f"of the time steps waited for rows: {waited}" if waited else "the run had no window of steps to measure"
        return {"steps": self.steps, "waited": {str(n): share for n, share in self.shares.items()}, "why": why}
