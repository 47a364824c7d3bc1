"""Ranks of one machine taken for several hosts (``topology.places``): what crosses between places is what would."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.memory import topology_of
from hpcrec.build.session import open_session
from hpcrec.comm import world as world_module
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.topology import places_of
from hpcrec.config import Config
from tests.together import on_every_rank
from tests.training.runs import config_for, gather_tables, train, write_data
from tests.training.test_host_sums import ROWS, close
from tests.training.test_store_gpu import same

COMM = MPI.COMM_WORLD


def config_of(folder: Path, path: str, places: int | None, **sections: dict[str, Any]) -> Config:
    exchange = {"path": path, **sections.pop("exchange", {})}
    topology = {"places": places, **sections.pop("topology", {})}
    return config_for(folder, train={"steps": 5}, exchange=exchange, topology=topology, **ROWS, **sections)


def crossed(config: Config, hosts: tuple[int, ...] = (0,) * COMM.size) -> tuple[Any, Any, dict[str, Any]]:
    """Losses and rows; bytes and messages to other places by tag, of all ranks; what the summary says of ranks."""
    with open_session(config) as session:
        main, ledger = session.parts.world.main, session.parts.world.ledger
        losses = [float(main.allreduce(np.array([step.run()]))[0]) for step in session.steps()]
        session.parts.pipeline.settle()
        counted = {
            tag: [int(n) for n in COMM.allreduce(np.array([of[TAGS.index(tag), 1] for of in both]))]
            for both in [(ledger.snapshot(), ledger.messages())]
            for tag in TAGS
        }
        told = commands._topology(session)
        with on_every_rank():
            planned = topology_of(config, hosts, COMM.rank)
            assert planned == session.topology, "what is planned for ranks is what they do"
        return (losses, gather_tables(session)), counted, told


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("places", [1, 2])
def test_a_run_in_places_has_the_bits_of_one_host(folder: Path, places: int) -> None:
    write_data(folder / "data.h5")
    plain = {"exchange": {"reduce": "dense"}}
    wanted = train(config_of(folder, "flat", None, **plain))
    for path in ("flat", "levels"):
        same(train(config_of(folder, path, places, **plain)), wanted)


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("mode", ["fused", "split"])
def test_what_crosses_is_counted_and_added_by_place(folder: Path, mode: str) -> None:
    """On 4 ranks in places of 2, and 3 in one of 2 and one of 1: bytes leave a place, messages go by its gates."""
    write_data(folder / "data.h5")
    roles = {"mode": mode} if mode == "fused" else {"mode": mode, "owners": 2}  # in one place where ranks are 3
    run_host, host, _ = crossed(config_of(folder, "flat", None, topology=roles))
    run_flat, flat, said = crossed(config_of(folder, "flat", 2, topology=roles))
    run, levels, told = crossed(config_of(folder, "levels", 2, topology=roles))
    close(run_flat, run_host, "places, flat")
    close(run, run_host, "places, by levels")
    with on_every_rank():
        assert all(of == [0, 0] for of in host.values()), host
        assert told["host_of_rank"] == [0] * COMM.size
        assert told["place_of_rank"] == said["place_of_rank"] == list(places_of([0] * COMM.size, 2))
        assert (said["path"], told["path"]) == ("flat", "levels")
        assert told["added"] == ["history", "tag"]
        for tag in ("values", "gradients"):
            assert 0 < levels[tag][0] < flat[tag][0], (tag, levels, flat)
            assert 0 < levels[tag][1] < flat[tag][1], (tag, levels, flat)
        assert levels["ids"][1] < flat["ids"][1]


@pytest.mark.parallel([4])
def test_bytes_across_places_are_those_across_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ledger as on two hosts of two ranks, but for where the ranks are said to be."""
    write_data(folder / "data.h5")
    placed, by_place, told = crossed(config_of(folder, "levels", 2))
    hosts = (0, 0, 1, 1)
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: hosts)
    run, by_host, said = crossed(config_of(folder, "levels", None), hosts)
    with on_every_rank():
        assert run[0] == placed[0] and all(np.array_equal(run[1][t], rows) for t, rows in placed[1].items())
        assert by_host == by_place and by_host["values"][0] > 0
        assert said["host_of_rank"] == told["place_of_rank"] == [0, 0, 1, 1]
        assert "place_of_rank" not in said and {**told, **said} == {**said, "place_of_rank": [0, 0, 1, 1]}
