"""What a session is made of, and what a dense rank's part of a batch is to torch. Holds things; does nothing."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpcrec.comm.failure import StopSignal
from hpcrec.comm.world import World
from hpcrec.data.affinity import Affinity
from hpcrec.data.grouped import Order
from hpcrec.data.reader import DataSet
from hpcrec.dense.codistillation import Codistillation
from hpcrec.dense.dct import Thresholded
from hpcrec.dense.place import Place
from hpcrec.dense.reducer import DenseReducer
from hpcrec.dense.slices import Slices
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import Store
from hpcrec.exchange.exchange import Exchange
from hpcrec.policy.pipeline import Pipeline
from hpcrec.training.chosen import Chosen
from hpcrec.training.look_ahead import LookAhead
from hpcrec.training.measures import Measures
from hpcrec.training.schedule import Schedule
from hpcrec.training.timer import PhaseTimer
from hpcrec.types import Batch, TableSpec


@dataclass(frozen=True)
class Samples:
    """A dense rank's part of a batch, as tensors.

    Attributes
    ----------
    dense : Tensor [B, n_dense]
    label : Tensor [B] or [B, L]
    weight : Tensor [B] or None
    """

    dense: Tensor
    label: Tensor
    weight: Tensor | None

    @classmethod
    def of(cls, batch: Batch, dtype: torch.dtype, place: Place) -> "Samples":
        """The batch's arrays in the run's precision, where the model is."""
        given = (batch.dense, batch.label, batch.weight)
        return cls(*(None if a is None else place.put(torch.from_numpy(a).to(dtype)) for a in given))  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Split:
    """A data set, and the order in which this run reads it."""

    dataset: DataSet
    order: Order


@dataclass(kw_only=True)
class DensePart:
    """What only dense ranks have; ``trained`` are the parameters that they train, all but those in slices elsewhere.

    ``dct`` is what thresholds gradients within ``reducer``, None where they are summed whole. ``codistillation`` is
    what this rank has of other groups; None where there is one group. ``place`` is where the model is computed.
    """

    model: nn.Module
    reducer: DenseReducer
    dct: Thresholded | None
    optimizer: torch.optim.Optimizer
    trained: list[tuple[str, nn.Parameter]]
    close: Callable[[], None]
    place: Place
    codistillation: Codistillation | None = None

    @property
    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """All parameters of the model that are trained, wherever, by name."""
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]


@dataclass(kw_only=True)
class Parts:
    """What a session is made of; ``hpcrec.build.session`` makes it from a configuration.

    ``policy`` is what the policy is called, with its options. ``ahead`` are batches submitted before their turn.
    ``save_failed`` is set where a checkpoint could not be written beside steps, until that is dealt with. ``chosen`` is
    what form ``auto`` chose; None where no form was to be chosen. ``teaches_from`` is the step from which on other
    groups' tables are read in training; None where they are not. ``affinity`` is by what training batches are dealt to
    dense ranks; None where the order of samples says it. ``links_rows``: checkpoints link a store's files where
    it has rows in such.
    """

    world: World
    exchange: Exchange
    pipeline: Pipeline
    policy: str
    chosen: Chosen | None
    tables: dict[str, TableSpec]
    dense: DensePart | None
    slices: Slices
    clip_norm: float | None
    splits: dict[str, Split]
    measures: Measures
    schedule: Schedule
    scale_embeddings: bool
    epochs: int
    steps: int | None
    seed: int
    dtype: torch.dtype
    prefetch: int
    look_ahead: LookAhead
    timer: PhaseTimer
    signal: StopSignal
    save_failed: threading.Event
    teaches_from: int | None
    affinity: Affinity | None
    links_rows: bool
    close: Callable[[], None]

    @property
    def store(self) -> Store | None:
        """What this rank holds."""
        return self.exchange.store

    @property
    def load(self) -> Load | None:
        """What this rank's rows were asked for."""
        return self.exchange.load
