"""Sources that are wrong: each kind has one outcome, which names file, line and column; ``docs/data.md`` lists them."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrec.errors import ConfigError, DataError, HpcrecError
from hpcrec.preparation.convert import Split, Summary, prepare_criteo, prepare_table
from hpcrec.preparation.schema import DataSet
from tests.preparation.sources import ALL, content, criteo_line, criteo_lines, write_text

TABLE = """
labels = ["y"]
weight = "w"
group = "g"
time = "t"
dense.x.missing = 0
dense.z.integer = true
sparse.a = { ids = "integer", rows = 10 }
sparse.b = { separator = "|", value = "integer" }
sparse.c = { ids = "vocabulary", value = "hex" }
"""
HEADER = "y,w,g,t,x,z,a,b,c"
GOOD = "1,1,1,1,0.5,2,3,4|5,ff"


def table(folder: Path, lines: list[str], **options: object) -> Summary:
    (folder / "map.toml").write_text(TABLE)
    path = write_text(folder / "t.csv", [HEADER, *lines])
    return prepare_table([path], folder / "out", folder / "map.toml", **{"split": ALL, **options})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2" + GOOD[1:], "column y: found '2'; allowed is 0 or 1"),
        (GOOD[1:], "column y: found ''; allowed is 0 or 1"),
        ("nan" + GOOD[1:], "column y: found 'nan'"),
        ("1,-1,1,1,0.5,2,3,4|5,ff", "column w: found '-1'; allowed is a number of at least 0"),
        ("1,nan,1,1,0.5,2,3,4|5,ff", "column w: found 'nan'"),
        ("1,1,u7,1,0.5,2,3,4|5,ff", "column g: found 'u7'; allowed is an integer"),
        ("1,1,1,,0.5,2,3,4|5,ff", "column t: found ''; allowed is seconds since 1970"),
        ("1,1,1,1,inf,2,3,4|5,ff", "column x: found 'inf'; allowed is a finite number or nothing"),
        ("1,1,1,1,1e39,2,3,4|5,ff", "column x: found '1e39'; allowed is a number that float32 can hold"),
        ("1,1,1,1,0.5,,3,4|5,ff", "column z: found ''; allowed is an integer"),
        ("1,1,1,1,0.5,2,-3,4|5,ff", "column a: found '-3'; allowed is an integer from 0 to 9"),
        ("1,1,1,1,0.5,2,10,4|5,ff", "column a: found '10'"),
        ("1,1,1,1,0.5,2,,4|5,ff", "column a: found ''"),
        ("1,1,1,1,0.5,2,3,4||5,ff", "column b: found '4[|][|]5'; allowed is a list, each an integer"),
        ("1,1,1,1,0.5,2,3,4|5,fg", "column c: found 'fg'; allowed is hexadecimal digits or nothing"),
        (GOOD + ",1", "found 10 columns in .*; allowed is 9"),
        ("1,1", "found 2 columns in '1,1'; allowed is 9"),
        ("", "found 1 columns in ''; allowed is 9"),
    ],
)
def test_a_bad_line_stops_the_conversion_or_is_left_out(tmp_path: Path, line: str, message: str) -> None:
    lines = [GOOD, GOOD, line, GOOD]
    with pytest.raises(DataError, match=rf"t\.csv, line 4[:,] {message}"):
        table(tmp_path, lines)
    assert not (tmp_path / "out").exists() or not content(tmp_path / "out")
    summary = table(tmp_path, lines, max_bad=0.25)
    assert summary.samples == {"train": 3} and summary.rejected == 1
    head, row = (tmp_path / "out" / "rejects.tsv").read_text().splitlines()
    assert head == "file\tline\tbyte\tcolumn\treason\ttext"
    name, number, byte, column, reason, text = row.split("\t")
    assert (Path(name).name, number, text) == ("t.csv", "4", line)
    assert (tmp_path / "t.csv").read_bytes()[int(byte) :].decode().splitlines()[0] == line
    assert reason.startswith("found") and (not column or f"column {column}:" in message)
    with DataSet(tmp_path / "out" / "train.h5") as data:
        assert data.samples == 3 and data.read(0, 3).sparse["b"].offsets.tolist() == [0, 2, 4, 6]


def test_a_line_that_quotes_would_make_right_says_so(tmp_path: Path) -> None:
    """A quoted comma, where quotes are taken for text; not where quotes would not help, or are no quotes of values."""
    for line, helps in (
        ('1,1,1,1,"0,5",2,3,4|5,ff', True),
        (GOOD + ',"1"', False),
        ('1,"1",1,1,0,5,2,3,4|5,ff', False),
    ):
        with pytest.raises(DataError, match=r"found 10 columns in .*; allowed is 9") as refused:
            table(tmp_path, [GOOD, line])
        assert (", which it has with quotes = true in the map." in str(refused.value)) == helps
    path = write_text(tmp_path / "t.csv", [",".join(f'"{name}"' for name in HEADER.split(",")), GOOD])
    with pytest.raises(ConfigError, match=r"t\.csv, line 1: names are in quotes in .* Set quotes = true in the map"):
        prepare_table([path], tmp_path / "out", tmp_path / "map.toml", split=ALL)


@pytest.mark.parametrize("piece_bytes", [5000, 1 << 20])
def test_lines_are_numbered_in_the_whole_file(tmp_path: Path, piece_bytes: int) -> None:
    """Rejects are the same however the source is cut; so is the line of the first error."""
    lines = criteo_lines(400)
    wrong = {0: "first", 17: criteo_line(7), 200: criteo_line(1, "x"), 399: criteo_line(1, 1, "z\x80")}
    for place, line in wrong.items():
        lines[place] = line
    paths = [write_text(tmp_path / "a.txt", lines), write_text(tmp_path / "b.txt.gz", lines[:150])]
    summary = prepare_criteo(paths, tmp_path / "out", split=ALL, max_bad=0.02, piece_bytes=piece_bytes)
    assert summary.rejected == 6 and summary.samples["train"] == 544
    rows = [row.split("\t") for row in (tmp_path / "out" / "rejects.tsv").read_text().splitlines()[1:]]
    found = [(Path(row[0]).name, int(row[1]), row[3]) for row in rows]
    assert found == [
        ("a.txt", 1, ""),
        ("a.txt", 18, "label"),
        ("a.txt", 201, "I1"),
        ("a.txt", 400, "C1"),
        ("b.txt.gz", 1, ""),
        ("b.txt.gz", 18, "label"),
    ]
    whole = paths[0].read_bytes()
    for row in rows[:4]:
        assert whole[: int(row[2])].count(b"\n") == int(row[1]) - 1
    lines[0], lines[17] = criteo_line(), criteo_line()
    write_text(paths[0], lines)
    with pytest.raises(DataError, match=r"a\.txt, line 201, column I1: found 'x'"):
        prepare_criteo(paths, tmp_path / "strict", split=ALL, piece_bytes=piece_bytes)


def test_too_many_bad_lines(tmp_path: Path) -> None:
    lines = [criteo_line()] * 90 + ["x"] * 10
    path = write_text(tmp_path / "a.txt", lines)
    with pytest.raises(DataError, match=r"10 of 100 lines are bad, a share of 0\.1; allowed is 0\.05"):
        prepare_criteo([path], tmp_path / "out", split=ALL, max_bad=0.05)
    assert not (tmp_path / "out" / "train.h5").exists()
    assert prepare_criteo([path], tmp_path / "out", split=ALL, max_bad=0.1).samples == {"train": 90}
    # a file of something else is given up early: a piece may not write all of it to the rejects
    write_text(tmp_path / "b.txt", ["x"] * 300_000)
    with pytest.raises(DataError, match=r"lines are bad, a share of 1; allowed is 0\.01.*found 1 columns in 'x'"):
        prepare_criteo([tmp_path / "b.txt"], tmp_path / "other", split=ALL, max_bad=0.01)
    with pytest.raises(ConfigError, match="a share from 0 to 1"):
        prepare_criteo([path], tmp_path / "third", split=ALL, max_bad=1.5)


def test_bad_lines_are_not_counted_into_vocabularies(tmp_path: Path) -> None:
    lines = [GOOD, "2" + GOOD[1:].replace("ff", "aa"), GOOD.replace("ff", "bb")]
    assert table(tmp_path, lines, max_bad=0.5).cardinalities["c"] == 2 + 2


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :])
    elif how == "trailing":
        path.write_bytes(data + b"junk after the end")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "nothing":
        path.write_bytes(gzip.compress(b""))
    elif how == "parquet":
        path.write_bytes(b"PAR1 and no more")


@pytest.mark.parametrize("max_bad", [0.0, 0.5])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "gzip data is damaged or cut short after line"),
        ("flipped", "damaged or cut short|a share of|found"),
        ("trailing", "damaged or cut short"),
        ("empty", r"b\.gz: is empty; leave it out"),
        ("nothing", r"b\.gz: has no line"),
        ("parquet", "not a readable Parquet file"),
    ],
)
def test_files_that_cannot_be_read_to_their_end(tmp_path: Path, how: str, message: str, max_bad: float) -> None:
    """No share of bad lines allows for them; nothing is left under a data set's name."""
    paths = [write_text(tmp_path / name, criteo_lines(3000, seed)) for seed, name in enumerate(("a.gz", "b.gz"))]
    spoil(paths[1], how)
    for split in (ALL, Split("hash", (0.5, 0.0, 0.5))):
        with pytest.raises(DataError, match=message):
            prepare_criteo(paths, tmp_path / "out", split=split, max_bad=max_bad)
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").glob("*.h5"))


def test_forms_of_text_that_are_right(tmp_path: Path) -> None:
    lines = criteo_lines(5)
    plain = "".join(line + "\n" for line in lines).encode()
    forms = {
        "plain": plain,
        "dos": plain.replace(b"\n", b"\r\n"),
        "unended": plain[:-1],
        "bom": b"\xef\xbb\xbf" + plain,
    }
    found = {}
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        prepare_criteo([tmp_path / name], tmp_path / f"out-{name}", split=ALL)
        with DataSet(tmp_path / f"out-{name}" / "train.h5") as out:
            block = out.read(0, 5)
        found[name] = [block.label.tolist(), block.dense.tolist(), [c.ids.tolist() for c in block.sparse.values()]]
    assert found["dos"] == found["unended"] == found["bom"] == found["plain"]


def test_no_file_and_no_permission(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(HpcrecError, match=r"no such file|cannot be read"):
            prepare_criteo([path], tmp_path / "out", split=ALL)
    with pytest.raises(ConfigError, match="no source file"):
        prepare_criteo([], tmp_path / "out")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_all_ranks_stop_at_a_bad_line(tmp_path: Path) -> None:
    """One message, within the time that the good pieces would not be finished in; a rerun goes on."""
    lines = criteo_lines(20_000)
    lines[50] = criteo_line("x")
    path = write_text(tmp_path / "a.txt", lines)
    command = [sys.executable, "-m", "hpcrec", "run", "-n", "3", "--", "prepare", "criteo", "--piece", "1"]
    command += ["--out", str(tmp_path / "out"), "--split", "order:1,0,0", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and done.stderr.count("a.txt, line 51, column label: found 'x'") == 1, done.stderr
    again = subprocess.run([*command, "--max-bad", "0.001"], capture_output=True, text=True, env=environment)
    assert again.returncode == 0 and "rejected lines: 1, in rejects.tsv" in again.stdout, again.stderr
