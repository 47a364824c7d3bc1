"""Batches that are dealt by affinity train the same, under any policy, and with ids that meet fewer bytes cross."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.memory import predict_memory
from hpcrec.build.session import open_session
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config, validate
from hpcrec.data.affinity import PLACE_BYTES
from hpcrec.data.layout import Column, Columns
from hpcrec.errors import ConfigError, NonFiniteError
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature
from tests.policy.test_cached import as_rows, cached, choosing, held_to_one_process
from tests.policy.test_hybrid import config_of, gone_on, results, same_bits, save_and_leave, trained
from tests.together import on_every_rank
from tests.training.runs import BATCH, config_for, train, write_data
from tests.training.test_equivalence import Roles, few_or_all_roles
from tests.training.test_nonfinite import BAD_STEP, spoil

COMM = MPI.COMM_WORLD
EVICT = ("lfu", "known")
AFFINITY = {"deal": "affinity"}


def in_order(config: Config) -> Config:
    return replace(config, data=replace(config.data, deal="order"))


@pytest.mark.parallel([1, 2, 3, 4])
@few_or_all_roles
def test_it_trains_as_batches_in_order_do(roles_of: Roles, folder: Path) -> None:
    """But for the order of sums; bit for bit the same where owners read ids, and so deal for themselves."""
    write_data(folder / "data.h5")
    dealt_otherwise = 0
    ways = [("pooled", True), ("rows", False), ("partial", True), ("rows", True), ("pooled", False)]
    for number, roles in enumerate(roles_of(COMM.size), start=COMM.size):
        way, shuffle = ways[number % len(ways)]
        found = {}
        for ids in ("routed", "read"):
            more = {"topology": roles, "train": {"steps": 6}, "data": {**AFFINITY, "shuffle": shuffle}}
            config = config_of(folder, None, way, exchange={"ids": ids}, **more)
            found[ids] = train(config)
        expected, about = train(in_order(config)), (roles, way, shuffle)
        with on_every_rank():
            assert found["read"][0] == found["routed"][0], about
            np.testing.assert_allclose(found["read"][0], expected[0], rtol=0, atol=1e-10)
            for read, routed, by_order in zip(found["read"][1:], found["routed"][1:], expected[1:], strict=True):
                for name in by_order:
                    assert read[name].tobytes() == routed[name].tobytes(), (about, name)
                    np.testing.assert_allclose(read[name], by_order[name], rtol=0, atol=1e-10, err_msg=name)
                    dealt_otherwise += read[name].tobytes() != by_order[name].tobytes()
    with on_every_rank():
        assert dealt_otherwise or COMM.size < 3, "samples go to other ranks, so that sums have another order"


@pytest.mark.parallel([1, 2, 3, 4])
@few_or_all_roles
def test_copies_are_those_of_one_process_that_is_told_the_dealing(roles_of: Roles, folder: Path) -> None:
    """And without staleness the bits are those of rows under ``sync``, dealt alike."""
    write_data(folder / "data.h5")
    for number, roles in enumerate(roles_of(COMM.size), start=COMM.size):
        staleness, lookahead = ((2, 0), (5, 2), (5, 0))[number % 3]
        more = {"topology": roles, "checkpoint": {"every": 8}, "train": {"steps": 12}, "data": AFFINITY}
        config = config_of(folder, None, "rows", "adagrad", **more)
        choice = choosing(EVICT[number % len(EVICT)], 3)
        config = cached(config, staleness, 9, **choice, lookahead=lookahead)
        held_to_one_process(config, (roles, staleness, lookahead, choice), (8, 12))
    config = config_of(folder, None, "rows", **more)
    same_bits(trained(cached(config, 0, 9)), trained(as_rows(config)))


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("policy", ["cached", "sync"])
def test_interrupted_in_a_window_is_uninterrupted(policy: str, folder: Path) -> None:
    """Windows have 40 samples, batches 13: the run is left within its first, and goes on past its end."""
    write_data(folder / "data.h5")
    more = {"checkpoint": {"every": 2}, "train": {"steps": 8}, "data": {**AFFINITY, "window": 5}}
    config = config_of(folder, None, "rows", **more)
    config = config if policy == "sync" else cached(config, 3, 9)
    expected = trained(config)
    expected.pop("losses")
    with open_session(config) as session:
        save_and_leave(session, config, saved=2, left=2)
    same_bits(gone_on(config), expected, policy)


def write_kinds(path: Path, samples: int = 4096) -> None:
    """Three features of 600 ids, of which a sample has those of its kind, one of 12; and one of 5 ids for all kinds."""
    features = [*(Feature(name=f"f{f}", cardinality=600) for f in range(3)), Feature(name="few", cardinality=5)]
    if COMM.rank == 0:
        rng = np.random.default_rng(2)
        kind = rng.integers(0, 12, samples)
        ids = {f"f{f}": Column(50 * kind + np.minimum(rng.geometric(0.08, samples), 50) - 1) for f in range(3)}
        ids["few"] = Column(rng.integers(0, 5, samples))
        label = rng.integers(0, 2, samples).astype(np.float32)
        with Writer(path, features, n_dense=1) as writer:
            writer.append(Columns(label=label, dense=np.zeros((samples, 1), np.float32), sparse=ids))
    COMM.Barrier()


def bytes_of_rows(config: Config) -> int:
    """Of ids, values and gradients, over all ranks."""
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        counted = session.parts.world.total_wire_bytes().sum(axis=1)
    return int(sum(counted[TAGS.index(tag)] for tag in ("ids", "values", "gradients")))


@pytest.mark.parallel([4])
def test_fewer_bytes_cross_where_ids_go_together(folder: Path) -> None:
    """Of skewed ids of 12 kinds, on copies that begin empty: 0.36 fewer under ``sync``, 0.22 under ``cached``."""
    write_kinds(folder / "data.h5")
    every = {f"f{f}": {"shard": "row"} for f in range(3)}
    config = config_for(
        folder,
        data={"chunk": 256, "window": 16, **AFFINITY},
        model={"name": "fm", "pooling": {}, "width": 16},
        embedding={"share": {}, "tables": every},
        exchange={"form": "rows"},
        train={"batch_size": 256, "steps": 32, "dtype": "float32"},
    )
    for name, of_policy, most in (("sync", config, 0.68), ("cached", cached(config, 20), 0.8)):
        found = bytes_of_rows(of_policy) / bytes_of_rows(in_order(of_policy))
        with on_every_rank():
            assert found < most, (name, found)


@pytest.mark.parallel([2, 3])
def test_what_is_not_finite_is_named_where_it_stands(folder: Path) -> None:
    """The sample that was spoilt, which is not where the rank's part would begin by the order."""
    write_data(folder / "data.h5")
    with open_session(config_for(folder, data=AFFINITY)) as session:
        order = session.parts.splits["train"].order
        for step in session.steps():
            if step.number < BAD_STEP:
                step.run()
                continue
            spoil(session, step)
            place = COMM.bcast(None if step.batch is None else step.batch.positions.tolist(), root=COMM.size - 1)
            with pytest.raises(NonFiniteError) as caught:
                step.run()
            break
    first = BAD_STEP * BATCH
    sample = int(order.positions(0, first + place[0], first + place[0] + 1)[0])
    with on_every_rank():
        text = str(caught.value)
        assert f"the {len(place)} samples dealt to this rank of [{first}, {first + BATCH}) of the epoch's" in text
        assert f"1 of them, first {first + place[0]} (sample {sample} of {folder / 'data.h5'}) with loss nan" in text


@pytest.mark.parallel([2])
def test_the_command_trains_and_form_auto_counts_what_comes(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One that goes on with batches in order says that it has other bits."""
    write_data(folder / "data.h5")
    wanted: dict[str, Any] = {
        "data": {"train": str(folder / "data.h5"), "validation": str(folder / "data.h5"), "chunk": 8, "window": 3},
        "model": {"name": "fm", "width": 6},
        "exchange": {"form": "auto", "auto_steps": 2},
        "policy": {"name": "cached", "staleness": 2, "capacity": 1.0},
        "dense": {"reducer": "mpi"},
        "train": {"batch_size": BATCH, "steps": 6},
        "run": {"folder": str(folder / "run"), "tensorboard": False, "progress": False},
    }
    wanted["data"] |= AFFINITY
    assert commands.train(validate(wanted, "test")) == 0
    with on_every_rank():
        assert json.loads((folder / "run" / "summary.json").read_text())["steps"] == 6
        found = predict_memory(validate(wanted, "test"), [0] * COMM.size)[0]
        assert found.terms["dealing"] > PLACE_BYTES
    wanted["data"] |= {"deal": "order"}
    wanted["train"] |= {"steps": 8}
    assert commands.train(validate(wanted, "test")) == 0
    said = COMM.bcast("".join(capfd.readouterr()))
    with on_every_rank():
        assert "resumed from step 6 of 8" in said
        assert "not as before, so not bit for bit: deal was affinity, is order" in said


@pytest.mark.parallel([2])
def test_what_cannot_be_dealt_so_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    with pytest.raises(ConfigError, match=r"data.deal is 'affinity', but dense.codistillation.groups is 2: each group"):
        config_for(folder, data=AFFINITY, train={"batch_size": 14}, dense={"codistillation": {"groups": 2}})
    copied = {table: {"shard": "replicate"} for table in ("user", "item", "tag")}
    with pytest.raises(ConfigError, match=r"data.deal is 'affinity', but every dense rank has all rows of all tables"):
        open_session(config_for(folder, data=AFFINITY, embedding={"tables": copied}))


@pytest.mark.parallel([3])
def test_evaluations_and_predictions_are_by_the_order(folder: Path) -> None:
    write_data(folder / "data.h5")
    data, found = {"validation": str(folder / "data.h5")}, []
    for deal in ("order", "affinity"):
        with open_session(config_for(folder, data={**data, "deal": deal}, train={"steps": 1})) as session:
            mine = [(first, logits.numpy().tolist()) for first, _, logits in session.outputs("validation")]
            found.append((mine, session.evaluate("train")["auc"], results(session).keys()))
    with on_every_rank():
        assert found[0] == found[1]
