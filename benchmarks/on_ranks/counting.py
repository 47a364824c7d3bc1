"""What it costs to count where the time goes: turns of steps of one run with and without it, on the same ranks.

Without it phases and waits read no clock and add nothing up; that they are called at all is left, and is in ``share``,
which is how many of them a step of the busiest rank has, times what one takes in a loop of its own, to a step's time.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import hpcrec
from hpcrec import clock

_LOOPS = 20_000


class Switch:
    """Counts, and how often it was asked to, or does not."""

    def __init__(self) -> None:
        self.calls = 0
        self._kept = clock.Phase.__enter__, clock.Phase.__exit__, clock.Clock.turn, clock.Waits.__enter__

    def off(self) -> None:
        """From now on on this rank. What was begun before is not ended: nobody reads these times."""
        nowhere = clock.Clock(clock.here().thread, clock.Part(""))

        def nothing(*_: object) -> None:
            pass

        def enter(phase: Any) -> None:  # who has entered without it may leave with it
            phase._clock, phase._part, phase._kind, phase.began_s = nowhere, nowhere.root, clock.WORKS, 0.0

        def wait(waits: Any) -> None:
            waits._clock, waits._kind = clock.here(), clock.WORKS

        self._set(enter, nothing, lambda *_: clock.WORKS, wait)

    def on(self) -> None:
        """Again."""
        self._set(*self._kept)

    def counting(self) -> None:
        """And notes how often something begins or ends."""
        turn = self._kept[2]

        def noted(of: Any, kind: int, now_s: float) -> int:
            self.calls += 1
            return turn(of, kind, now_s)

        self._set(*self._kept[:2], noted, self._kept[3])

    @staticmethod
    def _set(enter: Any, leave: Any, turn: Callable[..., int], wait: Any) -> None:
        clock.Phase.__enter__, clock.Phase.__exit__ = enter, leave  # type: ignore[method-assign]
        clock.Clock.turn, clock.Waits.__enter__ = turn, wait  # type: ignore[method-assign]


def counting(config: str, settings: Sequence[str], n_pairs: int, steps: int) -> Any:
    """Seconds of a step ``with`` and ``without`` in each of ``n_pairs`` turns; ``share`` of it by counts.

    A turn is one step that is not timed and ``steps`` that are. Who comes first alternates; the first pair warms up.
    """
    switch, step_s = Switch(), {"with": list[float](), "without": list[float]()}
    with hpcrec.open_session(config, [f"train.steps={(2 * n_pairs + 4) * (steps + 1)}", *settings]) as session:
        run: Any = session.steps()
        main = session.parts.world.main

        def turn() -> float:
            next(run).run()
            main.barrier()
            began_s = time.perf_counter()
            for _ in range(steps):
                next(run).run()
            main.barrier()
            return (time.perf_counter() - began_s) / steps

        for pair in range(n_pairs + 1):
            for way in ("with", "without") if pair % 2 else ("without", "with"):
                (switch.on if way == "with" else switch.off)()
                step_s[way].append(turn())
        switch.counting()
        turn()
        switch.on()
        run.close()
        calls = max(main.allgather(switch.calls)) / (steps + 1)
        called_s = max(main.allgather(_of_one()))
    found = {way: of_way[1:] for way, of_way in step_s.items()}
    share = calls / 2 * called_s / median(found["without"])
    return {"step_s": found, "calls": calls / 2, "called_s": called_s, "share": share}


def _of_one() -> float:
    """Seconds that a phase takes in which nothing is done."""
    began_s = time.perf_counter()
    for _ in range(_LOOPS):
        with clock.Phase("nothing"):
            pass
    return (time.perf_counter() - began_s) / _LOOPS
