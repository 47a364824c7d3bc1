"""From the parts of a batch to moves: what several features do alike becomes one move.

Knows arrays and the places in them; knows no MPI and no features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.moves import CopyMove, MaxMove, PoolMove, Slab
from hpcrec.exchange.wire import cumulative
from hpcrec.types import Floats, Ints


class CopyMoves:
    """Collects the vectors of form ``pooled`` and makes one move for each (group, width, how parts of a bag meet).

    The last is ``set`` where bags are whole, ``add``, or ``max``.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, str], list[tuple[Ints, ...]]] = {}
        self._scales: dict[tuple[int, int, str], list[tuple[int, Floats | None]]] = {}

    def add(
        self,
        key: tuple[int, int, str],
        value_start: int,
        gradient_start: int,
        leaf_start: Ints,
        scale: Floats | None,
    ) -> None:
        """One stream: its vectors lie one after the other on the wire, at ``leaf_start`` in the leaf."""
        steps = np.arange(len(leaf_start), dtype=np.int64) * key[1]
        self._parts.setdefault(key, []).append((value_start + steps, gradient_start + steps, leaf_start))
        self._scales.setdefault(key, []).append((len(leaf_start), scale))

    def finish(self, dtype: np.dtype, *, train: bool) -> list[CopyMove | MaxMove]:
        """The moves."""
        moves: list[CopyMove | MaxMove] = []
        for key, parts in self._parts.items():
            group, width, meets = key
            values, gradients, leaves = (np.concatenate(column) for column in zip(*parts, strict=True))
            if meets == "max":
                bags = kernels.group(leaves)  # stable: the parts of a bag stay in the order of their owners
                winners = np.empty((len(bags.unique), width), np.int32) if train else None
                moves.append(
                    MaxMove(
                        group, width, values[bags.order], gradients[bags.order], bags.segments, bags.unique, winners
                    )
                )
                continue
            scales = self._scales[key]
            scale = None
            if any(s is not None for _, s in scales):
                scale = np.concatenate([np.ones(n, dtype) if s is None else s for n, s in scales])
            moves.append(CopyMove(group, width, meets == "add", values, gradients, leaves, scale))
        return moves


@dataclass(frozen=True, kw_only=True)
class PoolPart:
    """One bundle's share of a ``PoolMove``: the same fields, counted from 0, with lengths instead of offsets."""

    n_unique: int
    row_of: Ints | None
    slabs: Sequence[Slab]
    index: Ints
    lengths: Ints
    leaf_start: Ints
    weights: Floats | None
    scale: Floats | None
    largest: bool


class PoolMoves:
    """Collects bundles of forms ``rows`` and ``replicate``; a move for each leaf group, source of rows and pooling."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int, bool], list[PoolPart]] = {}  # by (group, block of copies or -1, max)

    def add(self, group: int, block: int, part: PoolPart) -> None:
        """One bundle's table; ``block`` is -1 where the rows arrive in the values."""
        self._parts.setdefault((group, block, part.largest), []).append(part)

    def finish(
        self, widths: Sequence[int], replicas: Sequence[Floats], dtype: np.dtype, *, train: bool
    ) -> list[PoolMove]:
        """The moves; ``widths`` by leaf group, ``replicas`` the rows of each block of copies."""
        return [
            _join(parts, group, widths[group], replicas[block] if block >= 0 else None, dtype, train)
            for (group, block, _), parts in self._parts.items()
        ]


def _join(
    parts: Sequence[PoolPart], group: int, width: int, table_rows: Floats | None, dtype: np.dtype, train: bool
) -> PoolMove:
    base = cumulative(np.array([p.n_unique for p in parts], np.int64))
    index = np.concatenate([p.index + b for p, b in zip(parts, base, strict=False)])
    offsets = cumulative(np.concatenate([p.lengths for p in parts]))
    weights = filled([p.weights for p in parts], [len(p.index) for p in parts], dtype)
    largest = parts[0].largest
    by_bag = weights is None and not largest
    return PoolMove(
        group=group,
        width=width,
        table_rows=table_rows,
        row_of=None if table_rows is None else np.concatenate([p.row_of for p in parts if p.row_of is not None]),
        n_unique=int(base[-1]),
        slabs=[replace(s, first=s.first + int(b)) for p, b in zip(parts, base, strict=False) for s in p.slabs],
        index=index,
        offsets=offsets,
        leaf_start=np.concatenate([p.leaf_start for p in parts]),
        weights=weights,
        scale=filled([p.scale for p in parts], [len(p.lengths) for p in parts], dtype),
        grouping=kernels.group(index, offsets if by_bag else None) if train else None,
        largest=largest,
        winners=np.empty((len(offsets) - 1, width), np.int32) if train and largest else None,
    )


def filled(parts: Sequence[Floats | None], lengths: Sequence[int], dtype: np.dtype) -> Floats | None:
    """The parts joined, ones for the missing; None where all are missing."""
    if all(p is None for p in parts):
        return None
    return np.concatenate([np.ones(n, dtype) if p is None else p for p, n in zip(parts, lengths, strict=True)])
