"""Codistillation from its definition, in one process: torch and NumPy, none of hpcrec's code.

Groups' models and whole tables are all in one place; what groups exchange is a copy of the others' parameters.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tests.reference import GlobalBatch, Reference, update_rows


def mean_over_labels(losses: Tensor) -> Tensor:
    return losses.mean(1) if losses.dim() == 2 else losses


class Groups:
    """Groups that share tables, or have tables of their own.

    Parameters
    ----------
    members : sequence of Reference
        One a group; tables that are shared are those of the first.
    teachers : sequence of Reference
        As many of the same architecture, whose parameters are overwritten; they read the members' tables.
    staleness : int
        So many of the last updates rows lack when they are read.
    """

    def __init__(
        self,
        members: Sequence[Reference],
        teachers: Sequence[Reference],
        *,
        weight: float,
        burn_in_steps: int,
        every: int,
        share: bool = True,
        staleness: int = 0,
    ) -> None:
        self.members, self.teachers, self.share = members, teachers, share
        self.weight, self.burn_in_steps, self.every = weight, burn_in_steps, every
        for member, teacher in zip(members, teachers, strict=True):
            member.tables = teacher.tables = members[0].tables if share else member.tables
        self.exchanges, self.staleness = 0, staleness
        self._versions = [self._rows()]

    def _rows(self) -> list[Tensor]:
        return [table.bags.weight.detach().clone() for member in self.members for table in member.tables.values()]

    def _put(self, rows: Sequence[Tensor]) -> None:
        tables = [table for member in self.members for table in member.tables.values()]
        for table, values in zip(tables, rows, strict=True):
            table.bags.weight.data.copy_(values)

    def step(self, batches: Sequence[GlobalBatch], step: int, max_norm: float | None = None) -> float:
        """One step of all groups, before which ``step`` were done; the mean loss over all samples before it."""
        if step >= self.burn_in_steps and (step - self.burn_in_steps) % self.every == 0 and self.weight:
            self.exchanges += 1
            for member, teacher in zip(self.members, self.teachers, strict=True):
                teacher.module.load_state_dict(copy.deepcopy(member.module.state_dict()))
        dtype = self.members[0].dtype
        weights = [torch.ones(len(b.label)) if b.weight is None else torch.as_tensor(b.weight) for b in batches]
        weights = [w.to(dtype) for w in weights]
        everything, loss = sum(w.sum() for w in weights), 0.0
        of_rows: list[list[Tensor]] = []
        self._versions += [self._versions[-1]] * (step + 1 - len(self._versions))  # steps before were left out
        self._put(self._versions[max(0, step - self.staleness)])
        for g, (member, batch, weight) in enumerate(zip(self.members, batches, weights, strict=True)):
            total = (weight * self._losses(g, batch, step)).sum()
            loss += float(total.detach() / everything)
            named, rows = list(member.module.parameters()), [t.bags.weight for t in member.tables.values()]
            found = torch.autograd.grad(total, [*named, *rows], allow_unused=True)
            found = [torch.zeros_like(x) if y is None else y for x, y in zip([*named, *rows], found, strict=True)]
            for parameter, gradient in zip(named, found, strict=False):
                parameter.grad = gradient / weight.sum()
            of_rows.append(
                [gradient / (everything if self.share else weight.sum()) for gradient in found[len(named) :]]
            )
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(named, max_norm)
        self._put(self._versions[step])
        for member in self.members:
            member.dense_optimizer.step()
        touched = [member.touched(batch) for member, batch in zip(self.members, batches, strict=True)]
        together = range(len(batches))
        for readers in [together] if self.share else [[g] for g in together]:
            for n, (name, table) in enumerate(self.members[readers[0]].tables.items()):
                ids = torch.as_tensor(np.unique(np.concatenate([touched[g][name].numpy() for g in readers])))
                gradient = sum(of_rows[g][n] for g in readers)
                with torch.no_grad():
                    update_rows(table, ids, gradient[ids], lr_scale=1.0, step=step + 1)
        self._versions.append(self._rows())
        return loss

    def _losses(self, group: int, batch: GlobalBatch, step: int) -> Tensor:
        bce = nn.functional.binary_cross_entropy_with_logits
        logits = self.members[group].logits(batch)
        label = torch.as_tensor(batch.label, dtype=logits.dtype)
        losses = mean_over_labels(bce(logits, label, reduction="none"))
        if step < self.burn_in_steps or not self.weight:
            return losses
        others = [teacher for g, teacher in enumerate(self.teachers) if g != group]
        with torch.no_grad():
            target = sum(torch.sigmoid(other.logits(batch)) for other in others) / len(others)
        return losses + self.weight * mean_over_labels(bce(logits, target, reduction="none"))
