"""Reads the users and films of MovieLens, in any of its layouts, into arrays with one row each.

Row 0 stands for a user or film that is not in the file; row 1 + i is the i-th smallest number. Thousands of lines,
so plain Python.
"""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from hpcrec.data.gather import ends
from hpcrec.data.layout import Column
from hpcrec.errors import DataError
from hpcrec.types import Ints

_AGES = (18, 25, 35, 45, 50, 56)
_GENRES_100K = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_USERS = {"user_id": "key", "userId": "key", "age": "age", "gender": "gender", "occupation": "occupation"}
_USERS |= {"zip": "zip", "zip_code": "zip"}
_ITEMS = {"item_id": "key", "movie_id": "key", "movieId": "key", "movie_title": "title", "title": "title"}
_ITEMS |= {"release_year": "year", "class": "genres", "genres": "genres"}
_Row = dict[str, str]


@dataclass(frozen=True)
class Numbered:
    """A property of each row: ids int64 [rows], 0 where it is missing, below `cardinality`."""

    ids: Ints
    cardinality: int


@dataclass(frozen=True)
class Users:
    """`key` int64 [n], sorted; the others have n + 1 rows. `age` in years, 0 missing."""

    key: Ints
    age: Ints
    columns: dict[str, Numbered]


@dataclass(frozen=True)
class Items:
    """`key` int64 [n], sorted; the others have n + 1 rows. `year` of release, 0 missing."""

    key: Ints
    year: Ints
    columns: dict[str, Numbered]
    genres: Column
    n_genres: int


def sniff(path: Path) -> tuple[str, str]:
    """Delimiter (``::``, tab, ``|`` or ``,``) and first line of a file."""
    with _open(path) as lines:
        first = lines.readline().rstrip("\r\n")
    return next((mark for mark in ("::", "\t", "|") if mark in first), ","), first


def read_users(path: Path) -> Users:
    """Users: number, age, gender, occupation, first two characters of the zip code."""
    layouts = {"::": ("key", "gender", "age", "occupation", "zip"), "|": ("key", "age", "gender", "occupation", "zip")}
    rows = _sorted_rows(path, layouts, _USERS)
    age = np.array([0, *(int(row.get("age", "")) if row.get("age", "").isdigit() else 0 for row in rows)])
    bucket = np.where(age > 0, np.searchsorted(_AGES, age, side="right") + 1, 0)
    return Users(
        key=_keys(rows),
        age=age,
        columns={
            "gender": _number([row.get("gender", "") for row in rows]),
            "age": Numbered(bucket, len(_AGES) + 2),
            "occupation": _number([row.get("occupation", "") for row in rows]),
            "zip_prefix": _number([row.get("zip", "")[:2] for row in rows]),
        },
    )


def read_items(path: Path) -> Items:
    """Films: number, year of release, decade, genres."""
    rows = _sorted_rows(path, {"::": ("key", "title", "genres"), "|": ("key", "title", "date")}, _ITEMS)
    year = np.array([0, *map(_year, rows)])
    genres = [_genres(row) for row in rows]
    names = {name: number for number, name in enumerate(sorted({name for some in genres for name in some}))}
    offsets = ends(np.array([0, *map(len, genres)]))  # row 0, the unknown film, has none
    ids = np.array([names[name] for some in genres for name in some], dtype=np.int64)
    return Items(
        key=_keys(rows),
        year=year,
        columns={
            "release_year": _number([str(y) if y else "" for y in year[1:]]),
            "release_decade": _number([str(y // 10) if y else "" for y in year[1:]]),
        },
        genres=Column(ids, offsets),
        n_genres=max(len(names), 1),
    )


def _open(path: Path) -> TextIO:
    """Text of a file, plain or gzip; Latin-1 where it is not UTF-8 (the original files)."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; change the path.")
    with path.open("rb") as raw:
        opener = gzip.open if raw.read(2) == b"\x1f\x8b" else open
    try:
        with opener(path, "rt", encoding="utf8", newline="") as lines:
            while lines.read(1 << 20):
                pass
        encoding = "utf8"
    except UnicodeDecodeError:
        encoding = "latin-1"
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: the gzip file is cut short or corrupt ({error}); copy it again.") from error
    return opener(path, "rt", encoding=encoding, newline="")


def _rows(path: Path, layouts: Mapping[str, Sequence[str]], names: dict[str, str]) -> Iterator[tuple[int, _Row]]:
    """Line number and values by name of each line."""
    mark, first = sniff(path)
    with _open(path) as lines:
        if mark in layouts:
            columns = layouts[mark]
            for number, line in enumerate(lines, 1):
                values = line.rstrip("\r\n").split(mark)
                if len(values) < len(columns):
                    raise DataError(f"{path}, line {number}: found {len(values)} columns, needed are {len(columns)}.")
                row = dict(zip(columns, values, strict=False))
                if mark == "|" and len(values) == 5 + len(_GENRES_100K):
                    flags = zip(_GENRES_100K, values[5:], strict=True)
                    row["genres"] = "|".join(genre for genre, flag in flags if flag == "1")
                yield number, row
            return
        reader = csv.reader(lines)
        header = [names.get(name.strip(), "") for name in next(reader, [])]
        if "key" not in header:
            raise DataError(f"{path}, line 1: found {first[:80]!r}; a header with one of {sorted(names)} is needed.")
        for values in reader:
            if len(values) != len(header):
                raise DataError(f"{path}, line {reader.line_num}: found {len(values)} columns, allowed {len(header)}.")
            yield reader.line_num, dict(zip(header, values, strict=True))


def _sorted_rows(path: Path, layouts: Mapping[str, Sequence[str]], names: dict[str, str]) -> list[_Row]:
    rows: dict[int, _Row] = {}
    for number, row in _rows(path, layouts, names):
        if not row["key"].isdigit():
            raise DataError(f"{path}, line {number}: found number {row['key']!r}; digits are needed.")
        rows[int(row["key"])] = row
    if not rows:
        raise DataError(f"{path}: found no line with data; at least one is needed.")
    return [rows[key] for key in sorted(rows)]


def _keys(rows: list[_Row]) -> Ints:
    return np.array([int(row["key"]) for row in rows], dtype=np.int64)


def _number(values: list[str]) -> Numbered:
    """Number the distinct values from 1 in sorted order; row 0 and the empty value are 0."""
    places = {value: place for place, value in enumerate(sorted(set(values) - {""}), 1)}
    ids = np.array([0, *(places.get(value, 0) for value in values)], dtype=np.int64)
    return Numbered(ids, len(places) + 1)


def _year(row: _Row) -> int:
    found = re.search(r"\d{4}", row.get("year", "") or row.get("date", "")[-4:])
    found = found or re.search(r"(?<=\()\d{4}(?=\)\s*$)", row.get("title", ""))
    return int(found.group()) if found else 0


def _genres(row: _Row) -> list[str]:
    joined = row.get("genres", "")
    return sorted(set(joined.split("|") if "|" in joined or " " not in joined else joined.split()) - {""})
