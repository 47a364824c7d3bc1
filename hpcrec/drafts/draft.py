"""Looks at tables and writes ``map.toml`` and ``run.toml`` for them: what `hpcrec init` does.

A guess is worth what its reason is: every line has one. Nothing is converted or trained here.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcrec.data.layout import INDEX_SUFFIX
from hpcrec.drafts import columnmap, dialect, kinds, leaks, runfile, sample
from hpcrec.drafts import label as labels
from hpcrec.drafts.columnmap import line
from hpcrec.drafts.dialect import Dialect
from hpcrec.drafts.kinds import Guess, Values
from hpcrec.drafts.label import Label
from hpcrec.drafts.leaks import Leak
from hpcrec.drafts.sample import Sample
from hpcrec.errors import ConfigError
from hpcrec.preparation import pieces
from hpcrec.preparation.blocks import Reader
from hpcrec.preparation.numbering import Uncounted
from hpcrec.preparation.split import by_files
from hpcrec.preparation.table import Maker, numberings
from hpcrec.preparation.tablemap import TableMap, load_map

MAP, RUN = "map.toml", "run.toml"


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What to draft from.

    Attributes
    ----------
    train, validation, test : tuple of Path
        Validation or test may have none: parts of train are taken then.
    label : str
        Column of the label.
    label_from, positive
        See `label.read`.
    together : str, optional
        Column whose rows stay in one part of the split, say the user.
    columns : tuple of str
        Names of text files without header.
    out : Path
        Folder of the two files.
    recipe, system
        See `runfile.Facts`.
    """

    train: tuple[Path, ...]
    validation: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    label: str
    label_from: float | None = None
    positive: str | None = None
    together: str | None = None
    columns: tuple[str, ...] = ()
    out: Path = field(default_factory=Path)
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    system: str = ""

    @property
    def every(self) -> list[Path]:
        """All files, those of train first."""
        return [*self.train, *self.validation, *self.test]


@dataclass
class Drafted:
    """What was seen and written.

    Attributes
    ----------
    leaks : dict of str to Leak
        Columns that give the label away.
    notes : list of str
        What else a user should know.
    parts : tuple of str
        That the data set will have.
    """

    leaks: dict[str, Leak]
    notes: list[str]
    parts: tuple[str, ...]


@dataclass(frozen=True)
class _Seen:
    """A sample of the training tables, and what its columns were taken for."""

    tables: Tables
    dialect: Dialect
    sample: Sample
    marks: tuple[str, ...]
    values: dict[str, Values]
    guesses: dict[str, Guess]
    label: Label
    leaks: dict[str, Leak]
    time: str | None


def write(tables: Tables, *, force: bool = False) -> Drafted:
    """Look at the tables and write the two files.

    Raises
    ------
    ConfigError
        The label or another column is not there or cannot be one; a file is there already, and not `force`.
    DataError
        A table that cannot be read.
    """
    there = [tables.out / name for name in (MAP, RUN) if (tables.out / name).exists()]
    if there and not force:
        raise ConfigError(f"{there[0]}: is there already; --force writes over it, --out names another folder.")
    by_files(tables.train, tables.validation, tables.test)  # refuses a file in two parts
    seen = _look(tables)
    draft = columnmap.columns(
        {name: guess for name, guess in seen.guesses.items() if name != seen.time},
        seen.values,
        seen.leaks,
        seen.sample.total,
    )
    if not draft.sparse:
        raise ConfigError(_nothing_left(seen, draft))
    split, parts = _split(seen)
    tables.out.mkdir(parents=True, exist_ok=True)
    notes = [] if leaks.enough(seen.label.labels_N) else ["too few rows of one label to look for columns that tell it."]
    path = tables.out / MAP
    path.write_text("\n".join(_map_lines(seen, draft, split)) + "\n", encoding="utf-8")
    notes += _bad_rows(seen, load_map(path))
    ending = ".h5" if len(pieces.cut(tables.every)) == 1 else INDEX_SUFFIX
    text = runfile.lines(
        runfile.Facts(
            data=tables.out / "data",
            folder=tables.out / "runs" / "first",
            parts={part: f"{part}{ending}" for part in parts},
            rows=seen.sample.total,
            positive=float(seen.label.labels_N.mean()),
            pooled=draft.pooled,
            recipe=tables.recipe,
            system=tables.system,
        )
    )
    (tables.out / RUN).write_text("\n".join(text) + "\n", encoding="utf-8")
    return Drafted(seen.leaks, notes, parts)


def prepare_command(tables: Tables) -> str:
    """The command line that converts the tables by the map."""
    words = ["hpcrec", "prepare", "table", "--map", str(tables.out / MAP), "--out", str(tables.out / "data")]
    words += map(str, tables.train)
    for name in ("validation", "test"):
        if files := getattr(tables, name):
            words += [f"--{name}", *map(str, files)]
    return shlex.join(words)


def _look(tables: Tables) -> _Seen:
    how = dialect.guess(tables.train[0], tables.label, tables.columns)
    for name in [tables.together] if tables.together is not None else []:
        if name not in how.names:
            raise ConfigError(f"{tables.train[0]}: no column {name!r} to keep together; it has {', '.join(how.names)}.")
    everything = _table(how, how.names)
    Reader(everything, tables.every)  # all files have the same columns
    taken = sample.take(Reader(everything, list(tables.train)), tables.train)
    if not taken.n:
        raise ConfigError(f"{tables.train[0]}: has no row that can be read: {taken.first_wrong or 'it has no row'}.")
    found = [taken.columns[name] for name in how.names]
    # Words of a label may look like marks; NaN of a float is none of its words.
    marks = kinds.marks([column for column in found if column.name != tables.label or column.kind == "float"])
    values = {column.name: Values(column.emptied(marks)) for column in found}
    where = f"{tables.train[0]}, column {tables.label}"
    label = labels.read(values.pop(tables.label), where, label_from=tables.label_from, positive=tables.positive)
    guesses = {name: kinds.guess(of) for name, of in values.items()}
    told = {}
    for name, guess in guesses.items():
        if guess.kind not in ("empty", "constant", "other"):
            numbers = values[name].numbers_D if values[name].numeric else None
            if guess.kind == "time":
                numbers = kinds.seconds(values[name], guess.keys)
            if leak := leaks.look(values[name].column, label.labels_N, numbers):
                told[name] = leak
    whole = (n for n, g in guesses.items() if g.kind == "time" and not values[n].missing and n not in told)
    time = next((name for name in whole if values[name].distinct > 1), None)
    for name, guess in list(guesses.items()):
        if guess.kind == "time" and name != time:
            reason = f"{guess.reason}; a map takes one time, without missing values, and makes no input of it"
            guesses[name] = replace(guess, reason=reason)
    if tables.together is not None and values[tables.together].missing:
        raise ConfigError(f"{tables.train[0]}, column {tables.together}: has empty values, which no group has.")
    return _Seen(tables, how, taken, marks, values, guesses, label, told, time)


def _table(how: Dialect, names: Sequence[str]) -> TableMap:
    """A map that reads these columns, whatever they are."""
    return TableMap(
        labels=tuple(names),
        delimiter=how.delimiter,
        quotes=how.quotes,
        header=how.header,
        columns=() if how.header else how.names,
    )


def _nothing_left(seen: _Seen, draft: columnmap.Draft) -> str:
    told = "; ".join(f"{name}: {seen.guesses[name].reason}" for name in seen.guesses)
    numbers = f" Numbers alone ({', '.join(draft.dense)}) are no model of embeddings." if draft.dense else ""
    return f"{seen.tables.train[0]}: no column is left to make a feature of.{numbers} Found: {told}."


def _split(seen: _Seen) -> tuple[list[str], tuple[str, ...]]:
    """Lines of the map on the split, and the parts that it gives."""
    tables = seen.tables
    if tables.validation or tables.test:
        names = [name for name in ("train", "validation", "test") if getattr(tables, name)]
        return [f"# no split: {', '.join(names)} have files of their own, and share the vocabulary of train"], tuple(
            names
        )
    every: tuple[str, ...] = ("train", "validation", "test")
    if tables.together is not None:
        return [line("split", "group:0.8,0.1,0.1", f"the rows of a value of {tables.together} stay together")], every
    if seen.time is None:
        return [line("split", "hash:0.8,0.1,0.1", "at random: there is no column of times")], every
    seconds = kinds.seconds(seen.values[seen.time], seen.guesses[seen.time].keys)
    found = columnmap.borders(seconds, seen.values[seen.time].column.counts_D)
    times = ",".join(datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at in found)
    reason = (
        "what comes later is tested, as in use: 80 % of the sample are before the first time, 90 % before the second"
    )
    if len(found) == 1:
        reason, every = (
            "what comes later is tested, as in use; the sample has two times, so nothing validates",
            every[::2],
        )
    return [line("split", f"time:{times}", reason)], every


def _map_lines(seen: _Seen, draft: columnmap.Draft, split: list[str]) -> Iterator[str]:
    tables, taken, how = seen.tables, seen.sample, seen.dialect
    extent = "all rows" if taken.whole else f"{taken.n:,} rows from several places of about {taken.total:,}"
    yield f"# A draft of hpcrec init from {extent} ({taken.n:,} looked at). Read it, change it, then:"
    yield f"#   {prepare_command(tables)}"
    yield line("labels", [tables.label], f"as asked; {seen.label.labels_N.mean():.4g} of the rows have label 1")
    for key, value in seen.label.keys.items():
        yield line(key, value, seen.label.reason)
    if how.is_text:
        yield line("delimiter", how.delimiter, f"cuts {how.share:.2%} of the first lines into {len(how.names)} values")
        yield line("quotes", how.quotes, "some values begin with a double quote" if how.quotes else "no value has any")
        yield line("header", how.header, how.why_header)
        if not how.header:
            yield line("columns", list(how.names), "in the order of the file")
    if seen.marks:
        yield line("empty", list(seen.marks), "found where numbers or ids would be: they stand for missing values")
    if seen.time is not None:
        guess = seen.guesses[seen.time]
        yield line("time", seen.time, f"{guess.reason}; not an input of the model")
        if "format" in guess.keys:
            yield line("time_format", guess.keys["format"], "as its values are written, taken for UTC")
        elif guess.keys.get("unit", "s") != "s":
            yield line("time_unit", guess.keys["unit"], "by how large its values are")
    if tables.together is not None:
        kind = "integer" if seen.values[tables.together].column.kind == "integer" else "text"
        own_files = "group of metrics such as GAUC; rows stay in the files that they are in"
        kept = "was asked to be kept together" if not tables.validation and not tables.test else own_files
        yield line("group", tables.together, kept)
        yield line("group_value", kind, "by the column's type" if kind == "integer" else "hashed: any value will do")
    yield from split
    for section in (draft.dense, draft.sparse, draft.out):
        for lines in section.values():
            yield ""
            yield from lines


def _bad_rows(seen: _Seen, table: TableMap) -> list[str]:
    """What the map refuses of the sample, as a note."""
    maker = Maker(table, numberings(table, {name: Uncounted() for name in table.counted}))
    reader = Reader(table, list(seen.tables.train))
    n, bad, first = 0, 0, ""
    for place in seen.sample.places:
        for block, kept in sample.blocks(reader, place):
            if not kept or n >= sample.ROWS:
                continue
            found = {row: what for row, what in maker.columns(block)[1].found.items() if row < kept}
            n, bad = n + kept, bad + len(found)
            first = first or next((f"column {c}: {text}" if c else text for c, text in found.values()), "")
    if not bad:
        return []
    allowed = min(2 * bad / n, 1.0)
    return [f"{bad:,} of {n:,} rows are bad lines (the first: {first}): prepare with --max-bad {allowed:.2g}."]
