"""Data sets that towers are measured on: planted groups, of a seed each, and MovieLens with what is known of its users.

``Planted`` data are made where they are wanted, and removed after that: a seed's take half a gigabyte. ``MovieLens`` is
made once for each seed, in a cache; it is made of pairs, to which ``des_parts.shapes`` adds pairs that are none: a half
of each user's pairs, drawn at random, is the user's history (at most ``HISTORY`` of them) and gives no samples, for the
file has no times; a tenth of the samples, some 93,000, are for the test. Each seed has a history, pairs that are none
and a split of its own. ``Criteo`` is cut anew for each seed.
"""

import csv
import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _report import hpcrec
from dct_parts import clicks
from des_parts import shapes

from hpcrec.data.gather import ends
from hpcrec.data.layout import Column, Columns
from hpcrec.preparation.groups import PlantedGroups, planted
from hpcrec.preparation.synthetic import Teacher
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature, Ints

GROUPS, SIZE, RANK, CARDINALITY = 4, 4, 8, 40
TRAIN_BLOCKS, TEST_BLOCKS = 64, 16  # of 65,536 samples: 4.2 million, and 1,048,576
HISTORY, TEST_SHARE = 30, 0.1
FILES = {"pairs": "ml1m_pairs_934k.csv.gz", "items": "ml1m_pairs_items.csv.gz", "users": "ml1m_users.csv.gz"}
USER, ITEM = ("user", "gender", "age", "occupation", "history"), ("item", "genres", "year")

Towers = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Planted:
    """Features in planted groups, each pair by a weight of its own; ``cross`` is the share across groups.

    ``grouped`` False: one group, so that no towers are better than others.
    """

    cross: float
    seed: int
    grouped: bool = True

    @property
    def name(self) -> str:
        """Of its folder, and of its runs."""
        return f"planted-{self.cross:g}-{self.seed}" if self.grouped else f"ungrouped-{self.seed}"

    @property
    def how(self) -> PlantedGroups:
        """What is planted."""
        sizes = {"groups": GROUPS, "size": SIZE} if self.grouped else {"groups": 1, "size": GROUPS * SIZE}
        return PlantedGroups(**sizes, rank=RANK, cross=self.cross if self.grouped else 0.0, cardinality=CARDINALITY)

    @property
    def groups(self) -> Towers:
        """Those planted; without them features in their order."""
        groups = planted(self.how, self.seed).groups
        if self.grouped:
            return groups
        (names,) = groups
        return tuple(names[first : first + SIZE] for first in range(0, len(names), SIZE))

    @contextmanager
    def files(self, cache: Path, blocks: tuple[int, int] = (TRAIN_BLOCKS, TEST_BLOCKS)) -> Iterator[Path]:
        """A folder of train.h5 and test.h5, as long as they are wanted."""
        folder = cache / self.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            teacher = Teacher(planted(self.how, self.seed), self.seed)
            clicks.write(teacher, folder / "train.h5", range(blocks[0]))
            clicks.write(teacher, folder / "test.h5", range(blocks[0], sum(blocks)))
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class MovieLens:
    """Pairs of users and films, as many that are none, history and attributes."""

    source: Path
    seed: int

    @property
    def name(self) -> str:
        """Of its folder, and of its runs."""
        return f"movielens-{self.seed}"

    @property
    def groups(self) -> Towers:
        """What is known of users, and of films."""
        return USER, ITEM

    @contextmanager
    def files(self, cache: Path) -> Iterator[Path]:
        """The folder, made unless it is there."""
        yield _made(cache / f"towers-{self.name}", lambda folder: _movielens(self.source, folder, self.seed))


@dataclass(frozen=True)
class Criteo:
    """The sample of Criteo's logs, some 10,000 lines for training and 2,500 for the test, split by a seed."""

    source: Path
    seed: int

    @property
    def name(self) -> str:
        """Of its folder, and of its runs."""
        return f"criteo-{self.seed}"

    @contextmanager
    def files(self, cache: Path) -> Iterator[Path]:
        """The folder, made unless it is there."""
        words = ["--ids", "vocabulary", "--min-count", "5", "--split", "hash:0.8,0,0.2", "--seed", str(self.seed)]
        source = str(self.source / shapes.FILES["criteo"])
        line = ("prepare", "criteo", *words, source)
        yield _made(cache / f"towers-{self.name}", lambda folder: hpcrec(*line, "--out", str(folder)))


def _made(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder; filled beside its place and renamed where it is not there, so that half of it is never taken."""
    if not folder.exists():
        hidden = folder.with_suffix(".tmp")
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir(parents=True)
        make(hidden)
        hidden.rename(folder)
    return folder


def _movielens(source: Path, folder: Path, seed: int) -> None:
    pairs_N2 = np.loadtxt(source / FILES["pairs"], np.int64, delimiter=",", skiprows=1)
    rng = np.random.default_rng(seed)
    n_users, n_items = pairs_N2.max(0) + 1
    kept = rng.random(len(pairs_N2)) < 0.5
    history = _history(pairs_N2[kept], n_users, rng)
    user_N, item_N = shapes.labelled(pairs_N2, seed)  # pairs, then as many of the same users that are not among them
    sample_N = np.flatnonzero(np.tile(~kept, 2))
    label_N = (sample_N < len(pairs_N2)).astype(np.float32)
    order = rng.permutation(len(sample_N))
    user_N, item_N, label_N = user_N[sample_N][order], item_N[sample_N][order], label_N[order]
    people, (genres, year_I, n_genres, n_years) = _people(source, n_users), _films(source, n_items)
    features = [
        Feature(name="user", cardinality=int(n_users)),
        *(Feature(name=name, cardinality=int(of_U.max()) + 1) for name, of_U in people.items()),
        Feature(name="history", cardinality=int(n_items), mean_ids=_mean_ids(history, user_N)),
        Feature(name="item", cardinality=int(n_items)),
        Feature(name="genres", cardinality=n_genres, mean_ids=_mean_ids(genres, item_N)),
        Feature(name="year", cardinality=n_years),
    ]
    n_test = round(TEST_SHARE * len(label_N))
    for name, some in (("test", slice(None, n_test)), ("train", slice(n_test, None))):
        user, item = user_N[some], item_N[some]
        sparse = {"user": Column(user), **{key: Column(of_U[user]) for key, of_U in people.items()}}
        sparse |= {"history": _taken(history, user), "item": Column(item), "genres": _taken(genres, item)}
        sparse["year"] = Column(year_I[item])
        with Writer(folder / f"{name}.h5", features, n_dense=0, jagged=("history", "genres")) as out:
            out.append(Columns(label_N[some], np.zeros((len(user), 0), np.float32), sparse))


def _history(pairs_N2: Ints, n_users: int, rng: np.random.Generator) -> Column:
    """Items of each user's bag: at most so many of them, drawn at random."""
    order = rng.permutation(len(pairs_N2))
    order = order[np.argsort(pairs_N2[order, 0], kind="stable")]
    user_N, item_N = pairs_N2[order].T
    place_N = np.arange(len(user_N)) - np.searchsorted(user_N, user_N)
    some = place_N < HISTORY
    return Column(item_N[some], ends(np.bincount(user_N[some], minlength=n_users)))


def _taken(bags: Column, which_N: Ints) -> Column:
    """These bags, in this order."""
    assert bags.offsets is not None, "bags have offsets"
    sizes = np.diff(bags.offsets)[which_N]
    offsets = ends(sizes)
    inside = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], sizes)
    return Column(bags.ids[np.repeat(bags.offsets[:-1][which_N], sizes) + inside], offsets)


def _mean_ids(bags: Column, which_N: Ints) -> float:
    """Of these bags."""
    assert bags.offsets is not None, "bags have offsets"
    return float(np.diff(bags.offsets)[which_N].mean())


def _people(source: Path, n_users: int) -> dict[str, Ints]:
    """Attributes of each user, numbered from 1; 0 where nothing is known."""
    found = {name: np.zeros(n_users, np.int64) for name in USER[1:4]}
    with gzip.open(source / FILES["users"], "rt", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    for name, of_U in found.items():
        number = {value: 1 + at for at, value in enumerate(sorted({row[name] for row in rows}))}
        for row in rows:
            if int(row["user_id"]) < n_users:
                of_U[int(row["user_id"])] = number[row[name]]
    return found


def _films(source: Path, n_items: int) -> tuple[Column, Ints, int, int]:
    """Genres and year of each item, and how many of them there are; year 0 where it is not known."""
    with gzip.open(source / FILES["items"], "rt", encoding="utf-8") as lines:
        rows = {int(row["item"]): row for row in csv.DictReader(lines)}
    names = sorted({genre for row in rows.values() for genre in row["genres"].split("|")})
    number = {genre: at for at, genre in enumerate(names)}
    bags = [[number[g] for g in rows[i]["genres"].split("|")] if i in rows else [] for i in range(n_items)]
    said = [re.search(r"\((\d{4})\)\s*$", rows[i]["title"]) if i in rows else None for i in range(n_items)]
    years = {year: 1 + at for at, year in enumerate(sorted({found[1] for found in said if found}))}
    year_I = np.array([years[found[1]] if found else 0 for found in said])
    genres = Column(np.array([g for bag in bags for g in bag], np.int64), ends(np.array([len(bag) for bag in bags])))
    return genres, year_I, len(names), 1 + len(years)


def as_option(towers: Towers) -> str:
    """As a setting writes it."""
    return json.dumps([list(tower) for tower in towers])
