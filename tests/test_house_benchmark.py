"""What benchmarks/house.py compares: runs of two checkouts alternate, claims are computed as its docstrings say."""

import sys
from pathlib import Path

import pytest

from tests.training.runs import write_data

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks")]
from _report import claim  # noqa: E402 - of the benchmark, which is no package
from house_parts import checkout, pairs, route_part, speed_part, trace_part  # noqa: E402
from speed_parts import workload  # noqa: E402

del sys.path[:1]
CONFIG = """
[data]
train = "{folder}/data.h5"
[model]
name = "fm"
width = 4
[topology]
mode = "fused"
[dense]
reducer = "mpi"
[train]
batch_size = 16
[run]
folder = "{folder}/run"
"""


def cell(config: Path = Path("none"), **more: object) -> pairs.Cell:
    return pairs.Cell(**{"name": "w1", "config": config, "ranks": 2, "warmup": 1, "steps": 3, **more})


def ran(step_s: float, *peak_bytes: int) -> pairs.Row:
    return {"step_s": step_s, "peak_bytes": peak_bytes, "loss": 0.5, "load_before": 0.0}


def sides() -> pairs.Sides:
    this = checkout.this()
    return checkout.Checkout("before", this.root, this.bin), this


def test_runs_of_this_checkout_beside_itself(tmp_path: Path) -> None:
    write_data(tmp_path / "data.h5")
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    found = pairs.alternating(sides(), cell(config), 1)
    for row in found[0]:
        assert "result" not in row
        assert row["step_s"] > 0 and len(row["peak_bytes"]) == 2 and min(row["peak_bytes"]) > 1e7
    assert pairs.time_row(sides(), cell(), found)["loss_gap"] == 0.0


def test_the_first_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    monkeypatch.setattr(pairs, "run", lambda side, _: order.append(side.commit) or ran(1.0 + (side.commit == "before")))
    found = pairs.alternating(sides(), cell(), 3)
    after = sides()[1].commit
    assert order == ["before", after, after, "before", "before", after]
    assert [(before["step_s"], now["step_s"]) for before, now in found] == [(2.0, 1.0)] * 3


def test_claims_of_speed() -> None:
    slower = pairs.time_row(sides(), cell(), [(ran(0.95 + noise), ran(1.0)) for noise in (-0.01, 0.0, 0.01) * 5])
    assert slower["pairs"] == 15 and slower["ratio"] == 0.95 and slower["high"] < 1
    within = pairs.time_row(sides(), cell(), [(ran(0.97 + noise), ran(1.0)) for noise in (-0.1, 0.0, 0.1) * 5])
    assert within["low"] == pytest.approx(0.87) and within["high"] == pytest.approx(1.07)
    found = [speed_part.ratio_claim("x", row, "", ">= 0.98", or_one=True) for row in (slower, within)]
    assert [c["holds"] for c in found] == [False, True]
    assert found[1]["goal"] == ">= 0.98, or 1 in 0.870 to 1.070"
    assert not speed_part.ratio_claim("x", within, "", ">= 1.3", or_one=False)["holds"]
    assert claim("x", 0.99, "", ">= 0.98", within=(0.985, 0.995))["holds"]
    few = speed_part.ratio_claim("x", within | {"pairs": 14}, "", ">= 0.98", or_one=True)
    assert few["value"] is None and few["reason"] == "14 pairs, 15 are needed"


def test_runs_that_failed_are_left_out_and_said() -> None:
    row = pairs.time_row(sides(), cell(), [(ran(2.0), ran(1.0)), ({"result": "failed: x"}, ran(1.0))])
    assert (row["pairs"], row["ratio"], row["result"]) == (1, 2.0, "failed: x")
    none = pairs.time_row(sides(), cell(), [({"result": "failed: x"}, ran(1.0))])
    found = speed_part.ratio_claim("x", none, "", ">= 0.98", or_one=True)
    assert (found["value"], found["holds"], found["reason"]) == (None, None, "failed: x")


def test_memory_is_that_of_the_worst_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(ran(1.0, 100, 200), ran(1.0, 101, 206)), (ran(1.0, 100, 200), ran(1.0, 120, 208))]
    monkeypatch.setattr(speed_part, "alternating", lambda *_: [*found, found[0]])
    rows, claims = speed_part.memory(sides(), [cell()], 3, None)
    assert [row["ratio"] for row in rows] == [1.01, 1.03]
    assert claims[0]["value"] == 1.03 and not claims[0]["holds"]


def test_without_another_checkout_claims_say_why() -> None:
    cells = speed_part.cells(["w1"], [2], Path("data"), (), quick=True)
    every = [speed_part.speed(None, cells, 1, "why"), speed_part.overhead(None, cells[0], 1, "why")]
    every.append(speed_part.memory(None, cells, 1, "why"))
    found = [one for rows, claims in every for one in (*rows, *claims)]
    assert [one["id"] for one in found] == ["house.speed.w1.2ranks", "house.overhead", "house.memory"]
    assert all(one["value"] is None and one["reason"] == "why" for one in found)


def test_routing_to_owners_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = workload.Workload(rows=workload.WORKLOADS["w1"].rows, width=16, ids=1, batch=512, n_batches=1)
    monkeypatch.setitem(workload.WORKLOADS, "w1", toy)
    workload.generate("w1", tmp_path)
    rows, claims = route_part.route(sides(), tmp_path, quick=True, owners=(2, 5))
    assert [row["owners"] for row in rows] == [2, 5]
    assert all(row["before_bytes_per_id"] == row["after_bytes_per_id"] > 0 < row["ratio"] for row in rows)
    assert [c["id"] for c in claims] == ["house.route_ms.5", "house.ids_bytes.5"]
    assert claims[1]["value"] == rows[1]["after_bytes_per_id"]


def test_another_checkouts_package_is_refused() -> None:
    with pytest.raises(SystemExit, match="not below"):
        sides()[0].check("/elsewhere/hpcrec/__init__.py")


def test_minutes_of_tests(tmp_path: Path) -> None:
    assert trace_part.minutes(None)["value"] is None
    (tmp_path / "tests.json").write_text('{"machine": {"took_s": 600}, "rows": []}')
    assert trace_part.minutes(tmp_path / "tests.json")["value"] == 10.0
