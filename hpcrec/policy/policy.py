"""The contract of a policy, and the order of reads and updates that follows from it.

Knows numbers of steps, counted from 0; knows nothing of rows, threads or ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

READ, LEARN, EVALUATE = "read", "learn", "evaluate"
READ_EARLY, READ_LATE, LEARN_FIRST, LEARN_REST = "read early", "read late", "learn first", "learn rest"
Event = tuple[str, int]
"""What is done, and the step that it is done for; an evaluation's is the number of steps done before it."""


class Policy(Protocol):
    """Which version of the rows each step's lookup reads. Version v: the updates of exactly the steps before v are in.

    A pure function of the step, the same on every rank. From it alone follow what may overlap, how many steps are in
    flight, how much memory they take and what a checkpoint has to wait for; nothing below it assumes an order. With
    several steps in flight it may have a method ``events`` besides, which stands for the function of that name.

    With an attribute ``parts`` that is True these may come in parts: ``READ_EARLY`` t + 1, of what step t does not ask
    for, before t is learned; ``LEARN_FIRST`` t, of the rows that t + 1 asks for; ``READ_LATE`` t + 1, of what is left;
    and ``LEARN_REST`` t before the next read. So an exact look-ahead reads version t of rows that t does not change.

    With an attribute ``trials`` that is a ``Trials``, it is sought in the first steps how old rows may be: then what is
    known of a step is a function of what was measured before the drain point ``since``.

    Attributes
    ----------
    Options : type
        Its section of the configuration: a frozen dataclass beside the class, whose defaults are the policy's.
    in_flight : int
        Steps read and not yet learned, at most.
    """

    Options: ClassVar[type]
    in_flight: int

    def __init__(self, options: Any) -> None:
        """``options`` are ``Options``."""

    def version(self, step: int, since: int) -> int:
        """What ``step``'s lookup reads: never falls, at most ``step``, at least ``since``, the last drain point."""


def never(_: int) -> bool:
    """No evaluation comes."""
    return False


def events(policy: Policy, first: int, last: int, evaluated: Callable[[int], bool] = never) -> Iterator[Event]:
    """The order in which every rank reads and learns steps [first, last), from one drain point to the next.

    Parameters
    ----------
    policy : Policy
    first, last : int
    evaluated : callable
        Whether an evaluation comes after so many steps. It has its place before the reads that follow the last
        update: one at ``first`` or ``last`` comes while nothing is in flight, so it is no event.
    """
    own = getattr(policy, "events", None)
    if own is not None:
        yield from own(first, last, evaluated)
        return
    reading = first
    for step in range(first, last):
        if step > first and evaluated(step):
            yield EVALUATE, step
        while reading < last and policy.version(reading, first) <= step:
            yield READ, reading
            reading += 1
        assert step < reading <= step + policy.in_flight, f"version({reading}, {first}) is not what a policy may answer"
        yield LEARN, step


@dataclass(frozen=True, kw_only=True)
class Points:
    """What comes between steps: known before the first of them, from the configuration alone, but for ``once``.

    Attributes
    ----------
    drains : tuple of int
        Nothing is in flight after each so many steps, and none is read further before: at checkpoints, and at
        evaluations on which a checkpoint of the best or an early end may hang, whatever they find.
    evaluations : tuple of int
        After each so many steps an evaluation comes.
    once : tuple of int
        Steps after which nothing is in flight either: where a checkpoint that failed is tried again.
    logged : int
        Between steps of which a line of metrics tells.
    """

    drains: tuple[int, ...] = ()
    evaluations: tuple[int, ...] = ()
    once: tuple[int, ...] = ()
    logged: int = 0

    def next_drain(self, first: int, last: int) -> int:
        """The first drain point after ``first``; ``last``, the end, where none comes before."""
        periodic = (first - first % every + every for every in self.drains if every)
        return min([last, *periodic, *(step for step in self.once if step > first)])

    def evaluated(self, step: int) -> bool:
        """Whether an evaluation comes after so many steps."""
        return any(every and step % every == 0 for every in self.evaluations)

    def is_logged(self, step: int) -> bool:
        """Whether a line of metrics tells of this step."""
        return self.logged > 0 and (step + 1) % self.logged == 0

    def line(self, step: int) -> int:
        """Number of the line of metrics that tells of this step, among others."""
        return step // self.logged if self.logged else 0
