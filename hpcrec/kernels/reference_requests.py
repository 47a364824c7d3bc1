"""The definition, in NumPy, of how requests are written: what one rank asks of each owner, in few bytes.

See ``reference`` for what a definition is. A *cell* is the ids of one entry for one owner, in bags. The message to an
owner that is asked for N cells, N at least 1, has these sections, one behind the other; *packed* and *packed rising*
are as in ``reference_packed``, of known numbers of numbers, so no section says its length:

::

    varint            N: 7 bits a byte, lowest first, bit 7 set in all bytes but the last
    packed rising     entries [N], ascending
    packed            bags of each cell, less 1 [N]
    packed            how each cell is written [N]: 1 where lengths of its bags follow, and 2 x its coding: 0 packed,
                      1 rising, 2 table
    runs              lengths of the bags of each cell where they follow; else each bag is one id
    packed            distinct ids of each cell coded as a table
    runs              ids of each cell that has any
    bytes             weights of the ids of weighted cells

*Runs* are a list of runs of numbers, one a cell, in two parts. *Short* runs, of fewer than ``PACKED_BLOCK`` numbers,
come first: the bits that the largest number of each takes, packed (64 where these are more than ``MOST_PACKED_BITS``),
then the numbers of all of them, each in the bits of its run, lowest bit first, without gaps, filled up to whole bytes.
Then come the *long* runs, each packed by itself. So a cell of few ids takes half a byte besides what it says, and one
of many what ``pack_numbers`` makes of it.

Of a run coded rising, what lies between each number and the one before is written, as ``pack_numbers`` does. A long run
coded as a table is its distinct ids, packed rising, then the place of each id among them, packed. The coding is chosen
by the bytes that it takes: rising, where a long run takes fewer bytes and a short one at least 8 fewer bits. A table is
looked for on the way to another host alone, because to find distinct ids takes ten times as long as to pack them; and
where a sample of the ids promises to save ``LEAST_SAVED_BITS`` of each.

Behind a message may be padding of fewer than 64 bytes. Reading is in ``reference_requests_read``. Knows messages;
knows nothing of what entries, ids and weights are.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.reference_packed import PACKED_BLOCK, Bytes, between, pack_numbers, packed_bytes, width_of
from hpcrec.types import Ints

PACKED, RISING, TABLE = 0, 1, 2
LEAST_SAVED_BITS = 8  # of an id, for a table
_SAMPLE = 1024
_LEAST_RISING_BITS = 8  # of a short run: less is not worth saying so

Flags = NDArray[np.bool_]


class RequestPlan(NamedTuple):
    """How requests are written.

    Attributes
    ----------
    bytes_R : int64 [R]
        Of the message to each owner; 0 where nothing is asked.
    coding_N, distinct_N : int64 [N]
        Of each cell: its coding, and the distinct ids of its table, 0 where it has none.
    table_ids, table_places : int64, flat
        Of all tables, one after the other: their distinct ids, ascending, and the place of each id among them.
    """

    bytes_R: Ints
    coding_N: Ints
    distinct_N: Ints
    table_ids: Ints
    table_places: Ints


class _Cell(NamedTuple):
    """One cell as it is written."""

    entry: int
    ids: Ints
    lengths: Ints
    coding: int
    table: tuple[Ints, Ints] | None


def plan_requests(ids: Ints, lengths: Ints, cells: Ints, far: Flags, weighted: Flags, item: int) -> RequestPlan:
    """Cell by cell, owner by owner."""
    _check_cells(ids, lengths, cells, len(far), len(weighted))
    bytes_R = np.zeros(len(far), np.int64)
    coding_N, distinct_N = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.int64)
    tables: list[tuple[Ints, Ints]] = []
    by_owner: dict[int, list[_Cell]] = {}
    k = v = 0
    for i, (owner, entry, n_ids, n_bags) in enumerate(cells.tolist()):
        its_ids, its_lengths = ids[k : k + n_ids], lengths[v : v + n_bags]
        coding_N[i], table = _choose(its_ids, far=bool(far[owner]))
        if table is not None:
            tables.append(table)
            distinct_N[i] = len(table[0])
        by_owner.setdefault(owner, []).append(_Cell(entry, its_ids, its_lengths, int(coding_N[i]), table))
        bytes_R[owner] += item * n_ids * int(weighted[entry])
        k, v = k + n_ids, v + n_bags
    for owner, its_cells in by_owner.items():
        bytes_R[owner] += len(_written(its_cells))
    none = np.empty(0, np.int64)
    table_ids, table_places = (np.concatenate([none, *(table[which] for table in tables)]) for which in (0, 1))
    return RequestPlan(bytes_R, coding_N, distinct_N, table_ids, table_places)


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
    """Owner by owner."""
    bytes_R, coding_N, distinct_N, table_ids, table_places = plan
    _check_cells(ids, lengths, cells, len(bytes_R), len(weighted))
    _check_tables(plan, cells)
    weighted_N = weighted[cells[:, 1]]
    if item * int(cells[weighted_N, 2].sum()) != weights.size:
        raise ValueError(f"weights are {weights.size} bytes, not those of {int(cells[weighted_N, 2].sum())} ids")
    by_owner: dict[int, list[_Cell]] = {}
    weights_of: dict[int, int] = dict.fromkeys(range(len(bytes_R)), 0)
    k = v = u = t = w = 0
    for i, (owner, entry, n_ids, n_bags) in enumerate(cells.tolist()):
        table = None
        if coding_N[i] == TABLE:
            table = table_ids[u : u + distinct_N[i]], table_places[t : t + n_ids]
            u, t = u + int(distinct_N[i]), t + n_ids
        its = _Cell(entry, ids[k : k + n_ids], lengths[v : v + n_bags], int(coding_N[i]), table)
        by_owner.setdefault(owner, []).append(its)
        weights_of[owner] += item * n_ids * int(weighted[entry])
        k, v = k + n_ids, v + n_bags
    for owner, (n_bytes, at) in enumerate(zip(bytes_R.tolist(), at_R.tolist(), strict=True)):
        message = _written(by_owner[owner]) if owner in by_owner else np.empty(0, np.uint8)
        message = np.concatenate([message, weights[w : w + weights_of[owner]]])
        w += weights_of[owner]
        if len(message) != n_bytes:
            raise ValueError(f"plan: the message to owner {owner} does not take {n_bytes} bytes")
        if n_bytes and not 0 <= at <= out.size - n_bytes:
            raise ValueError(f"at_R[{owner}] is {at}; its message does not fit there into {out.size} bytes")
        out[at : at + n_bytes] = message if n_bytes else 0


def _check_cells(ids: Ints, lengths: Ints, cells: Ints, n_owners: int, n_entries: int) -> None:
    k = v = 0
    before = (-1, -1)
    for i, (owner, entry, n_ids, n_bags) in enumerate(cells.tolist()):
        if not (0 <= owner < n_owners and 0 <= entry < n_entries):
            raise ValueError(f"cells[{i}]: its owner or entry is not one of those that there are")
        if (owner, entry) <= before:
            raise ValueError(f"cells[{i}]: cells must ascend by owner and entry")
        if not (0 <= n_ids <= len(ids) - k and 1 <= n_bags <= len(lengths) - v):
            raise ValueError(f"cells[{i}]: there are not so many ids or bags, or it has no bag")
        its_lengths = lengths[v : v + n_bags]
        if (its_lengths < 0).any() or (its_lengths > n_ids).any() or its_lengths.sum() != n_ids:
            raise ValueError(f"cells[{i}]: the lengths of its bags do not add up to its ids")
        before, k, v = (owner, entry), k + n_ids, v + n_bags
    if k != len(ids) or v != len(lengths):
        raise ValueError(f"cells have {k} ids in {v} bags; given are {len(ids)} in {len(lengths)}")


def _check_tables(plan: RequestPlan, cells: Ints) -> None:
    u = t = 0
    for i, (coding, n_distinct, n_ids) in enumerate(
        zip(plan.coding_N.tolist(), plan.distinct_N.tolist(), cells[:, 2].tolist(), strict=True)
    ):
        good = coding in (PACKED, RISING) and n_distinct == 0
        if coding == TABLE and n_ids >= PACKED_BLOCK:
            good = 1 <= n_distinct <= min(n_ids, len(plan.table_ids) - u) and n_ids <= len(plan.table_places) - t
            u, t = u + n_distinct, t + n_ids
        if not good:
            raise ValueError(f"plan: cells[{i}] cannot be coded so")
    if u != len(plan.table_ids) or t != len(plan.table_places):
        raise ValueError("plan: its tables are not those of the cells")


def _choose(ids: Ints, *, far: bool) -> tuple[int, tuple[Ints, Ints] | None]:
    """The coding of a cell, and its table if it has one."""
    n = len(ids)
    if n == 0:
        return PACKED, None
    if n < PACKED_BLOCK:
        return int((width_of(ids) - width_of(between(ids))) * n >= _LEAST_RISING_BITS), None
    packed, rising = packed_bytes(ids)
    if rising < packed:
        return RISING, None
    if far and _promises_a_table(ids, packed):
        distinct, places = np.unique(ids, return_inverse=True)
        places = places.astype(np.int64)
        if packed_bytes(distinct)[1] + packed_bytes(places)[0] < packed:
            return TABLE, (distinct, places)
    return PACKED, None


def _promises_a_table(ids: Ints, packed: int) -> bool:
    """Whether a sample repeats so many ids that a table of all saves ``LEAST_SAVED_BITS`` of each.

    The more ids, the more of them repeat: the sample's share of distinct ids is at least that of all.
    """
    n, bits = len(ids), 8 * packed / len(ids)
    if n < 4 * _SAMPLE or bits < LEAST_SAVED_BITS:
        return False
    sample = ids[:: n // _SAMPLE]
    share = len(np.unique(sample)) / len(sample)
    place_bits = math.log2(share * n)
    between_bits = 2 + max(0.0, bits - place_bits)  # 2: the largest of a block above the mean, if they are at random
    return bits - place_bits - share * between_bits >= LEAST_SAVED_BITS


def _written(cells: list[_Cell]) -> Bytes:
    """One message, without its weights."""
    follow = [bool((cell.lengths != 1).any()) for cell in cells]
    tables = [cell.table for cell in cells if cell.table is not None]
    parts = [
        _varint(len(cells)),
        _packed(np.array([cell.entry for cell in cells], np.int64), rising=True),
        _packed(np.array([len(cell.lengths) - 1 for cell in cells], np.int64)),
        _packed(np.array([f + 2 * cell.coding for f, cell in zip(follow, cells, strict=True)], np.int64)),
        *_runs([(cell.lengths, PACKED, None) for f, cell in zip(follow, cells, strict=True) if f]),
        _packed(np.array([len(distinct) for distinct, _ in tables], np.int64)),
        *_runs([(cell.ids, cell.coding, cell.table) for cell in cells if len(cell.ids)]),
    ]
    return np.concatenate(parts)


def _runs(runs: list[tuple[Ints, int, tuple[Ints, Ints] | None]]) -> list[Bytes]:
    short = [between(run) if coding == RISING else run for run, coding, _ in runs if len(run) < PACKED_BLOCK]
    widths = [width_of(run) for run in short]
    bits = [((run[:, None] >> np.arange(w)) & 1).reshape(-1) for run, w in zip(short, widths, strict=True)]
    joined = np.concatenate([np.empty(0, np.int64), *bits])
    parts = [_packed(np.array(widths, np.int64)), np.packbits(joined.astype(np.uint8), bitorder="little")]
    for run, coding, table in runs:
        if len(run) >= PACKED_BLOCK:
            parts += [_packed(run, rising=coding == RISING)] if table is None else [
                _packed(table[0], rising=True),
                _packed(table[1]),
            ]  # fmt: skip
    return parts


def _packed(numbers: Ints, *, rising: bool = False) -> Bytes:
    out = np.empty(packed_bytes(numbers)[rising], np.uint8)
    if out.size:
        pack_numbers(numbers, rising, out)
    return out


def _varint(n: int) -> Bytes:
    out = []
    while n >= 128:
        out.append(n % 128 + 128)
        n //= 128
    return np.array([*out, n], np.uint8)
