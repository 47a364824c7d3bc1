"""`hpcrec data reuse`: curves held to an LRU and to fixed sets that are simulated, id by id."""

import json
import tracemalloc
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import cut, write

from hpcrec.cli.data import data as command
from hpcrec.data import reuse as module
from hpcrec.data.reuse import ReuseTimes, reuse
from hpcrec.plan.curves import Curve, by_last_use, summed
from hpcrec.preparation.schema import Columns, write_index
from hpcrec.types import Ints

PARTS = (2, 4, 8, 16, 32)


def trace(rows: int, steps: int, ids: int, exponent: float, seed: int = 1) -> list[Ints]:
    """Distinct rows of each step, by a power law."""
    random = np.random.default_rng(seed)
    chance = np.arange(1, rows + 1) ** -exponent
    below, named = np.cumsum(chance / chance.sum()), random.permutation(rows) * 7919 - 5
    return [np.unique(named[np.searchsorted(below, random.random(ids))]) for _ in range(steps)]


def counted(steps: list[Ints], limit: int = module.LIMIT, piece: int = 1000) -> Curve:
    """The curve, of pieces that end anywhere."""
    times = ReuseTimes(len(steps), limit)
    ids, step = np.concatenate(steps), np.repeat(np.arange(len(steps)), [len(rows) for rows in steps])
    for at in range(0, len(ids), piece):
        times.add(step[at : at + piece], ids[at : at + piece])
    return times.curve()


def lru(steps: list[Ints], places: int) -> tuple[float, list[int]]:
    """Rows a step that were there before and are not in a memory of so many, and how many the last step leaves."""
    random, memory, seen, reads = np.random.default_rng(2), OrderedDict[int, None](), set[int](), 0
    for rows in steps:
        wanted = random.permutation(rows).tolist()
        reads += sum(row in seen and row not in memory for row in wanted)
        seen.update(wanted)
        for row in wanted:
            memory[row] = None
            memory.move_to_end(row)
        while len(memory) > places:
            memory.popitem(last=False)
    return reads / len(steps), list(memory)


def fixed(steps: list[Ints], places: int) -> float:
    """Rows a step that are read with the best set of so many; each row's first use is no read."""
    counts = np.unique(np.concatenate(steps), return_counts=True)[1]
    return float(np.sort(counts - 1)[::-1][places:].sum()) / len(steps)


@pytest.mark.parametrize(("rows", "exponent"), [(20_000, 1.05), (40_000, 1.2), (3_000, 0.6)])
def test_curves_are_those_of_a_simulation(rows: int, exponent: float) -> None:
    steps = trace(rows, 400, 400, exponent)
    curve = counted(steps)
    distinct = len(np.unique(np.concatenate(steps)))
    assert (curve.distinct, curve.steps) == (distinct, 400)
    assert curve.asked == pytest.approx(np.mean([len(r) for r in steps]))
    assert curve.new == pytest.approx(distinct / 400)
    for part in PARTS:
        places = distinct // part
        assert curve.reads(places) == pytest.approx(lru(steps, places)[0], rel=0.01, abs=0.1), part
        assert curve.best(places) == pytest.approx(fixed(steps, places), rel=0.02, abs=0.1), part
        assert curve.best(places) <= curve.reads(places)
    assert curve.reads(distinct) == curve.best(distinct) == 0
    assert curve.reads(0) == pytest.approx(curve.asked - curve.new)


def test_an_epoch_after_another() -> None:
    """The same steps twice: against the simulation of both, less that of one."""
    steps = trace(9_000, 60, 200, 0.8)
    curve = counted(steps)
    later, distinct = curve.later(0.5), curve.distinct
    for part in (1.2, 2, 4, 8):
        places = int(distinct / part)
        assert later.reads(places) == pytest.approx(lru(steps * 2, places)[0], rel=0.03, abs=1.0), part
    assert later.reads(distinct) == 0 and later.new == curve.new / 2


def test_of_many_ids_some_stand_for_all() -> None:
    steps = trace(200_000, 500, 2_000, 1.05)
    exact, sampled = counted(steps, piece=50_000), counted(steps, limit=1 << 14, piece=50_000)
    assert sampled.distinct == pytest.approx(exact.distinct, rel=0.02) and sampled.distinct != exact.distinct
    for part in PARTS:
        places = exact.distinct / part
        assert sampled.reads(places) == pytest.approx(exact.reads(places), rel=0.04)
        assert sampled.best(places) == pytest.approx(exact.best(places), rel=0.06, abs=0.002 * exact.asked)


def test_memory_is_bounded() -> None:
    times, random = ReuseTimes(1000, limit=10_000), np.random.default_rng(3)
    tracemalloc.start()
    for step in range(1000):
        times.add(np.full(2_000, step), random.integers(0, 1 << 60, 2_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    curve = times.curve()
    assert curve.distinct == pytest.approx(2_000_000, rel=0.04) and curve.reads(0) == 0


def test_tables_that_share_a_memory() -> None:
    """One of few frequent rows, one of many: against the simulation of both in one memory."""
    one, other = trace(2_000, 400, 300, 1.1, seed=4), trace(30_000, 400, 100, 1.0, seed=5)
    both = [np.concatenate([a * 2, b * 2 + 1]) for a, b in zip(one, other, strict=True)]
    curves = [counted(one), counted(other)]
    for places in (600, 2_000, 8_000):
        assert by_last_use(curves, places) == pytest.approx(lru(both, places)[0], rel=0.015)
    assert by_last_use(curves, 1e9) == 0


def test_a_part_of_rows_that_are_dealt() -> None:
    steps = trace(20_000, 300, 600, 1.05)
    whole, mine = counted(steps), [rows[(rows * 2654435761 >> 7) % 3 == 0] for rows in steps]
    part, wanted = whole.part(1 / 3), counted(mine)
    for places in (500, 1_000, 2_000):
        assert part.reads(places) == pytest.approx(wanted.reads(places), rel=0.06)


def test_how_often_rows_are_asked_for() -> None:
    """Numbers of uses: exact where they are few, and of all rows together; also of tables that are one, and later."""
    steps = trace(20_000, 300, 600, 1.05)
    curve = counted(steps)
    wanted = np.unique(np.concatenate(steps), return_counts=True)[1]
    for of, share in ((curve, 1), (curve.later(0.5), 1), (summed([curve, curve]), 2), (curve.part(0.25), 0.25)):
        times, rows = of.uses()
        for n in range(1, 8):
            assert rows[np.isclose(times, n)].sum() == pytest.approx(share * np.count_nonzero(wanted == n)), (n, share)
        assert times @ rows == pytest.approx(share * wanted.sum())
        assert of.top[-1] == pytest.approx(share * len(wanted)) and of.fixed[-1] == pytest.approx(0)
    both = summed([curve, curve])
    assert both.best(2_000) == pytest.approx(2 * curve.best(1_000))


def test_the_command_reads_files(
    samples: Columns, data_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 300)  # several blocks, and bags in several pieces
    parts = [write(tmp_path / f"{i}.h5", cut(samples, *ab)) for i, ab in enumerate([(0, 900), (900, 2357)])]
    write_index(tmp_path / "all.index.json", parts)
    assert {k: v.as_json() for k, v in reuse(data_file, 64).items()} == {
        k: v.as_json() for k, v in reuse(tmp_path / "all.index.json", 64).items()
    }
    run = CliRunner()
    told = run.invoke(command, ["reuse", str(data_file), "--batch-size", "64", "--json"], catch_exceptions=False)
    found = json.loads(told.stdout)
    assert found["batch_size"] == 64 and found["features"].keys() == samples.sparse.keys()
    for name, column in samples.sparse.items():
        lengths = np.ones(2357, int) if column.offsets is None else np.diff(column.offsets)
        step = np.repeat(np.arange(2357), lengths) // 64
        curve = Curve.from_json(found["features"][name])
        asked = len(np.unique(np.stack([step, column.ids]), axis=1).T)
        assert curve.asked == pytest.approx(asked / 37, rel=1e-5) and curve.steps == 37
        assert curve.distinct == len(np.unique(column.ids))
    two = list(samples.sparse)[-2:]  # a table that two features read
    pairs = []
    for column in (samples.sparse[name] for name in two):
        lengths = np.ones(2357, int) if column.offsets is None else np.diff(column.offsets)
        pairs.append(np.stack([np.repeat(np.arange(2357), lengths) // 64, column.ids]))
    step, rows = np.unique(np.concatenate(pairs, axis=1), axis=1)
    both = reuse(data_file, 64, {"both": two})["both"]
    assert both.asked == pytest.approx(len(step) / 37) and both.distinct == len(np.unique(rows))
    halved = reuse(data_file, 64, {"both": two}, rows_of={"both": lambda ids: ids // 2})["both"]
    assert halved.distinct == len(np.unique(rows // 2))
    name = next(iter(samples.sparse))
    shown = run.invoke(
        command, ["reuse", str(data_file), "--batch-size", "64", "--feature", name, "--samples", "640"]
    ).stdout.splitlines()
    assert len(shown) == 5 and shown[1].split()[:3] == ["feature", "rows", "a"] and shown[2].split()[0] == name
    assert shown[4].startswith('store.name = "disk" follows the columns fixed')
    assert run.invoke(command, ["reuse", str(data_file), "--batch-size", "0"]).exit_code == 2
