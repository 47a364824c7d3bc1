"""Kernels on requests: ids dealt to entries, what one rank asks of each of many owners, and what an owner was asked.

A *cell* is the ids of one entry for one owner, in bags. Those of all owners are flat arrays, owner after owner, in each
entry after entry, so that no owner costs a call. ``reference_requests`` says how messages lie. What entries, ids and
weights are is known above. Arrays are the host's; one thread, whatever ``set_threads`` says, but for tables of many
ids. Shapes: R owners, E entries, N cells, V bags, K ids, P senders, B bundles.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcrec.kernels import (
    checks,
    native_requests,
    reference,
    reference_requests,
    reference_requests_deal,
    reference_requests_read,
)
from hpcrec.kernels.backend import backend
from hpcrec.kernels.reference_packed import Bytes
from hpcrec.kernels.reference_requests import Flags, RequestPlan
from hpcrec.kernels.reference_requests_deal import DealtRequests
from hpcrec.kernels.reference_requests_read import Requests
from hpcrec.types import Ints

__all__ = [
    "DealtRequests",
    "RequestPlan",
    "Requests",
    "deal_requests",
    "plan_requests",
    "read_requests",
    "write_requests",
]
_BOOL, _INT64, _UINT8 = np.dtype(np.bool_), np.dtype(np.int64), np.dtype(np.uint8)
_MOST_ITEM = 256
_NO_BYTES = np.empty(0, np.uint8)


def deal_requests(
    ids: Sequence[Ints],
    lengths: Sequence[Ints],
    parts: Sequence[Ints | None],
    weights: Sequence[Bytes | None],
    entries: Ints,
    first_B: Ints,
    every: Flags,
    item: int,
) -> DealtRequests:
    """Deals the ids of bundles of features to entries: those of each together, in the order of bags and ids.

    Parameters
    ----------
    ids, lengths : sequence of int64 [K] and of int64 [V]
        By bundle: its ids, in bags.
    parts : sequence of int64 [K] or None
        By bundle: the part of its tables that has each; None: every part is asked for all of them.
    weights : sequence of uint8 [K * item] or None
        By bundle: one for each id, or none.
    entries : int64, flat
        Of each part of each bundle, one bundle after the other: its entry, -1 where it has none. No two have the same.
    first_B : int64 [B + 1]
        Where each bundle's parts begin.
    every : bool [E]
        Entries that are asked for empty bags too.
    item : int
        Bytes of a weight.

    Returns
    -------
    DealtRequests

    Raises
    ------
    ValueError
        A type or shape is wrong, lengths do not add up to a bundle's ids, weights are not theirs, a part is not one of
        its bundle's, or an entry not one of those that there are.
    """
    carried = [_NO_BYTES if weight is None else weight for weight in weights]
    n = len(ids)
    if not (len(lengths) == len(parts) == len(carried) == n and len(first_B) == n + 1):
        raise ValueError(
            f"given are ids of {n} bundles, lengths of {len(lengths)}, parts of {len(parts)}, weights of "
            f"{len(carried)}, and first_B of {len(first_B)} numbers; the last has one more than there are bundles"
        )
    asked = [part for part in parts if part is not None]
    numbers = (*ids, *lengths, *asked, entries, first_B)
    if not (
        _flat(((numbers, _INT64), (carried, _UINT8), ((every,), _BOOL)))
        and type(item) is int
        and 0 < item <= _MOST_ITEM
    ):
        for array in numbers:
            name = "entries" if array is entries else "first_B" if array is first_B else "ids, lengths or parts"
            _require(None, item, **{name: (array, _INT64, 0)})
        for of_ids in carried:
            _require(None, item, weights=(of_ids, _UINT8, 0))
        _require(None, item, every=(every, _BOOL, 0))
    if n and (first_B[0] < 0 or first_B[-1] > len(entries) or (first_B[1:] < first_B[:-1]).any()):
        raise ValueError(f"first_B is {first_B.tolist()}: these are no bounds of {len(entries)} entries")
    for b, (of, part, weight) in enumerate(zip(ids, parts, weights, strict=True)):
        if part is not None and len(part) != len(of):
            raise ValueError(f"bundle {b}: parts are {len(part)}, its ids {len(of)}")
        if weight is not None and len(weight) != item * len(of):
            raise ValueError(f"bundle {b}: its weights are {len(weight)} bytes, not those of {len(of)} ids")
    here = reference_requests_deal if backend() is reference else native_requests
    return here.deal_requests(ids, lengths, parts, carried, entries, first_B, every, int(item))


def plan_requests(ids: Ints, lengths: Ints, cells: Ints, far: Flags, weighted: Flags, item: int) -> RequestPlan:
    """Chooses how the requests of all owners are written, and says how many bytes that takes.

    Parameters
    ----------
    ids : int64 [K]
        Any values.
    lengths : int64 [V]
        Ids of each bag; may be 0.
    cells : int64 [N, 4]
        Owner, entry, ids and bags of each cell; owner and entry strictly ascending, bags at least 1.
    far : bool [R]
        Whether an owner is on another host: bytes to it are worth the time that a table of distinct ids takes.
    weighted : bool [E]
        Entries whose ids carry weights.
    item : int
        Bytes of a weight.

    Returns
    -------
    RequestPlan

    Raises
    ------
    ValueError
        A type or shape is wrong, cells do not ascend or name an owner or entry that is not there, or ids, lengths and
        cells do not fit together.
    """
    _require(
        None, item, ids=(ids, _INT64, 0), lengths=(lengths, _INT64, 0), cells=(cells, _INT64, 4), far=(far, _BOOL, 0),
        weighted=(weighted, _BOOL, 0),
    )  # fmt: skip
    here = reference_requests if backend() is reference else native_requests
    return here.plan_requests(ids, lengths, cells, far, weighted, int(item))


def write_requests(
    plan: RequestPlan,
    ids: Ints,
    lengths: Ints,
    cells: Ints,
    weights: Bytes | None,
    weighted: Flags,
    item: int,
    out: Bytes,
    at_R: Ints,
) -> None:
    """Writes the message to each owner that is asked for something; all else of ``out`` is left as it is.

    Parameters
    ----------
    plan : RequestPlan
        Of the same requests.
    ids, lengths, cells, weighted, item
        As of `plan_requests`.
    weights : uint8, flat, or None
        Of the ids of weighted cells, in their order, ``item`` bytes each; None where there are none.
    out : uint8, flat
    at_R : int64 [R]
        Byte of ``out`` where the message to each owner begins: anywhere; not looked at where none is.

    Raises
    ------
    ValueError
        As `plan_requests`; or the plan is not one of these requests, weights are too few or too many, a message does
        not fit into ``out``, or ``out`` shares memory with another argument. ``out`` then holds anything.
    """
    bytes_R, coding_N, distinct_N, table_ids, table_places = plan
    weights = _NO_BYTES if weights is None else weights
    _require(
        "out", item, ids=(ids, _INT64, 0), lengths=(lengths, _INT64, 0), cells=(cells, _INT64, 4),
        weights=(weights, _UINT8, 0), weighted=(weighted, _BOOL, 0), out=(out, _UINT8, 0), at_R=(at_R, _INT64, 0),
        bytes_R=(bytes_R, _INT64, 0), coding_N=(coding_N, _INT64, 0), distinct_N=(distinct_N, _INT64, 0),
        table_ids=(table_ids, _INT64, 0), table_places=(table_places, _INT64, 0),
    )  # fmt: skip
    if len(coding_N) != len(cells) or len(distinct_N) != len(cells) or len(at_R) != len(bytes_R):
        raise ValueError(
            f"plan is of {len(coding_N)} and {len(distinct_N)} cells and {len(bytes_R)} owners; given are {len(cells)} "
            f"cells and places of {len(at_R)} messages"
        )
    here = reference_requests if backend() is reference else native_requests
    here.write_requests(plan, ids, lengths, cells, weights, weighted, int(item), out, at_R)


def read_requests(message: Bytes, at_P: Ints, bytes_P: Ints, weighted: Flags, item: int) -> Requests:
    """What several senders ask of this rank.

    Parameters
    ----------
    message : uint8, flat
        Any bytes: what is damaged is refused.
    at_P, bytes_P : int64 [P]
        Byte where the message of each sender begins, and its bytes, of which fewer than 64 may be padding behind it. A
        message of 0 bytes asks for nothing.
    weighted : bool [E]
    item : int
        Bytes of a weight.

    Returns
    -------
    Requests

    Raises
    ------
    ValueError
        A type or shape is wrong, or a message is not there or damaged: it is said whose.
    """
    _require(
        None, item, message=(message, _UINT8, 0), at_P=(at_P, _INT64, 0), bytes_P=(bytes_P, _INT64, 0),
        weighted=(weighted, _BOOL, 0),
    )  # fmt: skip
    if len(at_P) != len(bytes_P):
        raise ValueError(f"at_P is of {len(at_P)} senders, bytes_P of {len(bytes_P)}")
    here = reference_requests_read if backend() is reference else native_requests
    return here.read_requests(message, at_P, bytes_P, weighted, int(item))


def _flat(lists: Sequence[tuple[Sequence[Any], np.dtype]]) -> bool:
    """Whether all arrays are as ``_require`` wants them, each list's of its type, for a third of its time."""
    for arrays, dtype in lists:
        for array in arrays:
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
                return False
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return False
    return True


def _require(written: str | None, item: int, **arrays: tuple[Any, np.dtype, int]) -> None:
    """Checks all arguments in one call, because requests are made in every step.

    Arrays are of their types and columns (0: flat). The one that is written shares no memory with another.
    """
    if type(item) is not int or not 1 <= item <= _MOST_ITEM:
        checks.whole("item", item, 1, _MOST_ITEM)
    for name, (array, dtype, columns) in arrays.items():
        if not (
            isinstance(array, np.ndarray)
            and array.dtype == dtype
            and (array.ndim == 1 if columns == 0 else array.ndim == 2 and array.shape[1] == columns)
            and array.flags.c_contiguous
            and array.flags.aligned
        ):
            raise checks.fail(name, array, f"{dtype}[any{f', {columns}' if columns else ''}]")
    if written is None:
        return
    out = arrays[written][0]
    if not out.flags.writeable:
        checks.writable(written, out)
    for name, (array, _, _) in arrays.items():
        if name != written and np.may_share_memory(out, array):
            checks.apart(written, out, **{name: array})
