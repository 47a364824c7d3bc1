"""What one step asks of one block of a store: rows, bag after bag, and where vectors and gradients lie in messages.

Arrays are the host's, or a device's. Knows rows by number and places in flat arrays; knows no ids, no forms, no MPI.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec import kernels
from hpcrec.embedding.blocks import Block
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Maxima:
    """Bags of one block that are pooled by max.

    Attributes
    ----------
    index : int64 [K]
        Rows of the block, bag after bag.
    offsets : int64 [V + 1]
    value_start, gradient_start : int64 [V]
        First element of each bag's vector in the values, and of its gradient in the gradients; the second is empty in
        evaluation.
    winners : int32 [V, D] or None
        Which of its ids gave each column of a bag, once it was gathered; None in evaluation.
    behind : int
        Where the gradients of single ids are put, [K, D]: behind the messages and the vectors that stay, where every
        block has its turn.
    """

    index: Ints
    offsets: Ints
    value_start: Ints
    gradient_start: Ints
    winners: NDArray[np.int32] | None
    behind: int

    @property
    def elements(self) -> int:
        """Of the gradients of single ids."""
        return 0 if self.winners is None else len(self.index) * self.winners.shape[1]

    def forward(self, rows: Floats, values: Floats) -> None:
        """Rows of the block -> the vector of each bag."""
        kernels.pooled_max(rows, self.index, self.offsets, values, out_start=self.value_start, winners=self.winners)

    def backward(self, gradients: Floats) -> None:
        """Gradient of each bag's vector -> gradients of its ids, behind: zero where another id won."""
        assert self.winners is not None, "this step was routed for evaluation"
        ids_KD = gradients[self.behind : self.behind + self.elements].reshape(len(self.index), self.winners.shape[1])
        kernels.pooled_max_backward(
            self.winners, self.offsets, gradients[: self.behind], ids_KD, source_start=self.gradient_start
        )


@dataclass(frozen=True)
class Sums:
    """Of a step's gradients, those that are sums of several steps' ([HET]); of a block that learns by an Adagrad.

    Attributes
    ----------
    ticks : int64 [U]
        By distinct row: the most steps that one of its gradients is the sum of.
    squares : float [S]
        By source of a gradient: the sum of its steps' mean squares over all columns, for an accumulator a row; for one
        an element, what the gradient's own squares are to be multiplied by, so that their mean is this.
    """

    ticks: Ints
    squares: Floats


@dataclass(frozen=True)
class Asked:
    """What one step asks of one block.

    Attributes
    ----------
    index : int64 [K]
        Rows of the block, bag after bag; at the end those of bags that are pooled by max.
    offsets : int64 [V + 1]
        Bags in ``index`` whose rows are added.
    value_start : int64 [V] or None
        First element of each bag's vector in the values; None for replicated tables, which have gradients only.
    weights : float [K] or None
    grouping : kernels.Grouping or None
        Occurrences by row, named by their bags, or by their positions where ids carry weights or some bags are pooled
        by max; None where no gradients will come.
    source_start : int64 [V] or [K]
        First element of the gradient of each bag, or of each position's bag (of max: its own), in the gradients.
    maxima : Maxima or None
        Bags that are pooled by max; None where there are none.
    sums : Sums or None
        None where every gradient is of one step.
    """

    index: Ints
    offsets: Ints
    value_start: Ints | None
    weights: Floats | None
    grouping: kernels.Grouping | None
    source_start: Ints
    maxima: Maxima | None = None
    sums: Sums | None = None


def with_rows(
    asked: Asked,
    rows: Ints,
    start: Ints,
    *,
    train: bool,
    device: kernels.Device | None,
    ticks: Ints | None = None,
    squares: Floats | None = None,
) -> Asked:
    """The same, and single rows, each like a bag of its own.

    Parameters
    ----------
    asked : Asked
        Arrays are the device's, where there is one; so are those of what is returned.
    rows : int64 [N]
        Of the block; the host's.
    start : int64 [N]
        First element of each in the values that are gathered, or with ``train`` in the gradients that are learned.
    ticks, squares : int64 [N] and float [N], optional
        Of gradients that may be sums of several steps' (``Sums``); the host's, and no device's.
    """
    if not len(rows):
        return asked
    n, maxima = len(rows), asked.maxima
    n_added = len(asked.index) - (0 if maxima is None else len(maxima.index))
    index, offsets, source = (np.asarray(a) for a in (asked.index, asked.offsets, asked.source_start))
    weights = None if asked.weights is None else np.asarray(asked.weights)
    by_position = weights is not None or maxima is not None
    index = np.insert(index, n_added, rows) if n_added < len(index) else np.concatenate([index, rows])
    if weights is not None:
        weights = np.insert(weights, n_added, np.ones(n, weights.dtype))
    offsets = np.concatenate([offsets, offsets[-1] + 1 + np.arange(n)])
    value_start, grouping = np.zeros(0, np.int64) if asked.value_start is None else np.asarray(asked.value_start), None
    sums = None
    if train:
        before = n_added if by_position else len(source)
        if ticks is not None and squares is not None and ticks.max() > 1:
            assert device is None, "sums are learned in the host's memory"
            sums = Sums(ticks, np.insert(np.zeros(len(source), squares.dtype), before, squares))
        source = np.insert(source, before, start)
    else:
        value_start = np.concatenate([value_start, start])

    def there(array: Any) -> Any:
        return array if device is None or array is None else device.array(array)

    index, offsets = there(index), there(offsets)
    if train:
        grouping = kernels.group(index, None if by_position else offsets)
        if sums is not None:
            most = np.ones(len(grouping.unique), np.int64)
            np.maximum.at(most, np.searchsorted(grouping.unique, rows), sums.ticks)
            sums = replace(sums, ticks=most)
    return replace(
        asked,
        sums=sums,
        index=index,
        offsets=offsets,
        value_start=there(value_start),
        weights=there(weights),
        grouping=grouping,
        source_start=there(source),
    )


def some_bags(asked: Asked, keep_V: np.ndarray, *, maxima: bool, device: kernels.Device | None) -> Asked:
    """Some of the bags whose rows are added, bool [V], to be gathered; those pooled by max all or not at all."""
    index, offsets, largest = np.asarray(asked.index), np.asarray(asked.offsets), asked.maxima
    n_added, lengths = int(offsets[-1]), np.diff(offsets)
    keep_K = np.repeat(keep_V, lengths)
    behind = index[n_added:] if maxima else index[:0]
    weights = None if asked.weights is None else np.asarray(asked.weights)[:n_added][keep_K]
    if weights is not None:
        weights = np.concatenate([weights, np.ones(len(behind), weights.dtype)])
    starts = asked.value_start
    arrays: dict[str, Any] = {
        "index": np.concatenate([index[:n_added][keep_K], behind]),
        "offsets": np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[keep_V])]),
        "value_start": None if starts is None else np.asarray(starts)[keep_V],
        "weights": weights,
    }
    if device is not None:
        arrays = {name: None if array is None else device.array(array) for name, array in arrays.items()}
    return replace(asked, **arrays, maxima=largest if maxima else None)


def some_rows(asked: Asked, keep_U: np.ndarray, device: kernels.Device | None) -> Asked:
    """Some of the distinct rows, bool [U], to learn from."""
    assert asked.grouping is not None, "it is learned from"
    sums = None if asked.sums is None else replace(asked.sums, ticks=asked.sums.ticks[keep_U])
    return replace(asked, grouping=picked(asked.grouping, keep_U, device), sums=sums)


def rows_between(asked: Asked, rows: Ints, ends: Ints, first: int, device: kernels.Device | None) -> Asked:
    """Some distinct rows next to each other, to learn from; all that is asked of them lies between their ends.

    Parameters
    ----------
    rows : int64 [M]
        They, the host's; ``index`` too of what is returned.
    ends : int64 [M + 1]
        Of the grouping's segments those of these rows; the host's.
    first : int
        The number of the first of them among the distinct rows.
    """
    assert asked.grouping is not None, "it is learned from"
    segments, order = ends - ends[0], asked.grouping.order[int(ends[0]) : int(ends[-1])]
    grouping = kernels.Grouping(rows, segments if device is None else device.array(segments), order)
    sums = asked.sums and replace(asked.sums, ticks=asked.sums.ticks[first : first + len(rows)])
    return replace(asked, index=rows, grouping=grouping, sums=sums)


def picked(grouping: kernels.Grouping, keep: np.ndarray, device: kernels.Device | None) -> kernels.Grouping:
    """Some of its rows, bool [U], with all their occurrences."""
    ends: Ints = np.asarray(grouping.segments)
    lengths = ends[1:] - ends[:-1]
    segments = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[keep])])
    kept = np.asarray(grouping.unique)[keep], segments, np.asarray(grouping.order)[np.repeat(keep, lengths)]
    return kernels.Grouping(*(kept if device is None else (device.array(array) for array in kept)))


def without_any(asked: Asked) -> Asked:
    """Nothing, of the same block."""
    none = asked.index[:0]
    return replace(
        asked, index=none, offsets=asked.offsets[:1], value_start=None, weights=None, grouping=kernels.group(none),
        source_start=asked.source_start[:0], maxima=None, sums=None,
    )  # fmt: skip


def pairs_of(blocks: Sequence[Block], asked: Sequence[Asked], *, apart: Sequence[bool]) -> dict[int, int]:
    """By block: one of width 1 that was asked for the same rows and learns by the same rule, to be read along.

    ``apart``: whether a block's rows lie elsewhere than their numbers say, as in a cache.
    """

    def fits(a: int, b: int) -> bool:
        alike = (
            asked[a].index is asked[b].index
            and not (apart[a] or apart[b])  # where rows are cached, each block has other slots for them
            and blocks[a].spec.name == blocks[b].spec.name
        )
        sent = (asked[a].value_start is None) == (asked[b].value_start is None)
        return alike and sent and blocks[a].width > 1 and not blocks[a].needs_norms

    pairs: dict[int, int] = {}
    for b, narrow in enumerate(blocks):
        if narrow.width == 1 and not narrow.needs_norms:
            wide = next((a for a in range(len(blocks)) if a not in pairs and fits(a, b)), None)
            if wide is not None:
                pairs[wide] = b
    return pairs


def with_maxima(asked: Asked, maxima: Maxima, width: int, move: Callable[[Ints], Ints]) -> Asked:
    """The same, and bags of the same block that are pooled by max; ``asked`` has no grouping yet.

    A row has one gradient a step, whatever bags it is in, so both kinds are grouped together, by position; where, that
    ``move`` says.
    """
    n = len(maxima.index)
    index, weights = np.concatenate([asked.index, maxima.index]), asked.weights
    if weights is not None:
        weights = np.concatenate([weights, np.ones(n, weights.dtype)])
    grouping, source_start = None, asked.source_start
    if maxima.winners is not None:
        own_start = maxima.behind + np.arange(n, dtype=np.int64) * width
        source_start = np.concatenate([source_start, own_start])
        grouping = kernels.group(move(index))
    return replace(asked, index=index, weights=weights, grouping=grouping, source_start=source_start, maxima=maxima)
