"""Rows in a device's memory in whole runs: every form, optimizer and kind of table gives the bits of main memory."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.config import Config
from hpcrec.errors import MissingError
from tests.devices import device_or_skip
from tests.training.runs import config_for, finished, gather_tables, train, write_data
from tests.training.test_equivalence import roles_for

DEVICES = pytest.mark.parametrize("device", ["emulated", "cuda"])
STEPS = 4
MEMORY = (None, 1, 6000)  # bytes of the device for rows: all that they take; 32 rows of each block; and some more
CASES: dict[str, dict[str, Any]] = {
    "pooled": {"exchange": {"form": "pooled"}},
    "rows": {"exchange": {"form": "rows"}},
    "partial of FM": {"model": {"name": "fm"}, "exchange": {"form": "partial"}},
    "partial of a folded layer": {"model": {"name": "deepfm"}, "exchange": {"form": "partial"}},
    "copies": {"exchange": {"form": "auto", "replicate_rows": 30}},
    "max": {"model": {"pooling": {"history": "max"}}},
    "halves": {"exchange": {"codec": "fp16"}, "train": {"dtype": "float32"}},
    "thresholds": {"exchange": {"codec": "dct", "dct": {"density": 0.5}}, "train": {"dtype": "float32"}},
    "decay": {"embedding": {"init_decay": 0.5}},
    "dynamic": {"embedding": {"tables": {"user": {"dynamic": {"capacity": 12, "evict": "lru"}}}}},
    "columns": {
        "embedding": {
            "tables": {"user": {"shard": "column"}, "item": {"shard": "column"}},
            "optimizer": {"name": "rowwise_adagrad", "lr": 0.1},
        }
    },
    "adam": {"embedding": {"optimizer": {"name": "adam", "lr": 0.01}}},
    "sgd": {"embedding": {"optimizer": {"name": "sgd", "lr": 0.1}}},
}


def config_of(folder: Path, device: str | None, **sections: dict[str, Any]) -> Config:
    wanted = {**sections, "train": {"steps": STEPS, **sections.get("train", {})}}
    memory = sections.get("store", {})
    return config_for(
        folder, **{**wanted, "store": {} if device is None else {"name": "gpu", "device": device, **memory}}
    )


def same(found: Any, wanted: Any) -> None:
    losses, tables, dense = found
    assert losses == wanted[0]
    for name, rows in tables.items():
        np.testing.assert_array_equal(rows, wanted[1][name], err_msg=name)
    for name, values in dense.items():
        np.testing.assert_array_equal(values, wanted[2][name], err_msg=name)


@pytest.mark.parallel([1, 2, 3, 4])
@DEVICES
def test_every_run_gives_the_bits_of_main_memory(folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there, called = device_or_skip(device), set()
    run = there.call
    monkeypatch.setattr(there, "call", lambda name, *args: (called.add(name), run(name, *args))[1])
    write_data(folder / "data.h5")
    size = MPI.COMM_WORLD.size  # other cases have other memory there
    roles, memory = itertools.cycle(roles_for(size)), itertools.islice(itertools.cycle(MEMORY), size, None)
    for (name, sections), topology in zip(CASES.items(), roles, strict=False):
        n_bytes = next(memory)
        store = {} if n_bytes is None else {"memory_bytes": n_bytes}
        wanted, found = (
            (tables_of if name == "dynamic" else train)(
                config_of(folder, where, topology=topology, store=store, **sections)
            )
            for where in (None, device)
        )
        if name == "dynamic":
            assert found == wanted, name
        else:
            same(found, wanted)
    # some roles have each rank own rows
    assert {"init_rows", "group", "pooled_gather", "merge_update", "admit_slots"} <= called, called


def tables_of(config: Config) -> list[Any]:
    """Losses, and what this rank holds of dynamic tables."""
    with open_session(config) as session:
        losses = [step.run() for step in session.steps()]
        store = session.parts.store
        held = [] if store is None else [(t, [_bits(b) for b in store.export(t)]) for t in store.tables]
    return [losses, held]


def _bits(block: tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]) -> Any:
    ids, rows, states = block
    return ids.tobytes(), rows.tobytes(), {name: state.tobytes() for name, state in states.items()}


@pytest.mark.parallel([1, 3])
@DEVICES
def test_goes_on_from_a_checkpoint_of_main_memory_and_back(folder: Path, device: str) -> None:
    device_or_skip(device)
    write_data(folder / "data.h5")
    keep = {"checkpoint": {"every": 2}}
    wanted = finished(config_of(folder / "whole", None, data=_data(folder), **keep), gather_tables)
    for name, first, second in (("there", None, device), ("back", device, None)):
        run = folder / name
        some = {**keep, "data": _data(folder), "store": {"memory_bytes": 1}}
        finished(config_of(run, first, **some), gather_tables, stop_at=2)
        found = finished(config_of(run, second, **some), gather_tables, resume=True)
        for table, rows in found.items():
            np.testing.assert_array_equal(rows, wanted[table], err_msg=table)


@pytest.mark.parallel([1, 2])
@DEVICES
def test_evaluations_between_steps_and_batches_that_are_left_out(folder: Path, device: str) -> None:
    """Rows of steps to come are in the cache already, or being brought, when something else comes first."""
    device_or_skip(device)
    write_data(folder / "data.h5")
    data = {**_data(folder), "validation": str(folder / "data.h5")}
    seen = []
    for where in (None, device):
        config = config_of(folder, where, data=data, store={"memory_bytes": 1}, train={"steps": 8, "nonfinite": "skip"})
        found: list[Any] = []
        with open_session(config) as session:
            for step in session.steps():
                bad = step.number in (2, 5)
                found.append(step.run(_nan if bad else None))
                if step.number in (1, 2, 6):
                    found.append(session.evaluate("validation", 3)["logloss"])
            assert session.guard.skipped == 2
            found.append({name: rows.tobytes() for name, rows in gather_tables(session).items()})
        seen.append([np.nan_to_num(f) if isinstance(f, float) else f for f in found])
    assert seen[0] == seen[1]


def _nan(inputs: Any, samples: Any) -> Any:
    return inputs["block"].sum((1, 2)) * float("nan") + samples.label


def _data(folder: Path) -> dict[str, Any]:
    return {"train": str(folder / "data.h5"), "chunk": 8, "window": 3}


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    write_data(tmp_path / "data.h5")
    try:
        device_or_skip("cuda")
    except pytest.skip.Exception:
        with pytest.raises(MissingError, match=r"store\.name is 'gpu', but .*\. Or set store\.name = 'dram'"):
            open_session(config_of(tmp_path, "cuda"))
        over = {"name": "disk", "path": str(tmp_path), "memory_bytes": 10**7, "gpu_bytes": 1}
        with pytest.raises(MissingError, match=r"store\.gpu_bytes is set, but .*\. Or remove it"):
            open_session(config_for(tmp_path, store=over))
