"""Tables of width 1 beside others: asked for the same rows, as first-order weights are beside vectors.

Reading or moving both in one pass spares a pass over the ids. Knows nothing of what the kernels compute.
"""

from typing import NamedTuple

from hpcrec.types import Floats, Ints, OptimizerSpec


class Beside(NamedTuple):
    """What ``pooled_gather`` reads too.

    Attributes
    ----------
    rows : float32 or float64 [N, 1]
        float32 beside rows of halves.
    start : int64 [V]
        Element of the output where each bag's vector, one element, lies.
    """

    rows: Floats
    start: Ints


class BesideStep(NamedTuple):
    """What ``merge_update`` moves too.

    Attributes
    ----------
    spec : OptimizerSpec
        Of the same name; its ``lr`` is not read: schedules decide ``lr``.
    rows : float32 or float64 [N, 1]
        float32 beside rows of halves.
    states : dict of str to like rows
    source_start : int64 [S]
        Element of the gradients where that of source s lies.
    lr : float
    """

    spec: OptimizerSpec
    rows: Floats
    states: dict[str, Floats]
    source_start: Ints
    lr: float
