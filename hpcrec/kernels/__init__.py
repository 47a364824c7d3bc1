"""Kernels: one call each, native where the native module is built, NumPy where it is not, the same bits from both.

(Within rounding in ``interaction``, which says why.)

``reference.py`` is the definition of what each computes; ``native/`` makes it fast. No MPI and no torch here.
"""

from hpcrec.kernels.backend import active, device, get_threads, set_threads, use
from hpcrec.kernels.beside import Beside, BesideStep
from hpcrec.kernels.chunks import fletcher32, read_chunks
from hpcrec.kernels.copies import (
    CopyTable,
    add_to_copies,
    copy_records,
    end_ticks,
    kept_copies,
    read_copies,
    record_fields,
    sums_of_copies,
    tick_copies,
)
from hpcrec.kernels.device import Device
from hpcrec.kernels.device_array import DeviceArray, room_beside
from hpcrec.kernels.fm import fm_sums, fm_sums_backward
from hpcrec.kernels.half_rows import ROW_KINDS, HalfRows
from hpcrec.kernels.halves import HALF_BLOCK, half_bytes, read_halves, write_halves
from hpcrec.kernels.id_map import MOST_ROWS, Admitted, Evict, IdMap, IdState
from hpcrec.kernels.ids import dedup, group, hash_ids, init_rows, partition, permute, take_bags, unpack, unpermute
from hpcrec.kernels.interaction import dot_interaction, dot_interaction_backward
from hpcrec.kernels.known_map import KnownMap
from hpcrec.kernels.learn import merge, merge_update, squared_norm, update, update_sums
from hpcrec.kernels.lookup import copy_vectors, from_half_rows, pooled_gather, to_half_rows
from hpcrec.kernels.maximum import pooled_max, pooled_max_backward
from hpcrec.kernels.memory import aligned_empty, reserved_zeros
from hpcrec.kernels.packed import pack_numbers, packed_bytes, unpack_numbers
from hpcrec.kernels.positions import (
    expand,
    gather,
    positions_bytes,
    read_positions,
    scatter_add,
    write_positions,
)
from hpcrec.kernels.reference import Coding, Grouping, Unpacked, mean_rate
from hpcrec.kernels.reference_positions import PositionCoding
from hpcrec.kernels.requests import (
    DealtRequests,
    RequestPlan,
    Requests,
    deal_requests,
    plan_requests,
    read_requests,
    write_requests,
)
from hpcrec.kernels.rules import initial_states, state_shapes, state_values
from hpcrec.kernels.slots import MOST_AHEAD, MOST_CLOCK, MOST_SLOTS, NO_ID, WAYS, Placed, SlotMap
from hpcrec.kernels.threshold import select_above, select_largest, select_with_feedback, threshold_of

__all__ = [
    "HALF_BLOCK",
    "MOST_AHEAD",
    "MOST_CLOCK",
    "MOST_ROWS",
    "MOST_SLOTS",
    "NO_ID",
    "ROW_KINDS",
    "WAYS",
    "Admitted",
    "Beside",
    "BesideStep",
    "Coding",
    "CopyTable",
    "DealtRequests",
    "Device",
    "DeviceArray",
    "Evict",
    "Grouping",
    "HalfRows",
    "IdMap",
    "IdState",
    "KnownMap",
    "Placed",
    "PositionCoding",
    "RequestPlan",
    "Requests",
    "SlotMap",
    "Unpacked",
    "active",
    "add_to_copies",
    "aligned_empty",
    "copy_records",
    "copy_vectors",
    "deal_requests",
    "dedup",
    "device",
    "dot_interaction",
    "dot_interaction_backward",
    "end_ticks",
    "expand",
    "fletcher32",
    "fm_sums",
    "fm_sums_backward",
    "from_half_rows",
    "gather",
    "get_threads",
    "group",
    "half_bytes",
    "hash_ids",
    "init_rows",
    "initial_states",
    "kept_copies",
    "mean_rate",
    "merge",
    "merge_update",
    "pack_numbers",
    "packed_bytes",
    "partition",
    "permute",
    "plan_requests",
    "pooled_gather",
    "pooled_max",
    "pooled_max_backward",
    "positions_bytes",
    "read_chunks",
    "read_copies",
    "read_halves",
    "read_positions",
    "read_requests",
    "record_fields",
    "reserved_zeros",
    "room_beside",
    "scatter_add",
    "select_above",
    "select_largest",
    "select_with_feedback",
    "set_threads",
    "squared_norm",
    "state_shapes",
    "state_values",
    "sums_of_copies",
    "take_bags",
    "threshold_of",
    "tick_copies",
    "to_half_rows",
    "unpack",
    "unpack_numbers",
    "unpermute",
    "update",
    "update_sums",
    "use",
    "write_halves",
    "write_positions",
    "write_requests",
]
