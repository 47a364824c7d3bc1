"""Losses and gradients that are not finite: every rank learns of one before any is applied; the run stops or skips.

Each step sums one number over the dense ranks, after the backward pass; the others are told with the gradients that
follow. Knows a batch, what went into the model and what came out; not how a step is done.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.failure import agree, say
from hpcrec.dense.finite import all_finite
from hpcrec.errors import NonFiniteError
from hpcrec.training.parts import Samples, Split
from hpcrec.types import Batch

_MOST_LISTED = 6  # columns, and features, those that are not finite and then the widest; gradients


class Guard:
    """Decides alike on every rank whether a step's batch is learned from.

    Parameters
    ----------
    main : Collectives
        All ranks.
    dense : Collectives or None
        The dense ranks, on those: of all groups.
    skips : bool
        Leave the batch out, instead of stopping.
    drops : bool
        Leave just a feature's gradients out, where no others are at fault.
    limit : int
        Batches in a row that may be left out.

    Attributes
    ----------
    skipped, in_a_row : int
        Steps left out in the run, and by the last steps; a step that is learned ends the second count.
    dropped : int
        Features whose gradients this rank has left out, once for each batch.
    """

    def __init__(
        self, main: Collectives, dense: Collectives | None, *, skips: bool, limit: int, drops: bool = False
    ) -> None:
        self._main = main
        self._dense = dense
        self._skips = skips
        self._limit = limit
        self.drops = drops
        self._flag = np.zeros(1, np.int64)
        self.skipped = 0
        self.in_a_row = 0
        self.dropped = 0

    def note_dropped(self, step: int, features: Sequence[str]) -> None:
        """Counts features whose gradients were left out in a step that was learned; says so the first time."""
        if features and not self.dropped:
            say(
                f"hpcrec: step {step}: gradients of {', '.join(features)} are not finite, and left out "
                "(train.nonfinite = 'drop'); later ones are counted as dropped_features\n"
            )
        self.dropped += len(features)

    def agree(self, *, here: bool) -> bool:
        """Whether loss and gradients are finite on every dense rank; collective over these, the same answer on all.

        Parameters
        ----------
        here : bool
            Whether they are on this rank.
        """
        assert self._dense is not None, "only dense ranks have a loss"
        self._flag[0] = not here
        return not self._dense.allreduce(self._flag)[0]

    def skip(self, found: str | None) -> None:
        """Counts a step that is left out, or raises where it may not be; collective.

        Parameters
        ----------
        found : str or None
            What this rank has found, where its loss or gradients are not finite.

        Raises
        ------
        NonFiniteError
            On every rank, with what the lowest rank of those has found.
        """
        self.skipped += 1
        self.in_a_row += 1
        if self._skips and self.in_a_row <= self._limit:
            return
        if found is not None and self._skips:
            found += (
                f"\n  It is number {self.in_a_row} of such steps in a row, and train.nonfinite_limit is {self._limit}."
            )
        agree(self._main, None if found is None else NonFiniteError(found))


def zero_nonfinite(leaves: Sequence[Tensor], vectors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Makes gradients of features that are not finite zero, on this rank; after backward. Returns the features.

    Arguments as of ``nonfinite_gradients``.
    """
    names, found = iter([name for name, _ in vectors]), list[str]()
    for leaf in leaves:
        gradient_BFD, of_leaf = leaf.grad, [next(names) for _ in range(leaf.shape[1])]
        if gradient_BFD is None or all_finite(gradient_BFD):
            continue
        bad_F = ~torch.isfinite(gradient_BFD).all(dim=2).all(dim=0)
        gradient_BFD[:, bad_F] = 0
        found += [name for name, bad in zip(of_leaf, bad_F.tolist(), strict=True) if bad]
    return found


def nonfinite_gradients(
    leaves: Sequence[Tensor],
    vectors: Iterable[tuple[str, Tensor]],
    partials: Sequence[tuple[str, Tensor]],
    parameters: Sequence[str],
) -> list[str]:
    """Which gradients of this rank are not finite, as messages call them; after backward.

    Parameters
    ----------
    leaves : sequence of Tensor [B, F, D]
    vectors : iterable of (str, Tensor [B, D])
        The leaves' slices by name.
    partials : sequence of (str, Tensor [B, P])
        Operators' partial results, by their names.
    parameters : sequence of str
        Dense parameters whose gradients are not.
    """
    found: list[str] = []
    if not all(leaf.grad is None or all_finite(leaf.grad) for leaf in leaves):
        gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        slices = (slice_BD for gradient_BFD in gradients for slice_BD in gradient_BFD.unbind(1))
        for (name, _), slice_BD in zip(vectors, slices, strict=True):
            if n_bad := len(slice_BD) - int(torch.isfinite(slice_BD).all(dim=1).sum()):
                found.append(f"feature {name} ({n_bad} of {len(slice_BD)} samples)")
    for name, part in partials:
        if part.grad is not None and not all_finite(part.grad) and f"operator {name}" not in found:
            found.append(f"operator {name}")
    return found + [f"parameter {name}" for name in parameters]


def describe(
    step: int,
    split: Split,
    batch: Batch,
    samples: Samples,
    vectors: Iterable[tuple[str, Tensor]],
    losses_B: Tensor,
    logits: Tensor | None,
    gradients: Sequence[str] = (),
) -> str:
    """What a loss or gradients that are not finite came from, so that data can be told from divergence.

    Parameters
    ----------
    step : int
        Steps done before.
    vectors : iterable of (str, Tensor [B, D])
        Pooled embeddings by name.
    losses_B : Tensor [B]
        Loss of each sample.
    logits : Tensor [B] or [B, L], or None
        Where the model's own loss was used.
    gradients : sequence of str
        Those that are not finite though the loss is.
    """
    begins, n = split.order.batch_range(batch.index)[0], len(losses_B)
    place_B = batch.start + np.arange(n) if batch.positions is None else batch.positions
    where = f"samples [{begins + batch.start}, {begins + batch.start + n})"
    if batch.positions is not None:
        where = f"the {n} samples dealt to this rank of [{begins}, {begins + batch.size})"
    text = (
        f"step {step}: {'gradients are not finite, though the loss is,' if gradients else 'the loss is not finite'} in "
        f"global batch {batch.index} of epoch {batch.epoch}, {where} of the epoch's order"
    )
    bad = torch.nonzero(~torch.isfinite(losses_B.detach())).flatten().tolist()
    if gradients:
        left = len(gradients) - _MOST_LISTED
        text += f": {', '.join(gradients[:_MOST_LISTED])}" + (f" and {left} more" if left > 0 else "")
    elif bad:
        position = begins + int(place_B[bad[0]])
        row = int(split.order.positions(batch.epoch, position, position + 1)[0])
        text += f"; {len(bad)} of them, first {position} (sample {row} of {split.dataset.path}) with loss "
        text += f"{losses_B[bad[0]].item():g}, label {samples.label[bad[0]].tolist()}"
        text += "" if logits is None else f", logit {logits[bad[0]].tolist()}"
    else:
        text += "; each sample's is, but their sum overflows"
    columns = [(f"column {i}", samples.dense[:, i]) for i in range(samples.dense.shape[1])]
    norms = [(name, torch.linalg.vector_norm(vectors_BD.detach(), dim=1)) for name, vectors_BD in vectors]
    text += f".\n  dense inputs: {_ranges(columns)}\n  norms of pooled embeddings: {_ranges(norms)}"
    if logits is not None:
        text += f"\n  logits: {_range(logits)}"
    if gradients:
        text += "\n  A loss or model of your own: a root, norm or logarithm has no finite slope at 0."
    return text + (
        "\n  Inputs that are not finite or extreme: mend the data. Embeddings or logits that are: training diverged; "
        'lower the learning rates, or set dense.clip_norm. train.nonfinite = "skip" leaves such batches out.'
    )


def _ranges(named: list[tuple[str, Tensor]]) -> str:
    """Ranges of the most telling values: those that are not finite first, then those that reach furthest."""

    def reach(item: tuple[str, Tensor]) -> tuple[int, float]:
        finite = item[1][torch.isfinite(item[1])]
        return len(item[1]) - len(finite), float(finite.abs().max()) if len(finite) else 0.0

    shown = sorted(named, key=reach, reverse=True)[:_MOST_LISTED]
    left = f"; {len(named) - len(shown)} more reach less far" if len(named) > len(shown) else ""
    return "; ".join(f"{name} {_range(values)}" for name, values in shown) + left if named else "none"


def _range(values: Tensor) -> str:
    finite = values[torch.isfinite(values)]
    spread = f"{float(finite.min()):g} to {float(finite.max()):g}" if finite.numel() else "no finite value"
    bad = values.numel() - finite.numel()
    return f"{spread}, {bad} not finite" if bad else spread
