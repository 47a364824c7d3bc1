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
    """Groups that share tables.

    Parameters
    ----------
    members : sequence of Reference
        One a group; the tables are those of the first.
    teachers : sequence of Reference
        As many of the same architecture, whose parameters are overwritten.
    """

    def __init__(
        self,
        members: Sequence[Reference],
        teachers: Sequence[Reference],
        *,
        weight: float,
        burn_in_steps: int,
        every: int,
    ) -> None:
        self.members, self.teachers = members, teachers
        self.weight, self.burn_in_steps, self.every = weight, burn_in_steps, every
        self.tables = members[0].tables
        for one in (*members, *teachers):
            one.tables = self.tables
        self.exchanges = 0

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
        names = list(self.tables)
        rows = [self.tables[n].bags.weight for n in names]
        gradients = [torch.zeros_like(row) for row in rows]
        for g, (member, batch, weight) in enumerate(zip(self.members, batches, weights, strict=True)):
            total = (weight * self._losses(g, batch, step)).sum()
            loss += float(total.detach() / everything)
            named = list(member.module.parameters())
            found = torch.autograd.grad(total, [*named, *rows], allow_unused=True)
            for parameter, gradient in zip(named, found, strict=False):
                parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient / weight.sum()
            for into, gradient in zip(gradients, found[len(named) :], strict=True):
                if gradient is not None:
                    into += gradient / everything
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(named, max_norm)
        for member in self.members:
            member.dense_optimizer.step()
        touched = [self.members[0].touched(batch) for batch in batches]
        for name, gradient in zip(names, gradients, strict=True):
            ids = torch.as_tensor(np.unique(np.concatenate([t[name].numpy() for t in touched])))
            with torch.no_grad():
                update_rows(self.tables[name], ids, gradient[ids], lr_scale=1.0, step=step + 1)
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
