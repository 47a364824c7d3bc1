"""From ids of dynamic tables to rows, as soon as messages have arrived: what follows knows of rows alone.

The messages name ids. All that a step asks of a family of dynamic tables, whoever asks, is one batch of distinct ids,
ascending: so who gets the last rows depends on no form, no order of messages and no number of dense ranks. Their rows
are written behind the messages, as if the dense ranks had sent those. Knows messages and the rows of one holder; knows
no MPI.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.dynamic import DynamicRows
from hpcrec.embedding.store import RowStore
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.wire import Header, cumulative
from hpcrec.kernels import Coding
from hpcrec.types import Ints


class RowFinder:
    """Finds the rows of ids at one holder, and gives them rows in training.

    Parameters
    ----------
    store : RowStore
    leg : Leg
        This rank's leg of the layout.
    """

    def __init__(self, store: RowStore, leg: Leg) -> None:
        self._store = store
        self._families: list[tuple[DynamicRows, Ints]] = []
        for name, held in store.dynamic.items():
            entries = [i for i, e in enumerate(leg.entries) if e.family.name == name]
            self._families.append((held, np.array(entries, np.int64)))

    def find(self, received: np.ndarray, headers: Sequence[Header], *, train: bool) -> tuple[np.ndarray, list[Header]]:
        """The messages with rows in place of ids of dynamic tables, and their headers.

        To be called once for each training step, in step order, after the update of the step before.

        Parameters
        ----------
        received : uint8, flat
            The messages.
        headers : sequence of Header
            One a sender.
        train : bool
            Ids without a row may get one; else they are answered with zeros.
        """
        found, joined = list(headers), [received]
        if not self._families:
            return received, found
        size = len(received)
        for held, entries in self._families:
            behind = np.empty(-size % 8, np.uint8)  # rows are read as words
            ids, offsets = _asked(received, headers, entries)
            parts = [behind, self._rows_of(held, ids, train=train).view(np.uint8), _lengths(offsets)]
            found = _moved(found, entries, size + len(behind), len(ids))
            joined += parts
            size += sum(len(part) for part in parts)
        return np.concatenate(joined), found

    def _rows_of(self, held: DynamicRows, ids: Ints, *, train: bool) -> Ints:
        if not train:
            return held.find(ids)
        unique, place = kernels.dedup(ids)
        rows, fresh = held.admit(unique)
        self._store.start_rows(held.family.name, rows[fresh], unique[fresh])
        return rows[place]


def _asked(received: np.ndarray, headers: Sequence[Header], entries: Ints) -> tuple[Ints, Ints]:
    """Ids of these entries of every sender, [K], and offsets of their bags, [V + 1]."""
    asked_PEX = np.zeros((len(headers), len(entries), 11), np.int64)
    for i, h in enumerate(headers):
        asked_PEX[i, :, :4], asked_PEX[i, :, 7:] = h.places_EX[entries, :4], h.places_EX[entries, 4:]
    joined = kernels.unpack(received, asked_PEX.reshape(-1, 11), 1, values=False, gradients=False)
    return joined.index, joined.offsets


def _lengths(offsets: Ints) -> np.ndarray:
    return np.diff(offsets).astype(np.int32).view(np.uint8)


def _moved(headers: Sequence[Header], entries: Ints, ids_at: int, n_ids: int) -> list[Header]:
    """The headers, where these entries' ids begin at byte ``ids_at``, and their lengths behind all of the ids."""
    lengths_at, out = ids_at + 8 * n_ids, []
    for h in headers:
        places_EX = h.places_EX.copy()
        n_E, bags_E = places_EX[entries, 1], places_EX[entries, 3]
        places_EX[entries, 0] = cumulative(8 * n_E, ids_at)[:-1]
        places_EX[entries, 2] = np.where(places_EX[entries, 2] < 0, -1, cumulative(4 * bags_E, lengths_at)[:-1])
        places_EX[entries, 4:] = np.stack([np.full_like(n_E, Coding.PLAIN), 0 * n_E, 8 * n_E, 4 * bags_E], axis=1)
        ids_at, lengths_at = ids_at + 8 * int(n_E.sum()), lengths_at + 4 * int(bags_E.sum())
        out.append(replace(h, places_EX=places_EX))
    return out
