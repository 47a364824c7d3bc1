"""From ids of dynamic tables to rows, when their step begins: what follows knows of rows alone.

The messages name ids. All that a step asks of a family of dynamic tables, whoever asks, is one batch of distinct ids,
ascending: so who gets the last rows depends on no form, no order of messages and no number of dense ranks. Their rows
are written behind the messages, as if the dense ranks had sent those. Knows messages and the rows of one holder; knows
no MPI.

Legend: ``P`` senders, ``E`` entries of dynamic tables, ``N`` pieces: an entry of a sender.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.store import Store
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.wire import Header, cumulative
from hpcrec.kernels import Coding
from hpcrec.types import Ints


class RowFinder:
    """Finds the rows of ids at one holder, and gives them rows in training.

    Parameters
    ----------
    store : Store
    leg : Leg
        This rank's leg of the layout.
    sets : int
        Sets of tables (``embedding.sets``).
    """

    def __init__(self, store: Store, leg: Leg, sets: int = 1) -> None:
        self._store = store
        self._held = list(store.dynamic.values())
        number = {held.family.name: f for f, held in enumerate(self._held)}
        found = [(i, e.family.name) for i, e in enumerate(leg.entries) if number and e.family.name in number]
        self._entries = np.array([i for i, _ in found], np.int64)
        # of those entries, in each set
        self._family_GE = np.array([[number[name_in(g, name)] for _, name in found] for g in range(sets)], np.int64)

    @property
    def any(self) -> bool:
        """Whether this holder has dynamic tables."""
        return bool(self._held)

    def find(self, received: np.ndarray, headers: Sequence[Header], *, train: bool) -> tuple[np.ndarray, list[Header]]:
        """The messages with rows in place of ids of dynamic tables, and their headers.

        To be called once for each training step, in step order, after the update of the step before.

        Parameters
        ----------
        received : uint8, flat
            The messages.
        headers : sequence of Header
            One a sender P.
        train : bool
            Ids without a row may get one; else they are answered with zeros.
        """
        if not self._held:
            return received, list(headers)
        n_entries = len(self._entries)
        places_PEX = np.zeros((len(headers), n_entries, 8), np.int64)
        for p, h in enumerate(headers):
            places_PEX[p] = h.places_EX[self._entries]
        pieces_NX = places_PEX.reshape(-1, 8)
        family_N = self._family_GE[np.array([h.tables_of for h in headers], np.int64)].reshape(-1)
        order = np.argsort(family_N, kind="stable")  # family after family, in each the senders in order
        asked_NX = np.zeros((len(order), 11), np.int64)
        asked_NX[:, :4], asked_NX[:, 7:] = pieces_NX[order, :4], pieces_NX[order, 4:]
        joined = kernels.unpack(received, asked_NX, 1, values=False, gradients=False)
        n_F = np.zeros(len(self._held), np.int64)
        np.add.at(n_F, family_N[order], asked_NX[:, 1])
        ends = cumulative(n_F).tolist()
        rows = np.empty_like(joined.index)
        for held, start, stop in zip(self._held, ends, ends[1:], strict=False):
            rows[start:stop] = self._store.find(held.family.name, joined.index[start:stop], admit=train)
        behind = np.empty(-len(received) % 8, np.uint8)  # rows are read as words
        lengths = np.diff(joined.offsets).astype(np.int32)
        pieces_NX[order] = _places(asked_NX, len(received) + len(behind), len(rows))
        out = []
        for h, places_EX in zip(headers, pieces_NX.reshape(len(headers), n_entries, 8), strict=True):
            moved_EX = h.places_EX.copy()
            moved_EX[self._entries] = places_EX
            out.append(replace(h, places_EX=moved_EX))
        return np.concatenate([received, behind, rows.view(np.uint8), lengths.view(np.uint8)]), out


def _places(asked_NX: Ints, ids_at: int, n_ids: int) -> Ints:
    """Where the pieces are, as a header has them, whose rows begin at byte ``ids_at``, and lengths behind all rows."""
    n_N, bags_N = asked_NX[:, 1], asked_NX[:, 3]
    lengths_N = np.where(asked_NX[:, 2] < 0, -1, cumulative(4 * bags_N, ids_at + 8 * n_ids)[:-1])
    plain_N, none_N = np.full_like(n_N, Coding.PLAIN), np.zeros_like(n_N)
    return np.stack(
        [cumulative(8 * n_N, ids_at)[:-1], n_N, lengths_N, bags_N, plain_N, none_N, 8 * n_N, 4 * bags_N], axis=1
    )
