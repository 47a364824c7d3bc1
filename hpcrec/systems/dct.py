"""DCT: only entries of large magnitude cross, of dense gradients and of pooled vectors.

Citation: [DCT], V. Gupta et al., *Training Recommender Systems at Scale: Communication-Efficient Model and Data
Parallelism*.

The paper's terms:

data parallelism: gradients to a parameter server -> sums over dense ranks (``dense.dct``; ``dense.compression``)
error feedback                                    -> what a rank has unsent, saved (``dense.residuals``)
threshold, recomputed every L iterations          -> ``dense.dct.every``, ``exchange.dct.every``
model parallelism: activations, per sample        -> codec ``dct`` of the exchange (``exchange.masks``)
gradients under the same mask                     -> without positions: both sides know them

Departures from the paper, of which only the abstract was at hand: gradients are summed among ranks; up to 4 of them
each gets what all send, beyond that ranges are summed by one rank each, thresholded a second time and handed on. Values
are halves by default; what that loses of a gradient is sent later. A threshold of activations is here that of one
vector of a sample, found in every step; or, as an option, that of a feature at one owner, which lives for many steps
and which each sample's elements are held to. Partial results, and vectors of one column, cross whole. A threshold
that lets through twice what it should is found anew at once. Rows begin in their first columns
(``embedding.init_decay``), so that vectors have columns in common where few cross; some ten of them ought to: 128
columns at the density here. These settings are those of DLRM in ``benchmarks/dct.py`` but for its optimizers: rows want
a scale that goes with the model, and the dense part a learning rate that goes with the density.
"""

from typing import Any


def configuration() -> dict[str, Any]:
    """DCT's positions on the axes, for ``config.validate`` together with data and a run folder."""
    return {
        "topology": {"mode": "fused"},
        "model": {"width": 128},
        "embedding": {"init_scale": 0.5, "init_decay": 20.0},
        "exchange": {"form": "pooled", "codec": "dct", "dct": {"threshold": "vector", "density": 0.08}},
        "policy": {"name": "sync"},
        "store": {"name": "dram"},
        "dense": {"reducer": "horovod", "compression": "dct", "dct": {"density": 0.03, "every": 500}},
    }
