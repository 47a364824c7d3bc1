"""Policy ``hybrid``: rows are read up to ``staleness`` updates early, while dense parameters are always current.

As [PERSIA] has it, with a difference: there a semaphore lets so many steps pass, and what is read depends on who comes
first; here an owner's reads and updates are one fixed order, so the same seed gives the same bits at any speed.
"""

from dataclasses import dataclass
from typing import ClassVar

from hpcrec.policy.trials import STALENESS, Trials


@dataclass(frozen=True, kw_only=True)
class HybridOptions:
    """See ``policy.staleness`` in ``config.keys``: of the updates before a step, so many may be missing in its rows."""

    staleness: int | str = 1


class Hybrid:
    """See ``Policy``. With a staleness of 0 it is ``sync``; with one of ``auto`` it changes at drain points."""

    Options: ClassVar[type] = HybridOptions

    def __init__(self, options: HybridOptions) -> None:
        self.trials = Trials() if isinstance(options.staleness, str) else None
        self._staleness = 0 if isinstance(options.staleness, str) else options.staleness
        self.in_flight = 1 + (self._staleness if self.trials is None else STALENESS[-1])

    def version(self, step: int, since: int) -> int:
        """The last ``staleness`` updates may be missing; those before the last drain point are not."""
        return max(since, step - (self._staleness if self.trials is None else self.trials.at(since)))
