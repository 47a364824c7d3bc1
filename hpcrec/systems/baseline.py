"""The baseline: what hpcrec does where no paper is asked for.

Owners send one pooled vector a sample and feature and take the gradient of each back; every step waits for the last
one's update; values cross in full precision; rows are in main memory; dense gradients are summed by Horovod. It is what
the other systems are compared with, and what their results must equal where they promise to.

A file here is how a paper maps to hpcrec. It has four parts, of which the baseline needs the last two only:

1. the citation, by its key in docs/papers.md;
2. the paper's terms and where they are here: ``their term -> module``;
3. ``configuration()``: the positions on the axes, as a mapping that goes into a TOML file's;
4. departures from the paper: what is done otherwise, and why. The baseline has none to depart from.

No mechanism lives here: what a recipe asks for is built by ``build`` from the configuration, as for anybody.
"""

from typing import Any


def configuration() -> dict[str, Any]:
    """The baseline's positions on the axes, for ``config.validate`` together with data and a run folder."""
    return {
        "topology": {"mode": "fused"},
        "exchange": {"form": "pooled", "codec": "fp32"},
        "policy": {"name": "sync"},
        "store": {"name": "dram"},
    }
