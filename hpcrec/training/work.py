"""How long this rank works in training steps, and what it is given, line by line of metrics.jsonl; all ranks' compared.

What is not a step (an evaluation, a checkpoint, the line itself) does not count. Knows a session's parts; which rank is
slow is for ``slow_ranks``.
"""

import socket
from dataclasses import asdict
from typing import Any

import numpy as np

from hpcrec.comm.failure import say
from hpcrec.comm.progress import working_time
from hpcrec.embedding.load import Load
from hpcrec.training.session import Session
from hpcrec.training.slow_ranks import SlowRanks
from hpcrec.types import Floats

_NUMBERS = 8  # of a rank in a line: seconds, and counts of what it was given


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
        self._since_s = 0.0  # when the step that is under way began
        self._told = self._counted()

    def begin_step(self) -> None:
        """A step begins, with the wait for its batch."""
        self._since_s = working_time()

    def end_step(self, samples: int) -> None:
        """It has ended; it had so many samples on this rank."""
        self._worked_s += working_time() - self._since_s
        self._steps += 1
        self._samples += samples

    def more(self) -> Floats:
        """What all ranks give for a line, to be summed over them: float64 [R x _NUMBERS], this rank's part not zero."""
        topology, now = self._session.topology, self._counted()
        of_R = np.zeros((topology.size, _NUMBERS))
        of_R[topology.rank] = now - self._told
        self._told = now
        return of_R.ravel()

    def take(self, total: Floats, step: int) -> dict[str, Any]:
        """Takes the sum of a line at a step; what the line has of it: the ranks that are slow, where there are any."""
        of_R = total.reshape(-1, _NUMBERS)
        new = self.slow_ranks.add(of_R[:, 0], of_R[:, 1:])
        if self._session.topology.rank == 0:
            for rank in new:
                say(rank.report(step))
        return {"slow_ranks": [asdict(rank) for rank in now]} if (now := self.slow_ranks.now) else {}

    def _counted(self) -> Floats:
        """Seconds, and counts of what costs time: samples, rows that were asked for, what each step goes through."""
        parts = self._session.parts
        load, store = parts.load or Load(), parts.store
        blocks, dynamic = (0, 0) if store is None else (len(store.blocks), len(store.dynamic))
        trained = sum(own.part.numel() for own in parts.exchange.slices)
        in_each = [self._steps * n for n in (blocks, dynamic, trained)]
        counts = [self._samples, load.lookups, load.distinct, load.elements, *in_each]
        return np.array([self._worked_s + parts.pipeline.worked_s, *counts], np.float64)
