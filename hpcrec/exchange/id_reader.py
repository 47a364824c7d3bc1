"""What all dense ranks would ask of an owner, made from the ids of the global batch, which the owner reads itself.

Knows the layout and one batch; knows no rows and no MPI.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hpcrec.exchange.bags import Received, Splitter, cumulative, weights_by_id
from hpcrec.types import GlobalIds


class IdReader:
    """Makes what all dense ranks would ask of an owner from the ids of the global batch, which it reads itself.

    The data set is columnar, and which samples a batch has is known to every rank. Nothing is written and read again.

    Parameters
    ----------
    splitter : Splitter
        Of this owner alone, of the features that it holds.
    dense : sequence of int
        Dense ranks, in the order of their parts of a batch.
    """

    def __init__(self, splitter: Splitter, dense: Sequence[int]) -> None:
        self._splitter = splitter
        self._dense = np.array(dense, np.int64)

    def received(self, ids: GlobalIds) -> Received:
        """What all of them ask.

        Raises
        ------
        DataError
            An id outside its table.
        """
        first = ids.first_D.tolist()
        splitter = self._splitter
        every = [
            splitter.requests(splitter.columns(ids.bags, first[-1], slice(start, stop)))
            for start, stop in pairwise(first)
        ]
        asking = [d for d in np.argsort(self._dense).tolist() if len(every[d].cells)]
        asked, none = [every[d] for d in asking], np.zeros(0, np.int64)
        cells = [np.column_stack([np.full(len(r.cells), p), r.cells[:, 1:]]) for p, r in enumerate(asked)]
        cells_N4 = np.concatenate([none.reshape(0, 4), *cells])
        weights = np.concatenate([np.zeros(0, np.uint8), *(r.weights for r in asked)])
        entries = splitter.entries
        return Received(
            self._dense[asking],
            np.concatenate([none, *(r.ids for r in asked)]),
            cumulative(np.concatenate([none, *(r.lengths for r in asked)])),
            cells_N4,
            weights_by_id(cells_N4, entries.weighted, weights, splitter.dtype) if entries.carries_weights else None,
        )
