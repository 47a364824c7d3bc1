"""Which samples of a batch each dense rank takes: a function of sizes alone, the same wherever a batch is cut.

Whoever reads a share of a batch, and an owner that reads the ids of a whole one, cut it by the function that the order
of samples was given (``data.order``). Parts are contiguous and follow one another in the order of dense ranks: an owner
takes ids of a part as one piece, and results have their place by its first sample. So sizes may differ and parts may be
empty, but a dealing that is not contiguous (every R-th sample, say) cannot be expressed: ``data.affinity`` puts samples
in another order before. Knows no data and no ranks.
"""

from collections.abc import Callable

import numpy as np

from hpcrec.errors import ConfigError
from hpcrec.types import Ints

Deal = Callable[[int, int], Ints]
"""Samples of a batch, parts -> where the parts begin and the last one ends, [parts + 1]; a pure function."""


def equal_parts(samples: int, parts: int) -> Ints:
    """Sizes that differ by at most 1: the first ``samples % parts`` parts have one more."""
    small, larger = divmod(samples, parts)
    numbers_P = np.arange(parts + 1)
    return numbers_P * small + np.minimum(numbers_P, larger)


def cut(deal: Deal, samples: int, parts: int) -> Ints:
    """What ``deal`` says of a batch.

    Raises
    ------
    ConfigError
        That is no contiguous parts of it.
    """
    said = deal(samples, parts)
    found = np.asarray(said)
    if (
        found.shape != (parts + 1,)
        or found.dtype.kind not in "iu"
        or (found[0], found[-1]) != (0, samples)
        or (np.diff(found.astype(np.int64)) < 0).any()
    ):
        raise ConfigError(
            f"the deal that was handed in cuts a batch of {samples} samples for {parts} dense ranks at {said!r}. "
            f"Allowed: {parts + 1} whole numbers from 0 to {samples}, none below the one before. Change that function, "
            "or hand in none, for equal parts."
        )
    return found.astype(np.int64)
