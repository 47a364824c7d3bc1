"""The ledger: bytes and messages that a rank sends, by tag, split into same-host and cross-host.

Counts payload for point-to-point and all-to-all traffic, where a message is whatever is sent to one other rank and is
not empty (where ranks of a host put theirs together, bytes count at who they are from, and messages at who sends them);
and the ring algorithm's formulas for reductions and gathers, Horovod's included. What a rank sends to itself
is not counted: it crosses nothing. Knows host numbers, not MPI.
"""

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hpcrec.comm.sizes import count_messages
from hpcrec.types import Ints

TAGS = ("ids", "values", "gradients", "dense", "control", "teachers", "shadow", "check")


class _Here(threading.local):
    """What holds for one thread."""

    paused = False
    apart: list[int] | None = None
    line: int | None = None


class Ledger:
    """Bytes and messages sent by this rank.

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
        self._lock = threading.Lock()  # ids are routed by a thread of their own
        counts = np.zeros((len(TAGS), 4), np.int64)
        self._counts = dict(zip(TAGS, counts, strict=True))
        self._bytes, self._messages = counts[:, :2], counts[:, 2:]  # [tag, (same host, cross host)]
        self._unknown = threading.Event()  # set: see ``messages_known``
        self._here = _Here()  # what one thread leaves out, another may be counting
        self._of_line: dict[int, int] = {}  # bytes, by the line of metrics that they are for; where they are kept
        self._line_now: list[int] = []  # where they are: what threads count for that have not said it

    def among(self, ranks: Sequence[int]) -> "Ledger":
        """The same ledger for a group that this rank is in: it counts here, and is told ranks by their place in it."""
        of = copy.copy(self)  # the counts and what guards them are shared
        to = np.asarray(ranks)
        of._rank, of._crosses_R = list(ranks).index(self._rank), self._crosses_R[to]
        return of

    @property
    def messages_known(self) -> bool:
        """Whether the messages are those of the same steps as the bytes.

        A run that goes on from bytes alone does not know how many messages they were.
        """
        return not self._unknown.is_set()

    def same_host(self, ranks: Sequence[int]) -> list[bool]:
        """Whether each of these world ranks is on this rank's host."""
        return [not crosses for crosses in self._crosses_R[list(ranks)]]

    def add(
        self, tag: str, ranks: Sequence[int] | Ints, n_bytes: Ints, n_messages: Ints | None = None, across: int = -1
    ) -> None:
        """Counts ``n_bytes[i]`` sent to world rank ``ranks[i]``; by default in one message where there are any.

        ``across``: in so many messages to other hosts, where they are not one to each rank.
        """
        here = self._here
        if here.paused:
            return
        to = ranks if isinstance(ranks, np.ndarray) else np.array(ranks, np.int64)
        with self._lock:
            counted = count_messages(n_bytes, n_messages, across, to, self._crosses_R, self._rank, self._counts[tag])
            if self._line_now:
                line = self._line_now[0] if here.line is None else here.line
                self._of_line[line] = self._of_line.get(line, 0) + counted
        if here.apart is not None:
            here.apart.append(counted)

    def counts_for(self, line: int) -> None:
        """What this thread sends from now on is for a line of metrics, whenever it is sent."""
        self._here.line = line

    def keep_by_line(self, line: int) -> None:
        """Bytes are counted by line from now on, to be taken; those of threads that have said none are for this one.

        Such are autograd's, which start sums of gradients that are on a GPU.
        """
        with self._lock:
            self._line_now[:] = [line]

    def take(self, line: int) -> int:
        """Bytes that were counted for a line; once. What is left of those before, by a loop that was left, is gone."""
        with self._lock:
            for before in [other for other in self._of_line if other < line]:
                del self._of_line[before]
            return self._of_line.pop(line, 0)

    def add_ring(self, tag: str, ranks: Sequence[int], n_bytes: float, n_messages: int = 1) -> None:
        """Counts ``n_bytes`` sent to the next of ``ranks`` in a ring, in so many messages; none where it is nothing."""
        following = ranks[(list(ranks).index(self._rank) + 1) % len(ranks)]
        counted = round(n_bytes)
        self.add(tag, [following], np.array([counted]), np.array([n_messages if counted else 0]))

    def add_allreduce(self, tag: str, ranks: Sequence[int], n_bytes: int) -> None:
        """Counts an allreduce of ``n_bytes`` over ``ranks``: each rank sends 2 (R - 1) messages of 1 / R of them."""
        links = 2 * (len(ranks) - 1)
        self.add_ring(tag, ranks, links / len(ranks) * n_bytes, links)

    def add_allgather(self, tag: str, ranks: Sequence[int], n_bytes: int) -> None:
        """Counts an allgather in which this rank's part has ``n_bytes``: R - 1 messages, for it crosses R - 1 links."""
        self.add_ring(tag, ranks, (len(ranks) - 1) * n_bytes, len(ranks) - 1)

    @contextmanager
    def told_apart(self) -> Iterator[list[int]]:
        """A list that has the bytes of whatever this thread sends meanwhile, which count as ever."""
        self._here.apart = sent = list[int]()
        try:
            yield sent
        finally:
            self._here.apart = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out what this thread sends meanwhile: evaluation is not part of a step's bytes."""
        before = self._here.paused
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

    def messages(self) -> Ints:
        """Messages by tag, in the shape of ``snapshot``."""
        with self._lock:
            return self._messages.copy()

    def forget_messages(self) -> None:
        """From now on they are not known."""
        self._unknown.set()

    def restore(self, snapshot: Ints, messages: Ints) -> None:
        """Goes on from a snapshot and the messages beside it, as a resumed run does."""
        with self._lock:
            self._bytes[:], self._messages[:] = snapshot, messages


def describe(bytes_T2: Ints) -> dict[str, dict[str, int]]:
    """A snapshot, messages, or a sum of them over ranks, as ``{tag: {same_host, cross_host}}``."""
    return {tag: {"same_host": int(row[0]), "cross_host": int(row[1])} for tag, row in zip(TAGS, bytes_T2, strict=True)}
