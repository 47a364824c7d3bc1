"""A stand-in for policies that look ahead exactly: rows of step t + 1 that step t does not ask for are read before it.

The bits are those of ``sync``: what is read early changes in no update that is in flight.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import pytest

from hpcrec.policy import POLICIES
from hpcrec.policy.policy import (
    EVALUATE,
    LEARN,
    LEARN_FIRST,
    LEARN_REST,
    READ,
    READ_EARLY,
    READ_LATE,
    Event,
)


@dataclass(frozen=True, kw_only=True)
class PartedOptions:
    """There are none."""


class Parted:
    """See ``hpcrec.policy.policy.Policy``."""

    Options: ClassVar[type] = PartedOptions
    in_flight = 2
    parts = True

    def __init__(self, options: PartedOptions) -> None: ...

    def version(self, step: int, since: int) -> int:
        return step

    def events(self, first: int, last: int, evaluated: Callable[[int], bool]) -> Iterator[Event]:
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


def put_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Policy ``parted``."""
    monkeypatch.setitem(POLICIES, "parted", Parted)
