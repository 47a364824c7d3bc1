"""Kernels of a device as backends: of a GPU, and of the emulator that runs the same kernels on the host, for tests.

Both take the same calls as ``native.py``, over arrays of the host: they are copied to the device, and what was written
back. Work is in the order of torch's current stream. Arrays are in torch's memory, what kernels need between in the
driver's pool. What runs on no device yet is the host's kernel. The emulator is a hundred times slower than that, and
single-threaded. Knows nothing of what the kernels compute.
"""

import importlib
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcrec.errors import MissingError
from hpcrec.kernels import native, native_messages
from hpcrec.kernels.beside import Beside, BesideStep
from hpcrec.kernels.device_messages import DeviceMessages
from hpcrec.kernels.half_rows import HalfRows, Rows, kind_argument, memory, rounding_arguments
from hpcrec.kernels.reference import Grouping
from hpcrec.kernels.rules import RULES, StepNumbers
from hpcrec.types import Floats, Ints

# Bits of the word in which kernels note what they refused; native/cuda/device.h has the same.
FAULTS = {
    1: "offsets (or segments) do not begin at 0, fall, or do not end at the number of ids",
    2: "an index is outside the rows",
    4: "a start leaves no room for a vector in its array",
    8: "an occurrence names a source that is not there",
    16: "a row to update is outside the table",
    32: "a part is not one of those that there are",
    64: "positions do not rise, or are outside the values",
    128: "data, or marks, are not a mask of so many positions",
}
# Which arguments of a kernel it writes, by their place.
WRITTEN = {
    "pooled_gather": (3,),
    "copy_vectors": (1,),
    "to_half_rows": (2,),
    "from_half_rows": (1,),
    "merge": (6,),
    "squared_norm": (1,),
    "update": (0, 9, 10),
    "merge_update": (0, 13, 14),
    "group": (2, 3, 4),
    "dedup": (1, 2),
    "partition": (1, 2),
    "permute": (4,),
    "hash_ids": (3,),
    "init_rows": (4,),
    "write_halves": (1,),
    "read_halves": (1,),
    "threshold_of": (),
    "take_largest": (3, 4),
    "mark_above": (2,),
    "mark_sum": (1, 3),
    "take_marked": (2, 3),
    "cut_marked": (0, 2, 3),
    "require_rising": (),
    "expand": (0,),
    "scatter_add": (0,),
    "gather": (2,),
    "write_mask": (2,),
    "read_mask": (2,),
}


class Device(DeviceMessages):
    """Kernels of a device, under the reference's names and signatures.

    Parameters
    ----------
    name : str
        Of the native module: ``_cuda`` or ``_emulated``.
    place : str
        Where torch has its memory: ``cuda`` or ``cpu``.
    """

    def __init__(self, name: str, place: str) -> None:
        self._name, self._place = name, place
        self._module: ModuleType | None = None

    def module(self) -> ModuleType:
        """The native module.

        Raises
        ------
        MissingError
            It was not built, or there is no GPU that torch sees.
        """
        if self._module is None:
            try:
                module = importlib.import_module(f"hpcrec.{self._name}")
            except ImportError as error:
                raise MissingError(
                    f"hpcrec.{self._name} cannot be loaded ({error}). `make setup` in a checkout builds _cuda where "
                    "nvcc is on the path (not with MPI=mpich), and _emulated, which is for tests, always"
                ) from error
            import torch

            if self._place == "cuda" and not torch.cuda.is_available():
                raise MissingError(
                    f"there is no GPU that torch {torch.__version__} can use; see `hpcrec doctor`, or run the kernels "
                    "of the host: hpcrec.kernels.use('native')"
                )
            self._module = module
        return self._module

    def available(self) -> bool:
        """Whether its kernels can run here."""
        try:
            self.module()
        except MissingError:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        """The host's kernel, where the device has none."""
        return getattr(native if hasattr(native, name) else native_messages, name)

    def _call(self, name: str, *args: Any) -> Any:
        """Runs a kernel on copies of the arrays, returns what it does; ValueError where it refused something."""
        import torch

        module = self.module()
        there = [torch.tensor(_signed(a), device=self._place) if isinstance(a, np.ndarray) else a for a in args]
        faults = torch.zeros(1, dtype=torch.int32, device=self._place)
        stream = torch.cuda.current_stream().cuda_stream if self._place == "cuda" else 0
        returned = getattr(module, name)(*there, stream, faults)
        found = int(faults.item())  # waits for the kernel
        if found:
            raise ValueError(f"{name}: " + "; ".join(text for bit, text in FAULTS.items() if found & bit))
        for at in WRITTEN[name]:
            if args[at] is not None:
                _signed(args[at])[...] = there[at].cpu().numpy()
        return returned

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
        self._call(
            "pooled_gather", memory(rows), index, offsets, out, out_start, weights, scale, narrow, start,
            *kind_argument(rows),
        )  # fmt: skip

    def to_half_rows(self, rows: Floats, first_row: int, out: HalfRows) -> None:
        """See the reference."""
        self._call("to_half_rows", rows, first_row, out.bits, *rounding_arguments(out, 0))

    def from_half_rows(self, rows: HalfRows, out: Floats) -> None:
        """See the reference."""
        self._call("from_half_rows", rows.bits, out, *kind_argument(rows))

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
        """See the reference. Targets that may repeat add up in order: that is the host's, so far."""
        if accumulate and target_start is not None:
            native.copy_vectors(source, target, width, n, source_start, target_start, accumulate, scale)
        else:
            self._call("copy_vectors", source, target, width, n, source_start, target_start, accumulate, scale)

    def group(self, index: Ints, offsets: Ints | None) -> Grouping:
        """See the reference."""
        unique, segments, order = (np.empty(index.size + extra, np.int64) for extra in (0, 1, 0))
        n_unique = self._call("group", index, offsets, unique, segments, order)
        return Grouping(unique[:n_unique], segments[: n_unique + 1], order)

    def dedup(self, ids: Ints) -> tuple[Ints, Ints]:
        """See the reference."""
        unique, inverse = np.empty_like(ids), np.empty_like(ids)
        return unique[: self._call("dedup", ids, unique, inverse)], inverse

    def partition(self, part: NDArray[np.int32], n_parts: int) -> tuple[Ints, Ints]:
        """See the reference."""
        counts, order = np.empty(n_parts, np.int64), np.empty(part.size, np.int64)
        self._call("partition", part, counts, order)
        return counts, order

    def permute(self, ids: Ints, rows: int, seed: int, inverse: bool) -> Ints:
        """See the reference."""
        out = np.empty_like(ids)
        self._call("permute", ids, rows, seed, inverse, out)
        return out

    def hash_ids(self, ids: Ints, rows: int, seed: int) -> Ints:
        """See the reference."""
        out = np.empty_like(ids)
        self._call("hash_ids", ids, rows, seed, out)
        return out

    def init_rows(self, seed: int, ids: Ints, width: int, column_start: int, scale: float, dtype: np.dtype) -> Floats:
        """See the reference."""
        out = np.empty((ids.size, width), dtype)
        self._call("init_rows", seed, ids, column_start, scale, out)
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
        self._call("merge", grouping.segments, grouping.order, source_start, weights, gradients, width, out)

    def squared_norm(self, merged: Floats) -> Floats:
        """See the reference."""
        out = np.empty(len(merged), merged.dtype)
        self._call("squared_norm", merged, out)
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
        self._call(
            "update", memory(rows), unique, merged, *_numbers(rule, numbers, total_width), *_pair(rule, states), norm,
            *rounding_arguments(rows, numbers.step),
        )  # fmt: skip

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
        self._call(
            "merge_update", memory(rows), grouping.unique, grouping.segments, grouping.order, source_start, weights,
            gradients, *_numbers(rule, numbers, rows.shape[1]), *_pair(rule, states),
            *rounding_arguments(rows, numbers.step),
        )  # fmt: skip
        if beside is not None:
            narrow, its = beside
            self.merge_update(rule, its, narrow.rows, narrow.states, grouping, gradients, narrow.source_start,
                              weights, None)  # fmt: skip


def _signed(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory, of a type that torch has."""
    return array.view(np.int16) if array.dtype == np.uint16 else array


def _numbers(rule: str, n: StepNumbers, width: int) -> tuple[int, float, float, float, float, float]:
    return RULES[rule].code, n.rate, n.eps, n.rest1, n.rest2, width


def _pair(rule: str, states: dict[str, Floats]) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """The states of a rule, in its order, padded to two."""
    found = [states[name] for name in RULES[rule].states]
    return (*found, None, None)[:2]  # type: ignore[return-value]
