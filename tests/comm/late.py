"""A rank that is slow between meeting the others of its host and taking what they have for it."""

import time
from collections.abc import Callable
from typing import Any

from hpcrec.comm.window import Windows

_RELAYED = 2


def take_late(patch: Callable[[Any, str, Any], None], nap_s: float, *, relayed: bool) -> None:
    """From now on it naps before it takes a message of each neighbour's; ``patch`` as ``setattr``.

    Of what they have received for it, with ``relayed``, or of their own: it is made to believe that they have grown,
    for which it comes back from the native module.
    """
    begin = Windows.begin

    def begins(self: Windows, *given: Any, **named: Any) -> tuple[int, int]:
        ends = begin(self, *given, **named)
        which = _RELAYED if relayed else self.turn
        for place, sides in enumerate(self._sides):
            if which < len(sides):
                self._messages.show(place, which, sides[which].numbers, sides[which].messages[:0])
        return ends

    def grows(self: Windows, place: int, which: int) -> None:
        time.sleep(nap_s)
        self._sides[place][which].grow()
        self._show(place, which)

    patch(Windows, "begin", begins)
    patch(Windows, "_grow", grows)
