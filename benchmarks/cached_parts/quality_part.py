"""AUC of ``cached`` by staleness, beside that of ``sync`` (``hybrid_parts.auc_part``, whose settings are tuned for it).

4 dense ranks, which share a batch, and a copy of every row that a rank has met, so that rows lack the most that they
may: with less room rows that go come back fresh. Knows settings; starts nothing.
"""

from pathlib import Path

from des_parts.cells import Row
from hybrid_parts import auc_part

RANKS = 4
STALENESS = (10, 100)
NAMES = auc_part.DECIDES


def measure(cache: Path, files: Path, name: str, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, of the data set of this name, and claims."""
    arms = auc_part.Arms(
        staleness=STALENESS,
        settings=_settings,
        claimed=STALENESS,
        claim="het.auc_interval.{data}.s{staleness}",
        ranks=RANKS,
    )
    return auc_part.measure(cache, files, name, arms, quick=quick)


def _settings(staleness: int) -> list[str]:
    return ["policy.name=cached", f"policy.staleness={staleness}", "policy.capacity=1.0"]
