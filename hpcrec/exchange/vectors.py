"""Vectors of streams from one array to another, in the order of their bags or by places of their own. Knows arrays."""

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.bags import ranges
from hpcrec.types import Floats, Ints


def move_vectors(
    source: Floats,
    target: Floats,
    width_Q: Ints,
    n_Q: Ints,
    from_Q: Ints,
    to_Q: Ints,
    *,
    bag_Q: Ints | None = None,
    from_slot: Ints | None = None,
    to_slot: Ints | None = None,
    accumulate: bool = False,
) -> None:
    """Copies, or adds, vectors of streams.

    Parameters
    ----------
    source, target : float, flat
    width_Q, n_Q : int64 [Q]
        Columns of each stream's vectors, and how many it has.
    from_Q, to_Q : int64 [Q]
        Where the stream begins in both.
    bag_Q : int64 [Q], optional
        Where the slots of each one's vectors begin; to be given with these.
    from_slot, to_slot : int64 [V], optional
        The place of each vector in its stream; default: its number.
    """
    for width in np.unique(width_Q).tolist():
        q = np.flatnonzero(width_Q == width)
        number = ranges(np.zeros(len(q), np.int64), n_Q[q])
        bag = number if bag_Q is None else ranges(bag_Q[q], n_Q[q])
        starts = [
            np.repeat(first_Q[q], n_Q[q]) + width * (number if slot is None else slot[bag])
            for first_Q, slot in ((from_Q, from_slot), (to_Q, to_slot))
        ]
        kernels.copy_vectors(
            source, target, width, source_start=starts[0], target_start=starts[1], accumulate=accumulate
        )  # fmt: skip
