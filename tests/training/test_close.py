"""A session is closed after one of its threads has failed: at once, with the first error, not with what comes of it."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.config import Config
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.cache_plan import CachePlan
from hpcrec.embedding.stores.disk import DiskStore, TierBacking
from hpcrec.errors import HpcrecError, TierError
from hpcrec.policy import pipeline
from hpcrec.training.session import Session
from tests.training.runs import config_for, gather_tables, train, write_data

# Of several ranks another may wait for one that has failed, as ever.
pytestmark = pytest.mark.parallel([1])
SAID = "page 7 has a wrong checksum"
POLICIES: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "hybrid": {"name": "hybrid", "staleness": 2},
    "ahead": {"name": "ahead"},
}


def config_of(folder: Path, policy: str = "sync", *, device: bool = False, **more: dict[str, Any]) -> Config:
    above = {"gpu_bytes": 1, "device": "emulated"} if device else {}
    store = {"name": "disk", "path": str(folder / "rows"), "memory_bytes": 20_000_000, **above}
    return config_for(folder, store=store, policy=POLICIES[policy], exchange={"form": "rows"}, **more)


@pytest.fixture(autouse=True)
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has to read from the disk."""
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: 1)


def fails_from(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The reads of the disk from that number on."""
    fetch, seen = TierBacking.fetch, list[int]()

    def failing(self: TierBacking, moved: Any) -> None:
        seen.append(1)
        if len(seen) > number:
            raise TierError(SAID)
        fetch(self, moved)

    monkeypatch.setattr(TierBacking, "fetch", failing)


def one_step_before_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The loop is left after its first step, when rows of the second could not be brought ahead."""
    write_data(folder / "data.h5")
    session = open_session(config_of(folder))
    admit, failed = CachePlan.admit, threading.Event()

    def failing(self: CachePlan, step: int, rows: Any, clock: int | None, *more: Any) -> Any:
        if clock == 2:
            failed.set()
            raise TierError(SAID)
        return admit(self, step, rows, clock, *more)

    monkeypatch.setattr(CachePlan, "admit", failing)
    for step in session.steps():
        step.run()
        break
    assert failed.wait(10)
    return session


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_close_raises_the_first_error_and_leaves_nothing(
    policy: str, device: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, policy, device=device)
    session = open_session(config)
    with monkeypatch.context() as patched:
        fails_from(patched, 3)
        with pytest.raises(HpcrecError, match=SAID):
            for step in session.steps():
                step.run()
        began_s = time.monotonic()
        try:
            session.close()
        except HpcrecError as error:
            assert SAID in str(error)
        else:
            assert policy == "sync", "where the step has said it, on the thread that closes"
        session.close()  # it was
        assert time.monotonic() - began_s < 4
    assert not list((folder / "rows").glob("*/*"))
    train(config, 2)  # the folder is nobody's


def test_what_no_step_was_told_a_close_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = one_step_before_a_failure(folder, monkeypatch)
    with pytest.raises(TierError, match=SAID):
        session.close()
    assert not list((folder / "rows").glob("*/*"))


def test_a_checkpoint_names_the_error_since_when_rows_are_not_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = one_step_before_a_failure(folder, monkeypatch)
    with pytest.raises(HpcrecError, match=rf"a cache of \[store\] \({SAID}\).*Go on from the last checkpoint"):
        state.save(session, folder / "run", {})
    with pytest.raises(TierError, match=SAID):
        session.close()


def test_a_thread_that_nobody_answers_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread is in a call of MPI that no rank answers, when the other one fails."""
    write_data(folder / "data.h5")
    monkeypatch.setattr(pipeline, "_ENDS_S", 0.2)
    session = open_session(config_of(folder, "hybrid"))
    exchange, learns, answered = session.parts.pipeline.exchange, threading.Event(), threading.Event()
    assert exchange.two_lanes
    read, reads, closed = exchange.read, list[int](), list[str]()

    def stuck(*_: Any, **__: Any) -> bool:
        learns.set()
        return answered.wait(60)

    def failing(route: Any, *args: Any, **named: Any) -> Any:
        reads.append(1)
        if len(reads) == 3:  # more are not begun before the first is learned
            learns.wait(60)
            raise TierError(SAID)
        return read(route, *args, **named)

    monkeypatch.setattr(exchange, "learn", stuck)
    monkeypatch.setattr(exchange, "read", failing)
    monkeypatch.setattr(exchange, "close", lambda: closed.append("rows"))
    with pytest.raises(TierError, match=SAID):
        for step in session.steps():
            step.run()
    began_s = time.monotonic()
    with pytest.raises(TierError, match=SAID):
        session.close()
    assert time.monotonic() - began_s < 3 and not closed, "a thread may be at the rows"
    answered.set()
    monkeypatch.undo()
    assert session.parts.pipeline._flight.end(10)
    exchange.close()


def test_a_session_that_has_not_failed_is_closed_as_ever(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_of(folder, "hybrid")) as session:
        for step in session.steps():
            step.run()
        rows = gather_tables(session)
    assert rows and not list((folder / "rows").glob("*/*"))
