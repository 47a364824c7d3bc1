"""Exchange ``auto``: changing forms and copies while a run goes on changes no result, and is counted as predicted."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build import open_session
from hpcrec.exchange.choose import Choice, Chooser
from hpcrec.train import state
from hpcrec.train.checkpoint import find_checkpoint
from tests.train.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.train.test_equivalence import Roles, few_or_all_roles, roles_for

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


def changing(folder: Path, optimizer: str, model: str, ids: str, item: str, **sections: Any) -> Any:
    return config_for(
        folder,
        model={"name": model},
        exchange={"form": "auto", "auto_every": 1, "auto_steps": 1, "ids": ids},
        embedding={
            "optimizer": {"name": optimizer, "lr": 0.1},
            "tables": {"user": {"optimizer": {"name": "sgd", "lr": 0.1}}, "item": {"shard": item}},
        },
        **sections,
    )


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", ["adam", "rowwise_adagrad"])
def test_a_change_of_forms_changes_no_result(folder: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms and copies change every step, rows and optimizer state with them; equal to one process all along."""
    write_data(folder / "data.h5")
    ways = (
        ("deepfm", "read", "auto"),
        ("fm", "routed", "column"),
        ("dcn", "routed", "auto"),
        ("deepfm", "read", "row"),
    )
    for (model, ids, item), topology in zip(ways, itertools.cycle(roles_for(MPI.COMM_WORLD.size)), strict=False):
        in_sequence(monkeypatch)
        config = changing(folder, optimizer, model, ids, item, topology=topology, train={"steps": 9})
        with open_session(config) as session:
            reference = reference_for(session, config)
            batches = global_batches(session, session.total_steps)
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                expected, _ = reference.step(batches[step.number])
                np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-12)
            for name, rows in gather_tables(session).items():
                np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)
            history = session.parts.auto.history
            session.parts.auto.finish(session.step)
        assert [(h["from_step"], h["steps"]) for h in history] == [(step, 1) for step in range(9)]
        copied = [[t.split(".")[0] for t in h["copied_tables"]] for h in history]
        assert [set(c) for c in copied] == [
            {t for t in SEQUENCE[n % 8][1] if t != "item" or item == "auto"} for n in range(9)
        ]


@few_or_all_roles
@pytest.mark.parallel([1, 2, 3])
def test_copies_survive_a_resume(folder: Path, monkeypatch: pytest.MonkeyPatch, roles_of: Roles) -> None:
    """What the checkpoint held as copies is loaded under another choice, then taken to a third."""
    write_data(folder / "data.h5")
    for number, topology in enumerate(roles_of(MPI.COMM_WORLD.size)):
        config = changing(
            folder,
            "adam",
            "deepfm",
            "routed",
            "auto",
            topology=topology,
            train={"steps": 6},
            run={"folder": str(folder / f"run{number}")},
        )
        in_sequence(monkeypatch)
        with open_session(config) as session:
            reference = reference_for(session, config)
            batches = global_batches(session, 6)
            for step in session.steps():
                step.run()
                reference.step(batches[step.number])
                if session.step == 3:
                    state.save(session, Path(config.run.folder), {"note": ""})
                    break
        in_sequence(monkeypatch, first=1)  # opened with copies of user, then user and tag
        with open_session(config) as session:
            state.load(session, find_checkpoint(Path(config.run.folder), "last", session.parts.world.main), resume=True)
            for step in session.steps():
                step.run()
                reference.step(batches[step.number])
            for name, rows in gather_tables(session).items():
                np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)
            assert session.parts.auto.history[0]["from_step"] == 3


@pytest.mark.parallel([2, 3])
def test_what_a_resumed_run_has_counted_is_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms are counted again where it goes on, and stay as they are."""
    write_data(folder / "data.h5")
    monkeypatch.setattr(Chooser, "choose", lambda chooser: Choice(chooser._offers.single("rows"), (), {}, {}))
    config = config_for(
        folder, exchange={"form": "auto", "auto_every": 3, "auto_steps": 1, "prefetch": 0}, train={"steps": 8}
    )
    for resumes in (False, True):
        with open_session(config) as session:
            auto, world = session.parts.auto, session.parts.world
            if resumes:
                state.load(session, find_checkpoint(Path(config.run.folder), "last", world.main), resume=True)
            before = world.total_wire_bytes().sum(axis=1)[1:3]
            for step in session.steps():
                step.run()
                if not resumes and session.step == 6:
                    state.save(session, Path(config.run.folder), {"note": ""})
                    break
            auto.finish(session.step)
            spent = (world.total_wire_bytes().sum(axis=1)[1:3] - before).tolist()
        (only,) = auto.history
        assert (only["from_step"], only["steps"]) == ((6, 2) if resumes else (0, 6))
        counted = only["counted_bytes_per_step"]
        assert [counted["values"] * only["steps"], counted["gradients"] * only["steps"]] == pytest.approx(spent)
        assert min(spent) > 0
        assert [t["counted_bytes_per_step"].get("values") is None for t in auto.told] == (
            [True] if resumes else [True, False]
        )


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
            session.parts.auto.finish(session.step)
            (only,) = session.parts.auto.history
        assert sum(only["predicted_bytes_per_step"].values()) <= min(only["single_form_bytes_per_step"].values())
        for tag in TAGS:
            assert only["counted_bytes_per_step"][tag] == pytest.approx(
                only["predicted_bytes_per_step"][tag], abs=16 * 64
            )
