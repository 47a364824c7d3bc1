"""A DLRM whose forward pass computes for longer on one rank: ``model.name = "planted:build"``.

Options beside those of DLRM: ``slow_rank``, and ``slow_ms``, how much longer.
"""

import os
import time
from typing import Any

from hpcrec.models.dlrm import DLRM, DLRMOptions


class Slow(DLRM):
    """DLRM, and nothing but time besides."""

    def __init__(self, features: Any, n_dense: int, *, slow_rank: int, slow_ms: float, **keywords: Any) -> None:
        sizes: dict[str, Any] = {name: tuple(keywords.pop(name)) for name in ("bottom", "top")}
        super().__init__(features, n_dense, options=DLRMOptions(**sizes), **keywords)
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0"))
        self.slow_s = slow_ms / 1e3 if int(rank) == slow_rank else 0.0

    def forward(self, inputs: Any, dense: Any) -> Any:
        """What DLRM gives, later."""
        until_s = time.thread_time() + self.slow_s
        while time.thread_time() < until_s:
            pass
        return super().forward(inputs, dense)


build = Slow
