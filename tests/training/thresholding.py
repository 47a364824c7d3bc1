"""Thresholded dense gradients from their definition, in one process: NumPy and torch, none of hpcrec's code.

Every rank's part of a batch is worked on by itself; what the ranks send, keep and add is then simulated entry by entry.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.reference import Reference, join, update_rows


class Sieve:
    """One rank's state of one tensor, or stretch of a sum: what is unsent, and the threshold."""

    def __init__(self, n: int) -> None:
        self.left = np.zeros(n)
        self.tau: float | None = None

    def pick(self, values: np.ndarray, density: Fraction, due: bool) -> tuple[np.ndarray, str]:
        """The entries that are sent, zeros elsewhere; and why the threshold is new, if it is."""
        whole = values + self.left
        magnitudes, keep = np.abs(whole), -(-len(whole) * density.numerator // density.denominator)
        why = "scheduled" if due or self.tau is None else ""
        if not why:
            passing = ((magnitudes >= self.tau) & (magnitudes > 0)).sum()
            if passing > keep and passing > 2 * density * len(whole):
                why = "drifted"
        if why:
            self.tau = np.sort(magnitudes)[::-1][keep - 1]
        sent = np.where(magnitudes >= self.tau, whole, 0.0)
        self.left = whole - sent
        return sent, why


class ThresholdedReference(Reference):
    """``Reference`` whose dense gradients are those of ``ranks`` ranks, thresholded.

    Call ``thresholds`` before the first step.
    """

    def thresholds(
        self,
        ranks: int,
        buckets: Sequence[tuple[str, Sequence[str]]],
        *,
        density: float,
        every: int,
        warmup_steps: int,
    ) -> None:
        """``buckets``: form (whole, allgather or reduce_scatter) and names of each, as they lie."""
        self.ranks, self.buckets = ranks, buckets
        self.density, self.every, self.warmup_steps = Fraction(str(density)), every, warmup_steps
        self.counts = {"entries": 0, "kept": 0, "scheduled": 0, "drifted": 0}
        self.sieves: dict[tuple[int, str], Sieve] = {}
        self.named = dict(self.module.named_parameters())

    def train(self, parts: Sequence[Any], step: int, max_norm: float | None = None) -> float:
        """One step of all ranks' parts (each like ``hpcrec.types.Batch``); the loss before it."""
        batch, gradients, loss = join(parts), [], 0.0
        self.n_steps += 1
        for table in self.tables.values():
            table.bags.weight.grad = None
        total_weight = len(batch.label) if batch.weight is None else float(np.float64(batch.weight).sum())
        for part in parts:
            self.module.zero_grad()
            own = join([part])
            label = torch.as_tensor(own.label, dtype=self.dtype)
            losses = nn.functional.binary_cross_entropy_with_logits(self.logits(own), label, reduction="none")
            if own.weight is not None:
                losses = losses * torch.as_tensor(own.weight, dtype=self.dtype)
            mean = losses.sum() / total_weight
            mean.backward()
            loss += mean.item()
            zeros = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self.named.items()}
            gradients.append({n: g.detach().numpy().ravel().copy() for n, g in zeros.items()})
        for form, names in self.buckets:
            self._sum(form, names, gradients, step)
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.named.values(), max_norm)
        assert self.dense_optimizer is not None
        self.dense_optimizer.step()
        for name, touched in self.touched(batch).items():
            gradient = self.tables[name].bags.weight.grad
            assert gradient is not None
            with torch.no_grad():
                update_rows(self.tables[name], touched, gradient[touched], lr_scale=1.0, step=self.n_steps)
        return loss

    def _sum(self, form: str, names: Sequence[str], gradients: list[dict[str, np.ndarray]], step: int) -> None:
        sizes = [self.named[n].numel() for n in names]
        starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        if form == "whole" or step < self.warmup_steps:
            summed = sum(np.concatenate([g[n] for n in names]) for g in gradients)
        else:
            due = step == self.warmup_steps or step % self.every == 0
            sent = [np.concatenate([self._pick(r, n, g[n], due) for n in names]) for r, g in enumerate(gradients)]
            self.counts["entries"] += starts[-1] * self.ranks
            self.counts["kept"] += sum(int((s != 0).sum()) for s in sent)
            summed = np.zeros(starts[-1])
            for one in sent:
                summed = summed + one
            if form == "reduce_scatter":
                for r in range(self.ranks):
                    first, last = starts[-1] * r // self.ranks, starts[-1] * (r + 1) // self.ranks
                    for name, start, stop in zip(names, starts[:-1], starts[1:], strict=True):
                        a, b = max(first, start), min(last, stop)
                        if a < b:
                            summed[a:b] = self._pick(r, f"{name} of all", summed[a:b], due)
        for name, start, stop in zip(names, starts[:-1], starts[1:], strict=True):
            parameter = self.named[name]
            parameter.grad = torch.as_tensor(summed[start:stop].copy()).reshape(parameter.shape)

    def _pick(self, rank: int, name: str, values: np.ndarray, due: bool) -> np.ndarray:
        sieve = self.sieves.setdefault((rank, name), Sieve(len(values)))
        sent, why = sieve.pick(values, self.density, due)
        if why:
            self.counts[why] += 1
        return sent
