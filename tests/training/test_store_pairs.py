"""Rows on a disk against rows in memory over long runs: every pair of values of what a run is made of, bit for bit.

Every second one stops half-way, saves, and goes on from that checkpoint: from links, beside HDF5 in memory.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.disk import DiskStore
from tests.pairs import covering
from tests.together import on_every_rank
from tests.training import runs
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import roles_for

COMM = MPI.COMM_WORLD
STEPS, FEW = 200, 30
BYTES = 20_000_000
LEFT = {"steps in flight": 1, "some more": 30_000, "everything": None}  # bytes of an owner for rows, beside the index
POLICIES: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "hybrid": {"name": "hybrid", "staleness": 1},
    "hybrid, far": {"name": "hybrid", "staleness": 3},
    "ahead": {"name": "ahead"},
    "cached": {"name": "cached", "staleness": 2, "capacity": 30},
}
READ_BY = ("auto", "threads", "mapped")  # store.io, one case after the other
CHAINS = {"disk": {}, "device over memory over disk": {"device": "emulated", "gpu_bytes": 6000}}
AXES: dict[str, tuple[Any, ...]] = {
    "ranks": (1, 2, 3, 4),
    "optimizer": ("sgd", "adagrad", "rowwise_adagrad", "adam"),
    "form": ("pooled", "rows", "partial", "auto"),
    "policy": tuple(POLICIES),
    "codec": ("fp32", "bf16", "fp16", "dct"),
    "dtype": ("float32", "float64"),
    "N": (0, 1, 2, 4),
    "memory": tuple(name for name, left in LEFT.items() if left is not None),  # pairs count where rows go and come
    "chain": tuple(CHAINS),
    "tables": ("declared", "dynamic"),
}


def allowed(
    ranks: int,
    optimizer: str,
    form: str,
    policy: str,
    codec: str,
    dtype: str,
    ahead: int,
    memory: str,
    chain: str,
    tables: str,
) -> bool:
    """What a configuration may have together."""
    if (codec != "fp32" and dtype != "float32") or (codec == "dct" and (form == "rows" or policy == "cached")):
        return False
    if policy == "ahead" and (form == "partial" or codec not in ("fp32", "bf16")):  # steps come in two parts
        return False
    if policy == "cached":  # which has a form of its own; and sums of several steps learn on no device
        grows = optimizer in ("adagrad", "rowwise_adagrad")
        return form in ("pooled", "auto") and optimizer != "adam" and not (grows and chain != "disk")
    return True


def with_room_for_all(cases: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of these as many as it takes to have each value of the other axes once, with memory for everything."""
    at, seen, chosen = list(AXES).index("memory"), set[tuple[int, Any]](), []
    for case in cases:
        values = {(i, value) for i, value in enumerate(case) if i != at}
        if values - seen:
            seen |= values
            chosen.append((*case[:at], "everything", *case[at + 1 :]))
    return chosen


COVERING = covering(*AXES.values(), allowed=allowed)
CASES = COVERING + with_room_for_all(COVERING)


def config_of(folder: Path, case: dict[str, Any], *, on_disk: bool, steps: int, turn: int) -> Config:
    roles = roles_for(COMM.size)
    store = {"name": "disk", "path": str(folder / "rows"), "memory_bytes": BYTES, **CHAINS[case["chain"]]}
    store |= {"io": READ_BY[turn % len(READ_BY)]}
    rules = {"user": {"dynamic": {"capacity": 60, "evict": "lru"}}} if case["tables"] == "dynamic" else {}
    exchange = {"form": case["form"], "codec": case["codec"], "prefetch": case["N"]}
    exchange |= {"dct": {"density": 0.5}} if case["codec"] == "dct" else {}
    exchange |= {"auto_steps": 1, "auto_copies": 0} if case["form"] == "auto" else {}  # copies are on no disk
    return config_for(
        folder,
        model={"name": "fm" if case["form"] == "partial" else "dlrm"},
        exchange=exchange,
        policy=POLICIES[case["policy"]],
        embedding={"optimizer": {"name": case["optimizer"], "lr": 0.05}, "tables": rules},
        train={"steps": steps, "dtype": case["dtype"]},
        topology=roles[turn % len(roles)],
        store=store if on_disk else {},
        checkpoint={"every": steps // 2},
        run={"folder": str(folder / f"run-{turn}-{'disk' if on_disk else 'dram'}")},
    )


def ran(config: Config, stop_at: int | None) -> tuple[list[Any], dict[str, float]]:
    """Losses, this rank's rows with ids and states, and dense parameters, all as bits; and what the store says.

    ``stop_at``: after so many steps it saves and ends, and another goes on; what the store says is of both.
    """
    run, losses, before = Path(config.run.folder), [], 0.0
    if stop_at is not None:
        with open_session(config) as session:
            for step in session.steps():
                losses.append(step.run())
                if session.step == stop_at:
                    state.save(session, run, {})
                    break
            before = 0.0 if session.parts.store is None else session.parts.store.figures().get("disk_rows_read", 0.0)
    with open_session(config) as session:
        if stop_at is not None:
            state.load(session, find_checkpoint(run, "last", session.parts.world.main), resume=True)
        losses += [step.run() for step in session.steps()]
        store, model = session.parts.store, session.gather_model()
        told = {} if store is None else store.figures()
        told["disk_rows_read"] = told.get("disk_rows_read", 0.0) + before
        rows = [] if store is None else [(table, [_bits(b) for b in store.export(table)]) for table in store.tables]
        dense = [] if model is None else [(k, p.detach().numpy().tobytes()) for k, p in model.named_parameters()]
    return [losses, rows, dense], told


def _bits(block: Any) -> Any:
    ids, rows, states = block
    return ids.tobytes(), rows.tobytes(), {name: state.tobytes() for name, state in states.items()}


@pytest.fixture
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rows that a step asks for some of each table alone; and pieces that are written often."""
    more = tuple(replace(feature, cardinality=40 * feature.cardinality) for feature in runs.FEATURES)
    monkeypatch.setattr(runs, "FEATURES", more)
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))


def holds(folder: Path, number: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One case; a run counts only if rows that had changed left the memory, and were read back."""
    case = dict(zip(AXES, CASES[number], strict=True))
    left, stop_at = LEFT[case["memory"]], steps // 2 if number % 2 else None
    with monkeypatch.context() as patched:
        if left is not None:
            patched.setattr(DiskStore, "_left_for_rows", lambda self, own: left)
        (wanted, _), (found, told) = (
            ran(config_of(folder, case, on_disk=where, steps=steps, turn=number), stop_at) for where in (False, True)
        )
    everyone = COMM.allgather(told["disk_rows_read"])
    with on_every_rank():
        for name, one, other in zip(("losses", "rows", "dense"), wanted, found, strict=True):
            assert one == other, f"case {number}, {case}: {name}"
        if left is not None:
            assert sum(everyone) > steps, f"case {number}, {case}: rows were read back {sum(everyone)} times"


def mine() -> list[int]:
    return [number for number, case in enumerate(CASES) if case[0] == COMM.size]


def rows_leave(number: int) -> bool:
    return LEFT[dict(zip(AXES, CASES[number], strict=True))["memory"]] is not None


@pytest.mark.slow
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("part", range(4))
@pytest.mark.usefixtures("short_files")
@pytest.mark.filterwarnings("ignore:exchange.codec is 'dct', but nothing of this model is thresholded")
def test_long_runs_of_every_pair_give_the_bits_of_main_memory(
    part: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5", samples=300)
    for number in mine()[part::4]:
        holds(folder, number, STEPS, monkeypatch)


@pytest.mark.parallel([1, 2])
@pytest.mark.usefixtures("short_files")
def test_one_of_these_in_short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5", samples=300)
    holds(folder, next(filter(rows_leave, mine())), FEW, monkeypatch)


def test_every_pair_is_in_few_cases() -> None:
    assert 20 <= len(COVERING) < 40 and {case[0] for case in COVERING} == {1, 2, 3, 4}
    assert all(map(rows_leave, range(len(COVERING))))
    assert 4 <= len(CASES) - len(COVERING) < 12
    assert not any(map(rows_leave, range(len(COVERING), len(CASES))))
