"""Rows for ids of which it is known which batches will ask for them: who is needed last gives way.

As of ``IdMap``, a batch counts once for an id, and what is in the rows is known above. Shapes: K ids of a batch.
"""

from hpcrec.kernels import checks, native_known_map, reference_known_map
from hpcrec.kernels.backend import active
from hpcrec.kernels.id_map import MOST_BATCHES, MOST_ROWS, Admitted, RowMap, checked_ids
from hpcrec.types import Ints

__all__ = ["KnownMap"]


class KnownMap(RowMap):
    """Which id has which row, and who has to go: by Belady's rule, as far as batches are known.

    Each batch is foreseen before it is admitted, up to ``window`` batches before. In ``admit`` first all ids that have
    a row are used. Then the others come, in the order of their next uses, the earliest first, and of one next use in
    the order of the batch. Each is given the next row, and where all are given, that of the id whose next use is the
    latest of all that have one, if its own is earlier; else it gets none, nor do those that follow. An id that no
    batch foreseen asks for has its next use after all others; of equal ones the least recently used goes first, by the
    order in which batches used them. Never one that the batch itself asks for, or others ``in_use``.

    Rows are numbered from 0 without gaps. Nothing depends on threads or time. One call at a time: others wait.

    Parameters
    ----------
    capacity : int
        Rows, at most ``MOST_ROWS``. Only what is used takes memory.
    window : int
        Batches beyond the next one to be admitted that may be foreseen.
    in_use : int
        The last so many batches, the present one among them, are in use: no id of theirs loses its row.

    Raises
    ------
    ValueError
        An argument that is not allowed.

    Notes
    -----
    Source: L. A. Belady, A study of replacement algorithms for a virtual-storage computer (1966), for a request at a
    time: then, with a window that holds all that comes, no choice of rows finds more of the ids that are asked for.
    Here an id may also be left without a row, since it can be read all the same. Ids of one batch are alike: what comes
    after it could tell them apart, and is not looked at, nor does a row go in the batch that uses it. So of batches of
    many ids a little more could be found.
    """

    def __init__(self, *, capacity: int, window: int, in_use: int = 1) -> None:
        capacity = checks.whole("capacity", capacity, 1, MOST_ROWS)
        window = checks.whole("window", window, 1, checks.WIDEST)
        in_use = checks.whole("in_use", in_use, 1, MOST_BATCHES)
        implementation = native_known_map if active() == "native" else reference_known_map
        self._map = implementation.KnownMap(capacity, window, in_use)

    def foresee(self, ids: Ints) -> None:
        """The next batch that is not foreseen yet: any int64 ids [K].

        Raises
        ------
        ValueError
            ``window`` + 1 batches are foreseen and not admitted.
        """
        self._map.foresee(checked_ids(ids))

    def admit(self, ids: Ints) -> Admitted:
        """Rows of the first batch that is foreseen and not admitted, with the ids [K] with which it was foreseen.

        Raises
        ------
        ValueError
            None is, or the ids are others.
        """
        return self._admit(ids)

    def forget(self) -> None:
        """Batches that are foreseen and not admitted do not come; ids keep their rows."""
        self._map.forget()

    def clear(self) -> None:
        """No id has a row any more; batches that are foreseen still come."""
        self._map.clear()
