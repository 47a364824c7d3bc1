"""Rows of 16-bit elements, which take half of the memory: how they are carried through the calls of kernels.

Kernels read them as float32, exactly, and compute as with float32 rows; only what is written into rows is rounded
(``reference_half_rows`` says how). Knows nothing of what the kernels compute.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.reference_halves import HALF_KINDS
from hpcrec.kernels.reference_mix import mix, word
from hpcrec.types import Floats, Ints

ROW_KINDS = ("bf16", "fp16")
HalfBits = NDArray[np.uint16]  # or a device's array of them


@dataclass(frozen=True, eq=False)
class HalfRows:
    """What may stand wherever kernels take ``rows``.

    Attributes
    ----------
    bits : uint16 [N, D]
        The elements, as their kind has them, on the host or on a device. Updates write into them.
    kind : str
        ``bf16``: the upper half of a float32; ``fp16``: an IEEE half, without a scale.
    seed : int or None
        Updates round stochastically, by random bits that are a function of (seed, step, row, column) alone, so that
        small steps are not lost on average; None: to the nearest, by which steps below half of a last place are lost.
        Arrays of one seed draw the same bits at the same places: give each its own.
    """

    bits: HalfBits
    kind: Literal["bf16", "fp16"]
    seed: int | None = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """N, D."""
        return self.bits.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.bits.nbytes

    def __len__(self) -> int:
        """N."""
        return len(self.bits)

    def __getitem__(self, key: slice | Ints) -> "HalfRows":
        """Some of the rows, which draw the random bits of their new numbers; those of a slice share memory."""
        return HalfRows(self.bits[key], self.kind, self.seed)


Rows = Floats | HalfRows


def memory(rows: Rows) -> NDArray[Any]:
    """The array that rows are in."""
    return rows.bits if isinstance(rows, HalfRows) else rows


def draws(rows: HalfRows, step: int) -> int | None:
    """Names the random bits of a step; None where rows are rounded to the nearest."""
    return None if rows.seed is None else int(mix(mix(word(int(rows.seed))) ^ word(int(step)))[0])


def kind_argument(rows: Rows) -> tuple[int, ...]:
    """What native code is told of rows that it reads, besides their memory."""
    return (HALF_KINDS.index(rows.kind),) if isinstance(rows, HalfRows) else ()


def rounding_arguments(rows: Rows, step: int) -> tuple[int, ...]:
    """What native code is told of rows that it writes, besides their memory: kind, nearest, draws."""
    if not isinstance(rows, HalfRows):
        return ()
    drawn = draws(rows, step)
    return (*kind_argument(rows), drawn is None, drawn or 0)
