"""What a block costs beside one that only reads the clock, in the same run: machines differ, and are busy."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

_TURNS, _BLOCKS = 20, 1000


class _Plain:
    def __enter__(self) -> None:
        self.began_s = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.took_s = time.monotonic() - self.began_s


def times_a_plain_block(block: Callable[[], AbstractContextManager[object]]) -> float:
    """How often as long it takes as one that reads the clock where it begins and ends; each as fast as it ever was."""
    best_s, plain = [1.0, 1.0], _Plain()
    for _ in range(_TURNS):
        for at, one in enumerate((block, lambda: plain)):
            began_s = time.perf_counter()
            for _ in range(_BLOCKS):
                with one():
                    pass
            best_s[at] = min(best_s[at], (time.perf_counter() - began_s) / _BLOCKS)
    return best_s[0] / best_s[1]
