"""Persia: embeddings are read some updates early, dense parameters are synchronous.

Citation: [PERSIA], X. Lian et al., *Persia: An Open, Hybrid System Scaling Deep Learning-based Recommenders up to 100
Trillion Parameters*.

The paper's terms:

embedding parameter server                  -> owner of rows (``comm.topology``, ``embedding``)
NN worker                                   -> dense rank
embedding worker: routes, pools, remembers  -> dense rank and owner (``exchange.dense_side``, ``owner_side``)
``embedding_staleness``: permits, n + 1     -> ``policy.staleness``, n (``policy.hybrid``)
hybrid: asynchronous embeddings             -> a schedule: which version a step reads is a function of the step
synchronous mode: one permit                -> ``policy.name = "sync"``, or a staleness of 0
capacity, LRU, admit probability            -> ``embedding.tables.<name>.dynamic``: ``capacity``, ``evict``,
                                               ``admit_probability`` (``embedding.dynamic``)
``weight_bound``                            -> ``embedding.optimizer.bound``
gradients that are not finite are skipped   -> ``train.nonfinite = "drop"``, by feature (``training.nonfinite``)
rows start from their id                    -> from seed and id (``kernels.init_rows``)
AllReduce of dense gradients                -> ``dense.reducer``

Departures from the paper, whose body was not at hand: there permits bound how many steps are under way, and what a
step reads depends on who comes first; here it is the same at any speed. Its buffers may also have no bound
(``embedding_staleness = None``): ours always has one. A gradient of a row that its id has lost meanwhile is dropped and
counted. Its default of 10 permits absorbs differences between steps and buys nothing beyond 2 where there are none;
``policy.staleness = "auto"`` finds how many do.
"""

from typing import Any


def configuration(staleness: int = 2) -> dict[str, Any]:
    """Its positions on the axes, for ``config.validate`` together with data and a run folder."""
    return {
        "topology": {"mode": "split"},
        "exchange": {"form": "pooled", "codec": "fp32"},
        "policy": {"name": "hybrid", "staleness": staleness},
        "store": {"name": "dram"},
        "dense": {"reducer": "horovod"},
    }
