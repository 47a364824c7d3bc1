"""What tests of id maps share: rules, and what a map knows."""

import numpy as np
from hypothesis import strategies as st

from hpcrec import kernels

BACKENDS = ("native", "reference")


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def state_of(m: kernels.IdMap) -> kernels.IdState:
    """What it knows, also under the rule whose maps are not saved."""
    return m._map.save()


def any_rules(*evict: str | None) -> st.SearchStrategy[dict]:
    return st.fixed_dictionaries({"capacity": st.none() | st.integers(1, 6), "evict": st.sampled_from(evict)}).flatmap(
        lambda rules: st.sampled_from(
            [rules, {**rules, "admit_from": 2}, {**rules, "admit_from": 3, "pending": 3}]
            + [{**rules, "admit_probability": p, "seed": s} for p, s in ((0.5, 1), (0.1, -3))]
            + [{**rules, "in_use": 2}, {**rules, "in_use": 3}]
        )
    )
