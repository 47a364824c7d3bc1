"""From the messages of all ranks to what one step asks of each block of a holder's store.

Knows the holder's leg and the geometry of its blocks; knows no MPI, and not what is done with the rows.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.store import Store
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.staged import Mover
from hpcrec.exchange.wire import Header
from hpcrec.exchange.work import as_before, read_maxima, with_maxima
from hpcrec.types import Floats, Ints


class BlockReader:
    """Reads what is asked of one holder, block by block.

    Parameters
    ----------
    store : Store
    leg : Leg
        This rank's leg of the layout.
    pooling : mapping of str to str
        That of each feature.
    weighted_E : bool [E]
        Which entries carry weights.
    sets : int
        Sets of tables (``embedding.sets``): those of one table lie in one block.
    """

    def __init__(
        self, store: Store, leg: Leg, pooling: Mapping[str, str], weighted_E: np.ndarray, sets: int = 1
    ) -> None:
        self._store = store
        self._weighted = bool(weighted_E.any())
        streams = (*leg.streams, *leg.hidden)
        self._entry_S = np.array([s.entry for s in streams], np.int64)
        self._n_sent = len(leg.streams)
        self._valued = leg.n_value_streams
        # By block: its streams, and where their part of each set begins in it, [G, S]; those pooled by max apart.
        self._streams_of: list[tuple[Ints, Ints]] = []
        self._maxima_of: list[tuple[Ints, Ints]] = []
        bags = [leg.entries[s.entry] for s in streams]
        largest = [e.form in ("pooled", "partial") and pooling[e.features[0]] == "max" for e in bags]
        places = [[store.place(name_in(g, s.table)) for g in range(sets)] for s in streams]
        for a in range(len(store.blocks)):
            for of, wanted in ((self._streams_of, False), (self._maxima_of, True)):
                mine = [
                    (s, [found[1].base for found in places_G if found is not None])
                    for s, places_G in enumerate(places)
                    if places_G[0] is not None and places_G[0][0] == a and largest[s] == wanted
                ]
                bases_SG = np.array([bases for _, bases in mine], np.int64).reshape(len(mine), sets)
                of.append((np.array([s for s, _ in mine], np.int64), bases_SG.T))

    def read(
        self,
        received: np.ndarray,
        headers: Sequence[Header],
        value_at: Ints,
        gradient_at: Ints,
        ids_at: int,
        *,
        train: bool,
    ) -> tuple[Asked, ...]:
        """What is asked of each block.

        Parameters
        ----------
        received : uint8, flat
            The messages.
        headers : sequence of Header
            One a sender P.
        value_at, gradient_at : int64 [P, S]
            First element of each stream, those that stay included, in the values and the gradients.
        ids_at : int
            ``Maxima.behind``.
        train : bool
            Whether gradients will come.
        """
        alike: dict[bytes, Asked] = {}
        move, works = Mover(self._store.device), []
        for a in range(len(self._store.blocks)):
            asked = self._asked_of(a, received, headers, value_at, gradient_at, alike, ids_at, move, train=train)
            works.append(move.asked(asked))
        return tuple(works)

    def _asked_of(
        self,
        a: int,
        received: np.ndarray,
        headers: Sequence[Header],
        value_at: Ints,
        gradient_at: Ints,
        alike: dict[bytes, Asked],
        ids_at: int,
        move: Mover,
        *,
        train: bool,
    ) -> Asked:
        """``alike``: what was asked of blocks read before, by what was asked of them; ``ids_at``: ``Maxima.behind``.

        Arrays are the host's; occurrences are grouped where the rows are, which takes the most time.
        """
        streams, bases = self._streams_of[a]
        has_maxima = bool(len(self._maxima_of[a][0]))
        replicated = bool(len(streams)) and self._valued <= streams[0] < self._n_sent  # all of a block, or none
        valued = bool(len(streams)) and not replicated
        asked_PX = self._asked(headers, streams, bases, value_at, gradient_at)
        width = self._store.blocks[a].width
        key = asked_PX[:, :5].tobytes()
        if key in alike and not has_maxima:  # tables of several widths over the same features: listed and sorted once
            return as_before(alike[key], asked_PX, width, values=valued)
        joined = kernels.unpack(received, asked_PX, width, values=valued, gradients=train)
        weights = None
        if self._weighted:
            entries = self._entry_S[streams]
            weights = _join([h.weights(received, e, self._store.dtype) for h in headers for e in entries])
        grouping, source_start = None, joined.gradient_start
        if train:
            assert source_start is not None
            if self._weighted or has_maxima:  # occurrences differ, so that each is told apart, not its bag alone
                source_start = np.repeat(source_start, np.diff(joined.offsets))
            if not has_maxima:
                grouping = kernels.group(move(joined.index), None if self._weighted else move(joined.offsets))
        work = Asked(
            index=joined.index,
            offsets=joined.offsets,
            value_start=joined.value_start,
            weights=weights,
            grouping=grouping,
            source_start=joined.index[:0] if source_start is None else source_start,
        )
        if has_maxima:
            asked_PX = self._asked(headers, *self._maxima_of[a], value_at, gradient_at)
            return with_maxima(work, read_maxima(received, asked_PX, width, ids_at, train=train), width, move)
        alike[key] = work
        return work

    def _asked(
        self, headers: Sequence[Header], streams: Ints, bases_GS: Ints, value_at: Ints, gradient_at: Ints
    ) -> Ints:
        """What ``kernels.unpack`` is to join, [P, 11]: these streams of every sender."""
        asked_PSX = np.empty((len(headers), len(streams), 11), np.int64)
        for i, h in enumerate(headers):
            places_SX = h.places_EX[self._entry_S[streams]]
            asked_PSX[i, :, :4], asked_PSX[i, :, 7:] = places_SX[:, :4], places_SX[:, 4:]
            asked_PSX[i, :, 4] = bases_GS[h.tables_of]
            asked_PSX[i, :, 5], asked_PSX[i, :, 6] = value_at[i, streams], gradient_at[i, streams]
        return asked_PSX.reshape(-1, 11)


def _join(parts: Sequence[Floats]) -> Floats | None:
    return np.concatenate(parts) if parts else None
