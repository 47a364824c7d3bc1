"""Equivalence 7: interrupted and resumed equals uninterrupted, bit for bit on the same ranks."""

import dataclasses
import itertools
import json
from collections.abc import Callable
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
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.errors import CheckpointError
from tests.checkpoint.tools.made import fingerprint
from tests.together import on_every_rank
from tests.training.runs import config_for, gather_tables, write_data
from tests.training.test_equivalence import OPTIMIZERS, Roles, few_or_all_roles, roles_for, shared_out


def edit_state(place: Path, entry: str, made: Callable[[Any], Any]) -> None:
    """What ``made`` says of an entry of a checkpoint's state.json is there from now on; None: it is not; collective."""
    MPI.COMM_WORLD.Barrier()
    if MPI.COMM_WORLD.rank == 0:
        state, manifest = (json.loads((place / name).read_text()) for name in ("state.json", "manifest.json"))
        *above, name = entry.split(".")
        inside = state[above[0]] if above else state
        value = made(inside.pop(name))
        inside |= {} if value is None else {name: value}
        (place / "state.json").write_text(json.dumps(state))
        manifest["files"]["state.json"] = fingerprint(place / "state.json")
        (place / "manifest.json").write_text(json.dumps(manifest))
    MPI.COMM_WORLD.Barrier()


def finish(config: Any, stop_at: int | None = None, resume: bool = False) -> dict[str, np.ndarray]:
    """Runs to the end or to ``stop_at``, where it saves; returns everything that was learned on this rank."""
    run = Path(config.run.folder)
    with open_session(config) as session:
        if resume:
            told = state.load(session, find_checkpoint(run, "last", session.parts.world.main), resume=True)
            assert told["note"] == "kept" and session.step == stop_at
        for _ in (s.run() for s in session.steps()):
            if not resume and session.step == stop_at:
                state.save(session, run, {"note": "kept"})
                break
        learned = dict(gather_tables(session))
        store = session.parts.store
        for b, held in enumerate(store.held if store is not None else ()):
            learned |= {f"block{b}.{name}": values.copy() for name, values in held.states.items()}
        world = session.parts.world  # ids routed ahead of the stop are sent again
        wire = np.stack([world.total_wire_bytes(), world.total_wire_messages()])[:, 1:3]
        away = session.parts.slices.gather()
        learned |= {f"{n}.{k}": torch.as_tensor(v).numpy() for n, state in away.items() for k, v in state.items()}
        if session.parts.dense is not None:
            dense = session.parts.dense
            learned |= {n: p.detach().numpy().copy() for n, p in dense.named_parameters}
            for p, states in dense.optimizer.state.items():
                n = next(name for name, q in dense.named_parameters if q is p)
                learned |= {f"{n}.{k}": torch.as_tensor(v).numpy().copy() for k, v in states.items()}
        learned["wire"] = wire
    return learned


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resumed_equals_uninterrupted(folder: Path, optimizer: str) -> None:
    write_data(folder / "data.h5")
    every = roles_for(MPI.COMM_WORLD.size)[:3]
    for number in {(OPTIMIZERS.index(optimizer) + MPI.COMM_WORLD.size) % len(every)}:  # each with each, over all ranks
        roles = every[number]
        wanted = {
            "topology": roles,
            "model": {"name": "deepfm", "options": {"dropout": 0.2}},
            "embedding": {
                "optimizer": {"name": optimizer, "lr": 0.1},
                "tables": {"user": {"shard": "row"}, "item": {"shard": "column"}, "tag": {"shard": "replicate"}},
            },
            "dense": {"optimizer": {"name": "Adam"}, "clip_norm": 0.5},
            "schedule": {"kind": "cosine", "warmup_steps": 2},
            "train": {"batch_size": 13, "dtype": "float32", "steps": 10},
            "run": {"folder": str(folder / f"run{number}")},
        }
        config = config_for(folder, **wanted)
        whole = finish(config)
        for stop_at in (4, 6):  # inside an epoch and at its end
            finish(config, stop_at=stop_at)
            resumed = finish(config, stop_at=stop_at, resume=True)
            assert resumed.keys() == whole.keys()
            for name, values in whole.items():
                np.testing.assert_array_equal(resumed[name], values, err_msg=f"{roles} {stop_at} {name}")


@few_or_all_roles
@pytest.mark.parallel([1, 2, 3, 4])
def test_resumed_with_chosen_forms_equals_uninterrupted(folder: Path, roles_of: Roles) -> None:
    """By the first batches, as before; the resumed run needs no note of them."""
    write_data(folder / "data.h5", samples=400)
    for number, roles in enumerate(roles_of(MPI.COMM_WORLD.size)[:2]):
        config = config_for(
            folder,
            topology=roles,
            model={"name": "deepfm"},
            exchange={"form": "auto", "auto_steps": 2, "auto_copies": 2000},
            embedding={"optimizer": {"name": "adam", "lr": 0.1}},
            train={"batch_size": 40, "dtype": "float32", "steps": 11},
            run={"folder": str(folder / f"run{number}")},
        )
        whole = finish(config)
        for stop_at in (4, 6):
            finish(config, stop_at=stop_at)
            resumed = finish(config, stop_at=stop_at, resume=True)
            for name, values in whole.items():
                np.testing.assert_array_equal(resumed[name], values, err_msg=f"{roles} {stop_at} {name}")


@pytest.mark.parallel([1, 2, 3, 4])
def test_ids_that_are_read_go_on_where_they_stopped(folder: Path) -> None:
    """Whatever is read or routed ahead, shuffled or in file order: what routed ids give, interrupted or not."""
    write_data(folder / "data.h5")
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size)[::-1])
    cases = list(zip(itertools.product((0, 2), (0, 2)), (True, False, False, True), strict=True))
    for (data_prefetch, prefetch), shuffle in shared_out(cases):
        found = {}
        own = next(roles)
        for ids in ("routed", "read"):
            config = config_for(
                folder,
                topology=own,
                model={"name": "deepfm"},
                data={"prefetch": data_prefetch, "shuffle": shuffle},
                exchange={"ids": ids, "prefetch": prefetch, "form": "partial"},
                embedding={
                    "optimizer": {"name": "adam", "lr": 0.1},
                    "tables": {"user": {"shard": "row"}, "item": {"shard": "column"}, "tag": {"shard": "table"}},
                },
                train={"batch_size": 13, "dtype": "float32", "steps": 8},
                run={"folder": str(folder / f"{ids}{data_prefetch}{prefetch}")},
            )
            found[ids] = finish(config)
        finish(config, stop_at=3)  # of 6 batches an epoch
        found["resumed"] = finish(config, stop_at=3, resume=True)
        for run in ("read", "resumed"):
            assert found[run].keys() == found["routed"].keys()
            for name, values in found["routed"].items():
                np.testing.assert_array_equal(found[run][name], values, err_msg=f"{run} {own} {prefetch} {name}")


@pytest.mark.parallel([1, 2])
def test_a_checkpoint_of_another_run_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    finish(config_for(folder), stop_at=2)
    run = folder / "run"
    for wanted, says in (
        ({"train": {"seed": 9}}, "train.seed = 1, this run has 9"),
        ({"train": {"batch_size": 14}}, "train.batch_size"),
        ({"model": {"width": 8}}, "width"),
        ({"model": {"name": "fm"}}, "table"),
        ({"embedding": {"optimizer": {"name": "adam"}}}, "optimizer states"),
    ):
        base = {"train": {"batch_size": 13, "dtype": "float64", "steps": 7}}
        for section, keys in wanted.items():
            base[section] = {**base.get(section, {}), **keys}
        with open_session(config_for(folder, **base)) as session:
            found = find_checkpoint(run, "last", session.parts.world.main)
            with pytest.raises(CheckpointError, match=says):
                state.load(session, found, resume=True)


NOT_TAKEN_OVER = (  # entry of state.json, what is there instead (absent: None), what is said
    ("progress", None, r"has no progress. Allowed: an object with best_value, best_step, misses, samples, ended, eval"),
    ("progress", [3], r"progress is \[3\]. Allowed: an object with best_value"),
    ("progress", {"misses": 0}, r"progress is {'misses': 0}. Allowed: an object with best_value"),
    ("progress.samples", "39", r"progress.samples is '39'. Allowed: a whole number"),
    ("progress.best_step", True, r"progress.best_step is True. Allowed: a whole number or null"),
    ("progress.evaluations", [{"auc": 0.5}], r"progress.evaluations is \[{'auc': 0.5}\]. Allowed: a list of objects"),
    ("wire_bytes", None, r"has no wire_bytes. Allowed: 8 pairs of whole numbers, one for each of ids, values, "),
    ("wire_bytes", [[1, 2]] * 4, r"wire_bytes is \[\[1, 2\], .*. Allowed: 8 pairs of whole numbers"),
    ("wire_bytes", [[1, 2.5]] * 5, r"wire_bytes is \[\[1, 2.5\], .*. Allowed: 8 pairs of whole numbers"),
    ("wire_messages", 7, r"wire_messages is 7. Allowed: 8 pairs of whole numbers"),
    ("skipped_steps", "none", r"skipped_steps is 'none'. Allowed: a whole number"),
    ("ran_on", 3, r"ran_on is 3. Allowed: an object"),
)


@pytest.mark.parallel([1, 2, 3])
def test_a_table_with_a_row_twice_and_another_missing_is_refused_on_every_rank(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_for(folder, train={"batch_size": 13, "dtype": "float64", "steps": 2})
    commands.train(config)
    place = folder / "run/checkpoints/step-2"
    if MPI.COMM_WORLD.rank == 0:
        part = next(place.glob("user/part-*.h5"))
        with h5py.File(part, "r+") as file:
            file["ids"][1] = file["ids"][0]
        manifest = json.loads((place / "manifest.json").read_text())
        manifest["files"][f"user/{part.name}"] = fingerprint(part)
        (place / "manifest.json").write_text(json.dumps(manifest))
    MPI.COMM_WORLD.Barrier()
    longer = dataclasses.replace(config, train=dataclasses.replace(config.train, steps=3))
    with pytest.raises(CheckpointError, match="parts of table 'user' have as many values as the table, but some ids"):
        commands.train(longer)


@pytest.mark.parallel([1, 2, 3, 4])
def test_messages_of_a_checkpoint_that_does_not_say_them_stay_unknown(folder: Path) -> None:
    """A run goes on from its own checkpoint, then from one without messages: unknown in all that it writes."""
    write_data(folder / "data.h5")
    config = config_for(folder, train={"batch_size": 13, "dtype": "float64", "steps": 2})
    longer = [dataclasses.replace(config, train=dataclasses.replace(config.train, steps=n)) for n in (3, 4)]
    commands.train(config)
    before = json.loads((folder / "run/summary.json").read_text())
    commands.train(longer[0])
    known = json.loads((folder / "run/summary.json").read_text())
    edit_state(folder / "run/checkpoints/step-3", "wire_messages", lambda found: None)
    commands.train(longer[1])
    unknown = json.loads((folder / "run/summary.json").read_text())
    state = json.loads((folder / "run/checkpoints/step-4/state.json").read_text())
    between = MPI.COMM_WORLD.size * (MPI.COMM_WORLD.size - 1)
    with on_every_rank():
        for tag in ("values", "gradients"):
            assert sum(before["wire_messages"][tag].values()) * 3 == 2 * sum(known["wire_messages"][tag].values())
            assert sum(known["wire_messages"][tag].values()) == 3 * between
            assert sum(unknown["wire_bytes"][tag].values()) >= sum(known["wire_bytes"][tag].values())
        assert unknown["wire_messages"] == {} and "wire_messages" not in state and "wire_bytes" in state


@pytest.mark.parallel([1, 2])
def test_a_state_that_a_run_cannot_go_on_from_is_refused_on_every_rank(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_for(folder, train={"batch_size": 13, "dtype": "float64", "steps": 2})
    commands.train(config)
    place = folder / "run/checkpoints/step-2"
    whole = {name: (place / name).read_text() for name in ("state.json", "manifest.json")}
    for entry, value, says in NOT_TAKEN_OVER:
        for name, text in whole.items() if MPI.COMM_WORLD.rank == 0 else ():
            (place / name).write_text(text)
        edit_state(place, entry, lambda found, value=value: value)
        with pytest.raises(CheckpointError, match=rf"step-2/state.json: {says}.*checkpoint.resume = 'never'") as caught:
            commands.train(config)
        told = MPI.COMM_WORLD.allgather(str(caught.value))
        parallel_assert(told == [told[0]] * len(told), msg=str(told))
