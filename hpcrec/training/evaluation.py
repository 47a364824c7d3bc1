"""Predictions of a split by one model, or by that of each group of dense ranks, and their metrics.

Knows a session's parts; what metrics are is for ``metrics``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcrec.comm.world import World
from hpcrec.policy.pipeline import Ticket
from hpcrec.training import metrics
from hpcrec.training.calibration import Values
from hpcrec.training.measures import Measures
from hpcrec.training.metrics import Beside
from hpcrec.training.parts import Parts, Samples
from hpcrec.types import Bags, Batch, Floats, Ints

Forward = Callable[[int, Any, Tensor], Tensor]  # group, inputs of a batch, dense inputs [B, N] -> logits of its model


class Predicted:
    """A rank's predictions of a split, and what ``measures`` need of its samples: empty on ranks that are not dense."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._samples = 0
        self._groups: list[Ints] = []
        self._values: dict[str, list[Values]] = {name: [] for name in measures.by}
        self._logits: list[list[Floats]] = []
        self._labels: list[Floats] = []
        self._weights: list[Floats] = []

    def add(self, batch: Batch, logits: list[Tensor]) -> None:
        """This rank's part of a batch, and its logits [B] or [B, L] by group."""
        self._logits.append([out.numpy() for out in logits])
        self._labels.append(batch.label)
        if batch.weight is not None:
            self._weights.append(batch.weight)
        if batch.group is not None:
            self._groups.append(batch.group)
        for name, parts in self._values.items():
            values = _values_of(batch.bags, name)
            parts.append(Values(values.ids, values.sample + self._samples))
        self._samples += len(batch.label)

    def metrics(self, world: World) -> dict[str, Any]:
        """Those of the first group's model over all ranks; of several groups also ``group_auc`` and ``group_logloss``.

        Collective, the same on every rank.
        """
        result = None
        if world.topology.is_dense:
            labels, weights = np.concatenate(self._labels), np.concatenate(self._weights) if self._weights else None
            groups = [np.concatenate(logits) for logits in zip(*self._logits, strict=True)]
            first, *_ = groups
            result = metrics.evaluate(
                first, labels, weights, world.dense, measures=self._measures, beside=self._beside()
            )
            if len(groups) > 1:
                few = Measures(metrics=("auc", "logloss"))
                found = [metrics.evaluate(logits, labels, weights, world.dense, measures=few) for logits in groups]
                result |= {f"group_{name}": [of[name] for of in found] for name in few.metrics}
        return dict(world.main.bcast(result, root=world.topology.dense[0]))

    def _beside(self) -> Beside:
        joined = {
            name: Values(np.concatenate([one.ids for one in parts]), np.concatenate([one.sample for one in parts]))
            for name, parts in self._values.items()
        }
        return Beside(group=np.concatenate(self._groups) if self._groups else None, values=joined)


def _values_of(bags: Bags, name: str) -> Values:
    """What a batch's samples have of a feature; samples are numbered from 0."""
    at, n = bags.features.index(name), (len(bags.offsets) - 1) // len(bags.features)
    bounds = bags.offsets[at * n : (at + 1) * n + 1]
    return Values(bags.ids[bounds[0] : bounds[-1]].copy(), np.repeat(np.arange(n), np.diff(bounds)))


@contextmanager
def models_of_groups(parts: Parts) -> Iterator[Forward]:
    """Forward of the models of all groups, as they are now; entered together. Called on dense ranks."""
    dense = parts.dense
    codistillation = None if dense is None else dense.codistillation

    def own(inputs: Mapping[str, Tensor], x_BN: Tensor) -> Tensor:
        assert dense is not None, "only dense ranks have inputs"
        with torch.no_grad():
            found: Tensor = dense.model(inputs, x_BN)
        return found

    if dense is not None:
        dense.model.eval()
    if codistillation is None:
        yield lambda _, inputs, x_BN: own(inputs, x_BN)
        return
    mine = codistillation.group
    with codistillation.current() as others:
        yield lambda g, inputs, x_BN: own(inputs, x_BN) if g == mine else others[g].logits(inputs, x_BN)


def logits_of(parts: Parts, ticket: Ticket, forward: Forward, groups: Sequence[int]) -> list[Tensor]:
    """Gathers a batch and predicts it by the models of these groups; empty on ranks that are not dense. Collective.

    Logits are the host's.

    Where tickets are beside it, one ticket has the tables of each of them; else one has those of all.
    """
    found: list[Tensor] = []
    readers = [[g] for g in groups] if ticket.beside else [list(groups)]
    for one, by in zip((ticket, *ticket.beside), readers, strict=True):
        inputs = parts.pipeline.inputs(one)
        if inputs is not None:
            assert ticket.batch is not None, "a dense rank has a part"
            assert parts.dense is not None, "a dense rank has a model"
            place = parts.dense.place
            x_BN = Samples.of(ticket.batch, parts.dtype, place).dense
            with place.casting():
                found += [forward(g, inputs, x_BN).to("cpu", parts.dtype) for g in by]
    return found
