"""What one process does in place of a policy with several steps in flight."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from tests.reference import GlobalBatch, Reference, update_rows
from tests.training.dynamic_runs import Rules, ids_of_table


def hybrid(staleness: int) -> dict[str, Any]:
    """The section ``[policy]`` of it."""
    return {"name": "hybrid", "staleness": staleness}


class HybridReference:
    """Trains a reference on global batches; step t reads rows of version max(last drain, t - staleness).

    Parameters
    ----------
    reference : Reference
        As it is before the first step.
    staleness : int
    drains : sequence of int
        Numbers of steps after which nothing is in flight.
    """

    def __init__(self, reference: Reference, staleness: int, drains: Sequence[int] = ()) -> None:
        self._reference, self._staleness, self._drains = reference, staleness, drains
        self._done = 0
        self._versions = [self._rows()]

    def _rows(self) -> dict[str, torch.Tensor]:
        return {name: table.bags.weight.detach().clone() for name, table in self._reference.tables.items()}

    def step(self, batch: GlobalBatch, *, left_out: bool = False) -> float:
        """Loss before the step; ``left_out``: nothing learns from it, but it counts."""
        reference, t = self._reference, self._done
        since = max([0, *(d for d in self._drains if d <= t)])
        read, now = self._versions[max(since, t - self._staleness)], self._versions[t]
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


class DynamicHybridReference:
    """The same over dynamic tables: who has a row is said as a step is read, and a row that is lost loses its gradient.

    Parameters
    ----------
    rules : Rules
        Who has a row, and in its reference what is in it.
    batches : sequence of GlobalBatch
        Of all steps: those to come are read ahead.
    staleness : int
    drains : sequence of int
        Numbers of steps after which nothing is in flight.

    Attributes
    ----------
    dropped : int
        Gradients of rows that their id had lost, also where it had got one again; once for tables that share ids.
    """

    def __init__(self, rules: Rules, batches: Sequence[GlobalBatch], staleness: int, drains: Sequence[int]) -> None:
        self._rules, self._batches, self._staleness, self._drains = rules, batches, staleness, drains
        self._done = self._next = self.dropped = 0
        self._asked: dict[int, tuple[dict[str, torch.Tensor], dict[str, set[int]], Counter[tuple[str, int]]]] = {}
        self._lives: Counter[tuple[str, int]] = Counter()  # by family and id: how often it was given a row
        rules.started = lambda family, i: self._lives.update([(family, i)])

    def step(self) -> float:
        """Loss before the next step."""
        rules, t = self._rules, self._done
        reference = rules.reference
        until = min([len(self._batches), *(drain for drain in self._drains if drain > t)])
        while self._next < min(t + 1 + self._staleness, until):
            rules.admit(self._batches[self._next].bags)
            rows = {name: table.bags.weight.detach().clone() for name, table in reference.tables.items()}
            self._asked[self._next] = rows, dict(rules.rows), self._lives.copy()
            self._next += 1
        read, had, lives = self._asked.pop(t)
        now, have = {n: x.bags.weight.detach().clone() for n, x in reference.tables.items()}, rules.rows
        batch = self._batches[t]
        reference.module.zero_grad()
        rules.rows = had  # as the maps were then
        for name, table in reference.tables.items():
            table.bags.weight.grad = None
            table.bags.weight.data.copy_(read[name])
        loss = reference.loss(reference.logits(batch), batch)
        loss.backward()
        touched, rules.rows = reference.touched(batch), have
        assert reference.dense_optimizer is not None
        reference.dense_optimizer.step()
        for name, table in reference.tables.items():
            table.bags.weight.data.copy_(now[name])
            if name in touched:
                kept = torch.tensor([row for row in touched[name].tolist() if self._has(name, row, lives)]).long()
                first = any(name == family.tables[0] for family in rules.families)
                self.dropped += (len(touched[name]) - len(kept)) * first
                with torch.no_grad():
                    update_rows(table, kept, table.bags.weight.grad[kept], lr_scale=1.0, step=t + 1)
        rules.forget()
        self._done += 1
        return float(loss.item())

    def _has(self, table: str, row: int, lives: Counter[tuple[str, int]]) -> bool:
        """Whether an id still has the row that it had; the spare one is nobody's."""
        ids, family = ids_of_table(table), next(f.name for f in self._rules.families if table in f.tables)
        if row == len(ids):
            return True
        one = family, int(ids[row])
        return one[1] in self._rules.rows[family] and self._lives[one] == lives[one]
