"""What a session is made of, and what a dense rank's part of a batch is to torch. Holds things; does nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hpcrec.comm.failure import StopSignal
from hpcrec.comm.world import World
from hpcrec.data.grouped import Order
from hpcrec.data.reader import DataSet
from hpcrec.dense.codistillation import Codistillation
from hpcrec.dense.dct import Thresholded
from hpcrec.dense.place import Place
from hpcrec.dense.reducer import DenseReducer
from hpcrec.dense.slices import Slices
from hpcrec.embedding.load import Load
from hpcrec.embedding.store import RowStore
from hpcrec.policy.pipeline import Pipeline
from hpcrec.train.schedule import Schedule
from hpcrec.train.timer import PhaseTimer
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


class Thresholds(Protocol):
    """How vectors are thresholded; the same on every rank."""

    density: float
    evaluates: bool
    by_vector: bool

    def of_vector(self, width: int) -> int:
        """How many elements of each vector cross, by thresholds of their own."""


class Remembered(Protocol):
    """What an exchange finds out while it trains and a resumed run needs, beside rows; JSON-like."""

    def saved(self) -> dict[str, Any]:
        """This rank's."""

    def cut_widths(self) -> list[int]:
        """Of vectors that are thresholded here."""

    def counts(self) -> tuple[int, int, int]:
        """Elements that crossed, of how many, in training; and how often a threshold let too many through."""

    def follow(self, before: Any) -> None:
        """Goes on where another one of this rank was."""

    def restore(self, by_rank: Sequence[Mapping[str, Any]], rank: int | None) -> None:
        """Goes on from what every rank had saved; this one is ``rank``, None where they were more or fewer."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What moves rows and gradients.

    ``features`` are what a dense rank reads of its part of a batch, ``held`` what a holder reads of the whole batch,
    ``slices`` the parts of dense parameters that are used at this holder; ``reduce`` says who adds partial results that
    cross hosts; ``masks`` are those of this holder's vectors, ``thresholding`` how, None where they cross whole.
    """

    pipeline: Pipeline
    store: RowStore | None
    load: Load | None
    features: tuple[str, ...]
    held: tuple[str, ...]
    slices: list[Any]
    reduce: str
    masks: Remembered | None
    thresholding: Thresholds | None


class Chooses(Protocol):
    """What may put another engine in place between steps; every rank calls it in the same order."""

    engine: Engine
    history: list[dict[str, Any]]
    told: list[dict[str, Any]]
    before_moving: Callable[[], None]

    def begin(self, step: int) -> None:
        """Steps follow from this one on."""

    def due(self, step: int) -> bool:
        """Whether ``adapt`` has something to do before this step."""

    def adapt(self, step: int) -> bool:
        """Chooses for the steps from here on; whether ``engine`` is another one now."""

    def finish(self, step: int) -> dict[str, float]:
        """Writes down in ``history`` what the last choice has cost; bytes a step since this was last done."""


@dataclass(kw_only=True)
class Parts:
    """What a session is made of; ``hpcrec.build`` makes it from a configuration.

    ``ahead`` are batches submitted before their turn. ``auto`` is None where the engine stays as it is.
    ``teaches_from`` is the step from which on other groups' tables are read in training; None where they are not.
    """

    world: World
    engine: Engine
    auto: Chooses | None
    tables: dict[str, TableSpec]
    dense: DensePart | None
    slices: Slices
    clip_norm: float | None
    splits: dict[str, Split]
    schedule: Schedule
    scale_embeddings: bool
    epochs: int
    steps: int | None
    seed: int
    dtype: torch.dtype
    prefetch: int
    ahead: int
    timer: PhaseTimer
    signal: StopSignal
    teaches_from: int | None
    close: Callable[[], None]

    @property
    def pipeline(self) -> Pipeline:
        """The engine's."""
        return self.engine.pipeline

    @property
    def store(self) -> RowStore | None:
        """The engine's: what this rank holds."""
        return self.engine.store

    @property
    def load(self) -> Load | None:
        """The engine's: what this rank's rows were asked for."""
        return self.engine.load
