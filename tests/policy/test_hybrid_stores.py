"""Policy ``hybrid`` over rows that move: cached ones, and dynamic tables, whose rows may go to other ids meanwhile."""

import itertools
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
from tests.policy.reference import DynamicHybridReference, hybrid
from tests.policy.test_hybrid import config_of, gone_on, same_bits, slowly, trained
from tests.stand_ins.file_store import FileStore
from tests.together import on_every_rank
from tests.training import dynamic_runs
from tests.training.runs import global_batches, write_data
from tests.training.test_dynamic import FORMS, OPTIMIZERS, RULES, SHORT, figures, sections
from tests.training.test_equivalence import roles_for

COMM = MPI.COMM_WORLD


class FewPlaces(FileStore):
    """Fewer places than a step asks for."""

    slots = 32


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_rows_in_a_file_below_a_cache_are_those_in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    for tau, way in ((1, "pooled"), (2, "rows"), (1, "partial"), (2, "some copies")):
        for roles in roles_for(COMM.size)[:2]:
            more = {"topology": roles, "train": {"steps": 15}, "checkpoint": {"every": 6}}
            with monkeypatch.context() as patch:
                expected = trained(config_of(folder, tau, way, **more))
                for store in (FileStore, FewPlaces):
                    patch.setitem(STORES, "dram", store)
                    same_bits(trained(config_of(folder, tau, way, **more)), expected, (roles, way, store))


def dynamic_of(folder: Path, tau: int | None, evict: str, roles: dict[str, Any], **more: dict[str, Any]) -> Config:
    rules = {"capacity": 24, "evict": evict}
    policy = {"name": "sync"} if tau is None else hybrid(tau)
    more["train"] = {"steps": 13, **more.get("train", {})}
    return dynamic_runs.dynamic_config(folder, rules, policy=policy, topology=roles, **more)


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
def test_dynamic_tables(evict: str, folder: Path) -> None:
    """Staleness 0 is ``sync``; the same bits at any speed, evaluated or not, and interrupted at a drain point."""
    dynamic_runs.write_data(folder / "data.h5")
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


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("tau", [1, 2, 5])
def test_rows_that_are_given_away_lose_the_gradients_under_way(tau: int, folder: Path) -> None:
    """Equal to one process, for all rules and forms; what is dropped is counted."""
    dynamic_runs.write_data(folder / "data.h5")
    forms, optimizers = itertools.cycle(FORMS), itertools.cycle(OPTIMIZERS)
    roles_in_turn, dropped, drains = itertools.cycle(roles_for(COMM.size)), 0, (4,)
    for rules in RULES if COMM.size == 1 else RULES[COMM.size % 2 :: 2]:
        form, optimizer = next(forms), next(optimizers)
        model = "fm" if form == "partial" else "deepfm"  # whose folded layer would be trained at owners
        roles = next(roles_in_turn)
        config = dynamic_runs.dynamic_config(
            folder,
            rules,
            **sections(roles, model, optimizer, form, "read" if form == "rows" else "routed", "mean"),
            policy=hybrid(tau),
            checkpoint={"every": drains[0]},
            train={**SHORT, "steps": 9},
        )
        with open_session(config) as session:
            one = dynamic_runs.Rules(session, dynamic_runs.reference_for(session, config), rules)
            batches = global_batches(session, session.total_steps)
            expected = DynamicHybridReference(one, batches, tau, (4, 8))
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                with on_every_rank():
                    assert abs(loss - expected.step()) < 1e-12, (rules, roles, form, step.number)
            found = figures(session)
            with on_every_rank():
                for table, rows in dynamic_runs.learned(session).items():
                    known = next(one.rows[f.name] for f in one.families if table in f.tables)
                    assert rows.keys() == known, (rules, roles, form)
                    ids_T, whole = dynamic_runs.ids_of_table(table), one.reference.rows(table)
                    for i, row in rows.items():
                        np.testing.assert_allclose(row, whole[np.searchsorted(ids_T, i)], rtol=0, atol=1e-11)
                assert sum(of["dropped"] for of in found.values()) == expected.dropped
            dropped += expected.dropped
    with on_every_rank():
        assert dropped > 0
