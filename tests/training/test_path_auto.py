"""``exchange.path = "auto"``: the path, and the forms, of fewest seconds by the prices; kept by checkpoints."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint import files, state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm import prices
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.levels import ALONE_BYTES, PEER_BYTES
from hpcrec.comm.prices import PATHS, Prices
from hpcrec.config import Config, validate
from hpcrec.errors import CheckpointError, ConfigError
from hpcrec.training.session import Session
from tests.together import on_every_rank
from tests.training.runs import finished, gather_tables, train, write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_host_sums import EVERY_RANK, HOSTS, ROWS, config_of, on_hosts
from tests.training.test_store_gpu import same

COMM = MPI.COMM_WORLD
BY_PHASE, BY_BYTE = Prices(1e-3, 1e-3, 1e-12, 1e-12, 1e-3), Prices(1e-9, 1e-9, 1e-6, 1e-12, 1e-9)
CHEAP = Prices(1e-9, 1e-9, 1e-12, 1e-12, 1e-9)


def priced(monkeypatch: pytest.MonkeyPatch, flat: Prices, levels: Prices) -> None:
    monkeypatch.setattr(prices, "measure", lambda world: {"flat": flat, "levels": levels})


def opened(config: Config) -> tuple[str, dict[str, Any]]:
    with open_session(config) as session:
        chosen = session.parts.chosen
        return session.parts.world.describe()["path"], {} if chosen is None else chosen.found  # type: ignore[return-value]


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("form", ["pooled", "rows", "auto"])
def test_takes_the_path_of_fewest_seconds(folder: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """And trains as a run that is told this path, to the bit."""
    write_data(folder / "data.h5")
    hosts, roles = itertools.cycle(HOSTS[COMM.size]), itertools.cycle(roles_for(COMM.size))
    for path, flat, levels in (("flat", CHEAP, BY_PHASE), ("levels", BY_PHASE, CHEAP)):
        priced(monkeypatch, flat, levels)
        on_hosts(monkeypatch, next(hosts))
        given = {"exchange": {"form": form}, "topology": next(roles), **ROWS}
        with open_session(config_of(folder, "auto", **given)) as session:
            found = session.parts.chosen
            assert session.parts.world.by_levels == (path == "levels")
        with on_every_rank():
            assert found is not None and found.found["path"] == path
            ways = found.found["predicted_exchange_s"].keys()
            assert set(PATHS) <= ways <= {*PATHS, "flat, tables within hosts"}
        if form == "auto":  # which is told, for bytes inside a host count for another part of those between them
            forms = {f: way for f, way in found.found["forms"].items() if f not in found.found["copied_tables"]}
            copies = {table: {"shard": "replicate"} for table in found.found["copied_tables"]}
            given = {**given, "embedding": {"tables": {**ROWS["embedding"]["tables"], **copies}}}
            told = config_of(folder, path, **{**given, "exchange": {"forms": forms}})
            same(train(config_of(folder, "auto", **{**given, "exchange": {"form": "auto"}})), train(told))
        else:
            same(*(train(config_of(folder, one, **given)) for one in ("auto", path)))


@pytest.mark.parallel([4])
def test_what_a_byte_between_hosts_costs_decides(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bags that are dealt over all owners: hosts add them, and fewer bytes cross."""
    write_data(folder / "data.h5", samples=400)
    on_hosts(monkeypatch, (0, 0, 1, 1))
    tables = {name: {"shard": "row"} for name in ("history", "tag", "user", "item")}
    given = {"embedding": {"share": {}, "tables": tables}, "topology": EVERY_RANK, "train": {"batch_size": 200}}
    priced(monkeypatch, BY_BYTE, BY_BYTE)
    path, found = opened(config_of(folder, "auto", **given))
    priced(monkeypatch, BY_PHASE, BY_PHASE)
    other, alike = opened(config_of(folder, "auto", **given))
    with on_every_rank():
        assert (path, other) == ("levels", "flat"), "and of equal cost the simpler one"
        bytes_of, seconds = found["predicted_bytes"], found["predicted_exchange_s"]
        assert bytes_of["levels"]["far"] < 0.95 * bytes_of["flat"]["far"]
        assert seconds["levels"] == pytest.approx(4e-9 + 2e-9 + 1e-6 * bytes_of["levels"]["far"] / 2, rel=1e-4)
        assert alike["predicted_exchange_s"]["flat"] == pytest.approx(4e-3, rel=1e-3)


@pytest.mark.parallel([4])
def test_tables_within_hosts_are_looked_at_by_the_flat_path_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a meeting costs more than what levels save of bags that are dealt; kept by the checkpoint."""
    write_data(folder / "data.h5", samples=400)
    on_hosts(monkeypatch, (0, 0, 1, 1))
    tables = {name: {"dynamic": {"capacity": 400}} for name in ("history", "tag")}  # one a host
    given = {"embedding": {"share": {}, "tables": tables}, "topology": EVERY_RANK, "train": {"batch_size": 200}}
    given |= {"checkpoint": {"every": 2}, "exchange": {"form": "pooled"}}
    priced(monkeypatch, BY_BYTE, replace(BY_BYTE, meeting_s=10.0))
    config, seen = config_of(folder, "auto", **given), []

    def placed(session: Session) -> Any:
        hosts, family = session.topology.host_of, session.parts.exchange.layout.family_of["history"]
        return session.parts.world.by_levels, {hosts[rank] for rank in family.holders}, session.parts.chosen.found

    for stop, resume in ((2, False), (None, True)):
        seen.append(finished(config, placed, stop_at=stop, resume=resume))
        priced(monkeypatch, CHEAP, CHEAP)
    with on_every_rank():
        for by_levels, hosts, found in seen:
            assert (by_levels, len(hosts)) == (False, 1)
            assert (found["path"], found["tables_within_hosts"]) == ("flat", True)
        far = {way: of["far"] for way, of in seen[0][2]["predicted_bytes"].items()}
        assert far["levels"] < far["flat, tables within hosts"] < 0.9 * far["flat"]
    there = files.step_folder(folder / "run", 2) / files.STATE
    if COMM.rank == 0:
        said = json.loads(there.read_text())
        del said["exchange"]["tables_within_hosts"]  # as of before it was looked at
        there.write_text(json.dumps(said))
    COMM.Barrier()
    with open_session(config) as session:
        _, hosts, _ = placed(session)
    with on_every_rank():
        assert len(hosts) == 2


@pytest.mark.parallel([4])
def test_forms_are_chosen_with_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bytes inside a host cost nothing, what is taken is no more between hosts than what is fewest in all."""
    write_data(folder / "data.h5", samples=400)
    on_hosts(monkeypatch, (0, 0, 1, 1))
    given = {"exchange": {"form": "auto"}, "topology": EVERY_RANK, "train": {"batch_size": 200}, **ROWS}
    given["exchange"]["auto_copies"] = 0
    seen = {}
    for name, near_s in (("free", 0.0), ("as much", 1e-6)):
        cost = Prices(0.0, 0.0, 1e-6, near_s, 0.0)
        priced(monkeypatch, cost, cost)
        seen[name] = opened(config_of(folder, "auto", **given))
    with on_every_rank():
        far = [of["predicted_bytes"][path]["far"] for path, of in seen.values()]
        assert far[0] <= far[1]
        for path, found in seen.values():
            assert found["predicted_exchange_s"][path] == min(found["predicted_exchange_s"].values())


@pytest.mark.parallel([3, 4])
def test_goes_on_with_what_its_checkpoint_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
    keep: dict[str, Any] = {"checkpoint": {"every": 2}, "topology": EVERY_RANK, **ROWS}
    keep["data"] = {"train": str(folder / "data.h5"), "chunk": 8, "window": 3}
    keep["exchange"] = {"form": "auto", "auto_copies": 0}

    def path_of(session: Session) -> Any:
        return session.parts.world.describe()["path"], session.parts.chosen, gather_tables(session)

    priced(monkeypatch, BY_PHASE, CHEAP)
    wanted = finished(config_of(folder / "whole", "auto", **keep), path_of)
    config = config_of(folder / "broken", "auto", **keep)
    first = finished(config, path_of, stop_at=2)
    priced(monkeypatch, CHEAP, BY_PHASE)  # other prices, which would have it flat
    found = finished(config, path_of, resume=True)
    there = files.step_folder(folder / "broken" / "run", 2) / files.STATE
    with on_every_rank():
        assert [of[0] for of in (wanted, first, found)] == ["levels"] * 3
        assert found[1].found["forms"] == first[1].found["forms"]
        assert json.loads(there.read_text())["exchange"]["path"] == "levels"
        for name, rows in wanted[2].items():
            np.testing.assert_array_equal(found[2][name], rows, err_msg=name)
    COMM.Barrier()
    text = there.read_text()
    for wrong, named in (
        ({"path": "other"}, "path 'other' is"),
        ({"forms": {"user": "unknown"}}, "form 'unknown' of 'user' is"),
        ({"copied_families": ["user"]}, "a copy of the tables of 'user' on every dense rank is"),
        ({"forms": 3}, "no forms is"),
    ):
        if COMM.rank == 0:
            said = json.loads(text)
            there.write_text(json.dumps({**said, "exchange": {**said["exchange"], **wrong}}))
        COMM.Barrier()
        with pytest.raises(
            CheckpointError, match=f"says what was chosen with exchange.path or form 'auto', but {named}"
        ):
            open_session(config)
        COMM.Barrier()


@pytest.mark.parallel([4])
def test_a_night_on_one_host_keeps_what_was_chosen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one path, with the forms that were chosen for two; what is saved then is the choice as it was."""
    write_data(folder / "data.h5")
    keep: dict[str, Any] = {"checkpoint": {"every": 2}, "topology": EVERY_RANK, **ROWS}
    keep["exchange"] = {"form": "auto", "auto_copies": 0}
    seen = []
    for hosts, stop in (((0, 0, 1, 1), 2), ((0, 0, 0, 0), 4), ((0, 0, 1, 1), None)):
        on_hosts(monkeypatch, hosts)
        priced(monkeypatch, BY_PHASE, CHEAP) if not seen else priced(monkeypatch, CHEAP, BY_PHASE)
        with open_session(config_of(folder, "auto", **keep)) as session:
            if seen:
                found = find_checkpoint(folder / "run", "last", session.parts.world.main)
                state.load(session, found, resume=True)
            for step in session.steps():
                step.run()
                if session.step == stop:
                    state.save(session, folder / "run", {})
                    break
            assert session.parts.chosen is not None and session.parts.chosen.saved
            forms = session.parts.exchange.layout.form_of
            seen.append((session.parts.world.describe()["path"], forms, session.parts.chosen.found["path"]))
    with on_every_rank():
        assert [(path, said) for path, _, said in seen] == [
            ("levels", "levels"),
            ("flat", "levels"),
            ("levels", "levels"),
        ]
        assert seen[0][1] == seen[1][1] == seen[2][1]


@pytest.mark.parallel([4])
@pytest.mark.parametrize(
    "sections",
    [
        {"policy": {"name": "hybrid", "staleness": 2}},
        {"policy": {"name": "cached", "staleness": 2, "capacity": 1000}, "exchange": {"form": "auto"}},
        {"embedding": {"share": {}, "tables": {"user": {"dynamic": {"capacity": 12, "evict": "lru"}, "shard": "row"}}}},
    ],
    ids=["hybrid", "cached", "dynamic"],
)
def test_any_run_may_choose(folder: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any]) -> None:
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1, 1))
    for path, flat, levels in (("flat", CHEAP, BY_PHASE), ("levels", BY_PHASE, CHEAP)):
        priced(monkeypatch, flat, levels)
        given = {"topology": EVERY_RANK, **sections}
        with open_session(config_of(folder, "auto", **given)) as session:
            losses = [step.run() for step in session.steps()]
            by_levels = session.parts.world.by_levels
        with on_every_rank():
            assert by_levels == (path == "levels")
            assert len(losses) == 5 and all(np.isfinite(losses))


@pytest.mark.parallel([2, 3, 4])
def test_is_flat_where_there_are_no_levels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One host, a rank a host, or no shared memory: nothing is measured."""
    write_data(folder / "data.h5")

    def never(_: object) -> None:
        raise AssertionError("there is nothing to choose")

    monkeypatch.setattr(prices, "measure", never)
    for hosts, exchange in ((0, {}), (None, {}), (1, {"windows": False})):
        numbers = range(COMM.size) if hosts is None else [min(hosts, rank // 2) for rank in range(COMM.size)]
        on_hosts(monkeypatch, tuple(numbers))
        path, found = opened(config_of(folder, "auto", exchange=exchange))
        with on_every_rank():
            assert (path, found) == ("flat", {}), (hosts, exchange)


@pytest.mark.parallel([3, 4])
def test_prices_are_measured_and_the_same_everywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    for hosts in HOSTS[COMM.size]:
        on_hosts(monkeypatch, hosts)
        with open_session(config_of(folder, "levels", topology=EVERY_RANK)) as session:
            world = session.parts.world
            found = prices.measure(world)
            every = COMM.allgather(found)
            assert world.by_levels
            sent = COMM.allreduce(world.ledger.snapshot())[TAGS.index("control")].sum()
        with on_every_rank():
            assert sent < 1 << 20, "what is sent to measure is in no record"
            assert all(of == found for of in every)
            for of in found.values():
                assert (
                    0 < of.control_s < 10
                    and 0 < of.phase_s < 10
                    and 0 <= of.far_byte_s < 1e-3
                    and 0 <= of.near_byte_s < 1e-3
                ), found
                assert 0 < of.meeting_s < 10
                assert of.small_far_byte_s is not None and of.peer_far_byte_s is not None
                assert of.small_far_byte_s >= of.peer_far_byte_s >= of.far_byte_s


def test_bytes_of_each_size_of_messages_have_a_price_of_their_own():
    cost, pairs = Prices(1.0, 10.0, 1e-3, 1e-4, 100.0, 1e-2, 2e-3), 6
    small, peers, large = pairs * (PEER_BYTES - 1), pairs * PEER_BYTES, pairs * ALONE_BYTES
    assert cost.step_s(2, 3, [small, peers, large], 1e4, pairs) == pytest.approx(
        1 + 20 + 300 + small * 1e-2 + peers * 2e-3 + large * 1e-3 + 1
    )
    alike = replace(cost, small_far_byte_s=None, peer_far_byte_s=None)
    assert alike.step_s(0, 0, [small, peers], 0.0, pairs) == pytest.approx(1 + (small + peers) * 1e-3)


@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("most", [1 << 10, 100_000])
def test_where_ranks_are_many_larger_messages_cost_what_smaller_ones_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    write_data(folder / "data.h5")
    monkeypatch.setattr(prices, "MOST_BYTES", most)
    on_hosts(monkeypatch, tuple(rank // 2 for rank in range(COMM.size)))
    with open_session(config_of(folder, "flat", topology=EVERY_RANK)) as session:
        found = prices.measure(session.parts.world)
    with on_every_rank():
        for of in found.values():
            assert of.peer_far_byte_s == of.far_byte_s
            assert of.small_far_byte_s == of.far_byte_s or most > PEER_BYTES


def test_steps_that_are_counted_may_be_told_with_a_path_that_is_chosen(tmp_path):
    given = {"data": {"train": "x.h5"}, "model": {"name": "fm"}, "run": {"folder": str(tmp_path)}}
    config = validate({**given, "exchange": {"path": "auto", "auto_steps": 9}}, "test")
    assert config.exchange.auto_steps == 9
    with pytest.raises(ConfigError, match="auto_steps is 9, but no form is 'auto'"):
        validate({**given, "exchange": {"path": "levels", "auto_steps": 9}}, "test")
