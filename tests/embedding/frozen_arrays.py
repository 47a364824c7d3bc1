"""Rows of arrays, frozen."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from hpcrec.embedding.frozen import FrozenRows, copied, row_bytes


def frozen_arrays(arrays: Mapping[str, np.ndarray], wanted: np.ndarray, spill: Path, budget_bytes: int) -> FrozenRows:
    return FrozenRows(partial(copied, arrays), row_bytes(arrays), wanted, spill, budget_bytes)
