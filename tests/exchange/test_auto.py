"""Exchange ``auto``: whatever forms and copies are chosen, results are the same, and bytes are counted as predicted."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.exchange.choose import Choice, Chooser
from tests.training.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.training.test_equivalence import Roles, few_or_all_roles, roles_for

TAGS = ("ids", "values", "gradients")


SEQUENCE: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (  # forms of user, item, history, tag; copies
    (("pooled", "rows", "rows", "partial"), ()),
    (("rows", "pooled", "partial", "rows"), ("user",)),
    (("rows", "rows", "pooled", "partial"), ("user", "tag")),
    (("rows", "partial", "rows", "pooled"), ("tag", "user")),
    (("partial", "partial", "partial", "rows"), ("tag",)),
    (("pooled", "pooled", "rows", "pooled"), ("user", "tag", "item")),
    (("partial", "rows", "pooled", "rows"), ()),
    (("pooled", "pooled", "pooled", "pooled"), ("item",)),
)


def in_sequence(monkeypatch: pytest.MonkeyPatch, first: int = 0) -> None:
    """Choices as in ``SEQUENCE``, one after the other, of what may be copied."""
    calls = itertools.count(first)

    def choose(chooser: Chooser) -> Choice:
        forms, copies = SEQUENCE[next(calls) % len(SEQUENCE)]
        offers = chooser._offers
        named_so = {name.split(".")[0]: name for name in offers.replicable}
        copied = tuple(named_so[table] for table in copies if table in named_so)
        taken = {f for family in offers.families if family.name in copied for f in family.features}
        named = dict(zip(("user", "item", "history", "tag"), forms, strict=True))
        return Choice({f: form for f, form in named.items() if f not in taken}, copied, {}, {})

    monkeypatch.setattr(Chooser, "choose", choose)


def choosing(folder: Path, optimizer: str, model: str, ids: str, item: str, **sections: Any) -> Any:
    return config_for(
        folder,
        model={"name": model},
        exchange={"form": "auto", "auto_steps": 1, "ids": ids},
        embedding={
            "optimizer": {"name": optimizer, "lr": 0.1},
            "tables": {"user": {"optimizer": {"name": "sgd", "lr": 0.1}}, "item": {"shard": item}},
        },
        **sections,
    )


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adagrad"])
def test_a_choice_changes_no_result(folder: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to one process, with whatever forms and copies; tables that are copied are on dense ranks alone."""
    write_data(folder / "data.h5")
    ways = (
        ("deepfm", "read", "auto"),
        ("fm", "routed", "column"),
        ("dcn", "routed", "auto"),
        ("deepfm", "read", "row"),
    )
    in_sequence(monkeypatch)
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    for (forms, copies), (model, ids, item), topology in zip(SEQUENCE, itertools.cycle(ways), roles, strict=False):
        config = choosing(folder, optimizer, model, ids, item, topology=topology, train={"steps": 4})
        with open_session(config) as session:
            reference = reference_for(session, config)
            batches = global_batches(session, session.total_steps)
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                expected, _ = reference.step(batches[step.number])
                np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-12)
            for name, rows in gather_tables(session).items():
                np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)
            found, store = session.parts.chosen.found, session.parts.store
            held_R = session.parts.world.main.allgather(() if store is None else store.tables)
        assert {t.split(".")[0] for t in found["copied_tables"]} == {t for t in copies if t != "item" or item == "auto"}
        named = dict(zip(("user", "item", "history", "tag"), forms, strict=True))
        assert found["forms"] == {f: named[f] for f in found["forms"]}
        for table in found["copied_tables"]:
            holders = [rank for rank, held in enumerate(held_R) if table in held]
            assert holders == sorted(session.topology.dense), table


@few_or_all_roles
@pytest.mark.parallel([1, 2, 3])
def test_copies_survive_a_resume(folder: Path, monkeypatch: pytest.MonkeyPatch, roles_of: Roles) -> None:
    """What a checkpoint holds as copies is loaded under another choice, and what that saved under a third."""
    write_data(folder / "data.h5")
    for number, topology in enumerate(roles_of(MPI.COMM_WORLD.size)):
        config = choosing(
            folder,
            "adam",
            "deepfm",
            "routed",
            "auto",
            topology=topology,
            train={"steps": 6},
            run={"folder": str(folder / f"run{number}")},
        )
        for first, until in ((2, 3), (1, 5), (7, 6)):  # copies of user and tag, of user, of item
            in_sequence(monkeypatch, first)
            with open_session(config) as session:
                main = session.parts.world.main
                if until == 3:
                    reference = reference_for(session, config)
                    batches = global_batches(session, 6)
                else:
                    state.load(session, find_checkpoint(Path(config.run.folder), "last", main), resume=True)
                for step in session.steps():
                    step.run()
                    reference.step(batches[step.number])
                    if session.step == until:
                        state.save(session, Path(config.run.folder), {"note": ""})
                        break
                for name, rows in gather_tables(session).items():
                    np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)
                copied = {t.split(".")[0] for t in session.parts.chosen.found["copied_tables"]}
                assert copied == set(SEQUENCE[first][1])


@pytest.mark.parallel([2, 3])
def test_what_a_resumed_run_has_counted_is_its_own(folder: Path) -> None:
    """It chooses what the run before it had, by the same batches."""
    write_data(folder / "data.h5")
    config = config_for(folder, exchange={"form": "auto", "auto_steps": 1, "prefetch": 0}, train={"steps": 8})
    found = []
    for resumes in (False, True):
        with open_session(config) as session:
            chosen, world = session.parts.chosen, session.parts.world
            if resumes:
                state.load(session, find_checkpoint(Path(config.run.folder), "last", world.main), resume=True)
            assert chosen.record(session.step)["counted_bytes_per_step"] == {}
            before = world.total_wire_bytes().sum(axis=1)[1:3]
            for step in session.steps():
                step.run()
                if not resumes and session.step == 6:
                    state.save(session, Path(config.run.folder), {"note": ""})
                    break
            counted = chosen.record(session.step)["counted_bytes_per_step"]
            spent = (world.total_wire_bytes().sum(axis=1)[1:3] - before).tolist()
            found.append(chosen.found)
        steps = 2 if resumes else 6
        assert [counted["values"] * steps, counted["gradients"] * steps] == pytest.approx(spent)
        assert min(spent) > 0
    assert found[0] == found[1]


@few_or_all_roles
@pytest.mark.parallel([2, 3, 4])
def test_counted_bytes_are_those_predicted(folder: Path, roles_of: Roles) -> None:
    write_data(folder / "data.h5", samples=4000)
    for topology in roles_of(MPI.COMM_WORLD.size):
        config = config_for(
            folder,
            topology=topology,
            model={"name": "deepfm"},
            exchange={"form": "auto", "auto_steps": 4, "auto_copies": 0},
            train={"batch_size": 1000, "steps": 4},
        )
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            only = session.parts.chosen.record(session.step)
        assert sum(only["predicted_bytes_per_step"].values()) <= min(only["single_form_bytes_per_step"].values())
        for tag in TAGS:
            assert only["counted_bytes_per_step"][tag] == pytest.approx(
                only["predicted_bytes_per_step"][tag], abs=16 * 64
            )
