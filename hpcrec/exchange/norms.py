"""Squared gradient norms of rows whose columns are split over holders. Knows the layout and the owners."""

import numpy as np

from hpcrec.comm.sizes import padded_bytes
from hpcrec.comm.world import World
from hpcrec.embedding.sets import name_in
from hpcrec.exchange.bags import cumulative
from hpcrec.exchange.layout import Layout
from hpcrec.types import Floats


class ColumnNorms:
    """Squared gradient norms over all columns of column-sharded rows, for row-wise Adagrad.

    The holders of a family get the same ids in the same order, so each has the same list of touched rows: they exchange
    own norms, 4 or 8 bytes a row and holder, and add them in column order. One call a step, on every owner, where any
    table needs it.
    """

    def __init__(self, world: World, layout: Layout, dtype: np.dtype) -> None:
        self._world = world
        self._dtype = np.dtype(dtype)
        self._partners: dict[str, list[int]] = {}  # table -> holders with at least one column, in column order
        for family in layout.families:
            for table in family.tables if family.kind == "column" else ():
                spec = layout.tables[table]
                spans = [family.part_columns(spec.width, i) for i in range(len(family.holders))]
                holders = [h for h, (start, stop) in zip(family.holders, spans, strict=True) if start < stop]
                if spec.optimizer.name == "rowwise_adagrad" and len(holders) > 1:
                    self._partners |= {name_in(n, table): holders for n in range(world.topology.table_sets)}

    def sum(self, own: dict[str, Floats]) -> dict[str, Floats]:
        """Norms [U] over all columns, by table; collective over the owners."""
        owners = self._world.owners
        if not self._partners or owners is None:
            return own
        shared = {
            rank: [t for t, holders in self._partners.items() if t in own and rank in holders] for rank in owners.ranks
        }
        counts = [sum(len(own[t]) for t in shared[rank]) for rank in owners.ranks]
        sizes_R = padded_bytes(np.array(counts, np.int64) * self._dtype.itemsize)
        places = cumulative(sizes_R) // self._dtype.itemsize
        sent = owners.message(sizes_R, self._dtype)
        for at, rank in zip(places, owners.ranks, strict=False):
            for table in shared[rank]:
                sent[at : at + len(own[table])] = own[table]
                at += len(own[table])
        received = owners.alltoallv(sent, sizes_R, sizes_R, "gradients")
        cursor = dict(zip(owners.ranks, places[:-1].tolist(), strict=True))
        pieces: dict[tuple[str, int], Floats] = {}
        for rank in owners.ranks:
            for table in shared[rank]:
                pieces[table, rank] = received[cursor[rank] : cursor[rank] + len(own[table])]
                cursor[rank] += len(own[table])
        totals = {}
        for table, norms in own.items():
            if table not in self._partners:  # a copy is read in place of it
                totals[table] = norms
                continue
            totals[table] = np.zeros_like(norms)
            for rank in self._partners[table]:
                totals[table] += pieces[table, rank]
        return totals
