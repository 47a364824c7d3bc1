"""How many bytes a day a process may write to its disk, whose drive bears no more: whoever has written them waits.

A bucket of tokens: it holds some minutes' worth of bytes and is full at first; what is written is taken out of it, and
comes back at the rate of the budget. Who finds it empty waits until it is not. So a burst as long as that passes, and a
day has at most the budget and one bucket. Knows numbers of bytes and a clock; writes nothing itself.
"""

import time
import warnings
from collections.abc import Callable

from hpcrec.clock import Waits

BURST_S = 300.0  # of the budget's rate, that may be written at once
_DAY_S = 86_400.0
_LOOK_EVERY_S = 0.5  # whether still to wait


class WriteBudget:
    """Of one process.

    Parameters
    ----------
    daily_bytes : int
        That may be written in 86,400 s.
    now, sleep : callable
        A clock in seconds, and what waits for so many.

    Attributes
    ----------
    waited_s : float
        All in all.
    """

    def __init__(
        self,
        daily_bytes: int,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._daily_bytes, self._now, self._sleep = daily_bytes, now, sleep
        self._a_second = daily_bytes / _DAY_S
        self._most = self._left = BURST_S * self._a_second
        self._then, self._warned = now(), False
        self.waited_s = 0.0

    def spend(self, n_bytes: int, *, waits: Callable[[], bool] = lambda: True) -> None:
        """So many were written: returns when the budget allows them; warns the first time that it has to wait.

        Parameters
        ----------
        n_bytes : int
        waits : callable
            Whether to wait, asked again every half a second: not where steps stand still for a checkpoint, or all is
            to end. Then whoever writes next waits for these bytes.
        """
        self._fill()
        self._left -= n_bytes
        if self._left >= 0 or not waits():
            return
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"store.daily_bytes = {self._daily_bytes} is used up: this rank writes more to its disk than "
                f"{self._a_second:,.0f} bytes a second, so reading rows waits for it, and steps for these "
                "(disk_budget_waited_s in summary.json). Raise store.memory_bytes, so that fewer rows leave the "
                "memory, or store.daily_bytes.",
                stacklevel=2,
            )
        began = self._now()
        with Waits():
            while self._left <= -1 and waits():  # what is less than a byte is by rounding
                self._sleep(min(-self._left / self._a_second, _LOOK_EVERY_S))
                self._fill()
        self.waited_s += self._now() - began

    def _fill(self) -> None:
        now = self._now()
        self._left = min(self._left + (now - self._then) * self._a_second, self._most)
        self._then = now
