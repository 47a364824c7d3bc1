"""Policy ``delayed`` over rows that move: cached ones, and dynamic tables, whose rows may go to other ids meanwhile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.config import Config
from hpcrec.embedding.stores import STORES
from hpcrec.training.session import Session, Step
from tests.policy.delayed import put_delayed
from tests.policy.test_delayed import config_of, gone_on, same_bits, slowly, trained
from tests.stand_ins.file_store import FileStore
from tests.training import dynamic_runs
from tests.training.runs import write_data
from tests.training.test_equivalence import roles_for

COMM = MPI.COMM_WORLD


class FewPlaces(FileStore):
    """Fewer places than a step asks for."""

    slots = 32


@pytest.mark.parallel([1, 2, 3])
def test_rows_in_a_file_below_a_cache_are_those_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_delayed(monkeypatch, 1, 2)
    for delay, way in ((1, "pooled"), (2, "rows"), (1, "partial"), (2, "some copies")):
        for roles in roles_for(COMM.size)[:2]:
            more = {"topology": roles, "train": {"steps": 15}, "checkpoint": {"every": 6}}
            with monkeypatch.context() as patch:
                expected = trained(config_of(folder, delay, way, **more))
                for store in (FileStore, FewPlaces):
                    patch.setitem(STORES, "dram", store)
                    same_bits(trained(config_of(folder, delay, way, **more)), expected, (roles, way, store))


def dynamic_of(folder: Path, delay: int | None, evict: str, roles: dict[str, Any], **more: dict[str, Any]) -> Config:
    rules = {"capacity": 24, "evict": evict}
    name = "sync" if delay is None else f"delayed{delay}"
    more["train"] = {"steps": 13, **more.get("train", {})}
    return dynamic_runs.dynamic_config(folder, rules, policy={"name": name}, topology=roles, **more)


def learned(session: Session) -> dict[str, Any]:
    """Ids and rows of every table, and dense parameters."""
    session.parts.pipeline.settle()
    found: dict[str, Any] = {}
    for table, rows in dynamic_runs.learned(session).items():
        ids = sorted(rows)
        found |= {f"{table} ids": np.array(ids), table: np.array([rows[i] for i in ids])}
    model = session.model
    dense = None if model is None else {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    return {**found, **COMM.bcast(dense, root=session.topology.dense[0])}


def grown(config: Config, before: Callable[[Session, Step], None] = lambda session, step: None) -> dict[str, Any]:
    with open_session(config) as session:
        for step in session.steps():
            before(session, step)
            step.run()
        return learned(session)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_dynamic_tables(evict: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay 0 is ``sync``; the same bits at any speed, evaluated or not, and interrupted at a drain point."""
    dynamic_runs.write_data(folder / "data.h5")
    put_delayed(monkeypatch, 0, 1)
    validated = {"data": {"validation": str(folder / "data.h5")}}
    for number, roles in enumerate(roles_for(COMM.size)[:2]):
        same_bits(grown(dynamic_of(folder, 0, evict, roles)), grown(dynamic_of(folder, None, evict, roles)), roles)
        drains = {"checkpoint": {"every": 6, "keep_best": False}}
        run = {"run": {"folder": str(folder / f"run-{evict}-{number}")}}
        config = dynamic_of(folder, 1, evict, roles, **drains, **run)
        expected = grown(config)
        same_bits(grown(config, slowly(0.01)), expected, (roles, "slowly"))

        def evaluate(session: Session, step: Step) -> None:
            if step.number in (3, 9):
                session.evaluate("validation")

        evaluated = dynamic_of(folder, 1, evict, roles, **drains, **validated, train={"eval_every": 3})
        same_bits(grown(evaluated, evaluate), expected, (roles, "evaluated"))
        with open_session(config) as session:
            for step in session.steps():
                step.run()
                if session.step == 6:
                    state.save(session, Path(config.run.folder), {})
                    break
        same_bits(gone_on(config, learned), expected, (roles, "resumed"))
