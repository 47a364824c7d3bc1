"""The first layer of a tower at the owners: it learns as in one process, wherever it is, moves, and is saved whole."""

import gc
import itertools
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.build import session as build
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import Checkpoint, DenseState, find_checkpoint
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.dense.optimizer import build_optimizer
from hpcrec.errors import CheckpointError, ConfigError, HpcrecError
from hpcrec.exchange.choose import Choice, Chooser
from hpcrec.training.session import Session
from tests.pairs import covering
from tests.reference import Reference
from tests.together import on_every_rank
from tests.training.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.training.test_equivalence import Some, roles_for, shared_out, shared_out_or_all

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
    name: str = "wide_deep",
    shard: str = "table",
    optimizer: str = "Adam",
    hidden: tuple[int, ...] = (2, 3),
    clip: float | None = None,
    **sections: dict[str, Any],
) -> Config:
    dense: dict[str, Any] = {"reducer": "mpi", "optimizer": OPTIMIZERS[optimizer]}
    wanted: dict[str, dict[str, Any]] = {
        "model": {"name": name, "options": {"hidden": list(hidden)}},
        "exchange": {"form": "partial"},
        "embedding": {"tables": SHARDS.get(shard, {})},
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
    wanted = dict(reference.module.named_parameters())
    with on_every_rank():
        for name, found in () if model is None else model.named_parameters():
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
    rows_alike(monkeypatch)


def rows_alike(patch: pytest.MonkeyPatch) -> None:
    """The oracle has one scale for both: rows take none of it here, as the configuration says."""
    original = Reference.step

    def step(self: Reference, batch: Any, lr_scale: float = 1.0) -> tuple[float, np.ndarray]:
        for table in self.tables.values():
            table.optimizer.lr /= lr_scale
        found = original(self, batch, lr_scale)
        for table in self.tables.values():
            table.optimizer.lr *= lr_scale
        return found

    patch.setattr(Reference, "step", step)


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all
def test_learns_as_in_one_process(some: Some, folder: Path) -> None:
    """Models, shards, ids, optimizers and clipping, every pair of them; folded wherever that is fewer elements."""
    write_data(folder / "data.h5")
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    axes = ("wide_deep", "deepfm"), tuple(SHARDS), tuple(OPTIMIZERS), (None, 0.05), ("routed", "read"), ("mean", "max")
    folded = 0
    for name, shard, optimizer, clip, ids, pooling in some(covering(*axes)):
        model = {"name": name, "options": {"hidden": [2, 3]}, "pooling": {"history": pooling}}
        exchange = {"form": "partial", "ids": ids}
        config = config_of(
            folder, shard=shard, optimizer=optimizer, clip=clip, topology=next(roles), exchange=exchange, model=model
        )
        with open_session(config) as session:
            reference = oracle_for(session, config)
            initial = {n: p.detach().clone() for n, p in reference.module.named_parameters()}
            run_beside(session, reference, global_batches(session, STEPS), STEPS)
            same_parameters(session, reference)
            away = session.parts.slices.away
            folded += bool(away)
            assert set(away) <= {f"first.weight_{f}" for f in ("user", "item", "history", "tag")}
            assert shard != "mixed" or "first.weight_user" not in away
            assert name == "deepfm" or shard == "mixed" or len(away) == 4
            with on_every_rank():
                if session.parts.dense is not None:
                    assert {n for n, _ in session.parts.dense.trained} == set(initial) - set(away)
        trained = dict(reference.module.named_parameters())
        assert not any(torch.equal(trained[n], initial[n]) for n in away), "nothing was learned"
    assert folded >= (6 if some is list else 1)


@pytest.mark.parallel([2])
def test_stays_on_dense_ranks_where_that_is_fewer_elements(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, hidden=(30, 3), train={"steps": 2})
    with open_session(config) as session:
        assert not session.parts.slices.away
        reference = oracle_for(session, config)
        run_beside(session, reference, global_batches(session, 2), 2)
        same_parameters(session, reference)


@pytest.mark.in_turn
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
        with on_every_rank():
            if session.parts.dense is not None:
                every = sum(p.numel() for _, p in session.parts.dense.named_parameters)
                assert left == 8 * (every - 4 * 6 * 2)


SEQUENCE = (  # forms of user, item, history, tag; what is copied
    (("partial", "partial", "partial", "partial"), ()),
    (("pooled", "partial", "partial", "partial"), ("tag",)),
    (("rows", "pooled", "rows", "rows"), ()),
    (("partial", "rows", "rows", "partial"), ()),
    (("partial", "partial", "partial", "pooled"), ("tag",)),
)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_a_choice_changes_no_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer comes and goes as a run is gone on with under other forms, its optimizer's state with it."""
    write_data(folder / "data.h5")
    chosen = itertools.cycle(SEQUENCE)

    def choose(chooser: Chooser) -> Choice:
        forms, copies = next(chosen)
        offers = chooser._offers
        copied = tuple(n for n in offers.replicable if n.split(".")[0] in copies)
        taken = {f for family in offers.families if family.name in copied for f in family.features}
        named = dict(zip(("user", "item", "history", "tag"), forms, strict=True))
        return Choice({f: form for f, form in named.items() if f not in taken}, copied, {}, {})

    monkeypatch.setattr(Chooser, "choose", choose)
    for optimizer, topology in shared_out(list(zip(OPTIMIZERS, itertools.cycle(roles_for(MPI.COMM_WORLD.size)[::-1])))):
        config = config_of(
            folder,
            hidden=(1, 3),
            topology=topology,
            dense={
                "reducer": "horovod" if topology["mode"] == "fused" else "mpi",
                "optimizer": OPTIMIZERS[optimizer],
                "clip_norm": 0.05,
            },
            exchange={"form": "auto", "auto_steps": 1},
            embedding={"tables": {"user": {"shard": "column"}, "item": {"shard": "table"}}},
            train={"steps": 9},
            run={"folder": str(folder / f"run-{optimizer}")},
        )
        seen = []
        for until in (2, 4, 6, 8, 9):
            with open_session(config) as session:
                if not seen:
                    reference, batches = oracle_for(session, config), global_batches(session, 9)
                else:
                    found = find_checkpoint(Path(config.run.folder), "last", session.parts.world.main)
                    state.load(session, found, resume=True)
                run_beside(session, reference, batches, until)
                seen.append(len(session.parts.slices.away))
                same_parameters(session, reference)
                state.save(session, Path(config.run.folder), {"note": ""})
        assert max(seen) >= 3 and len(set(seen)) >= 3, seen


@pytest.mark.parallel([2, 3])
def test_auto_folds_and_says_what_owners_compute(folder: Path) -> None:
    write_data(folder / "data.h5", samples=120)
    config = config_of(
        folder,
        hidden=(1, 3),
        topology={"mode": "fused"},
        exchange={"form": "auto", "auto_steps": 2, "auto_copies": 0, "ids": "read"},
        train={"batch_size": 60, "steps": 2},
    )
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        only, away = session.parts.chosen.record(session.step), session.parts.slices.away
    assert away
    assert only["owner_flops_per_step"] == 6 * 60 * 6 * len(away)  # a weight for each of 6 columns
    for tag in ("ids", "values", "gradients", "dense"):
        assert only["counted_bytes_per_step"][tag] == pytest.approx(only["predicted_bytes_per_step"][tag], abs=16 * 64)


@pytest.mark.parallel([1, 3])
def test_a_step_that_is_left_out_leaves_slices_as_they_are(folder: Path) -> None:
    write_data(folder / "data.h5")
    skip = {"steps": STEPS, "nonfinite": "skip", "nonfinite_limit": 2}
    for topology in roles_for(MPI.COMM_WORLD.size)[:2]:
        config = config_of(folder, optimizer="SGD", clip=0.05, train=skip, topology=topology)
        with open_session(config) as session:
            reference, batches = oracle_for(session, config), global_batches(session, STEPS)
            for step in session.steps():
                slices = session.parts.slices
                before = {n: s.part.detach().clone() for n, s in slices.own.items()}
                if step.number == 1 and session.topology.is_dense and session.topology.dense_index == 0:
                    step.batch.dense[0] = np.nan
                step.run()
                if step.number == 1:
                    assert all(torch.equal(s.part, before[n]) for n, s in slices.own.items())
                    continue
                oracle_step(reference, session, batches[step.number], step.number)
            assert session.guard.skipped == 1 and slices.away
            same_parameters(session, reference)


OWN = """
import torch
from hpcrec.models import fm2_operators
from hpcrec.operators import Folded

class Model(torch.nn.Module):
    def __init__(self, features, n_dense, *, width, n_labels=1, pooling=None, wrong=""):
        super().__init__()
        lookups = fm2_operators(features, width, pooling)["fm2"].lookups
        rows = width - 1 if wrong == "rows" else width
        weights = [torch.nn.Parameter(torch.randn(rows, 2)) for _ in lookups]
        if wrong != "name":
            self.own = torch.nn.ParameterList(weights)
        self.last = torch.nn.Linear(n_dense, 1)
        self.operators = {"a": Folded(lookups=lookups, width=width, weights=tuple(weights))}
        if wrong == "shared":
            self.operators["b"] = Folded(lookups=lookups[:1], width=width, weights=tuple(weights[:1]))

    def forward(self, inputs, dense):
        return torch.tanh(inputs["a"]).sum(1) + self.last(dense)[:, 0]
"""


@pytest.mark.parallel([1, 2])
def test_a_model_of_ones_own(folder: Path) -> None:
    write_data(folder / "data.h5")
    if MPI.COMM_WORLD.rank == 0:
        (folder / "own_folded.py").write_text(OWN)
    MPI.COMM_WORLD.Barrier()
    model = {"name": "own_folded:Model", "folder": str(folder), "options": {}}
    config = own(folder, model)
    with open_session(config) as session:
        reference = oracle_for(session, config)
        run_beside(session, reference, global_batches(session, STEPS), STEPS)
        assert session.parts.slices.away == tuple(f"own.{i}" for i in range(4))
        same_parameters(session, reference)
    for wrong, said in (
        ("rows", r"operator 'a': the weight of feature 'user' has shape \[5, 2\]; .* the 6 columns"),
        ("name", "operator 'a' is no parameter of the model"),
        ("shared", "operator 'b', own.0, is that of another lookup too"),
    ):
        with pytest.raises(ConfigError, match=said), open_session(own(folder, {**model, "options": {"wrong": wrong}})):
            pass


def own(folder: Path, model: dict[str, Any]) -> Config:
    return config_for(
        folder,
        model=model,
        exchange={"form": "partial"},
        embedding={"tables": SHARDS["column"]},
        dense={"optimizer": OPTIMIZERS["Adam"], "clip_norm": 0.05},
    )


@pytest.mark.parallel([2])
def test_what_cannot_be_had_is_refused(folder: Path) -> None:
    """A loss of one's own over a weight that is trained elsewhere."""
    write_data(folder / "data.h5")
    with open_session(config_of(folder)) as session:
        assert session.parts.slices.away

        def losses(inputs: Any, samples: Any) -> torch.Tensor:
            assert session.model is not None
            penalty = sum(p.square().sum() for p in session.model.parameters())
            return session.default_losses(inputs, samples) + penalty

        with pytest.raises(HpcrecError, match=r"depends on parameter 'first.weight_user' itself.*weight_decay"):
            next(session.steps()).run(losses)
        session.step = session.total_steps


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
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
    for number, optimizer in shared_out(list(enumerate(OPTIMIZERS))):
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


@pytest.mark.parallel([2])
def test_a_checkpoint_of_another_layer_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the owner, which is rank 0, as by the dense rank: of another H, and of other names."""
    write_data(folder / "data.h5")
    split = {"mode": "split", "owners": 1}
    with open_session(config_of(folder, topology=split)) as session:
        state.save(session, folder / "run", {"note": ""})
    saved = Checkpoint.dense

    def renamed(checkpoint: Checkpoint, group: int = 0) -> DenseState:
        found = saved(checkpoint, group)
        return replace(found, parameters={n.replace("weight_", ""): v for n, v in found.parameters.items()})

    for hidden, said in (
        ((1, 3), r"dense parameter 'first.weight_user' has shape \[6, 2\], the model's has \[6, 1\]"),
        ((2, 3), "has no dense parameter 'first.weight_user'. It has: .*first.user"),
    ):
        with open_session(config_of(folder, hidden=hidden, topology=split)) as session:
            assert bool(session.parts.slices.own) == (session.topology.rank == 0)
            found = find_checkpoint(folder / "run", "last", session.parts.world.main)
            with pytest.raises(CheckpointError, match=said):
                state.load(session, found, resume=False)
        monkeypatch.setattr(Checkpoint, "dense", renamed)


@pytest.mark.parallel([2])
def test_an_owner_keeps_nothing_of_the_model_but_the_layer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    made: list[weakref.ref[Any]] = []
    original = build.make_model

    def make_model(*given: Any) -> Any:
        model, operators = original(*given)
        made[:] = [weakref.ref(model), *(weakref.ref(p) for p in model.parameters())]
        return model, operators

    monkeypatch.setattr(build, "make_model", make_model)
    with open_session(config_of(folder, topology={"mode": "split", "owners": 1})) as session:
        gc.collect()
        kept = {id(ref()) for ref in made} - {id(None)}
        wholes = {id(p) for p in session.parts.slices.wholes.values()}
        found = session.parts.world.main.allgather((len(kept), len(made), kept == wholes))
    assert found[0] == (4, found[1][1], True)
    assert found[1] == (found[1][1], found[1][1], False)
