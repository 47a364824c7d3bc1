"""DES: operators run where their rows are, and their partial results cross instead of rows.

Citation: [DES], H. Rong et al., *Distributed Equivalent Substitution Training for Large-Scale Recommender Systems*.

The paper's terms:

worker that stores a shard         -> owner (``comm.topology``): every rank
hash of an id -> worker             -> shard map (``embedding.shards``): tables whole, dealt by rows or by columns
sub-operator                       -> ``Operator.partial`` (``operators``), run by ``exchange.substitute``
aggregation of sub-results         -> ``Operator.reduce``, then ``finish``, on the dense side (``exchange.inputs``)
computationally equivalent         -> equal to one process within summation order: tests/exchange/test_partial.py

With ``exchange.form = "auto"`` instead, each feature takes the form by which the fewest bytes cross
(``exchange.choose``), which the paper does not have.

Departures from the paper: dense ranks each sum the partial results that owners send them, instead of an allreduce among
all workers. Vectors that some operator needs as they are (cross and dot products, the first layer of a tower) cross as
in ``pooled``, and every operator over them is computed from those. Tables have a declared size. The second order term
over bags that are split over owners is not substituted: its sum of squares is no sum over parts of a bag.
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
