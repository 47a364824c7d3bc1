"""The definition, in NumPy, of how ids are dealt to entries; see ``kernels.deal_requests`` and ``reference``.

Knows bundles and entries by their numbers; knows nothing of what ids are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcrec.kernels.reference import partition
from hpcrec.kernels.reference_packed import Bytes
from hpcrec.kernels.reference_requests import Flags
from hpcrec.types import Ints


class DealtRequests(NamedTuple):
    """What each entry is asked for, entry after entry, in each bag after bag.

    Attributes
    ----------
    ids : int64 [K]
    lengths, bag : int64 [V]
        Of each bag: its ids, and its number in its bundle.
    weights : uint8, flat
        Of the ids of bundles that have any.
    ids_E, bags_E : int64 [E]
        Ids and bags of each entry.
    """

    ids: Ints
    lengths: Ints
    bag: Ints
    weights: Bytes
    ids_E: Ints
    bags_E: Ints


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
    """All ids, each once for every entry that it goes to, sorted by entry; empty bags are put between at the end."""
    taken = np.zeros(len(every), bool)
    none = np.empty(0, np.int64)
    entry, number, bag, rows = ([none] for _ in range(4))
    carried: list[Bytes] = [np.empty((0, item), np.uint8)]
    empty: list[tuple[Ints, Ints]] = []
    for b, (its_ids, its_lengths, its_parts) in enumerate(zip(ids, lengths, parts, strict=True)):
        of_part = entries[first_B[b] : first_B[b + 1]]
        _check(b, its_ids, its_lengths, its_parts, of_part, taken)
        mine = of_part[of_part >= 0]
        bag_K, every_K = np.repeat(np.arange(len(its_lengths)), its_lengths), np.arange(len(its_ids))
        if its_parts is None:
            entry_K, at = np.repeat(mine, len(its_ids)), np.tile(every_K, len(mine))
        else:
            entry_K, at = of_part[its_parts], every_K
            at, entry_K = at[entry_K >= 0], entry_K[entry_K >= 0]
        entry.append(entry_K)
        rows.append(its_ids[at])
        bag.append(bag_K[at])
        its_weights = weights[b].reshape(-1, item)
        number.append(np.full(len(at), -1) if not len(its_weights) else at + sum(map(len, carried)))
        carried.append(its_weights)
        empty += [(np.full(len(its_lengths), e), np.arange(len(its_lengths))) for e in mine[every[mine]].tolist()]
    entry_K, rows_K, bag_K, number_K = (np.concatenate(column) for column in (entry, rows, bag, number))
    ids_E, order = partition(entry_K.astype(np.int32), max(len(every), 1))
    number_K = number_K[order]
    asked = np.stack(
        [np.concatenate([entry_K, *(e for e, _ in empty)]), np.concatenate([bag_K, *(v for _, v in empty)])]
    )
    (of_V, bag_V), at = np.unique(asked, axis=1, return_inverse=True)
    return DealtRequests(
        rows_K[order],
        np.bincount(at.reshape(-1)[: len(entry_K)], minlength=len(of_V)).astype(np.int64),
        bag_V,
        np.concatenate(carried)[number_K[number_K >= 0]].reshape(-1),
        ids_E[: len(every)],
        np.bincount(of_V, minlength=len(every)).astype(np.int64),
    )


def _check(b: int, ids: Ints, lengths: Ints, parts: Ints | None, of_part: Ints, taken: Flags) -> None:
    if (lengths < 0).any() or (lengths > len(ids)).any() or int(lengths.sum()) != len(ids):
        raise ValueError(f"bundle {b}: the lengths of its bags do not add up to its {len(ids)} ids")
    for e in of_part.tolist():
        if e < -1 or e >= len(taken) or (e >= 0 and taken[e]):
            raise ValueError(f"bundle {b}: entry {e} is not one of {len(taken)}, or is that of another part too")
        if e >= 0:
            taken[e] = True
    if parts is not None and len(ids):
        wrong = np.flatnonzero((parts < 0) | (parts >= len(of_part)))
        if len(wrong):
            raise ValueError(f"bundle {b}: an id goes to part {parts[wrong[0]]}; it has {len(of_part)}")
