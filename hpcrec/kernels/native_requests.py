"""The native module's kernels of requests, under their references' names and signatures."""

import numpy as np

from hpcrec.kernels.native_module import module
from hpcrec.kernels.reference_packed import Bytes
from hpcrec.kernels.reference_requests import Flags, RequestPlan
from hpcrec.kernels.reference_requests_read import Requests
from hpcrec.types import Ints


def plan_requests(ids: Ints, lengths: Ints, cells: Ints, far: Flags, weighted: Flags, item: int) -> RequestPlan:
    """See the reference."""
    n = len(cells)
    bytes_R, coding_N, distinct_N = np.empty(len(far), np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    # As large as tables can be: memory that is not written is not had.
    table_ids, table_places = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    n_ids, n_places = module().plan_requests(
        ids, lengths, cells, far, weighted, item, bytes_R, coding_N, distinct_N, table_ids, table_places
    )
    return RequestPlan(bytes_R, coding_N, distinct_N, table_ids[:n_ids], table_places[:n_places])


def write_requests(
    plan: RequestPlan,
    ids: Ints,
    lengths: Ints,
    cells: Ints,
    weights: Bytes,
    weighted: Flags,
    item: int,
    out: Bytes,
    at_R: Ints,
) -> None:
    """See the reference."""
    module().write_requests(*plan, ids, lengths, cells, weights, weighted, item, out, at_R)


def read_requests(message: Bytes, at_P: Ints, bytes_P: Ints, weighted: Flags, item: int) -> Requests:
    """See the reference."""
    found = module()
    n_ids, n_bags, n_cells, n_bytes = found.measure_requests(message, at_P, bytes_P, weighted, item)
    out = Requests(
        np.empty(n_ids, np.int64),
        np.empty(n_bags + 1, np.int64),
        np.empty((n_cells, 4), np.int64),
        np.empty(n_bytes, np.uint8),
    )
    found.read_requests(message, at_P, bytes_P, weighted, item, *out)
    return out
