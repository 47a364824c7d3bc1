"""Codistillation: groups of ranks on different data that learn from each other's predictions.

Citation: [CODISTILL], R. Anil et al., *Large scale distributed neural network training through online distillation*.

The paper's terms:

group of workers, one model          -> a group of dense ranks (``dense.codistillation.groups``, ``comm.topology``)
disjoint subsets of the data         -> a range of samples for each group, in every epoch (``data.grouped``)
stale teacher predictions            -> dense parameters exchanged every K steps (``dense.codistillation``, ``every``)
distillation weight, psi             -> ``weight``; cross-entropy against the mean of the others' probabilities
burn-in                              -> ``burn_in_steps``
a model's embeddings                 -> a set of tables for each group (``share_embeddings``, ``embedding.sets``)

Departures from the paper, of which the abstract and pages about it were at hand: only dense parameters are exchanged,
among ranks at the same step instead of through checkpoint files, and the other groups' rows are read as they are. By
default all groups train one set of tables together, so that they are less independent of each other and nothing more
is looked up. The weight does not change after the burn-in.
"""

from typing import Any


def configuration(groups: int = 2, *, share_embeddings: bool = True) -> dict[str, Any]:
    """Its positions on the axes, for ``config.validate`` together with data and a run folder."""
    return {
        "topology": {"mode": "fused"},
        "exchange": {"form": "pooled"},
        "policy": {"name": "sync"},
        "store": {"name": "dram"},
        "dense": {
            "reducer": "horovod",
            "codistillation": {"groups": groups, "share_embeddings": share_embeddings},
        },
    }
