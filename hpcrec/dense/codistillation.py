"""Codistillation: groups of dense ranks that learn from each other's predictions, as those were some steps ago.

::

    every K steps        dense parameters ------> the ranks with the same place in the other groups      "teachers"
    each step            p = mean over other groups of sigmoid(their model as last received)             no gradient
                         loss of a sample = BCE(label) + weight * BCE(p)

Each group trains dense parameters of its own on samples of its own. Where embedding rows are everybody's, the other
groups' models see the vectors that this rank has looked up for its own; where each group has tables of its own, they
see what was looked up in theirs (``listen``). Bytes sent by each dense rank in an exchange: (groups - 1) times those of
its model's parameters and buffers.

[CODISTILL]. Departures from the paper: groups may share their embedding rows, which all of them train; rows are read as
they are, not as they were some steps ago; all exchange in the same steps, so what a rank has of the others' parameters
is 0 to K - 1 steps old. Knows models and who holds the others; does not know how inputs are looked up, nor how a group
trains.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from hpcrec.comm.collectives import Collectives
from hpcrec.types import Floats

_TAG = "teachers"
Values = dict[str, Floats]


@runtime_checkable
class Vectors(Protocol):
    """What was looked up for a part of a batch."""

    def seen_by(self, operators: Mapping[str, Any]) -> Mapping[str, Tensor]:
        """What a model with these operators receives of it."""


@dataclass(frozen=True, kw_only=True)
class CodistillationOptions:
    """As ``[dense.codistillation]`` of the configuration has them."""

    weight: float
    burn_in_steps: int
    every: int


@dataclass(frozen=True)
class Other:
    """The model of another group, and its operators, which may have parameters of it."""

    model: nn.Module
    operators: Mapping[str, Any]

    def logits(self, vectors: Vectors, dense: Tensor) -> Tensor:
        """Of this rank's samples, [B] or [B, L]."""
        with torch.no_grad():
            found: Tensor = self.model(vectors.seen_by(self.operators), dense)
        return found.to(dense.dtype)


class Codistillation:
    """A dense rank's.

    Parameters
    ----------
    model : nn.Module
        That of this rank's group.
    group : int
        Its number.
    others : mapping of int to Other
        By group; all but this rank's. Of the same architecture; what their parameters are is overwritten.
    across : Collectives
        The ranks with this one's place in each group, in the order of groups.
    options : CodistillationOptions

    Attributes
    ----------
    group : int
    distills : bool
        Whether groups learn from each other, perhaps later.
    taken : bool
        Whether the others are as an exchange between training steps left them.
    """

    def __init__(
        self,
        model: nn.Module,
        group: int,
        others: Mapping[int, Other],
        across: Collectives,
        options: CodistillationOptions,
    ) -> None:
        self.group = group
        self.distills = options.weight > 0
        self.taken = False
        self._model = model
        self._others = dict(others)
        self._across = across
        self._options = options
        self._teaching = False
        self._heard: dict[int, Tensor] = {}  # probabilities by other groups, of this step's samples
        for other in self._others.values():
            other.model.eval().requires_grad_(False)

    # Training.

    def begin(self, step: int) -> None:
        """Opens a training step, before which ``step`` steps were done: exchanges where it is due; collective."""
        o = self._options
        self._teaching = self.distills and step >= o.burn_in_steps
        if self._teaching and (not self.taken or (step - o.burn_in_steps) % o.every == 0):
            self._exchange()
            self.taken = True
        self._heard = {}

    def listen(self, group: int, vectors: Vectors, dense: Tensor) -> None:
        """Another group's prediction of this step's samples, of vectors [B, ...] that were looked up in its tables."""
        self._heard[group] = torch.sigmoid(self._others[group].logits(vectors, dense))

    def loss(self, logits: Tensor, vectors: Vectors, dense: Tensor) -> Tensor | None:
        """What is added to the loss of each sample, [B] or [B, L]; None in steps without.

        Parameters
        ----------
        logits : Tensor [B] or [B, L]
            This group's.
        vectors : Vectors
            What those see of whom nothing was listened to.
        dense : Tensor [B, N]
        """
        if not self._teaching:
            return None
        for group in self._others.keys() - self._heard.keys():
            self.listen(group, vectors, dense)
        probabilities = [self._heard[group] for group in self._others]
        target = sum(probabilities[1:], start=probabilities[0]) / len(probabilities)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
        return self._options.weight * loss

    # Models as they are now.

    @contextmanager
    def current(self) -> Iterator[dict[int, Other]]:
        """The other groups' models as they are now, while it lasts; collective at its begin. Not counted in bytes."""
        kept = {group: self.snapshot(group) for group in self._others} if self.taken else {}
        with self._across.ledger.paused():
            self._exchange()
        try:
            yield self._others
        finally:
            for group, values in kept.items():
                self._put(group, values)

    def first(self) -> nn.Module:
        """The model of the first group as it is now; collective. This rank's own, or a copy. Not counted in bytes."""
        model = self._model if self.group == 0 else deepcopy(self._others[0].model)
        with self._across.ledger.paused(), torch.no_grad():
            for tensor in model.state_dict().values():
                values = np.array(tensor.cpu().numpy(), order="C")
                self._across.bcast_array(values)
                tensor.copy_(torch.from_numpy(values))
        return model

    def _exchange(self) -> None:
        states = {group: other.model.state_dict() for group, other in self._others.items()}
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                received = self._across.start_allgather(np.ascontiguousarray(tensor.detach().cpu().numpy()), _TAG)
                received.wait()
                for group, state in states.items():
                    state[name].copy_(torch.from_numpy(received.received[group]).reshape(tensor.shape))

    # Checkpoints.

    def snapshot(self, group: int) -> Values:
        """Parameters and buffers of another group's model as they are held here, copied."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self._others[group].model.state_dict().items()}

    def restore(self, snapshots: Mapping[int, Mapping[str, Any]]) -> None:
        """Goes on with what ``snapshot`` gave of all other groups; with none of them, it exchanges when next asked."""
        self.taken = bool(snapshots)
        for group, values in snapshots.items():
            self._put(group, values)

    def _put(self, group: int, values: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self._others[group].model.state_dict().items():
                tensor.copy_(torch.as_tensor(values[name]))
