"""Groups of dense ranks with embedding tables of their own: as the definition has it, and as runs of their own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.errors import CheckpointError
from hpcrec.training.session import Session
from tests.exchange.test_auto import SEQUENCE, in_sequence
from tests.training import dynamic_runs
from tests.training.runs import finished, gather_tables, write_data
from tests.training.test_codistillation import (
    BATCH,
    FUSED,
    RULES,
    batches_of,
    check,
    check_evaluation,
    config_of,
    cut_data,
    definition_of,
    roles_for,
    same,
)

OWN = {"share_embeddings": False}
NOBODY = {"weight": 0.0, "burn_in_steps": 1000, "every": 50, **OWN}
SHARDS = {
    "user": {"shard": "row"},
    "item": {"shard": "column", "optimizer": {"name": "rowwise_adagrad", "lr": 0.1}},
    "tag": {"shard": "replicate", "optimizer": {"name": "adam", "lr": 0.01}},
}
CASES: dict[str, dict[str, Any]] = {
    "pooled": {"exchange": {"form": "pooled", "ids": "read"}, "embedding": {"tables": SHARDS}},
    "partial": {"model": {"name": "deepfm"}, "exchange": {"form": "partial"}, "dense": {"clip_norm": 0.2}},
    "rows": {"exchange": {"form": "rows", "prefetch": 0}, "embedding": {"tables": SHARDS}},
    "auto": {"model": {"name": "wide_deep"}, "exchange": {"form": "auto", "auto_steps": 1}},
    "max": {
        "model": {"pooling": {"history": "max"}},
        "exchange": {"form": "auto", "forms": {"user": "rows"}, "auto_steps": 1, "ids": "read"},
    },
}
SPLIT = {"mode": "split"}
TRIED: dict[int, list[tuple[str, dict[str, Any], int]]] = {  # by ranks: case, roles, groups
    2: [("pooled", FUSED, 2), ("partial", FUSED, 2), ("rows", FUSED, 2), ("auto", FUSED, 2), ("max", FUSED, 2)],
    3: [("partial", FUSED, 3), ("pooled", {**SPLIT, "owners": 1, "dense": 2}, 2)],
    4: [("pooled", SPLIT, 2), ("rows", {**SPLIT, "owners": [1, 2], "dense": 4}, 2), ("auto", FUSED, 4)],
}


@pytest.mark.parallel([2, 3, 4])
def test_learns_as_the_definition_does(folder: Path) -> None:
    write_data(folder / "data.h5")
    for case, roles, groups in TRIED[MPI.COMM_WORLD.size]:
        check(folder, groups, rules=OWN, topology=roles, **CASES[case])


@pytest.mark.parallel([2])
def test_a_choice_changes_no_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever forms are chosen, and whichever tables every dense rank has a copy of: of each group's."""
    write_data(folder / "data.h5")
    in_sequence(monkeypatch)
    for _ in SEQUENCE:
        check(folder, 2, rules=OWN, model={"name": "deepfm"}, exchange={"form": "auto", "auto_steps": 1})


def tables_of(session: Session) -> dict[str, np.ndarray]:
    """Rows of all tables of all groups, of dynamic ones in order of ids, and these; on every rank."""
    if all(table.dynamic is None for table in session.parts.tables.values()):
        return gather_tables(session)
    found = {}
    for name, rows in dynamic_runs.learned(session).items():
        found[name], found[f"{name} has"] = np.array([rows[i] for i in sorted(rows)]), np.array(sorted(rows))
    return found


def learned(session: Session) -> dict[str, np.ndarray]:
    """What the first group's tables and dense parameters are; on every rank."""
    model = session.gather_model()
    mine = {} if model is None else {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    tables = {name: rows for name, rows in tables_of(session).items() if "@" not in name}
    return tables | dict(session.parts.world.main.bcast(mine, root=session.topology.dense[0]))


ALONE: dict[str, dict[str, Any]] = {
    "declared": {
        "embedding": {"tables": {**SHARDS, "user": {"hashed": True, "rows": 17}}},
        "dense": {"clip_norm": 0.3},
    },
    "dynamic": {
        "model": {"name": "deepfm"},
        "exchange": {"form": "partial", "ids": "read"},
        "embedding": {"tables": {t: {"dynamic": {"capacity": 12, "evict": "lru"}} for t in dynamic_runs.TABLES}},
    },
    "thresholded": {
        "exchange": {"codec": "dct", "dct": {"threshold": "feature", "density": 0.3, "every": 3, "values": "fp32"}},
        "dense": {"compression": "dct", "dct": {"density": 0.1, "every": 4, "values": "fp32"}},
        "train": {"dtype": "float32"},
    },
}


@pytest.mark.parallel([2])
@pytest.mark.parametrize("case", ALONE)
def test_groups_who_do_not_learn_from_each_other_are_runs_of_their_own(folder: Path, case: str) -> None:
    """The first as one without groups on the first half of the data, with half the batch."""
    wanted = ALONE[case]
    (dynamic_runs.write_data if case == "dynamic" else write_data)(folder / "data.h5")
    config = config_of(folder, 2, NOBODY, **wanted)
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        found, each = learned(session), session.parts.splits["train"].dataset.samples // 2
    cut_data(folder / "data.h5", folder / "half" / "data.h5", 0, each)
    alone = {"topology": {"mode": "split", "owners": [0, 1], "dense": [0]}}
    train = {**wanted.get("train", {}), "batch_size": BATCH // 2}
    with open_session(config_of(folder / "half", 1, **{**wanted, **alone, "train": train})) as session:
        for step in session.steps():
            step.run()
        theirs = learned(session)
    allowed = 1e-12 if case != "thresholded" else 1e-6
    off = {
        n: float(np.abs(found[n] - x).max()) if found[n].shape == x.shape else found[n].shape for n, x in theirs.items()
    }
    wrong = {n: by for n, by in off.items() if not (isinstance(by, float) and by <= allowed)}
    parallel_assert(found.keys() == theirs.keys() and not wrong, msg=f"{sorted(found)} {sorted(theirs)} {wrong}")


@pytest.mark.parallel([2])
def test_dynamic_tables_learn_as_declared_ones_do(folder: Path) -> None:
    """Where rows begin as zeros, which is what an id without a row is answered with."""
    write_data(folder / "data.h5")
    found = []
    for tables in ({}, {t: {"dynamic": {"capacity": 400}} for t in dynamic_runs.TABLES}):
        embedding = {"init_scale": 1e-300, "tables": tables}
        config = config_of(folder, 2, OWN, model={"name": "wide_deep"}, embedding=embedding)
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            found.append((dynamic_runs.learned(session), everything_dense(session)))
    (declared, theirs), (dynamic, mine) = found
    rows_off = {
        t: max(np.abs(row - declared[t][i]).max() for i, row in rows.items()) for t, rows in dynamic.items() if rows
    }
    dense_off = {n: np.abs(mine[n] - x).max() for n, x in theirs.items()}
    learned_in = {t: len(rows) for t, rows in dynamic.items()}
    parallel_assert(max(rows_off.values()) < 1e-11 and max(dense_off.values()) < 1e-12, msg=f"{rows_off} {dense_off}")
    parallel_assert(all(learned_in[t] and learned_in[f"{t}@1"] for t in ("user", "item")), msg=str(learned_in))


def everything_dense(session: Session) -> dict[str, np.ndarray]:
    return {} if session.model is None else {n: p.detach().numpy().copy() for n, p in session.model.named_parameters()}


def everything(session: Session) -> dict[str, np.ndarray]:
    """All tables of all groups, the parameters of this rank's, and what it has of the others."""
    found = tables_of(session) | everything_dense(session)
    codistillation = None if session.parts.dense is None else session.parts.dense.codistillation
    if codistillation is not None and codistillation.taken:
        others = [g for g in range(session.topology.groups) if g != session.topology.group]
        found |= {f"{g} {n}": v for g in others for n, v in codistillation.snapshot(g).items()}
    return found


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_resumed_equals_uninterrupted_bit_for_bit(folder: Path) -> None:
    """Stopped in the burn-in, and between two exchanges, with thresholds and ids of each group's own."""
    dynamic_runs.write_data(folder / "data.h5")
    tables = {t: {"dynamic": {"capacity": 12, "evict": "lfu"}} for t in dynamic_runs.TABLES}
    config = config_of(
        folder,
        MPI.COMM_WORLD.size,
        OWN,
        exchange={
            "form": "auto",
            "auto_steps": 1,
            "codec": "dct",
            "dct": {"threshold": "feature", "density": 0.3, "every": 3},
        },
        embedding={"tables": tables},
        dense={"compression": "dct", "dct": {"density": 0.1, "every": 4, "values": "bf16"}},
        train={"dtype": "float32"},
    )
    learned = finished(config, everything)
    for stop_at in (2, 7):
        finished(config, everything, stop_at)
        parallel_assert(same(finished(config, everything, resume=True), learned), msg=str(stop_at))


def bytes_by_step(config: Config) -> list[dict[str, int]]:
    with open_session(config) as session:
        found, before = [], session.parts.world.total_wire_bytes().sum(axis=1)
        for step in session.steps():
            step.run()
            now = session.parts.world.total_wire_bytes().sum(axis=1)
            found.append(dict(zip(TAGS, (now - before).tolist(), strict=True)))
            session.evaluate("validation", 1)
            before = session.parts.world.total_wire_bytes().sum(axis=1)
    return found


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_bytes_are_those_of_the_formula(folder: Path) -> None:
    """Of shared tables in the burn-in; then as many ids and values as there are groups; gradients are the same."""
    write_data(folder / "data.h5")
    data, groups = {"validation": str(folder / "data.h5")}, MPI.COMM_WORLD.size
    for form in ("pooled", "rows", "partial") if groups == 2 else ("partial",):
        wanted = {"model": {"name": "deepfm"}, "exchange": {"form": form, "prefetch": 0}, "data": data}
        shared = bytes_by_step(config_of(folder, groups, **wanted))
        own = bytes_by_step(config_of(folder, groups, OWN, **wanted))
        for step, (with_all, with_own) in enumerate(zip(shared, own, strict=True)):
            lookups = groups if step >= RULES["burn_in_steps"] else 1
            expected = {tag: n * (lookups if tag in ("ids", "values") else 1) for tag, n in with_all.items()}
            found = {tag: with_own[tag] for tag in expected}
            del expected["control"], found["control"]
            parallel_assert(found == expected, msg=f"{form} {step}: {found} {expected}")
            parallel_assert(with_own["ids"] > 0 and with_own["values"] > 0)


@pytest.mark.parallel([2, 4])
def test_evaluations_are_of_all_groups_each_with_its_tables(folder: Path) -> None:
    write_data(folder / "data.h5")
    roles, groups = roles_for(MPI.COMM_WORLD.size)[-1]
    data = {"validation": str(folder / "data.h5")}
    config = config_of(folder, groups, OWN, topology=roles, model={"name": "deepfm"}, data=data)
    with open_session(config) as session:
        oracle, batches = definition_of(session, config), batches_of(session, session.total_steps)
        for step in session.steps():
            step.run()
            oracle.step(batches[step.number], step.number)
            if step.number in (1, 5):
                check_evaluation(session, oracle, session.evaluate("validation"))
        again = finished(config, everything)
        parallel_assert(same(everything(session), again))


@pytest.mark.parallel([2])
def test_a_run_is_read_by_the_first_group_and_resumed_by_all(folder: Path) -> None:
    write_data(folder / "data.h5")
    data = {"validation": str(folder / "data.h5")}
    config = config_of(folder, 2, OWN, data=data, train={"eval_every": 4, "dtype": "float32"})
    assert commands.train(config) == 0
    summary = json.loads((folder / "run/summary.json").read_text())
    found = summary["eval"]
    assert found["auc"] == found["group_auc"][0] and len(found["group_auc"]) == 2
    assert summary["topology"]["own_tables"]
    again = commands.evaluate(config)
    assert again["auc"] == pytest.approx(found["auc"], abs=1e-6) and "group_auc" not in again
    assert commands.predict(config, data=str(folder / "data.h5"), out=folder / "out.h5", checkpoint="last") == 70
    with open_session(config_of(folder, 2, train={"dtype": "float32"})) as session:
        last = find_checkpoint(folder / "run", "last", session.parts.world.main)
        said = r"was written with dense.codistillation.share_embeddings = False, this run has True"
        with pytest.raises(CheckpointError, match=said):
            state.load(session, last, resume=True)
    with open_session(config) as session:
        state.load(session, last, resume=True)
        names = {name.partition("@")[2] for name in gather_tables(session)}
    assert names == {"", "1"}
