"""What a dense rank's step does because of groups: whose samples count, and what is learned from other groups.

Knows a session's parts; how groups learn from each other is for ``dense.codistillation``.
"""

from collections.abc import Mapping

from torch import Tensor

from hpcrec.dense.codistillation import Vectors
from hpcrec.errors import HpcrecError
from hpcrec.policy.pipeline import Ticket
from hpcrec.training.parts import Parts, Samples
from hpcrec.types import Floats


def begin(parts: Parts, ticket: Ticket, step: int) -> None:
    """Opens a step on this rank: dense parameters and predictions of other groups, where they are due; collective."""
    dense, topology = parts.dense, parts.world.topology
    if dense is not None and dense.dct is not None:
        dense.dct.begin(step)
    if dense is not None and dense.codistillation is not None:
        with parts.timer("teachers"):
            dense.codistillation.begin(step)
    for ahead, other in enumerate(ticket.beside, start=1):
        inputs = parts.pipeline.inputs(other)
        if inputs is None:
            continue
        assert dense is not None and dense.codistillation is not None and other.batch is not None
        with parts.timer("teachers"), dense.place.casting():
            x_BN = Samples.of(other.batch, parts.dtype, dense.place).dense
            dense.codistillation.listen(topology.reads(ahead)[topology.rank], inputs, x_BN)


def group_weight(parts: Parts, total: float, weights_R: Floats | None) -> tuple[float, float]:
    """What this group's losses are divided by, and the part of the global batch that its samples are.

    Parameters
    ----------
    total : float
        Weight of the global batch's samples. They may all weigh 0: then nothing is learned from them.
    weights_R : float [R]
        Weight of each rank's samples.
    """
    topology = parts.world.topology
    if topology.groups == 1:
        return total or 1.0, 1.0
    assert weights_R is not None, "every route has them"
    own = float(weights_R[list(topology.group_ranks)].sum())
    return own or 1.0, own / (total or 1.0)


def distillation(parts: Parts, logits: Tensor, inputs: Mapping[str, Tensor], samples: Samples) -> Tensor | None:
    """What is added to each sample's loss, [B] or [B, L]; None where nothing is.

    Raises
    ------
    HpcrecError
        ``inputs`` are not those of the step.
    """
    assert parts.dense is not None
    if parts.dense.codistillation is None:
        return None
    if not isinstance(inputs, Vectors):
        raise HpcrecError(
            f"dense.codistillation: default_losses was given {type(inputs).__name__} as inputs; other groups' models "
            "see the step's own. Hand on what the loss function was given."
        )
    with parts.timer("teachers"):
        return parts.dense.codistillation.loss(logits, inputs, samples.dense)


def refuse_without_logits(parts: Parts, logits: Tensor | None) -> None:
    """Refuses a loss of the user's own that leaves out what is learned from other groups.

    Raises
    ------
    HpcrecError
        It has not called ``Session.default_losses``, which notes ``logits``.
    """
    assert parts.dense is not None
    codistillation = parts.dense.codistillation
    if logits is None and codistillation is not None and codistillation.distills:
        raise HpcrecError(
            "dense.codistillation.groups is 2 or more, but the loss function does not use the other groups' "
            "predictions. Begin with session.default_losses(inputs, samples), which does, or set "
            "dense.codistillation.weight = 0."
        )
