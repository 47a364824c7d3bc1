"""Converts MovieLens ratings with their users and films to a data set: label 1 where the rating reaches a threshold.

Reads comma-separated files with a header line (plain or gzip) and the original layouts: ``::`` (ratings.dat,
users.dat, movies.dat) and u.data, u.user, u.item. Users and films are held in memory; ratings are streamed. No column
is made from a sample's own rating, so nothing gives the label away (``history`` uses earlier ones).
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcrec.data import layout
from hpcrec.data.gather import join, take_column
from hpcrec.data.layout import Column, Columns
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation import text
from hpcrec.preparation.history import NAMES, histories
from hpcrec.preparation.movielens_tables import Items, Users, read_items, read_users, sniff
from hpcrec.preparation.parts import SplitWriter
from hpcrec.preparation.split import Split, Summary
from hpcrec.preparation.text import Block, Source
from hpcrec.types import Feature, Floats, Ints

_YEAR_S = 365.2425 * 86400
_TIME_ZERO_S = 946_684_800  # 2000-01-01
_CONVENTIONS = {
    "ids": "1 + place among the sorted values of the users and items files; 0 missing or unknown",
    "genres": "place among the sorted names in the items file; any number of them",
    "hour, weekday": "of the timestamp, UTC; weekday 0 is Thursday (1970-01-01)",
    "age": "0 missing; 1 under 18, then from 18, 25, 35, 45, 50, 56",
    "dense": "years since 2000 of the rating / 10, age / 100, (release year - 1980) / 50, film's age in years / 50; "
    "missing 0",
    "group": "id of the user",
}


def prepare_movielens(
    ratings: Path | str,
    users: Path | str,
    items: Path | str,
    out_dir: Path | str,
    *,
    threshold: float = 4.0,
    history: int = 0,
    split: Split | None = None,
    progress: bool = False,
) -> Summary:
    """Convert ratings.

    Parameters
    ----------
    ratings, users, items : Path
        Of one layout or several; each is told by its content.
    out_dir : Path
    threshold : float
        Ratings of at least this are label 1.
    history : int
        Above 0: adds the multi-hot features of ``history``, of at most so many items each. All ratings are then
        in memory, about 100 bytes each and 8 a history item.
    split : Split, optional
        ``hash:0.8,0,0.2`` by default: the original files are not in the order of time.
    progress : bool

    Raises
    ------
    DataError
        At the first bad line, naming file and line.
    """
    split = split or Split("hash", (0.8, 0.0, 0.2))
    people, films = read_users(Path(users)), read_items(Path(items))
    source = _open_ratings(Path(ratings))
    digest = hashlib.sha256()
    for path in (users, items):
        digest.update(Path(path).read_bytes())
    if history < 0:
        raise ConfigError(f"prepare movielens: history is {history}; 0 or more items are allowed.")
    make = _Maker(people, films, threshold, history)
    conventions = {**_CONVENTIONS, "label": f"rating >= {threshold}"}
    with SplitWriter(
        out_dir,
        split,
        make.features,
        n_dense=4,
        jagged=("genres", *(NAMES if history else ())),
        optional=("group", "time"),
        total=(total := source.rows() if split.kind == "order" else 0),
        attributes={layout.CONVENTIONS_ATTRIBUTE: conventions},
    ) as out:
        blocks = (make.columns(block) for block in source.blocks(progress, digest))
        if history:
            out.append(make.with_history(join(list(blocks)), split, total))
        else:
            for columns in blocks:
                out.append(columns)
        out.set_attributes({layout.SOURCE_ATTRIBUTE: digest.hexdigest()})
        return out.summary()


def _open_ratings(path: Path) -> Source:
    kind, first = sniff(path)
    if kind == "::":  # Arrow splits at one character: every second column is the nothing between two colons
        return Source(path, columns=("user", "_", "item", "_", "rating", "_", "time"), delimiter=":")
    if kind == "\t" and first.split("\t")[0].isdigit():
        return Source(path, columns=("user", "item", "rating", "time"), delimiter="\t")
    if kind == ",":
        names = {"user_id": "user", "userId": "user", "item_id": "item", "movie_id": "item", "movieId": "item"}
        names |= {"rating": "rating", "timestamp": "time"}
        columns = [names.get(name.strip(), "_") for name in first.split(",")]
        if sorted(set(columns) - {"_"}) == ["item", "rating", "time", "user"]:
            return Source(path, columns=columns, skip_header=True)
    raise DataError(
        f"{path}, line 1: found {first[:80]!r}; allowed are a header with user_id, item_id or movie_id, rating and "
        "timestamp, or lines 'user::item::rating::time' or 'user<tab>item<tab>rating<tab>time'."
    )


@dataclass(frozen=True)
class _Maker:
    """Turns blocks of ratings into columns."""

    users: Users
    items: Items
    threshold: float
    history: int

    @property
    def features(self) -> tuple[Feature, ...]:
        """In the order of the file."""
        cardinality = {
            "user_id": len(self.users.key) + 1,
            "item_id": len(self.items.key) + 1,
            **{name: column.cardinality for name, column in (self.users.columns | self.items.columns).items()},
            "genres": self.items.n_genres,
            "hour": 24,
            "weekday": 7,
            **(dict.fromkeys(NAMES, len(self.items.key) + 1) if self.history else {}),
        }
        return tuple(Feature(name=name, cardinality=n) for name, n in cardinality.items())

    def columns(self, block: Block) -> Columns:
        """Samples of the block's ratings."""
        user = _find(self.users.key, text.integers(block, "user"))
        item = _find(self.items.key, text.integers(block, "item"))
        time_s = text.integers(block, "time")
        try:
            rating = np.asarray(block.columns["rating"].to_numpy(zero_copy_only=False), dtype=np.float64)
        except ValueError:
            good = [_is_number(value) for value in block.columns["rating"].to_pylist()]
            raise block.refuse(good.index(False), "rating", "a number") from None
        if not np.isfinite(rating).all():
            raise block.refuse(int(np.argmin(np.isfinite(rating))), "rating", "a finite number")
        sparse = {"user_id": Column(user), "item_id": Column(item)}
        sparse |= {name: Column(column.ids[user]) for name, column in self.users.columns.items()}
        sparse |= {name: Column(column.ids[item]) for name, column in self.items.columns.items()}
        sparse["genres"] = take_column(self.items.genres, item)
        sparse["hour"] = Column(time_s // 3600 % 24)
        sparse["weekday"] = Column(time_s // 86400 % 7)
        return Columns(
            label=(rating >= self.threshold).astype(np.float32),
            dense=self._dense(user, item, time_s),
            sparse=sparse,
            group=user,
            time=time_s,
        )

    def with_history(self, everything: Columns, split: Split, total: int) -> Columns:
        """All samples, with what their users did besides in the training part."""
        assert everything.time is not None
        in_training = split.assign(0, everything.samples, total) == 0
        users, items = everything.sparse["user_id"].ids, everything.sparse["item_id"].ids
        found = histories(users, items, everything.time, everything.label, in_training, self.history)
        return replace(everything, sparse={**everything.sparse, **found})

    def _dense(self, user: Ints, item: Ints, time_s: Ints) -> Floats:
        rated: NDArray[np.float64] = (time_s - _TIME_ZERO_S) / _YEAR_S
        age, year = self.users.age[user], self.items.year[item]
        known = year > 0
        columns = (
            rated / 10,
            age / 100,
            np.where(known, (year - 1980) / 50, 0.0),
            np.where(known, (rated + 2000 - year) / 50, 0.0),
        )
        return np.stack(columns, axis=1).astype(np.float32)


def _find(key: Ints, values: Ints) -> Ints:
    """1 + place of each value in the sorted `key`; 0 where it is not there."""
    where = np.minimum(np.searchsorted(key, values), len(key) - 1)
    return np.where(key[where] == values, where + 1, 0)


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
