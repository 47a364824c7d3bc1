"""DMT: features in towers, whose modules make less of them before they cross hosts; messages in two levels.

Citation: [DMT], L. Luo et al., *Disaggregated Multi-Tower: Topology-aware Modeling Technique for Efficient Large-Scale
Recommendation*.

The paper's terms:

semantic-preserving tower transform (SPTT)  -> ``exchange.path = "levels"``: of every model, without a change to it
tower                                       -> ``operators.tower.Tower``, by ``model.options.towers``: part of the model
where a tower is computed                   -> ``exchange.at_place``: owners of the host that has its rows
tower module (TM), compression ratio        -> ``models.tower_modules``, ``model.options.ratio``
c, p of the linear module                   -> ``model.options.mixed``; projections, as many as the ratio leaves
tower partitioner (TP)                      -> ``hpcrec towers plan``: the published signal, and another
DMT-DLRM, DMT-DCN                           -> ``model.name = "dmt_dlrm"``, ``"dmt_dcn"``

Departures from the paper: a tower is no host, so that any number of towers runs on any number of hosts, and a model
has the same outputs on all of them; everything counts in the ratio that a tower gives; the default module sends
products of the tower's features beside a projection, which alone has none of them; losses are divided by the weight of
the global batch, so that no gradient of a module needs a factor. Owners of the host that has a tower's rows compute
its module (form ``partial``), or dense ranks do, with the same result.
"""

from collections.abc import Sequence
from typing import Any


def configuration(towers: Sequence[Sequence[str]] = (), ratio: float = 4.0) -> dict[str, Any]:
    """Its positions on the axes, for ``config.validate`` together with data and a run folder.

    Parameters
    ----------
    towers : sequence of sequence of str
        Features of each; empty: two of all features, in their order.
    ratio : float
    """
    return {
        "topology": {"mode": "fused"},
        "model": {"name": "dmt_dlrm", "options": {"towers": [list(tower) for tower in towers], "ratio": ratio}},
        "exchange": {"form": "partial", "codec": "fp32", "path": "levels"},
        "policy": {"name": "sync"},
        "embedding": {"optimizer": {"name": "rowwise_adagrad", "lr": 0.02}},
        "store": {"name": "dram"},
        "dense": {"reducer": "horovod"},
    }
