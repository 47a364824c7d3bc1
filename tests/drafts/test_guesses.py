"""Each guess of `hpcrec init` by itself: delimiter, header, marks, kinds of columns, labels, leaks, the sample."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from hpcrec.drafts import columnmap, dialect, kinds, label, leaks, sample
from hpcrec.drafts.kinds import Values
from hpcrec.drafts.sample import Column
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation.blocks import Reader
from hpcrec.preparation.tablemap import TableMap
from tests.drafts.tables import clicks, write_csv, write_typed


def column(name: str, values: list[object], kind: str = "text") -> Values:
    texts = list(dict.fromkeys(str(value) for value in values if value is not None))
    number = {text: i for i, text in enumerate(texts)}
    codes = np.array([-1 if value is None else number[str(value)] for value in values], np.int64)
    counts = np.bincount(codes[codes >= 0], minlength=len(texts)).astype(np.int64)
    return Values(Column(name, kind, codes, texts, counts))


# ---- how text is written ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("header", [True, False])
def test_delimiter_and_header(tmp_path: Path, delimiter: str, header: bool) -> None:
    rows = {name: values for name, values in clicks(200).items() if name != "genres"}
    path = write_csv(tmp_path / "t", rows, delimiter, header=header)
    found = dialect.guess(path, "click" if header else "c3")
    assert (found.delimiter, found.header, found.quotes, found.share) == (delimiter, header, False, 1.0)
    assert found.names == (tuple(rows) if header else tuple(f"c{i + 1}" for i in range(len(rows))))
    if not header:
        assert dialect.guess(path, "click", tuple(rows)).names == tuple(rows)
        with pytest.raises(
            ConfigError, match=r"no column 'click' for the label; it has c1, c2, .*give them by --columns"
        ):
            dialect.guess(path, "click")
        with pytest.raises(ConfigError, match="has 12 columns, but --columns names 2"):
            dialect.guess(path, "a", ("a", "b"))


def test_quotes_hide_delimiters(tmp_path: Path) -> None:
    lines = ["click,title", *(f'{i % 2},"a, b, {i}"' if i % 3 else f"{i % 2},plain" for i in range(60))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found = dialect.guess(tmp_path / "t.csv", "click")
    assert (found.delimiter, found.quotes, found.names) == (",", True, ("click", "title"))


def test_the_label_tells_a_header_of_words(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("answer,color\n" + "yes,red\nno,blue\n" * 20)
    assert dialect.guess(tmp_path / "t.csv", "answer").header
    (tmp_path / "t.csv").write_text("yes,red\nno,blue\n" * 20)
    assert not dialect.guess(tmp_path / "t.csv", "c1").header


def test_no_table_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n".join("word " * (i % 7 + 1) for i in range(50)))
    with pytest.raises(ConfigError, match="none of commas, tabs"):
        dialect.guess(tmp_path / "t.csv", "click")
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(DataError, match="is empty"):
        dialect.guess(tmp_path / "t.csv", "click")


# ---- kinds of columns ------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
LETTERS = list("abcdefg")
COLUMNS: dict[str, tuple[list[object], str, dict[str, str]]] = {
    "constant": (["x"] * 300, "constant", {}),
    "nothing": ([None] * 300, "empty", {}),
    "presence": (["x", None, None] * 100, "category", {}),
    "row": (list(range(300)), "key", {}),
    "shuffled_row": (RNG.permutation(300).tolist(), "key", {}),
    "hash": ([f"{i * 7919:x}z" for i in range(300)], "key", {}),
    "impression_id": (RNG.integers(0, 2**40, 300).tolist(), "key", {}),
    "ratio": (RNG.normal(0, 1, 300).round(6).tolist(), "number", {}),
    "clicks_before": ((RNG.geometric(0.3, 3000) - 1).tolist(), "count", {}),
    "plain": ((RNG.geometric(0.3, 3000) - 1).tolist(), "count", {}),
    "amounts": (np.exp(RNG.normal(6, 2.5, 3000)).astype(int).tolist(), "count", {}),
    "item_id": (np.minimum(RNG.zipf(1.4, 3000), 500).tolist(), "category", {}),
    "codes": (RNG.integers(0, 50, 3000).tolist(), "category", {}),
    "padded": ([f"{i % 40:04d}" for i in range(3000)], "category", {}),
    "price": (RNG.integers(100, 100_000, 3000).tolist(), "number", {}),
    "city": ([f"city {i % 20}" for i in range(300)], "category", {}),
    "title": ([" ".join(RNG.choice(list("abcdefghijklmnop"), 7)) for _ in range(300)], "text", {}),
    "tags": (["|".join(RNG.choice(LETTERS, 3, replace=False)) for _ in range(300)], "list", {"separator": "|"}),
    "spaced": ([" ".join(RNG.choice(LETTERS, 2, replace=False)) for _ in range(300)], "list", {"separator": " "}),
    "gaps": (["a||b", "c|a", "b|c"] * 100, "category", {}),
    "iso": ([f"2024-01-{1 + i % 28:02d}T12:00:00" for i in range(300)], "time", {"format": "%Y-%m-%dT%H:%M:%S"}),
    "us": ([f"{1 + i % 12}/{1 + i % 28}/2024" for i in range(300)], "time", {"format": "%m/%d/%Y"}),
    "europe": ([f"{1 + i % 28}/{1 + i % 12}/2024" for i in range(300)], "time", {"format": "%d/%m/%Y"}),
    "hour": ([f"141021{i % 24:02d}" for i in range(300)], "time", {"format": "%y%m%d%H"}),
    "timestamp": ([880_000_000 + 31 * i for i in range(300)], "time", {"unit": "s"}),
    "event_ts": ([1_700_000_000_000 + 31 * i for i in range(300)], "time", {"unit": "ms"}),
    "number": ([1_700_000_000 + 31 * (i % 99) for i in range(300)], "category", {}),
    "hour_of_day": ([i % 24 for i in range(300)], "category", {}),
    "nearly_dates": (["2024-01-01"] * 299 + ["soon"], "category", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_kind(name: str) -> None:
    values, kind, keys = COLUMNS[name]
    found = kinds.guess(column(name, values))
    assert found.kind == kind, found
    assert {key: found.keys.get(key) for key in keys} == keys and found.reason


def test_marks_of_missing_values() -> None:
    columns = [
        column("number", [1, 2, "NA", 3] * 10).column,
        column("country", ["NA", "DE", "FR"] * 10).column,
        column("word", ["NULL", "a", "b", "-"] * 10).column,
    ]
    assert kinds.marks(columns) == ("NULL", "NA")
    assert kinds.marks(columns[1:2]) == (), "of words it may be Namibia"
    emptied = Values(columns[0].emptied(["NA"]))
    assert (emptied.missing, emptied.distinct, emptied.integer) == (10, 3, True)
    assert emptied.quantile(0.5) == [2.0]


# ---- what the map says of them ---------------------------------------------------------------------------------------


def lines_of(values: Values, total: int = 0) -> str:
    name = values.column.name
    made = columnmap.columns({name: kinds.guess(values)}, {name: values}, {}, total or len(values.column.codes_N))
    return "\n".join([*made.dense.get(name, []), *made.sparse.get(name, []), *made.out.get(name, [])])


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("skewed", np.exp(RNG.normal(5, 2.5, 3000)).tolist(), ["[dense.skewed]", 'transform = "log1p"', "missing = "]),
        ("small", RNG.normal(0, 1, 3000).tolist(), ["[dense.small]", 'transform = "none"']),
        ("year_score", RNG.integers(1950, 2000, 3000).tolist(), ["[dense", 'transform = "scale"', "low = 1950"]),
        ("count", [*(RNG.geometric(0.3, 3000) - 1).tolist(), *[None] * 300], ["[sparse.count]", 'ids = "bins"']),
        ("count", (RNG.geometric(0.3, 3000) - 1).tolist(), ["[dense.count]", "log1p"]),
        ("rare", [f"w{i // 2 if i < 2000 else i}" for i in range(3000)], ["[sparse.rare]", "min_count = 2  # 50%"]),
        ("a/b", ["x", "y", "z"] * 100, ["[sparse.a_b]", 'column = "a/b"']),
        ("weird name.x", ["x", "y", "z"] * 100, ['[sparse."weird name.x"]', 'ids = "vocabulary"']),
        ("row", list(range(300)), ["# row: left out: a row number"]),
    ],
)  # fmt: skip
def test_keys_of_a_column(name: str, values: list[object], wanted: list[str]) -> None:
    found = lines_of(column(name, values))
    for text in wanted:
        assert text in found, found
    assert all("#" in text for text in found.splitlines())


def test_vocabularies_of_large_tables_have_limits() -> None:
    once = column("device_id", [f"d{i}" for i in range(999)] + ["d0"] * 2)
    assert "rows = 5000000" in lines_of(once, 12_000_000) and "min_count = 5" in lines_of(once, 12_000_000)
    assert 'ids = "hash"' in lines_of(once, 900_000_000) and "rows = " not in lines_of(once)


def test_borders_leave_each_part_a_time() -> None:
    assert columnmap.borders(np.arange(100.0), np.ones(100)) == [80, 90]
    assert columnmap.borders(np.array([1.0, 2.0, 3.0]), np.array([98, 1, 1])) == [2, 3]
    assert columnmap.borders(np.array([1.0, 2.0, 3.0]), np.array([1, 1, 98])) == [2, 3]
    assert columnmap.borders(np.array([5.0, 9.0]), np.array([1, 1])) == [9]
    assert columnmap.borders(np.array([5.0]), np.array([1])) == []


# ---- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "given", "positive", "keys"),
    [
        ([0, 1, 0], {}, [1], {}),
        (["1.0", "0.0", "0.0"], {}, [0], {}),
        ([1, 2, 5, 4], {"label_from": 4.0}, [2, 3], {"label_from": 4.0}),
        ([-1, 1, 1], {}, [1, 2], {"label_from": 1.0}),
        (["no", "Yes", "no"], {}, [1], {"label_words": ["no", "Yes"]}),
        (["good", "bad", "bad"], {"positive": "bad"}, [1, 2], {"label_words": ["good", "bad"]}),
        ([0, 1, 1], {"positive": "0"}, [0], {"label_words": ["1", "0"]}),
    ],
)
def test_label(values: list[object], given: dict[str, object], positive: list[int], keys: dict[str, object]) -> None:
    found = label.read(column("y", values), "here", **given)  # type: ignore[arg-type]
    assert np.flatnonzero(found.labels_N).tolist() == positive and found.keys == keys


@pytest.mark.parametrize(
    ("values", "given", "message"),
    [
        ([1, 2, 3, 4, 5, 5], {}, r"has 5 values \(1, 2, 3, 4, 5\), and a label has two; .* --label-from 3 makes"),
        (["a", "b", "c"], {}, "a label has two; a column with two words is needed"),
        ([1, None, 0], {}, "1 of 3 rows of the sample have no label"),
        ([0, 0, 0], {}, "all 3 rows of the sample have the value '0'"),
        (["good", "bad"], {}, "--positive good or --positive bad says which"),
        (["good", "bad"], {"positive": "best"}, "--positive best is none of its values, good, bad"),
        ([1, 2, 3], {"label_from": 7.0}, "all rows of the sample have one label; give a number above 1, up to 3"),
        (["a", "b"], {"label_from": 7.0}, "--label-from 7 is for numbers, but it has 'a'"),
        ([1, 2, 3], {"label_from": 2.0, "positive": "3"}, "--label-from 2 and --positive 3 both say what is label 1"),
    ],
)
def test_label_that_is_none(values: list[object], given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: .*{message}"):
        label.read(column("y", values), "here", **given)  # type: ignore[arg-type]


# ---- leaks -----------------------------------------------------------------------------------------------------------


def test_leaks_are_found_and_nothing_else_is_accused() -> None:
    """By presence, by value and by size; not what predicts well, an id that is mostly unique, or noise."""
    rng = np.random.default_rng(1)
    y = rng.random(4000) < 0.1
    paid: list[object] = ["x" if one else None for one in y]
    unpaid: list[object] = [None if one else "x" for one in y]
    nearly: list[object] = [("x" if rng.random() < 0.99 else None) if one else None for one in y]
    answer: list[object] = ["clicked" if one else rng.choice(["shown", "closed"]) for one in y]
    seconds: list[object] = np.where(y, rng.normal(60, 5, 4000), rng.normal(10, 5, 4000)).round(3).tolist()
    good: list[object] = np.where(y, rng.normal(2, 1, 4000), rng.normal(0, 1, 4000)).round(1).tolist()  # AUC 0.92
    unique: list[object] = rng.integers(0, 2**50, 4000).tolist()
    noise: list[object] = rng.integers(0, 900, 4000).tolist()

    def look(values: list[object]) -> str:
        of = column("x", values)
        found = leaks.look(of.column, y, of.numbers_D if of.numeric else None)
        return found.sentence if found else ""

    assert look(paid) == "it is filled exactly where the label is 1, and empty everywhere else"
    assert look(unpaid) == "it is filled exactly where the label is 0, and empty everywhere else"
    assert look(nearly).startswith("whether it is empty alone ranks rows")
    assert look(answer).startswith(
        "its value alone ranks rows of the sample that it was not fitted on with an AUC of 1.0"
    )
    assert look(seconds).startswith("how large it is alone ranks")
    assert [look(values) for values in (good, unique, noise)] == ["", "", ""]


def test_too_few_rows_accuse_nobody() -> None:
    y = np.arange(200) < 10
    of = column("x", ["x" if one else None for one in y])
    assert not leaks.enough(y) and leaks.look(of.column, y, None) is None


def test_auc_is_that_of_pairs() -> None:
    rng = np.random.default_rng(2)
    score, y = rng.integers(0, 9, 60).astype(float), rng.random(60) < 0.4
    pairs = [(a > b) + (a == b) / 2 for a in score[y] for b in score[~y]]
    assert leaks.auc(score, y) == pytest.approx(np.mean(pairs))
    assert leaks.auc(score, np.zeros(60, np.bool_)) == 0.5


# ---- the sample ------------------------------------------------------------------------------------------------------


def taken(*paths: Path) -> sample.Sample:
    how = dialect.guess(paths[0], "click")
    table = TableMap(labels=how.names, delimiter=how.delimiter, header=how.header)
    return sample.take(Reader(table, list(paths)), paths)


def test_small_tables_are_read_whole(tmp_path: Path) -> None:
    rows = clicks(1200)
    text = write_csv(tmp_path / "t.csv", rows)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(text.read_bytes()))
    for path in (
        text,
        tmp_path / "t.csv.gz",
        write_typed(tmp_path / "t.parquet", rows),
        write_typed(tmp_path / "t.arrow", rows),
    ):
        found = taken(path)
        assert (found.n, found.total, found.whole, found.wrong) == (1200, 1200, True, 0), path
        visits = found.columns["visits"]
        assert int((visits.codes_N < 0).sum()) == rows["visits"].count(None)
        assert sorted(visits.texts, key=float) == sorted({str(v) for v in rows["visits"] if v is not None}, key=float)
        assert [found.columns["row"].texts[i] for i in found.columns["row"].codes_N] == [str(v) for v in rows["row"]]
    twice = taken(text, text)
    assert (twice.n, twice.total) == (2400, 2400)


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet", "arrow"])
def test_large_tables_are_read_in_several_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setattr(sample, "ROWS", 2000)
    monkeypatch.setattr(sample, "_TEXT_BYTES", 120_000)
    rows = {"click": [i % 2 for i in range(60_000)], "at": list(range(60_000))}
    path = tmp_path / f"t.{ending}"
    if ending.startswith("csv"):
        write_csv(tmp_path / "t.csv", rows)
        if ending == "csv.gz":
            path.write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    else:
        write_typed(path, rows)
    found = taken(path)
    assert not found.whole and 1500 <= found.n <= 8000
    assert found.total == pytest.approx(60_000, rel=0.1)
    if ending != "csv.gz":  # less than a block of it is looked at here: it cannot be entered in the middle
        at = np.array([int(found.columns["at"].texts[i]) for i in found.columns["at"].codes_N])
        assert len(np.unique(at // 6000)) == 10, "each tenth of the file"


def test_lines_that_are_no_rows_are_counted(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", {"click": [0, 1] * 500, "x": list(range(1000))})
    path.write_text(path.read_text() + "1\n")
    found = taken(path)
    assert (found.n, found.total, found.wrong) == (1000, 1001, 1) and "found 1 columns" in found.first_wrong
