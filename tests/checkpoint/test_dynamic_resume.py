"""Dynamic tables saved and gone on with: bit for bit on the same ranks, on other owners; read by commands; refused."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.checkpoint.dynamic_state import figures
from hpcrec.config import Config
from hpcrec.embedding.dynamic import DynamicRows, IdState
from hpcrec.embedding.shards import Family
from hpcrec.errors import CheckpointError
from hpcrec.types import Dynamic
from tests.checkpoint.tools.made import fingerprint
from tests.training.dynamic_runs import TABLES, dynamic_config, learned, write_data
from tests.training.runs import config_for, gather_tables
from tests.training.runs import write_data as write_declared
from tests.training.test_dynamic import RULES
from tests.training.test_equivalence import FORMS, OPTIMIZERS, Roles, few_or_all_roles, roles_for, shared_out


def finish(config: Config, *, stop_at: int | None = None, resume: bool = False) -> dict[str, Any]:
    """Runs to the end, or to ``stop_at`` where it saves; what was learned, and the losses on the way."""
    run, losses = Path(config.run.folder), []
    with open_session(config) as session:
        main = session.parts.world.main
        if resume:
            state.load(session, find_checkpoint(run, "last", main), resume=True)
        for step in session.steps():
            losses.append(float(main.allreduce(np.array([step.run()]))[0]))
            if session.step == stop_at:
                state.save(session, run, {})
                break
        counted = {t: {n: v for n, v in f.items() if n != "map_bytes"} for t, f in figures(session).items()}
        states: dict[str, dict[int, Any]] = {}
        for table in () if session.parts.store is None else session.parts.store.tables:
            for ids, _, found in session.parts.store.export(table):
                for name, values in found.items():
                    rows = {int(i): v.tolist() for i, v in zip(ids, values, strict=True)}
                    states.setdefault(f"{table}.{name}", {}).update(rows)
        rows = {t: {i: row.tolist() for i, row in known.items()} for t, known in learned(session).items()}
        return {"losses": losses, "rows": rows, "states": states, "figures": counted}


@pytest.mark.parallel([1, 2, 3, 4])
def test_resumed_equals_uninterrupted(folder: Path) -> None:
    write_data(folder / "data.h5")
    turns = (roles_for(MPI.COMM_WORLD.size), FORMS, OPTIMIZERS)
    cases = list(enumerate(zip(RULES, *map(itertools.cycle, turns), strict=False)))
    for number, (rules, roles, form, optimizer) in shared_out(cases):
        config = dynamic_config(
            folder,
            rules,
            topology=roles,
            model={"name": "deepfm", "options": {"dropout": 0.2}},
            exchange={"form": form},
            embedding={
                "optimizer": {"name": optimizer, "lr": 0.1},
                "tables": {t: {"dynamic": rules} for t in TABLES},
                "share": {"history": "item"},
            },
            dense={"optimizer": {"name": "Adam"}},
            train={"batch_size": 13, "dtype": "float32", "steps": 9},
            run={"folder": str(folder / f"run{number}")},
        )
        whole = finish(config)
        first = finish(config, stop_at=4)
        again = finish(config, resume=True)
        assert first["losses"] + again["losses"] == whole["losses"], rules
        for what in ("rows", "states", "figures"):
            assert again[what] == whole[what], (rules, what)


@few_or_all_roles
@pytest.mark.parallel([2, 3, 4])
def test_other_owners_go_on(folder: Path, roles_of: Roles) -> None:
    """With room for all ids, whoever had them; then a table without room for what one owner had."""
    write_data(folder / "data.h5")
    roles = roles_of(MPI.COMM_WORLD.size)
    train = {"batch_size": 13, "dtype": "float64", "steps": 7}
    rules = {"capacity": 4000, "evict": "lfu", "admit_from": 2}
    configs = [dynamic_config(folder, rules, topology=r, train=train) for r in roles]
    whole = finish(configs[0])
    for before, after in itertools.pairwise([*configs, configs[0]]):
        finish(before, stop_at=3)
        again = finish(after, resume=True)
        np.testing.assert_allclose(again["losses"], whole["losses"][3:], rtol=0, atol=1e-12)
        assert again["figures"] == whole["figures"]
        for table, rows in whole["rows"].items():
            assert again["rows"][table].keys() == rows.keys()
            for i, row in rows.items():
                np.testing.assert_allclose(again["rows"][table][i], row, rtol=0, atol=1e-11)


@pytest.mark.parallel([1, 2, 4])
def test_a_full_table_is_read_by_any_ranks_and_gone_on_with_where_there_is_room(folder: Path) -> None:
    write_data(folder / "data.h5")
    size = MPI.COMM_WORLD.size
    sections: dict[str, Any] = {
        "data": {"test": str(folder / "data.h5"), "validation": str(folder / "data.h5")},
        "train": {"batch_size": 13, "steps": 6, "log_every": 2},
        "checkpoint": {"keep_best": False},
    }
    rules = {"capacity": 24}
    tables = {t: {"dynamic": rules, "shard": "table"} for t in TABLES}
    config = dynamic_config(folder, embedding={"tables": tables, "share": {"history": "item"}}, **sections)
    commands.train(config)
    summary = json.loads((folder / "run" / "summary.json").read_text())
    found = summary["dynamic_tables"]
    assert found["user"]["rows"] == 24 == found["user"]["capacity"] and found["user"]["refused"] > 0
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 6 and [x["user.rows"] for x in lines if "user.rows" in x][-1] == 24
    assert (
        "dynamic: user" in (folder / "run" / "report.html").read_text()
        or "rows in use" in (folder / "run" / "report.html").read_text()
    )
    dealt = dynamic_config(folder, rules, **sections)  # to all ranks: some may be asked for more than their share
    evaluated = commands.evaluate(dealt, checkpoint="last")
    assert evaluated["logloss"] == pytest.approx(summary["eval"]["logloss"], abs=1e-6)
    for kind, wanted in ((config, 24), (dealt, 24 * size)):
        with open_session(kind, reading=True) as session:
            assert session.parts.tables["user"].rows == wanted
            for name, own in {} if session.parts.store is None else session.parts.store.dynamic.items():
                assert own.spare == 24, f"{name}: room for all rows, and no more"
    if size > 1:
        with pytest.raises(CheckpointError, match=r"ids of the checkpoint .* has room for .*dynamic\.capacity"):
            commands.train(dynamic_config(folder, rules, **{**sections, "train": {**sections["train"], "steps": 8}}))


def rewrite(checkpoint: Path, name: str, change: Any) -> None:
    """Changes a file of a checkpoint, and its fingerprint in the manifest."""
    with h5py.File(checkpoint / name, "r+") as file:
        change(file)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"][name] = fingerprint(checkpoint / name)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def twice(file: h5py.File) -> None:
    file["ids"][1] = file["ids"][0]


def shorter(file: h5py.File) -> None:
    counts = file["admission/counts"][1:]
    del file["admission/counts"]
    file["admission/counts"] = counts


def later(file: h5py.File) -> None:
    file["admission/clocks"][0] = 99


def negative(file: h5py.File) -> None:
    file["admission"].attrs["evicted"] = -1


def half(file: h5py.File) -> None:
    del file["admission/clocks"]


def narrow(file: h5py.File) -> None:
    file.attrs["column_stop"] = 1


@pytest.mark.parallel([1])
def test_what_does_not_fit_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = dynamic_config(folder, {"capacity": 40, "evict": "lru"}, model={"name": "deepfm"})
    for table, change, says in (
        ("user", twice, "there twice"),
        ("user", shorter, "admission/counts is int64"),
        ("user", later, r"clocks\[\d+\] is 99"),
        ("user", negative, "'evicted': -1"),
        ("user", half, "admission has counts"),
        ("user", narrow, "has not all columns"),
        ("user.wide", twice, "'user.wide' has not one row for each id of 'user'"),
    ):
        finish(config, stop_at=3)
        rewrite(folder / "run" / "checkpoints" / "step-3", f"{table}/part-0.h5", change)
        with pytest.raises(CheckpointError, match=says):
            finish(config, resume=True)
    finish(config, stop_at=3)
    tables = {t: {"rows": 50, "hashed": True} for t in TABLES}
    hashed = config_for(folder, model={"name": "deepfm"}, embedding={"tables": tables})
    with pytest.raises(
        CheckpointError, match=r"table '.*' is dynamic: its ids are any numbers, not one for each of the 50"
    ):
        finish(hashed, resume=True)


@pytest.mark.parallel([1])
def test_row_numbers_that_are_hashes_are_not_taken_for_ids(folder: Path) -> None:
    write_declared(folder / "data.h5")
    hashed, plain, dynamic = {"rows": 60, "hashed": True}, {"rows": 60}, {"dynamic": {"capacity": 500}}

    def config(user: dict[str, Any]) -> Config:
        return config_for(folder, embedding={"tables": {"user": user}}, train={"steps": 3})

    for saved, wanted, says in (
        (hashed, dynamic, r"table 'user\S*' is hashed: .*rows = 60 and \S+hashed = true in place of dynamic"),
        (hashed, plain, r"table 'user\S*' is hashed: its row numbers are hashes"),
        (plain, hashed, r"table 'user\S*' is not hashed: .* Remove embedding\.tables\.user\S*\.hashed"),
    ):
        finish(config(saved), stop_at=2)
        with pytest.raises(CheckpointError, match=says):
            finish(config(wanted), resume=True)
    finish(config(hashed), stop_at=2)
    for path in (folder / "run" / "checkpoints" / "step-2").glob("user*/part-*.h5"):
        rewrite(path.parents[1], f"{path.parent.name}/{path.name}", lambda file: file.attrs.__delitem__("hashed"))
    assert len(finish(config(hashed), resume=True)["losses"]) == 1  # nothing is said: taken as it is wanted


@pytest.mark.parallel([1, 2, 3])
def test_a_declared_table_goes_on_as_a_dynamic_one(folder: Path) -> None:
    """Its ids are ids, whatever way it was cut."""
    write_declared(folder / "data.h5")
    train = {"batch_size": 13, "dtype": "float64", "steps": 7}
    for shard in ("table", "column", "row")[MPI.COMM_WORLD.size - 1 :: 3]:
        declared = config_for(folder, train=train, embedding={"tables": {t: {"shard": shard} for t in TABLES}})
        with open_session(declared) as session:
            for step in session.steps():
                step.run()
                if session.step == 4:
                    state.save(session, folder / "run", {})
            wanted = gather_tables(session)
        found = finish(
            config_for(folder, train=train, embedding={"tables": {t: {"dynamic": {"capacity": 900}} for t in TABLES}}),
            resume=True,
        )
        for table, rows in wanted.items():
            assert sorted(found["rows"][table]) == list(range(len(rows)))
            for i, row in found["rows"][table].items():
                np.testing.assert_allclose(row, rows[i], rtol=0, atol=1e-11, err_msg=table)


def held(part: int, parts: int, capacity: int, rules: Dynamic) -> DynamicRows:
    holders = tuple(range(parts))
    family = Family(
        name="t",
        rows=capacity,
        hashed=False,
        tables=("t",),
        features=("t",),
        kind="row",
        holders=holders,
        dynamic=rules,
    )
    return DynamicRows(family, part)


@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_parts_are_joined_in_the_order_in_which_ids_go(evict: str) -> None:
    """Three owners' ids at one with less room: those that would have gone first have gone."""
    rules = Dynamic(evict=evict, admit_from=2, seed=5)
    rng = np.random.default_rng(0)
    owners = [held(part, 3, 90, rules) for part in range(3)]
    uses: dict[int, list[int]] = {}
    for step in range(30):
        ids = np.unique(rng.integers(-40, 40, 12))
        for owner in owners:
            owner.admit(ids[owner.mine(ids)])
        for i in ids.tolist():
            uses.setdefault(i, []).append(step)
    states = [owner.save() for owner in owners]
    joined = IdState(
        *(np.concatenate([getattr(s, name) for s in states]) for name in IdState._fields[:7]), clock=30, evicted=7
    )
    assert sorted(joined.ids.tolist()) == sorted(i for i, steps in uses.items() if len(steps) > 1)
    one = held(0, 1, 20, replace(rules, pending=6))
    one.load(joined, refused=3)
    rank = {i: (len(s) - 1 if evict == "lfu" else 0, s[-1]) for i, s in uses.items() if len(s) > 1}
    kept = sorted(rank.values())[-20:]
    assert sorted(rank[i] for i in one.save().ids.tolist()) == kept
    assert [rank[i] for i in one.save().ids.tolist()] == kept
    assert one.figures().evicted == 7 + len(rank) - 20 and one.refused == 3 and len(one) == 20
    waiting = {i: s[-1] for i, s in uses.items() if len(s) == 1}
    assert len(waiting) >= 6
    pending = {i: waiting[i] for i in one.save().pending_ids.tolist() if i in waiting}  # others wait with a row
    assert all(clock > 20 for clock in pending.values())
