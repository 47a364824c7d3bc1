"""What has changed in a cache, written beside the steps before a checkpoint: they stand still for the rest alone.

A thread goes round: it writes what has changed and no step has, then what has changed meanwhile, and so on, each round
shorter than the one before, until one takes no longer than a step; from then on there is a round a step. It begins so
early that it comes to that: as long before as it has taken the last time, by the time of the last step. Knows a cache,
steps to come and a clock. Source: pre-copy, by which virtual machines are moved (C. Clark et al., Live migration of
virtual machines, NSDI 2005).
"""

import threading
import time

from hpcrec import kernels
from hpcrec.clock import Idles, Phase
from hpcrec.embedding.stores.cache import Cache

_SHARE = 0.8  # of the time the thread works: while rows are copied no step gets its places
_FIRST_BYTES_PER_S = 50e6  # of the cache, until it was measured
_EARLIER = 1.75  # than it takes


class EarlyFlush:
    """Of one cache, whose rows and states are ``n_bytes``. One thread calls.

    Attributes
    ----------
    rows : int
        That were written.
    """

    def __init__(self, cache: Cache, n_bytes: int) -> None:
        self._cache, self._takes_s, self.rows = cache, n_bytes / _FIRST_BYTES_PER_S, 0
        self._then_s: float | None = None  # when it was told last
        self._step_s = 0.0
        self._thread: threading.Thread | None = None
        self._stopped, self._stepped = threading.Event(), threading.Event()

    def due_in(self, steps: int) -> None:
        """Between two steps: after so many more the rows will be kept."""
        now_s, then_s = time.monotonic(), self._then_s
        self._then_s = now_s
        if then_s is None or not steps or not self._cache:
            return
        self._step_s = now_s - then_s
        self._stepped.set()
        if self._thread is None and (steps - 1) * self._step_s <= _EARLIER * self._takes_s:
            self._stopped.clear()
            self._thread = threading.Thread(target=self._run, name="rows written early", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        kernels.set_threads(1)
        began_s, is_short = time.monotonic(), False
        with Phase("write"):
            while True:
                self._stepped.clear()
                if self._stopped.is_set():  # set before the other one: none of both is missed
                    return
                round_s = time.monotonic()
                try:
                    self._round()
                except Exception:  # the cache is not whole any more, and says why to the next one who asks
                    return
                now_s = time.monotonic()
                if not is_short and now_s - round_s <= self._step_s:
                    self._takes_s, is_short = now_s - began_s, True
                if is_short:
                    with Idles():
                        self._stepped.wait()

    def _round(self) -> None:
        at_s = time.monotonic()
        for n_rows in self._cache.flush_idle():
            self.rows += n_rows
            with Idles():
                if self._stopped.wait((time.monotonic() - at_s) * (1 / _SHARE - 1)):
                    return
            at_s = time.monotonic()

    def end(self) -> None:
        """Nothing is written any more but by the caller; also where it was not begun."""
        if self._thread is not None:
            self._stopped.set()
            self._stepped.set()
            self._thread.join()
            self._thread = None
        self._then_s = None
