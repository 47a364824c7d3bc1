"""What waits for what under a policy, as a table: docs/architecture.md has it of every policy.

Follows from ``events`` and from how ``pipeline`` runs them. Knows no rows and no ranks, only their roles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hpcrec.policy.flight import GRADIENTS, VALUES
from hpcrec.policy.policy import (
    EVALUATE,
    LEARN,
    LEARN_FIRST,
    LEARN_REST,
    READ,
    READ_EARLY,
    READ_LATE,
    Event,
    Policy,
    events,
)


@dataclass(frozen=True)
class Wait:
    """An event of step t, the ranks and the thread that it is on, and what these wait for before it."""

    event: str
    ranks: str
    thread: str
    waits_for: tuple[str, ...]


def waits(policy: Policy) -> list[Wait]:
    """Those of a step t far from drain points, in the order of the step."""
    t = 4 * policy.in_flight
    order = list(events(policy, 0, 2 * t))
    evaluated = list(events(policy, 0, 2 * t, lambda step: step == t + 1))
    inline = policy.in_flight == 1
    thread, drained = "main" if inline else VALUES, "nothing in flight"
    other = thread if inline or getattr(policy, "parts", False) else GRADIENTS

    def before(event: Event, order: Sequence[Event] = order) -> str:
        return _named(order[order.index(event) - 1], t)

    reads = [what for what in (READ, READ_EARLY, READ_LATE) if (what, t) in order]
    learns = [what for what in (LEARN, LEARN_FIRST, LEARN_REST) if (what, t) in order]
    learned = (before((learns[0], t)),) if not inline else ()  # inline, the read before it is what inputs waited for
    sent = learned if other == thread else (f"{learns[0]} t - 1",)  # rows, and messages, are waited for apart
    over = _named(evaluated[evaluated.index((EVALUATE, t + 1)) + 1], t)
    return [
        Wait("ids t", "all", "routing", ("ids t - 1",)),
        *(Wait(f"{what} t", "all", thread, ("ids t", before((what, t)))) for what in reads),
        Wait("forward, backward t", "dense", "main", (f"{reads[-1]} t", "dense update t - 1")),
        Wait("agree t", "dense", "main", ("forward, backward t of all dense ranks",)),
        Wait(f"{learns[0]} t", "dense", other, ("agree t", *sent)),
        Wait(f"{learns[0]} t", "owners", other, ("gradients and verdict t of the dense ranks", *learned)),
        *(Wait(f"{what} t", "all", other, (before((what, t)),)) for what in learns[1:]),
        Wait("dense update t", "dense", "main", (f"{learns[0]} t" if inline else "agree t",)),
        Wait("next step", "only owners", "main", (f"{learns[0]} t",)),
        Wait("evaluation after t", "all", "main", (before((EVALUATE, t + 1), evaluated), f"and is over before {over}")),
        Wait("drain point after t", "all", "main", (f"{learns[-1]} t", drained, "and is over before read t + 1")),
    ]


def table(policy: Policy) -> str:
    """The same in Markdown."""
    rows = [f"| {w.event} | {w.ranks} | {w.thread} | {'; '.join(w.waits_for)} |" for w in waits(policy)]
    return "\n".join(["| event | ranks | thread | waits for |", "|---|---|---|---|", *rows])


def _named(event: Event, t: int) -> str:
    """An event, its step as a distance from t."""
    what, step = event
    return f"{what} t" if step == t else f"{what} t {'+' if step > t else '-'} {abs(step - t)}"
