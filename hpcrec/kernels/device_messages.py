"""A device's kernels of halves, thresholds, positions and packed numbers, under their references' names."""

from typing import Any

import numpy as np

from hpcrec.kernels.device_calls import DeviceCalls
from hpcrec.kernels.reference_bags import Unpacked
from hpcrec.kernels.reference_halves import HALF_KINDS, Bytes
from hpcrec.types import Floats, Ints


class DeviceMessages(DeviceCalls):
    """Those of any device."""

    def write_halves(self, values: Floats, out: Bytes, kind: str) -> None:
        """See the reference."""
        self.call("write_halves", values, out, HALF_KINDS.index(kind))

    def read_halves(self, data: Bytes, out: Floats, kind: str) -> None:
        """See the reference."""
        self.call("read_halves", data, out, HALF_KINDS.index(kind))

    def threshold_of(self, values: Floats, keep: int) -> float:
        """See the reference."""
        return self.call("threshold_of", values, keep)

    def select_largest(self, values: Floats, keep: int) -> tuple[Ints, Floats]:
        """See the reference."""
        picked = self._picked(values, len(values) * keep)
        self.call("take_largest", values.reshape(-1), values.shape[1], keep, *picked)
        return picked

    def select_above(self, values: Floats, tau: np.float32) -> tuple[Ints, Floats]:
        """See the reference."""
        marks = self._marks(values)
        picked = self._picked(values, self.call("mark_above", values, float(tau), marks))
        self.call("take_marked", values, marks, *picked)
        return picked

    def select_with_feedback(self, gradient: Floats, residual: Floats, tau: np.float32) -> tuple[Ints, Floats]:
        """See the reference."""
        marks = self._marks(gradient)
        picked = self._picked(gradient, self.call("mark_sum", gradient, residual, float(tau), marks))
        self.call("cut_marked", residual, marks, *picked)
        return picked

    def require_rising(self, positions: Ints, n: int) -> None:
        """See the reference."""
        self.call("require_rising", positions, n)

    def expand(self, out: Floats, positions: Ints, values: Floats) -> None:
        """See the reference."""
        self.call("expand", out, positions, values)

    def scatter_add(self, out: Floats, positions: Ints, values: Floats) -> None:
        """See the reference."""
        self.call("scatter_add", out, positions, values)

    def gather(self, values: Floats, positions: Ints) -> Floats:
        """See the reference."""
        out = self.new(values, positions.size, np.float32)
        self.call("gather", values, positions, out)
        return out

    def write_mask(self, positions: Ints, n: int, out: Bytes) -> None:
        """See the reference."""
        self.call("write_mask", positions, n, out)

    def read_mask(self, data: Bytes, k: int, n: int) -> Ints:
        """See the reference."""
        out = self.new(data, k, np.int64)
        self.call("read_mask", data, n, out)
        return out

    def packed_bytes(self, numbers: Ints) -> tuple[int, int]:
        """See the reference."""
        return self.call("packed_bytes", numbers)

    def pack_numbers(self, numbers: Ints, rising: bool, out: Bytes) -> None:
        """See the reference."""
        self.call("pack_numbers", numbers, rising, out)

    def unpack_numbers(self, packed: Bytes, n: int, rising: bool) -> Ints:
        """See the reference."""
        out = self.new(packed, n, np.int64)
        self.call("unpack_numbers", packed, rising, out)
        return out

    def unpack(
        self, message: Bytes, asked: Ints, width: int, n_ids: int, n_bags: int, values: bool, gradients: bool
    ) -> Unpacked:
        """See the reference."""
        index, offsets = (self.new(message, n, np.int64) for n in (n_ids, n_bags + 1))
        starts = [self.new(message, n_bags, np.int64) if wanted else None for wanted in (values, gradients)]
        self.call("unpack", message, asked.tobytes(), width, index, offsets, *starts)
        return Unpacked(index, offsets, *starts)

    def _marks(self, values: Floats) -> Any:
        return self.new(values, -(-values.size // 64), np.int64)

    def _picked(self, values: Floats, k: int) -> tuple[Any, Any]:
        return self.new(values, k, np.int64), self.new(values, k, np.float32)
