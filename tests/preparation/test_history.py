"""Histories tell earlier labels of the training part, and nothing of the sample itself or of other parts."""

import numpy as np
import pytest

from hpcrec.preparation.history import histories


@pytest.mark.parametrize("limit", [2, 1000])
def test_histories_equal_their_definition(limit: int) -> None:
    rng = np.random.default_rng(0)
    n = 300
    user, item, time = rng.integers(0, 7, n), rng.integers(0, 40, n), rng.integers(0, 60, n)
    label, training = rng.integers(0, 2, n).astype(np.float32), rng.random(n) < 0.7
    found = histories(user, item, time, label, training, limit)
    order = sorted(range(n), key=lambda i: (time[i], i))
    for i in range(n):
        same = [j for j in order if user[j] == user[i] and training[j]]
        rated = [item[j] for j in same if j != i]
        earlier = [j for j in same if time[j] < time[i]]
        expected = {
            "rated": rated[-limit:],
            "liked": [item[j] for j in earlier if label[j] == 1][-limit:],
            "disliked": [item[j] for j in earlier if label[j] == 0][-limit:],
        }
        for name, column in found.items():
            assert column.ids[column.offsets[i] : column.offsets[i + 1]].tolist() == expected[name], (i, name)
    # labels of the other parts change nothing
    flipped = np.where(training, label, 1 - label)
    for name, column in histories(user, item, time, flipped, training, limit).items():
        np.testing.assert_array_equal(column.ids, found[name].ids)
