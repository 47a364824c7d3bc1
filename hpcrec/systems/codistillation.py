"""Codistillation: groups of ranks on different data that learn from each other's predictions.

Citation: [CODISTILL], R. Anil et al., *Large scale distributed neural network training through online distillation*.

The paper's terms:

group of workers, one model          -> a group of dense ranks (``dense.codistillation.groups``, ``comm.topology``)
disjoint subsets of the data         -> a range of samples for each group, in every epoch (``data.grouped``)
stale teacher predictions            -> dense parameters exchanged every K steps (``dense.codistillation``, ``every``)
distillation weight, psi             -> ``weight``; cross-entropy against the mean of the others' probabilities
burn-in                              -> ``burn_in_steps``

Departures from the paper, of which the abstract and pages about it were at hand: embedding rows are shared by all
groups, which train them together, so groups are less independent of each other; only dense parameters are exchanged,
among ranks at the same step instead of through checkpoint files. The weight does not change after the burn-in.
"""

from typing import Any


def configuration(groups: int = 2) -> dict[str, Any]:
    """Its positions on the axes, for ``config.validate`` together with data and a run folder."""
    return {
        "topology": {"mode": "fused"},
        "exchange": {"form": "pooled"},
        "policy": {"name": "sync"},
        "store": {"name": "dram"},
        "dense": {"reducer": "horovod", "codistillation": {"groups": groups}},
    }
