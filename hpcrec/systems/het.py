"""HET: dense ranks keep copies of hot rows, and a clock for each row bounds how stale reads and writes may be.

Citation: [HET], X. Miao et al., *HET: Scaling out Huge Embedding Model Training via Cache-enabled Distributed
Framework*.

The paper's terms:

embedding server                            -> owner of rows (``comm.topology``, ``embedding``)
worker with a cache                         -> dense rank; its pools of copies (``exchange.forms.cached``)
clocks of a row c_g, c_c                    -> ticks that each copy lacks, at the row's owner; ticks held back
staleness s                                 -> ``policy.staleness``
cache of 10 %, LRU, LFU                     -> ``policy.capacity``, ``policy.cache``
Get: CheckValid, Fetch                      -> ask, answer what is too old (phase ``values``)
Update, Evict                               -> push of a sum of gradients (phase ``gradients``)
HET Hybrid without cache                    -> form ``rows`` under policy ``sync``, which deduplicates as theirs does
AllReduce of dense gradients                -> ``dense.reducer``

Departures from the paper: a write is pushed in the step in which its ticks pass s, not when its row is read again, so
that s = 0 is synchronous; everything is pushed at drain points, so that no update is lost; what a copy lacks is a
number of ticks (theirs, the difference of clocks that are maxima, is ``policy.rule = "max"``), so that a read lacks at
most s ticks of each dense rank, and the owner knows it, so that no clock crosses; which rows are read, pushed and given
up follows from the step alone, so that a run repeats its bits; light LFU halves its counts, so that rows that were
popular once go; and the Adagrads learn from sums of several steps' gradients. Fetches that run ahead of the step are
``policy.lookahead``. Not there yet: Adam above s = 0.
"""

from typing import Any


def configuration(staleness: int = 100) -> dict[str, Any]:
    """Its positions on the axes, for ``config.validate`` together with data and a run folder."""
    return {
        "topology": {"mode": "split"},
        "exchange": {"codec": "fp32"},
        "policy": {"name": "cached", "staleness": staleness, "capacity": 0.1, "cache": "lfu"},
        "embedding": {"optimizer": {"name": "sgd", "lr": 0.1}},
        "store": {"name": "dram"},
        "dense": {"reducer": "horovod"},
    }
