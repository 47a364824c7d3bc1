"""Converters: exact values from small hand-made files, exact line numbers, bounded memory, real samples where there."""

import errno
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcrec.data import hashing
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation.convert import Split, prepare_criteo, prepare_movielens
from hpcrec.preparation.criteo import CATEGORIES
from hpcrec.preparation.journal import Journal
from hpcrec.preparation.mapped import Mapped
from hpcrec.preparation.schema import DataSet
from tests.preparation.sources import ALL, criteo_line, write_text

REAL = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.parametrize("name", ["train.txt", "train.txt.gz"])
def test_criteo_values(tmp_path: Path, name: str) -> None:
    lines = [criteo_line(1, 5), criteo_line(0, ""), criteo_line(0, -2, ""), criteo_line(1, 0, "ffffFFFF")]
    source = write_text(tmp_path / name, lines)
    summary = prepare_criteo([source, source], tmp_path / "out", rows_per_feature=1000, split=ALL)
    assert summary.samples == {"train": 8} and summary.label_rate == {"train": 0.5}
    assert summary.cardinalities == dict.fromkeys(CATEGORIES, 1000)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["prepare.json", "train.h5"]
    with DataSet(tmp_path / "out" / "train.h5") as data:
        block = data.read(0, 8)
        assert data.attributes["source_sha256"] == hashlib.sha256(source.read_bytes() * 2).hexdigest()
        assert "log(x + 1)" in data.attributes["conventions"]["dense"]
    np.testing.assert_array_equal(block.label, [1, 0, 0, 1] * 2)
    np.testing.assert_array_equal(block.dense[:4, 12], np.log1p([5, 0, 0, 0]).astype(np.float32))
    for number, name in enumerate(CATEGORIES):
        salt = hashing.stream(0xC417E0, number)
        wanted = [1 + hashing.mix(value ^ salt) % 999 for value in (10, 10, 0, 0xFFFFFFFF)]
        wanted[2] = 0
        assert block.sparse[name].ids.tolist() == wanted * 2


def test_criteo_vocabulary_counts_the_train_samples_only(tmp_path: Path) -> None:
    values = ["00000003"] * 3 + ["00000001"] * 2 + ["00000002"] * 2 + ["00000009", "", "00000007"]
    lines = [criteo_line(category=value) for value in [*values, "00000007", "00000001"]]
    source = write_text(tmp_path / "train.txt", lines)
    split = Split("order", (10 / 12, 0.0, 2 / 12))
    summary = prepare_criteo([source], tmp_path, ids="vocabulary", min_count=2, split=split)
    assert summary.samples == {"train": 10, "test": 2} and summary.cardinalities["C1"] == 5
    ids = [
        DataSet(tmp_path / f"{part}.h5").read(0, n).sparse["C26"].ids.tolist() for part, n in summary.samples.items()
    ]
    assert ids == [[2, 2, 2, 3, 3, 4, 4, 1, 0, 1], [1, 3]]
    with h5py.File(tmp_path / "vocabulary.h5") as file:
        assert file["C26"][:].tolist() == [3, 1, 2]
    summary = prepare_criteo([source], tmp_path, ids="vocabulary", rows_per_feature=4, split=split, restart=True)
    assert summary.cardinalities["C1"] == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (criteo_line(2), "column label: found '2'; allowed is 0 or 1"),
        (criteo_line(""), "column label: found ''; allowed is 0 or 1"),
        (criteo_line(1, "x"), "column I1: found 'x'; allowed is an integer or nothing"),
        (criteo_line(1, 1.5), r"column I1: found '1\.5'"),
        (criteo_line(1, 1, "zzzzzzzz"), "column C1: found 'zzzzzzzz'; allowed is 8 hexadecimal digits or nothing"),
        (criteo_line(1, 1, "abc"), "column C1: found 'abc'"),
        ("1\t2", "found 2 columns in '1\\\\t2'; allowed is 40"),
        ("", "found 1 columns in ''; allowed is 40"),
    ],
)
@pytest.mark.parametrize("number", [1, 2, 33_333])
def test_criteo_names_the_bad_line(tmp_path: Path, line: str, message: str, number: int) -> None:
    lines = [criteo_line()] * 40_000
    lines[number - 1] = line
    source = write_text(tmp_path / "bad.txt", lines)
    with pytest.raises(DataError, match=rf"bad\.txt, line {number}[:,] {message}"):
        prepare_criteo([source], tmp_path / "out", split=ALL)
    assert not list((tmp_path / "out").iterdir())


def test_criteo_truncated_gzip_and_options(tmp_path: Path) -> None:
    source = write_text(tmp_path / "t.gz", [criteo_line(1, n) for n in range(20_000)])
    source.write_bytes(source.read_bytes()[:-3000])
    with pytest.raises(DataError, match=r"t\.gz"):
        prepare_criteo([source], tmp_path / "out", split=Split("hash", (0.5, 0.0, 0.5)))
    assert not list((tmp_path / "out").iterdir())
    for options in ({"ids": "x"}, {"min_count": 2}, {"rows_per_feature": 2}):
        with pytest.raises(ConfigError):
            prepare_criteo([source], tmp_path / "out", **options)
    with pytest.raises(DataError, match="no such file"):
        prepare_criteo([tmp_path / "none"], tmp_path / "out")


def test_split_by_order_and_by_hash() -> None:
    split = Split.parse("order:0.5,0.3,0.2")
    assert split.assign(0, 10, 10).tolist() == [0] * 5 + [1] * 3 + [2] * 2
    assert split.assign(4, 3, 10).tolist() == [0, 1, 1]
    split = Split.parse("hash:0.8,0,0.2", seed=3)
    whole = split.assign(0, 20_000, 0)
    assert split.names == ("train", "test") and set(whole.tolist()) == {0, 2}
    assert abs((whole == 2).mean() - 0.2) < 0.012  # 4 standard deviations
    np.testing.assert_array_equal(split.assign(777, 50, 0), whole[777:827])
    assert (Split.parse("hash:0.8,0,0.2", seed=4).assign(0, 20_000, 0) != whole).any()
    for bad in ("hash:0.8,0.2", "order:a,b,c", "x:1,0,0", "order:0.5,0.1,0.1", "order:0,0.5,0.5"):
        with pytest.raises(ConfigError, match="split"):
            Split.parse(bad)


def test_an_empty_part_is_an_error(tmp_path: Path) -> None:
    source = write_text(tmp_path / "t.txt", [criteo_line()] * 3)
    with pytest.raises(DataError, match="no sample fell into validation"):
        prepare_criteo([source], tmp_path / "out", split=Split("order", (0.9, 0.05, 0.05)))
    assert not list((tmp_path / "out").iterdir())


MOVIELENS = {
    "csv": (
        ["user_id,item_id,rating,timestamp", "7,20,4,978300760", "3,10,3,978300761", "7,99,5,978390000"],
        ["user_id,gender,age,occupation,zip", "3,M,25,15,55117", "7,F,1,10,48067"],
        ["movie_id,title,genres", '10,"Heat, The (1995)",Action|Crime', "20,Toy Story (1995),Comedy"],
    ),
    "dat": (
        ["7::20::4::978300760", "3::10::3::978300761", "7::99::5::978390000"],
        ["3::M::25::15::55117", "7::F::1::10::48067"],
        ["10::Heat, The (1995)::Action|Crime", "20::Toy Story (1995)::Comedy"],
    ),
    "u": (
        ["7\t20\t4\t978300760", "3\t10\t3\t978300761", "7\t99\t5\t978390000"],
        ["3|25|M|15|55117", "7|1|F|10|48067"],
        [
            "10|Heat, The (1995)|01-Jan-1995||url|0|1|0|0|0|0|1|0|0|0|0|0|0|0|0|0|0|0|0",
            "20|Toy Story (1995)|01-Jan-1995||url|0|0|0|0|0|1|0|0|0|0|0|0|0|0|0|0|0|0|0",
        ],
    ),
}


@pytest.mark.parametrize("form", MOVIELENS)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_movielens_layouts_give_the_same_samples(tmp_path: Path, form: str, ending: str) -> None:
    sources = [write_text(tmp_path / f"{i}{ending}", lines) for i, lines in enumerate(MOVIELENS[form])]
    summary = prepare_movielens(*sources, tmp_path, split=ALL)
    assert summary.samples == {"train": 3} and summary.label_rate["train"] == pytest.approx(2 / 3)
    with DataSet(tmp_path / "train.h5") as data:
        block = data.read(0, 3)
    ids = {name: column.ids.tolist() for name, column in block.sparse.items()}
    assert ids["user_id"] == [2, 1, 2] and ids["item_id"] == [2, 1, 0]  # film 99 is unknown
    assert ids["gender"] == [1, 2, 1] and ids["age"] == [1, 3, 1] and ids["occupation"] == [1, 2, 1]
    assert ids["release_year"] == [1, 1, 0] and ids["zip_prefix"] == [1, 2, 1]
    assert ids["genres"] == [1, 0, 2] and block.sparse["genres"].offsets.tolist() == [0, 1, 3, 3]
    assert ids["hour"] == [22, 22, 23] and ids["weekday"] == [3, 3, 4]  # Sunday 2000-12-31 and Monday; 0 is Thursday
    assert block.group.tolist() == [2, 1, 2] and block.time.tolist() == [978300760, 978300761, 978390000]
    years = (978300760 - 946684800) / (365.2425 * 86400)
    np.testing.assert_allclose(block.dense[0], [years / 10, 0.01, 0.3, (years + 5) / 50], rtol=1e-6)
    np.testing.assert_allclose(block.dense[2, 2:], [0, 0])


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        (0, "1,2,3", "line 5: found 3 columns"),
        (0, "a,2,3,4", "line 5, column user: found 'a'"),
        (0, "1,2,x,4", "line 5, column rating: found 'x'; allowed is a number"),
        (0, "1,2,nan,4", "line 5, column rating: found 'nan'; allowed is a finite number"),
        (0, "1,2,-inf,4", "line 5, column rating: found '-inf'; allowed is a finite number"),
        (1, "1,2", "line 4: found 2 columns"),
        (2, "x,Heat,Crime", "line 4: found number 'x'"),
    ],
)
def test_movielens_names_the_bad_line(tmp_path: Path, file: int, line: str, message: str) -> None:
    sources = [write_text(tmp_path / str(i), lines) for i, lines in enumerate(MOVIELENS["csv"])]
    with sources[file].open("a") as out:
        out.write(line + "\n")
    with pytest.raises(DataError, match=message):
        prepare_movielens(*sources, tmp_path / "out", split=ALL)


@pytest.mark.parametrize("file", [0, 1, 2])
@pytest.mark.parametrize("how", ["cut", "corrupt"])
def test_movielens_names_the_gzip_file_that_is_cut_short_or_corrupt(tmp_path: Path, file: int, how: str) -> None:
    sources = [write_text(tmp_path / str(i), lines) for i, lines in enumerate(MOVIELENS["csv"])]
    content = bytearray(gzip.compress(sources[file].read_bytes()))
    if how == "corrupt":
        content[-6] ^= 1  # of its checksum
    sources[file].write_bytes(content[:-12] if how == "cut" else content)
    with pytest.raises(DataError, match=rf"{sources[file]}: .*gzip.*copy it again"):
        prepare_movielens(*sources, tmp_path / "out", split=ALL)


def test_pieces_of_others_are_refused_and_stay(tmp_path: Path) -> None:
    source, out = write_text(tmp_path / "train.txt", [criteo_line(1, 5), "bad"]), tmp_path / "out"
    (out / "pieces").mkdir(parents=True)
    (out / "pieces/thesis.tex").write_text("kept")
    for restart in (False, True):
        with pytest.raises(DataError, match=r"pieces: has files, and .*out has no prepare\.json"):
            prepare_criteo([source], out, rows_per_feature=1000, split=ALL, restart=restart)
    assert (out / "pieces/thesis.tex").read_text() == "kept" and not (out / "prepare.work").exists()


def test_files_that_others_are_writing_in_the_folder_stay(tmp_path: Path) -> None:
    source, out = write_text(tmp_path / "train.txt", [criteo_line(1, 5)]), tmp_path / "out"
    (out / ".model.77.part").mkdir(parents=True)
    (out / ".pred.h5.78.part").write_text("half")
    (out / ".train.h5.79.part").write_text("of a killed one")
    prepare_criteo([source], out, rows_per_feature=1000, split=ALL)
    names = {path.name for path in out.iterdir()}
    assert {".model.77.part", ".pred.h5.78.part"} <= names and ".train.h5.79.part" not in names


def test_a_restart_after_a_kill_while_files_were_named_leaves_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_text(tmp_path / "old.txt", [criteo_line(1, i) for i in range(200)])
    new, out = write_text(tmp_path / "new.txt", [criteo_line(0, i) for i in range(200)]), tmp_path / "out"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_criteo([old], out, rows_per_feature=1000, split=Split("order", (0.8, 0.1, 0.1)))
    assert (out / "test.h5").exists() and not (out / "prepare.json").exists()
    prepare_criteo([new], out, rows_per_feature=1000, split=Split("order", (0.9, 0.1, 0.0)), restart=True)
    assert sorted(path.name for path in out.iterdir()) == ["prepare.json", "train.h5", "validation.h5"]


def test_a_restart_that_was_cut_short_can_be_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces go while there is a record that they are of this folder's conversion."""
    source, out = write_text(tmp_path / "train.txt", [criteo_line(1, i) for i in range(20)]), tmp_path / "out"
    prepare_criteo([source], out, rows_per_feature=1000, split=ALL)
    (out / "pieces").mkdir()
    (out / "pieces" / "train-0.h5").write_text("of the conversion before")

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("hpcrec.preparation.journal.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare_criteo([source], out, rows_per_feature=1000, split=ALL, restart=True)
    prepare_criteo([source], out, rows_per_feature=1000, split=ALL, restart=True)
    assert sorted(path.name for path in out.iterdir()) == ["prepare.json", "train.h5"]


MEASURE = """
import re, sys
from hpcrec.preparation.convert import Split, prepare_criteo
prepare_criteo([sys.argv[1]], sys.argv[2], split=Split("hash", (0.8, 0.0, 0.2)))
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""


def test_criteo_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Peak memory of 126 MB of text is that of a quarter of it, which fills every buffer, within 25 MB; below 400."""
    rng = np.random.default_rng(0)
    lines = [criteo_line(i % 2, int(rng.integers(9)), f"{rng.integers(1 << 32):08x}") for i in range(40_000)]
    text = ("\n".join(lines) + "\n").encode()
    peaks = []
    for name, copies in (("small.gz", 3), ("large.gz", 12)):
        # gzip members side by side are one gzip file
        (tmp_path / name).write_bytes(gzip.compress(text, 1) * copies)
        command = [sys.executable, "-c", MEASURE, str(tmp_path / name), str(tmp_path / f"out-{name}")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        peaks.append(int(done.stdout))
    assert len(text) * 12 > 120e6
    assert peaks[1] - peaks[0] < 25 and peaks[1] < 400, peaks
    assert DataSet(tmp_path / "out-large.gz" / "train.h5").samples > 380_000


def real(*names: str) -> list[Path]:
    paths = [REAL / name for name in names]
    if missing := [path.name for path in paths if not path.is_file()]:
        pytest.skip(f"no real samples here: {', '.join(missing)}")
    return paths


def test_real_criteo_sample(tmp_path: Path) -> None:
    (source,) = real("criteo_kaggle_sample.tsv.gz")
    summary = prepare_criteo([source], tmp_path, ids="vocabulary", split=ALL)
    assert summary.samples["train"] == 12_387 and summary.label_rate["train"] == pytest.approx(0.2269, abs=5e-5)
    # the sample's own description counts the empty value; here there are a missing and a rare id instead
    assert [summary.cardinalities[c] for c in ("C1", "C3", "C20", "C26")] == [198 + 2, 6971 + 1, 4 + 1, 2383 + 1]


@pytest.mark.parametrize(
    ("files", "users", "items", "rate"),
    [
        (("ml100k_ratings.csv.gz", "ml100k_users.csv.gz", "ml100k_items.csv.gz"), 943, 1682, 0.5538),
        (("ml1m_ratings_100k.csv.gz", "ml1m_users.csv.gz", "ml1m_movies.csv.gz"), 6040, 3883, 0.5748),
    ],
)
def test_real_movielens(tmp_path: Path, files: tuple[str, ...], users: int, items: int, rate: float) -> None:
    summary = prepare_movielens(*real(*files), tmp_path, split=ALL)
    assert summary.samples == {"train": 100_000} and summary.label_rate["train"] == pytest.approx(rate, abs=5e-5)
    assert (summary.cardinalities["user_id"], summary.cardinalities["item_id"]) == (users + 1, items + 1)


@pytest.mark.parametrize("named", ["../keep.txt", "/{outside}", "link/keep.txt", "sub/../../keep.txt"])
@pytest.mark.parametrize("restart", [True, False])
def test_a_record_that_names_files_elsewhere_removes_none(tmp_path: Path, named: str, restart: bool) -> None:
    source = write_text(tmp_path / "train.txt", [criteo_line(1, 5)])
    outside, out = tmp_path / "keep.txt", tmp_path / "out"
    outside.write_text("kept")
    prepare_criteo([source], out, rows_per_feature=1000, split=ALL)
    (out / "link").symlink_to(tmp_path)
    record = json.loads((out / "prepare.json").read_text())
    record["files"] = {"train.h5": record["files"]["train.h5"], named.format(outside=str(outside)[1:]): 4}
    (out / "prepare.json").write_text(json.dumps(record))
    begun = out / "prepare.work" / "counted-0.json"
    begun.parent.mkdir()
    begun.write_text("{}")
    with pytest.raises(DataError, match=r"prepare\.json: names .*keep\.txt, which is not in its folder"):
        prepare_criteo([source], out, rows_per_feature=1000, split=ALL, restart=restart)
    assert outside.read_text() == "kept" and (out / "train.h5").exists() and begun.exists()


@pytest.mark.parametrize("link", ["prepare.work", "pieces"])
@pytest.mark.parametrize("restart", [True, False])
def test_a_folder_that_is_a_link_is_refused_and_nothing_goes(tmp_path: Path, link: str, restart: bool) -> None:
    source = write_text(tmp_path / "train.txt", [criteo_line(1, 5)])
    kept, out = tmp_path / "theirs" / "sub" / ".thesis.part", tmp_path / "out"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    out.mkdir()
    (out / link).symlink_to(tmp_path / "theirs")
    with pytest.raises(DataError, match=rf"{link}: is a link, to .*theirs, .*Remove the link"):
        prepare_criteo([source], out, rows_per_feature=1000, split=ALL, restart=restart)
    assert kept.read_text() == "kept" and [path.name for path in out.iterdir()] == [link]


@pytest.mark.parametrize("restart", [True, False])
def test_of_a_link_among_what_is_cleared_only_the_link_goes(tmp_path: Path, restart: bool) -> None:
    source = write_text(tmp_path / "train.txt", [criteo_line(1, 5)])
    kept, out = tmp_path / "theirs" / "sub" / ".thesis.part", tmp_path / "out"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    for folder in ("prepare.work", "prepare.work/cache"):
        (out / folder).mkdir(parents=True)
        (out / folder / "link").symlink_to(tmp_path / "theirs")
    prepare_criteo([source], out, rows_per_feature=1000, split=ALL, restart=restart)
    assert kept.read_text() == "kept" and not (out / "prepare.work").exists()


def test_room_for_a_mapped_array_is_had_before_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Mapped.create(tmp_path / "array", 1_000_000)
    assert (tmp_path / "array").stat().st_blocks * 512 >= 8_000_000 and len(made.array) == 1_000_000
    assert len(Mapped.create(tmp_path / "empty", 0).array) == 0

    def emulated(file: int, at: int, size: int) -> None:
        """As the C library does it where the file system has no such call: it reads, and writes what it has read."""
        for place in range(at, at + size, 512):
            os.pwrite(file, os.pread(file, 1, place), place)

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", emulated)
    assert len(Mapped.create(tmp_path / "array", 100).array) == 100
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"No space left .*array"):
        Mapped.create(tmp_path / "array", 100)


@pytest.mark.parametrize("record", ["[]", "{", '{"files": ["train.h5"]}', "{}"])
def test_a_record_that_is_none_is_said(tmp_path: Path, record: str) -> None:
    source = write_text(tmp_path / "train.txt", [criteo_line(1, 5)])
    (tmp_path / "prepare.json").write_text(record)
    for restart in (True, False):
        with pytest.raises(DataError, match=r"prepare\.json: not what `hpcrec prepare` writes .*Remove it"):
            prepare_criteo([source], tmp_path, rows_per_feature=1000, split=ALL, restart=restart)


def test_a_record_of_a_part_that_is_none_is_said(tmp_path: Path) -> None:
    source = write_text(tmp_path / "train.txt", [criteo_line(1, 5)])
    (tmp_path / "prepare.work").mkdir()
    (tmp_path / "prepare.work" / "written-train.json").write_text("[]")
    with pytest.raises(DataError, match=r"written-train\.json: not what `hpcrec prepare` writes .it is no record"):
        prepare_criteo([source], tmp_path, rows_per_feature=1000, split=ALL)


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    source = write_text(tmp_path / "train.txt", [criteo_line(1, 5)])
    monkeypatch.setattr("hpcrec.preparation.journal.fcntl.flock", none)
    with pytest.warns(UserWarning, match="takes no lock .No locks available.; see that one process"):
        prepare_criteo([source], tmp_path / "out", rows_per_feature=1000, split=ALL)
