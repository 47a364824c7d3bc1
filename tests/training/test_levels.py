"""Messages by way of one rank of each host change no bit of a run, whatever is trained on whichever hosts."""

import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.comm import levels, window
from hpcrec.comm import world as world_module
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.errors import ConfigError
from tests.together import on_every_rank
from tests.training.runs import config_for, finished, gather_tables, train, write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_nonfinite import spoil
from tests.training.test_store_gpu import CASES as FORMS
from tests.training.test_store_gpu import same, tables_of

COMM = MPI.COMM_WORLD
HOSTS = {3: ((0, 0, 1), (0, 1, 0)), 4: ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 2))}
EVERY_RANK = {"mode": "fused"}
LIMITS = ((8192, 65536), (150, 400), (1, 1 << 40), (1, 1))
CASES: dict[str, dict[str, Any]] = {
    **FORMS,
    "hybrid": {"policy": {"name": "hybrid", "staleness": 1}},
    "ahead": {"policy": {"name": "ahead"}, "exchange": {"form": "rows"}},
    "cached": {"policy": {"name": "cached", "staleness": 2, "capacity": 9}},
    "cached ahead": {"policy": {"name": "cached", "staleness": 2, "lookahead": 1}},
    "ids that owners read": {"exchange": {"ids": "read"}},
    "groups": {
        "dense": {"codistillation": {"groups": 2, "weight": 0.5, "burn_in_steps": 1}},
        "topology": EVERY_RANK,
        "train": {"batch_size": 14},
    },
    "one after the other": {"exchange": {"prefetch": 0}},
}


AHEAD = pytest.mark.filterwarnings("ignore:exchange.path is 'levels', but policy.name is 'ahead'")
pytestmark = AHEAD


def uncoded_inside(patch: pytest.MonkeyPatch) -> None:
    """Flat too, codecs write only what crosses hosts: else runs differ in what they round."""
    patch.setattr(world_module.World, "uncoded_ranks", property(lambda self: self.topology.host_ranks))


def limits_in_turn(patch: pytest.MonkeyPatch, number: int) -> None:
    """Messages of two hosts cross as one; some so and others not; one of each rank; each by itself."""
    patch.setattr(levels, "FEW", 0)
    for limit, n_bytes in zip(("PEER_BYTES", "ALONE_BYTES"), LIMITS[number % len(LIMITS)], strict=True):
        patch.setattr(levels, limit, n_bytes)


def config_of(folder: Path, path: str, **sections: dict[str, Any]) -> Config:
    wanted = {**sections, "exchange": {"reduce": "dense", **sections.get("exchange", {}), "path": path}}
    return config_for(folder, **{**wanted, "train": {"steps": 5, **sections.get("train", {})}})


@pytest.mark.parallel([3, 4])
def test_every_run_has_the_bits_of_the_flat_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    uncoded_inside(monkeypatch)
    hosts, roles = HOSTS[COMM.size], list(roles_for(COMM.size))
    for number, (name, sections) in enumerate(CASES.items()):
        own = hosts[number % len(hosts)]
        monkeypatch.setattr(world_module, "hosts_of", lambda comm, own=own: own)
        limits_in_turn(monkeypatch, number // len(hosts))
        if name == "groups" and COMM.size % 2:
            continue
        given = {"topology": roles[number % len(roles)], **sections}
        run = tables_of if name == "dynamic" else train
        wanted, found = (run(config_of(folder, path, **given)) for path in ("flat", "levels"))
        if name == "dynamic":
            assert found == wanted, name
        else:
            same(found, wanted)


@pytest.mark.parallel([3, 4])
def test_evaluations_and_steps_that_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: (0, 0, 1, 1)[: comm.size])
    data = {name: str(folder / "data.h5") for name in ("train", "validation")}
    seen = []
    for path in ("flat", "levels"):
        config = config_of(folder, path, data=data, train={"nonfinite": "skip"}, topology=EVERY_RANK)
        with open_session(config) as session:
            assert session.parts.world.by_levels == (path == "levels")
            for step in session.steps():
                if step.number == 2:
                    spoil(session, step)
                step.run()
            assert session.guard.skipped == 1
            seen.append((session.evaluate("validation"), {n: r.tobytes() for n, r in gather_tables(session).items()}))
    assert seen[0] == seen[1]


@pytest.mark.parallel([4])
def test_fewer_messages_cross_and_as_many_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two hosts of two ranks each phase has one message each way, where flat there are four; by the ledger."""
    write_data(folder / "data.h5")
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: (0, 0, 1, 1))
    told = {}
    for path in ("flat", "levels"):
        with open_session(config_of(folder, path, topology={"mode": "fused"})) as session:
            assert session.parts.world.describe()["path"] == path
            for step in session.steps():
                step.run()
            session.parts.pipeline.settle()
            ledger = session.parts.world.ledger
            told[path] = [COMM.allreduce(of[:, 1]) for of in (ledger.snapshot(), ledger.messages())]
    with on_every_rank():
        for tag in ("ids", "values", "gradients"):
            at = TAGS.index(tag)
            assert told["flat"][0][at] == told["levels"][0][at] > 0, tag
            assert told["flat"][1][at] == 4 * told["levels"][1][at] > 0, tag


@pytest.mark.parallel([3])
def test_what_is_asked_for_in_vain_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: (0, 0, 1))
    config = config_of(folder, "levels", topology=EVERY_RANK, policy={"name": "ahead"}, exchange={"form": "rows"})
    told = pytest.warns(UserWarning, match="by which steps cross in two parts") if COMM.rank == 0 else nullcontext()
    with told, open_session(config) as session:
        assert session.parts.world.by_levels


@pytest.mark.parallel([3, 4])
def test_goes_on_from_a_checkpoint_by_the_other_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: (0, 0, 1, 1)[: comm.size])
    keep: dict[str, Any] = {
        "checkpoint": {"every": 2},
        "data": {"train": str(folder / "data.h5"), "chunk": 8, "window": 3},
    }
    wanted = finished(config_of(folder / "whole", "flat", **keep), gather_tables)
    for first, second in (("levels", "flat"), ("flat", "levels")):
        run = folder / first
        finished(config_of(run, first, **keep), gather_tables, stop_at=2)
        found = finished(config_of(run, second, **keep), gather_tables, resume=True)
        with on_every_rank():
            assert all((found[table] == rows).all() for table, rows in wanted.items()), first


@pytest.mark.parallel([3])
@pytest.mark.parametrize("shared", [0, 2, 4])
def test_it_says_so_where_memory_cannot_be_shared(folder: Path, shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any communicator: after the windows of the first ones there may be no room for more."""
    write_data(folder / "data.h5")
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: (0, 0, 1))
    opened, count = window.Windows.open_theirs, itertools.count()

    def refused(*given: Any) -> Any:
        if next(count) >= shared:
            raise OSError("not allowed")
        return opened(*given)

    monkeypatch.setattr(window.Windows, "open_theirs", refused)
    config = config_of(folder, "levels", policy={"name": "hybrid", "staleness": 1})
    told = pytest.warns(UserWarning, match=r"cannot share memory \(.*not allowed.*\): the path is flat")
    with told if COMM.rank == 0 else nullcontext(), open_session(config) as session:
        world = session.parts.world
        assert world.describe()["path"] == "flat" and not any(of.by_levels for of in world._of_all())
        assert next(session.steps()).run() > 0


@pytest.mark.parametrize(
    ("exchange", "why"),
    [({"windows": False}, r"exchange.windows is false"), ({"gpu_messages": "on"}, r"exchange.gpu_messages is 'on'")],
)
def test_what_does_not_go_with_it_is_refused(exchange: dict[str, Any], why: str) -> None:
    more = {"store": {"name": "gpu"}} if "gpu_messages" in exchange else {}
    with pytest.raises(ConfigError, match=rf"exchange.path is 'levels', .*{why}"):
        config_for(Path("/nowhere"), exchange={"path": "levels", **exchange}, **more)
