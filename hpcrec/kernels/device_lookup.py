"""A device's kernels that move and pool vectors, under their references' names and signatures."""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.beside import Beside
from hpcrec.kernels.device_calls import DeviceCalls
from hpcrec.kernels.half_rows import HalfRows, Rows, kind_argument, memory, rounding_arguments
from hpcrec.types import Floats, Ints


class DeviceLookup(DeviceCalls):
    """Those of any device."""

    def pooled_gather(
        self,
        rows: Rows,
        index: Ints,
        offsets: Ints,
        out: Floats,
        out_start: Ints | None,
        weights: Floats | None,
        scale: Floats | None,
        beside: Beside | None,
    ) -> None:
        """See the reference."""
        narrow, start = (None, None) if beside is None else (beside.rows.reshape(-1), beside.start)
        self.call(
            "pooled_gather", memory(rows), index, offsets, out, out_start, weights, scale, narrow, start,
            *kind_argument(rows),
        )  # fmt: skip

    def to_half_rows(self, rows: Floats, first_row: int, out: HalfRows) -> None:
        """See the reference."""
        self.call("to_half_rows", rows, first_row, out.bits, *rounding_arguments(out, 0))

    def from_half_rows(self, rows: HalfRows, out: Floats) -> None:
        """See the reference."""
        self.call("from_half_rows", rows.bits, out, *kind_argument(rows))

    def copy_vectors(
        self,
        source: Floats,
        target: Floats,
        width: int,
        n: int,
        source_start: Ints | None,
        target_start: Ints | None,
        accumulate: bool,
        scale: Floats | None,
    ) -> None:
        """See the reference. Vectors that are added, and overlap, have to begin at one place."""
        self.call("copy_vectors", source, target, width, n, source_start, target_start, accumulate, scale)

    def pooled_max(
        self,
        rows: Rows,
        index: Ints,
        offsets: Ints,
        out: Floats,
        out_start: Ints | None,
        winners: NDArray[np.int32] | None,
    ) -> None:
        """See the reference."""
        self.call("pooled_max", memory(rows), index, offsets, out, out_start, winners, *kind_argument(rows))

    def pooled_max_backward(
        self, winners: NDArray[np.int32], offsets: Ints, gradients: Floats, out: Floats, source_start: Ints | None
    ) -> None:
        """See the reference."""
        self.call("pooled_max_backward", winners, offsets, gradients, out, source_start)

    def fm_sums(self, vectors: Floats, sums: Floats, squares: Floats) -> None:
        """See the reference."""
        self.call("fm_sums", vectors, sums, squares)

    def fm_sums_backward(
        self, vectors: Floats, sums_gradient: Floats, squares_gradient: Floats, gradient: Floats
    ) -> None:
        """See the reference."""
        self.call("fm_sums_backward", vectors, sums_gradient, squares_gradient, gradient)

    def dot_interaction(self, first: Floats | None, block: Floats, out: Floats) -> None:
        """See the reference."""
        self.call("dot_interaction", first, block, out)

    def dot_interaction_backward(
        self,
        first: Floats | None,
        block: Floats,
        gradient: Floats,
        first_gradient: Floats | None,
        block_gradient: Floats,
    ) -> None:
        """See the reference."""
        self.call("dot_interaction_backward", first, block, gradient, first_gradient, block_gradient)
