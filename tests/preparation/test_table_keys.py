"""Column maps: labels of words and from a number on, marks of missing values, scaled inputs, units of time, splits."""

from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrec.cli import main as cli
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation.convert import Split, parse_cut, prepare_table
from hpcrec.preparation.schema import Columns, DataSet
from hpcrec.preparation.split import TimeSplit
from hpcrec.preparation.tablemap import load_map
from tests.preparation.sources import ALL, content

HEADER = "rating,answer,site,price,at,user"
ROWS = [
    "5,yes,a,10,1000500,u1",
    "3.5,no,NULL,NULL,2000000,u2",
    "4,yes,b,30,3000000,u1",
    "1,no,a,-5,4000000,u3",
]
KEYS = """
empty = ["NULL", "NaN"]
time = "at"
time_unit = "ms"
group = "user"
group_value = "text"

[dense.price]
transform = "scale"
low = 0
high = 20
missing = 5

[sparse.site]
ids = "vocabulary"
"""


def table(folder: Path, rows: list[str] = ROWS, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def of_map(folder: Path, text: str) -> Path:
    path = folder / "map.toml"
    path.write_text(text)
    return path


def all_of(path: Path) -> Columns:
    with DataSet(path) as data:
        return data.read(0, data.samples)


@pytest.mark.parametrize(
    ("label", "wanted", "words"),
    [
        ('labels = ["rating"]\nlabel_from = 4', [1, 0, 1, 0], "1 from 4 on"),
        ('labels = ["answer"]\nlabel_words = ["no", "yes"]', [0 + 1, 0, 1, 0], "0 no, 1 yes"),
        ('labels = ["answer"]\nlabel_words = ["yes", "no"]', [0, 1, 0, 1], "0 yes, 1 no"),
    ],
)
def test_labels_of_numbers_and_words(tmp_path: Path, label: str, wanted: list[int], words: str) -> None:
    prepare_table([table(tmp_path)], tmp_path / "out", of_map(tmp_path, label + KEYS), split=ALL)
    found = all_of(tmp_path / "out/train.h5")
    assert found.label.tolist() == wanted
    assert found.dense[:, 0].tolist() == [0.5, 0.25, 1.0, 0.0], "NULL is 5"
    assert found.sparse["site"].ids.tolist() == [2, 0, 3, 2], "NULL is no word"
    assert found.time is not None and found.time.tolist() == [1000, 2000, 3000, 4000]
    with DataSet(tmp_path / "out/train.h5") as data:
        assert data.attributes["conventions"]["label"] == words
        assert "scaled to [0, 1]" in data.attributes["conventions"]["dense price"]


def test_parquet_and_arrow_give_what_text_gives(tmp_path: Path) -> None:
    rows = [row.split(",") for row in ROWS]
    prices = [float("nan") if row[3] == "NULL" else float(row[3]) for row in rows]
    of_table = pa.table(
        {
            "rating": [float(row[0]) for row in rows],
            "answer": [row[1] for row in rows],
            "site": pa.array([row[2] for row in rows]).dictionary_encode(),
            "price": pa.array(prices),
            "at": pa.array([int(row[4]) for row in rows], pa.timestamp("ms")),
            "user": [row[5] for row in rows],
        }
    )
    map_ = of_map(tmp_path, ('labels = ["rating"]\nlabel_from = 4' + KEYS).replace('time_unit = "ms"\n', ""))
    pq.write_table(of_table, tmp_path / "t.parquet", row_group_size=3)
    for name, compression in (("t.arrow", None), ("packed.arrow", "lz4")):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_file(tmp_path / name, of_table.schema, options=options) as out:
            out.write_table(of_table, max_chunksize=3)
    by_text = of_map(tmp_path, 'labels = ["rating"]\nlabel_from = 4' + KEYS).rename(tmp_path / "text.toml")
    prepare_table([table(tmp_path)], tmp_path / "text", by_text, split=Split("order", (0.5, 0.25, 0.25)))
    map_.write_text(('labels = ["rating"]\nlabel_from = 4' + KEYS).replace('time_unit = "ms"\n', ""))
    for name in ("t.parquet", "t.arrow", "packed.arrow"):
        out = tmp_path / name.replace(".", "_")
        prepare_table([tmp_path / name], out, map_, split=Split("order", (0.5, 0.25, 0.25)), piece_bytes=1)
        for part in ("train", "validation", "test"):
            found = next(iter(sorted(out.glob(f"{part}.*"))))
            want, have = all_of(tmp_path / f"text/{part}.h5"), all_of(found)
            for column in ("label", "dense", "time", "group"):
                np.testing.assert_array_equal(getattr(have, column), getattr(want, column))
            np.testing.assert_array_equal(have.sparse["site"].ids, want.sparse["site"].ids)


def test_arrow_that_is_damaged_or_a_stream(tmp_path: Path) -> None:
    batch = pa.record_batch({"click": pa.array([0, 1] * 500), "site": pa.array(["a", "bcd"] * 500)})
    path = tmp_path / "t.arrow"
    with pa.ipc.new_file(path, batch.schema) as out:
        out.write_batch(batch)
    whole = path.read_bytes()
    map_ = of_map(tmp_path, 'labels = ["click"]\n[sparse.site]\n')
    path.write_bytes(whole[:-300])
    with pytest.raises(DataError, match=r"t\.arrow: not a readable Arrow file"):
        prepare_table([path], tmp_path / "out", map_, split=ALL)
    offsets = np.cumsum([0] + [1, 3] * 500).astype(np.int32).tobytes()
    path.write_bytes(whole.replace(offsets, offsets[:400] + b"\xff" * 4 + offsets[404:]))
    with pytest.raises(DataError, match=r"t\.arrow: not readable after row 0"):
        prepare_table([path], tmp_path / "out", map_, split=ALL)
    with pa.ipc.new_stream(path, batch.schema) as out:
        out.write_batch(batch)
    with pytest.raises(DataError, match=r"t\.arrow: is a stream"):
        prepare_table([path], tmp_path / "out", map_, split=ALL)


@pytest.mark.parametrize(
    ("line", "label", "message"),
    [
        ("x,yes,a,1,1,u", 'labels = ["rating"]\nlabel_from = 4', "column rating: found 'x'; allowed is a number"),
        (",yes,a,1,1,u", 'labels = ["rating"]\nlabel_from = 4', "column rating: found ''"),
        ("1,maybe,a,1,1,u", 'labels = ["answer"]\nlabel_words = ["no", "yes"]', "found 'maybe'; allowed is no or yes"),
        ("1,NULL,a,1,1,u", 'labels = ["answer"]\nlabel_words = ["no", "yes"]', "found ''; allowed is no or yes"),
        ("1,yes,a,1,1.5,u", 'labels = ["rating"]', "found '1.5'; allowed is milliseconds since 1970"),
    ],
)
def test_bad_values_are_named(tmp_path: Path, line: str, label: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare_table([table(tmp_path, [line])], tmp_path / "out", of_map(tmp_path, label + KEYS), split=ALL)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('labels = ["a"]\nlabel_from = 4\nsoft_labels = true', "one of them at most"),
        ('labels = ["a"]\nlabel_words = ["x"]', "two that differ"),
        ('labels = ["a"]\nlabel_words = ["x", "x"]', "two that differ"),
        ('labels = ["a"]\ntime_unit = "ms"', "go with time"),
        ('labels = ["a"]\ntime = "t"\ntime_unit = "ms"\ntime_format = "%Y"', "leave it or time_format out"),
        ('labels = ["a"]\n[dense.b]\ntransform = "scale"\nlow = 1', "give both"),
        ('labels = ["a"]\n[dense.b]\ntransform = "scale"\nlow = 1\nhigh = 1', "two that differ"),
        ('labels = ["a"]\n[dense.b]\nlow = 1', "leave them out"),
    ],
)
def test_keys_that_do_not_go_together(tmp_path: Path, keys: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_map(of_map(tmp_path, keys + "\n[sparse.c]\n"))


def test_split_by_time_and_by_group(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rows = [f"{i % 5},yes,a,1,{1000 * rng.integers(0, 100)},u{i % 40}" for i in range(2000)]
    text = 'labels = ["rating"]\nlabel_from = 4\nsplit = "time:1970-01-01T00:00:50,1970-01-01T00:01:20"' + KEYS
    summary = prepare_table([table(tmp_path, rows)], tmp_path / "time", of_map(tmp_path, text))
    times = {part: all_of(tmp_path / f"time/{part}.h5").time for part in ("train", "validation", "test")}
    assert times["train"].max() == 49 and times["test"].min() == 80  # type: ignore[union-attr]
    assert (times["validation"].min(), times["validation"].max()) == (50, 79)  # type: ignore[union-attr]
    assert sum(summary.samples.values()) == 2000
    with DataSet(tmp_path / "time/test.h5") as data:
        assert data.attributes["split"] == "test of time:1970-01-01T00:00:50,1970-01-01T00:01:20"
    prepare_table([tmp_path / "t.csv"], tmp_path / "group", tmp_path / "map.toml", split=parse_cut("group:0.6,0.2,0.2"))
    groups = [set(all_of(tmp_path / f"group/{part}.h5").group.tolist()) for part in ("train", "validation", "test")]  # type: ignore[union-attr]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 40 and len(groups[0]) > 15


@pytest.mark.parametrize(
    "text", ["time:", "time:soon", "time:2024-02-01,2024-01-01", "time:1,2,3", "group:1", "x:1,0,0"]
)
def test_splits_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="split"):
        parse_cut(text)


def test_split_by_one_time_has_no_validation() -> None:
    cut = parse_cut("time:2024-01-01T01:00:00+01:00")
    assert isinstance(cut, TimeSplit) and cut.borders == (1704067200,) and cut.names == ("train", "test")


def test_split_wants_its_column(tmp_path: Path) -> None:
    map_ = of_map(tmp_path, 'labels = ["rating"]\nlabel_from = 4\n[sparse.site]\n')
    for kind, split in (("time", "time:2024-01-01"), ("group", "group:0.8,0.1,0.1")):
        with pytest.raises(ConfigError, match=f'names no {kind}; add {kind} = "COLUMN"'):
            prepare_table([table(tmp_path)], tmp_path / "out", map_, split=parse_cut(split))


def test_parts_from_files_of_their_own_share_the_vocabulary_of_train(tmp_path: Path) -> None:
    """The command takes all files up to the next option."""
    files = {
        name: table(tmp_path, [f"{5 * (i % 2)},yes,{site},1,1,u" for i, site in enumerate(sites)], name)
        for name, sites in {"a.csv": "aab", "b.csv": "ab", "v1.csv": "cb", "v2.csv": "a", "test.csv": "bbbb"}.items()
    }
    map_ = of_map(tmp_path, 'labels = ["rating"]\nlabel_from = 4' + KEYS)
    arguments = ["prepare", "table", "--map", map_, "--validation", files["v1.csv"], files["v2.csv"], "--test"]
    arguments += [files["test.csv"], "--out", tmp_path / "out", files["a.csv"], files["b.csv"]]
    with pytest.raises(SystemExit) as ended:
        cli.main([str(a) for a in arguments])
    assert ended.value.code == 0
    ids = {
        part: all_of(tmp_path / f"out/{part}.h5").sparse["site"].ids.tolist()
        for part in ("train", "validation", "test")
    }
    assert ids == {"train": [2, 2, 3, 2, 3], "validation": [1, 3, 2], "test": [3] * 4}
    with h5py.File(tmp_path / "out/vocabulary.h5") as file:
        assert len(file["site"]) == 2
    written = content(tmp_path / "out")
    prepare_table(
        [files["a.csv"], files["b.csv"]], tmp_path / "again", map_, validation=[files["v1.csv"], files["v2.csv"]],
        test=[files["test.csv"]],
    )  # fmt: skip
    again = content(tmp_path / "again")
    assert {name for name in written if name.endswith(".h5")} == {name for name in again if name.endswith(".h5")}
    assert all(written[name] == again[name] for name in written if name.endswith(".h5"))
    with pytest.raises(ConfigError, match="given for train and for test"):
        prepare_table([files["a.csv"]], tmp_path / "no", map_, test=[files["a.csv"]])
    with pytest.raises(ConfigError, match="leave it out"):
        prepare_table([files["a.csv"]], tmp_path / "no", map_, test=[files["b.csv"]], split=ALL)
