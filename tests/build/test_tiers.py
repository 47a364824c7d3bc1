"""What a configuration is told of rows on a disk: figures by hand, and the memory that the store then asks for."""

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from hpcrec.build import tier_lines, tiers
from hpcrec.build.session import open_session
from hpcrec.build.tier_lines import step_in_memory, tier_report
from hpcrec.build.tiers import disk_bytes, tiers_of
from hpcrec.cli.config import config_group
from hpcrec.cli.data import data as data_command
from hpcrec.config import Config, to_toml, validate
from hpcrec.data.layout import Column, Columns
from hpcrec.data.reuse import reuse
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.errors import ConfigError, OutputError
from hpcrec.plan.placement import SPARE, TierPart, expect, least_bytes
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature, Ints

FEATURES = (
    Feature(name="large", cardinality=60_000),
    Feature(name="flat", cardinality=2_000),
    Feature(name="item", cardinality=9_000),
    Feature(name="history", cardinality=9_000, mean_ids=2.0),
)
SAMPLES, BATCH = 16_000, 200
ROW = 16 * 4 + 4  # of 16 columns with row-wise Adagrad


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, random = tmp_path_factory.mktemp("tiers") / "train.h5", np.random.default_rng(3)

    def ids(rows: int, exponent: float, n: int) -> Ints:
        chance = np.arange(1, rows + 1) ** -exponent
        return random.permutation(rows)[np.searchsorted(np.cumsum(chance / chance.sum()), random.random(n) * 0.999)]

    bags = random.integers(0, 5, SAMPLES)
    columns = {
        "large": Column(ids(60_000, 1.05, SAMPLES)),
        "flat": Column(ids(2_000, 0.1, SAMPLES)),
        "item": Column(ids(9_000, 1.0, SAMPLES)),
        "history": Column(ids(9_000, 1.0, int(bags.sum())), np.concatenate([[0], np.cumsum(bags)])),
    }
    label, dense = random.integers(0, 2, SAMPLES).astype(np.float32), np.zeros((SAMPLES, 2), np.float32)
    with Writer(path, FEATURES, n_dense=2, jagged=("history",)) as writer:
        writer.append(Columns(label=label, dense=dense, sparse=columns))
    return path


def config_of(file: Path, folder: Path, memory_bytes: int, **sections: dict[str, Any]) -> Config:
    mapping: dict[str, Any] = {
        "data": {"train": str(file), "shuffle": False},
        "model": {"name": "dlrm", "width": 16, "options": {"bottom": [16], "top": [8]}},
        "embedding": {"share": {"history": "item"}},
        "exchange": {"replicate_rows": 0},
        "store": {"name": "disk", "path": str(folder / "rows"), "memory_bytes": memory_bytes},
        "dense": {"reducer": "mpi"},
        "train": {"batch_size": BATCH},
        "run": {"folder": str(folder / "run"), "tensorboard": False, "progress": False},
    }
    for section, keys in sections.items():
        mapping[section] = {**mapping.get(section, {}), **keys}
    return validate(mapping, "test")


def told(config: Config, **more: Any) -> dict[str, str]:
    """Lines, by their first words."""
    lines = tier_report(config, 1, **{"samples_per_s": 20_000.0, "reads_per_s": 10_000.0, **more})
    return {line.strip().partition(":")[0]: line.strip() for line in lines}


def numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\.?\d*", text)]


def test_the_least_memory_is_what_the_store_asks_for(file: Path, tmp_path: Path) -> None:
    for whole in ([], ["flat"]):
        config = config_of(file, tmp_path, 1, store={"whole": whole})
        with pytest.raises(ConfigError, match="Set it to") as caught:
            open_session(config)
        wanted = int(str(caught.value).split("Set it to ")[1].split()[0])
        found = tiers_of(config, [0])
        assert not isinstance(found, str)
        assert least_bytes(found.parts[0], found.whole) == wanted
        lines = told(config)
        assert f"rank 0 needs {wanted:,} or more" in " ".join(lines.values())
        total = (60_000 + 2_000 + 9_000) * ROW
        assert lines["least"].endswith(f"rows take 4.83 MB, so at most {total / wanted:.1f} times less")
        assert "in place of an error" in lines.get("better", "in place of an error")


@pytest.mark.parametrize("whole", [[], ["flat"]])
@pytest.mark.parametrize("share", [8, 12])
def test_predicted_reads_are_those_that_are_counted(file: Path, tmp_path: Path, share: int, whole: list[str]) -> None:
    """Two features read one table, and a cache has sets."""
    config = config_of(file, tmp_path, 1, store={"whole": whole})
    found = tiers_of(config, [0])
    assert not isinstance(found, str)
    memory_bytes = least_bytes(found.parts[0], whole) + 71_000 * (ROW + 12) // share
    expected = expect(found.parts[0], memory_bytes, whole)
    assert expected is not None
    config = config_of(file, tmp_path, memory_bytes, store={"whole": whole})
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        store = session.parts.store
        assert store is not None
        counted = store.figures()
    assert counted["disk_steps"] == SAMPLES // BATCH
    assert counted["disk_reads_a_step"] == pytest.approx(expected.rows_read, rel=0.12), expected
    assert 5 < expected.rows_read < 300
    # The most: rows of the same time lie together, and those that were handed over last are in memory still.
    assert counted["disk_pages_read"] / counted["disk_steps"] < 1.1 * expected.pages_read


def pages_of(lines: dict[str, str], parts: Sequence[TierPart]) -> float:
    """Read a step in the memory that is said to be enough."""
    enough = expect(parts, numbers(next(line for line in lines if "0.9 of it takes store.memory_bytes" in line))[1])
    assert enough is not None
    return enough.pages_read


def test_what_is_said(file: Path, tmp_path: Path) -> None:
    config = config_of(file, tmp_path, 1)
    found = tiers_of(config, [0])
    assert not isinstance(found, str)
    memory_bytes = least_bytes(found.parts[0]) + 200_000
    expected = expect(found.parts[0], memory_bytes)
    assert expected is not None
    config, slow = config_of(file, tmp_path, memory_bytes), 1_500
    places_ms = 0.35e-3 * sum(part.curve.asked for part in found.parts[0])
    lines = told(config, samples_per_s=5_000, reads_per_s=slow)
    assert numbers(lines["reads (rank 0)"])[1] == pytest.approx(expected.rows_read, abs=0.06)
    step_ms, reads_ms, cpu_ms = (
        1e3 * BATCH / 5_000,
        1e3 * expected.pages_read / slow,
        places_ms + 4e-3 * expected.pages_read,
    )
    assert reads_ms > step_ms / 0.9 > step_ms + cpu_ms
    assert numbers(lines["disk"])[:2] == [slow, 4] and numbers(lines["disk"])[2] == pytest.approx(reads_ms, abs=0.06)
    speed = step_ms / (reads_ms + places_ms)  # while rows are given places the disk reads nothing
    assert numbers(lines["speed"])[:2] == [pytest.approx(speed, abs=0.006), step_ms]
    assert numbers(lines["speed"])[2:4] == [pytest.approx(reads_ms, abs=0.06), pytest.approx(cpu_ms, abs=0.06)]
    by_disk = next(line for line in lines if line.startswith("0.9 of it takes a disk"))
    reading_s = (step_ms / 0.9 - places_ms) / 1e3
    assert numbers(by_disk)[1] == pytest.approx(expected.pages_read / reading_s, rel=0.01)
    assert pages_of(lines, found.parts[0]) / slow == pytest.approx(reading_s, rel=0.02)
    a_day = 2 * expected.handed_bytes * 86_400 / ((reads_ms + places_ms) / 1e3)
    assert numbers(lines["writes"])[1] == pytest.approx(a_day / 1e9, abs=0.006)
    # Of a quick disk it is the cores that are taken, and a quicker one does not help.
    lines, step_ms = told(config, samples_per_s=50_000, reads_per_s=1e9), 1e3 * BATCH / 50_000
    assert numbers(lines["speed"])[:2] == [pytest.approx(step_ms / (step_ms + cpu_ms), abs=0.006), step_ms]
    assert not any(line.startswith("0.9 of it takes a disk") for line in lines)
    left_ms = step_ms * (1 / 0.9 - 1) - places_ms
    assert 4e-3 * pages_of(lines, found.parts[0]) == pytest.approx(left_ms, rel=0.02)
    lines = told(config, samples_per_s=1e6, reads_per_s=1e9)  # places alone take more than there may be
    assert any(line.startswith("0.9 of it takes as much memory as the rows") for line in lines)
    assert DiskStore.of_tier.spare == SPARE, "what is expected knows no store"
    # Rows of 68 bytes take 72 on the disk; of a block as small as this, six mebibytes more than they take.
    assert disk_bytes(found.parts[0], frozenset()) == pytest.approx(71_000 * 72.4 + 6 * 2**20, rel=0.01)
    assert "large (" not in lines.get("keep in memory (store.whole) tables of which a step asks for a tenth", "")


def test_a_budget_of_writes_is_compared_with_what_is_expected(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tiers_of(config_of(file, tmp_path, 1), [0])
    assert not isinstance(found, str)
    memory_bytes = least_bytes(found.parts[0]) + 300_000
    expected = expect(found.parts[0], memory_bytes)
    assert expected is not None
    a_day = 2 * expected.handed_bytes * 86_400  # with a step a second
    more: dict[str, Any] = {"samples_per_s": float(BATCH), "reads_per_s": 1e9}
    monkeypatch.setattr(tier_lines, "predicted_step", lambda step_s, _: step_s)
    for budget, times in ((round(a_day * 2), 0.5), (round(a_day / 3), 3)):
        line = told(config_of(file, tmp_path, memory_bytes, store={"daily_bytes": budget}), **more)["budget"]
        assert numbers(line)[:3] == [budget, 0, pytest.approx(1000 * times, abs=0.2)]
        if times < 1:
            assert line.endswith("and steps take 1,000.0: they do not wait for it")
        else:
            assert "3.0 times what steps take: they wait" in line
            assert numbers(line)[-1] == pytest.approx(a_day, abs=1)
    unknown = told(config_of(file, tmp_path, memory_bytes, store={"daily_bytes": 9}), samples_per_s=None)["budget"]
    assert unknown.endswith("ms")
    assert "budget" not in told(config_of(file, tmp_path, memory_bytes))


def test_steps_to_come_make_it_a_bound(file: Path, tmp_path: Path) -> None:
    config = config_of(file, tmp_path, 3_000_000, store={"window": 8}, exchange={"ids": "read"})
    assert "store.window = 8" in told(config)["store.window = 8"] and "at most" in told(config)["store.window = 8"]


def test_a_table_of_which_a_step_asks_much_is_told_to_stay(file: Path, tmp_path: Path) -> None:
    whole = told(config_of(file, tmp_path, 3_000_000, train={"batch_size": 500}))
    (line,) = [line for name, line in whole.items() if name.startswith("keep in memory")]
    assert "flat (22%)" in line and "large" not in line
    kept = told(config_of(file, tmp_path, 3_000_000, train={"batch_size": 500}, store={"whole": ["flat"]}))
    assert not any("flat" in line for name, line in kept.items() if name.startswith("keep in memory"))


def test_a_better_placement_can_be_pasted(file: Path, tmp_path: Path) -> None:
    config = config_of(file, tmp_path, 1)
    found = tiers_of(config, [0])
    assert not isinstance(found, str)
    memory_bytes = least_bytes(found.parts[0]) + 700_000
    line = told(config_of(file, tmp_path, memory_bytes))["better"]
    whole = json.loads(line.split("store.whole = ")[1].split("]")[0] + "]")
    assert "flat" in whole
    then, now = numbers(line.split("]")[1])
    placed, alike = expect(found.parts[0], memory_bytes, whole), expect(found.parts[0], memory_bytes)
    assert placed is not None and alike is not None
    assert (then, now) == (pytest.approx(placed.pages_read, abs=0.06), pytest.approx(alike.pages_read, abs=0.06))
    assert then < now
    assert "better" not in told(config_of(file, tmp_path, memory_bytes, store={"whole": whole}))


def test_later_epochs_read_what_was_new(file: Path, tmp_path: Path) -> None:
    once, twice = (tiers_of(config_of(file, tmp_path, 1, train={"epochs": n}), [0]) for n in (1, 2))
    assert not isinstance(once, str) and not isinstance(twice, str)
    for a, b in zip(once.parts[0], twice.parts[0], strict=True):
        places = a.curve.distinct / 4
        more = float(np.interp(places, a.curve.held, a.curve.again))
        assert 0.8 * a.curve.new < more <= a.curve.new
        assert b.curve.reads(places) == pytest.approx(a.curve.reads(places) + more / 2, rel=0.01)
        assert b.curve.reads(a.curve.distinct) == 0


def test_a_run_of_few_steps_reads_what_these_ask_for(file: Path, tmp_path: Path) -> None:
    few = tiers_of(config_of(file, tmp_path, 1, train={"steps": 20}), [0])
    wanted = reuse(file, BATCH, {"large": ("large",)}, samples=20 * BATCH)["large"]
    assert not isinstance(few, str)
    found = next(part for part in few.parts[0] if part.table == "large").curve
    assert (found.steps, found.distinct) == (20, wanted.distinct) and found.reads(500) == wanted.reads(500)


def test_counts_of_a_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "IDS_COUNTED", 1000)
    config = config_of(file, tmp_path, 2_500_000)
    (line,) = tier_report(config, 1)
    assert f"hpcrec data reuse {file} --batch-size 200 --json" in line
    (tmp_path / "c.toml").write_text(to_toml(config))
    run = CliRunner()
    counted = run.invoke(data_command, ["reuse", str(file), "--batch-size", "200", "--json"], catch_exceptions=False)
    (tmp_path / "reuse.json").write_text(counted.stdout)
    check = ["check", str(tmp_path / "c.toml"), "--reuse", str(tmp_path / "reuse.json"), "--reads-per-s", "9000"]
    shown = run.invoke(config_group, check, catch_exceptions=False).stdout
    assert "rows on the disk, with 1 owner on one host:" in shown and "9,000 reads/s of 4 KiB" in shown
    assert "speed: not predicted; give --samples-per-s" in shown
    with pytest.raises(ConfigError, match=r"counted with --batch-size 200, but train.batch_size is 100"):
        tiers_of(config_of(file, tmp_path, 1, train={"batch_size": 100}), [0], tmp_path / "reuse.json")
    (tmp_path / "reuse.json").write_text('{"batch_size": 200, "features": {"large": {}}}')
    with pytest.raises(ConfigError, match=r"is not what `hpcrec data reuse --json` prints"):
        tiers_of(config, [0], tmp_path / "reuse.json")
    refused = run.invoke(config_group, [*check, "--set", "store.name=dram", "--set", "store.path=x"])
    assert refused.exit_code != 0


def test_counts_of_a_last_batch_that_is_not_full_are_taken(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "IDS_COUNTED", 1000)
    for train in ({"batch_size": 300}, {"batch_size": 300, "steps": 7}):
        config = config_of(file, tmp_path, 1, train=train)
        (line,) = tier_report(config, 1)
        words = line.partition("by hpcrec data ")[2].partition(" > ")[0].split()
        counted = CliRunner().invoke(data_command, words, catch_exceptions=False)
        (tmp_path / "reuse.json").write_text(counted.stdout)
        assert not isinstance(tiers_of(config, [0], tmp_path / "reuse.json"), str)


def test_counts_of_ids_that_say_nothing_of_rows_are_refused(file: Path, tmp_path: Path) -> None:
    count = ["reuse", str(file), "--batch-size", str(BATCH), "--json"]
    (tmp_path / "reuse.json").write_text(CliRunner().invoke(data_command, count, catch_exceptions=False).stdout)
    few = config_of(file, tmp_path, 1, train={"steps": 20})
    with pytest.raises(
        ConfigError, match=rf"counted over {SAMPLES // BATCH} steps, but this run has 20 .*--samples 4000"
    ):
        tiers_of(few, [0], tmp_path / "reuse.json")
    for rows, refused in ((2_000, True), (2_000_000, False)):
        tables = {"large": {"rows": rows, "hashed": True}}
        hashed = config_of(file, tmp_path, 10**6, embedding={"tables": tables})
        said = pytest.raises(ConfigError, match=r"'large' has [\d,]+, hashed to 2,000 rows: .* Leave --reuse out")
        with said if refused else nullcontext():
            tiers_of(hashed, [0], tmp_path / "reuse.json")


def test_a_disk_is_measured_where_its_folder_will_be(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_lines, "MEASURED_S", 0.02)
    line = told(config_of(file, tmp_path, 2_500_000), reads_per_s=None)["disk"]
    assert re.search(rf"reads/s of 4 KiB \(measured just now in {tmp_path} by (io_uring|threads)\)", line), line
    assert numbers(line)[0] > 500

    def refused(folder: Path, page_bytes: int) -> None:
        raise OutputError(f"{folder}: no pages of {page_bytes}")

    monkeypatch.setattr(tier_lines, "RandomReads", refused)
    lines = told(config_of(file, tmp_path, 2_500_000), reads_per_s=None)
    assert lines["disk"] == f"disk: not measured ({tmp_path}: no pages of 4096); give --reads-per-s"
    assert "speed" not in lines and "writes" in lines


def test_a_step_in_memory_is_that_of_an_earlier_run(file: Path, tmp_path: Path) -> None:
    config = config_of(file, tmp_path, 1)
    assert step_in_memory(config, None) == (None, "")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/summary.json").write_text('{"throughput": {"samples_per_s": 4000.0}}')
    memory = config_of(file, tmp_path, 1, store={"name": "dram", "path": None, "memory_bytes": None})
    (tmp_path / "run/config.toml").write_text(to_toml(memory))
    assert step_in_memory(config, None) == (BATCH / 4000, f"as of the run in {tmp_path / 'run'}")
    assert step_in_memory(config, 1000.0) == (BATCH / 1000, "--samples-per-s")
    (tmp_path / "run/config.toml").write_text(to_toml(config))
    assert step_in_memory(config, None) == (None, "")
