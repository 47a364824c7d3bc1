"""DES: operators run where their rows are, and their partial results cross instead of rows.

Citation: [DES], H. Rong et al., *Distributed Equivalent Substitution Training for Large-Scale Recommender Systems*.

The paper's terms:

worker that stores a shard         -> owner (``comm.topology``): every rank
hash of an id -> worker             -> shard map (``embedding.shards``): tables whole, dealt by rows or by columns
sub-operator                       -> ``Operator.partial`` (``operators``), run by ``exchange.substitute``
aggregation of sub-results         -> ``Operator.reduce``, then ``finish``, on the dense side (``exchange.inputs``)
the same among workers first       -> ``exchange.reduction``: within a host, then between hosts (``exchange.reduce``)
computationally equivalent         -> equal to one process within summation order: tests/exchange/test_partial.py

With ``exchange.form = "auto"`` instead, each feature takes the form by which the fewest bytes cross
(``exchange.choose``), which the paper does not have.

The paper's "embedding + DNN", a first dense layer at the workers, is ``operators.folded``: each owner holds the rows of
the layer's weights that meet its columns, trains and checkpoints them. It is taken where fewer elements cross so.

Departures from the paper: each result is added for the dense rank alone that has its samples, there or on the way to
it, instead of by an allreduce for all workers; which of these follows from hosts and bytes by a formula
(``exchange.reduction``). Vectors that some operator needs as they are (cross and dot products) cross as in ``pooled``,
and every operator over them is computed from those. The second order term, and the first layer, over bags that are
split over owners are not substituted: a sum of squares is no sum over parts of a bag, and each part would need a copy
of the layer.
"""

from typing import Any


def configuration() -> dict[str, Any]:
    """DES's positions on the axes, for ``config.validate`` together with data and a run folder."""
    return {
        "topology": {"mode": "fused"},
        "exchange": {"form": "partial", "ids": "read", "codec": "fp32"},
        "policy": {"name": "sync"},
        "store": {"name": "dram"},
        "dense": {"reducer": "horovod"},
    }
