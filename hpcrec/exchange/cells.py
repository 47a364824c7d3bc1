"""What was asked of an owner in one step, block by block: which rows, in which bags, and where their vectors lie.

An owner was asked cell by cell: ids of one entry from one sender. A block of its store holds the rows of some of its
streams. Knows requests as arrays; knows no store and no MPI.

Legend: ``P`` senders, ``E`` entries of this owner, ``S`` its streams, ``I`` cells of one block.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpcrec.embedding.asked import Asked
from hpcrec.exchange.bags import Received, cumulative, ranges
from hpcrec.types import Ints

_LONG_RUN = 1024  # ids, from which a call a run is faster than a number an id


@dataclass(frozen=True)
class Part:
    """Cells of one block, joined.

    ``taken`` are the places of the ids among all.
    """

    index: Ints
    offsets: Ints
    value_start: Ints
    gradient_start: Ints
    taken: Any


@dataclass(frozen=True)
class Those:
    """Cells of some streams: which, whose, of which stream, and where its part begins in the block."""

    cell_I: Ints
    sender_I: Ints
    stream_I: Ints
    base_I: Ints

    @cached_property
    def key(self) -> bytes:
        """The same where the same rows are asked for."""
        return np.concatenate([self.cell_I, self.base_I]).tobytes()


@dataclass(frozen=True)
class Cells:
    """All that was asked in one step, and where each stream of each sender lies in the messages.

    ``may_overwrite``: rows may take the places of the ids. They may where all blocks that are asked for something are
    asked for the same rows, and nothing else reads the ids: no block is pooled by max.
    """

    received: Received
    ids: Ints
    cell_PE: Ints
    sets_P: Ints
    entry_S: Ints
    places: tuple[Ints, Ints]
    may_overwrite: bool = False

    def bags(self, streams: Ints) -> Ints:
        """The bags of these streams among all, in the order of ``of``."""
        cell_PS = self.cell_PE[:, self.entry_S[streams]]
        cell_I = cell_PS[cell_PS >= 0]
        return ranges(cumulative(self.received.cells[:, 3])[cell_I], self.received.cells[cell_I, 3])

    def those(self, streams: Ints, bases_GS: Ints) -> Those:
        """The cells of these streams, sender after sender; rows are counted from where each stream's part begins."""
        cell_PS = self.cell_PE[:, self.entry_S[streams]]
        p_I, i_I = np.nonzero(cell_PS >= 0)
        return Those(cell_PS[p_I, i_I], p_I, streams[i_I], bases_GS[self.sets_P[p_I], i_I])

    def rows(self, those: Those) -> Ints:
        """The rows that they ask for."""
        cells, cell_I = self.received.cells, those.cell_I
        taken = ranges(cumulative(cells[:, 2])[cell_I], cells[cell_I, 2])
        return shifted(self.ids[taken], cells[cell_I, 2], those.base_I, over=True)

    def of(self, those: Those, width: int, *, gradients: bool, before: Asked | None = None) -> Part:
        """What they ask for; ``before``: what was asked of the same rows, in another block."""
        cells, cell_I = self.received.cells, those.cell_I
        ids_I, bags_I = cells[cell_I, 2], cells[cell_I, 3]
        taken: Any = slice(None)
        whole = len(cell_I) == len(cells) and bool((cell_I == np.arange(len(cells))).all())
        if not whole:
            taken = ranges(cumulative(cells[:, 2])[cell_I], ids_I)
        if before is None:
            offsets = self.received.offsets
            if not whole:
                lengths = np.diff(offsets)
                offsets = cumulative(lengths[ranges(cumulative(cells[:, 3])[cell_I], bags_I)])
            index = shifted(self.ids[taken], ids_I, those.base_I, over=self.may_overwrite or not whole)
        else:
            index, offsets = np.asarray(before.index), np.asarray(before.offsets)
        steps = np.arange(len(offsets) - 1) * width
        before_I = cumulative(bags_I)[:-1] * width
        at = [np.repeat(places[those.sender_I, those.stream_I] - before_I, bags_I) + steps for places in self.places]
        return Part(index, offsets, at[0], at[1] if gradients else index[:0], taken)


def shifted(ids: Ints, counts: Ints, by: Ints, *, over: bool = False) -> Ints:
    """The ids, in runs of so many, each with its run's number added; ``over``: they may be overwritten."""
    out, at = ids if over else np.empty_like(ids), 0
    if len(ids) < _LONG_RUN * len(counts):
        return np.add(ids, np.repeat(by, counts), out=out)
    for n, number in zip(counts.tolist(), by.tolist(), strict=True):
        if number or not over:
            np.add(ids[at : at + n], number, out=out[at : at + n])
        at += n
    return out
