"""How a flat bucket is cut for thresholding: segments by parameter, parts that travel in one message. See ``dct``.

Knows sizes and names; knows neither values nor ranks beyond their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hpcrec.dense.dct_bytes import form_of
from hpcrec.dense.sparse import Codec, codec_for


@dataclass(frozen=True)
class Segment:
    """Entries [at, at + n) of a part: those of a parameter from its entry ``start`` on."""

    name: str
    at: int
    n: int
    start: int = 0

    @property
    def place(self) -> slice:
        """Where it is in its part."""
        return slice(self.at, self.at + self.n)


@dataclass(frozen=True)
class Part:
    """Entries [start, start + n) of a bucket, and its segments, whose ``at`` counts from there."""

    start: int
    n: int
    segments: tuple[Segment, ...]

    @property
    def place(self) -> slice:
        """Where it is in its bucket."""
        return slice(self.start, self.start + self.n)

    @property
    def bounds(self) -> list[int]:
        """Where segments end."""
        return [s.at + s.n for s in self.segments]


@dataclass(frozen=True)
class Layout:
    """How one bucket is summed: ``form`` as in ``dct_bytes``; in one part, or cut into one for each rank."""

    form: str
    codec: Codec
    whole: Part
    ranges: tuple[Part, ...]


def lay_out(
    held: Sequence[tuple[str, int]], dtype: np.dtype, ranks: int, *, values: str, density: float, collective: str
) -> Layout:
    """The layout of a bucket of parameters (name, entries), in order; ``values`` and on as in ``[dense.dct]``."""
    segments: list[Segment] = []
    for name, n in held:
        segments.append(Segment(name, segments[-1].place.stop if segments else 0, n))
    whole = Part(0, sum(n for _, n in held), tuple(segments))
    codec = codec_for(values, dtype)
    ends = [whole.n * r // ranks for r in range(ranks + 1)]
    ranges = tuple(cut(whole, start, stop) for start, stop in pairwise(ends))
    return Layout(form_of([n for _, n in held], ranks, density, codec, collective), codec, whole, ranges)


def cut(whole: Part, start: int, stop: int) -> Part:
    """Entries [start, stop) of a part as one of their own."""
    segments = []
    for s in whole.segments:
        first, last = max(start, s.at), min(stop, s.at + s.n)
        if first < last:
            segments.append(Segment(s.name, first - start, last - first, s.start + first - s.at))
    return Part(whole.start + start, stop - start, tuple(segments))
