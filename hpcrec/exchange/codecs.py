"""Which codec an exchange has. Knows all of them; does not know what they write."""

from collections.abc import Collection
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.world import World
from hpcrec.exchange.codec import Codec, make_codec
from hpcrec.exchange.direct import Direct
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.masks import Masks, Thresholding
from hpcrec.exchange.thresholds import Thresholded


def uncoded_ranks(world: World, layout: Layout) -> tuple[int, ...]:
    """World ranks to and from whom no codec writes: by levels those of this host, else nobody.

    Nobody either where rows have copies on every dense rank: gradients are written to all of these alike.
    """
    return () if layout.copied else world.uncoded_ranks


def codec_for(
    collectives: Collectives,
    kind: str,
    dtype: np.dtype[Any],
    masks: Masks | None,
    thresholding: Thresholding | None,
    direct: tuple[kernels.Device | None, kernels.Device | None] | None,
    uncoded: Collection[int] = (),
) -> Codec:
    """The codec that writes values as ``kind``.

    Parameters
    ----------
    masks : Masks or None
        Of a holder whose vectors are thresholded.
    thresholding : Thresholding or None
    direct : (Device or None, Device or None), or None
        Where messages cross from and to devices' memory: that of this rank's rows, and of its model's inputs.
    uncoded : collection of int
        World ranks to and from whom messages cross as they are in memory.
    """
    assert direct is None or not uncoded, "there messages do not go by levels"
    if thresholding is not None:
        assert direct is None, "the host thresholds"
        return Thresholded(collectives, masks, kind, thresholding, uncoded)
    return (
        make_codec(kind, collectives, dtype, uncoded) if direct is None else Direct(collectives, kind, dtype, *direct)
    )
