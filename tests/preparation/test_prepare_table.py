"""Column maps: text and Parquet give the same samples, vocabularies of any size the same ids; what is refused."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hpcrec.data import hashing
from hpcrec.data import vocabulary as vocabulary_file
from hpcrec.data.verify import verify
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation import frames, vocabulary
from hpcrec.preparation.cells import ArrowCells
from hpcrec.preparation.convert import prepare_table
from hpcrec.preparation.schema import Columns, DataSet
from hpcrec.preparation.tablemap import load_map
from tests.preparation.sources import ALL, content

MAP = """
labels = ["click", "bought"]
quotes = true
weight = "w"
group = "user"
time = "at"
time_format = "%y%m%d%H"

[dense.price]
transform = "log1p"
missing = 0

[dense.age]
transform = "clip"
low = 18
high = 80

[sparse.user]
ids = "integer"
value = "integer"
rows = 100

[sparse.site]
rows = 1000

[sparse.shown]
column = "site"
ids = "vocabulary"
min_count = 2

[sparse.tags]
separator = "|"
max_length = 2
rows = 50

[sparse.level]
ids = "bins"
"""
HEADER = "click,bought,w,user,at,price,age,site,tags,level"
ROWS = [
    '1,0,1.5,7,14102100,1.5,30,"a,b",x|y|z,10',
    "0,0,0,99,14102123,,17.5,c,,",
    "0,1,2,0,14103001,-4,99,c,y,-3",
    '1,1,1e-2,7,14102100,1e3,18,"a,b",x,2',
    "0,0,1,5,14102100,0,40,,z|z,1000",
]


def word(value: str) -> int:
    data = value.encode()
    out = hashing.mix(len(data))
    for at in range(0, len(data), 8):
        out = hashing.mix(out ^ int.from_bytes(data[at : at + 8], "little"))
    return out


def hashed(value: str, feature: int, rows: int) -> int:
    return 1 + hashing.mix(word(value) ^ hashing.stream(0xC417E0, feature)) % (rows - 1)


def write(folder: Path, rows: list[str] = ROWS, table: str = MAP, ending: str = "csv") -> tuple[Path, Path]:
    (folder / "map.toml").write_text(table)
    path = folder / f"table.{ending}"
    text = "".join(row + "\n" for row in (HEADER, *rows)).encode()
    path.write_bytes(gzip.compress(text) if ending == "gz" else text)
    return path, folder / "map.toml"


def read(folder: Path) -> Columns:
    with DataSet(folder / "train.h5") as data:
        return data.read(0, data.samples)


@pytest.mark.parametrize("ending", ["csv", "gz"])
def test_values(tmp_path: Path, ending: str) -> None:
    path, table = write(tmp_path, ending=ending)
    summary = prepare_table([path], tmp_path / "out", table, split=ALL)
    assert summary.samples == {"train": 5} and summary.label_rate["train"] == pytest.approx(0.4)
    assert summary.label_rates == {"train": {"click": pytest.approx(0.4), "bought": pytest.approx(0.4)}}
    with DataSet(tmp_path / "out" / "train.h5") as data:
        assert data.label_names == ("click", "bought")
    assert summary.cardinalities == {"user": 100, "site": 1000, "shown": 4, "tags": 50, "level": 512}
    found = read(tmp_path / "out")
    np.testing.assert_array_equal(found.label, [[1, 0], [0, 0], [0, 1], [1, 1], [0, 0]])
    np.testing.assert_allclose(found.dense[:, 0], np.log1p([1.5, 0, 0, 1e3, 0]), rtol=1e-6)
    np.testing.assert_array_equal(found.dense[:, 1], [30, 18, 80, 18, 40])
    assert found.weight.tolist() == np.array([1.5, 0, 2, 0.01, 1], np.float32).tolist()
    assert found.group.tolist() == [7, 99, 0, 7, 5]
    hour = 1413849600  # 2014-10-21 00:00 UTC
    assert found.time.tolist() == [hour, hour + 23 * 3600, hour + (9 * 24 + 1) * 3600, hour, hour]
    ids = {name: column.ids.tolist() for name, column in found.sparse.items()}
    assert ids["user"] == [7, 99, 0, 7, 5]
    assert ids["site"] == [hashed("a,b", 1, 1000), *[hashed("c", 1, 1000)] * 2, hashed("a,b", 1, 1000), 0]
    first, second = sorted(("a,b", "c"), key=word)  # equal counts by word
    number = {first: 2, second: 3}
    assert ids["shown"] == [number["a,b"], number["c"], number["c"], number["a,b"], 0]
    assert ids["tags"] == [hashed(tag, 3, 50) for tag in "xyyxzz"]
    assert found.sparse["tags"].offsets.tolist() == [0, 2, 2, 3, 4, 6]
    assert ids["level"] == [2 + 5, 0, 1, 4, 2 + 47]
    with DataSet(tmp_path / "out" / "train.h5") as data:
        assert data.label_names == ("click", "bought")
    with h5py.File(tmp_path / "out" / "vocabulary.h5") as file:
        assert file["shown"][:].tolist() == [word(first), word(second)] and file["shown"].dtype == np.uint64


def test_what_a_preparation_leaves_is_verified_as_what_it_is(tmp_path: Path) -> None:
    path, table = write(tmp_path)
    prepare_table([path], tmp_path / "out", table, split=ALL)
    verdicts = {verdict.path.name: verdict for verdict in verify([tmp_path / "out"])}
    assert set(verdicts) == {"train.h5", "vocabulary.h5"} and not any(v.problems for v in verdicts.values())
    found = verdicts["vocabulary.h5"]
    assert (found.columns, found.values, found.unchecked) == (1, 2, 0)


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda file: file["shown"].__setitem__(1, 7), "/shown: checksum"),
        (lambda file: file.__delitem__("shown"), "has no feature"),
        (lambda file: file.create_dataset("a/b", data=[0.5]), "/a/b: float64 with 1 dimensions"),
    ],
)
def test_a_damaged_vocabulary_is_named(tmp_path: Path, damage: Callable[[h5py.File], None], wanted: str) -> None:
    path, table = write(tmp_path)
    prepare_table([path], tmp_path / "out", table, split=ALL)
    damaged = tmp_path / "out" / "vocabulary.h5"
    with h5py.File(damaged, "r+") as file:
        damage(file)
    (verdict,) = verify([damaged])
    assert str(damaged) in verdict.problems[0] and wanted in verdict.problems[0]
    damaged.write_bytes(damaged.read_bytes()[:-100])
    (verdict,) = verify([damaged])
    assert f"{damaged}: not a readable HDF5 file" in verdict.problems[0]


def test_a_vocabulary_of_before_checksums_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "vocabulary.h5", "w") as file:
        file["site"] = np.arange(40000, dtype=np.uint64)
        file["a/b"] = np.arange(3, dtype=np.uint32)
    assert vocabulary_file.check(tmp_path / "vocabulary.h5") == vocabulary_file.Found(2, 40003, 2)


def test_raw_ids_are_any_64_bits(tmp_path: Path) -> None:
    """Integers and digits as they are, texts by their hash; their cardinality is not declared."""
    table = tmp_path / "map.toml"
    columns = "\n".join(
        f'[sparse.{name}]\nids = "raw"\n{rest}'
        for name, rest in (
            ("user", 'value = "integer"\nmissing = 7'),
            ("session", 'value = "hex"'),
            ("query", ""),
            ("words", 'separator = "|"'),
        )
    )
    table.write_text(f'labels = ["click"]\n{columns}\n')
    lines = [
        "click,user,session,query,words",
        "1,-999999999999999999,ffffffffffffffff,a b,x|y",
        "0,999999999999999999,0,c,",
        "0,,8000000000000000,a b,y",
    ]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    summary = prepare_table([path], tmp_path / "out", load_map(table), split=ALL)
    assert summary.cardinalities == {"user": 0, "session": 0, "query": 0, "words": 0}
    found = read(tmp_path / "out")
    ids = {name: column.ids.tolist() for name, column in found.sparse.items()}
    assert ids["user"] == [-(10**18 - 1), 10**18 - 1, 7]  # text has up to 18 digits
    assert ids["session"] == [-1, 0, -(2**63)]
    signed = {text: word(text) - (word(text) >> 63 << 64) for text in ("a b", "c", "x", "y")}
    assert ids["query"] == [signed["a b"], signed["c"], signed["a b"]]
    assert ids["words"] == [signed["x"], signed["y"], signed["y"]]
    path.write_text("\n".join([*lines, "0,1,,a,x"]) + "\n")
    with pytest.raises(DataError, match="line 5, column session: found ''; allowed is hexadecimal digits, not empty"):
        prepare_table([path], tmp_path / "again", load_map(table), split=ALL)


def test_an_id_of_what_is_missing_has_63_bits(tmp_path: Path) -> None:
    table = tmp_path / "map.toml"
    for missing, fits in ((2**63 - 1, True), (2**63, False)):
        table.write_text(f'labels = ["click"]\n[sparse.user]\nids = "raw"\nvalue = "integer"\nmissing = {missing}\n')
        if fits:
            path = tmp_path / "table.csv"
            path.write_text("click,user\n1,3\n0,\n")
            prepare_table([path], tmp_path / "out", load_map(table), split=ALL)
            assert read(tmp_path / "out").sparse["user"].ids.tolist() == [3, missing]
        else:
            with pytest.raises(ConfigError, match=r"sparse\.user\.missing .*below 9223372036854775808"):
                load_map(table)


def test_parquet_gives_the_samples_of_the_text(tmp_path: Path) -> None:
    path, table = write(tmp_path)
    prepare_table([path], tmp_path / "text", table, split=ALL)
    columns = {
        "click": pa.array([1, 0, 0, 1, 0], pa.int8()),
        "bought": pa.array([False, False, True, True, False]),
        "w": pa.array([1.5, 0, 2, 0.01, 1]),
        "user": pa.array([7, 99, 0, 7, 5], pa.uint64()),
        "at": pa.array([14102100, 14102123, 14103001, 14102100, 14102100]),
        "price": pa.array([1.5, None, -4, 1e3, 0], pa.float32()),
        "age": pa.array([30, 17.5, 99, 18, 40]),
        "site": pa.array(["a,b", "c", "c", "a,b", None]).dictionary_encode(),
        "tags": pa.array([["x", "y", "z"], None, ["y"], ["x"], ["z", "z"]]),
        "level": pa.array([10, None, -3, 2, 1000]),
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet", row_group_size=2)
    table.write_text(MAP.replace('separator = "|"', "list = true"))
    prepare_table([tmp_path / "table.parquet"], tmp_path / "parquet", table, split=ALL)
    prepare_table([tmp_path / "table.parquet"], tmp_path / "pieces", table, split=ALL, piece_bytes=1)
    assert len(list((tmp_path / "pieces" / "pieces").iterdir())) == 3
    text, parquet = read(tmp_path / "text"), read(tmp_path / "parquet")
    for name in ("label", "dense", "weight", "group", "time"):
        np.testing.assert_array_equal(getattr(text, name), getattr(parquet, name))
    for name in text.sparse:
        np.testing.assert_array_equal(text.sparse[name].ids, parquet.sparse[name].ids)
    with DataSet(tmp_path / "pieces" / "train.index.json") as data:
        np.testing.assert_array_equal(data.read(0, 5).sparse["tags"].ids, text.sparse["tags"].ids)
        assert data.label_names == ("click", "bought"), "an index of pieces has what they have"


def test_text_that_a_frame_keeps_as_views_is_text(tmp_path: Path) -> None:
    """Also as categories, and in parts, as polars hands them over."""
    names = pa.array(["a", "b"], pa.string_view())
    parts = [pa.DictionaryArray.from_arrays(pa.array(at, pa.uint32()), names) for at in ([0, 1, None], [1])]
    text = pa.chunked_array([["x", None, "y"], ["x"]], pa.string_view())
    frame = pa.table({"site": pa.chunked_array(parts), "page": text, "n": [1, 2, 3, 4]})
    found = frames.table_of(frame)
    assert found.to_pydict() == {"site": ["a", "b", None, "b"], "page": ["x", None, "y", "x"], "n": [1, 2, 3, 4]}
    assert frames.table_of(frame.slice(0, 0)).num_rows == 0 == frames.table_of(frame.schema.empty_table()).num_rows
    pq.write_table(found, tmp_path / "frame.parquet")
    assert pq.read_table(tmp_path / "frame.parquet").to_pydict() == found.to_pydict()
    assert ArrowCells(found.column("site")).array.to_pylist() == ["a", "b", None, "b"]


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ('labels = ["click", "bought"]', 'labels = ["clicked"]', "no column 'clicked' .labels of the map.; it has"),
        ("transform = \"log1p\"", "transform = \"log\"", 'dense.price.transform is "log". Allowed: "none", "log1p"'),
        ("min_count = 2", "min_cuont = 2", "sparse.shown.min_cuont is not a key .* Did you mean sparse.shown.min_cou"),
        ("low = 18", "low = 81", "dense.age: low is 81.0, above high, 80.0"),
        ("rows = 1000", "rows = 1000\nmin_count = 3", "sparse.site: min_count goes with ids 'vocabulary'"),
        ("rows = 100\n", "", "sparse.user: ids 'integer' takes rows"),
        ('separator = "|"', "list = true", "list is for Parquet"),
        ("quotes = true", "quotes = true\nheader = false", "columns: needed for text without a header line"),
    ],
)  # fmt: skip
def test_wrong_maps(tmp_path: Path, was: str, becomes: str, message: str) -> None:
    assert was in MAP
    path, table = write(tmp_path, table=MAP.replace(was, becomes))
    with pytest.raises(ConfigError, match=message):
        prepare_table([path], tmp_path / "out", table, split=ALL)


@pytest.mark.parametrize("name", ["avazu/avazu.toml"])
def test_maps_of_data_sets_are_right(name: str) -> None:
    assert load_map(Path(__file__).parents[2] / "datasets" / name).labels


def test_headers_must_agree(tmp_path: Path) -> None:
    path, table = write(tmp_path)
    other = tmp_path / "other.csv"
    other.write_text(HEADER.replace("click,bought", "bought,click") + "\n" + ROWS[0] + "\n")
    with pytest.raises(DataError, match=r"other\.csv, line 1: found the header .*table\.csv has 'click,bought"):
        prepare_table([path, other], tmp_path / "out", table, split=ALL)
    prepare_table([path, path], tmp_path / "out", table, split=ALL)
    assert DataSet(tmp_path / "out" / "train.h5").samples == 10


@pytest.mark.parametrize("most", [None, 50])
def test_vocabularies_by_many_runs_are_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    rng = np.random.default_rng(0)
    words = np.minimum(rng.zipf(1.2, 20_000), 5000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    monkeypatch.setattr(vocabulary, "_FAN_IN", 3)
    monkeypatch.setattr(vocabulary, "_MERGE_WORDS", 1)
    monkeypatch.setattr(vocabulary, "_BLOCK_WORDS", 37)
    counter = vocabulary.Counter(tmp_path / "run", ("a", "b"), held=500, pending=100)
    for part in np.array_split(words, 500):
        counter.add("a", part)
    runs = counter.close()
    assert len(runs["a"]) > 6 and not runs["b"]
    n = vocabulary.number(vocabulary.merged(runs["a"], tmp_path / "merging"), tmp_path / "a", min_count=3, most=most)
    distinct, counts = np.unique(words, return_counts=True)
    order = np.lexsort((distinct, -counts))
    wanted = distinct[order][counts[order] >= 3][:most]
    assert n == len(wanted) > 40
    np.testing.assert_array_equal(np.fromfile(tmp_path / "a.values", np.uint64), wanted)
    asked = rng.permutation(np.append(distinct, np.arange(10, dtype=np.uint64)))
    missing = np.arange(len(asked)) % 7 == 0
    place = {value: 2 + i for i, value in enumerate(wanted.tolist())}
    expected = [0 if absent else place.get(value, 1) for value, absent in zip(asked.tolist(), missing, strict=True)]
    for hold_bytes in (0, 1 << 20):  # mapped, and held
        found = vocabulary.Vocabulary(tmp_path / "a", hold_bytes)
        assert found.cardinality == 2 + n and found.ids(asked, missing)[0].tolist() == expected
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("merging")]


def test_a_run_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    counter = vocabulary.Counter(tmp_path / "run", ("a",), held=500, pending=100)
    counter.add("a", np.arange(1000, dtype=np.uint64))
    (run,) = counter.close()["a"]
    assert run.path.stat().st_size == 16_000
    os.truncate(run.path, 15_000)
    with pytest.raises(DataError, match=r"run-0\.run: has 15000 bytes where 16000 were written: .* --restart"):
        list(vocabulary.merged([run], tmp_path / "merging"))


MEMORY = """
import re, sys
from pathlib import Path
from hpcrec.preparation.convert import Split, TableMap, prepare_table
from hpcrec.preparation.tablemap import SparseColumn
from hpcrec.preparation import vocabulary
if sys.argv[3] == "small":
    vocabulary.Counter.__init__.__kwdefaults__.update(held=1 << 19, pending=1 << 18)
    vocabulary.HOLD_BYTES = 1 << 20
table = TableMap(labels=("y",), header=False, columns=("y", "a", "b"),
    sparse={name: SparseColumn(ids="vocabulary", value="hex") for name in ("a", "b")})
found = prepare_table([sys.argv[1]], sys.argv[2], table, split=Split("hash", (1.0, 0.0, 0.0)), piece_bytes=8 << 20)
print(found.cardinalities["a"], int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10)
"""


def peak_mib(folder: Path, n: int, budgets: str) -> tuple[int, int]:
    """Cardinality and peak memory of a conversion of n samples, nearly all of whose values differ."""
    rng = np.random.default_rng(n)
    path = folder / f"{n}.csv"
    with path.open("w") as file:
        for _ in range(0, n, 50_000):
            a, b = (rng.integers(0, 1 << 62, 50_000) for _ in range(2))
            file.write("".join(f"1,{x:x},{y:x}\n" for x, y in zip(a.tolist(), b.tolist(), strict=True)))
    command = [sys.executable, "-c", MEMORY, str(path), str(folder / f"out-{n}"), budgets]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cardinality, peak = done.stdout.split()
    return int(cardinality), int(peak)


def test_memory_of_vocabularies_does_not_grow_with_them(tmp_path: Path) -> None:
    """Budgets made small; of 5 times as many distinct values the peak is the same, within what their pages take."""
    small, large = (peak_mib(tmp_path, n, "small") for n in (100_000, 500_000))
    assert (small[0], large[0]) == (100_002, 500_002)
    assert large[1] - small[1] < 60 and large[1] < 400, (small, large)


@pytest.mark.slow
def test_a_gigabyte_is_enough_for_any_size(tmp_path: Path) -> None:
    """8 million samples with 16 million distinct values, which as they are held would take 0.5 GB: peak below 1 GB."""
    cardinality, peak = peak_mib(tmp_path, 8_000_000, "its own")
    assert cardinality == 8_000_002 and peak < 1000
    assert "vocabulary.h5" in content(tmp_path / "out-8000000")


@pytest.mark.parametrize("statistics", [True, False])
def test_times_that_python_has_no_object_for_are_no_reason_to_stop(tmp_path: Path, statistics: bool) -> None:
    at = pa.array([1_700_000_000_000_000_001 + i for i in range(6)], pa.timestamp("ns"))
    far = pa.array([400_000_000_000_000 + i for i in range(6)], pa.timestamp("s"))
    columns = {"y": [0, 1, 7, 1, 0, 1], "s": list("abcabc"), "at": at, "far": far}
    pq.write_table(pa.table(columns), tmp_path / "table.parquet", write_statistics=statistics)
    table = tmp_path / "map.toml"
    table.write_text(
        'labels = ["y"]\n[sparse.s]\nids = "hash"\n[sparse.at]\nids = "hash"\n[sparse.far]\nids = "hash"\n'
    )
    prepare_table([tmp_path / "table.parquet"], tmp_path / "out", table, split=ALL, max_bad=0.5)
    assert len(read(tmp_path / "out").label) == 5
    assert "1700000000000000003" in (tmp_path / "out/rejects.tsv").read_text()
