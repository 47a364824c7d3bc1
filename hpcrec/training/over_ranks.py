"""Rows of numbers that change ranks, so that what a metric needs together meets: by ranges of scores, or by group.

Rows are of 8-byte numbers, and each rank gets about its share of them, so that none ever holds everything; of a group
one rank has all. Where a group goes, and in what order sums over groups are taken, does not depend on the number of
ranks. Knows neither metrics, nor MPI beyond the collectives handed in.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrec.data.hashing import UInts, mix_array
from hpcrec.types import Ints

_SAMPLES = 128  # scores that each rank shows for choosing splitters
_WIRE_ROWS = 8  # a message is whole multiples of these rows: 8 rows of 8-byte numbers are whole units of 64 bytes
_BUCKET_BITS = 14  # groups are dealt to ranks by buckets of their hashes, and summed by bucket
BUCKETS = 1 << _BUCKET_BITS

Doubles = NDArray[np.float64]


class Reductions(Protocol):
    """What metrics need of ``comm.collectives.Collectives``."""

    rank: int
    size: int

    def allreduce(self, values: NDArray[Any], tag: str = "control", op: str = "sum") -> NDArray[Any]:
        """Sum over the ranks."""

    def allgather(self, thing: Any) -> list[Any]:
        """Small objects from every rank, in rank order."""

    def alltoall(self, send_RM: Ints, tag: str) -> Ints:
        """Row i to rank i."""

    def alltoallv(self, send: NDArray[Any], send_bytes_R: Ints, recv_bytes_R: Ints, tag: str) -> NDArray[Any]:
        """Consecutive pieces to the ranks in order."""


def total(values: Doubles, comm: Reductions | None) -> Doubles:
    """Sum over the ranks."""
    return values if comm is None else comm.allreduce(values)


def by_score(rows_KC: Doubles, comm: Reductions | None) -> Doubles:
    """Rows of all ranks by their first column, the rest added up where it is equal.

    Returns
    -------
    float64 [., C]
        Ascending, all of rank r below those of rank r + 1. Its first column has each value once over all ranks.
    """
    rows_KC = _merge_ties(rows_KC)
    return rows_KC if comm is None or comm.size == 1 else _merge_ties(_partition(rows_KC, comm))


def below(counts_K: Doubles, comm: Reductions | None) -> Doubles:
    """Sum of what comes before each element: on this rank, and all on the ranks before; float64 [K]."""
    sums_R = [counts_K.sum()] if comm is None else comm.allgather(counts_K.sum())
    before = float(np.sum(sums_R[: 0 if comm is None else comm.rank]))
    return before + np.cumsum(counts_K) - counts_K


def by_group(group_N: Ints, columns: Sequence[NDArray[Any]], comm: Reductions | None) -> tuple[UInts, list[Doubles]]:
    """Samples to the ranks of their groups: any rank has all of a group or nothing; collective.

    Parameters
    ----------
    group_N : int64 [N]
    columns : sequence of float64 [N]
        What crosses of a sample.

    Returns
    -------
    uint64 [M]
        The hash of each sample's group, of which rank r has an upper range of those of rank r - 1: a bijection.
    list of float64 [M]
        The columns, in no order that may be relied on.
    """
    hash_N = mix_array(group_N)
    if comm is None or comm.size == 1:
        return hash_N, [np.asarray(column, np.float64) for column in columns]
    owner_N = (bucket_of(hash_N) * comm.size) >> _BUCKET_BITS
    order = np.argsort(owner_N.astype(np.uint16), kind="stable")  # of 16 bits a radix sort; there are fewer buckets
    rows_NC = np.empty((len(order), 1 + len(columns)), np.int64)
    rows_NC[:, 0] = hash_N.view(np.int64)[order]
    for at, column in enumerate(columns, start=1):
        rows_NC[:, at] = np.asarray(column, np.float64).view(np.int64)[order]
    came_MC = send_rows(rows_NC, np.bincount(owner_N, minlength=comm.size), comm)
    hash_M, *came = (np.ascontiguousarray(column) for column in came_MC.T)
    return hash_M.view(np.uint64), [column.view(np.float64) for column in came]


def bucket_of(hash_N: UInts) -> Ints:
    """Bucket of hashes of groups: rises with them; int64, below ``BUCKETS``."""
    return (hash_N >> np.uint64(64 - _BUCKET_BITS)).astype(np.int64)


def total_by_bucket(values_GC: Doubles, bucket_G: Ints, comm: Reductions | None) -> Doubles:
    """Sum over all groups of all ranks, with the same bits on any number of ranks; float64 [C].

    Parameters
    ----------
    values_GC : float64 [G, C]
        Of this rank's groups, in the order of their hashes.
    bucket_G : int64 [G]
        Rises; a bucket is one rank's, so that its sum has an order, and so has the sum of all.
    """
    sums = np.zeros((BUCKETS, values_GC.shape[1]))
    if len(bucket_G):
        starts = starts_of(bucket_G[1:] != bucket_G[:-1])
        sums[bucket_G[starts]] = np.add.reduceat(values_GC, starts, axis=0)
    return total(sums, comm).sum(axis=0)


def starts_of(differs: NDArray[np.bool_]) -> Ints:
    """Where runs begin, of which each element but the first ``differs`` from the one before or not."""
    return np.concatenate([[0], np.flatnonzero(differs) + 1])


def send_rows(rows_KC: NDArray[Any], counts_R: Ints, comm: Reductions) -> NDArray[Any]:
    """Sends consecutive rows of 8-byte numbers, ``counts_R`` to each rank in order; returns those that came, alike."""
    recv_counts_R = comm.alltoall(counts_R[:, None].astype(np.int64), "control")[:, 0]
    padded_R, recv_padded_R = (-(-counts // _WIRE_ROWS) * _WIRE_ROWS for counts in (counts_R, recv_counts_R))
    columns = rows_KC.shape[1]
    send = np.zeros((padded_R.sum(), columns), rows_KC.dtype)
    send[_places(counts_R, padded_R)] = rows_KC
    row_bytes = columns * send.itemsize
    recv = comm.alltoallv(send.reshape(-1), padded_R * row_bytes, recv_padded_R * row_bytes, "control")
    return recv.reshape(-1, columns)[_places(recv_counts_R, recv_padded_R)]


def _merge_ties(rows_KC: Doubles) -> Doubles:
    """Rows ascending by their first column, one for each distinct value; the other columns added up."""
    if not len(rows_KC):
        return rows_KC
    rows_KC = rows_KC[np.argsort(rows_KC[:, 0], kind="stable")]
    starts = starts_of(rows_KC[1:, 0] != rows_KC[:-1, 0])
    merged = np.add.reduceat(rows_KC, starts, axis=0)
    merged[:, 0] = rows_KC[starts, 0]
    return merged


def _partition(rows_KC: Doubles, comm: Reductions) -> Doubles:
    """Ascending rows of every rank, such that rank r ends with all scores below those of rank r + 1."""
    shown = rows_KC[np.linspace(0, len(rows_KC) - 1, min(_SAMPLES, len(rows_KC))).astype(np.int64), 0]
    splitters = _splitters(comm.allgather((shown, len(rows_KC))), comm.size)
    bounds = np.searchsorted(rows_KC[:, 0], splitters, side="left")
    return send_rows(rows_KC, np.diff(np.concatenate([[0], bounds, [len(rows_KC)]])), comm)


def _splitters(shown: Sequence[tuple[Doubles, int]], size: int) -> Doubles:
    """``size - 1`` scores that cut what all ranks hold into about equal parts."""
    scores = np.concatenate([sample for sample, _ in shown])
    if not len(scores):
        return np.zeros(size - 1)
    stands_for = np.concatenate([np.full(len(sample), held / max(1, len(sample))) for sample, held in shown])
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(stands_for[order])
    cuts = np.searchsorted(reached, reached[-1] * np.arange(1, size) / size)
    return scores[order][np.minimum(cuts, len(scores) - 1)]


def _places(counts_R: Ints, padded_R: Ints) -> NDArray[np.bool_]:
    """Which rows of a padded buffer hold something."""
    starts_R = np.cumsum(padded_R) - padded_R
    number = np.arange(padded_R.sum())
    return number - np.repeat(starts_R, padded_R) < np.repeat(counts_R, padded_R)
