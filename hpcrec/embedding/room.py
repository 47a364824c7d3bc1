"""Room for rows and their optimizer states: the host's memory, or a device's. Knows shapes; not whose rows they are."""

import math

import numpy as np

from hpcrec import kernels
from hpcrec.errors import ConfigError
from hpcrec.types import Floats, OptimizerSpec

Room = tuple[Floats, dict[str, Floats]]


def bytes_of(n_rows: int, width: int, spec: OptimizerSpec, dtype: np.dtype) -> int:
    """Of rows and their states."""
    shapes = ((n_rows, width), *kernels.state_shapes(spec, n_rows, width).values())
    return sum(math.prod(shape) for shape in shapes) * np.dtype(dtype).itemsize


def slots_for(n_rows: int, n_bytes: int, cache_bytes: int, slot_bytes: int) -> int:
    """Slots of a cache that takes so many bytes, or as few as it can, of rows that all take ``n_bytes``.

    ``slot_bytes``: of what is known of a slot, beside its row.
    """
    a_row = n_bytes // n_rows + slot_bytes
    slots = min(cache_bytes // a_row // kernels.WAYS, -(-n_rows // kernels.WAYS)) * kernels.WAYS
    return max(slots, kernels.WAYS)


def fresh_room(
    n_rows: int, width: int, spec: OptimizerSpec, dtype: np.dtype, device: kernels.Device | None = None
) -> Room:
    """Rows [n_rows, width], whatever is in them, and fresh states.

    Raises
    ------
    ConfigError
        The device has not so much memory.
    """
    if device is None:
        return kernels.aligned_empty((n_rows, width), dtype), kernels.initial_states(spec, n_rows, width, dtype)
    shapes = {"": (n_rows, width), **kernels.state_shapes(spec, n_rows, width)}
    try:
        made = {name: device.empty(shape, dtype) for name, shape in shapes.items()}
    except MemoryError as error:
        raise ConfigError(
            f"rows are to be on GPUs (store.name, store.gpu_bytes), but {n_rows} rows of width {width} and their "
            f"states do not fit into the memory of this rank's GPU: {error}. Use more owners, or, where store.name is "
            "'gpu', set store.memory_bytes, so that they are cached there, or store.name = 'dram'."
        ) from None
    for name, value in kernels.state_values(spec).items():
        made[name].fill(value)
    return made.pop(""), made


def spare_room(
    tables: str, n_rows: int, width: int, spec: OptimizerSpec, dtype: np.dtype, device: kernels.Device | None = None
) -> Room:
    """Zeros for rows of these tables that may come; on the host they take memory as they do, on a device all at once.

    Raises
    ------
    ConfigError
        The device has not so much memory, or the host no addresses for so much.
    """
    if device is None:
        shapes = {"": (n_rows, width), **kernels.state_shapes(spec, n_rows, width)}
        try:
            made = {name: kernels.reserved_zeros(shape, dtype) for name, shape in shapes.items()}
        except MemoryError as error:
            raise ConfigError(
                f"embedding.tables: {n_rows} rows of dynamic tables ({tables}) cannot be had: {error}. Lower their "
                "dynamic.capacity, or use more owners."
            ) from None
        return made.pop(""), made
    rows, states = fresh_room(n_rows, width, spec, dtype, device)
    for array in (rows, *states.values()):
        array.fill(0.0)
    return rows, states
