"""A run's unsent dense gradients, saved and taken over: as they were, or by another number of ranks in equal shares.

Either way the sum over ranks stays what it was.

Knows a session's dense part and a checkpoint; the file is ``residuals``.
"""

import warnings
from collections.abc import Sequence

import numpy as np

from hpcrec.checkpoint.checkpoint import Checkpoint
from hpcrec.checkpoint.residuals import Unsent
from hpcrec.dense.dct_choose import Counts
from hpcrec.dense.residuals import Piece, Residuals
from hpcrec.errors import CheckpointError
from hpcrec.training.parts import Parts
from hpcrec.types import Floats


def unsent_of(parts: Parts) -> Unsent | None:
    """What this rank has unsent, if it thresholds; the reducer's own arrays."""
    dct = None if parts.dense is None else parts.dense.dct
    return None if dct is None else Unsent(dct.residuals, dct.counts, dct.density)


def load_residuals(parts: Parts, checkpoint: Checkpoint) -> None:
    """Takes over what falls to this rank; nothing is unsent where the checkpoint says nothing.

    Raises
    ------
    CheckpointError
        Files are missing, or of another model.
    """
    if parts.dense is None:
        return
    topology, dct = parts.world.topology, parts.dense.dct
    then, now, index = checkpoint.residual_ranks, len(topology.dense), topology.dense_index
    if dct is None:
        if then and index == 0:
            warnings.warn(
                f"{checkpoint.folder}: gradients that its {then} dense ranks had not sent are dropped, because "
                "dense.compression is 'none'",
                stacklevel=2,
            )
        return
    parameters = dict(parts.dense.named_parameters)
    sizes = {name: p.numel() for name, p in parameters.items()}
    if then == now:
        unsent = checkpoint.unsent(index)
        _check(checkpoint, unsent, sizes)
    else:  # of the ranks of the same group; the groups are as many as then
        size = then // topology.groups
        own = range(topology.group * size, (topology.group + 1) * size)
        unsent = _share(checkpoint, own, len(topology.group_ranks), sizes)
        if topology.place > 0:
            unsent = Unsent(unsent.residuals, Counts())
    dct.residuals, dct.counts = unsent.residuals, unsent.counts
    for held in (dct.residuals.first, dct.residuals.second):
        for name, piece in held.items():
            piece.left = piece.left.astype(parameters[name].detach().cpu().numpy().dtype, copy=False)
            if unsent.density not in (None, dct.density):
                piece.tau = None  # found anew at once
    dct.settle()


def _share(checkpoint: Checkpoint, then: range, now: int, sizes: dict[str, int]) -> Unsent:
    """An equal share for each of ``now`` ranks of what those of ``then`` had; thresholds are found anew.

    Counts are those of all.
    """
    sums: dict[str, Floats] = {}
    counts = Counts().as_array()
    for part in then:
        unsent = checkpoint.unsent(part)
        _check(checkpoint, unsent, sizes)
        counts += unsent.counts.as_array()
        for name in {*unsent.residuals.first, *unsent.residuals.second}:
            total = sums.setdefault(name, np.zeros(sizes[name]))
            for start, left in unsent.residuals.owed(name):
                total[start : start + len(left)] += left
    return Unsent(Residuals({name: Piece(0, total / now) for name, total in sums.items()}), Counts.of(counts))


def _check(checkpoint: Checkpoint, unsent: Unsent, sizes: dict[str, int]) -> None:
    """Refuses residuals of other parameters."""
    pieces: Sequence[tuple[str, Piece, bool]] = [
        *((name, piece, True) for name, piece in unsent.residuals.first.items()),
        *((name, piece, False) for name, piece in unsent.residuals.second.items()),
    ]
    for name, piece, whole in pieces:
        n = sizes.get(name)
        if n is None or piece.stop > n or (whole and len(piece.left) != n):
            has = "no such parameter" if n is None else f"{n} elements in it"
            raise CheckpointError(
                f"{checkpoint.folder}: has gradients of elements [{piece.start}, {piece.stop}) of dense parameter "
                f"{name!r} that were not sent; the model has {has}. Use the model.name and model.options that the "
                "checkpoint was trained with."
            )
