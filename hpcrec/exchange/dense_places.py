"""What comes to a dense rank from all holders, and goes back: its streams, and where they are in the messages.

A message has one run of vectors for each stream, then partial results, and gradients may end in the verdict. Knows
numbers of vectors; knows no MPI.

Legend: ``S`` streams of all owners, ``E`` entries of all owners, ``R`` ranks.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcrec.exchange.bags import cumulative
from hpcrec.types import Ints


@dataclass(frozen=True)
class Streams:
    """Streams of all owners that reach this rank, owner after owner, in the order of their messages.

    ``group_S`` and ``place_S`` are the leaf and the lookup in it; ``bundle_S`` the number of the form that asks;
    ``begins_S`` the first stream of the same owner; ``valued_S`` whether there are values, not gradients alone.
    """

    owner_S: Ints
    entry_S: Ints
    width_S: Ints
    valued_S: NDArray[np.bool_]
    column_S: Ints
    group_S: Ints
    place_S: Ints
    bundle_S: Ints
    tables: tuple[str, ...]
    begins_S: Ints


@dataclass(frozen=True)
class MessagePlaces:
    """Where they are in values and in gradients, both in elements of all messages, and sizes of these.

    Attributes
    ----------
    value_S, gradient_S : int64 [S]
        First element of each stream.
    value_tail_R, gradient_tail_R : int64 [R]
        First element behind the streams of each message.
    value_bytes_R, gradient_bytes_R : int64 [R]
    """

    value_S: Ints
    gradient_S: Ints
    value_tail_R: Ints
    gradient_tail_R: Ints
    value_bytes_R: Ints
    gradient_bytes_R: Ints


@dataclass(frozen=True)
class Tails:
    """What is behind the streams of the messages of one step.

    Attributes
    ----------
    partial_R : int64 [R]
        Elements of partial results, of values and of gradients.
    told_R : int64 [R]
        1 where the gradients end in the verdict.
    """

    partial_R: Ints
    told_R: Ints


def places(streams: Streams, bags_E: Ints, tails: Tails, pad: Callable[[Ints], Ints], item: int) -> MessagePlaces:
    """Of messages with so many vectors in each stream of an entry.

    Parameters
    ----------
    streams : Streams
    bags_E : int64 [E]
    tails : Tails
    pad : callable
        Bytes of messages -> bytes on the wire.
    item : int
        Bytes of an element.
    """
    s, size = streams, len(tails.partial_R)
    counts_S = bags_E[s.entry_S] * s.width_S
    inside_S = np.cumsum(counts_S) - counts_S  # values come before gradients that have none
    inside_S -= inside_S[s.begins_S] if len(inside_S) else 0
    ends = [np.bincount(s.owner_S, n_S, size).astype(np.int64) for n_S in (counts_S * s.valued_S, counts_S)]
    bytes_R = [pad((n_R + tail) * item) for n_R, tail in zip(ends, (tails.partial_R, _sum(tails)), strict=True)]
    at_R = [cumulative(n_R)[:-1] // item for n_R in bytes_R]
    starts, tails_R = (
        [at[s.owner_S] + inside_S for at in at_R],
        [at + n_R for at, n_R in zip(at_R, ends, strict=True)],
    )
    return MessagePlaces(starts[0], starts[1], tails_R[0], tails_R[1], bytes_R[0], bytes_R[1])


def _sum(tails: Tails) -> Ints:
    return tails.partial_R + tails.told_R
