"""Bytes of thresholded sums by formula, and which form a bucket's sum takes because of them. See ``dct``.

::

    N ranks, n entries of w bytes, k of them kept, s bytes a kept entry (its value and its position), sent by each rank:
    whole            2 (N - 1) / N * n w
    allgather        (N - 1) * k s, and 32 (N - 1) for sizes
    reduce_scatter   2 (N - 1) / N * k s, and 64 (N - 1) for sizes

Knows numbers only; every rank computes the same.
"""

import math
from collections.abc import Sequence

from hpcrec.dense.sparse import HEADER_BYTES, Codec, kept_of

_MOST_RANKS_OF_ALLGATHER = 4  # up to here one exchange less is worth more than fewer bytes
_BLOCK = 128  # numbers that are packed with as many bits each
FORMS = ("whole", "allgather", "reduce_scatter")


def position_bytes(n: int, kept: int) -> float:
    """Expected bytes of ``kept`` positions among ``n``: a bit for each of n, or gaps in the bits of a block's widest.

    Gaps are about geometric with mean n / kept, the widest of 128 about log(128) + 0.58 times as wide.
    """
    if not kept:
        return 0.0
    widest = n / kept * (math.log(min(kept, _BLOCK)) + 0.58)
    packed = kept * math.ceil(math.log2(max(widest, 2))) / 8 + math.ceil(kept / _BLOCK)
    return min(n / 8, packed)


def entry_bytes(sizes: Sequence[int], density: float, codec: Codec) -> float:
    """Expected bytes of one rank's part of a bucket: k s of the formulas."""
    kept = [kept_of(n, density) for n in sizes]
    return sum(codec.n_bytes(k) for k in kept) + position_bytes(sum(sizes), sum(kept))


def form_of(sizes: Sequence[int], ranks: int, density: float, codec: Codec, wanted: str) -> str:
    """How a bucket is summed.

    Parameters
    ----------
    sizes : sequence of int
        Entries of its parameters.
    ranks : int
        Dense ranks; the choice on one is that between factors of (N - 1), so that it thresholds as two do.
    wanted : str
        ``auto`` or a form that is not ``whole``.

    Returns
    -------
    str
        ``whole`` where the thresholded sum is not expected to take fewer bytes than the whole one.
    """
    if density == 1:
        return "whole"
    form = wanted
    if form == "auto":
        form = "allgather" if ranks <= _MOST_RANKS_OF_ALLGATHER else "reduce_scatter"
    whole = 2 / ranks * sum(sizes) * codec.dtype.itemsize
    return form if _thresholded(sizes, ranks, density, codec, form) < whole else "whole"


def item_bytes(sizes: Sequence[int], ranks: int, density: float, codec: Codec, wanted: str) -> float:
    """Expected bytes of an element in a sum, as whole ones have them: of all ranks 2 (N - 1) times so many are sent.

    Parameters as of ``form_of``; those of one bucket stand for all.
    """
    form = form_of(sizes, ranks, density, codec, wanted)
    if form == "whole":
        return float(codec.dtype.itemsize)
    return _thresholded(sizes, ranks, density, codec, form) * ranks / (2 * sum(sizes))


def _thresholded(sizes: Sequence[int], ranks: int, density: float, codec: Codec, form: str) -> float:
    """Bytes of a thresholded sum that a rank sends, in factors of (N - 1)."""
    part = entry_bytes(sizes, density, codec)
    return part + HEADER_BYTES if form == "allgather" else 2 / ranks * part + 2 * HEADER_BYTES
