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
from tiers_parts import drift_part, laws, limits, runs_part, settled, stores_part  # noqa: E402 - of the benchmark, no package

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
    of = {"workload": "w1-own", "exponent": 1.05, "speed_low": 0.8, "speed_high": 1.0}
    rows = [
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


def test_drift_is_of_turns_in_which_cache_and_disk_were_full() -> None:
    filling = [{"reads": 9.0, "disk_of_alive": 1.4, "reads_of_fio": 0.9}] * 3
    steady = [{"reads": 5.0, "disk_of_alive": 1.5, "reads_of_fio": share} for share in (0.5, 0.5, 0.4, 0.4, 0.45, 0.45)]
    found = drift_part.claimed([*filling, *steady], drift_part.QUICK, None)
    assert found["value"] == pytest.approx(0.9) and found["holds"] is False
    assert drift_part.claimed(steady[:3], drift_part.QUICK, None)["reason"] == "too few turns"
