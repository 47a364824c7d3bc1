"""After how many steps rows are asked for again, counted in one pass over a data set in bounded memory.

Of a feature all ids count until there are more than a limit of them; from then on those whose hash is below a bound,
each for as many as it stands for, and the bound falls as more come. Memory is a limit's ids, one feature at a time,
whatever the data set. Batches are taken in the order of the files: a run that shuffles asks for rows in about the same
distances where its windows are short. Knows ids by feature; knows no tables and no bytes. Source: C. Waldspurger et
al., Efficient MRC construction with SHARDS (2015), for what is sampled; ``plan.curves`` for what is made of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcrec.data import hashing, layout
from hpcrec.data.reader import DataSet
from hpcrec.plan.curves import Curve
from hpcrec.types import Floats, Ints

LIMIT = 1 << 20  # ids of a feature that are followed; 60 MB at the most
_BLOCK = layout.CHUNK_SAMPLES * 16  # ids that are read at once, about
_SIZES = 150  # of best fixed sets, at most
_EXACT, _AN_OCTAVE = 32, 16  # steps that are told apart; longer ones fall into so many classes a factor of two


def reuse(
    path: Path,
    batch_size: int,
    tables: Mapping[str, Sequence[str]] | None = None,
    *,
    samples: int | None = None,
    rows_of: Mapping[str, Callable[[Ints], Ints]] | None = None,
) -> dict[str, Curve]:
    """Curves of tables.

    Parameters
    ----------
    path : Path
        A data set file or an index file.
    batch_size : int
        Samples a step, of all ranks together.
    tables : mapping of str to sequence of str, optional
        By name, features whose ids are the same rows; default: each feature alone, by its name.
    samples : int, optional
        Looks at so many from the beginning; all by default.
    rows_of : mapping of str to callable, optional
        By name, how ids become rows; default: they are rows.

    Raises
    ------
    DataError
        A file that cannot be read, departs from the schema or has a value that is not allowed; no such feature.
    UnreadableError
        A file that cannot be read just now.
    """
    found = {}
    with DataSet(path) as data:
        n_samples = data.samples if samples is None else min(samples, data.samples)
        for name, features in (tables or {f.name: (f.name,) for f in data.features}).items():
            as_rows = (rows_of or {}).get(name)
            times = ReuseTimes(max(-(-n_samples // batch_size), 1))
            for sample, ids in _pieces(data, features, n_samples):
                times.add(sample // batch_size, ids if as_rows is None else as_rows(ids))
            found[name] = times.curve()
    return found


def _pieces(data: DataSet, features: Sequence[str], samples: int) -> Iterator[tuple[Ints, Ints]]:
    """Ids in the order of samples, each with the number of its sample."""
    a_sample = sum(data.feature(name).mean_ids for name in features)
    at_once = max(int(_BLOCK / max(a_sample, 1.0)), 1)
    for start in range(0, samples, at_once):
        stop = min(start + at_once, samples)
        read = data.read_ranges([(start, stop)], features, ids_only=True)
        columns = [read.sparse[name] for name in features]
        numbers = np.arange(start, stop)
        of = [numbers if c.offsets is None else np.repeat(numbers, np.diff(c.offsets)) for c in columns]
        sample, ids = np.concatenate(of), np.concatenate([column.ids for column in columns])
        order = np.argsort(sample, kind="stable") if len(features) > 1 else slice(None)
        yield sample[order], ids[order]


class ReuseTimes:
    """Of one stream of ids.

    Parameters
    ----------
    steps : int
        That there will be.
    limit : int
        Ids that are followed, at most.
    """

    def __init__(self, steps: int, limit: int = LIMIT) -> None:
        self.steps, self._limit = steps, limit
        self._keys = np.empty(0, np.uint64)  # of ids that are followed, ascending, and below the bound
        self._first, self._last, self._asked = (np.empty(0, np.int64) for _ in range(3))
        self._below: int | None = None
        top = _class_of(np.array([steps]))[0] + 2
        self._times, self._sums = np.zeros(top), np.zeros(top)  # by class: accesses after such a time, sum of times

    @property
    def rate(self) -> float:
        """Which share of all ids is followed."""
        return 1.0 if self._below is None else self._below / 2.0**64

    def add(self, step: Ints, ids: Ints) -> None:
        """Ids [K] and the steps, never falling, that ask for them."""
        keys = hashing.mix_array(ids)
        if self._below is not None:
            some = keys < np.uint64(self._below)
            keys, step = keys[some], step[some]
        if not len(keys):
            return
        order = np.argsort(keys, kind="stable")
        keys, step = keys[order], step[order]
        again = np.concatenate([[False], (keys[1:] == keys[:-1]) & (step[1:] == step[:-1])])
        keys, step = keys[~again], step[~again]
        head = np.concatenate([[True], keys[1:] != keys[:-1]])
        self._count((step[1:] - step[:-1])[~head[1:]])
        starts = np.flatnonzero(head)
        stops = np.append(starts[1:], len(keys))
        self._merge(keys[starts], step[starts], step[stops - 1], stops - starts)

    def _merge(self, keys: Floats, first: Ints, last: Ints, asked: Ints) -> None:
        """Distinct keys of a piece, when they were asked for first and last in it, and in how many steps."""
        place = np.searchsorted(self._keys, keys)
        known = place < len(self._keys)
        known[known] = self._keys[place[known]] == keys[known]
        at, since = place[known], first[known] - self._last[place[known]]
        self._count(since[since > 0])  # 0: a step that two pieces have a part of
        self._last[at] = last[known]
        self._asked[at] += asked[known] - (since == 0)
        new = ~known
        if not new.any():
            return
        self._keys = np.insert(self._keys, place[new], keys[new])
        self._first = np.insert(self._first, place[new], first[new])
        self._last = np.insert(self._last, place[new], last[new])
        self._asked = np.insert(self._asked, place[new], asked[new])
        if len(self._keys) > self._limit:
            kept = self._limit // 2
            self._below = int(self._keys[kept])
            for name in ("_keys", "_first", "_last", "_asked"):
                setattr(self, name, getattr(self, name)[:kept].copy())

    def _count(self, times: Ints) -> None:
        if len(times):
            of = _class_of(times)
            self._times += np.bincount(of, minlength=len(self._times)) / self.rate
            self._sums += np.bincount(of, times, len(self._times)) / self.rate

    def curve(self) -> Curve:
        """Of all that was added."""
        distinct, n = len(self._keys) / self.rate, self.steps
        edges = np.unique(np.concatenate([_edges(len(self._times)), [n + 1]]))
        edges = edges[edges <= n + 1]
        of = np.minimum(_class_of(edges), len(self._times))
        more = np.append(np.cumsum(self._times[::-1])[::-1], 0.0)[of]  # accesses after `within` steps or more
        sums = np.append(np.cumsum(self._sums[::-1])[::-1], 0.0)[of]
        within = edges - 1
        more[-1] = sums[-1] = 0.0
        # Windows of so many steps in which a row is not asked for: before its first, between two, after its last.
        empty = sums - within * more
        for gaps in (self._first, n - 1 - self._last):
            empty += _beyond(gaps, within - 1) / self.rate
        held = distinct - empty / (n - within + 1)
        held[0], held[-1] = 0.0, distinct
        held = np.maximum.accumulate(np.clip(held, 0.0, distinct))
        asked = (self._times.sum() + distinct) / n
        epoch = np.sort(self._first + n - self._last)  # steps from a row's last use to its first one in the next epoch
        again = (len(epoch) - np.searchsorted(epoch, within, side="right")) / (n * self.rate)
        often = np.sort(self._asked - 1)[::-1] / (n * self.rate)  # reads a step that a row costs which is not held
        left = np.append(np.cumsum(often[::-1])[::-1], 0.0)
        apart = len(left) - 1 - np.searchsorted(often[::-1], (np.arange(1, _EXACT + 1) - 0.5) / (n * self.rate))
        sizes = np.unique(np.concatenate([[0], np.geomspace(1, len(left), _SIZES).astype(np.int64) - 1, apart]))
        top, fixed = sizes / self.rate, left[sizes]
        return Curve(distinct, n, asked, distinct / n, within.astype(float), held, more / n, again, top, fixed)


def _class_of(times: Ints) -> Ints:
    """Which class each time belongs to: those up to ``_EXACT`` have one each."""
    octaves = np.log2(np.maximum(times, _EXACT) / _EXACT)
    return np.where(times < _EXACT, times, _EXACT + np.floor(_AN_OCTAVE * octaves + 1e-9).astype(np.int64))


def _edges(classes: int) -> Ints:
    """The shortest time of each class, from 1 on, each once."""
    longer = np.ceil(_EXACT * 2.0 ** (np.arange(max(classes - _EXACT, 0)) / _AN_OCTAVE) - 1e-6).astype(np.int64)
    return np.unique(np.concatenate([np.arange(1, min(_EXACT, classes)), longer]))


def _beyond(gaps: Ints, limits: Ints) -> Floats:
    """Sum of what gaps have beyond each limit, float [P]."""
    rising = np.sort(gaps)
    first = np.searchsorted(rising, limits, side="right")
    tail = np.append(np.cumsum(rising[::-1], dtype=np.float64)[::-1], 0.0)[first]
    beyond: Floats = tail - limits * (len(rising) - first).astype(np.float64)
    return beyond
