"""Form ``auto`` and towers: at their place where that takes fewest seconds, by any path; kept by checkpoints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.checkpoint import files
from hpcrec.comm import prices
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.prices import Prices
from hpcrec.config import Config
from hpcrec.training.session import Session
from tests.together import on_every_rank
from tests.training.runs import finished, train, write_data
from tests.training.test_at_place import STEPS, computed, config_of
from tests.training.test_at_place_runs import APART, FUSED
from tests.training.test_host_sums import on_hosts
from tests.training.test_path_auto import BY_BYTE, CHEAP, priced
from tests.training.test_store_gpu import same

COMM = MPI.COMM_WORLD
INSIDE = Prices(0.0, 0.0, 0.0, 1e-6, 0.0)  # bytes inside a host alone cost anything
SAMPLES = 320  # of an epoch: so many steps of batches that are alike
TABLES = {"history": {"shard": "table"}}


def config(folder: Path, path: str, form: str = "auto", **sections: dict[str, Any]) -> Config:
    given = {"path": path, "auto_copies": 0, "auto_steps": STEPS, **sections.pop("exchange", {})}
    if form != "auto":
        del given["auto_copies"], given["auto_steps"]
    train_as = {"batch_size": SAMPLES // STEPS, **sections.pop("train", {})}
    return config_of(folder, FUSED, form=form, exchange=given, train=train_as, **sections)  # type: ignore[arg-type]


def seen(session: Session) -> dict[str, Any]:
    chosen = session.parts.chosen
    assert chosen is not None
    return {"computed": computed(session), **chosen.found}


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("path", ["flat", "levels", "auto"])
def test_towers_are_at_their_place_where_bytes_between_hosts_cost(
    folder: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """To the bit a run that is told so; bytes of values and gradients are those that were predicted."""
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, APART[COMM.size])
    priced(monkeypatch, BY_BYTE, BY_BYTE)
    more = {"options": {"ratio": 4}}  # levels send less than half of flat's, where ids are few
    wanted = config(folder, path, **more)
    with open_session(wanted) as session:
        found = seen(session)
        taken = "levels" if session.parts.world.by_levels else "flat"
        session.parts.chosen.begin(0)  # type: ignore[union-attr]
        for step in session.steps():
            step.run()
        counted = session.parts.chosen.record(STEPS)["counted_bytes_per_step"]  # type: ignore[union-attr]
    with on_every_rank():
        assert found["computed"] == {"tower0", "tower1"} and found["towers_at_their_place"]
        assert set(found["forms"].values()) == {"partial"}
        far = {way: of["far"] for way, of in found["predicted_bytes"].items()}
        others = [n for way, n in far.items() if "at their place" not in way]
        assert min(n for way, n in far.items() if "at their place" in way) < 0.8 * min(others), far
        for tag in ("values", "gradients"):
            said = found["predicted_bytes_per_step"][tag]
            assert said <= counted[tag] <= said + 64 * 4 * COMM.size**2, (tag, said, counted)
    same(train(wanted), train(config(folder, taken, form="partial", **more)))


@pytest.mark.parallel([3, 4])
def test_dense_ranks_compute_them_where_bytes_inside_a_host_cost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors meet inside the host; and where nothing costs anything, the simpler way is taken."""
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, APART[COMM.size])
    for cost in (INSIDE, CHEAP):
        priced(monkeypatch, cost, cost)
        with open_session(config(folder, "flat")) as session:
            found = seen(session)
        with on_every_rank():
            assert not found["computed"] and not found["towers_at_their_place"]
            assert set(found["predicted_exchange_s"]) == {"flat", "flat, towers at their place"}


@pytest.mark.parallel([1, 3])
def test_on_one_host_there_is_nothing_to_choose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5", samples=SAMPLES)

    def never(_: object) -> None:
        raise AssertionError("there is nothing to choose")

    monkeypatch.setattr(prices, "measure", never)
    on_hosts(monkeypatch, (0,) * COMM.size)
    with open_session(config(folder, "flat")) as session:
        assert not computed(session)


@pytest.mark.parallel([3])
def test_partial_leaves_towers_to_dense_ranks_where_that_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit as form pooled."""
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, APART[COMM.size])
    told = config(folder, "flat", form="partial", exchange={"at_place": False})
    with open_session(told) as session, on_every_rank():
        assert not computed(session)
    same(train(told), train(config(folder, "flat", form="pooled")))


@pytest.mark.parallel([2, 4])
def test_goes_on_with_what_its_checkpoint_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, APART[COMM.size])
    wanted, found = config(folder, "flat", checkpoint={"every": 2}, options={"ratio": 4}), []
    for number, cost in enumerate((BY_BYTE, CHEAP)):
        priced(monkeypatch, cost, cost)
        found.append(finished(wanted, seen, **({"resume": True} if number else {"stop_at": 2})))
    with on_every_rank():
        assert [of["computed"] for of in found] == [{"tower0", "tower1"}] * 2
        assert found[0]["forms"] == found[1]["forms"]


@pytest.mark.parallel([2])
def test_a_run_from_before_goes_on_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoints say nothing: dense ranks computed its towers."""
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, APART[COMM.size])
    priced(monkeypatch, BY_BYTE, BY_BYTE)
    wanted = config(folder, "flat", checkpoint={"every": 2}, options={"ratio": 4})
    finished(wanted, seen, stop_at=2)
    there = files.step_folder(folder / "run", 2) / files.STATE
    if COMM.rank == 0:
        said = json.loads(there.read_text())
        del said["exchange"]
        there.write_text(json.dumps(said))
    COMM.Barrier()
    with open_session(wanted) as session, on_every_rank():
        assert not computed(session)


@pytest.mark.parallel([3])
def test_the_host_that_sends_most_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two towers on three hosts: seconds are those of the values that the busiest of them was counted to send."""
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, (0, 1, 2))
    priced(monkeypatch, BY_BYTE, BY_BYTE)
    told = config(folder, "flat", options={"ratio": 4}, exchange={"ids": "read"})
    with open_session(told) as session:
        found = seen(session)
        for step in session.steps():
            step.run()
        sent_R = np.array(COMM.allgather(session.parts.world.ledger.snapshot()[TAGS.index("values")].sum())) / STEPS
    with on_every_rank():
        assert found["computed"] == {"tower0", "tower1"} and np.count_nonzero(sent_R) == 2
        seconds = found["predicted_exchange_s"]["flat, towers at their place"]
        padding = 64 * (COMM.size - 1)
        assert sent_R.max() - padding <= seconds / 2e-6 <= sent_R.max() + 1, (seconds, sent_R)


@pytest.mark.parallel([4])
def test_not_where_a_host_would_hold_too_much(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tables in one tower: the owner that has it would hold four times what each holds of tables that are dealt."""
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, tuple(range(COMM.size)))
    priced(monkeypatch, BY_BYTE, BY_BYTE)
    whole = {"towers": [["user", "tag", "item", "history"]], "ratio": 4}
    with open_session(config(folder, "flat", options=whole)) as session, on_every_rank():
        assert not computed(session)


@pytest.mark.parallel([4])
@pytest.mark.parametrize(
    ("sections", "there", "looked"),
    [
        ({"policy": {"name": "hybrid", "staleness": 2}}, (), False),  # modules have parameters
        ({"policy": {"name": "cached", "staleness": 2, "capacity": 1000}}, (0, 1), True),
        ({"policy": {"name": "ahead"}}, (), False),
        ({"exchange": {"at_place": False}}, (), False),
        ({"exchange": {"forms": {"user": "rows"}}}, (1,), True),
        ({"embedding": {"tables": {"tag": {"shard": "replicate"}}}}, (), True),  # one host would send all values
        ({"embedding": {"tables": {"user": {"shard": "row"}}}}, (1,), True),
        ({"exchange": {"forms": dict.fromkeys(("user", "item", "tag", "history"), "pooled")}}, (), False),
    ],
    ids=["hybrid", "cached", "ahead", "not there", "one tower told", "a copy", "dealt rows", "all told"],
)
def test_with_whatever_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], there: tuple[int, ...], looked: bool
) -> None:
    """What a tower at its place does not go with is not looked at, and is no error, for nobody asked for it."""
    write_data(folder / "data.h5", samples=SAMPLES)
    on_hosts(monkeypatch, APART[COMM.size])
    priced(monkeypatch, BY_BYTE, BY_BYTE)
    told = len(sections.get("exchange", {}).get("forms", {})) == 4
    wanted = config(folder, "flat", form="pooled" if told else "auto", options={"ratio": 4}, **sections)
    with open_session(wanted) as session:
        towers, chosen = computed(session), session.parts.chosen
        losses = [step.run() for step in session.steps()]
    with on_every_rank():
        assert (chosen is not None and "predicted_exchange_s" in chosen.found) == looked
        assert towers == {f"tower{number}" for number in there}
        assert len(losses) == STEPS and np.all(np.isfinite(losses))
