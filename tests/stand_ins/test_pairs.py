"""Every stand-in over a list in which every pair of values occurs: of form, codec, optimizer, pooling, tables, memory.

A run under the stand-in is interrupted at a checkpoint, written beside steps or between them, goes on from it, and has
the bits of the run without the stand-in; under one that reads or learns late, those of the run that is not interrupted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config
from hpcrec.embedding.stores import STORES
from tests.devices import device_or_skip
from tests.policy.test_hybrid import results, same_bits
from tests.policy.test_hybrid_stores import learned
from tests.stand_ins.file_store import FileStore
from tests.stand_ins.kept_form import put_kept
from tests.stand_ins.relay_stage import put_relays
from tests.stand_ins.twice_form import put_twice
from tests.together import on_every_rank
from tests.training import dynamic_runs
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import OPTIMIZERS, covering_roles

STEPS, SAVED = 9, 4
HALVES = ("bf16", "fp16")
POOLINGS = ("sum", "mean", "max")
DYNAMIC = (None, "lru", "lfu")
MEMORY = ("dram", "emulated", "emulated, cached")


@dataclass(frozen=True)
class StandIn:
    """What it stands in for, and what of the axes it goes with: what it refuses is left out."""

    with_it: Callable[[Config], Config]
    without: Callable[[Config], Config] = lambda config: config
    forms: tuple[str, ...] = ("pooled", "rows", "partial")
    codecs: tuple[str, ...] = ("fp32", *HALVES, "dct")
    memory: tuple[str, ...] = MEMORY
    store: type | None = None
    atol: float = 0.0


def policy(name: str) -> Callable[[Config], Config]:
    return lambda config: replace(config, policy=replace(config.policy, name=name))


def form(name: str) -> Callable[[Config], Config]:
    return lambda config: replace(config, exchange=replace(config.exchange, form=name))


def both(first: Callable[[Config], Config], second: Callable[[Config], Config]) -> Callable[[Config], Config]:
    return lambda config: second(first(config))


BLOCKWISE = ("fp32", "bf16")  # where other vectors cross together, fp16 scales other blocks
STAND_INS = {
    "hybrid": StandIn(policy("hybrid"), policy("hybrid")),
    "file": StandIn(lambda config: config, memory=("dram",), store=FileStore),
    "file, hybrid": StandIn(policy("hybrid"), policy("hybrid"), memory=("dram",), store=FileStore),
    "ahead": StandIn(policy("ahead"), forms=("pooled", "rows"), codecs=BLOCKWISE),
    "kept": StandIn(form("kept"), form("rows"), forms=("rows",), codecs=BLOCKWISE),
    "late": StandIn(form("late"), form("late"), forms=("rows",), codecs=("fp32", *HALVES)),
    "twice": StandIn(form("twice"), form("pooled"), forms=("pooled",), codecs=("fp32",), atol=1e-11),
    "relay": StandIn(form("relay"), form("pooled"), forms=("pooled",), codecs=("fp32", *HALVES)),
    "relay, hybrid": StandIn(
        both(form("relay"), policy("hybrid")),
        both(form("pooled"), policy("hybrid")),
        forms=("pooled",),
        codecs=("fp32", *HALVES),
    ),
}


def put_all(monkeypatch: pytest.MonkeyPatch) -> None:
    put_kept(monkeypatch)
    put_twice(monkeypatch)


def config_of(
    folder: Path, roles: Any, form: str, codec: str, optimizer: str, pooling: str, evict: Any, memory: str, beside: bool
) -> Config:
    """``beside``: checkpoints are written beside steps."""
    half = codec != "fp32"
    model = {"name": "fm" if form == "partial" else "dlrm", "pooling": {"history": pooling}}
    shards = {"user": "row", "item": "table", "tag": "column"}
    rules = {} if evict is None else {"dynamic": {"capacity": 24, "evict": evict}}
    tables = {t: {"shard": s if evict is None else "auto", **rules} for t, s in shards.items()}
    embedding = {"optimizer": {"name": optimizer, "lr": 0.1}, "share": {"history": "item"}, "tables": tables}
    store = {} if memory == "dram" else {"name": "gpu", "device": "emulated"}
    if memory.endswith("cached"):
        store["memory_bytes"] = 6000
    dct = {"dct": {"density": 0.4, "threshold": "feature", "every": 2}} if codec == "dct" else {}
    return config_for(
        folder,
        data={"train": str(folder / ("data.h5" if evict is None else "dynamic.h5"))},
        model=model,
        topology=roles,
        embedding=embedding,
        exchange={"form": "pooled" if codec == "dct" and form == "rows" else form, "codec": codec, **dct},
        store=store,
        checkpoint={"every": SAVED, "background": beside},
        train={"steps": STEPS, "dtype": "float32" if half else "float64"},
    )


def finished(config: Config, folder: Path, *, interrupted: bool) -> dict[str, np.ndarray]:
    """What a whole run has learned, by its last checkpoint."""
    config = replace(config, run=replace(config.run, folder=str(folder)))
    for steps in (SAVED, STEPS) if interrupted else (STEPS,):
        assert commands.train(replace(config, train=replace(config.train, steps=steps))) == 0
    with open_session(config, reading=False) as session:
        state.load(session, find_checkpoint(folder, "last", session.parts.world.main), resume=True)
        assert session.step == STEPS
        dynamic = any(spec.dynamic is not None for spec in session.parts.tables.values())
        return learned(session) if dynamic else results(session)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("name", STAND_INS)
def test_pairs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device_or_skip("emulated")
    write_data(folder / "data.h5")
    dynamic_runs.write_data(folder / "dynamic.h5")
    put_all(monkeypatch)
    of = STAND_INS[name]
    if "relay" in name:
        put_relays(monkeypatch)  # on hosts that are emulated
    axes = (of.forms, of.codecs, OPTIMIZERS, POOLINGS, DYNAMIC, of.memory, (True, False))
    for number, (roles, *case) in enumerate(covering_roles(*axes)):
        config = config_of(folder, roles, *case)
        expected = finished(of.without(config), folder / f"without-{number}", interrupted=False)
        with monkeypatch.context() as patch:
            if of.store is not None:
                patch.setitem(STORES, "dram", of.store)
            found = finished(of.with_it(config), folder / f"with-{number}", interrupted=True)
        if of.atol:
            with on_every_rank():
                for key, values in expected.items():
                    np.testing.assert_allclose(
                        found[key], values, rtol=0, atol=of.atol, err_msg=str((key, roles, case))
                    )
        else:
            same_bits(found, expected, (name, roles, case))
