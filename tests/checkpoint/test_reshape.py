"""Equivalence 7 on other ranks: a run saved on some ranks, roles, shards, forms and store goes on on others.

What follows equals the uninterrupted run within the order of summation. A world cannot change its size, so runs are on
the first ranks of the test's world, on a communicator of their own.
"""

import itertools
import random
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.build import session as build
from hpcrec.checkpoint import deal, state
from hpcrec.checkpoint.checkpoint import Checkpoint, TableBlock, find_checkpoint
from hpcrec.checkpoint.stretch import Stretch
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.dense.optimizer import optimizer_state
from hpcrec.errors import CheckpointError
from hpcrec.training.session import Session
from tests.training import dynamic_runs
from tests.training.runs import config_for, write_data

Learned = dict[str, Any]  # by name: arrays, and the list of losses
Sections = dict[str, dict[str, Any]]
Start = Callable[..., Learned]
TABLES = ("user", "item", "tag")
TOLERANCE = 1e-12  # of the largest value, in float64
STEPS, STOP_AT = 8, 5  # of 6 batches an epoch


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Start:
    """Runs sections of a configuration on so many ranks, with what was learned on all ranks of the test."""

    def run(ranks: int, sections: Sections, *, stop_at: int | None = None, resume: bool = False) -> Learned:
        world = MPI.COMM_WORLD
        some = world.Split(int(world.rank >= ranks))
        found: Learned | Exception | None = None
        if world.rank < ranks:
            monkeypatch.setattr(build, "World", lambda _, *args, **options: World(some, *args, **options))
            try:
                found = finish(config_of(folder, sections), stop_at=stop_at, resume=resume)
            except Exception as error:  # of all ranks of the run together; those beside wait for it
                traceback.print_exc()
                found = error
        some.Free()
        found = world.bcast(found)
        if isinstance(found, Exception):
            raise found
        assert found is not None
        return found

    return run


def config_of(folder: Path, sections: Sections) -> Config:
    train = {"batch_size": 13, "dtype": "float64", "steps": STEPS, **sections.get("train", {})}
    return config_for(folder, **{**sections, "train": train})


def finish(config: Config, *, stop_at: int | None = None, resume: bool = False) -> Learned:
    """Runs to the end, or to ``stop_at`` where it saves; what was learned, whole, on rank 0."""
    run, losses = Path(config.run.folder), []
    with build.open_session(config) as session:
        main = session.parts.world.main
        if resume:
            state.load(session, find_checkpoint(run, "last", main), resume=True)
        for step in session.steps():
            losses.append(float(main.allreduce(np.array([step.run()]))[0]))
            if session.step == stop_at:
                state.save(session, run, {})
                break
        return {**dense_of(session), **rows_of(session), "losses": losses}


def rows_of(session: Session) -> Learned:
    """Ids, rows and optimizer states of all tables, by id; copies must agree."""
    store, mine = session.parts.store, {}
    for table in () if store is None else store.tables:
        columns = store.place(table)[1].columns
        mine[table] = [(i.copy(), {"rows": r.copy()} | states, columns) for i, r, states in store.export(table)]
    out: Learned = {}
    everyone = session.parts.world.main.allgather(mine)
    for table, spec in session.parts.tables.items():
        blocks = [block for theirs in everyone for block in theirs.get(table, ())]
        ids = np.unique(np.concatenate([block[0] for block in blocks]))
        out[f"{table}.ids"] = ids
        for own, values, (start, stop) in blocks:
            for name, some in values.items():
                shape = (len(ids), spec.width)[: some.ndim]
                whole = out.setdefault(f"{table}.{name}", np.full(shape, np.nan))
                at = np.searchsorted(ids, own)
                place = (at, slice(start, stop)) if some.ndim == 2 else at
                assert (np.isnan(whole[place]) | (whole[place] == some)).all(), f"{table}.{name}: holders differ"
                whole[place] = some
        assert not any(np.isnan(out[f"{table}.{name}"]).any() for name in blocks[0][1]), table
    return out


def dense_of(session: Session) -> Learned:
    """Dense parameters and their optimizer's state, whoever trains them."""
    away = session.parts.slices.gather() if session.parts.slices.away else {}
    model, found = session.gather_model(), {}
    if model is not None:
        dense = session.parts.dense
        found = {n: p.detach().cpu().numpy().copy() for n, p in model.named_parameters()}
        for name, states in {**optimizer_state(dense.optimizer, dense.trained), **away}.items():
            found |= {f"{name}.{k}": torch.as_tensor(v).cpu().numpy().copy() for k, v in states.items()}
    return dict(session.parts.world.main.bcast(found, root=session.topology.dense[0]))


def compare(found: Learned, wanted: Learned, said: Any) -> None:
    assert found.keys() == wanted.keys(), said
    for name, values in wanted.items():
        np.testing.assert_allclose(
            found[name], values, rtol=0, atol=TOLERANCE * max(1.0, np.abs(values).max()), err_msg=f"{said}: {name}"
        )


def goes_on(start: Start, before: tuple[int, Sections], after: tuple[int, Sections], whole: Learned) -> None:
    """Saved on one, gone on with on the other: ``whole`` is what is learned without a stop."""
    first = start(*before, stop_at=STOP_AT)
    again = start(*after, resume=True)
    compare({**again, "losses": first["losses"] + again["losses"]}, whole, (before, after))


def sharded(shard: str, **further: dict[str, Any]) -> Sections:
    embedding = {"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}, "tables": {t: {"shard": shard} for t in TABLES}}
    return {"embedding": embedding, "model": {"name": "deepfm"}, **further}


FUSED, HALVES = {"mode": "fused"}, {"mode": "split"}


@pytest.mark.parallel([4])
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("rowwise_adagrad", marks=pytest.mark.slow)])
def test_other_ranks_and_roles(folder: Path, start: Start, optimizer: str) -> None:
    """1 to 4, 4 to 1, 3 to 2 fused; 2 owners and 2 dense ranks to 4 fused, and back."""
    write_data(folder / "data.h5")
    sections: Sections = {
        "model": {"name": "deepfm"},
        "embedding": {"optimizer": {"name": optimizer, "lr": 0.1}, "tables": {"item": {"shard": "column"}}},
        "dense": {"optimizer": {"name": "Adam"}, "clip_norm": 0.5},
        "schedule": {"kind": "cosine", "warmup_steps": 2},
    }
    shapes = {
        name: (ranks, {**sections, "topology": roles})
        for name, ranks, roles in (
            ("1", 1, FUSED),
            ("2", 2, FUSED),
            ("3", 3, FUSED),
            ("4", 4, FUSED),
            ("2 + 2", 4, HALVES),
            ("1 + 2", 3, {"mode": "split", "owners": 1}),
        )
    }
    whole = start(*shapes["1"])
    pairs = (("1", "4"), ("4", "1"), ("3", "2"), ("2 + 2", "4"), ("4", "2 + 2"), ("2 + 2", "1"), ("2", "1 + 2"))
    for before, after in pairs:
        goes_on(start, shapes[before], shapes[after], whole)


@pytest.mark.parallel([3])
@pytest.mark.parametrize(
    "optimizer",
    ["adam", "rowwise_adagrad", *(pytest.param(name, marks=pytest.mark.slow) for name in ("adagrad", "sgd"))],
)
def test_other_shards(folder: Path, start: Start, optimizer: str) -> None:
    """Table-wise to row-wise to column-wise to copies and back, on other ranks too."""
    write_data(folder / "data.h5")
    kinds = ("table", "row", "column", "replicate", "table")
    shapes = []
    for kind in kinds:
        sections = sharded(kind)
        sections["embedding"]["optimizer"] = {"name": optimizer, "lr": 0.1}
        shapes.append(sections)
    whole = start(3, shapes[0])
    for number, (before, after) in enumerate(itertools.pairwise(shapes)):
        goes_on(start, (3 - number % 2, before), (2 + number % 2, after), whole)


@pytest.mark.parallel([3])
@pytest.mark.parametrize("model", ["deepfm", pytest.param("fm", marks=pytest.mark.slow)])
def test_other_exchanges(folder: Path, start: Start, model: str) -> None:
    """Pooled to rows to partial to auto and back: owners train slices of dense parameters under some of them."""
    write_data(folder / "data.h5")
    forms: tuple[dict[str, Any], ...] = (
        {"form": "pooled"},
        {"form": "rows"},
        {"form": "partial"},
        {"form": "auto", "auto_steps": 1},
        {"form": "partial", "ids": "read"},
        {"form": "pooled"},
    )
    sections: Sections = {"model": {"name": model}, "dense": {"optimizer": {"name": "Adam"}}}
    shapes = [{**sections, "exchange": form} for form in forms]
    whole = start(3, shapes[0])
    for number, (before, after) in enumerate(itertools.pairwise(shapes)):
        goes_on(start, (3 - number % 2, before), (2 + number % 2, after), whole)


@pytest.mark.parallel([2])
def test_another_store(folder: Path, start: Start) -> None:
    """Main memory to a device's, all of it or as a cache, and back, on another number of ranks."""
    write_data(folder / "data.h5")
    there = {"name": "gpu", "device": "emulated"}
    stores: tuple[dict[str, Any], ...] = ({}, there, {**there, "memory_bytes": 1}, {})
    shapes = [sharded("auto", store=store) for store in stores]
    whole = start(1, shapes[0])
    for number, (before, after) in enumerate(itertools.pairwise(shapes)):
        goes_on(start, (1 + number % 2, before), (2 - number % 2, after), whole)


@pytest.mark.parallel([2, 3])
def test_a_read_that_fails_on_one_rank_ends_loading_on_all(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5")
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    start(size, sharded("row"), stop_at=STOP_AT)
    original, reads = Checkpoint.block, []

    def failing(checkpoint: Checkpoint, stretch: Stretch) -> TableBlock:
        reads.append(stretch)
        if (rank, len(reads)) == (size - 1, 2):
            raise CheckpointError("the disk is gone")
        return original(checkpoint, stretch)

    monkeypatch.setattr(Checkpoint, "block", failing)
    monkeypatch.setattr(deal, "_LEAST_ROWS", 2)
    monkeypatch.setattr(deal, "BLOCK_ROWS", 2)
    with pytest.raises(CheckpointError, match="the disk is gone"):  # rank 0's, which is not the one
        start(size, sharded("row"), resume=True)
    assert 2 <= len(reads) <= 3  # one ahead
    assert not [thread.name for thread in threading.enumerate() if thread.name == "hpcrec-prefetch"]


@pytest.mark.parallel([4])
def test_dynamic_tables(folder: Path, start: Start) -> None:
    """With room for all ids on any owner; where ids wait for a row, and lose it, too."""
    dynamic_runs.write_data(folder / "data.h5")
    rules = {"capacity": 4000, "evict": "lfu", "admit_from": 2}
    embedding = {"optimizer": {"name": "adam", "lr": 0.1}, "tables": {t: {"dynamic": rules} for t in TABLES}}
    sections: Sections = {"embedding": embedding, "model": {"name": "deepfm"}}
    whole = start(1, sections)
    for before, after, roles in ((1, 4, FUSED), (4, 1, FUSED), (3, 2, FUSED), (4, 4, HALVES), (2, 3, HALVES)):
        goes_on(start, (before, sections), (after, {**sections, "topology": roles}), whole)


@pytest.mark.parallel([4])
def test_groups_of_other_sizes(folder: Path, start: Start) -> None:
    """Two groups that distil from each other have one dense rank each, then two; another number of groups is none."""
    write_data(folder / "data.h5")
    groups = {"groups": 2, "weight": 0.3, "burn_in_steps": 2, "every": 3}
    two: Sections = {"dense": {"codistillation": groups}, "train": {"batch_size": 12}}
    whole = start(2, two)
    goes_on(start, (2, two), (4, two), whole)
    goes_on(start, (4, two), (2, two), whole)
    with pytest.raises(CheckpointError, match=r"dense\.codistillation\.groups = 2, this run has 1"):
        start(4, {"train": {"batch_size": 12}}, resume=True)


# ---- random shapes ---------------------------------------------------------------------------------------------------


def random_shape(draw: random.Random, fixed: Sections, *, dynamic: bool) -> tuple[int, Sections]:
    """Ranks, roles, shards, forms and store by chance."""
    ranks = draw.randint(1, MPI.COMM_WORLD.size)
    roles: dict[str, Any] = FUSED
    if ranks > 1 and draw.random() < 0.6:
        owners = sorted(draw.sample(range(ranks), draw.randint(1, ranks)))
        rest = set(range(ranks)) - set(owners)
        roles = {"mode": "split", "owners": owners, "dense": sorted(rest | {draw.randrange(ranks)})}
    form = draw.choice(("pooled", "rows", "partial", "auto"))
    exchange = {"form": form, "ids": draw.choice(("routed", "read"))}
    if form == "auto":
        exchange |= {"auto_steps": 1, "auto_copies": draw.choice((0, 4000))}
    shards = ("auto", "table", "row") if dynamic else ("auto", "table", "row", "column", "replicate")
    if form != "pooled":
        shards = shards[: 3 if dynamic else 4]
    tables = {t: {**fixed["embedding"]["tables"].get(t, {}), "shard": draw.choice(shards)} for t in TABLES}
    store = draw.choice(({}, {}, {"name": "gpu", "device": "emulated"}))
    embedding = {**fixed["embedding"], "tables": tables}
    return ranks, {**fixed, "topology": roles, "exchange": exchange, "embedding": embedding, "store": store}


def check_random(folder: Path, start: Start, seed: int) -> None:
    draw = random.Random(seed)
    dynamic = draw.random() < 0.25
    (dynamic_runs.write_data if dynamic else write_data)(folder / "data.h5")
    rules = {"dynamic": {"capacity": 4000, "evict": draw.choice(("lru", "lfu"))}} if dynamic else {}
    optimizer = draw.choice(("sgd", "adagrad", "rowwise_adagrad", "adam"))
    fixed: Sections = {
        "model": {
            "name": draw.choice(("dlrm", "deepfm", "dcn", "fm", "wide_deep", "lr")),
            "pooling": {"history": draw.choice(("sum", "mean", "max"))},
        },
        "embedding": {"optimizer": {"name": optimizer, "lr": 0.1}, "tables": dict.fromkeys(TABLES, rules)},
        "dense": {"optimizer": {"name": draw.choice(("SGD", "Adam"))}},
    }
    shapes = [random_shape(draw, fixed, dynamic=dynamic) for _ in range(3)]
    whole = start(*shapes[0])
    for before, after in itertools.pairwise(shapes):
        goes_on(start, before, after, whole)


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_random_shapes(folder: Path, start: Start, seed: int) -> None:
    check_random(folder, start, 10 * seed + MPI.COMM_WORLD.size)


@pytest.mark.slow
@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("seed", range(40))
def test_many_random_shapes(folder: Path, start: Start, seed: int) -> None:
    check_random(folder, start, 1000 + 10 * seed + MPI.COMM_WORLD.size)
