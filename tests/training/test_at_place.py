"""Towers computed by owners of the host that has their rows: they learn as in one process, on any hosts and ranks."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.topology import assign_roles
from hpcrec.config import Config
from hpcrec.training.session import Session
from tests.pairs import covering
from tests.together import on_every_rank
from tests.training.runs import config_for, global_batches, train, write_data
from tests.training.test_equivalence import Some, roles_for, shared_out_or_all
from tests.training.test_folded import OPTIMIZERS, oracle_for, oracle_step, rows_at_one_rate, same_parameters
from tests.training.test_host_sums import on_hosts

__all__ = ["rows_at_one_rate"]  # a fixture

COMM = MPI.COMM_WORLD
STEPS = 5
HOSTS = {
    1: ((0,),),
    2: ((0, 0), (0, 1)),
    3: ((0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 2)),
    4: ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 3)),
}
TOWERS: dict[str, dict[str, Any]] = {
    "two": {"towers": [["user", "tag"], ["item", "history"]]},
    "one, and others outside": {"towers": [["history", "user", "item"]]},
    "four, of a feature each": {"n_towers": 4, "ratio": 1, "module": "cross"},
}
EIGHT = {"eight, of a feature each": {"n_towers": 8, "ratio": 1, "module": "cross"}}
SHARDS: dict[str, dict[str, Any]] = {
    "open": {},
    "rows": {name: {"shard": "host"} for name in ("user", "tag")},
    "dynamic": {"user": {"dynamic": {"capacity": 64}}, "tag": {"dynamic": {"capacity": 32}, "shard": "table"}},
}


def config_of(
    folder: Path,
    roles: dict[str, Any],
    *,
    model: str = "dmt_dlrm",
    towers: str = "two",
    shard: str = "open",
    optimizer: str = "Adam",
    clip: float | None = None,
    form: str = "partial",
    options: dict[str, Any] | None = None,
    width: int = 6,
    **sections: dict[str, Any],
) -> Config:
    given = {"ratio": 2, **{**TOWERS, **EIGHT}[towers], **(options or {})}
    share = {} if "of a feature each" in towers else {"history": "item"}
    dense: dict[str, Any] = {"reducer": "mpi", "optimizer": OPTIMIZERS[optimizer]}
    wanted: dict[str, dict[str, Any]] = {
        "topology": roles,
        "model": {"name": model, "options": given, "width": width},
        "exchange": {"form": form, **sections.pop("exchange", {})},
        "embedding": {"tables": SHARDS[shard], "share": share, **sections.pop("embedding", {})},
        "dense": {**dense, **({} if clip is None else {"clip_norm": clip}), **sections.pop("dense", {})},
        "schedule": {"warmup_steps": 3, "apply_to_embeddings": False},
        "train": {"steps": STEPS, **sections.pop("train", {})},
        **sections,
    }
    return config_for(folder, **wanted)


def computed(session: Session) -> set[str]:
    """Operators that owners compute."""
    return {m.operator for m in session.parts.exchange.layout.meetings}


def cases_of(hosts: Sequence[tuple[int, ...]], roles: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Hosts, roles, and everything else that a case is made of, in every pair."""
    return covering(
        tuple(hosts),
        tuple(roles),
        ("dmt_dlrm", "dmt_dcn"),
        tuple(TOWERS),
        ("open", "rows"),
        tuple(OPTIMIZERS),
        ("sgd", "adagrad", "rowwise_adagrad", "adam"),
        ("read", "routed"),
        ("flat", "levels"),
    )


def learns_as_in_one_process(folder: Path, case: tuple[Any, ...]) -> bool:
    """Holds a case, on hosts that have been said, to the reference; whether a tower had vectors of several owners."""
    _, roles, model, towers, shard, optimizer, rows, ids, path = case
    config = config_of(
        folder,
        roles,
        model=model,
        towers=towers,
        shard=shard,
        optimizer=optimizer,
        clip=0.05 if rows in ("sgd", "adam") else None,
        exchange={"ids": ids, "path": path},
        embedding={"optimizer": {"name": rows, "lr": 0.05}},
    )
    with open_session(config) as session:
        reference, batches = oracle_for(session, config), global_batches(session, STEPS)
        assert computed(session) == set(config_towers(config)), case
        for step in session.steps():
            loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
            expected = oracle_step(reference, session, batches[step.number], step.number)
            with on_every_rank():
                assert abs(loss - expected) < 1e-10, (case, step.number, loss, expected)
        same_parameters(session, reference)
        return max(len(m.members) for m in session.parts.exchange.layout.meetings) > 1


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_other_parameters_are_summed_by_horovod_beside_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the recipe of [DMT] has it: modules at their place among their owners, all else by Horovod."""
    write_data(folder / "data.h5")
    hosts = next(of for of in HOSTS[COMM.size] if len(set(of)) > 1)
    on_hosts(monkeypatch, hosts)
    for model in ("dmt_dlrm", "dmt_dcn"):
        config = config_of(folder, {"mode": "fused"}, model=model, dense={"reducer": "horovod"}, clip=0.05)
        with open_session(config) as session:
            reference, batches = oracle_for(session, config), global_batches(session, STEPS)
            assert computed(session) == set(config_towers(config))
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                expected = oracle_step(reference, session, batches[step.number], step.number)
                with on_every_rank():
                    assert abs(loss - expected) < 1e-10, (hosts, model, step.number)
            same_parameters(session, reference)


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all
def test_towers_at_their_place_learn_as_in_one_process(
    some: Some, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, rows and parameters; ids read and routed, by both paths, clipped, by every optimizer."""
    write_data(folder / "data.h5")
    several = 0
    for case in some(cases_of(HOSTS[COMM.size], roles_for(COMM.size))):
        on_hosts(monkeypatch, case[0])
        several += learns_as_in_one_process(folder, case)
    if some is list or COMM.size != 2:  # of so few cases none has it on two ranks
        assert (several > 0) == (COMM.size > 1), "no tower had vectors of several owners"


def config_towers(config: Config) -> list[str]:
    options = config.model.options
    n = len(options["towers"]) if "towers" in options else options["n_towers"]
    return [f"tower{number}" for number in range(n)]


@pytest.mark.parallel([2, 3, 4])
def test_identity_towers_have_the_bits_of_pooled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    for hosts, roles in zip(itertools.cycle(HOSTS[COMM.size]), roles_for(COMM.size), strict=False):
        for path in ("flat", "levels"):
            on_hosts(monkeypatch, hosts)
            more: dict[str, Any] = {"options": {"module": "identity", "ratio": 1}, "exchange": {"path": path}}
            owners, _ = assign_roles(hosts, **roles)
            beside = min(1, len(owners) - 1) * (hosts[owners[min(1, len(owners) - 1)]] == hosts[owners[0]])
            placed = {"user": 0, "tag": beside, "item": len(owners) - 1}  # the same under both forms
            more["embedding"] = {
                "tables": {name: {"shard": "table", "owners": [owner]} for name, owner in placed.items()}
            }
            found = [train(config_of(folder, roles, form=form, **more)) for form in ("pooled", "partial")]
            with on_every_rank():
                about = f"{hosts} {roles} {path}"
                np.testing.assert_array_equal(found[0][0], found[1][0], err_msg=about)
                for wanted, those in zip(found[0][1:], found[1][1:], strict=True):
                    for name, values in wanted.items():
                        np.testing.assert_array_equal(those[name], values, err_msg=f"{about}: {name}")


@pytest.mark.parallel([4])
def test_bytes_between_hosts_are_those_of_results(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients by the ledger: what towers give, of samples of other hosts, and nothing else."""
    write_data(folder / "data.h5", samples=256)
    on_hosts(monkeypatch, (0, 0, 1, 1))
    sent = {}
    for form in ("pooled", "partial"):
        config = config_of(
            folder,
            {"mode": "fused"},
            form=form,
            width=32,
            options={"ratio": 4, "bottom": [12], "top": [10]},
            train={"batch_size": 64, "dtype": "float32"},
        )
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            ledger = session.parts.world.ledger.snapshot()
            mine = [int(ledger[TAGS.index(tag), 1]) for tag in ("values", "gradients")]
            sent[form] = np.array(COMM.allgather(mine)).sum(axis=0)
    a_step = 2 * 2 * 16 * 16 * 4  # of 2 towers, to 2 ranks each, 16 samples, 16 elements, 4 bytes
    values, gradients = sent["partial"] / STEPS
    with on_every_rank():
        assert values == a_step and a_step <= gradients <= a_step + 4 * 64, (sent, a_step)  # with the verdict
        assert (sent["partial"] * 3.5 < sent["pooled"]).all(), sent
