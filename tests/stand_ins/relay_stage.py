"""Stages ``relay``: what an owner sends a dense rank passes the next rank of the owner's host, which may scale it.

How a stage is added: a class that says which rank messages pass and what is done there, a form that names it, and a
line in ``STAGES`` and ``FORMS`` each. The one passes vectors on as they are. The other multiplies those of an operator
by a dense parameter, of which it has the row of its host, trained by all ranks of that host together. The model that
has the operator computes it on dense ranks under other forms, or by itself (``inside``) for one process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import Tensor, nn

import hpcrec.comm.world as world_module
from hpcrec.comm.topology import Topology
from hpcrec.config import Config
from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.forms.pooled import Pooled
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.stages import STAGES
from hpcrec.exchange.stages.stage import Stage, Vectors
from hpcrec.models import block_operators
from hpcrec.operators.base import Operator
from hpcrec.operators.block import Block
from hpcrec.types import Feature

HOSTS = {1: (0,), 2: (0, 1), 3: (0, 0, 1), 4: (0, 0, 1, 1)}  # of each rank, by the number of ranks
MODEL = f"{__name__}:ScaledModel"


class Relay(Stage):
    """See ``Stage``."""

    name = "relay"

    @staticmethod
    def via(topology: Topology, owner: int, dense: int) -> int:
        del dense
        ranks = [r for r in range(topology.size) if topology.host_of[r] == topology.host_of[owner]]
        return ranks[(ranks.index(owner) + 1) % len(ranks)]


class RelayPooled(Pooled):
    """See ``Form``."""

    name = "relay"
    stages = ("relay",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scaled(Block):
    """Pooled vectors times rows of ``scale`` [hosts, D], each column by the host in ``hosts_FD``; or as they are."""

    scale: nn.Parameter | None
    hosts_FD: Tensor

    @property
    def splits_bags(self) -> bool:
        """Parts of a bag may lie on hosts with other rows of the parameter."""
        return self.scale is None

    def partial(self, pooled_BFD: Tensor) -> tuple[Tensor, ...]:
        if self.scale is None:
            return (pooled_BFD,)
        return (pooled_BFD * self.scale[self.hosts_FD, torch.arange(self.width)],)


class ScaledRelay(Relay):
    """See ``Stage``."""

    name = "scaled_relay"

    def __init__(self, topology: Topology, operators: Mapping[str, Operator]) -> None:
        super().__init__(topology, operators)
        self._part_of: dict[tuple[str, str], nn.Parameter] = {}
        host = topology.host_of[topology.rank]
        for operator in operators.values():
            (whole,) = self.weights(operator)
            part = nn.Parameter(whole.detach()[host : host + 1].clone())
            self.slices.append(Slice(whole, host, host + 1, part, topology.host_ranks))
            self._part_of |= {(k.feature, k.table): part for k in operator.lookups}

    @classmethod
    def weights(cls, operator: Operator) -> tuple[nn.Parameter, ...]:
        return (operator.scale,) if isinstance(operator, Scaled) and operator.scale is not None else ()

    @classmethod
    def left_of(cls, operator: Operator) -> Operator:
        return replace(operator, scale=None) if isinstance(operator, Scaled) else operator

    def forward(self, passing: Sequence[Vectors], *, train: bool) -> Any:
        kept = []
        for vectors in passing:
            part = self._part_of.get((vectors.features[0], vectors.table))
            if part is not None:
                kept.append(vectors.values_VD.copy() if train else None)
                vectors.values_VD[:] *= part.detach().numpy()[0, slice(*vectors.columns)]
        return kept

    def backward(self, passing: Sequence[Vectors], kept: Any) -> None:
        scaled = iter(kept)
        for vectors in passing:
            part = self._part_of.get((vectors.features[0], vectors.table))
            if part is not None:
                gradients_VD, columns = vectors.values_VD, slice(*vectors.columns)
                assert part.grad is not None
                part.grad[0, columns] += torch.from_numpy((next(scaled) * gradients_VD).sum(0))
                gradients_VD *= part.detach().numpy()[0, columns]


class ScaledPooled(Pooled):
    """See ``Form``."""

    name = "scaled_relay"
    stages = ("scaled_relay",)


def put_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stages and their forms; ranks on several hosts."""
    for stage, form in ((Relay, RelayPooled), (ScaledRelay, ScaledPooled)):
        monkeypatch.setitem(STAGES, stage.name, stage)
        monkeypatch.setitem(FORMS, form.name, form)
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: HOSTS[comm.size])


def relayed(config: Config, form: str = "relay") -> Config:
    """The same with that form in place of ``pooled``; checks of a configuration do not know it."""
    forms: Any = {f: form if of == "pooled" else of for f, of in config.exchange.forms.items()}
    whole: Any = form if config.exchange.form == "pooled" else config.exchange.form
    return replace(config, exchange=replace(config.exchange, form=whole, forms=forms))


class ScaledModel(nn.Module):
    """A sum of tanh of vectors, scaled or not, and a linear layer.

    Parameters
    ----------
    hosts : mapping of str to list of int
        Host of each column of the vectors of the features that are scaled.
    inside : bool
        The model scales them itself, and its operators are of the package.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Any = None,
        hosts: Mapping[str, list[int]],
        inside: bool = False,
    ) -> None:
        super().__init__()
        assert n_labels == 1
        n_hosts = 1 + max(map(max, hosts.values()))
        self.scale = nn.Parameter(torch.rand(max(n_hosts, max(HOSTS[MPI.COMM_WORLD.size]) + 1), width) + 0.5)
        self.last = nn.Linear(n_dense + width, 1)
        self.hosts_FD = torch.tensor([hosts[f.name] for f in features if f.name in hosts])
        self.inside, self.width = inside, width
        block = block_operators(features, width, pooling)["block"]
        scaled = tuple(k for k in block.lookups if k.feature in hosts)
        plain = tuple(k for k in block.lookups if k.feature not in hosts)
        self.operators: dict[str, Operator] = {"plain": Block(lookups=plain, width=width)}
        self.operators["scaled"] = (
            Block(lookups=scaled, width=width)
            if inside
            else Scaled(lookups=scaled, width=width, scale=self.scale, hosts_FD=self.hosts_FD)
        )

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        scaled_BFD = inputs["scaled"]
        if self.inside:
            scaled_BFD = scaled_BFD * self.scale[self.hosts_FD, torch.arange(self.width)]
        mixed_BD = torch.tanh(scaled_BFD).sum(1) * (1 + inputs["plain"].sum(1)) + scaled_BFD.prod(1)
        return self.last(torch.cat([dense_BN, mixed_BD], 1)).squeeze(1)


def columns_at(hosts: Sequence[int], width: int) -> list[int]:
    """Host of each column, of equal parts on these hosts."""
    return np.repeat(hosts, width // len(hosts)).tolist()
