"""``hpcrec.load`` and ``prepare``: a frame's raw values give what ``hpcrec predict`` gives for the same samples."""

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest

import hpcrec
from hpcrec.api.configured import configured
from hpcrec.config import to_toml
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation.sourced import Source
from hpcrec.preparation.writer import Writer
from tests.api import clicks
from tests.forked import Done, Forked


def well(done: Done) -> None:
    assert done.code == 0, done.err


def predicted(command: Forked, folder: Path, data: Path | str, out: Path) -> np.ndarray:
    """What the command gives."""
    well(command("predict", folder, "--data", data, "--out", out))
    with h5py.File(out) as file:
        return file["prediction"][()]


@pytest.fixture(scope="module")
def run(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> hpcrec.Run:
    return hpcrec.train(**clicks.sections(files, tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture(scope="module")
def asked(run: hpcrec.Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, Path]:
    """A table that training has not seen, and its data set, made of a file with the ids of the run's vocabulary."""
    table, folder = clicks.frame(rows=90, seed=7), tmp_path_factory.mktemp("asked")
    source = hpcrec.load(run.folder)
    with source:
        columns = source._sourced().inputs(table)
    made = _written(folder / "asked.h5", run, columns)
    return table, made


def _written(path: Path, run: hpcrec.Run, columns: Any) -> Path:
    with (
        DataSet(run.config["data"]["train"]) as dataset,
        Writer(path, dataset.features, n_dense=dataset.n_dense, jagged=("tags",)) as writer,
    ):
        writer.append(columns)
    return path


def test_raw_values_become_the_ids_that_prepare_gave_them(files: dict[str, str], run: hpcrec.Run) -> None:
    """The frame of the data set itself: by order, so its first 240 rows are the training samples."""
    table = clicks.frame()
    with hpcrec.load(run.folder) as model, DataSet(files["train"]) as dataset:
        found, wanted = model._sourced().inputs(table.slice(0, dataset.samples)), dataset.read(0, dataset.samples)
    assert dataset.samples == 240 and np.array_equal(found.dense, wanted.dense)
    for name, column in wanted.sparse.items():
        assert np.array_equal(found.sparse[name].ids, column.ids)
        for one, other in ((found.sparse[name].offsets, column.offsets),):
            assert (one is None) == (other is None) and (one is None or np.array_equal(one, other))


def test_a_run_predicts_as_the_command_does(
    command: Forked, run: hpcrec.Run, asked: tuple[pa.Table, Path], tmp_path: Path
) -> None:
    table, data = asked
    wanted = predicted(command, run.folder, data, tmp_path / "out.h5")
    assert len(set(wanted.tolist())) > 50
    with DataSet(data) as dataset:
        columns = dataset.read(0, dataset.samples)
    given = {name: (c.ids, c.offsets) if c.offsets is not None else c.ids for name, c in columns.sparse.items()}
    with hpcrec.load(run.folder) as model:
        assert np.array_equal(model.predict(clicks.Stream(table.drop_columns(["click", "unused"]))), wanted)
        assert np.array_equal(model.predict(given, columns.dense), wanted)
        assert model.predict(table.slice(0, 0)).shape == (0,)
    assert np.array_equal(run.predict(table), wanted)


def test_an_export_predicts_as_the_command_does(
    command: Forked, run: hpcrec.Run, asked: tuple[pa.Table, Path], tmp_path: Path, files: dict[str, str]
) -> None:
    table, data = asked
    out = tmp_path / "export"
    well(command("checkpoint", "export", run.folder, out))
    wanted = predicted(command, out, data, tmp_path / "out.h5")
    with hpcrec.load(out, data=Path(files["train"]).parent) as model:
        assert np.array_equal(model.predict(table), wanted)
        assert model.predict(table.slice(0, 0)).shape == (0,)
    with hpcrec.load(out) as model:  # which has the map and the vocabularies itself
        assert np.array_equal(model.predict(table), wanted)
    shutil.rmtree(out / "source")  # as of a data set that was made of no table
    facts = json.loads((out / "export.json").read_text())
    facts["files"] = {name: of for name, of in facts["files"].items() if not name.startswith("source/")}
    (out / "export.json").write_text(json.dumps(facts))
    with hpcrec.load(out) as model, pytest.raises(DataError, match="does not say how values became ids"):
        model.predict(table)


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_the_command_takes_a_table_as_it_is(
    command: Forked, run: hpcrec.Run, asked: tuple[pa.Table, Path], tmp_path: Path, kind: str
) -> None:
    """In pieces; with columns of it, inputs or not, as they stand; of a run, and of an export."""
    table, _ = asked
    if kind == "csv":  # which has no lists
        table, made = _text(table), tmp_path / "data"
        tags = {"separator": "|", "max_length": 3, "rows": 50}
        train = hpcrec.prepare(
            _text(clicks.frame()),
            made,
            {**clicks.MAP, "quotes": True, "sparse": {**clicks.MAP["sparse"], "tags": tags}},
        )
        run = hpcrec.train(**clicks.sections(train.files, tmp_path / "run"))
    file = tmp_path / f"today.{kind}"
    {"csv": pyarrow.csv.write_csv, "parquet": pyarrow.parquet.write_table, "arrow": pyarrow.feather.write_feather}[
        kind
    ](table, file)
    with hpcrec.load(run.folder) as model:
        wanted = model.predict(table)
    said = ["predict", run.folder, "--data", file, "--out"]
    for out in ("out.parquet", "out.csv", "out.h5"):
        well(command(*said, tmp_path / out, "--columns", "item,unused,click"))
        assert not list(tmp_path.glob(".*")), "what was made of the table is gone"
    found = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    assert found.column_names == ["prediction_click", "item", "unused", "click"]
    assert np.array_equal(found["prediction_click"].to_numpy(), wanted)
    assert found["item"].to_pylist() == [value or "" for value in table["item"].to_pylist()]
    np.testing.assert_allclose(list(map(float, found["unused"].to_pylist())), table["unused"].to_numpy())
    with h5py.File(tmp_path / "out.h5") as of:
        assert of["item"].asstr()[:].tolist() == found["item"].to_pylist() and of.attrs["data"] == str(file)
    assert pyarrow.csv.read_csv(tmp_path / "out.csv").num_rows == table.num_rows
    refused = command(*said, tmp_path / "x.csv", "--columns", "nobody")
    assert refused.code == 2 and "--columns has 'nobody'; " in refused.err
    assert not (tmp_path / "x.csv").exists()
    well(command("checkpoint", "export", run.folder, tmp_path / "e"))
    well(command("predict", tmp_path / "e", "--data", file, "--out", tmp_path / "e.csv"))
    exported = pyarrow.csv.read_csv(tmp_path / "e.csv")["prediction_click"].to_numpy()
    np.testing.assert_allclose(exported, wanted, rtol=0, atol=1e-6)


def _text(table: pa.Table) -> pa.Table:
    """Lists as texts with bars between."""
    at = table.column_names.index("tags")
    return table.set_column(at, "tags", pa.array(["|".join(of) for of in table["tags"].to_pylist()]))


def test_values_that_are_no_text_are_written_all_the_same(command: Forked, run: hpcrec.Run, tmp_path: Path) -> None:
    table = clicks.frame(rows=4, seed=5)
    odd = {
        "when": pa.array([1, None, 2, 1 << 62], pa.timestamp("ns")),
        "raw": pa.array([b"ab", b"\xff", None, b"c"], pa.binary()),
        "text": pa.array(["a\0b", "", None, "d"]),
        "prediction_click": pa.array([0.0] * 4),
        "a/b": pa.array([1, 2, 3, 4]),
    }
    pyarrow.parquet.write_table(pa.table({**{n: table[n] for n in table.column_names}, **odd}), tmp_path / "t.parquet")
    said = ["predict", run.folder, "--data", tmp_path / "t.parquet", "--out"]
    for out in ("o.parquet", "o.h5"):
        well(command(*said, tmp_path / out, "--columns", "when,raw,text"))
    found = pyarrow.parquet.read_table(tmp_path / "o.parquet")
    assert found["raw"].to_pylist() == ["ab", "\ufffd", "", "c"] and found["text"].to_pylist() == [
        "a\ufffdb",
        "",
        "",
        "d",
    ]
    assert found["when"].to_pylist()[1] == "" and all(found["when"].to_pylist()[i] for i in (0, 2, 3))
    for name, out, why in (("prediction_click", "x.csv", "of probabilities"), ("a/b", "x.h5", "no '/' in a name")):
        ended = command(*said, tmp_path / out, "--columns", name)
        assert ended.code == 2 and why in ended.err, ended.err
    well(command(*said, tmp_path / "x.csv", "--columns", "a/b"))


def test_ids_are_those_of_the_run_that_is_asked_for(command: Forked, tmp_path: Path, run: hpcrec.Run) -> None:
    """Which --set may name: another one has another vocabulary."""
    table = clicks.frame(rows=60, seed=9)
    made = hpcrec.prepare(table, tmp_path / "data", clicks.MAP, split="order:1,0,0")
    other = hpcrec.train(**clicks.sections(made.files, tmp_path / "other", train={"steps": 3}))
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    said = ["predict", str(run.folder), "--data", str(tmp_path / "t.parquet"), "--out", str(tmp_path / "out.parquet")]
    moved = [f"run.folder={other.folder}", f"data.train={made.files['train']}"]
    sets = ["--unset", "data.test", "--set", f"data.validation={made.files['train']}"]
    sets += [word for setting in moved for word in ("--set", setting)]
    well(command(*said, *sets))
    with hpcrec.load(other.folder) as model:
        wanted = model.predict(table)
    assert np.array_equal(pyarrow.parquet.read_table(tmp_path / "out.parquet")["prediction_click"].to_numpy(), wanted)


def test_rows_of_a_table_that_are_wrong_are_named(command: Forked, run: hpcrec.Run, tmp_path: Path) -> None:
    table = clicks.frame(rows=20, seed=5)
    hours = table.set_column(3, "hour", pa.array([*range(19), 24]))
    pyarrow.parquet.write_table(hours, tmp_path / "today.parquet")
    ended = command("predict", run.folder, "--data", tmp_path / "today.parquet", "--out", tmp_path / "out.csv")
    assert ended.code != 0 and f"{tmp_path / 'today.parquet'}, row 20, column hour: " in ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["today.parquet"]


def test_frames_of_their_own_share_the_vocabulary_of_train(tmp_path: Path) -> None:
    table = clicks.frame()
    parts = {"validation": table.slice(200, 60), "test": clicks.Stream(table.slice(260))}
    made = hpcrec.prepare(table.slice(0, 200), tmp_path / "data", clicks.MAP, **parts)
    assert made.samples == {"train": 200, "validation": 60, "test": 40}
    again = hpcrec.prepare(table.slice(0, 200), tmp_path / "data", clicks.MAP, **parts)
    assert again.files == made.files, "the same call again does nothing"
    with DataSet(made.files["validation"]) as dataset:
        found = dataset.read(0, 60)
    wanted = Source(tmp_path / "data").inputs(table.slice(200, 60))
    assert np.array_equal(found.sparse["item"].ids, wanted.sparse["item"].ids)
    pyarrow.parquet.write_table(table, tmp_path / "all.parquet")
    with pytest.raises(ConfigError, match="validation is a frame, and another part is not"):
        hpcrec.prepare(tmp_path / "all.parquet", tmp_path / "other", clicks.MAP, validation=table)
    with pytest.raises(ConfigError, match="split: is for sources that hold all parts"):
        hpcrec.prepare(table, tmp_path / "other", clicks.MAP, test=table, split="order:1,0,0")


def test_a_run_has_the_map_that_it_was_trained_by(tmp_path: Path) -> None:
    """Whatever becomes of its data set's: another conversion gives values other ids."""
    table = clicks.frame(rows=40, seed=3)
    made = hpcrec.prepare(table, tmp_path / "data", clicks.MAP, split="order:1,0,0")
    run = hpcrec.train(**clicks.sections(made.files, tmp_path / "run", train={"steps": 1}))
    with hpcrec.load(run.folder) as model:
        wanted = model.predict(table)
    for name in ("prepare.json", "vocabulary.h5"):
        (tmp_path / "data" / name).unlink()
    with hpcrec.load(run.folder) as model:
        assert np.array_equal(model.predict(table), wanted)


def test_marks_of_what_is_missing_have_the_ids_that_prepare_gave_them(tmp_path: Path) -> None:
    table = clicks.frame(rows=40, seed=3)
    at = table.column_names.index("item")
    table = table.set_column(at, "item", pa.array(["NULL", "one", "two", "one"] * 10))
    made = hpcrec.prepare(table, tmp_path / "data", {**clicks.MAP, "empty": ["NULL"]}, split="order:1,0,0")
    run = hpcrec.train(**clicks.sections(made.files, tmp_path / "run", train={"steps": 1}))
    with DataSet(made.files["train"]) as dataset:
        columns = dataset.read(0, dataset.samples)
    assert set(columns.sparse["item"].ids[::4]) == {0} and 0 not in columns.sparse["item"].ids[1::4]
    given = {name: (c.ids, c.offsets) if c.offsets is not None else c.ids for name, c in columns.sparse.items()}
    with hpcrec.load(run.folder) as model:
        assert np.array_equal(model.predict(table), model.predict(given, columns.dense))


def test_metrics_of_a_run_are_not_run_as_it_is_loaded(
    run: hpcrec.Run, asked: tuple[pa.Table, Path], tmp_path: Path
) -> None:
    """Neither where they are measured, nor where training stops by one."""
    folder, ran = shutil.copytree(run.folder, tmp_path / "run"), tmp_path / "ran"
    (tmp_path / "metric_of_a_run.py").write_text(
        f"open({str(ran)!r}, 'w')\n\ndef one(predictions, total): return 1.0\n"
    )
    name = "metric_of_a_run:one"
    own = {
        "evaluation": {"metrics": [name]},
        "model": {"folder": str(tmp_path)},
        "train": {"early_stop": {"metric": name, "higher_is_better": True}, "eval_every": 1},
    }
    (folder / "config.toml").write_text(to_toml(configured(run.config, own)))
    assert name in (folder / "config.toml").read_text()
    with hpcrec.load(folder) as model:
        assert np.array_equal(model.predict(asked[0]), run.predict(asked[0]))
    assert not ran.exists()


def test_what_cannot_be_predicted_is_refused(run: hpcrec.Run, tmp_path: Path) -> None:
    table = clicks.frame(rows=3)
    with hpcrec.load(run.folder) as model:
        with pytest.raises(ConfigError, match=r"the frame: no column 'item' \(sparse.item of the map\); it has"):
            model.predict(table.drop_columns(["item"]))
        hours = table.set_column(3, "hour", pa.array([1, 99, 2]))
        with pytest.raises(DataError, match="the frame, row 2, column hour: found '99'; allowed"):
            model.predict(hours)
        with pytest.raises(DataError, match="Needed: item, hour, price, tags, page"):
            model.predict({"item": [1]})
        ids = dict.fromkeys(model.features, np.array([1, 2]))
        with pytest.raises(DataError, match=r"dense \[2, 1\]"):
            model.predict(ids)
        with pytest.raises(DataError, match="a list"):
            model.predict([1, 2])
        with pytest.raises(DataError, match="hour"):
            model.predict({**ids, "hour": np.array([1, 24])}, np.zeros((2, 1)))
    with pytest.raises(ConfigError, match="no run folder, and no export"):
        hpcrec.load(tmp_path)


def test_a_frame_is_prepared_as_a_file_of_it(files: dict[str, str], tmp_path: Path) -> None:
    pyarrow.parquet.write_table(clicks.frame(), tmp_path / "clicks.parquet")
    made = hpcrec.prepare(tmp_path / "clicks.parquet", tmp_path / "data", clicks.MAP, split="order:0.8,0.1,0.1")
    with DataSet(made.files["train"]) as one, DataSet(files["train"]) as other:
        a, b = one.read(0, one.samples), other.read(0, other.samples)
    assert np.array_equal(a.label, b.label) and np.array_equal(a.dense, b.dense)
    assert all(np.array_equal(a.sparse[n].ids, b.sparse[n].ids) for n in b.sparse) and made.samples["train"] == 240


def test_the_same_frame_again_does_nothing_and_another_is_refused(tmp_path: Path) -> None:
    keys = {"labels": "click", "dense": ["age"], "sparse": ["hour", "page"]}
    table = clicks.frame(rows=50).drop_columns(["age"]).append_column("age", pa.array(np.arange(50.0)))
    first = hpcrec.prepare(table, tmp_path / "data", split="hash:0.5,0,0.5", **keys)
    written = Path(first.files["train"]).stat().st_mtime_ns
    again = hpcrec.prepare(clicks.Stream(table), tmp_path / "data", split="hash:0.5,0,0.5", **keys)
    assert again.files == first.files and Path(first.files["train"]).stat().st_mtime_ns == written
    assert sorted(first.files) == ["test", "train"] and not list((tmp_path / "data").glob(".frame-*"))
    with pytest.raises(ConfigError, match="was begun by another command or from other sources"):
        hpcrec.prepare(table.slice(1), tmp_path / "data", split="hash:0.5,0,0.5", **keys)
    anew = hpcrec.prepare(table.slice(1), tmp_path / "data", split="hash:0.5,0,0.5", restart=True, **keys)
    assert sum(anew.samples.values()) == 49


def test_a_frame_is_split_by_group_and_by_time_and_with_the_seed(tmp_path: Path) -> None:
    table = clicks.frame(rows=200).append_column("at", pa.array(range(200)))
    keys = {"labels": "click", "sparse": ["page"], "group": "hour", "time": "at"}

    def samples(folder: str, **more: Any) -> dict[str, int]:
        return hpcrec.prepare(table, tmp_path / folder, **more).samples

    assert samples("time", split="time:1970-01-01T00:01:40,1970-01-01T00:02:30", **keys) == {
        "train": 100,
        "validation": 50,
        "test": 50,
    }
    made = hpcrec.prepare(table, tmp_path / "group", split="group:0.5,0,0.5", **keys)
    with h5py.File(made.files["train"]) as one, h5py.File(made.files["test"]) as other:
        hours = [set(of["group"][()].tolist()) for of in (one, other)]
    assert hours[0] and hours[1] and not hours[0] & hours[1]
    by_map = {**keys, "split": "hash:0.5,0,0.5"}
    seeds = [
        samples(f"seed {seed}", map={**by_map, "labels": ["click"], "sparse": {"page": {}}}, seed=seed)
        for seed in range(3)
    ]
    assert len({parts["train"] for parts in seeds}) > 1
    assert seeds[2] == samples("handed over", split="hash:0.5,0,0.5", seed=2, **keys)


def test_a_map_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    table = clicks.frame(rows=5)
    for given, said in (
        ({"labels": "click", "sparse": ["absent"]}, "the frame: no column 'absent'"),
        ({"labels": "click", "sparse": {"item": {"idz": "hash"}}}, "the map: sparse.item.idz is not a key"),
        ({"map": clicks.MAP, "labels": "click"}, "labels: goes with no map"),
    ):
        with pytest.raises(ConfigError, match=said):
            hpcrec.prepare(table, tmp_path / "data", **given)
    with pytest.raises(ConfigError, match="is given a int"):
        hpcrec.prepare(5, tmp_path / "data", clicks.MAP)
    with pytest.raises(DataError, match="column age: found 'None'"):
        hpcrec.prepare(clicks.frame(), tmp_path / "bad", labels="click", dense=["age"])
