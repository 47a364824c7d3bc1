"""The definition, in NumPy, of how bags are pooled by max. See ``reference``."""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.kernels.half_rows import Rows
from hpcrec.kernels.reference_half_rows import read_rows
from hpcrec.types import Floats, Ints


def pooled_max(
    rows: Rows,
    index: Ints,
    offsets: Ints,
    out: Floats,
    out_start: Ints | None,
    winners: NDArray[np.int32] | None,
) -> None:
    """A bag begins as its first row; a later one takes over the columns in which it is larger, or the first NaN."""
    width, lengths = rows.shape[1], np.diff(offsets)
    checks.require_offsets("offsets", offsets, index.size)
    checks.require_below("index", index, len(rows))
    to = checks.starts("out_start", out_start, lengths.size, width, out.size)
    largest_VD = np.zeros((lengths.size, width), out.dtype)
    winners_VD = np.zeros((lengths.size, width), np.int32)
    place, bags = 0, np.flatnonzero(lengths)
    while bags.size:
        new, old = read_rows(rows, index[offsets[bags] + place]), largest_VD[bags]
        wins = (new > old) | (np.isnan(new) & ~np.isnan(old)) if place else np.ones(new.shape, bool)
        largest_VD[bags] = np.where(wins, new, old)
        winners_VD[bags] = np.where(wins, place, winners_VD[bags])
        place += 1
        bags = bags[lengths[bags] > place]
    out[to[:, None] + np.arange(width)] = largest_VD
    if winners is not None:
        winners[:] = winners_VD


def pooled_max_backward(
    winners: NDArray[np.int32], offsets: Ints, gradients: Floats, out: Floats, source_start: Ints | None
) -> None:
    """Element d of a bag's gradient goes to column d of the id at place ``winners[v, d]``; the others are zeros."""
    width, lengths = out.shape[1], np.diff(offsets)
    checks.require_offsets("offsets", offsets, len(out))
    start = checks.starts("source_start", source_start, lengths.size, width, gradients.size)
    bags = np.flatnonzero(lengths)
    places = winners[bags].astype(np.int64)
    if ((places < 0) | (places >= lengths[bags, None])).any():
        raise ValueError("winners: a place is outside its bag")
    out[:] = 0
    columns = np.arange(width)
    out[offsets[bags, None] + places, columns] = gradients[start[bags, None] + columns]
