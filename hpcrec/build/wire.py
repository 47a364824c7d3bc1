"""What a codec makes of pooled vectors on the wire, for an export: it has no wire, and is to predict as the run does.

That is as ``hpcrec predict`` of the run by one process. Knows layouts, masks and a checkpoint's thresholds; what it
says is done by ``serving``. Starts no MPI.
"""

import math
from typing import Any

import numpy as np

from hpcrec.build.tables import make_thresholding
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.config import Config
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.masks import FeatureMasks, Thresholding, make_masks
from hpcrec.exchange.offers import Offers

Steps = dict[tuple[str, str], dict[str, Any]]
"""By feature and table: ``keep`` or ``tau``, and how ``vectors`` or ``rows`` are written (docs/checkpoint.md)."""


def on_wire(config: Config, offers: Offers, found: Checkpoint) -> tuple[Steps, list[str]]:
    """What happens to the vectors of each lookup.

    Parameters
    ----------
    config : Config
        As read (``tables.as_read``).
    offers : Offers
        Of one rank that has both roles.
    found : Checkpoint
        For thresholds that training found.

    Returns
    -------
    steps : dict
        That an export can do as well.
    differences : list of str
        What it cannot, since that depends on what else is in a batch or a message.
    """
    layout, exchange = offers.layout({}), config.exchange
    kind = exchange.dct.values if exchange.codec == "dct" else exchange.codec
    how, steps, differences = make_thresholding(config), Steps(), []
    for leg in layout.legs.values():
        streams = leg.streams[: leg.n_value_streams]
        for stream in streams:
            entry = leg.entries[stream.entry]
            written = {} if kind != "bf16" else {"rows" if entry.form == "rows" else "vectors": kind}
            steps |= {(feature, stream.table): dict(written) for feature in entry.features}
        if how is not None and how.evaluates:
            differences += _thresholds(leg, how, found, steps)
        if leg.partials and kind == "bf16":
            several = ", ".join(dict.fromkeys(p.operator for p in leg.partials))
            differences.append(f"partial results of operators {several} are not rounded to bf16: 2^-8 of each at most")
        if kind == "fp16" and (streams or leg.partials):
            differences.append(
                "what crosses is not rounded to fp16, by blocks of whatever is in a message: 2^-12 + 2^-23 of the "
                "largest magnitude of a block at most"
            )
    return steps, differences


def _thresholds(leg: Leg, how: Thresholding, found: Checkpoint, steps: Steps) -> list[str]:
    """Adds to ``steps`` which elements cross; returns of which it is not known."""
    masks, unknown = make_masks(leg, how), []
    by_rank = found.state.get("thresholds", [])
    masks.restore(by_rank, 0 if len(by_rank) == 1 else None)
    tau_S = masks.tau_GS[0] if isinstance(masks, FeatureMasks) else np.full(len(masks.widths), math.nan)
    cut = zip(leg.streams, masks.widths, masks.whole_S.tolist(), tau_S.tolist(), strict=False)
    for stream, width, whole, tau in cut:
        (feature,) = leg.entries[stream.entry].features  # form rows is refused with thresholds
        if whole:
            continue
        if how.by_vector:
            steps[feature, stream.table]["keep"] = how.of_vector(width)
        elif math.isnan(tau):
            unknown.append(feature)
        else:
            steps[feature, stream.table]["tau"] = tau
    if not unknown:
        return []
    several = ", ".join(dict.fromkeys(unknown))
    said = f"vectors of {several} are whole: the checkpoint lacks their thresholds, the run finds those of each batch"
    return [said]
