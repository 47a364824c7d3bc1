"""The ledger: bytes that a rank sends, by tag, split into same-host and cross-host.

Counts payload for point-to-point and all-to-all traffic, and the ring algorithm's formula for reductions and gathers,
Horovod's included. Bytes a rank sends to itself are not counted: they cross nothing. Knows host numbers, not MPI.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hpcrec.types import Ints

TAGS = ("ids", "values", "gradients", "dense", "control", "teachers")


class Ledger:
    """Bytes sent by this rank.

    Parameters
    ----------
    rank : int
        This rank in the world.
    host_of_R : sequence of int
        Host number of each world rank.
    """

    def __init__(self, rank: int, host_of_R: Sequence[int]) -> None:
        self._rank = rank
        self._crosses_R = (np.asarray(host_of_R) != host_of_R[rank]).astype(np.int64)
        self._sent_R = (np.arange(len(host_of_R)) != rank).astype(np.int64)
        self._lock = threading.Lock()  # ids are routed by a thread of their own
        self._bytes = np.zeros((len(TAGS), 2), np.int64)  # [tag, (same host, cross host)]
        self._here = threading.local()  # what one thread leaves out, another may be counting

    def same_host(self, ranks: Sequence[int]) -> list[bool]:
        """Whether each of these world ranks is on this rank's host."""
        return [not crosses for crosses in self._crosses_R[list(ranks)]]

    def add(self, tag: str, ranks: Sequence[int] | Ints, n_bytes: Ints) -> None:
        """Counts ``n_bytes[i]`` sent to world rank ``ranks[i]``."""
        if getattr(self._here, "paused", False):
            return
        to = np.asarray(ranks)
        all_bytes, cross = int(n_bytes @ self._sent_R[to]), int(n_bytes @ self._crosses_R[to])
        with self._lock:
            self._bytes[TAGS.index(tag)] += (all_bytes - cross, cross)

    def add_ring(self, tag: str, ranks: Sequence[int], n_bytes: float) -> None:
        """Counts ``n_bytes`` sent to the next of ``ranks`` in a ring."""
        following = ranks[(list(ranks).index(self._rank) + 1) % len(ranks)]
        self.add(tag, [following], np.array([round(n_bytes)], np.int64))

    def add_allreduce(self, tag: str, ranks: Sequence[int], n_bytes: int) -> None:
        """Counts an allreduce of ``n_bytes`` over ``ranks``: 2 (R - 1) / R of them sent by each rank."""
        self.add_ring(tag, ranks, 2 * (len(ranks) - 1) / len(ranks) * n_bytes)

    def add_allgather(self, tag: str, ranks: Sequence[int], n_bytes: int) -> None:
        """Counts an allgather in which this rank's part has ``n_bytes``: it crosses R - 1 links."""
        self.add_ring(tag, ranks, (len(ranks) - 1) * n_bytes)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out what this thread sends meanwhile: evaluation is not part of a step's bytes."""
        before = getattr(self._here, "paused", False)
        self._here.paused = True
        try:
            yield
        finally:
            self._here.paused = before

    def total_bytes(self) -> int:
        """All bytes that this rank has sent."""
        return int(self._bytes.sum())

    def snapshot(self) -> Ints:
        """Bytes by tag as int64 [len(TAGS), 2]: same host, cross host."""
        with self._lock:
            return self._bytes.copy()

    def restore(self, snapshot: Ints) -> None:
        """Goes on from a snapshot, as a resumed run does."""
        with self._lock:
            self._bytes[:] = snapshot


def describe(bytes_T2: Ints) -> dict[str, dict[str, int]]:
    """A snapshot, or a sum of them over ranks, as ``{tag: {same_host, cross_host}}``."""
    return {tag: {"same_host": int(row[0]), "cross_host": int(row[1])} for tag, row in zip(TAGS, bytes_T2, strict=True)}
