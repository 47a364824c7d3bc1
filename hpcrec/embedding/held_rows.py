"""Rows and optimizer state of one block, in arrays of the host, of a device, or of a mapped file.

What lies under a cache, and what steps work in where there is none. Knows arrays and row numbers; not who asks for
them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcrec import kernels
from hpcrec.embedding.blocks import Block, Part
from hpcrec.embedding.frozen import FrozenRows, Values, copied, row_bytes
from hpcrec.types import Floats, Ints

EXPORT_BYTES = 32 << 20  # of ids, rows and states exported at once: whoever reads them asks seldom for Python's lock
Mask = npt.NDArray[np.bool_]
Picked = kernels.IdState | Mask | None  # ids of a dynamic table with their rows; which rows of another's part; all


@dataclass(eq=False)  # it is itself, not its contents
class HeldRows:
    """Rows of one block.

    Attributes
    ----------
    block : Block
    rows : float [N, width]
    states : dict of str to float [N, width] or [N]
    frozen : FrozenRows or None
        Rows as they were, while a checkpoint of them is written.
    changed : bool [N] or None
        Rows that have changed since ``track``; None where nobody asks. Of cached ones, those that were written back.
    """

    block: Block
    rows: Floats
    states: dict[str, Floats]
    frozen: FrozenRows | None = None
    changed: np.ndarray | None = None

    @property
    def columns(self) -> dict[str, Floats]:
        """Rows, under "", and states."""
        return {"": self.rows, **self.states}

    def will_change(self, rows: Any) -> None:
        """These distinct rows [U] are about to change here."""
        frozen = self.frozen  # another thread may thaw it meanwhile
        if frozen is not None:
            frozen.keep(rows)
        if self.changed is not None:
            self.changed[np.asarray(rows)] = True

    def freeze(self, picked: Sequence[tuple[Part, Picked]], spill: Path, budget_bytes: int) -> None:
        """Until ``thaw``, ``read`` gives each of these rows once, as it is now, on another thread than the steps'.

        Of rows that change meanwhile, what does not fit into so much memory goes to the file ``spill``.
        """
        if picked:
            wanted = np.zeros(self.block.rows, bool)
            for part, some in picked:
                if isinstance(some, kernels.IdState):
                    wanted[part.base + some.rows] = True
                else:
                    wanted[part.base : part.base + part.rows] = True if some is None else some
            self.frozen = FrozenRows(self._copies, row_bytes(self.columns), wanted, spill, budget_bytes)

    def _copies(self, rows: slice | Ints) -> Values:
        return copied(self.columns, rows)

    def thaw(self) -> None:
        """What was frozen is read, or will not be."""
        if (frozen := self.frozen) is not None:
            self.frozen = None
            frozen.close()

    def read(self, rows: slice | Ints) -> tuple[Floats, dict[str, Floats]]:
        """Rows and their states, the host's; as they were, where they are frozen."""
        states = self._as_they_are(rows) if self.frozen is None else self.frozen.take(rows)
        return states.pop(""), states

    def _as_they_are(self, rows: slice | Ints) -> Values:
        return {name: np.asarray(array[rows]) for name, array in self.columns.items()}

    def export(self, part: Part, picked: Picked) -> Iterator[tuple[Ints, Floats, dict[str, Floats]]]:
        """Ids, rows and states of a part, in pieces: of all its rows, or of those that are picked."""
        n_rows = len(picked.ids) if isinstance(picked, kernels.IdState) else part.rows
        piece_rows = max(1, EXPORT_BYTES // row_bytes(self.columns))
        for start in range(0, n_rows, piece_rows):
            here = slice(start, min(start + piece_rows, n_rows))
            if isinstance(picked, kernels.IdState):
                yield picked.ids[here], *self.read(part.base + picked.rows[here])
            elif picked is None:
                yield part.ids(np.arange(start, here.stop)), *self.read(slice(part.base + start, part.base + here.stop))
            elif len(rows := start + np.flatnonzero(picked[here])):
                yield part.ids(rows), *self.read(part.base + rows)

    def put(self, where: Ints, rows: Floats | float, states: Mapping[str, float]) -> None:
        """Sets rows by number, and their states; between steps."""
        self.will_change(where)
        self.rows[where] = rows
        for name, value in states.items():
            self.states[name][where] = value

    def place(self, where: Ints, columns: slice, values: Mapping[str, Floats]) -> None:
        """Sets these columns of rows by number, and of those states that are named; "" names the rows."""
        self.will_change(where)
        rising = len(where) > 0 and bool((np.diff(where) == 1).all())  # as where a rank loads what it saved
        whole = columns == slice(0, self.block.width)
        for name, of in values.items():
            held = self.states[name] if name else self.rows
            to = slice(where[0], where[-1] + 1) if rising and isinstance(held, np.ndarray) else where
            if held.ndim == 1 or whole:  # put by far faster
                held[to] = of
            else:
                held[to, columns] = of

    # What a cache lies over.

    def fetch(self, numbers: Ints) -> dict[str, Floats]:
        """Copies of rows and states [U, ...], the host's, to be cached."""
        found: dict[str, Floats] = {}
        for name, array in self.columns.items():
            width = _width(array)
            found[name] = np.empty((len(numbers), *array.shape[1:]), array.dtype)
            kernels.copy_vectors(
                array.reshape(-1), found[name].reshape(-1), width, source_start=np.ascontiguousarray(numbers * width)
            )
        return found

    def write_back(self, numbers: Ints, columns: Mapping[str, Floats]) -> None:
        """Takes rows and states [U, ...] that have changed in a cache."""
        self.will_change(numbers)
        for name, array in self.columns.items():
            width = _width(array)
            kernels.copy_vectors(
                columns[name].reshape(-1), array.reshape(-1), width, target_start=np.ascontiguousarray(numbers * width)
            )


def _width(array: Floats) -> int:
    return int(array.shape[1]) if array.ndim == 2 else 1
