"""What all dense ranks would ask of an owner, made from the ids of the global batch, which the owner reads itself.

Knows the layout and one batch; knows no rows and no MPI.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hpcrec.comm.topology import Topology
from hpcrec.exchange.bags import Received, Splitter, cumulative, ranges, weights_by_id
from hpcrec.exchange.host_rows import union_of
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.runners import Runners
from hpcrec.types import GlobalIds, Ints


class IdReader:
    """Makes what all dense ranks would ask of an owner from the ids of the global batch, which it reads itself.

    The data set is columnar, and which samples a batch has is known to every rank. Nothing is written and read again.

    Parameters
    ----------
    splitter : Splitter
        Of this owner alone, of the features that it holds.
    dense : sequence of int
        Dense ranks, in the order of their parts of a batch.
    runner_RB : int64 [R, B], optional
        As of ``runners_of``; default: each asks by itself.
    """

    def __init__(self, splitter: Splitter, dense: Sequence[int], runner_RB: Ints | None = None) -> None:
        self._splitter, self._runner_RB = splitter, runner_RB
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
        received = Received(
            self._dense[asking],
            np.concatenate([none, *(r.ids for r in asked)]),
            cumulative(np.concatenate([none, *(r.lengths for r in asked)])),
            cells_N4,
            weights_by_id(cells_N4, entries.weighted, weights, splitter.dtype) if entries.carries_weights else None,
        )
        return received if self._runner_RB is None else asked_together(received, self._runner_RB)


def runners_of(layout: Layout, topology: Topology) -> Ints | None:
    """Who asks this rank for what each rank wants of each bundle, where that is asked together; elsewhere -1.

    int64 [R, B]; None where nothing is.
    """
    forms, owner = layout.bundled(), topology.rank
    if not layout.merged or owner not in layout.legs:
        return None
    runners = Runners(layout, topology.dense, topology.host_of)
    runner_RB = np.full((topology.size, len(forms)), -1, np.int64)
    for dense in topology.dense:
        for b, form in enumerate(forms):
            if runners.merges(form.features, owner, dense):
                runner_RB[dense, b] = runners.of(form.features, owner, dense)
    return runner_RB


def asked_together(received: Received, runner_RB: Ints) -> Received:
    """The same as runners ask it, for their hosts."""
    sender_N, bundle_N = received.senders[received.cells[:, 0]], received.cells[:, 1]
    ids_N, bags_N = received.cells[:, 2], received.cells[:, 3]
    runner_N = runner_RB[sender_N, bundle_N]
    joint, alone = np.flatnonzero(runner_N >= 0), np.flatnonzero(runner_N < 0)
    if not len(joint):
        return received
    at_N, bag_at_N = cumulative(ids_N), cumulative(bags_N)
    asking, number = np.unique(np.column_stack([runner_N, bundle_N])[joint], axis=0, return_inverse=True)
    wanted = received.ids[ranges(at_N[joint], ids_N[joint])]
    union, union_M, _ = union_of(np.repeat(number.reshape(-1), ids_N[joint]), wanted, len(asking))
    cells = np.concatenate(
        [
            np.column_stack([sender_N, bundle_N, ids_N, bags_N])[alone],
            np.column_stack([asking, union_M, union_M]),
        ]
    )
    order = np.lexsort((cells[:, 1], cells[:, 0]))
    alone_K = ranges(at_N[alone], ids_N[alone])
    ids = np.concatenate([received.ids[alone_K], union])
    lengths = np.diff(received.offsets)[ranges(bag_at_N[alone], bags_N[alone])]
    lengths = np.concatenate([lengths, np.ones(len(union), np.int64)])
    new_K = ranges(cumulative(cells[:, 2])[:-1][order], cells[order, 2])
    new_V = ranges(cumulative(cells[:, 3])[:-1][order], cells[order, 3])
    weights = received.weights
    if weights is not None:
        weights = np.concatenate([weights[alone_K], np.ones(len(union), weights.dtype)])[new_K]
    cells = cells[order]
    senders = np.unique(cells[:, 0])
    cells[:, 0] = np.searchsorted(senders, cells[:, 0])
    return Received(senders, ids[new_K], cumulative(lengths[new_V]), cells, weights)
