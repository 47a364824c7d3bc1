"""How many steps ahead rows are brought where it is not said: what is found, by what, and that no bit depends on it."""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.memory import predict_memory
from hpcrec.build.session import open_session
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.disk import DiskStore, TierBacking
from hpcrec.exchange.exchange import Exchange
from hpcrec.training import look_ahead, report
from hpcrec.training.look_ahead import LookAhead
from tests.together import on_every_rank
from tests.training import runs
from tests.training.runs import config_for, gather_tables, write_data

COMM = MPI.COMM_WORLD


def made(first: int = 1, most: int = 4, flying: int = 0) -> LookAhead:
    return LookAhead(first, most, flying, lambda: 0.0, lambda share: share)


@pytest.mark.parametrize(
    ("shares", "steps"),
    [
        ([0.01, 0.02], [1, 1, 1]),
        ([0.3, 0.01, 0.01], [1, 2, 2, 2]),
        ([0.3, 0.2, 0.1, 0.05, 0.05], [1, 2, 3, 4, 4, 4]),
        ([0.3, 0.28, 0.3, 0.3], [1, 2, 1, 1, 1]),  # for work: more is of no use
        ([0.01, 0.3, 0.1, 0.01], [1, 1, 2, 3, 3]),  # once the memory is full
    ],
)
def test_as_many_as_steps_wait_less_with(shares: Sequence[float], steps: Sequence[int]) -> None:
    ahead, seen = made(), [1]
    for share in shares:
        ahead.tell(share)
        seen.append(ahead.steps)
    assert seen == steps
    assert ahead.record()["steps"] == steps[-1]


@pytest.mark.parametrize(
    ("reads_s", "steps", "first_share", "last_share"),
    [
        ([0.001], 1, 0.0, 0.0),
        ([0.001, 0.001, 0.001, 0.001, 0.060], 3, 0.28, 0.01),  # now and then as long as three steps
        ([0.001] * 7 + [0.100], 4, 0.33, 0.10),  # as five: more steps than may be known would do
        ([0.030], 1, 0.33, 0.33),  # always longer than a step: the disk is what is waited for
    ],
)
def test_slow_reads_are_evened_out(
    reads_s: Sequence[float], steps: int, first_share: float, last_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of 20 ms by a clock of their own; one thread brings their rows, as far ahead as steps are known."""
    now_s, waited_s, free_s, brought = 0.0, 0.0, 0.0, list[float]()
    monkeypatch.setattr(time, "perf_counter", lambda: now_s)
    ahead = LookAhead(1, 4, 0, lambda: waited_s, lambda share: share)
    for step in range(12 * (look_ahead.STEPS + look_ahead.SKIPPED)):
        known = step + ahead.before_step()
        while len(brought) <= known:
            free_s = max(free_s, now_s) + reads_s[len(brought) % len(reads_s)]
            brought.append(free_s)
        wait_s = max(0.0, brought[step] - now_s)
        waited_s, now_s = waited_s + wait_s, now_s + wait_s + 0.02
    shares = ahead.record()["waited"]
    assert isinstance(shares, dict)
    assert ahead.steps == steps, shares
    assert shares["1"] == pytest.approx(first_share, abs=0.05)
    assert shares[str(steps)] == pytest.approx(last_share, abs=0.02), shares


def test_what_was_of_no_use_is_tried_again_and_ever_less_often() -> None:
    ahead, tried = made(), list[int]()
    for window in range(100):
        before = ahead.steps
        ahead.tell(0.3)
        if ahead.steps > before:
            tried.append(window)
    assert tried == [0, 10, 28, 62]  # pauses of 8, 16 and 32 windows, and two of the trial


def test_a_number_that_is_given_is_a_number(folder: Path) -> None:
    ahead = made(first=3, most=3, flying=2)
    assert [ahead.before_step() for _ in range(500)] == [5] * 500
    assert ahead.record() == {} and ahead.most == 5
    write_data(folder / "data.h5")
    for given, first, most in ((None, 1, 4), (0, 0, 0), (3, 3, 3)):
        more = {} if given is None else {"exchange": {"prefetch": given}}
        exchange = config_for(folder, store=on_disk(folder), **more).exchange
        assert (exchange.first_ahead, exchange.most_ahead) == (first, most)
        exchange = config_for(folder, **more).exchange
        assert exchange.prefetch == (1 if given is None else given)


def test_what_may_be_known_is_in_the_memory_formula(folder: Path) -> None:
    write_data(folder / "data.h5")
    terms = [
        predict_memory(config_for(folder, store=on_disk(folder), **more), [0])[0].terms
        for more in ({}, {"exchange": {"prefetch": 4}}, {"exchange": {"prefetch": 1}})
    ]
    assert terms[0] == terms[1] != terms[2]


def on_disk(folder: Path) -> dict[str, Any]:
    return {"name": "disk", "path": str(folder / "rows"), "memory_bytes": 20_000_000}


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a window; and tables of which a step asks for some rows, and the memory has no more."""
    more = tuple(replace(feature, cardinality=40 * feature.cardinality) for feature in runs.FEATURES)
    monkeypatch.setattr(runs, "FEATURES", more)
    monkeypatch.setattr(look_ahead, "STEPS", 6)
    monkeypatch.setattr(look_ahead, "SKIPPED", 2)
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: 40_000)


POLICIES: dict[str, dict[str, Any]] = {
    "sync": {"name": "sync"},
    "hybrid": {"name": "hybrid", "staleness": 1},
    "ahead": {"name": "ahead"},
}


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_no_bit_depends_on_what_is_tried(policy: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It rises to 4 steps, and falls back by one; evaluations come between, and the run ends in the midst of it."""
    write_data(folder / "data.h5")
    data = {"train": str(folder / "data.h5"), "validation": str(folder / "data.h5"), "chunk": 8, "window": 3}
    more: dict[str, Any] = {"data": data, "train": {"steps": 45}, "policy": POLICIES[policy]}
    more |= {"exchange": {"form": "rows"}, "topology": {"mode": "fused"}, "checkpoint": {"every": 10}}
    left, found, seen = [0.5, 0.3, 0.2, 0.19, 0.5], [], []

    def agreed(_: Exchange, share: float) -> float:
        assert 0 <= share <= 1
        return left.pop(0) if left else 0.5

    monkeypatch.setattr(Exchange, "most_of_all", agreed)
    for store in ({}, on_disk(folder)):
        with open_session(config_for(folder, store=store, **more)) as session:
            for step in session.steps():
                step.run()
                seen.append(session.parts.look_ahead.steps)
                if session.step == 20:
                    session.evaluate("validation", 2)
            found.append(gather_tables(session))
    with on_every_rank():
        in_memory, on_a_disk = seen[:45], seen[45:]
        assert in_memory == [1] * 45
        assert [n for n, before in zip(on_a_disk, [0, *on_a_disk], strict=False) if n != before] == [1, 2, 3, 4, 3]
        for name, rows in found[0].items():
            np.testing.assert_array_equal(found[1][name], rows, err_msg=name)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parallel([1, 2])
@pytest.mark.in_turn
def test_reads_that_are_now_and_then_slow_are_seen_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every fifth read takes as long as three steps, which one step ahead does not hide: more are tried."""
    write_data(folder / "data.h5", samples=600)
    monkeypatch.setattr(look_ahead, "STEPS", 20)
    fetch, calls = TierBacking.fetch, list[int]()

    def slow(self: TierBacking, moved: Any) -> None:
        calls.append(1)
        if len(calls) % 5 == 0:
            time.sleep(0.06)
        fetch(self, moved)

    monkeypatch.setattr(TierBacking, "fetch", slow)
    config = config_for(
        folder,
        data={"train": str(folder / "data.h5")},
        store=on_disk(folder),
        topology={"mode": "fused"},
        train={"steps": 140, "batch_size": 4},
        exchange={"form": "rows"},
    )
    with open_session(config) as session:
        for step in session.steps():
            time.sleep(0.02)  # of its work
            step.run()
        record = dict(session.parts.look_ahead.record())
    with on_every_rank():
        assert record["waited"]["1"] > look_ahead.ENOUGH and "2" in record["waited"], record


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parallel([1])
def test_the_summary_says_how_many_and_why(folder: Path) -> None:
    write_data(folder / "data.h5")
    data, store = {"train": str(folder / "data.h5")}, on_disk(folder)
    config = config_for(folder, data=data, store=store, train={"steps": 12})
    assert commands.train(config) == 0
    told = json.loads((folder / "run" / "summary.json").read_text())
    ahead = told["rows_ahead"]
    assert ahead["steps"] in (1, 2) and list(ahead["waited"]) == ["1"] and 0 <= ahead["waited"]["1"] <= 1
    said = f"of the time steps waited for rows: {ahead['waited']['1']:.1%} with 1"
    assert ahead["why"] == said and said in report.text_table(told)
    assert commands.train(config_for(folder / "other", data=data, train={"steps": 2})) == 0
    told = json.loads((folder / "other" / "run" / "summary.json").read_text())
    assert told["rows_ahead"] == {} and "rows ahead" not in report.text_table(told)
