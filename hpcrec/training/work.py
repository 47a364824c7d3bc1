"""How long this rank works in training steps, on what, and what it is given, line by line of metrics.jsonl.

All ranks' are told in each line: how fast steps are, what they are spent on, memory. What is not a step (an evaluation,
a checkpoint, the line itself) does not count, but where other ranks wait for it in their next step. Knows a session's
parts; which rank is slow is for ``slow_ranks``, which phases belong together for ``times``.
"""

import socket
from dataclasses import asdict
from time import monotonic
from typing import Any

import numpy as np

from hpcrec.comm.failure import say
from hpcrec.comm.progress import working_time
from hpcrec.embedding.load import Load
from hpcrec.training.bar import resident_bytes
from hpcrec.training.session import Session
from hpcrec.training.slow_ranks import SlowRanks
from hpcrec.training.times import GROUPS, of_groups
from hpcrec.types import Floats

_GIVEN = 8  # of a rank in a line: seconds that it worked, and counts of what it was given
_NUMBERS = _GIVEN + 2  # and seconds of its steps, and bytes of memory
MEASURED = (  # keys of lines that differ between runs of the same bits, besides ``time`` and ``slow_ranks``
    "samples_per_s",
    "memory_bytes",
    *(f"{group}_{kind}_ms" for group in GROUPS for kind in ("work", "wait")),
)


class Work:
    """This rank's work, and what is known of all ranks'; collective, as ``take`` is in that all ranks call it.

    Parameters
    ----------
    session : Session
        About to train.
    """

    def __init__(self, session: Session) -> None:
        world = session.parts.world
        with world.ledger.paused():
            roles, hosts = zip(*world.main.allgather((world.progress.role, socket.gethostname())), strict=True)
        self.slow_ranks = SlowRanks(roles, hosts)
        self._session = session
        self._steps, self._samples, self._worked_s = 0, 0, 0.0
        self._since_s, self._began_s = 0.0, 0.0  # when the step that is under way began: of work, and by the clock
        self._step_s = 0.0
        self._told, self._told_spent = self._counted(), self._spent()

    def begin_step(self) -> None:
        """A step begins, with the wait for its batch."""
        self._since_s, self._began_s = working_time(), monotonic()

    def end_step(self, samples: int) -> None:
        """It has ended; it had so many samples on this rank."""
        self._worked_s += working_time() - self._since_s
        self._step_s += monotonic() - self._began_s
        self._steps += 1
        self._samples += samples

    def more(self) -> Floats:
        """What all ranks give for a line, to be summed over them: float64 [R * _NUMBERS + 2 * len(GROUPS)].

        Of the first R parts this rank's alone is not zero; the last is what its steps spent, if it runs the model.
        """
        topology, now, spent = self._session.topology, self._counted(), self._spent()
        of_R = np.zeros((topology.size, _NUMBERS))
        of_R[topology.rank] = *(now - self._told), resident_bytes() or 0
        of_G = (spent - self._told_spent) * (topology.rank in topology.dense)
        self._told, self._told_spent = now, spent
        return np.concatenate([of_R.ravel(), of_G])

    def take(self, total: Floats, step: int, of_steps: int) -> dict[str, Any]:
        """Takes the sum of a line at a step; what the line has of it, over the ``of_steps`` that it tells of.

        ``samples_per_s`` by the rank whose steps took longest; ``<group>_work_ms`` and ``<group>_wait_ms`` of
        ``times.GROUPS`` a step, means over the ranks that run the model; ``memory_bytes`` held now, the most of a rank,
        where the system says it; ``slow_ranks`` where there are any.
        """
        of_R, of_G = np.split(total, [-2 * len(GROUPS)])
        of_R = of_R.reshape(-1, _NUMBERS)
        new = self.slow_ranks.add(of_R[:, 0], of_R[:, 1:_GIVEN])
        if self._session.topology.rank == 0:
            for rank in new:
                say(rank.report(step))
        slow = {"slow_ranks": [asdict(rank) for rank in now]} if (now := self.slow_ranks.now) else {}
        return {**self._measured(of_R, of_G, of_steps), **slow}

    def _measured(self, of_R: Floats, of_G: Floats, of_steps: int) -> dict[str, float]:
        samples, longest_s = of_R[:, 1].sum(), of_R[:, _GIVEN].max()
        spent_ms = of_G * 1e3 / (of_steps * len(self._session.topology.dense))
        values = (samples / longest_s if longest_s > 0 else 0.0, of_R[:, -1].max(), *spent_ms)
        told = {name: round(float(value), 3) for name, value in zip(MEASURED, values, strict=True)}
        return told if told["memory_bytes"] else {name: told[name] for name in told if name != "memory_bytes"}

    def _counted(self) -> Floats:
        """So far: seconds, and counts of what costs time: samples, rows asked for, what each step goes through."""
        parts = self._session.parts
        load, store = parts.load or Load(), parts.store
        blocks, dynamic = (0, 0) if store is None else (len(store.blocks), len(store.dynamic))
        trained = sum(own.part.numel() for own in parts.exchange.slices)
        in_each = [self._steps * n for n in (blocks, dynamic, trained)]
        counts = [self._samples, load.lookups, load.distinct, load.elements, *in_each]
        return np.array([self._worked_s + parts.pipeline.worked_s, *counts, self._step_s], np.float64)

    def _spent(self) -> Floats:
        """Seconds that the thread which steps worked and waited so far, of each group of phases."""
        groups = of_groups(self._session.parts.timer.parts())
        return np.array([seconds for both in groups.values() for seconds in both])
