"""The native module's kernels of requests, under their references' names and signatures."""

from collections.abc import Sequence

import numpy as np

from hpcrec.kernels.native_module import module
from hpcrec.kernels.reference_packed import Bytes
from hpcrec.kernels.reference_requests import Flags, RequestPlan
from hpcrec.kernels.reference_requests_deal import DealtRequests
from hpcrec.kernels.reference_requests_read import Requests
from hpcrec.types import Ints

_NONE = np.empty(0, np.int64)


def deal_requests(
    ids: Sequence[Ints],
    lengths: Sequence[Ints],
    parts: Sequence[Ints | None],
    weights: Sequence[Bytes],
    entries: Ints,
    first_B: Ints,
    every: Flags,
    item: int,
) -> DealtRequests:
    """See the reference."""
    # As large as the arrays can be by what each entry may be asked: memory that is not written is not had.
    most_ids = most_bags = most_bytes = 0
    asked, whole = entries >= 0, every.take(entries, mode="clip") if every.any() else np.zeros(len(entries), bool)
    bounds = np.array([asked, asked & whole]).cumsum(axis=1)
    of_B = np.diff(np.concatenate([np.zeros((2, 1), np.int64), bounds], axis=1)[:, first_B], axis=1).T.tolist()
    for its_ids, its_lengths, its_parts, its_weights, (n_asked, n_whole) in zip(
        ids, lengths, parts, weights, of_B, strict=True
    ):
        n, n_bags, copies = len(its_ids), len(its_lengths), n_asked if its_parts is None else 1
        most_ids += n * copies
        some = n_bags * n_asked if its_parts is None else n_bags * n_whole + min(n, n_bags * (n_asked - n_whole))
        most_bags += some
        most_bytes += len(its_weights) * copies
    out = DealtRequests(
        np.empty(most_ids, np.int64), np.empty(most_bags, np.int64), np.empty(most_bags, np.int64),
        np.empty(most_bytes, np.uint8), np.empty(len(every), np.int64), np.empty(len(every), np.int64),
    )  # fmt: skip
    given = [_NONE if part is None else part for part in parts]
    n_ids, n_bags, n_bytes = module().deal_requests(
        ids, lengths, given, weights, entries, first_B, every, item, out.ids_E, out.bags_E, out.ids, out.lengths,
        out.bag, out.weights,
    )  # fmt: skip
    return DealtRequests(
        out.ids[:n_ids], out.lengths[:n_bags], out.bag[:n_bags], out.weights[:n_bytes], out.ids_E, out.bags_E
    )


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
