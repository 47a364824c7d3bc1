"""What each thread of each rank did when, in a few steps: phases as the session's timer has them.

Ranks are on one machine, whose clock they share. Knows names of phases and threads; nothing of what they mean.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

import hpcrec
from hpcrec import clock

MAIN = "main"


class Recorder:
    """While it lasts, phases are noted: (thread, phase, from, to), in seconds of the machine's clock."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, str, float, float]] = []
        self._ends = clock.Phase.__exit__

    def __enter__(self) -> "Recorder":
        recorder, ends = self, self._ends

        def noted(phase: Any, *given: Any) -> None:
            ends(phase, *given)
            recorder.spans.append((_thread(), phase.name, phase.began_s, time.monotonic()))

        clock.Phase.__exit__ = noted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        clock.Phase.__exit__ = self._ends  # type: ignore[method-assign]


def _thread() -> str:
    """Of this rank; threads of routing have a number behind their name."""
    here = threading.current_thread()
    return MAIN if here is threading.main_thread() else here.name.partition("_")[0]


def recorded(config: str, settings: Sequence[str], warmup: int, steps: int) -> Any:
    """``spans`` of the ranks, (rank, thread, phase, from, to), and ``ends`` of the steps that are shown, by rank.

    ``roles`` are those of the ranks. Seconds count from the end of the last step that is not shown, on the first dense
    rank. So many steps follow, and as many again, so that what runs ahead does.
    """
    with hpcrec.open_session(config, [*settings, f"train.steps={warmup + 3 * steps}"]) as session, Recorder() as found:
        main, ends = session.parts.world.main, []
        for step in session.steps():
            step.run()
            if warmup <= session.step <= warmup + steps:
                ends.append(time.monotonic())
        everyone = main.allgather((ends, found.spans, session.parts.world.progress.role))
        zero_s = everyone[session.topology.dense[0]][0][0]
        spans = [
            (rank, thread, phase, began_s - zero_s, ended_s - zero_s)
            for rank, (_, of_rank, _) in enumerate(everyone)
            for thread, phase, began_s, ended_s in of_rank
        ]
        return {
            "spans": spans,
            "ends": [[end - zero_s for end in of] for of, _, _ in everyone],
            "roles": [role for _, _, role in everyone],
        }
