"""Kernels of a device as backends: of a GPU, and of the emulator that runs the same kernels on the host, for tests.

Both take the same calls as ``native.py``, over arrays of the host or of the device. What runs on no device yet is the
host's kernel. The emulator is a hundred times slower than that, and single-threaded. Knows nothing of what the kernels
compute.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import native, native_messages
from hpcrec.kernels.beside import BesideStep
from hpcrec.kernels.device_array import DeviceArray
from hpcrec.kernels.device_lookup import DeviceLookup
from hpcrec.kernels.device_messages import DeviceMessages
from hpcrec.kernels.device_slots import SlotMap
from hpcrec.kernels.half_rows import Rows, memory, rounding_arguments
from hpcrec.kernels.reference import Grouping
from hpcrec.kernels.rules import RULES, StepNumbers
from hpcrec.types import Floats, Ints


class Device(DeviceLookup, DeviceMessages):
    """Kernels of a device, under the reference's names and signatures; see ``DeviceCalls``."""

    def __getattr__(self, name: str) -> Any:
        """The host's kernel, where the device has none: over copies of the device's arrays, with results on the host.

        It is slow, for arrays of the device: whatever may have been written goes back.
        """
        run = getattr(native if hasattr(native, name) else native_messages, name)

        def by_host(*args: Any) -> Any:
            here = [np.asarray(a) if isinstance(a, DeviceArray) else a for a in args]
            returned = run(*here)
            for a, copied in zip(args, here, strict=True):
                if isinstance(a, DeviceArray):
                    a[:] = copied
            return returned

        return by_host

    def slot_map(self, capacity: int, evict: str, seed: int) -> SlotMap:
        """A map in the device's memory."""
        self.module()
        return SlotMap(self, capacity, evict, seed)

    def group(self, index: Ints, offsets: Ints | None) -> Grouping:
        """See the reference."""
        unique, segments, order = (self.new(index, index.size + extra, np.int64) for extra in (0, 1, 0))
        n_unique = self.call("group", index, offsets, unique, segments, order)
        return Grouping(unique[:n_unique], segments[: n_unique + 1], order)

    def dedup(self, ids: Ints) -> tuple[Ints, Ints]:
        """See the reference."""
        unique, inverse = (self.new(ids, ids.size, np.int64) for _ in range(2))
        return unique[: self.call("dedup", ids, unique, inverse)], inverse

    def partition(self, part: NDArray[np.int32], n_parts: int) -> tuple[Ints, Ints]:
        """See the reference."""
        counts, order = (self.new(part, n, np.int64) for n in (n_parts, part.size))
        self.call("partition", part, counts, order)
        return counts, order

    def permute(self, ids: Ints, rows: int, seed: int, inverse: bool) -> Ints:
        """See the reference."""
        out = self.new(ids, ids.size, np.int64)
        self.call("permute", ids, rows, seed, inverse, out)
        return out

    def hash_ids(self, ids: Ints, rows: int, seed: int) -> Ints:
        """See the reference."""
        out = self.new(ids, ids.size, np.int64)
        self.call("hash_ids", ids, rows, seed, out)
        return out

    def init_rows(self, seed: int, ids: Ints, width: int, column_start: int, scale: float, dtype: np.dtype) -> Floats:
        """See the reference."""
        out = self.new(ids, (ids.size, width), dtype)
        self.call("init_rows", seed, ids, column_start, scale, out)
        return out

    def merge(
        self,
        grouping: Grouping,
        gradients: Floats,
        source_start: Ints,
        width: int,
        weights: Floats | None,
        out: Floats,
    ) -> None:
        """See the reference."""
        self.call("merge", grouping.segments, grouping.order, source_start, weights, gradients, width, out)

    def squared_norm(self, merged: Floats) -> Floats:
        """See the reference."""
        out = self.new(merged, len(merged), merged.dtype)
        self.call("squared_norm", merged, out)
        return out

    def update(
        self,
        rule: str,
        numbers: StepNumbers,
        rows: Rows,
        states: dict[str, Floats],
        unique: Ints,
        merged: Floats,
        norm: Floats | None,
        total_width: int,
    ) -> None:
        """See the reference."""
        self.call(
            "update", memory(rows), unique, merged, *_numbers(rule, numbers, total_width), *_pair(rule, states), norm,
            *rounding_arguments(rows, numbers.step),
        )  # fmt: skip

    def update_sums(self, *_: Any) -> None:
        """See the reference: of no device yet, so stores on one are refused where there is such a sum."""
        raise ValueError("sums of several steps' gradients: no GPU learns from them. Take rows in the host's memory.")

    def merge_update(
        self,
        rule: str,
        numbers: StepNumbers,
        rows: Rows,
        states: dict[str, Floats],
        grouping: Grouping,
        gradients: Floats,
        source_start: Ints,
        weights: Floats | None,
        beside: tuple[BesideStep, StepNumbers] | None,
    ) -> None:
        """See the reference."""
        self.call(
            "merge_update", memory(rows), grouping.unique, grouping.segments, grouping.order, source_start, weights,
            gradients, *_numbers(rule, numbers, rows.shape[1]), *_pair(rule, states),
            *rounding_arguments(rows, numbers.step),
        )  # fmt: skip
        if beside is not None:
            narrow, its = beside
            self.merge_update(rule, its, narrow.rows, narrow.states, grouping, gradients, narrow.source_start,
                              weights, None)  # fmt: skip


def _numbers(rule: str, n: StepNumbers, width: int) -> tuple[int, float, float, float, float, float, float]:
    return RULES[rule].code, n.rate, n.eps, n.rest1, n.rest2, n.bound, width


def _pair(rule: str, states: dict[str, Floats]) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """The states of a rule, in its order, padded to two."""
    found = [states[name] for name in RULES[rule].states]
    return (*found, None, None)[:2]  # type: ignore[return-value]
