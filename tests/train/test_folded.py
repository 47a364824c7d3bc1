"""The first layer of a tower at the owners: it learns as in one process, wherever it is, moves, and is saved whole."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.build import open_session
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.dense.optimizer import build_optimizer
from hpcrec.train import state
from hpcrec.train.checkpoint import find_checkpoint
from hpcrec.train.session import Session
from tests.reference import Reference
from tests.train.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.train.test_equivalence import covering, roles_for

STEPS = 4
SHARDS = {
    "table": {"user": {"shard": "table"}, "item": {"shard": "table"}, "tag": {"shard": "table"}},
    "column": {"user": {"shard": "column"}, "item": {"shard": "column"}, "tag": {"shard": "column"}},
    "mixed": {"user": {"shard": "row"}, "item": {"shard": "column"}, "tag": {"shard": "table"}},
}
OPTIMIZERS = {
    "Adam": {"name": "Adam", "lr": 0.02},
    "SGD": {"name": "SGD", "lr": 0.1, "options": {"momentum": 0.9, "weight_decay": 0.01}},
    "Adagrad": {"name": "Adagrad", "lr": 0.05},
}


class Clipped:
    """An optimizer that clips before it steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, max_norm: float | None) -> None:
        self.optimizer = optimizer
        self.max_norm = max_norm
        self.param_groups = optimizer.param_groups

    def step(self) -> None:
        if self.max_norm is not None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        self.optimizer.step()


def config_of(
    folder: Path,
    model: str = "wide_deep",
    shard: str = "table",
    optimizer: str = "Adam",
    hidden: tuple[int, ...] = (2, 3),
    clip: float | None = None,
    **sections: dict[str, Any],
) -> Config:
    dense: dict[str, Any] = {"reducer": "mpi", "optimizer": OPTIMIZERS[optimizer]}
    wanted: dict[str, dict[str, Any]] = {
        "model": {"name": model, "options": {"hidden": list(hidden)}},
        "exchange": {"form": "partial"},
        "embedding": {"tables": SHARDS[shard]},
        "dense": {**dense, **({} if clip is None else {"clip_norm": clip})},
        "schedule": {"warmup_steps": 3, "apply_to_embeddings": False},
        "train": {"steps": STEPS},
        **sections,
    }
    return config_for(folder, **wanted)


def oracle_for(session: Session, config: Config) -> Reference:
    reference = reference_for(session, config)
    wanted, named = config.dense.optimizer, list(reference.module.named_parameters())
    optimizer = build_optimizer(wanted.name, named, wanted.lr, wanted.options)
    reference.dense_optimizer = Clipped(optimizer, config.dense.clip_norm)
    reference._base_lr = [wanted.lr]
    return reference


def oracle_step(reference: Reference, session: Session, batch: Any, step: int) -> float:
    """The schedule is that of dense parameters alone."""
    return reference.step(batch, lr_scale=session.parts.schedule.multiplier(step))[0]


def same_parameters(session: Session, reference: Reference) -> None:
    """Dense parameters on every dense rank, and rows, are those of the one process."""
    model = session.gather_model()
    if model is not None:
        wanted = dict(reference.module.named_parameters())
        for name, found in model.named_parameters():
            np.testing.assert_allclose(
                found.detach().numpy(), wanted[name].detach().numpy(), rtol=0, atol=1e-11, err_msg=name
            )
    for name, rows in gather_tables(session).items():
        np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)


def run_beside(session: Session, reference: Reference, batches: list[Any], until: int) -> None:
    for step in session.steps():
        loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
        expected = oracle_step(reference, session, batches[step.number], step.number)
        np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-12)
        if session.step == until:
            break


@pytest.fixture(autouse=True)
def rows_at_one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle has one scale for both: rows take none of it here, as the configuration says."""
    original = Reference.step

    def step(self: Reference, batch: Any, lr_scale: float = 1.0) -> tuple[float, np.ndarray]:
        for table in self.tables.values():
            table.optimizer.lr /= lr_scale
        found = original(self, batch, lr_scale)
        for table in self.tables.values():
            table.optimizer.lr *= lr_scale
        return found

    monkeypatch.setattr(Reference, "step", step)


@pytest.mark.parallel([1, 2, 3, 4])
def test_learns_as_in_one_process(folder: Path) -> None:
    """Models, shards, ids, optimizers and clipping, every pair of them; folded wherever that is fewer elements."""
    write_data(folder / "data.h5")
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    axes = ("wide_deep", "deepfm"), tuple(SHARDS), tuple(OPTIMIZERS), (None, 0.05), ("routed", "read")
    folded = 0
    for model, shard, optimizer, clip, ids in covering(*axes):
        exchange = {"form": "partial", "ids": ids}
        config = config_of(folder, model, shard, optimizer, clip=clip, topology=next(roles), exchange=exchange)
        with open_session(config) as session:
            reference = oracle_for(session, config)
            initial = {n: p.detach().clone() for n, p in reference.module.named_parameters()}
            run_beside(session, reference, global_batches(session, STEPS), STEPS)
            same_parameters(session, reference)
            away = session.parts.slices.away
            folded += bool(away)
            assert set(away) <= {f"first.weight_{f}" for f in ("user", "item", "history", "tag")}
            assert shard != "mixed" or "first.weight_user" not in away
            assert model == "deepfm" or shard == "mixed" or len(away) == 4
            if session.parts.dense is not None:
                assert {n for n, _ in session.parts.dense.trained} == set(initial) - set(away)
        trained = dict(reference.module.named_parameters())
        assert not any(torch.equal(trained[name], initial[name]) for name in away), "nothing was learned"
    assert folded >= 6


@pytest.mark.parallel([2])
def test_stays_on_dense_ranks_where_that_is_fewer_elements(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, hidden=(30, 3), train={"steps": 2})
    with open_session(config) as session:
        assert not session.parts.slices.away
        reference = oracle_for(session, config)
        run_beside(session, reference, global_batches(session, 2), 2)
        same_parameters(session, reference)


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("model", ["wide_deep", "deepfm"])
def test_bytes_are_those_of_the_formula(folder: Path, model: str) -> None:
    """H (D + 1 more for FM2) and a wide weight a sample and owner, and the all-reduce of what is left."""
    write_data(folder / "data.h5", weighted=False)
    for topology in roles_for(MPI.COMM_WORLD.size)[:2]:
        exchange = {"form": "partial", "ids": "read", "prefetch": 0}
        with open_session(config_of(folder, model, "column", topology=topology, exchange=exchange)) as session:
            ranks, world = session.topology, session.parts.world
            before = world.total_wire_bytes().sum(axis=1)
            samples = dict.fromkeys(range(ranks.size), 0)
            crossed = 0
            for step in session.steps():
                mine = 0 if step.batch is None else len(step.batch.label)
                samples = dict(enumerate(world.main.allgather(mine)))
                for dense, owner in itertools.product(ranks.dense, ranks.owners):
                    part = ranks.owners.index(owner)
                    columns = 6 * (part + 1) // len(ranks.owners) - 6 * part // len(ranks.owners)
                    wide = part == len(ranks.owners) - 1  # the only column of a wide table
                    elements = 2 + (columns + 1) * (model == "deepfm") + wide
                    crossed += 0 if dense == owner else -(-8 * samples[dense] * elements // 64) * 64
                step.run()
            counted = dict(zip(TAGS, world.total_wire_bytes().sum(axis=1) - before, strict=True))
            left = 0 if session.parts.dense is None else session.parts.dense.reducer.n_bytes
            left = max(world.main.allgather(left))
        assert len(session.parts.slices.away) == 4
        assert counted["values"] == counted["gradients"] == crossed
        assert counted["dense"] == pytest.approx(2 * (len(ranks.dense) - 1) * left * STEPS, abs=8 * STEPS)
        if session.parts.dense is not None:
            every = sum(p.numel() for _, p in session.parts.dense.named_parameters)
            assert left == 8 * (every - 4 * 6 * 2)


@pytest.mark.parallel([1, 2, 3, 4])
def test_a_checkpoint_is_whole(folder: Path) -> None:
    """Saved under one form and placement, gone on with under others; nothing in it says where slices were."""
    write_data(folder / "data.h5")
    roles = roles_for(MPI.COMM_WORLD.size)
    ways = [
        ("partial", "table", roles[0]),
        ("partial", "column", roles[-1]),
        ("pooled", "table", roles[len(roles) // 2]),
        ("partial", "mixed", roles[0]),
    ]
    for number, optimizer in enumerate(OPTIMIZERS):
        run = {"folder": str(folder / f"run{number}")}
        reference = None
        for at, (form, shard, topology) in enumerate(ways):
            config = config_of(
                folder,
                shard=shard,
                optimizer=optimizer,
                topology=topology,
                exchange={"form": form},
                train={"steps": 8},
                run=run,
            )
            with open_session(config) as session:
                main = session.parts.world.main
                if reference is None:
                    reference, batches = oracle_for(session, config), global_batches(session, 8)
                else:
                    found = find_checkpoint(Path(config.run.folder), "last", main)
                    state.load(session, found, resume=True)
                    assert set(found.dense().parameters) == {n for n, _ in reference.module.named_parameters()}
                    same_parameters(session, reference)
                run_beside(session, reference, batches, 2 * (at + 1))
                same_parameters(session, reference)
                state.save(session, Path(config.run.folder), {"note": ""})
