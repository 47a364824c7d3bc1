"""Small data sets and sessions for the tests of whole runs, and the single-process reference beside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config, validate
from hpcrec.data.deal import Deal, equal_parts
from hpcrec.data.layout import Column, Columns
from hpcrec.data.loader import Loader
from hpcrec.preparation.writer import Writer
from hpcrec.training.session import Session
from hpcrec.types import Feature
from tests.reference import GlobalBatch, Reference, RowOptimizer, describe, join

Found = TypeVar("Found")
FEATURES = (
    Feature(name="user", cardinality=40),
    Feature(name="item", cardinality=25),
    Feature(name="history", cardinality=25, mean_ids=3.0),
    Feature(name="tag", cardinality=9, mean_ids=2.0, weighted=True),
)
SMALL = {  # options of models that have towers: sizes of the papers add time and nothing else
    "dlrm": {"bottom": [12, 8], "top": [10]},
    "dcn": {"hidden": [10, 8]},
    "deepfm": {"hidden": [10, 8]},
    "wide_deep": {"hidden": [10, 8]},
    "dmt_dlrm": {"bottom": [12, 8], "top": [10]},
    "dmt_dcn": {"hidden": [10, 8]},
}
SAMPLES, BATCH = 70, 13  # the last batch of an epoch has 5 samples: fewer for some ranks, none for others


def write_data(
    path: Path,
    *,
    samples: int = SAMPLES,
    labels: int = 1,
    weighted: bool = True,
    grouped: bool = False,
    seed: int = 5,
) -> None:
    """A data set with one-hot, multi-hot, empty and weighted bags, on rank 0 only."""
    if MPI.COMM_WORLD.rank == 0:
        rng = np.random.default_rng(seed)
        columns = {}
        for feature in FEATURES:
            lengths = np.ones(samples, int) if feature.mean_ids == 1.0 else rng.integers(0, 6, samples)
            ids = rng.integers(0, feature.cardinality, lengths.sum())
            offsets = None if feature.mean_ids == 1.0 else np.concatenate([[0], np.cumsum(lengths)])
            weights = rng.uniform(0.5, 2, len(ids)).astype(np.float32) if feature.weighted else None
            columns[feature.name] = Column(ids, offsets, weights)
        label = rng.integers(0, 2, (samples, labels)[: 1 + (labels > 1)]).astype(np.float32)
        weight = rng.uniform(0.5, 2, samples).astype(np.float32) if weighted else None
        dense = rng.standard_normal((samples, 3)).astype(np.float32)
        group = rng.integers(-4, 5, samples) if grouped else None
        optional = (*(["weight"] if weighted else []), *(["group"] if grouped else []))
        jagged = [feature.name for feature in FEATURES if feature.mean_ids != 1.0]
        with Writer(path, FEATURES, n_dense=3, n_labels=labels, jagged=jagged, optional=optional) as writer:
            writer.append(Columns(label=label, dense=dense, sparse=columns, weight=weight, group=group))
    MPI.COMM_WORLD.Barrier()


def config_for(folder: Path, **sections: dict[str, Any]) -> Config:
    """A configuration over ``folder/data.h5``; ``sections`` go over the defaults of the tests."""
    mapping: dict[str, Any] = {
        "data": {"train": str(folder / "data.h5"), "chunk": 8, "window": 3},
        "model": {"name": "dlrm", "width": 6, "pooling": {"history": "mean"}},
        "embedding": {"init_scale": 0.3, "optimizer": {"name": "adagrad", "lr": 0.1}, "share": {"history": "item"}},
        "dense": {"reducer": "mpi", "optimizer": {"name": "SGD", "lr": 0.1}},
        "train": {"batch_size": BATCH, "dtype": "float64", "steps": 7},
        "run": {"folder": str(folder / "run"), "tensorboard": False, "progress": False},
    }
    for section, keys in sections.items():
        mapping[section] = {**mapping.get(section, {}), **keys}
    model = mapping["model"]
    if model["name"] in SMALL:
        mapping["model"] = {**model, "options": {**SMALL[model["name"]], **model.get("options", {})}}
    return validate(mapping, "test")


def global_batches(session: Session, n: int) -> list[GlobalBatch]:
    """The first ``n`` training batches, whole; where they are dealt by affinity, part after part."""
    split = session.parts.splits["train"]
    loader = Loader(split.dataset, split.order, part=0, parts=1, prefetch=0, affinity=session.parts.affinity)
    with loader.batches(0, 0, n) as stream:
        return [join([batch]) for batch in stream]


def gather_tables(session: Session) -> dict[str, np.ndarray]:
    """Rows of every table, whole, on every rank; each must be held, and copies must agree."""
    parts, mine = session.parts, {}
    parts.pipeline.settle()
    if parts.store is not None:
        for table in parts.store.tables:
            columns = parts.store.place(table)[1].columns
            mine[table] = [(i.copy(), r.copy(), columns) for i, r, _ in parts.store.export(table)]
    out = {}
    for name, spec in parts.tables.items():
        whole = np.full((spec.rows, spec.width), np.nan)
        for theirs in parts.world.main.allgather(mine):
            for ids, rows, (start, stop) in theirs.get(name, ()):
                held = whole[ids, start:stop]
                assert np.isnan(held).all() or np.array_equal(held, rows), f"copies of {name} differ"
                whole[ids, start:stop] = rows
        assert not np.isnan(whole).any(), name
        out[name] = whole
    return out


def reference_for(session: Session, config: Config) -> Reference:
    """The reference with this session's initial rows and dense parameters, on every rank."""
    from hpcrec.build.tables import make_model

    tables = gather_tables(session)
    model, operators = make_model(config, session.parts.splits["train"].dataset)
    optimizers = {}
    for name, spec in session.parts.tables.items():
        o = spec.optimizer
        optimizers[name] = RowOptimizer(o.name, o.lr, o.eps, o.beta1, o.beta2, o.initial_accumulator, o.bound)
    dense = torch.optim.SGD(model.parameters(), lr=config.dense.optimizer.lr)
    return Reference(model, describe(operators), tables, optimizers, dense, dtype=session.parts.dtype)


def train(
    config: Config, n: int | None = None, deal: Deal = equal_parts
) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Global losses of the steps, rows and dense parameters at the end."""
    losses = []
    with open_session(config, deal=deal) as session:
        for step in session.steps():
            loss = step.run()
            losses.append(float(session.parts.world.main.allreduce(np.array([loss]))[0]))
            if len(losses) == n:
                break
        tables = gather_tables(session)
        dense, model = {}, session.gather_model()
        if model is not None:
            dense = {k: p.detach().cpu().numpy().copy() for k, p in model.named_parameters()}
        dense = session.parts.world.main.bcast(dense, root=session.topology.dense[0])
    return losses, tables, dense


def finished(
    config: Config, gather: Callable[[Session], Found], stop_at: int | None = None, *, resume: bool = False
) -> Found:
    """What ``gather`` finds at the end, or at ``stop_at``, where it saves; from the start or the last checkpoint."""
    with open_session(config) as session:
        if resume:
            found = find_checkpoint(Path(config.run.folder), "last", session.parts.world.main)
            state.load(session, found, resume=True)
        for step in session.steps():
            step.run()
            if not resume and session.step == stop_at:
                state.save(session, Path(config.run.folder), {})
                break
        return gather(session)
