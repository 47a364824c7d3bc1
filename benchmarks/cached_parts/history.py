"""Batches of rows by number, dealt by the product's own rule from what batches before have had (``data.affinity``).

Knows rows, their owners and windows of batches; knows nothing of what ranks have copies of, as the rule does.
"""

import numpy as np
from cached_parts import dealing
from cached_parts.placed import Placed

from hpcrec.data.affinity import Affinity, Dealer, Looked
from hpcrec.data.layout import Column, Columns
from hpcrec.data.order import GlobalOrder
from hpcrec.types import Ints

MOST_BATCHES = 10_000


class ByHistory:
    """Dealt batch after batch, one id a table.

    Parameters
    ----------
    placed : Placed
    batch : int
        Samples of a global batch.
    window : int
        Batches after which the table is emptied; 0: never.
    owners : bool
        Whether a rank that owns a row counts as one that had it.
    """

    def __init__(self, placed: Placed, batch: int, window: int, *, owners: bool = True) -> None:
        tables = range(len(placed.rows))
        owner = placed.owner.astype(np.int64)

        def owned(rows: Ints) -> Ints:
            return owner[rows] if owners else np.full(len(rows), -1)

        looked = tuple(Looked(f"t{t}", 0, 1, owned) for t in tables)  # rows of all tables have numbers of their own
        samples = batch * MOST_BATCHES
        order = GlobalOrder(samples, batch, chunk=batch * (window or MOST_BATCHES), window=1, shuffle=False)
        self._dealer, self._ranks, self._batches = Dealer(Affinity(looked, placed.ranks), order), placed.ranks, 0

    def ranks(self, rows_NT: Ints) -> Ints:
        """The rank of each sample of the next batch [N]."""
        nothing = np.empty((len(rows_NT), 0), np.float32)
        sparse = {f"t{t}": Column(np.ascontiguousarray(rows)) for t, rows in enumerate(rows_NT.T)}
        order_N = self._dealer.order(0, self._batches, Columns(nothing, nothing, sparse))
        self._batches += 1
        rank_N = np.empty(len(order_N), np.int64)
        rank_N[order_N] = dealing.contiguous(len(order_N), self._ranks)
        return rank_N
