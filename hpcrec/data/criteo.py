"""Converts Criteo click logs (the Kaggle layout) to a data set.

A line has 40 columns apart by tabs, without header: label, 13 integers I1..I13, 26 values C1..C26 of 8 hexadecimal
digits; any but the label may be empty. Conventions, recorded in the files: a missing integer is 0, negative ones are
clipped to 0, then log(x + 1); a missing category is id 0.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from hpcrec.data import files, hashing, layout, text
from hpcrec.data.layout import Column, Columns
from hpcrec.data.split import Split, SplitWriter, Summary
from hpcrec.data.text import Block, Source
from hpcrec.data.vocabulary import FIRST, Counter, Vocabulary
from hpcrec.errors import ConfigError
from hpcrec.types import Feature, Ints

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
_SALT = 0xC417E0
_BINS = 512
_Ids = Callable[[NDArray[np.uint32], NDArray[np.bool_]], Ints]


def prepare_criteo(
    sources: Sequence[Path | str],
    out_dir: Path | str,
    *,
    ids: str = "hash",
    rows_per_feature: int | None = None,
    min_count: int = 1,
    bin_integers: bool = False,
    split: Split | None = None,
    progress: bool = False,
) -> Summary:
    """Convert Criteo files, plain or gzip, in the order given.

    Parameters
    ----------
    sources : sequence of Path
    out_dir : Path
    ids : str
        ``hash``: ids 1 and above are a hash of the value into `rows_per_feature` - 1 rows (one pass). ``vocabulary``:
        id 1 is a value seen less than `min_count` times in the train samples, ids 2 and above are the others by
        falling count (two passes); the values are written to ``vocabulary.h5``, ``/<feature>`` uint32, id 2 first.
    rows_per_feature : int, optional
        Cardinality of each feature; 100,000 for ``hash``, at most this many (no limit by default) for ``vocabulary``.
    min_count : int
        Only for ``vocabulary``.
    bin_integers : bool
        I1..I13 are features too, besides dense inputs: id 0 missing, 1 negative, 2 + x up to 2, then 2 + the integer
        part of the squared logarithm.
    split : Split, optional
        ``order:0.8,0.1,0.1`` by default.
    progress : bool
        Show a bar of bytes.

    Raises
    ------
    DataError
        At the first bad line, naming file, line and column.
    ConfigError
        For options that do not fit.
    """
    if ids not in ("hash", "vocabulary"):
        raise ConfigError(f"prepare criteo: ids {ids!r}; 'hash' and 'vocabulary' are allowed.")
    if ids == "hash" and min_count != 1:
        raise ConfigError(f"prepare criteo: min_count {min_count} with hashed ids; it needs ids='vocabulary'.")
    if min_count < 1 or (rows_per_feature is not None and rows_per_feature <= FIRST):
        raise ConfigError(
            f"prepare criteo: min_count {min_count}, rows_per_feature {rows_per_feature}; at least 1 and {FIRST + 1}."
        )
    if not sources:
        raise ConfigError("prepare criteo: no source file; name at least one.")
    split = split or Split()
    texts = [Source(path, columns=("label", *INTEGERS, *CATEGORIES), delimiter="\t") for path in sources]
    total = sum(source.rows() for source in texts) if split.kind == "order" else 0
    if ids == "vocabulary":
        vocabularies = _count(texts, split, total, min_count, rows_per_feature, progress)
        numbering: dict[str, _Ids] = {name: v.ids for name, v in vocabularies.items()}
        features = [Feature(name=name, cardinality=v.cardinality) for name, v in vocabularies.items()]
        convention = f"vocabulary of the train samples, min_count {min_count}; 0 missing, 1 rare, then by falling count"
    else:
        rows = rows_per_feature or 100_000
        numbering = {name: _hasher(number, rows) for number, name in enumerate(CATEGORIES)}
        features = [Feature(name=name, cardinality=rows) for name in CATEGORIES]
        convention = "hash of the value (splitmix64, salted by feature) into 1..cardinality-1; 0 missing"
    if bin_integers:
        features += [Feature(name=name, cardinality=_BINS) for name in INTEGERS]
    attributes = {
        layout.CONVENTIONS_ATTRIBUTE: {
            "ids": convention,
            "bins": "0 missing, 1 negative, 2 + x to 2, then 2 + floor(log(x)^2)" if bin_integers else "none",
            "dense": "missing 0, negative clipped to 0, log(x + 1); columns " + " ".join(INTEGERS),
        }
    }
    digest = hashlib.sha256()
    with SplitWriter(out_dir, split, features, n_dense=len(INTEGERS), total=total, attributes=attributes) as out:
        for source in texts:
            for block in source.blocks(progress, digest):
                out.append(_columns(block, numbering, bin_integers))
        out.set_attributes({layout.SOURCE_ATTRIBUTE: digest.hexdigest()})
        summary = out.summary()
    if ids == "vocabulary":
        _write_vocabularies(Path(out_dir) / "vocabulary.h5", vocabularies)
    return summary


def _columns(block: Block, numbering: dict[str, _Ids], bin_integers: bool) -> Columns:
    label = text.integers(block, "label")
    wrong = (label != 0) & (label != 1)
    if wrong.any():
        raise block.refuse(int(np.argmax(wrong)), "label", "0 or 1")
    raw = np.stack([text.integers(block, name, missing=0) for name in INTEGERS], axis=1)
    dense = np.log1p(np.maximum(raw, 0)).astype(np.float32)
    sparse = {name: Column(ids(*text.hex_values(block, name))) for name, ids in numbering.items()}
    if bin_integers:
        absent = np.iinfo(np.int64).min
        sparse |= {name: Column(_bins(text.integers(block, name, missing=absent), absent)) for name in INTEGERS}
    return Columns(label.astype(np.float32), dense, sparse)


def _bins(values: Ints, absent: int) -> Ints:
    """Bins as ``prepare_criteo`` says; below ``_BINS``, for the squared logarithm of any 32-bit integer is."""
    squares = np.square(np.log(np.maximum(values, 3))).astype(np.int64)
    out = 2 + np.where(values <= 2, values, np.maximum(squares, 3))
    return np.where(values == absent, 0, np.where(values < 0, 1, np.minimum(out, _BINS - 1)))


def _hasher(number: int, rows: int) -> _Ids:
    salt = np.uint64(hashing.stream(_SALT, number))

    def ids(values: NDArray[np.uint32], missing: NDArray[np.bool_]) -> Ints:
        mixed = hashing.mix_array(values.astype(np.uint64) ^ salt) % np.uint64(rows - 1)
        out = mixed.astype(np.int64) + 1
        out[missing] = 0
        return out

    return ids


def _count(
    texts: Sequence[Source], split: Split, total: int, min_count: int, rows: int | None, progress: bool
) -> dict[str, Vocabulary]:
    """Vocabularies of the train samples."""
    counters = {name: Counter() for name in CATEGORIES}
    seen = 0
    for source in texts:
        for block in source.blocks(progress):
            train = split.assign(seen, block.rows, total) == 0
            seen += block.rows
            for name, counter in counters.items():
                values, missing = text.hex_values(block, name)
                counter.add(values[train & ~missing])
    most = None if rows is None else rows - FIRST
    return {name: counter.finish(min_count, most) for name, counter in counters.items()}


def _write_vocabularies(path: Path, vocabularies: dict[str, Vocabulary]) -> None:
    temporary = files.temporary_beside(path)
    try:
        with h5py.File(temporary, "w", locking=False) as out:
            for name, vocabulary in vocabularies.items():
                out.create_dataset(name, data=vocabulary.values)
        files.publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
