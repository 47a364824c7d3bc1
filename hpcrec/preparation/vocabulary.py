"""Vocabularies: counts 64-bit words in a first pass and numbers them for a second one, in bounded memory.

Counting keeps what it has seen sorted, and writes it to disk as a *run* when there is too much. Runs are merged by
streaming; ids are given in one stream over the merged words, since the number of words with each count is known by
then. Looking words up maps what does not fit into memory, and lets its pages go after each block.

Knows no columns and no text: a word is a value as ``cells`` gives it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcrec.data import files
from hpcrec.errors import DataError
from hpcrec.kernels.text import Words
from hpcrec.preparation.mapped import Mapped
from hpcrec.preparation.numbering import Mask
from hpcrec.types import Ints

MISSING, RARE, FIRST = 0, 1, 2  # ids: no value; a value that is not in the vocabulary; the most frequent value
PENDING = 1 << 22  # words that wait to be counted
HELD = 1 << 23  # distinct words of all features that a `Counter` holds, 16 bytes each
HOLD_BYTES = 128 << 20  # vocabularies that are held in memory; larger ones are mapped
_FAN_IN = 128  # runs merged at once
_MERGE_WORDS = 1 << 21  # buffered while merging, over all runs
_BLOCK_WORDS = 1 << 18

Counts = tuple[Words, Ints]


@dataclass(frozen=True)
class Run:
    """Distinct words of one feature, ascending, uint64 [n], then their counts, int64 [n], from a byte of a file on."""

    path: Path
    offset: int
    n: int


class Counter:
    """Counts the words of several features; writes runs.

    Parameters
    ----------
    path : Path
        Runs are written to it, with a number added.
    features : sequence of str
    held, pending : int
        See `HELD` and `PENDING`.
    """

    def __init__(self, path: Path, features: Sequence[str], *, held: int = HELD, pending: int = PENDING) -> None:
        self._path, self._most_held, self._most_pending = path, held, pending
        self._pending: dict[str, list[Words]] = {name: [] for name in features}
        self._held: dict[str, Counts] = {name: _nothing() for name in features}
        self._n_pending, self._n_files = 0, 0
        self.runs: dict[str, list[Run]] = {name: [] for name in features}

    def add(self, feature: str, words: Words) -> None:
        """Count these words."""
        self._pending[feature].append(words)
        self._n_pending += len(words)
        if self._n_pending > self._most_pending:
            self._merge()
            if sum(len(words) for words, _ in self._held.values()) > self._most_held:
                self._spill()

    def close(self) -> dict[str, list[Run]]:
        """The runs of each feature; they are on disk."""
        self._merge()
        self._spill()
        return self.runs

    def _merge(self) -> None:
        for name, pending in self._pending.items():
            if pending:
                words, counts = np.unique(np.concatenate(pending), return_counts=True)
                self._held[name] = _added([self._held[name], (words, counts.astype(np.int64))])
                pending.clear()
        self._n_pending = 0

    def _spill(self) -> None:
        path = self._path.with_name(f"{self._path.name}-{self._n_files}.run")
        temporary = files.temporary_beside(path)
        at = 0
        with files.synced(temporary) as out:
            for name, (words, counts) in self._held.items():
                if len(words):
                    self.runs[name].append(Run(path, at, len(words)))
                    at += out.write(words.tobytes()) + out.write(counts.tobytes())
                self._held[name] = _nothing()
        files.publish(temporary, path)
        self._n_files += 1


def merged(runs: Sequence[Run], scratch: Path) -> Iterator[Counts]:
    """Words of all runs, ascending and distinct, with their counts added up; block by block.

    Parameters
    ----------
    runs : sequence of Run
    scratch : Path
        Where runs of runs are written when there are too many to read at once; a number is added.
    """
    level = 0
    while len(runs) > _FAN_IN:
        groups = [runs[i : i + _FAN_IN] for i in range(0, len(runs), _FAN_IN)]
        made = [
            _write(_merged(group), scratch.with_name(f"{scratch.name}-{level}-{i}")) for i, group in enumerate(groups)
        ]
        if level:
            for run in runs:
                run.path.unlink()
        runs, level = made, level + 1
    yield from _merged(runs)
    if level:
        for run in runs:
            run.path.unlink()


def _merged(runs: Sequence[Run]) -> Iterator[Counts]:
    each = max(_MERGE_WORDS // max(len(runs), 1), 1024)
    sources = [_Buffered(run, each) for run in runs]
    try:
        while sources:
            for source in sources:
                source.fill()
            # What is still on disk is above the last buffered word of its run: up to the least of these all is here.
            limits = [source.words[-1] for source in sources if source.more]
            parts = [source.take(min(limits) if limits else None) for source in sources]
            yield _added(parts)
            for source in sources:
                if not source.more and not len(source.words):
                    source.close()
            sources = [source for source in sources if source.more or len(source.words)]
    finally:
        for source in sources:
            source.close()


class _Buffered:
    """A run, read piece by piece."""

    def __init__(self, run: Run, each: int) -> None:
        self._run, self._each, self._read = run, each, 0
        self._file = run.path.open("rb")
        self.words, self.counts = _nothing()

    @property
    def more(self) -> bool:
        """Whether there is more on disk than is buffered."""
        return self._read < self._run.n

    def fill(self) -> None:
        """Read on, once half of the buffer is free."""
        if self.more and len(self.words) <= self._each // 2:
            n = min(self._each, self._run.n - self._read)
            at = self._run.offset + 8 * self._read
            self.words = np.concatenate([self.words, self._part(np.uint64, at, n)])
            self.counts = np.concatenate([self.counts, self._part(np.int64, at + 8 * self._run.n, n)])
            self._read += n

    def take(self, limit: Any) -> Counts:
        """Words up to `limit`, all where it is None; they leave the buffer."""
        n = len(self.words) if limit is None else int(np.searchsorted(self.words, limit, side="right"))
        taken = self.words[:n], self.counts[:n]
        self.words, self.counts = self.words[n:], self.counts[n:]
        return taken

    def close(self) -> None:
        """Close the file."""
        with files.named(self._run.path):
            self._file.close()

    def _part(self, dtype: Any, at: int, n: int) -> Any:
        with files.named(self._run.path):
            self._file.seek(at)
            found = self._file.read(8 * n)
        if len(found) < 8 * n:
            raise DataError(
                f"{self._run.path}: has {at + len(found)} bytes where {at + 8 * n} were written: it was cut short or "
                "replaced. Prepare again with --restart."
            )
        return np.frombuffer(found, dtype)


def number(counts: Iterable[Counts], path: Path, *, min_count: int, most: int | None) -> int:
    """Number words by falling count, equal counts by word; write ``<path>.words``, ``<path>.ids``, ``<path>.values``.

    Parameters
    ----------
    counts : iterable
        Words ascending and distinct, as `merged` gives them.
    path : Path
    min_count : int
        Words counted less often are left out.
    most : int, optional
        At most so many words are kept.

    Returns
    -------
    int
        Words kept: their ids are ``FIRST + i``. ``.words`` has them ascending (uint64), ``.ids`` their ids (int64),
        ``.values`` the words by id, ``FIRST`` first (uint64).
    """
    scratch = path.with_name(path.name + ".counted")
    histogram: Counts = _nothing()  # of counts: at most some 10^5 differ, for any size of data
    with files.named(scratch), scratch.open("wb") as out:
        for words, of_words in counts:
            kept = of_words >= min_count
            out.write(np.stack([words[kept], of_words[kept].view(np.uint64)], axis=1).tobytes())
            values, times = np.unique(of_words[kept].view(np.uint64), return_counts=True)
            histogram = _added([histogram, (values, times.astype(np.int64))])
    values, times = histogram
    first_of = np.cumsum(times[::-1])[::-1] - times  # words with a higher count come before
    total = int(times.sum())
    n = total if most is None else min(total, most)
    targets = [path.with_name(path.name + ending) for ending in (".words", ".ids", ".values")]
    by_id = Mapped.create(targets[2], n)
    with files.synced(targets[0]) as words_out, files.synced(targets[1]) as ids_out:
        for part in _parts(scratch, 16 * _BLOCK_WORDS):
            words, of_words_raw = np.frombuffer(part, np.uint64).reshape(-1, 2).T
            group = np.searchsorted(values, of_words_raw)
            order = np.argsort(group, kind="stable")
            in_group = np.bincount(group, minlength=len(values))
            places = np.empty(len(words), np.int64)
            places[order] = np.arange(len(words)) - np.repeat(np.cumsum(in_group) - in_group, in_group)
            places += first_of[group]
            first_of += in_group
            kept = places < n
            with files.named(targets[0]):
                words_out.write(words[kept].tobytes())
            ids_out.write((places[kept] + FIRST).tobytes())
            by_id.array[places[kept]] = words[kept]
            by_id.drop()
    by_id.flush()
    scratch.unlink()
    return n


class Vocabulary:
    """Looks words up in what `number` wrote. A `Numbering`.

    Parameters
    ----------
    path : Path
        As given to `number`.
    hold_bytes : int
        A larger vocabulary is mapped, not held.
    """

    def __init__(self, path: Path, hold_bytes: int = HOLD_BYTES) -> None:
        self._words = Mapped(path.with_name(path.name + ".words"), np.uint64, hold_bytes // 2)
        self._ids = Mapped(path.with_name(path.name + ".ids"), np.int64, hold_bytes // 2)

    @property
    def cardinality(self) -> int:
        """Ids in use, the missing and the rare one included."""
        return FIRST + len(self._words.array)

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """Ids of words; int64, same length. Each word has one."""
        out = _looked_up(self._words.array, self._ids.array, words)
        self._words.drop()
        self._ids.drop()
        out[missing] = MISSING
        return out, None


class PublishedVocabulary:
    """The same of the words by id, ``FIRST`` first, as a data set's vocabulary.h5 has them. A `Numbering`.

    Parameters
    ----------
    by_id : uint64 [n]
    """

    def __init__(self, by_id: Words) -> None:
        order = np.argsort(by_id)
        self._words, self._ids = by_id[order], order.astype(np.int64) + FIRST
        self.cardinality = FIRST + len(by_id)

    def ids(self, words: Words, missing: Mask) -> tuple[Ints, Mask | None]:
        """See `Vocabulary`."""
        out = _looked_up(self._words, self._ids, words)
        out[missing] = MISSING
        return out, None


def _looked_up(known: Words, ids: Ints, words: Words) -> Ints:
    """The ids of words, given those of ascending ones; `RARE` for the others."""
    if not len(known) or not len(words):
        return np.full(len(words), RARE, dtype=np.int64)
    asked, inverse = np.unique(words, return_inverse=True)  # ascending: neighbours are searched near by
    where = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    found: Ints = np.where(known[where] == asked, ids[where], RARE)[inverse]
    return found


def _parts(path: Path, n_bytes: int) -> Iterator[bytes]:
    """The bytes of a file, in parts of so many."""
    with files.named(path), path.open("rb") as file:
        while part := file.read(n_bytes):
            yield part


def _nothing() -> Counts:
    return np.empty(0, np.uint64), np.empty(0, np.int64)


def _added(parts: Sequence[Counts]) -> Counts:
    """Distinct words of all parts, ascending, and the sums of their counts."""
    words, where = np.unique(np.concatenate([words for words, _ in parts]), return_inverse=True)
    counts = np.concatenate([counts for _, counts in parts])
    # bincount adds in float64: exact below 2^53
    return words, np.bincount(where, weights=counts, minlength=len(words)).astype(np.int64)


def _write(counts: Iterable[Counts], path: Path) -> Run:
    """One run of merged blocks: words and counts are streamed to two files and joined."""
    n = 0
    second = path.with_name(path.name + ".counts")
    with files.named(path), path.open("wb") as out, files.named(second), second.open("wb") as counts_out:
        for words, of_words in counts:
            with files.named(path):
                out.write(words.tobytes())
            counts_out.write(of_words.tobytes())
            n += len(words)
    with files.named(path), path.open("ab") as out:
        for part in _parts(second, 1 << 22):
            out.write(part)
    second.unlink()
    return Run(path, 0, n)
