"""Codistillation in whole runs: as its definition has it, evaluated, saved and gone on with, or refused."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.build.tables import make_model
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import Checkpoint, find_checkpoint
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.data.loader import Loader
from hpcrec.data.reader import DataSet
from hpcrec.dense.optimizer import build_optimizer
from hpcrec.embedding.sets import name_in
from hpcrec.errors import CheckpointError, ConfigError, HpcrecError, NonFiniteError
from hpcrec.preparation.writer import Writer
from hpcrec.training import metrics
from hpcrec.training.session import Session
from hpcrec.training.telemetry import read_metrics
from tests.reference import GlobalBatch, Reference, RowOptimizer, describe, join
from tests.training.codistilling import Groups
from tests.training.runs import config_for, finished, gather_tables, write_data

STEPS, BATCH = 11, 12  # with 70 samples the second epoch begins at step 6; its last batch is smaller
RULES = {"weight": 0.7, "burn_in_steps": 3, "every": 3}
FUSED = {"mode": "fused"}


def roles_for(size: int) -> list[tuple[dict[str, Any], int]]:
    """Roles and groups that so many ranks can have."""
    halves = {"mode": "split", "owners": [0], "dense": [0, 1]}
    return {
        2: [(FUSED, 2), (halves, 2)],
        3: [(FUSED, 3), ({"mode": "split", "owners": 1, "dense": 2}, 2)],
        4: [
            (FUSED, 2),
            (FUSED, 4),
            ({"mode": "split"}, 2),
            ({"mode": "split", "owners": 1, "dense": 3}, 3),
            ({"mode": "split", "owners": [1, 2], "dense": 4}, 2),
        ],
    }[size]


def config_of(folder: Path, groups: int, rules: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    dense = {"reducer": "mpi", "optimizer": {"name": "SGD", "lr": 0.1}, **sections.pop("dense", {})}
    train = {"steps": STEPS, "batch_size": BATCH, "dtype": "float64", **sections.pop("train", {})}
    wanted = {} if groups == 1 else {"codistillation": {"groups": groups, **RULES, **(rules or {})}}
    return config_for(folder, dense={**dense, **wanted}, train=train, **sections)


def batches_of(session: Session, n: int) -> list[list[GlobalBatch]]:
    """The first ``n`` training batches of each group."""
    split, groups, found = session.parts.splits["train"], session.topology.groups, []
    for group in range(groups):
        loader = Loader(split.dataset, split.order, part=group, parts=groups, prefetch=0)
        with loader.batches(0, 0, n) as stream:
            found.append([join([batch]) for batch in stream])
    return [list(one) for one in zip(*found, strict=True)]


def definition_of(session: Session, config: Config) -> Groups:
    tables, rules = gather_tables(session), config.dense.codistillation
    optimizers = {}
    for name, spec in session.parts.tables.items():
        o = spec.optimizer
        optimizers[name] = RowOptimizer(o.name, o.lr, o.eps, o.beta1, o.beta2, o.initial_accumulator, o.bound)

    def member(group: int) -> Reference:
        model, operators = make_model(config, session.parts.splits["train"].dataset, group)
        wanted = config.dense.optimizer
        dense = build_optimizer(wanted.name, list(model.named_parameters()), lr=wanted.lr, options=wanted.options)
        read = {k.table for operator in operators.values() for k in operator.lookups}
        own = {name: tables[name if rules.share_embeddings else name_in(group, name)] for name in read}
        return Reference(model, describe(operators), own, optimizers, dense, dtype=session.parts.dtype)

    members, teachers = ([member(g) for g in range(rules.groups)] for _ in range(2))
    options = {"weight": rules.weight, "burn_in_steps": rules.burn_in_steps, "every": rules.every}
    return Groups(members, teachers, **options, share=rules.share_embeddings, staleness=config.policy.staleness or 0)


def check(folder: Path, groups: int, **wanted: Any) -> None:
    """Losses, rows, and parameters of every group."""
    config = config_of(folder, groups, wanted.pop("rules", None), **wanted)
    with open_session(config) as session:
        oracle, batches = definition_of(session, config), batches_of(session, session.total_steps)
        begun = [m.module.state_dict() for m in oracle.members]
        assert any(not torch.equal(value, begun[1][name]) for name, value in begun[0].items())
        off = {}  # from what it has to be, and by how much it may be
        for step in session.steps():
            loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
            expected = oracle.step(batches[step.number], step.number, config.dense.clip_norm)
            off[f"loss of step {step.number}"] = (abs(loss - expected), 1e-12)
        for name, rows in gather_tables(session).items():
            off[name] = (np.abs(rows - rows_of(oracle, name)).max(), 1e-11)
        first = session.gather_model()
        if session.model is not None:
            for model, group in ((session.model, session.topology.group), (first, 0)):
                for name, p in model.named_parameters():
                    theirs = oracle.members[group].module.get_parameter(name).detach()
                    off[f"{name} of group {group}"] = (float((p.detach() - theirs).abs().max()), 1e-12)
        wrong = {name: by for name, (by, allowed) in off.items() if not by <= allowed}
        parallel_assert(not wrong, msg=f"{wanted} {groups}: {wrong}")


def rows_of(oracle: Groups, table: str) -> np.ndarray:
    """Rows of a table as a checkpoint names it."""
    name, _, group = table.partition("@")
    return oracle.members[int(group or 0)].rows(name)


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    "every", [pytest.param(False, id="in turn"), pytest.param(True, id="all", marks=pytest.mark.slow)]
)
def test_learns_as_the_definition_does(folder: Path, optimizer: str, *, every: bool) -> None:
    """Each case with some roles, or with all."""
    write_data(folder / "data.h5")
    lr = {"SGD": 0.1, "Adam": 0.01}[optimizer]
    cases = (
        {"exchange": {"form": "pooled", "ids": "read"}},
        {"model": {"name": "deepfm"}, "exchange": {"form": "partial"}},
        {"model": {"name": "dcn"}, "exchange": {"form": "rows"}},
        {
            "model": {"name": "wide_deep"},
            "exchange": {"form": "auto", "auto_steps": 1, "ids": "read"},
        },
        {"exchange": {"prefetch": 0}, "data": {"shuffle": False, "prefetch": 0}},
        {"model": {"name": "dmt_dlrm", "options": {"ratio": 2, "towers": [["user", "tag"], ["item", "history"]]}}},
    )
    numbered, roles_of_size = list(enumerate(cases)), roles_for(MPI.COMM_WORLD.size)
    chosen = itertools.product(roles_of_size, numbered) if every else zip(itertools.cycle(roles_of_size), numbered)
    for (roles, groups), (number, case) in chosen:
        max_norm = {"clip_norm": 0.2} if number == 0 else {}
        dense = {"optimizer": {"name": optimizer, "lr": lr}, **max_norm}
        check(folder, groups, topology=roles, dense=dense, **case)


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("staleness", [1, 2])
def test_several_steps_in_flight(folder: Path, staleness: int) -> None:
    """Rows lack updates as of one group: of tables that groups share, and of their own, which the others read too."""
    write_data(folder / "data.h5")
    policy, exchange = {"name": "hybrid", "staleness": staleness}, {"windows": False, "piece_bytes": 100}
    every = roles_for(MPI.COMM_WORLD.size)
    for share, (roles, groups) in itertools.product((True, False), (every[0], every[-1])):
        dense = {"clip_norm": 0.2} if share else {}
        rules = {"share_embeddings": share}
        check(folder, groups, rules=rules, topology=roles, policy=policy, exchange=exchange, dense=dense)


@pytest.mark.parallel([2])
@pytest.mark.parametrize("weighted", [True, False])
def test_several_labels_and_samples_without_weights(folder: Path, weighted: bool) -> None:
    write_data(folder / "data.h5", labels=2, weighted=weighted)
    for form in ("pooled", "partial"):
        check(folder, 2, model={"name": "deepfm"}, exchange={"form": form})


@pytest.mark.parallel([2, 4])
def test_without_a_weight_groups_only_share_tables(folder: Path) -> None:
    write_data(folder / "data.h5")
    for groups in {2, MPI.COMM_WORLD.size}:
        check(folder, groups, rules={"weight": 0.0, "burn_in_steps": 1000, "every": 50})


@pytest.mark.parallel([2])
@pytest.mark.parametrize("compression", ["none", "dct"])
def test_a_group_learns_as_if_alone_on_its_part_of_the_data(folder: Path, compression: str) -> None:
    """Bit for bit, where nobody learns from others and rows do not learn: each part as a data set of its own."""
    dense: dict[str, Any] = {"optimizer": {"name": "Adam", "lr": 0.01}, "clip_norm": 0.3, "compression": compression}
    if compression == "dct":
        dense["dct"] = {"density": 0.1, "every": 4, "values": "fp32"}
    tables = {name: {"shard": "table"} for name in ("user", "item", "tag")}  # else it depends on the data
    frozen = {"embedding": {"optimizer": {"name": "sgd", "lr": 1e-300}, "tables": tables}}
    write_data(folder / "data.h5")
    nobody = {"weight": 0.0, "burn_in_steps": 1000, "every": 50}
    with open_session(config_of(folder, 2, nobody, dense=dense, **frozen)) as session:
        for step in session.steps():
            step.run()
        mine = {n: p.detach().numpy().copy() for n, p in session.model.named_parameters()}
        groups = session.parts.world.main.allgather(mine)
        samples = session.parts.splits["train"].dataset.samples
    each = samples // 2
    for group, found in enumerate(groups):
        cut_data(folder / "data.h5", folder / "part" / "data.h5", group * each, (group + 1) * each)
        alone = {"topology": {"mode": "split", "owners": [0, 1], "dense": [group]}, "train": {"batch_size": BATCH // 2}}
        config = config_of(folder / "part", 1, dense=dense, **alone, **frozen)
        with open_session(config) as session:
            start, _ = make_model(config, session.parts.splits["train"].dataset, group)
            if session.model is not None:
                session.model.load_state_dict(start.state_dict())
            for step in session.steps():
                step.run()
            mine = {} if session.model is None else dict(session.model.named_parameters())
            off = {n: float(np.abs(p.detach().numpy() - found[n]).max()) for n, p in mine.items()}
            parallel_assert(not any(off.values()), msg=f"group {group}: {off}")


def cut_data(whole: Path, part: Path, start: int, stop: int) -> None:
    """Samples [start, stop) of a data set as one of their own."""
    if MPI.COMM_WORLD.rank == 0:
        part.parent.mkdir(exist_ok=True)
        part.unlink(missing_ok=True)
        with DataSet(whole) as dataset:
            names = tuple(f.name for f in dataset.features)
            columns = dataset.read_ranges([(start, stop)], names, dataset.optional)
            facts = {"n_dense": dataset.n_dense, "n_labels": dataset.n_labels, "optional": dataset.optional}
            with Writer(part, dataset.features, jagged=("history", "tag"), **facts) as writer:
                writer.append(columns)
    MPI.COMM_WORLD.Barrier()


def everything(session: Session) -> dict[str, np.ndarray]:
    """Rows, the parameters of this rank's group, and what it has of the others."""
    found = dict(gather_tables(session))
    if session.parts.dense is not None:
        found |= {n: p.detach().numpy().copy() for n, p in session.parts.dense.named_parameters}
        codistillation = session.parts.dense.codistillation
        if codistillation is not None and codistillation.taken:
            others = [g for g in range(session.topology.groups) if g != session.topology.group]
            found |= {f"{g} {n}": v for g in others for n, v in codistillation.snapshot(g).items()}
    return found


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> bool:
    return found.keys() == wanted.keys() and all(np.array_equal(found[n], wanted[n]) for n in wanted)


def finish(config: Config, stop_at: int | None = None, resume: bool = False) -> dict[str, np.ndarray]:
    """Runs to the end, or to ``stop_at``, where it saves."""
    return finished(config, everything, stop_at, resume=resume)


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("compression", ["none", "dct"])
def test_resumed_equals_uninterrupted_bit_for_bit(folder: Path, compression: str) -> None:
    """Stopped in the burn-in, where an exchange is due, and between two."""
    write_data(folder / "data.h5")
    dense: dict[str, Any] = {"optimizer": {"name": "Adam", "lr": 0.02}, "compression": compression}
    if compression == "dct":
        dense["dct"] = {"density": 0.1, "every": 4, "values": "bf16"}
    for number, (roles, groups) in enumerate(roles_for(MPI.COMM_WORLD.size)[:3]):
        wanted = {"topology": roles, "dense": dense, "train": {"dtype": "float32"}}
        config = config_of(folder, groups, **wanted, run={"folder": str(folder / f"run-{number}")})
        learned = finish(config)
        for stop_at in (2, 6, 7):
            finish(config, stop_at=stop_at)
            parallel_assert(same(finish(config, resume=True), learned), msg=f"{roles} {groups} {stop_at}")


@pytest.mark.parallel([2])
def test_a_checkpoint_without_snapshots_takes_them_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, 2)
    finish(config, stop_at=7)
    checkpoint = find_checkpoint(folder / "run", "last", None)
    names = sorted(p.name for p in checkpoint.folder.glob("*-?.h5"))
    assert names == ["dense-group-1.h5", "snapshot-0.h5", "snapshot-1.h5"]
    monkeypatch.setattr(Checkpoint, "snapshot", lambda *_: None)
    with open_session(config) as session:
        state.load(session, find_checkpoint(folder / "run", "last", session.parts.world.main), resume=True)
        codistillation = session.parts.dense.codistillation
        assert not codistillation.taken
        theirs = session.parts.world.main.allgather(dict(session.model.state_dict()))[1 - session.topology.group]
        for step in session.steps():
            step.run()
            if session.step == 8:
                held = codistillation.snapshot(1 - session.topology.group)
                assert all(np.array_equal(held[n], v.numpy()) for n, v in theirs.items())
        session.step = session.total_steps


@pytest.mark.parallel([3, 4])
def test_another_number_of_dense_ranks_goes_on_in_the_same_groups(folder: Path) -> None:
    """Each group with its own parameters, and what its own ranks had not sent."""
    write_data(folder / "data.h5")
    if MPI.COMM_WORLD.size == 3:
        before, after = {"mode": "split", "owners": 1, "dense": 2}, {"mode": "split", "owners": [0, 1, 2], "dense": 2}
    else:
        before, after = FUSED, {"mode": "split", "dense": 2}
    dense = {"compression": "dct", "dct": {"density": 0.1, "every": 4, "values": "fp32"}}
    with open_session(config_of(folder, 2, topology=before, dense=dense)) as session:
        for step in session.steps():
            step.run()
            if session.step == 7:
                break
        state.save(session, folder / "run", {})
        wanted = by_group(session)
    with open_session(config_of(folder, 2, topology=after, dense=dense)) as session:
        state.load(session, find_checkpoint(folder / "run", "last", session.parts.world.main), resume=True)
        found = by_group(session)
        for (parameters, owed), (theirs, were_owed) in zip(found, wanted, strict=True):
            assert same(parameters, theirs)
            for name, total in were_owed.items():
                np.testing.assert_allclose(owed[name], total, rtol=0, atol=1e-15, err_msg=name)
        for step in session.steps():
            step.run()


def by_group(session: Session) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Parameters of each group, and what its ranks together have not sent."""
    mine = None
    if session.parts.dense is not None:
        parameters, owed = {}, {}
        for name, p in session.parts.dense.named_parameters:
            parameters[name], owed[name] = p.detach().numpy().copy(), np.zeros(p.numel())
            for start, left in session.parts.dense.dct.residuals.owed(name):
                owed[name][start : start + len(left)] += left
        mine = (session.topology.group, parameters, owed)
    everyone = [one for one in session.parts.world.main.allgather(mine) if one is not None]
    found = []
    for group in range(session.topology.groups):
        members = [(parameters, owed) for g, parameters, owed in everyone if g == group]
        assert all(same(parameters, members[0][0]) for parameters, _ in members)
        found.append((members[0][0], {n: sum(owed[n] for _, owed in members) for n in members[0][1]}))
    return found


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_bytes_are_those_of_the_formula(folder: Path) -> None:
    """Exchanges before steps 3, 6 and 9; evaluations are not counted."""
    write_data(folder / "data.h5")
    for roles, groups in roles_for(MPI.COMM_WORLD.size):
        config = config_of(folder, groups, topology=roles, data={"validation": str(folder / "data.h5")})
        with open_session(config) as session:
            counted = []
            for step in session.steps():
                step.run()
                session.evaluate("validation", 1)
                counted.append(int(session.parts.world.total_wire_bytes()[TAGS.index("teachers")].sum()))
            sizes = [0 if session.model is None else sum(p.nbytes for p in session.model.parameters())]
            parameters_bytes = max(session.parts.world.main.allgather(sizes[0]))
            ranks = len(session.topology.dense)
        an_exchange = ranks * (groups - 1) * parameters_bytes
        assert counted == [an_exchange * n for n in (0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3)]


@pytest.mark.parallel([2, 4])
def test_auto_predicts_the_dense_sums_of_groups(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles, groups in roles_for(MPI.COMM_WORLD.size):
        auto = {"form": "auto", "auto_steps": 1}
        with open_session(config_of(folder, groups, topology=roles, exchange=auto)) as session:
            for step in session.steps():
                step.run()
            counted = int(session.parts.world.total_wire_bytes()[TAGS.index("dense")].sum())
            a_step = session.parts.chosen.found["predicted_bytes_per_step"]["dense"]
            off = counted - a_step * session.total_steps
            parallel_assert(
                abs(off) <= 64 * session.total_steps and (a_step > 0) == (len(session.topology.dense) > groups)
            )


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_evaluations_are_of_all_groups_and_change_nothing(folder: Path) -> None:
    """The first group's figures as the run's, those of each beside; training goes on with what it had exchanged."""
    write_data(folder / "data.h5")
    for roles, groups in roles_for(MPI.COMM_WORLD.size):
        config = config_of(
            folder, groups, topology=roles, model={"name": "deepfm"}, data={"validation": str(folder / "data.h5")}
        )
        plain = finish(config)
        with open_session(config) as session:
            oracle, batches = definition_of(session, config), batches_of(session, session.total_steps)
            for step in session.steps():
                step.run()
                oracle.step(batches[step.number], step.number)
                if step.number in (1, 4, 5):
                    found = session.evaluate("validation")
                    check_evaluation(session, oracle, found)
            parallel_assert(same(everything(session), plain), msg=f"{roles} {groups}")


def check_evaluation(session: Session, oracle: Groups, found: dict[str, Any]) -> None:
    split = session.parts.splits["validation"]
    loader = Loader(split.dataset, split.order, prefetch=0)
    with loader.batches(0, 0, split.order.n_batches) as stream:
        whole = [join([batch]) for batch in stream]
    labels, weights = (np.concatenate([getattr(b, name) for b in whole]) for name in ("label", "weight"))
    logits = [np.concatenate([m.logits(b).detach().numpy() for b in whole]) for m in oracle.members]
    wanted = [metrics.evaluate(x, labels, weights) for x in logits]
    assert found["group_auc"] == pytest.approx([w["auc"] for w in wanted], abs=1e-12)
    assert found["group_logloss"] == pytest.approx([w["logloss"] for w in wanted], abs=1e-12)
    assert found["logloss"] == found["group_logloss"][0] != found["group_logloss"][1]
    assert found["auc"] == found["group_auc"][0]
    for first, _, out in session.outputs("validation"):
        np.testing.assert_allclose(out.numpy(), logits[0][first : first + len(out)], rtol=0, atol=1e-11)


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_a_run_tells_of_all_groups_and_is_read_by_the_first(folder: Path) -> None:
    write_data(folder / "data.h5")
    roles, groups = roles_for(MPI.COMM_WORLD.size)[-1]
    config = config_of(
        folder,
        groups,
        topology=roles,
        data={"validation": str(folder / "data.h5")},
        train={"eval_every": 4, "dtype": "float32"},
        checkpoint={"keep_best": False},
    )
    assert commands.train(config) == 0
    summary = json.loads((folder / "run/summary.json").read_text())
    found = summary["eval"]
    assert found["auc"] == found["group_auc"][0] and len(found["group_auc"]) == len(found["group_logloss"]) == groups
    assert summary["topology"]["groups"] == groups
    assert sum(summary["wire_bytes"]["teachers"].values()) > 0
    lines = [line for line in read_metrics(folder / "run") if "validation_group_auc" in line]
    assert [line["step"] for line in lines] == [4, 8, 11]
    assert ", ".join(f"{auc:.6g}" for auc in found["group_auc"]) in (folder / "run/report.html").read_text()
    again = commands.evaluate(config, checkpoint="last")
    assert again["auc"] == pytest.approx(found["auc"], abs=1e-6) and "group_auc" not in again
    assert commands.predict(config, data=str(folder / "data.h5"), out=folder / "out.h5", checkpoint="last") == 70
    with open_session(config) as session:
        state.load(session, find_checkpoint(folder / "run", "last", session.parts.world.main), resume=True)
        with h5py.File(folder / "out.h5") as file:
            predicted = file["prediction"][()]
        for first, _, out in session.outputs("validation"):
            np.testing.assert_allclose(torch.sigmoid(out).numpy(), predicted[first : first + len(out)], atol=1e-6)


@pytest.mark.parallel([1, 2, 3])
def test_dense_ranks_that_make_no_equal_groups_are_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    ranks = MPI.COMM_WORLD.size
    groups = {1: 2, 2: 3, 3: 2}[ranks]
    said = {
        1: "groups is 2, but there is 1 dense rank, which cannot be split into so many equal groups. Allowed: 1. ",
        2: "groups is 3, but there are 2 dense ranks, which cannot be split into so many equal groups. Allowed: 1, 2. ",
        3: "groups is 2, but there are 3 dense ranks, which cannot be split into so many equal groups. Allowed: 1, 3. ",
    }[ranks]
    with pytest.raises(ConfigError, match=said), open_session(config_of(folder, groups)):
        pass


@pytest.mark.parallel([2])
def test_too_few_samples_and_other_groups_are_refused(folder: Path) -> None:
    write_data(folder / "data.h5", samples=1)
    with pytest.raises(ConfigError, match="1 samples are too few for 2 groups"), open_session(config_of(folder, 2)):
        pass
    write_data(folder / "data.h5")
    for before, after in ((2, 1), (1, 2)):
        finish(config_of(folder, before), stop_at=4)
        with open_session(config_of(folder, after)) as session:
            found = find_checkpoint(folder / "run", "last", session.parts.world.main)
            said = rf"was written with dense.codistillation.groups = {before}, this run has {after}"
            with pytest.raises(CheckpointError, match=said):
                state.load(session, found, resume=True)


@pytest.mark.parallel([2])
def test_a_loss_of_ones_own_begins_with_the_default(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_of(folder, 2)) as session:
        for step in session.steps():
            step.run(lambda inputs, samples: 2 * session.default_losses(inputs, samples))
    refused = {
        r"Begin with session.default_losses\(inputs, samples\)": lambda x, s: session.model(x, s.dense) ** 2,
        "default_losses was given dict as inputs": lambda x, s: session.default_losses(dict(x), s),
    }
    for said, losses in refused.items():
        with open_session(config_of(folder, 2)) as session:
            steps = session.steps()
            with pytest.raises(HpcrecError, match=said):
                next(steps).run(losses)
            steps.close()
    nobody = {"weight": 0.0, "burn_in_steps": 1000, "every": 50}
    with open_session(config_of(folder, 2, nobody)) as session:
        for step in session.steps():
            step.run(lambda inputs, samples: session.model(inputs, samples.dense) ** 2)


@pytest.mark.parallel([2, 4])
def test_a_sample_that_is_not_finite_is_named_or_left_out_by_all_groups(folder: Path) -> None:
    """In the second epoch, of the second group's part; where it is left out, the rest is as without it."""
    write_data(folder / "data.h5")
    for policy in ("stop", "skip"):
        config = config_of(folder, 2, train={"nonfinite": policy})
        with open_session(config) as session:
            oracle, batches = definition_of(session, config), batches_of(session, session.total_steps)
            dataset = session.parts.splits["train"].dataset
            for step in session.steps():
                if step.number != 8:
                    step.run()
                    oracle.step(batches[step.number], step.number)
                    continue
                mine = (step.batch.dense[0].tolist(), step.batch.start)
                spoilt = session.parts.world.main.bcast(mine, root=session.topology.size // 2)[0]
                if session.topology.rank == session.topology.size // 2:
                    step.batch.dense[0] = np.nan
                if policy == "skip":
                    step.run()
                    continue
                with pytest.raises(NonFiniteError) as caught:
                    step.run()
                row = int(re.search(r"\(sample (\d+) of", str(caught.value))[1])
                parallel_assert(dataset.read_ranges([(row, row + 1)]).dense[0].tolist() == spoilt, msg=str(row))
                parallel_assert(row >= dataset.samples // 2)
                break
            if policy == "skip":
                for name, rows in gather_tables(session).items():
                    np.testing.assert_allclose(rows, oracle.members[0].rows(name), rtol=0, atol=1e-11, err_msg=name)
                group = oracle.members[session.topology.group].module
                for name, p in session.model.named_parameters():
                    theirs = group.get_parameter(name).detach().numpy()
                    np.testing.assert_allclose(p.detach().numpy(), theirs, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parallel([2])
def test_one_group_is_as_without(folder: Path) -> None:
    """Nothing is added to what a run without groups sends, saves or tells."""
    write_data(folder / "data.h5")
    config = config_of(folder, 1, data={"validation": str(folder / "data.h5")})
    assert commands.train(config) == 0
    summary = json.loads((folder / "run/summary.json").read_text())
    assert "group_auc" not in summary["eval"] and "groups" not in summary["topology"]
    assert sum(summary["wire_bytes"]["teachers"].values()) == 0
    saved = [p.name for p in (folder / "run/checkpoints").glob("step-*/*.h5")]
    assert saved == ["dense.h5"]
