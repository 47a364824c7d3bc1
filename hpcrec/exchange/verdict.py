"""The verdict on a step: whether it is learned, as one element behind the gradients of one message to each owner.

Dense ranks agree among themselves whether losses and gradients are finite; nothing but the gradients tells the others.
Each rank that holds rows is told by one dense rank, in a message that is sent also where it has no gradients: the
element is 0 where the step is learned, NaN where it is left out, which every codec delivers as they are. Knows ranks
and one element; knows no gradients and no MPI.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.codec import Kept
from hpcrec.types import Floats, Ints


def tellers(holders: Iterable[int], owners: Iterable[int], dense: Sequence[int]) -> dict[int, int]:
    """Rank that is told -> the dense rank that tells it: that of number j modulo their number, for holder number j.

    Parameters
    ----------
    holders : iterable of int
        World ranks that hold rows. Owners without rows follow them, where they are not dense.
    owners, dense : world ranks of these roles, ascending
    """
    first = sorted(holders)
    others = sorted(set(owners) - set(dense) - set(first))
    return {rank: dense[j % len(dense)] for j, rank in enumerate((*first, *others))}


def write(message: Floats, places: Ints, *, learned: bool) -> None:
    """Puts the verdict where each message that has it ends."""
    if isinstance(message, kernels.DeviceArray):
        for at in places.tolist():
            message[at : at + 1] = np.full(1, 0.0 if learned else np.nan, message.dtype)
    else:
        message[places] = 0.0 if learned else np.nan


def read(messages: Floats, at: int) -> bool:
    """Whether the step is learned, by the element there."""
    if isinstance(messages, kernels.DeviceArray):
        told = np.empty(1, messages.dtype)
        messages[at : at + 1].copy_to(told)
        return bool(told[0] == 0.0)
    return bool(messages[at] == 0.0)


def kept_with(kept: Kept, sent: Mapping[int, int], came: Mapping[int, int]) -> Kept:
    """The same elements, and the verdict's, by its place in the message to and from each rank."""
    none = np.zeros(0, np.int64)
    return Kept(
        {**kept.sent, **{r: np.append(kept.sent.get(r, none), at) for r, at in came.items()}},
        {**kept.came, **{r: np.append(kept.came.get(r, none), at) for r, at in sent.items()}},
    )
