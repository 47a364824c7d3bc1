"""Policy ``ahead``: reads and updates in two parts give the bits of ``sync``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.config import Config
from hpcrec.embedding.stores import STORES
from hpcrec.errors import ConfigError
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.route import Route
from hpcrec.training.session import Session, Step
from tests.devices import device_or_skip
from tests.policy.test_hybrid import CODECS, OPTIMIZERS, config_of, results, same_bits, slowly, trained
from tests.policy.test_hybrid_stores import FewPlaces, dynamic_of, grown
from tests.stand_ins.file_store import FileStore
from tests.together import on_every_rank
from tests.training.runs import write_data
from tests.training.test_equivalence import Cases, roles_for, shared_out_or_all_cases
from tests.training.test_nonfinite import SKIP, spoil

COMM = MPI.COMM_WORLD
WAYS = ("rows", "pooled", "pooled, by columns", "copies", "some copies")


def ahead(config: Config) -> Config:
    return replace(config, policy=replace(config.policy, name="ahead"))


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Of each step that came in two parts on this rank: bags that were early, that were urgent, and all."""
    found, real = list[tuple[int, int, int]](), Exchange.learn_rest

    def learn_rest(exchange: Exchange, route: Route, ahead: Route, **of_step: Any) -> None:
        if ahead.early is not None and route.urgent is not None:
            found.append((int(ahead.early.sum()), int(route.urgent.sum()), len(route.urgent)))
        real(exchange, route, ahead, **of_step)

    monkeypatch.setattr(Exchange, "learn_rest", learn_rest)
    return found


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_parts_give_the_bits_of_the_whole(cases_of: Cases, folder: Path, crossed: list[Any]) -> None:
    write_data(folder / "data.h5")
    codecs = ({}, {"exchange": {"codec": "bf16"}, "train": {"dtype": "float32"}})
    for roles, way, optimizer, codec in cases_of(WAYS, OPTIMIZERS, codecs):
        ids = {"ids": "read" if optimizer == "adam" else "routed"}
        more = {"topology": roles, "checkpoint": {"every": 5}, "train": {**codec.get("train", {}), "steps": 9}}
        config = config_of(folder, None, way, optimizer, **more, exchange={**codec.get("exchange", {}), **ids})
        expected = trained(config)
        same_bits(trained(ahead(config)), expected, (roles, way, optimizer, codec))
    early, urgent, every = COMM.allreduce(np.array(crossed or [(0, 0, 0)]).sum(axis=0))
    with on_every_rank():
        assert 0 < early < every and 0 < urgent < every  # both parts have something


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_rows_that_other_ids_get(evict: str, folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles in roles_for(COMM.size):
        config = dynamic_of(folder, None, evict, roles)
        same_bits(grown(ahead(config)), grown(config), roles)


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_a_step_left_out_between_the_parts(cases_of: Cases, folder: Path) -> None:
    write_data(folder / "data.h5")

    def spoiled(session: Session, step: Step) -> None:
        if step.number in (2, 3):
            spoil(session, step)

    for roles, way in cases_of(WAYS):
        config = config_of(folder, None, way, topology=roles, train={**SKIP, "steps": 7})
        same_bits(trained(ahead(config), spoiled), trained(config, spoiled), (roles, way))


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_below_a_cache_and_on_devices(cases_of: Cases, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    device_or_skip("emulated")
    for roles, way, optimizer in cases_of(WAYS, OPTIMIZERS):
        config = config_of(folder, None, way, optimizer, topology=roles, train={"steps": 9})
        expected = trained(config)
        for store in (FileStore, FewPlaces):
            with monkeypatch.context() as patch:
                patch.setitem(STORES, "dram", store)
                same_bits(trained(ahead(config)), expected, (roles, way, optimizer, store))
        for memory in (None, 6000):
            there = replace(config.store, name="gpu", device="emulated", memory_bytes=memory)
            same_bits(trained(ahead(replace(config, store=there))), expected, (roles, way, optimizer, memory))


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_ranks_of_any_speed_evaluated_or_not_and_stopped(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles in roles_for(COMM.size)[:2]:
        more = {"topology": roles, "data": {"validation": str(folder / "data.h5")}, "checkpoint": {"keep_best": False}}
        config = ahead(config_of(folder, None, "rows", **more, train={"steps": 12, "eval_every": 5}))
        expected = trained(config_of(folder, None, "rows", **more, train={"steps": 12}))
        seen = []

        def evaluate(session: Session, step: Step, seen: list[Any] = seen) -> None:
            if step.number in (4, 5, 10):
                seen.append(session.evaluate("validation")["logloss"])

        same_bits(trained(config, slowly(0.005)), expected, roles)
        same_bits(trained(config, evaluate), expected, roles)
        assert len(seen) == 3
        with open_session(config) as session:
            for step in session.steps():
                if step.number == 3 and session.topology.rank == COMM.size - 1:
                    session.parts.signal.requested = True
                step.run()
            assert session.stopped and session.parts.pipeline.rested()
            session.parts.signal.requested = session.stopped = False
            for step in session.steps():
                step.run()
            found = results(session)
        expected.pop("losses")
        same_bits(found, expected, roles)


@pytest.mark.parallel([1, 2])
def test_what_does_not_come_in_parts_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    cases = [("pooled", CODECS[name], f"exchange.codec is '{name}'") for name in ("dct", "fp16")]
    for way, more, why in (*cases, ("partial", {}, "owners compute")):
        with on_every_rank(), pytest.raises(ConfigError, match=why):
            open_session(ahead(config_of(folder, None, way, topology=roles_for(COMM.size)[0], **more)))
