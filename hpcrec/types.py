"""Nouns shared by every package: what a feature, a table and a batch are. No logic, no MPI, no torch.

Legend of shape suffixes: ``B`` samples on this rank, ``F`` features, ``D`` row width, ``K`` ids, ``V`` vectors (bags),
``U`` unique ids, ``L`` labels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[Any]  # float32, or float64 where a run asks for it (train.dtype)

POOLINGS = ("sum", "mean", "max")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A categorical input: a bag of ids a sample.

    Attributes
    ----------
    name : str
    cardinality : int
        Ids are in ``[0, cardinality)``; 0 where it is not declared: they are any int64.
    mean_ids : float
        Ids a sample on average (1.0 for one-hot): what the shard map weighs a table's lookups by.
    weighted : bool
        Whether each id carries a float weight.
    """

    name: str
    cardinality: int
    mean_ids: float = 1.0
    weighted: bool = False


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """How a table's rows learn.

    Attributes
    ----------
    name : str
        ``sgd``, ``adagrad``, ``rowwise_adagrad`` (FBGEMM's EXACT_* semantics) or ``adam`` (torch's SparseAdam).
    lr, eps, beta1, beta2 : float
        ``eps`` is added outside the square root; the betas are Adam's.
    initial_accumulator : float
        What the Adagrad accumulators start from.
    bound : float
        The largest magnitude of a weight after an update; rounding to halves may pass it by a step of theirs.
    """

    name: str = "rowwise_adagrad"
    lr: float = 0.02
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    initial_accumulator: float = 0.0
    bound: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Dynamic:
    """Which ids of a table without declared rows get one, and which lose theirs: see ``kernels.IdMap``.

    Attributes
    ----------
    evict : str or None
    admit_from : int
    pending : int
        Of the whole table: each owner counts its part of them.
    admit_probability : float
    seed : int
        Of the hash that deals ids to owners, and of the draws: of a table the run's, of a family its own.
    named : str
        The table in whose settings this is; of no meaning for the rules.
    """

    evict: Literal["lru", "lfu"] | None = None
    admit_from: int = 1
    pending: int = 1 << 20
    admit_probability: float = 1.0
    seed: int = 0
    named: str = field(default="", compare=False)


@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """An embedding table: id -> row.

    Attributes
    ----------
    name : str
    rows, width : int
        Shape of the whole table; of a dynamic one the most rows that it may have.
    hashed : bool
        Ids are hashed into ``[0, rows)``; else an id is its row and must be below ``rows``.
    init_scale : float
        Rows start uniform in ``[-init_scale, init_scale)``, from (table seed, id) alone.
    init_decay : float
        Column c, from 0, is then divided by ``(c + 1) ** init_decay``.
    optimizer : OptimizerSpec
    dynamic : Dynamic or None
        Rows are given to ids as they come, which are any int64; None: row numbers are ids.
    """

    name: str
    rows: int
    width: int
    hashed: bool = False
    init_scale: float = 0.01
    init_decay: float = 0.0
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    dynamic: Dynamic | None = None


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """One feature read from one table: what an operator consumes.

    ``pooling`` is one of ``POOLINGS``; a mean over a weighted bag is the weighted sum divided by the number of ids. The
    largest (``max``) is that of each column, and its gradient goes to the row that gave it: of equal ones the first in
    the bag. It is not defined for weighted ids. An empty bag pools to zeros.
    """

    feature: str
    table: str
    pooling: str = "sum"


@dataclass(frozen=True)
class Bags:
    """Jagged ids of F features for B samples, feature-major: bag ``i = f * B + b`` is ``ids[offsets[i]:offsets[i+1]]``.

    Attributes
    ----------
    features : tuple of str
    ids : int64 [K]
    offsets : int64 [F * B + 1]
    weights : float32 [K] or None
        Weight of each id; 1 where the feature carries none. None where no feature carries any.
    """

    features: tuple[str, ...]
    ids: Ints
    offsets: Ints
    weights: Floats | None = None


@dataclass(frozen=True)
class GlobalIds:
    """Ids of one global batch, of the features that a rank holds rows of.

    Attributes
    ----------
    bags : Bags
        Of all samples of the batch.
    first_D : int64 [dense ranks + 1]
        First sample of each dense rank's part, and the number of samples.
    coming : iterator of GlobalIds, optional
        Of the batches that no step has looked at yet, in order: the one after this at first. For one thread.
    """

    bags: Bags
    first_D: Ints
    coming: "Iterator[GlobalIds] | None" = None


@dataclass(frozen=True)
class Batch:
    """This rank's part of one global batch.

    Attributes
    ----------
    epoch, index : int
        The batch is number ``index`` of epoch ``epoch``.
    size : int
        Samples of the global batch, over all dense ranks (smaller in the last batch of an epoch).
    start : int
        Samples of the parts before, where the global batch is laid out part after part.
    dense : float32 [B, n_dense]
    label : float32 [B] or [B, L]
    weight : float32 [B] or None
        Sample weights; None means 1.
    bags : Bags
    group : int64 [B] or None
        Groups of samples, for metrics; None where they were not asked for.
    positions : int64 [B] or None
        Which samples of the global batch these are, by their place in the order; None: those from ``start`` on.
    """

    epoch: int
    index: int
    size: int
    start: int
    dense: Floats
    label: Floats
    weight: Floats | None
    bags: Bags
    group: Ints | None = None
    positions: Ints | None = None
