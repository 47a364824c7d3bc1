"""`hpcrec init`: what it writes converts and trains without an edit; what it refuses; the real samples."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrec import toml
from hpcrec.cli import main as cli
from hpcrec.config import load_config
from hpcrec.preparation.schema import DataSet
from hpcrec.preparation.tablemap import TableMap, load_map
from hpcrec.systems import OF_THE_MACHINE, SYSTEMS
from tests.conftest import MPI_ENVIRONMENT
from tests.drafts.tables import Rows, clicks, write_csv, write_typed

REAL = Path(__file__).parents[3] / "shared" / "data"


def hpcrec(*arguments: object) -> int:
    """Exit code of a command line, run in this process."""
    with pytest.raises(SystemExit) as caught:
        cli.main([str(a) for a in arguments])
    return int(caught.value.code or 0)


def train(folder: Path, *settings: str, by: tuple[str, ...] = (), options: tuple[str, ...] = ()) -> dict[str, object]:
    """The summary of a few steps of the drafted run, in one process, or by what ``by`` says."""
    few = ["train.steps=8", "train.eval_every=0", "run.progress=false", "run.tensorboard=false", *settings]
    command = [sys.executable, "-m", "hpcrec", *by, "train", str(folder / "run.toml"), *options]
    command += [x for s in few for x in ("--set", s)]
    environment = {**os.environ, **MPI_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads((folder / "runs/first/summary.json").read_text())
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What is said where it ends with the exit code of a usage or configuration."""
    assert hpcrec("init", *arguments) == 2
    return capsys.readouterr().err


def table(tmp_path: Path, rows: Rows, ending: str) -> Path:
    path = tmp_path / f"t.{ending}"
    return (
        write_csv(path, rows, "\t" if ending == "tsv" else ",") if ending in ("csv", "tsv") else write_typed(path, rows)
    )


def every_line_has_a_reason(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    assert len(lines) > 8
    for line in lines:
        assert "  # " in line or (path.name == "run.toml" and line.startswith("[")), line


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "arrow"])
def test_a_draft_converts_and_trains_without_an_edit(
    tmp_path: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path, clicks(), ending)
    out = tmp_path / "new" / "draft"
    assert hpcrec("init", path, "--label", "click", "--out", out) == 0
    told = capsys.readouterr().out
    assert "left out: column paid_at gives the label away: it is filled exactly where the label is 1" in told
    assert told.count("left out") == 1 and "note:" not in told
    made = load_map(out / "map.toml")
    assert set(made.sparse) == {"site", "user", "visits", "genres"} and set(made.dense) == {"score_a", "income"}
    assert (made.sparse["visits"].ids, made.sparse["genres"].separator) == ("bins", "|")
    assert made.time == "at" and (made.split or "").startswith("time:2024-05-")
    assert (made.dense["income"].transform, made.dense["score_a"].transform) == ("log1p", "scale")
    text = (out / "map.toml").read_text()
    for name, reason in {"row": "a row number", "key": "a unique key", "shop": "its only value is 'main'",
                         "title": "free text", "paid_at": "it gives the label away"}.items():  # fmt: skip
        assert any(line.startswith(f"# {name}: left out: {reason}") for line in text.splitlines()), name
    every_line_has_a_reason(out / "map.toml")
    every_line_has_a_reason(out / "run.toml")
    assert hpcrec("prepare", "table", "--map", out / "map.toml", "--out", out / "data", path) == 0
    parts = {}
    for part in ("train", "validation", "test"):
        with DataSet(out / f"data/{part}.h5") as data:
            block = data.read(0, data.samples)
            parts[part] = block
    assert [parts[part].samples for part in parts] == pytest.approx([1200, 150, 150], abs=2)
    assert parts["train"].time.max() < parts["validation"].time.min() <= parts["validation"].time.max()  # type: ignore[union-attr]
    assert parts["validation"].time.max() < parts["test"].time.min()  # type: ignore[union-attr]
    assert np.abs(np.concatenate([parts[part].dense for part in parts])).max() < 20
    if ending == "arrow":  # what is in the data sets of the others is alike; a process takes long to start
        assert train(out)["steps"] == 8


def test_parts_of_their_own_share_a_vocabulary(tmp_path: Path) -> None:
    parts = {name: clicks(600, seed) for seed, name in enumerate(("train", "more", "validation", "test"))}
    files = {name: write_csv(tmp_path / f"{name}.csv", rows) for name, rows in parts.items()}
    out = tmp_path / "out"
    arguments = ["--validation", files["validation"], "--test", files["test"], "--out", out]
    assert hpcrec("init", files["train"], files["more"], "--label", "click", *arguments) == 0
    made = load_map(out / "map.toml")
    assert made.split is None and "have files of their own" in (out / "map.toml").read_text()
    arguments = ["--validation", files["validation"], "--test", files["test"], "--out", out / "data"]
    assert hpcrec("prepare", "table", "--map", out / "map.toml", files["train"], files["more"], *arguments) == 0
    cardinalities = set()
    for part, n in (("train", 1200), ("validation", 600), ("test", 600)):
        with DataSet(out / f"data/{part}.h5") as data:
            assert data.samples == n
            cardinalities.add(tuple(feature.cardinality for feature in data.features))
    assert len(cardinalities) == 1
    assert train(out)["steps"] == 8


def test_ratings_words_headers_and_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = {
        "u": rng.integers(0, 50, 900),
        "film": [f"f{i}" for i in rng.integers(0, 90, 900)],
        "stars": rng.integers(1, 6, 900),
    }
    plain = write_csv(tmp_path / "t.csv", rows, header=False)
    out = tmp_path / "out"
    arguments = ["--label", "stars", "--columns", "u,film,stars", "--label-from", 4, "--together", "u", "--out", out]
    assert hpcrec("init", plain, *arguments) == 0
    made = load_map(out / "map.toml")
    assert (made.columns, made.header, made.label_from) == (("u", "film", "stars"), False, 4.0)
    assert (made.group, made.group_value, made.split) == ("u", "text", "group:0.8,0.1,0.1")
    assert hpcrec("prepare", "table", "--map", out / "map.toml", "--out", out / "data", plain) == 0
    groups = []
    for part in ("train", "validation", "test"):
        with DataSet(out / f"data/{part}.h5") as data:
            groups.append(set(data.read(0, data.samples).group.tolist()))  # type: ignore[union-attr]
    assert sum(map(len, groups)) == len(set.union(*groups))
    answers = {"bought": np.where(rows["stars"] > 3, "Y", "N"), "film": rows["film"], "n": ["NULL", 1, 2] * 300}
    words = write_csv(tmp_path / "w.csv", answers, ";")
    assert hpcrec("init", words, "--label", "bought", "--out", tmp_path / "words") == 0
    made = load_map(tmp_path / "words/map.toml")
    assert (made.label_words, made.delimiter, made.empty) == (("N", "Y"), ";", ("NULL",))
    assert made.split == "hash:0.8,0.1,0.1"
    arguments = ["--map", tmp_path / "words/map.toml", "--out", tmp_path / "words/data"]
    assert hpcrec("prepare", "table", *arguments, words) == 0
    with DataSet(tmp_path / "words/data/train.h5") as data:
        block = data.read(0, data.samples)
        assert 0.2 < block.label.mean() < 0.6 and set(np.unique(block.sparse["n"].ids)) == {0, 2, 3}


def test_bad_rows_of_the_sample_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "t.csv", clicks(400))
    path.write_text(path.read_text() + "1,2\n")
    assert hpcrec("init", path, "--label", "click", "--out", tmp_path / "out") == 0
    assert "note: 1 of 401 rows are bad lines (the first: found 2 columns in '1,2'" in capsys.readouterr().out


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "t.csv", clicks(400))
    out = ["--out", tmp_path]
    assert "no column 'Click' for the label; it has row, key, click, site" in refused(
        capsys, path, "--label", "Click", *out
    )
    assert "no column 'who' to keep together" in refused(capsys, path, "--label", "click", "--together", "who", *out)
    assert "and a label has two" in refused(capsys, path, "--label", "user", *out)
    assert "rows of the sample have no label" in refused(capsys, path, "--label", "paid_at", *out)
    assert "given for train and for test" in refused(capsys, path, "--label", "click", "--test", path, *out)
    assert "Missing argument" in refused(capsys, "--label", "click", "--validation", path, *out)
    parquet = write_typed(tmp_path / "t.parquet", clicks(400))
    assert "brings its names" in refused(capsys, parquet, "--label", "a", "--columns", "a,b", *out)
    other = write_csv(tmp_path / "o.csv", {"click": [0, 1], "site": ["a", "b"]})
    assert hpcrec("init", path, "--label", "click", "--test", other, *out) == 1
    assert "o.csv, line 1: found the header" in capsys.readouterr().err
    values = tmp_path / "values.csv"
    values.write_text("".join(f"{i % 2},{i % 5},{i % 5},a{i}\n" for i in range(400)))
    assert "the first line has the label, '0', so that it is taken for names, and has '0' twice" in refused(
        capsys, values, "--label", "0", *out
    )
    assert "--columns names 'x' twice" in refused(capsys, values, "--label", "y", "--columns", "y,x,x,z", *out)
    bare = write_csv(tmp_path / "b.csv", {"click": [i % 2 for i in range(400)], "x": [i / 7 for i in range(400)]})
    assert "no column is left to make a feature of. Numbers alone (x)" in refused(
        capsys, bare, "--label", "click", *out
    )
    assert not (tmp_path / "map.toml").exists() and not (tmp_path / "run.toml").exists()


def test_nothing_is_written_over_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "t.csv", clicks(400))
    for name in ("run.toml", "map.toml"):
        (tmp_path / name).write_text("mine")
        assert f"{name}: is there already; --force" in refused(capsys, path, "--label", "click", "--out", tmp_path)
        assert (tmp_path / name).read_text() == "mine"
    assert hpcrec("init", path, "--label", "click", "--out", tmp_path, "--force") == 0
    assert load_map(tmp_path / "map.toml").labels == ("click",)
    assert load_config(tmp_path / "run.toml").data.train == str(tmp_path / "data/train.h5")


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name not in OF_THE_MACHINE])
def test_a_draft_starts_from_a_system(tmp_path: Path, system: str) -> None:
    path = write_csv(tmp_path / "t.csv", clicks(400))
    assert hpcrec("init", path, "--label", "click", "--out", tmp_path, "--system", system) == 0
    found = toml.plain(load_config(tmp_path / "run.toml"))
    for section, keys in SYSTEMS[system]().items():
        for key, value in keys.items():
            have = found[section][key]
            assert have == value or have.items() >= value.items(), (section, key)
    assert found["train"]["batch_size"] == 256
    every_line_has_a_reason(tmp_path / "run.toml")


@pytest.mark.parametrize("system", [pytest.param(name, marks=[pytest.mark.slow] * (name != "dmt")) for name in SYSTEMS])
def test_a_drafted_system_trains(tmp_path: Path, system: str) -> None:
    """As `hpcrec init` says it is to be started; a system that takes a folder of the machine besides, by `--system`."""
    path = write_csv(tmp_path / "t.csv", clicks(2000))
    started, settings = ("--system", system), ()
    if system in OF_THE_MACHINE:
        settings = (f"store.path={tmp_path / 'rows'}", "store.memory_bytes=20000000")
    assert hpcrec("init", path, "--label", "click", "--out", tmp_path, *(() if settings else started)) == 0
    assert hpcrec("prepare", "table", path, "--map", tmp_path / "map.toml", "--out", tmp_path / "data") == 0
    options = started if settings else ()
    found = train(tmp_path, *settings, by=("run", "-n", "2", "--"), options=options)
    assert (found["status"], found["steps"]) == ("finished", 8)
    ran = toml.plain(load_config(tmp_path / "runs/first/config.toml"))
    recipe = SYSTEMS[system]()
    for section in ("store",) if settings else recipe:  # else what the draft says of other keys holds
        for key, value in recipe[section].items():
            assert ran[section][key] == value or ran[section][key].items() >= value.items(), (section, key)


def drafted(tmp_path: Path, name: str, *arguments: object) -> tuple[TableMap, str]:
    if not (REAL / name).is_file():
        pytest.skip(f"no real samples here: {name}")
    assert hpcrec("init", REAL / name, "--out", tmp_path, *arguments) == 0
    tomllib.loads((tmp_path / "run.toml").read_text())
    return load_map(tmp_path / "map.toml"), (tmp_path / "map.toml").read_text()


def test_real_clicks_of_talkingdata(tmp_path: Path) -> None:
    made, text = drafted(tmp_path, "talkingdata_100k.csv.gz", "--label", "is_attributed")
    assert set(made.sparse) == {"ip", "app", "device", "os", "channel"} and not made.dense
    assert made.time == "click_time" and (made.split or "").startswith("time:2017-11-0")
    assert text.count("gives the label away") == 1
    assert "# attributed_time: left out: it gives the label away: it is filled exactly where the label is 1" in text


def test_real_clicks_of_criteo(tmp_path: Path) -> None:
    made, text = drafted(tmp_path, "criteo_kaggle_sample.tsv.gz", "--label", "c1")
    assert (made.delimiter, made.header, len(made.columns)) == ("\t", False, 40)
    assert "gives the label away" not in text and len(made.sparse) + len(made.dense) == 39
    # By hand (`prepare criteo`) the 13 integers are dense inputs, or bins, and the 26 values ids. Here a column is
    # one of these; two of the integers have too few or too even values for counts, and the draft says so.
    assert set(made.sparse) | set(made.dense) == {f"c{i}" for i in range(2, 41)}
    ids = {name for name, spec in made.sparse.items() if spec.ids == "vocabulary"}
    assert ids == {f"c{i}" for i in range(15, 41)} | {"c4", "c11"}
    assert {spec.ids for name, spec in made.sparse.items() if name not in ids} == {"bins"}
    for name in ("c4", "c11"):
        assert f"[sparse.{name}]  # integers that look like ids, not counts: " in text


@pytest.mark.parametrize(
    ("name", "item"), [("ml100k_ratings.csv.gz", "item_id"), ("ml1m_ratings_100k.csv.gz", "movie_id")]
)
def test_real_ratings_of_movielens(tmp_path: Path, name: str, item: str, capsys: pytest.CaptureFixture[str]) -> None:
    made, text = drafted(tmp_path, name, "--label", "rating", "--label-from", 4)
    assert set(made.sparse) == {"user_id", item} and not made.dense and made.time == "timestamp"
    assert made.label_from == 4.0 and "gives the label away" not in text
    assert "--label-from" in refused(capsys, REAL / name, "--label", "rating", "--out", tmp_path / "none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("talkingdata_100k.csv.gz", ("is_attributed",)),
        ("criteo_kaggle_sample.tsv.gz", ("c1",)),
        ("ml100k_ratings.csv.gz", ("rating", "--label-from", 4)),
        ("ml1m_ratings_100k.csv.gz", ("rating", "--label-from", 4)),
    ],
)
def test_drafts_of_real_tables_train_as_they_are(tmp_path: Path, name: str, label: tuple[object, ...]) -> None:
    drafted(tmp_path, name, "--label", *label)
    assert hpcrec("prepare", "table", REAL / name, "--map", tmp_path / "map.toml", "--out", tmp_path / "data") == 0
    found = train(tmp_path)
    assert (found["status"], found["steps"]) == ("finished", 8)
    assert 0.3 < found["eval"]["auc"] <= 1.0, found["eval"]


def test_types_of_parquet_are_believed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lists, booleans, times, dictionaries, whole floats with nulls, NaN, and types that no map reads."""
    rng = np.random.default_rng(4)
    n = 600
    lists = [rng.choice(40, rng.integers(0, 5), replace=False).tolist() for _ in range(n)]
    columns = {
        "click": pa.array((rng.random(n) < 0.4).tolist()),
        "tags": pa.array([None if i % 9 == 0 else items for i, items in enumerate(lists)], pa.list_(pa.int32())),
        "embedding": pa.array([[0.5, 0.25]] * n, pa.list_(pa.float32(), 2)),
        "shop": pa.array([f"s{i}" for i in rng.integers(0, 20, n)]).dictionary_encode(),
        "brand_id": pa.array([None if i % 5 == 0 else float(i % 17) for i in range(n)], pa.float64()),
        "mobile": pa.array((rng.random(n) < 0.5).tolist()),
        "price": pa.array([float("nan") if i % 8 == 0 else float(v) for i, v in enumerate(rng.normal(0, 1, n))]),
        "at": pa.array((1_700_000_000_000 + 86_400_000 * rng.integers(0, 30, n)).tolist(), pa.timestamp("ms")),
        "place": pa.array([{"x": 1}] * n),
    }
    path, out = tmp_path / "t.parquet", tmp_path / "out"
    pq.write_table(pa.table(columns), path)
    assert hpcrec("init", path, "--label", "click", "--out", out) == 0
    assert "note:" not in capsys.readouterr().out
    made = load_map(out / "map.toml")
    assert set(made.sparse) == {"tags", "shop", "brand_id", "mobile"} and set(made.dense) == {"price"}
    assert made.sparse["tags"].list and made.sparse["tags"].value == "integer" and made.time == "at"
    text = (out / "map.toml").read_text()
    assert "# embedding: left out: it holds lists of float" in text and "# place: left out: its type" in text
    assert load_config(out / "run.toml").model.pooling == {"tags": "mean"}
    assert hpcrec("prepare", "table", "--map", out / "map.toml", "--out", out / "data", path) == 0
    with DataSet(out / "data/train.h5") as data:
        block = data.read(0, data.samples)
        assert np.isfinite(block.dense).all() and 0.3 < block.label.mean() < 0.5
        assert {f.name: f.cardinality for f in data.features}["brand_id"] == 2 + 17
