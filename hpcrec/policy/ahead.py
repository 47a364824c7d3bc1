"""Policy ``ahead``: rows of the next step that this one does not change are read while it is computed; exact.

Ids are known before their step, so which rows it will find changed is known too: these are read after the update, in a
second part, and of the update their gradients come first. As [BAGPIPE] looks ahead, without its cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from hpcrec.policy.policy import EVALUATE, LEARN, LEARN_FIRST, LEARN_REST, READ, READ_EARLY, READ_LATE, Event


@dataclass(frozen=True, kw_only=True)
class AheadOptions:
    """There are none."""


class Ahead:
    """See ``Policy``. The bits are those of ``sync``: what is read early no update in flight changes."""

    Options: ClassVar[type] = AheadOptions
    in_flight = 2
    parts = True

    def __init__(self, options: AheadOptions) -> None: ...

    def version(self, step: int, since: int) -> int:  # noqa: ARG002
        """Each step's own."""
        return step

    def events(self, first: int, last: int, evaluated: Callable[[int], bool]) -> Iterator[Event]:
        """See ``policy.events``, in whose place it stands."""
        yield READ, first
        for step in range(first, last):
            if step > first:
                yield LEARN_REST, step - 1
                if evaluated(step):
                    yield EVALUATE, step
            if step + 1 < last:
                yield READ_EARLY, step + 1
                yield LEARN_FIRST, step
                yield READ_LATE, step + 1
            else:
                yield LEARN, step
