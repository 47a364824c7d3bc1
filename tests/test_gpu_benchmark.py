"""benchmarks/gpu.py on the emulator, at tiny sizes, and without a GPU: all that it tells of is there, and compared."""

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrec import kernels

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tools")]
import gpu  # noqa: E402 - a benchmark, which is no package
import results  # noqa: E402
from gpu_parts import bench, by_definition, lookup_part, step_part  # noqa: E402

del sys.path[:2]

CLAIMS = {
    "gpu.gather.64": ">= 0.8", "gpu.gather.128": ">= 0.85", "gpu.update.64": ">= 0.5", "gpu.update.128": ">= 0.6",
    "gpu.step.w1": ">= 5", "gpu.step.w2": ">= 5", "gpu.hash.find": ">= 2e9", "gpu.hash.insert": ">= 0.8e9",
    "gpu.threshold": ">= 0.8",
}  # fmt: skip


@pytest.fixture(autouse=True)
def native():
    kernels.use("native")
    yield
    kernels.use("native")


def run(monkeypatch: pytest.MonkeyPatch, path: Path, *arguments: str) -> tuple[int, dict]:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--json", str(path), *arguments])
    return gpu.main(), json.loads(path.read_text())


def test_every_part_runs_on_the_emulator_and_agrees(tmp_path, monkeypatch, capsys) -> None:
    rc, found = run(monkeypatch, tmp_path / "gpu.json", "--device", "emulated")
    assert rc == 0
    rows = [row for row in found["rows"] if "case" in row]
    checks = [row for row in found["rows"] if "check" in row]
    assert [row["case"] for row in rows] == [case for part in gpu.PARTS.values() for case in part.cases]
    assert sorted(row["check"] for row in checks) == sorted(c for part in gpu.PARTS.values() for c in part.checks)
    assert all(row["status"] == "emulated" and row["ms"] > 0 and row["work"] for row in rows)
    assert [row["status"] for row in checks] == ["agrees"] * len(checks)
    assert {c["id"]: c["goal"] for c in found["claims"]} == CLAIMS
    assert all(c["value"] is c["holds"] is None and c["reason"] == gpu.EMULATED for c in found["claims"])
    printed = capsys.readouterr().out
    assert printed.index("agrees") < printed.index("SlotMap.find, 90 % hits") < printed.rindex("gpu.threshold")


def test_without_a_gpu_all_is_there_but_the_figures(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rc, found = run(monkeypatch, tmp_path / "gpu.json", "--quick")
    assert rc == 0 and found["machine"]["gpu"] is None
    assert {c["id"]: c["goal"] for c in found["claims"]} == CLAIMS
    assert all(c["value"] is c["holds"] is None and c["reason"] == gpu.NO_GPU for c in found["claims"])
    assert {row["status"] for row in found["rows"]} == {"skipped"}
    assert {row["reason"] for row in found["rows"]} == {gpu.NO_GPU}
    assert all(row["ms"] is None for row in found["rows"] if "case" in row)


def test_what_was_not_asked_for_is_skipped(tmp_path, monkeypatch) -> None:
    _, found = run(monkeypatch, tmp_path / "gpu.json", "--device", "emulated", "--only", "values")
    status = {row["case"]: row["status"] for row in found["rows"] if "case" in row}
    assert (status["select_above, 1 %"], status["W1 Adagrad"]) == ("emulated", "skipped")
    assert {c["reason"] for c in found["claims"]} == {gpu.EMULATED, gpu.NOT_ASKED}
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path / "gpu.json", "--only", "hash")


def wrong_gather(*arguments, run=kernels.pooled_gather, **named) -> None:
    run(*arguments, **named)
    arguments[3][:1] = 7.0


def test_wrong_results_are_found_and_claim_nothing(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "pooled_gather", wrong_gather)
    machine = bench.Machine("emulated", quick=True)
    monkeypatch.setattr(by_definition, "by_numpy", definitions_are_right(monkeypatch))
    rows, claims, good = gpu.run(gpu.PARTS["lookup64"], machine)
    differ = {row["check"] for row in rows if row.get("status") == "DIFFERS"}
    assert not good and {c["reason"] for c in claims} == {gpu.CHECK_FAILED}
    assert {name.split(" ")[0] for name in differ} == {"pooled_gather"} and len(differ) == 3
    assert not step_part.check(machine, step_part.W1)


def definitions_are_right(monkeypatch: pytest.MonkeyPatch):
    """`by_numpy` in which the host's gather is what it was."""
    original, right = by_definition.by_numpy, wrong_gather.__kwdefaults__["run"]

    @contextlib.contextmanager
    def within():
        with original(), monkeypatch.context() as patch:
            patch.setattr(kernels, "pooled_gather", right)
            yield

    return within


def test_an_update_that_is_wrong_is_found() -> None:
    machine = bench.Machine("emulated", quick=True)
    bags = lookup_part.Bags(machine, machine.normal(50, 8), torch.zeros(50), machine.uniform_ids(50, 60), 3)
    assert lookup_part.update_agrees(bags) and lookup_part.gather_agrees(bags)
    bags.merge_update = lambda grouping: None
    assert not lookup_part.update_agrees(bags)


def test_a_part_that_fails_is_told_and_others_go_on(tmp_path, monkeypatch, capsys) -> None:
    def fails(machine: bench.Machine) -> bench.Found:
        raise MemoryError("no room for 5 bytes")

    part = gpu.PARTS["slots"]
    monkeypatch.setitem(gpu.PARTS, "slots", bench.Part(**{**vars(part), "measure": fails}))
    rc, found = run(monkeypatch, tmp_path / "gpu.json", "--device", "emulated", "--only", "slots,staging")
    assert rc == 1 and "MemoryError" in capsys.readouterr().err
    status = {row["case"]: (row["status"], row.get("reason")) for row in found["rows"] if "case" in row}
    assert status["SlotMap.find, 90 % hits"] == ("failed", "MemoryError: no room for 5 bytes")
    assert status["host to device"] == ("emulated", None)
    assert {c["reason"] for c in found["claims"] if "hash" in c["id"]} == {"MemoryError: no room for 5 bytes"}


def test_shares_and_rates_are_of_the_same_round() -> None:
    copy, work = bench.Work(run=int, work="", n_bytes=100), bench.Work(run=int, work="", n_bytes=50, n_ids=8)
    rounds = bench.Rounds({}, 0)
    rounds.ms = {bench.COPY: [1.0, 4.0, 2.0], "x": [1.0, 2.0, 4.0], "torch": [3.0, 4.0, 20.0]}
    timed = bench.Timed({bench.COPY: copy, "x": work, "torch": work}, rounds, "measured")
    assert timed.of_copy("x") == 0.5  # of 0.5, 1 and 0.25
    row = timed.row("x", "torch")
    assert (row["ms"], row["copy_gb_per_s"], row["gb_per_s"]) == (2.0, pytest.approx(5e-5), pytest.approx(2.5e-5))
    assert (row["million_per_s"], row["torch_ms"], row["times_torch"]) == (pytest.approx(0.004), 4.0, 3.0)
    assert tuple(row) == bench.KEYS


class Event:
    """Of a clock that only the timed calls move."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end) -> float:
        return end.at - self.at


def test_events_bracket_the_calls_alone(monkeypatch) -> None:
    machine = bench.Machine("emulated", quick=True)
    machine.emulated = False
    monkeypatch.setattr(torch.cuda, "Event", Event)
    calls = {"short": 0, "long": 0, "before": 0}

    def takes(name: str, ms: float) -> None:
        calls[name] += 1
        Event.now += ms

    works = {
        "short": bench.Work(run=lambda: takes("short", 2.0), work="", n_ids=4),
        "long": bench.Work(run=lambda: takes("long", 20.0), work="", before=lambda: takes("before", 7.0)),
    }
    timed = machine.time(works)
    assert (timed.rounds.median("short"), timed.rounds.median("long")) == (2.0, 20.0)
    assert timed.ids_per_s("short") == 2000 and timed.status == "measured"
    # two calls to see how long they take, then a round to warm up and one that counts, of 10 ms at least
    assert calls == {"short": 2 + 2 * 5, "long": 2 + 2, "before": 4}


def test_ids_have_the_workloads_law() -> None:
    machine = bench.Machine("emulated", quick=True)
    counts = np.sort(np.bincount(machine.zipf_ids(1000, 20000).numpy(), minlength=1000))[::-1]
    weights = np.arange(1, 1001) ** -1.05
    wanted = 20000 * weights / weights.sum()
    assert abs(counts[0] - wanted[0]) < 5 * wanted[0] ** 0.5
    assert abs(counts[:100].sum() - wanted[:100].sum()) < 5 * wanted[:100].sum() ** 0.5 + 100


def test_the_page_says_what_is_unmeasured(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    _, found = run(monkeypatch, folder / "gpu.json")
    page = results.page(results.files(folder))
    assert "| `gpu.step.w1` |  | none: no GPU that torch can use |  | times as fast as torch | >= 5 |" in page
    assert f"Not measured, no GPU that torch can use: {len(found['rows'])} rows." in page
    assert ", no GPU, python" in page and "| case |" not in page
