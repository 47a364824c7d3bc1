"""A step of the dense parameters: those that dense ranks train together, and slices of others at their holders.

Knows the order: sums of gradients, norm, scale, optimizers. Each is done in ``dense``.
"""

import math
from contextlib import nullcontext

from hpcrec.dense.reducer import clip_factor
from hpcrec.dense.slices import step_scaled
from hpcrec.errors import HpcrecError
from hpcrec.training.parts import Parts


def refuse_strays(parts: Parts) -> None:
    """Refuses gradients, on a dense rank, of parameters that are trained elsewhere; after backward.

    Raises
    ------
    HpcrecError
        A loss of the user's own depends on one.
    """
    for name in parts.slices.away:
        if parts.slices.wholes[name].grad is not None:
            raise HpcrecError(
                f"the loss depends on parameter {name!r} itself, not just on its operator's result, but it is trained "
                "where the rows are. Leave it out of the loss, use dense.optimizer.options.weight_decay, or set "
                'exchange.form to "pooled" or "rows", with which all dense parameters are trained on dense ranks.'
            )


def update_dense(parts: Parts, step: int, lr_scale: float) -> None:
    """One step of all dense parameters; after the exchange's gradients. Collective over all ranks.

    Raises
    ------
    HpcrecError
        Gradients are to be clipped, and their norm is not finite; on every rank that trains some.
    """
    dense, slices = parts.dense, parts.slices
    if dense is not None:
        # All dense ranks have agreed on the step, so the sum waits for nothing that crosses in pieces; but where dense
        # parameters are at stages, messages of all ranks cross between these two. Where the next step's rows wait for
        # these gradients they are no less urgent than the sum (held back, a step took 1.02 to 1.06 times as long).
        waits = slices.away or parts.pipeline.in_parts
        first = nullcontext() if waits else parts.world.pieces.held()
        with parts.timer("dense_reduce"), first:
            dense.reducer.reduce()
    elif not slices.away:
        return
    if slices.away:
        with parts.timer("dense_reduce"):
            slices.reduce()
    with parts.timer("dense_update"):
        if parts.clip_norm is not None:
            _clip(parts, parts.clip_norm, step)
        if dense is not None:
            step_scaled(dense.optimizer, lr_scale)
        slices.step(lr_scale)


def _clip(parts: Parts, max_norm: float, step: int) -> None:
    """Scales all gradients so that the norm of all of them, wherever they are, is at most ``max_norm``."""
    dense, slices = parts.dense, parts.slices
    squared = 0.0 if dense is None else dense.reducer.squared_norm()
    if slices.away:
        first = parts.world.topology.rank == parts.world.topology.dense[0]
        norm = slices.norm(squared if first else 0.0)
    else:
        norm = math.sqrt(squared)
    if not math.isfinite(norm):  # the same on every rank
        raise HpcrecError(
            f"step {step}: the norm of the dense gradients is {norm}, so they cannot be clipped to "
            f"dense.clip_norm = {max_norm}. Lower the learning rates, or look for extreme inputs."
        )
    factor = clip_factor(norm, max_norm)
    if dense is not None:
        dense.reducer.scale(factor)
    slices.scale(factor)
