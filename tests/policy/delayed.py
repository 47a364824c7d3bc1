"""A stand-in for policies with several steps in flight, and what one process does in its place.

Policy ``delayed``: the lookups of step t are answered when the updates of all steps before t - delay are in, and no
others; at least those before the last drain point.
"""

from collections.abc import Sequence
from dataclasses import dataclass, make_dataclass
from typing import ClassVar

import pytest
import torch

from hpcrec.policy import POLICIES
from tests.reference import GlobalBatch, Reference, update_rows


@dataclass(frozen=True, kw_only=True)
class DelayedOptions:
    delay: int = 1


class Delayed:
    """See ``hpcrec.policy.policy.Policy``."""

    Options: ClassVar[type] = DelayedOptions

    def __init__(self, options: DelayedOptions) -> None:
        self._delay = options.delay
        self.in_flight = options.delay + 1

    def version(self, step: int, since: int) -> int:
        return max(since, step - self._delay)


def put_delayed(monkeypatch: pytest.MonkeyPatch, *delays: int) -> None:
    """Policies ``delayed0``, ``delayed1``, ... of the delays that are given."""
    for delay in delays:
        options = make_dataclass("Options", [("delay", int, delay)], frozen=True, kw_only=True)
        monkeypatch.setitem(POLICIES, f"delayed{delay}", type("Delayed", (Delayed,), {"Options": options}))


class DelayedReference:
    """Trains a reference on global batches; step t reads rows of version max(last drain, t - delay).

    Parameters
    ----------
    reference : Reference
        As it is before the first step.
    delay : int
    drains : sequence of int
        Numbers of steps after which nothing is in flight.
    """

    def __init__(self, reference: Reference, delay: int, drains: Sequence[int] = ()) -> None:
        self._reference, self._delay, self._drains = reference, delay, drains
        self._done = 0
        self._versions = [self._rows()]

    def _rows(self) -> dict[str, torch.Tensor]:
        return {name: table.bags.weight.detach().clone() for name, table in self._reference.tables.items()}

    def step(self, batch: GlobalBatch, *, left_out: bool = False) -> float:
        """Loss before the step; ``left_out``: nothing learns from it, but it counts."""
        reference, t = self._reference, self._done
        since = max([0, *(d for d in self._drains if d <= t)])
        read, now = self._versions[max(since, t - self._delay)], self._versions[t]
        reference.module.zero_grad()
        for name, table in reference.tables.items():
            table.bags.weight.grad = None
            table.bags.weight.data.copy_(read[name])
        loss = reference.loss(reference.logits(batch), batch)
        loss.backward()
        for name, table in reference.tables.items():
            table.bags.weight.data.copy_(now[name])
        if not left_out:
            assert reference.dense_optimizer is not None
            reference.dense_optimizer.step()
            for name, touched in reference.touched(batch).items():
                table = reference.tables[name]
                with torch.no_grad():
                    update_rows(table, touched, table.bags.weight.grad[touched], lr_scale=1.0, step=t + 1)
        self._done += 1
        self._versions.append(self._rows())
        return loss.item()
