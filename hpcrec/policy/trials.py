"""Finds the smallest staleness with which dense ranks do not wait for rows, by trying some in the first steps.

Each is tried for some steps between two drain points. Knows shares of time that ranks have agreed on, and counts of
steps; not who waits, nor for what.
"""

STALENESS = (1, 2, 3, 4, 6, 8, 10)  # tried in this order
STEPS = 40  # of a trial, from a drain point to the next
SKIPPED = 15  # of them, its first: steps in flight are as many as they get to be
ENOUGH = 0.02  # of the time is waited for rows: as good as nobody waits
_LEFT = 0.9  # of the share that the one before has waited: where more is left, ranks wait for work, not for jitter


class Trials:
    """What was tried, and what comes of it.

    Attributes
    ----------
    allowed : tuple of int
        Those that may be found.
    staleness : int
        Under trial, or found.
    found : bool
    shares : dict of int to float
        Of those that were tried, the part of the time that was waited for rows.
    """

    allowed = STALENESS

    def __init__(self) -> None:
        self.found = False
        self.begin()

    def begin(self) -> None:
        """Nothing was tried."""
        self.shares: dict[int, float] = {}
        self._since = [(0, STALENESS[0])]  # from which step on, rising; each of them follows a drain point

    @property
    def staleness(self) -> int:
        """See above."""
        return self._since[-1][1]

    def at(self, step: int) -> int:
        """That of a step: from what is known when it is asked for on, it does not change."""
        return next(staleness for first, staleness in reversed(self._since) if first <= step)

    def tell(self, share: float, step: int) -> None:
        """The one under trial has waited for so much of the time: it is the one, or the one before, or the next is.

        That holds from ``step`` on.
        """
        now, before = self.staleness, next(reversed(self.shares.items()), None)
        self.shares[now] = share
        following = STALENESS.index(now) + 1
        if share <= ENOUGH:
            self.found = True
        elif before is not None and share > _LEFT * before[1]:
            self._since.append((step, before[0]))
            self.found = True
        elif following == len(STALENESS):
            self.found = True
        else:
            self._since.append((step, STALENESS[following]))

    def take(self, staleness: int) -> None:
        """It is known already, from a run that is gone on with."""
        self._since, self.found = [(0, staleness)], True
