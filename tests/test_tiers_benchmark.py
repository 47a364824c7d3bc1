"""What benchmarks/tiers.py draws, limits and claims: laws by simulation, settled rows by values, limits that kill."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrec.embedding.shards import Placement, build_families
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.types import Feature, Lookup, OptimizerSpec, TableSpec

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from tiers_parts import (  # noqa: E402 - of the benchmark, no package
    checkpoint_part,
    clock_part,
    disk_part,
    drift_part,
    laws,
    limits,
    memory_of,
    runs_part,
    settled,
    stores_part,
)

del sys.path[:1]
ROWS = (7000, 13000)
SPEC = OptimizerSpec(name="rowwise_adagrad", lr=0.1)


# Laws.


def test_the_best_fixed_set_lacks_what_the_rarest_rows_are_asked_for() -> None:
    chances = laws.in_a_step((5, 3), 1.0, draws=2)
    of_rank = np.concatenate([1 - (1 - p / p.sum()) ** 2 for p in (1 / np.arange(1.0, n + 1) for n in (5, 3))])
    np.testing.assert_allclose(chances, of_rank, rtol=1e-12)
    assert laws.misses(chances, 3) == pytest.approx(np.sort(of_rank)[:5].sum())
    assert laws.misses(chances, 8) == 0.0


def test_rows_that_leave_a_cache_are_read_as_often_as_in_a_simulation() -> None:
    n, draws, kept, steps = 2000, 100, 600, 400
    chances, rng = laws.in_a_step((n,), 1.05, draws), np.random.default_rng(1)
    ends, last = np.cumsum(laws.by_rank(n, 1.05)), np.full(n, -1)
    missed = []
    for now in range(steps):
        rows = np.unique(np.searchsorted(ends, rng.random(draws)))
        missed.append((last[rows] < 0).sum())
        last[rows] = now
        inside = np.flatnonzero(last >= 0)
        last[inside[np.argsort(-last[inside], kind="stable")[kept:]]] = -1
    horizon = laws.horizon(chances, kept)
    assert laws.inside(chances, horizon) == pytest.approx(kept, rel=0.01)
    assert laws.lru_misses(chances, horizon) == pytest.approx(np.mean(missed[steps // 2 :]), rel=0.05)


def test_the_tail_begins_behind_the_rows_that_are_kept() -> None:
    ends = laws.tail(10, 1.0, 4)
    np.testing.assert_allclose(ends, np.cumsum(1 / np.arange(5.0, 11)) / (1 / np.arange(5.0, 11)).sum())


# The tier alone, and memory.


def test_what_is_claimed_of_writes_is_of_rows_that_left_a_cache() -> None:
    cpu = {"cpu_us": {"median": 3.9}, "cpu_us_low": 3.8, "cpu_us_high": 4.1}
    of = {"law": 1.05, "disk_of_alive": 1.4}
    rows: list[dict[str, Any]] = [
        {"way": "threads", "per_s": {"median": 5.0}, **cpu},
        {**of, "cache": 0.125, "written_of_handed": 2.1},
        {**of, "cache": 0.0, "written_of_handed": 1.7},
        {**of, "law": 0.8, "cache": 0.0, "written_of_handed": 3.0},
        *({"memory_of": kind, "bytes_a_row": n} for kind, n in zip(memory_of.MEASURED, (4.4, 19, 36, 21), strict=True)),
    ]
    claims = {claim["id"]: claim for claim in disk_part.claims_of(rows)}
    assert claims["tiers.writes_per_row"]["value"] == 2.1 and claims["tiers.writes_per_row"]["holds"] is False
    assert claims["tiers.writes_per_row.uncached"]["value"] == 1.7
    assert claims["tiers.writes_per_row.uncached"]["goal"] is None
    assert claims["tiers.read_cpu_us"]["holds"] is False and "3.8 to 4.1" in claims["tiers.read_cpu_us"]["unit"]
    found = {name: claims[f"tiers.memory_per_{name}"] for name in ("row", "row.dynamic", "cached_row")}
    assert [claim["value"] for claim in found.values()] == [4.4, 36, 21]
    assert [claim["holds"] for claim in found.values()] == [True, False, True]


def test_memory_is_counted_when_every_slot_and_every_row_is_taken(tmp_path: Path) -> None:
    cached = memory_of.cached(tmp_path, 1 << 14)
    assert cached["counted_bytes"] / cached["rows"] == pytest.approx(21, abs=0.1)
    n_rows = 100_000
    found = {kind: memory_of.MEASURED[kind](tmp_path / kind, n_rows) for kind in ("declared", "dynamic", "dynamic-lru")}
    maps = {kind: (row["counted_bytes"] - found["declared"]["counted_bytes"]) / n_rows for kind, row in found.items()}
    assert 12 < maps["dynamic"] < 20 and 14 < maps["dynamic-lru"] - maps["dynamic"] < 24
    for row in (cached, *found.values()):
        assert row["bytes_a_row"] * row["rows"] == pytest.approx(max(row["counted_bytes"], row["resident_bytes"]))


# Settled rows.


def stores(folder: Path) -> tuple[MemoryStore, DiskStore]:
    tables = {f"f{i}": TableSpec(name=f"f{i}", rows=n, width=4, optimizer=SPEC) for i, n in enumerate(ROWS)}
    features = [Feature(name=name, cardinality=table.rows) for name, table in tables.items()]
    lookups = [Lookup(feature=name, table=name) for name in tables]
    placements = {"f1": Placement(kind="row")}
    families = build_families(tables, features, lookups, placements, owners=(0,), dense=(0,), replicate_rows=0)
    more: dict[str, Any] = {"rank": 0, "seed": 5, "dtype": np.dtype(np.float32)}
    room_bytes = 3_000_000
    return MemoryStore(tables, families, **more), DiskStore(
        tables, families, folder=folder, room_bytes=room_bytes, **more
    )


def test_settled_rows_have_their_first_values_and_lie_on_the_disk(tmp_path: Path) -> None:
    memory, disk = stores(tmp_path / "rows")
    rng = np.random.default_rng(2)
    chances = laws.in_a_step(ROWS, 1.05, 50)
    gone, inside = settled.drawn(chances, [rng.permutation(n) for n in ROWS], 5000, 3)
    assert len(gone) == sum(ROWS) and np.bincount(inside).max() == settled.ROUNDS
    settled.write_all(disk)
    assert disk.figures()["disk_alive_bytes"] / 20 >= sum(ROWS)
    before = disk.figures()["disk_bytes_written"]
    tables = {"f0": 0, "f1": ROWS[0]}
    for number, order in enumerate((gone, inside)):
        order.tofile(tmp_path / "order")
        if number == 0:
            settled.write_over(disk, tmp_path / "order", tables)
        else:
            settled.ask_for(disk, tmp_path / "order", tables, 1000, -1)
    assert disk.figures()["disk_bytes_written"] > before
    assert disk.figures()["cache_hits"] > 0.2  # rows of the second order come again
    for table, n in zip(tables, ROWS, strict=True):
        found = [{}, {}]
        for store, of in zip((memory, disk), found, strict=True):
            for ids, rows, states in store.export(table):
                of |= {int(i): (row.tobytes(), state.tobytes()) for i, row, state in zip(
                    ids, rows, states["accumulator"], strict=True
                )}  # fmt: skip
        assert len(found[0]) == n and found[0] == found[1]
    disk.close()


def test_as_many_rows_leave_a_cache_as_there_are_by_their_chances() -> None:
    chances = np.repeat([0.5, 0.01], [100, 4000])
    gone, inside = settled.drawn(chances, [np.arange(4100)], 600, 4)
    steps = laws.horizon(chances, 600)
    leaving = chances * np.exp(-steps * chances)
    assert (gone < 100).mean() == pytest.approx(leaving[:100].sum() / leaving.sum(), abs=0.01)
    times = np.bincount(inside, minlength=4100)
    past = settled.TURNOVERS * 600 / laws.misses(chances, 600)
    assert (times[:100] == settled.ROUNDS).mean() > 0.9
    assert (times > 0).sum() == pytest.approx(laws.inside(chances, past), rel=0.1)


# Stores.


def test_stores_read_what_was_written_and_say_so_where_they_do_not(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("no compiler")
    programs, lacking = stores_part.compiled(tmp_path, ["tier", "mapped"])
    assert not lacking
    n_rows = 5000
    rng = np.random.default_rng(1)
    order = tmp_path / "order"
    rng.permutation(n_rows).astype(np.int32).tofile(order)
    pairs = np.sort(np.stack([rng.permutation(n_rows)[:100] for _ in range(6)]), axis=1).astype(np.int32)
    pairs.tofile(tmp_path / "pairs")
    for name, program in programs.items():
        (tmp_path / f"{name}-rows").mkdir()
        line = [*program, str(tmp_path / f"{name}-rows"), str(n_rows), "68", "100000"]
        stores_part.prepared(line, tmp_path / f"{name}-rows", n_rows, order)
        worker = stores_part.Worker(line)
        said = worker.ask(f"turn 30 2 100 {tmp_path / 'pairs'}")
        worker.end()
        assert said["rows"] == 300 and said["seconds"] > 0 and said["cpu_s"] > 0
    with (tmp_path / "mapped-rows" / "rows").open("r+b") as file:
        file.seek(68 * int(pairs[0, 3]))
        file.write(b"\xff\xff\xff\x7f")
    worker = stores_part.Worker(line)
    with pytest.raises(SystemExit, match="ended with 1"):
        worker.ask(f"turn 30 2 100 {tmp_path / 'pairs'}")


def test_rates_are_of_all_turns() -> None:
    ours = [{"rows": 100, "seconds": 1.0}, {"rows": 100, "seconds": 3.0}]
    theirs = [{"rows": 20, "seconds": 1.0}, {"rows": 30, "seconds": 1.0}]
    value, low, high = stores_part.ratio(ours, theirs)
    assert value == pytest.approx(50 / 25)
    assert low == pytest.approx((100 / 3) / 30) and high == pytest.approx(100 / 20)
    turns = {16: {("tier", 1): ours, ("mapped", 8): theirs, ("mapped", 1): [{"rows": 1, "seconds": 1.0}] * 2}}
    over_mmap, over_store = stores_part.claims_of(turns, {"lmdb": "no lmdb", "rocksdb": "no rocksdb"})
    assert over_mmap["value"] == pytest.approx(2.0) and over_mmap["holds"] is False  # the interval begins below
    assert over_store["value"] is None and over_store["reason"] == "no lmdb; no rocksdb"


# Limits and runs.


def test_a_process_that_takes_more_than_its_limit_is_killed() -> None:
    if limits.why_none() is not None:
        pytest.skip(limits.why_none())
    with limits.Group("test") as group:
        group.limit(100 << 20)
        line = group.inside([sys.executable, "-c", "import sys; x = b'1' * (int(sys.argv[1]) << 20)", "40"])
        assert subprocess.run(line, check=False).returncode == 0
        assert group.peak_bytes > 40 << 20
        assert subprocess.run([*line[:-1], "200"], check=False).returncode == -9
        assert group.hits > 0


def test_a_loss_that_depends_on_the_store_ends_the_benchmark() -> None:
    memory, disk = runs_part.Turns(), runs_part.Turns()
    for turns, last in ((memory, 0.25), (disk, 0.25)):
        turns.add(
            [{"step": 2, "losses": [0.5, last], "seconds": 2.0}, {"step": 2, "losses": [0.0, 0.0], "seconds": 3.0}]
        )
    assert memory.losses == {0: 0.5, 1: 0.25} and memory.step_s == [3.0]
    runs_part.same_losses(memory, disk)
    disk.add([{"step": 3, "losses": [0.125], "seconds": 1.0}])
    runs_part.same_losses(memory, disk)  # a step that only one has done
    memory.add([{"step": 3, "losses": [0.126], "seconds": 1.0}])
    with pytest.raises(SystemExit, match=r"step 2 has a loss of 0\.125 with disk, 0\.126 with dram"):
        runs_part.same_losses(memory, disk)


def test_claims_of_runs_are_of_the_first_budget_and_the_best_number_of_steps() -> None:
    of = {"workload": "w1-own", "exponent": 1.05, "speed_low": 0.8, "speed_high": 1.0, "evict": "lfu_aging"}
    rows = [
        {**of, "budget": "1/8", "ahead": 2, "speed": 0.97, "evict": "lru"},  # not what the store does
        {**of, "budget": "1/8", "ahead": 0, "speed": 0.7},
        {**of, "budget": "1/8", "ahead": 2, "speed": 0.95},
        {**of, "budget": "1/2", "ahead": 2, "speed": 0.99},
        {"workload": "w2-1m", "exponent": 1.2, "status": "skipped", "reason": "killed"},
    ]
    claims = {claim["id"]: claim for claim in runs_part.claims_of(rows, None, ["w1-own", "w2-1m"])}
    own = claims["tiers.speed.w1_own.1.05"]
    assert own["value"] == 0.95 and own["holds"] is False and "1/8, 2 ahead" in own["unit"]
    assert claims["tiers.of_bound.w2_1m.1.2"]["reason"] == "killed"
    assert claims["tiers.speed.w1_own.1.2"]["reason"] == "not among those that ran"
    asked = {claim["id"] for claim in runs_part.claims_of(rows, None, ["w2-1m"])}
    assert asked == {"tiers.of_bound.w2_1m.1.05", "tiers.of_bound.w2_1m.1.2"}


def test_a_limit_that_is_higher_is_said() -> None:
    row = {"workload": "w2-1m", "exponent": 1.05, "budget": "1/8", "ahead": 1, "evict": "lfu_aging", "slack_mb": 64.0}
    row |= {"of_bound": 0.9, "of_bound_low": 0.86, "of_bound_high": 1.0}
    claim = runs_part.claims_of([row], None, ["w2-1m"])[0]
    assert claim["unit"] == "of the bound's speed, 1/8, 1 ahead, limit 64 MB higher (0.86 to 1)"
    assert "higher" not in runs_part.claims_of([row | {"slack_mb": 0.0}], None, ["w2-1m"])[0]["unit"]


def test_the_disks_rate_is_fios_or_what_a_run_has_read_in_the_turn() -> None:
    def turns(reads: list[float]) -> runs_part.Turns:
        rank = {"seconds": 2.0, "disk_bytes_written": 30.0, "disk_bytes_handed": 10.0}
        return runs_part.Turns([[{**rank, "disk_rows_read": n}, {**rank, "disk_rows_read": n}] for n in reads])

    slow, fast = turns([50.0, 10.0, 10.0]), turns([70.0, 20.0, 80.0])
    assert runs_part.rates_of([60.0, 60.0, 60.0], [slow, fast]) == [70.0, 60.0, 80.0]
    assert runs_part.rates_of([], [slow, fast]) == []
    assert runs_part.written_of_changed(slow) == 3.0


# Checkpoints and clocks.


def test_how_long_steps_stand_still_is_held_to_memory_round_by_round() -> None:
    of = {"written_of_rows": 0.1, "resumed_s": 1.0, "resumed_hdf5_s": 10.0, "stopped_dram_ms": 4.0}
    rows = [{**of, "stopped_ms": ms} for ms in (4.0, 4.4, 5.2)]
    claims = {claim["id"]: claim for claim in checkpoint_part.claims_of(rows)}
    stall = claims["tiers.checkpoint_stall"]
    assert stall["value"] == pytest.approx(1.1) and stall["holds"] is False and "(1 to 1.3)" in stall["unit"]
    assert claims["tiers.resume_ratio"]["value"] == pytest.approx(0.1)


def test_placed_tables_are_held_to_all_alike_on_the_same_disk() -> None:
    def row(mix: str, disk: str, whole: list[str], step_ms: float) -> dict[str, Any]:
        return {"mix": mix, "disk": disk, "whole": whole, "step_ms": step_ms, "predicted_ms": 10.0}

    alike = [row("a", "free", [], 10.0), row("a", "5,000", [], 10.5), row("b", "free", [], 9.8)]
    placed = [row("a", "5,000", ["t"], 21.0), row("a", "free", ["t"], 8.0)]
    claims = {claim["id"]: claim for claim in clock_part.claims_of([*alike, *placed])}
    assert claims["tiers.prediction_error"]["value"] == pytest.approx(0.5 / 10.5)
    assert claims["tiers.placed_over_alike.time"]["value"] == pytest.approx(2.0)
    assert clock_part.claims_of(alike)[2]["value"] is None


def test_drift_is_of_turns_in_which_cache_and_disk_were_full() -> None:
    filling = [{"reads": 9.0, "disk_of_alive": 1.4, "reads_of_fio": 0.9}] * 3
    steady = [{"reads": 5.0, "disk_of_alive": 1.5, "reads_of_fio": share} for share in (0.5, 0.5, 0.4, 0.4, 0.45, 0.45)]
    found = drift_part.claimed([*filling, *steady], drift_part.QUICK, None)
    assert found["value"] == pytest.approx(0.9) and found["holds"] is False
    assert drift_part.claimed(steady[:3], drift_part.QUICK, None)["reason"] == "too few turns"
