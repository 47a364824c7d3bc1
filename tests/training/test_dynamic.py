"""Dynamic tables: with room for all ids a run equals one process with a row for each; any 64-bit ids, any form."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint.dynamic_state import figures
from hpcrec.errors import ConfigError
from tests.training.dynamic_runs import (
    Rules,
    dynamic_config,
    ids_of_table,
    initial_rows,
    learned,
    reference_for,
    write_data,
)
from tests.training.runs import config_for, global_batches
from tests.training.test_equivalence import FORMS, IDS, OPTIMIZERS, covering_roles, roles_for, shared_out

SHORT = {"batch_size": 13, "dtype": "float64"}


def sections(roles: dict[str, Any], model: str, optimizer: str, form: str, ids: str, pooling: str) -> dict[str, Any]:
    chosen = {"auto_steps": 1} if form == "auto" else {}
    return {
        "topology": roles,
        "model": {"name": model, "pooling": {"history": pooling}},
        "exchange": {"form": form, "ids": ids, **chosen},
    }


def check_against_reference(folder: Path, shard: str, optimizer: str, wanted: dict[str, Any]) -> None:
    tables = {t: {"dynamic": {"capacity": 4000}, "shard": shard} for t in ("user", "item", "tag")}
    optimized = {"name": optimizer, "lr": 0.1, **({"initial_accumulator": 0.05} if "adagrad" in optimizer else {})}
    embedding = {"init_scale": 0.3, "optimizer": optimized, "share": {"history": "item"}, "tables": tables}
    config = dynamic_config(folder, **wanted, embedding=embedding, train={**SHORT, "steps": 5})
    with open_session(config) as session:
        reference = reference_for(session, config)
        batches = global_batches(session, session.total_steps)
        seen: dict[str, set[int]] = {name: set() for name in session.parts.tables}
        for step in session.steps():
            loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
            batch = batches[step.number]
            np.testing.assert_allclose(loss, reference.step(batch)[0], rtol=0, atol=1e-12)
            for name in seen:
                for feature in ("item", "history") if name.startswith("item") else (name.partition(".")[0],):
                    seen[name] |= set(batch.bags[feature].ids.tolist())
        for name, rows in learned(session).items():
            assert rows.keys() == seen[name], "ids that were asked for have rows, and no others"
            ids, expected = ids_of_table(name), reference.rows(name)
            for i, row in rows.items():
                np.testing.assert_allclose(row, expected[np.searchsorted(ids, i)], rtol=0, atol=1e-11)


@pytest.mark.parallel([1, 2, 3, 4])
def test_with_room_for_all_equals_one_process(folder: Path) -> None:
    write_data(folder / "data.h5")
    optimizers = itertools.cycle(OPTIMIZERS)
    rest = (("fm", "deepfm"), ("auto", "table"), IDS, ("sum", "mean", "max"))
    for roles, form, model, shard, ids, pooling in covering_roles(FORMS, *rest):
        optimizer = next(optimizers)
        check_against_reference(folder, shard, optimizer, sections(roles, model, optimizer, form, ids, pooling))


RULES: tuple[dict[str, Any], ...] = (
    {"capacity": 8, "evict": "lru"},
    {"capacity": 9, "evict": "lfu"},
    {"capacity": 12},
    {"capacity": 8, "evict": "lru", "admit_from": 2, "pending": 16},
    {"capacity": 30, "evict": "lfu", "admit_probability": 0.5},
)


@pytest.mark.parallel([1, 2, 3, 4])
def test_rules_equal_maps_in_plain_python(folder: Path) -> None:
    """Who has a row, what is in it and what a batch is answered with; evaluations among the steps change nothing."""
    write_data(folder / "data.h5")
    ids = itertools.cycle(IDS)
    optimizers = itertools.cycle(OPTIMIZERS)
    roles_in_turn, forms = itertools.cycle(roles_for(MPI.COMM_WORLD.size)), itertools.cycle(FORMS)
    cases = [(rules, next(roles_in_turn), next(forms)) for rules in RULES * 2]  # each rule meets two of 4 forms
    for rules, roles, form in shared_out(cases):
        wanted = sections(roles, "deepfm", next(optimizers), form, next(ids), "max" if form == "rows" else "mean")
        config = dynamic_config(
            folder,
            rules,
            **wanted,
            data={"validation": str(folder / "data.h5")},
            train={**SHORT, "steps": 7},
        )
        with open_session(config) as session:
            expected = Rules(session, reference_for(session, config), rules)
            batches = global_batches(session, session.total_steps)
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                expected.admit(batches[step.number].bags)
                wanted_loss = expected.reference.step(batches[step.number])[0]
                np.testing.assert_allclose(loss, wanted_loss, rtol=0, atol=1e-12, err_msg=f"{rules} {step.number}")
                expected.forget()
                if step.number == 2:
                    session.evaluate("validation", 2)
            found = figures(session)
            for table, rows in learned(session).items():
                known = next(expected.rows[f.name] for f in expected.families if table in f.tables)
                assert rows.keys() == known
                ids_T, whole = ids_of_table(table), expected.reference.rows(table)
                for i, row in rows.items():
                    np.testing.assert_allclose(row, whole[np.searchsorted(ids_T, i)], rtol=0, atol=1e-11)
            for family, maps in expected.maps.items():
                refused = expected.refused[family]
                evicted = sum(m.evicted for m in maps)
                family = family.removesuffix(".wide")  # they are called by the widest of their tables
                assert found[family]["rows"] == sum(m.size for m in maps)
                assert found[family]["admitted"] == found[family]["rows"] + evicted
                assert (found[family]["evicted"], found[family]["refused"]) == (evicted, refused)


@pytest.mark.parallel([2, 3, 4])
def test_owners_and_threads_change_no_bit(folder: Path) -> None:
    """Whole tables at any owner, any number of threads, ids routed or read: the same rows, losses and refusals."""
    write_data(folder / "data.h5")
    size, found = MPI.COMM_WORLD.size, []
    lru, lfu, first = {"capacity": 11, "evict": "lru"}, {"capacity": 15, "evict": "lfu"}, {"capacity": 5}
    tables: dict[str, Any] = {"user": lru, "item": lfu, "tag": first}
    everyone = list(range(size))
    for owners, threads, ids in (
        (everyone[: max(1, size - 2)], 1, "routed"),
        (everyone, 3, "read"),
        (everyone[::-1], 2, "routed"),
    ):
        config = dynamic_config(
            folder,
            topology={"mode": "split", "owners": owners, "dense": 2, "owner_threads": threads},
            model={"name": "deepfm"},
            exchange={"ids": ids},
            embedding={
                "share": {"history": "item"},
                "tables": {t: {"dynamic": rules, "shard": "table"} for t, rules in tables.items()},
            },
            train={"batch_size": 13, "dtype": "float32", "steps": 9},
        )
        with open_session(config) as session:
            main = session.parts.world.main
            losses = [float(main.allreduce(np.array([step.run()]))[0]) for step in session.steps()]
            counted = {t: (f["evicted"], f["refused"]) for t, f in figures(session).items()}
            rows = {t: {i: r.tobytes() for i, r in known.items()} for t, known in learned(session).items()}
        found.append((losses, counted, rows))
    assert found[0] == found[1] == found[2]


@pytest.mark.parallel([1, 2, 3])
def test_a_step_that_was_given_up_before_it_ran_counts_no_use(folder: Path) -> None:
    """A user's loop leaves, evaluates, and comes back: nothing has been admitted twice, or before its step."""
    write_data(folder / "data.h5")
    for rules in ({"capacity": 500, "admit_from": 3}, {"capacity": 12, "evict": "lfu"}):
        config = dynamic_config(folder, rules, train={"batch_size": 13, "dtype": "float64", "steps": 6})
        runs = []
        for leaves in (False, True):
            losses = []
            with open_session(config) as session:
                for step in session.steps():
                    if leaves and step.number == 2:
                        break
                    losses.append(step.run())
                session.evaluate("train", 1)
                losses += [step.run() for step in session.steps()]
                store = session.parts.store
                held = {} if store is None else {n: h.save() for n, h in store.dynamic.items()}
                runs.append((losses, {n: (s.clock, s.ids.tolist(), s.counts.tolist()) for n, s in held.items()}))
        assert len(runs[0][0]) == 6 and runs[0] == runs[1]


@pytest.mark.parallel([1, 2])
def test_a_step_that_is_left_out_keeps_who_has_a_row(folder: Path) -> None:
    """Ids of a batch that is skipped have rows as they start from, others have lost theirs, and the run goes on."""
    write_data(folder / "data.h5")
    config = dynamic_config(folder, {"capacity": 14, "evict": "lru"}, train={**SHORT, "steps": 3, "nonfinite": "skip"})
    with open_session(config) as session:
        batches, before = global_batches(session, 3), learned(session)
        for step in session.steps():
            if step.number == 1 and step.batch is not None and len(step.batch.dense):
                step.batch.dense[0, 0] = np.nan
            step.run()
            if step.number == 1:
                after = learned(session)["user"]
                asked = np.unique(batches[1].bags["user"].ids)
                new = np.array([i for i in asked.tolist() if i in after and i not in before["user"]], np.int64)
                assert len(new) and before["user"].keys() - after.keys(), "some came, some went"
                for i, row in zip(new.tolist(), initial_rows(session, "user", new), strict=True):
                    np.testing.assert_array_equal(after[i], row)
                for i in after.keys() & before["user"].keys():
                    np.testing.assert_array_equal(after[i], before["user"][i])
            before = learned(session)
        assert session.guard.skipped == 1


@pytest.mark.parallel([1])
def test_tables_that_cannot_be_are_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    rules = {"dynamic": {"capacity": 50}}
    for tables, says in (
        ({}, "feature 'user', which has no cardinality in .* embedding.tables.user.dynamic.capacity"),
        ({"user": {"rows": 40}}, "feature 'user', which has no cardinality"),
        (
            {"user": rules, "item": rules, "user.wide": {"rows": 9}},
            "user.wide has rows of its own, but 'user' .*dynamic",
        ),
        ({"user": rules, "item": rules, "user.wide": {"dynamic": {"capacity": 60}}}, "must agree"),
        ({"user": rules, "item": rules, "user.wide": {"dynamic": {"capacity": 50, "evict": "lru"}}}, "dynamic differ"),
        (
            {"user": {"dynamic": {"capacity": 5 * 10**9}}, "item": rules},
            r"tables\.user\.dynamic\.capacity is 5000000000",
        ),
        ({"user": rules, "item": rules, "user.wide": {"shard": "column"}}, r"tables\.user\.wide\.shard is 'column'"),
    ):
        config = config_for(
            folder, model={"name": "deepfm"}, embedding={"tables": tables, "share": {"history": "item"}}
        )
        with pytest.raises(ConfigError, match=says), open_session(config):
            pass
    hashed = {t: {"rows": 30, "hashed": True} for t in ("user", "item")}
    with open_session(config_for(folder, embedding={"tables": hashed, "share": {"history": "item"}})) as session:
        assert [step.run() for step in session.steps()]  # any ids can be hashed
