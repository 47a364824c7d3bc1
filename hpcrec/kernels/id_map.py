"""Rows for ids that nobody has declared: any 64-bit id gets a row when it is first let in, and may lose it again.

The map says which row is whose; what is in the rows, and which owner an id belongs to, is known above. A batch counts
once for an id, however often it has it, so that nothing depends on whether senders have removed repeated ids; the order
of a batch decides who gets the last rows. Shapes: K ids of a batch, N ids that have a row, P ids that are counted.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from hpcrec.kernels import checks, native_id_map, reference_id_map
from hpcrec.kernels.backend import active, native_fits
from hpcrec.kernels.reference_id_map import IdState
from hpcrec.kernels.reference_mix import WORD
from hpcrec.types import Ints

__all__ = ["MOST_ROWS", "Admitted", "Evict", "IdMap", "IdState", "RowMap"]
MOST_ROWS = 2**32 - 1  # native row numbers have 32 bits
MOST_BATCHES = 2**32 - 2  # and so have numbers of batches
Evict = Literal["lru", "lfu", "lightlfu"]
_ids_fit = native_fits("ids: int64[any]")


class Admitted(NamedTuple):
    """What a batch was given.

    Attributes
    ----------
    rows : int64 [K]
        The row of each id; -1 where it has none.
    fresh : int64 [M]
        Places in the batch of ids that had no row and were given one, ascending, the first place of each: what is in
        these rows is another id's, or nobody's.
    """

    rows: Ints
    fresh: Ints


class RowMap:
    """What every map from ids to rows has, whoever is let in and whoever has to go; ``_map`` is an implementation."""

    _map: Any

    def __len__(self) -> int:
        """Ids that have a row."""
        return int(self._map.size)

    @property
    def evicted(self) -> int:
        """Ids that have lost their rows so far."""
        return int(self._map.evicted)

    @property
    def n_bytes(self) -> int:
        """Memory of the map, rows not counted."""
        return int(self._map.n_bytes)

    def find(self, ids: Ints) -> Ints:
        """Rows [K] of any int64 ids [K], -1 where an id has none. Changes nothing."""
        return np.asarray(self._map.find(checked_ids(ids)))

    def _admit(self, ids: Ints) -> Admitted:
        return Admitted(*self._map.admit(checked_ids(ids)))


class IdMap(RowMap):
    """Which id has which row, who is let in, and who has to go.

    Rows are numbered from 0 without gaps. Ids that have a row are found by all threads of ``set_threads``; who is let
    in and who goes is decided one after the other. Nothing depends on the number of threads. One call at a time: others
    wait.

    Parameters
    ----------
    capacity : int or None
        Rows, at most ``MOST_ROWS``, which None stands for. Only what is used takes memory.
    evict : str or None
        Which id loses its row to another where there are no more: ``lru``, the least recently used, or ``lfu``, the one
        that the fewest batches have used since it has its row, and of these the least recently used, or ``lightlfu``:
        ``lfu`` that forgets, see the notes. Never one that the batch itself asks for, or others ``in_use``; where there
        is no other, an id gets no row. None: no id loses its row, and the first come are all that there are.
    admit_from : int
        An id gets a row in the batch that is the ``admit_from``-th to ask for it. 1 lets everyone in.
    pending : int
        Ids without a row of which batches are counted; where there are more, the one that was asked for least recently
        is forgotten.
    admit_probability : float
        An id without a row gets one with this probability in each batch that asks for it: by (``seed``, id, number of
        the batch) alone. In (0, 1]; below 1 only where ``admit_from`` is 1.
    seed : int
        Of the draws; taken modulo 2^64.
    in_use : int
        The last so many batches, the present one among them, are in use: no id of theirs loses its row.

    Raises
    ------
    ValueError
        An argument that is not allowed.

    Notes
    -----
    Under ``lfu`` an id that was asked for often keeps its row long after the last batch that asks for it. Under
    ``lightlfu`` counts end at 15, and age: at the end of a batch with which ids with a row, those that it gave one
    among them, have been used 10 x ``capacity`` times since the start or since the last such batch, each count is
    halved, rounded down, but to no less than 1. Ids of equal counts then go in the order of the last batches that used
    them; of one batch, those that had smaller counts go first, and among these the order stays. So an id that nobody
    asks for has the smallest count after three halvings, and goes before all that have been used since. A halving
    comes by each row up to three times, which is three tenths of a row a use. Such a map can be neither saved nor
    loaded: ``IdState`` has no room for the number of uses since the last halving.
    """

    def __init__(
        self,
        *,
        capacity: int | None = None,
        evict: Evict | None = None,
        admit_from: int = 1,
        pending: int = 1 << 20,
        admit_probability: float = 1.0,
        seed: int = 0,
        in_use: int = 1,
    ) -> None:
        capacity = MOST_ROWS if capacity is None else checks.whole("capacity", capacity, 1, MOST_ROWS)
        admit_from = checks.whole("admit_from", admit_from, 1, checks.WIDEST)
        pending = checks.whole("pending", pending, 1, MOST_ROWS)
        if evict not in (None, "lru", "lfu", "lightlfu"):
            raise ValueError(f"evict is {evict!r}; allowed are lru, lfu, lightlfu and None")
        if not 0.0 < admit_probability <= 1.0:
            raise ValueError(f"admit_probability is {admit_probability}; allowed are numbers above 0 up to 1")
        if admit_from > 1 and admit_probability < 1.0:
            raise ValueError(
                f"admit_from is {admit_from} and admit_probability is {admit_probability}; one of them has to be 1"
            )
        in_use = checks.whole("in_use", in_use, 1, MOST_BATCHES)
        implementation = native_id_map if active() == "native" else reference_id_map
        rules = capacity, evict, admit_from, pending, float(admit_probability), seed & WORD, in_use
        self._map = implementation.IdMap(*rules)
        self._evict, self._counts = evict, admit_from > 1

    def admit(self, ids: Ints) -> Admitted:
        """Rows of a batch: any int64 ids [K], in the order in which they are let in; repeated ones count once."""
        return self._admit(ids)

    def save(self) -> IdState:
        """All that it knows.

        Raises
        ------
        ValueError
            The rule is ``lightlfu``.
        """
        self._refuse_light("save")
        return self._map.save()

    def load(self, state: IdState, *, keep_rows: bool = False) -> None:
        """Goes on from ``save``, of this map or of several joined: ids get the rows 0, 1, ... in the order of the list.

        With ``keep_rows`` they get the rows that the state has, each of 0, 1, ... once. Of a new map only. Lists that
        its rules have no use for (counts and clocks without eviction, pending ids where everyone is let in) are left
        out.

        Raises
        ------
        ValueError
            The rule is ``lightlfu``, the map is in use, an id is there twice, there are more than there is room for, or
            a number that no map has.
        """
        self._refuse_light("load")
        n, n_pending = (len(checks.ints(key, getattr(state, key))) for key in ("ids", "pending_ids"))
        wanted = {"counts": n, "clocks": n} if self._evict else {}
        wanted |= {"rows": n} if keep_rows else {}
        wanted |= {"pending_counts": n_pending, "pending_clocks": n_pending} if self._counts else {}
        for key, size in wanted.items():
            checks.ints(key, getattr(state, key), size)
        checks.whole("clock", state.clock, 0, MOST_BATCHES)
        checks.whole("evicted", state.evicted, 0, checks.LARGEST)
        self._map.load(state, keep_rows=keep_rows)

    def _refuse_light(self, call: str) -> None:
        if self._evict == "lightlfu":
            raise ValueError(f"{call}: evict is 'lightlfu'; allowed are lru, lfu and None, whose maps have states")


def checked_ids(ids: Ints) -> Ints:
    """The same, where a kernel takes them.

    Raises
    ------
    ValueError
        They are not int64 [any].
    """
    return ids if _ids_fit(ids) else checks.ints("ids", ids)
