"""What a user did besides: for each sample, items of the same user from the training part, as multi-hot features.

``rated``     the user's other items, without labels (what implicit feedback tells)
``liked``     items strictly earlier in time with label 1
``disliked``  items strictly earlier in time with label 0

Only the training part gives items, and labels only of earlier ones, so that neither a sample's own label nor anything
of the evaluated parts is told. Knows arrays; knows nothing of files.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from hpcrec.data.layout import Column
from hpcrec.types import Floats, Ints

NAMES = ("rated", "liked", "disliked")


def histories(
    user: Ints, item: Ints, time: Ints, label: Floats, in_training: NDArray[np.bool_], limit: int
) -> dict[str, Column]:
    """The three features of every sample.

    Parameters
    ----------
    user, item, time : int64 [N]
    label : float [N]
    in_training : bool [N]
        Which samples give items.
    limit : int
        The latest so many items are kept of each history.

    Returns
    -------
    dict of str to Column
        By name; jagged, N samples each, items in order of time.
    """
    order = np.lexsort((np.arange(len(user)), time, user))  # by user, then time
    bounds = np.flatnonzero(np.diff(user[order], prepend=np.int64(-1), append=np.int64(-1)))
    parts: dict[str, list[Ints]] = {name: [np.zeros(0, np.int64)] * len(user) for name in NAMES}
    for start, stop in itertools.pairwise(bounds):
        mine = order[start:stop]
        giving = mine[in_training[mine]]
        earlier = np.searchsorted(time[giving], time[mine], side="left")
        liked = label[giving] > 0.5
        items, yes, no = item[giving], item[giving][liked], item[giving][~liked]
        n_yes = np.concatenate([[0], np.cumsum(liked)])  # liked among the first so many
        own = {sample: place for place, sample in enumerate(giving.tolist())}
        for sample, before in zip(mine.tolist(), earlier.tolist(), strict=True):
            place = own.get(sample)
            others = items if place is None else np.delete(items, place)
            parts["rated"][sample] = others[-limit:]
            count = int(n_yes[before])
            parts["liked"][sample] = yes[max(0, count - limit) : count]
            parts["disliked"][sample] = no[max(0, before - count - limit) : before - count]
    return {name: _column(part) for name, part in parts.items()}


def _column(parts: list[Ints]) -> Column:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(p) for p in parts], out=offsets[1:])
    return Column(np.concatenate(parts) if parts else np.zeros(0, np.int64), offsets)
