"""What thresholding has come to, for metrics.jsonl and summary.json: of dense gradients, and of pooled vectors.

Knows what a session counts and evaluates; does not know how anything is thresholded.
"""

import warnings
from collections.abc import Collection
from typing import Any

import numpy as np

from hpcrec.checkpoint.checkpoint import Checkpoint
from hpcrec.dense.dct_choose import Counts
from hpcrec.training.parts import Parts
from hpcrec.training.session import Session

FEW = 3  # elements of a vector: with so many of 128 columns next to nothing was lost, with one all (docs/dct.md)


def counts_here(session: Session) -> Counts:
    """This rank's; none where it thresholds nothing."""
    dense = session.parts.dense
    return Counts() if dense is None or dense.dct is None else dense.dct.counts


class Kept:
    """Entries of dense gradients that were thresholded, and sent, since it was last asked; on this rank."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told = (0, 0)
        self.more()

    def more(self) -> tuple[int, int]:
        """Entries sent and thresholded since the last call."""
        counts, told = counts_here(self._session), self._told
        self._told = (counts.kept, counts.entries)
        return counts.kept - told[0], counts.entries - told[1]


def density(kept: float, entries: float) -> dict[str, float]:
    """``dense_density`` as a line of metrics.jsonl has it, of all ranks; nothing where no entry was thresholded."""
    return {"dense_density": kept / entries} if entries else {}


def compression(session: Session) -> dict[str, Any]:
    """``dense_compression`` of summary.json: of all ranks; empty where gradients are summed whole. Collective."""
    counts = Counts.of(session.parts.world.main.allreduce(counts_here(session).as_array()))
    if not counts.sums:
        return {}
    return {
        "sent_bytes": counts.sent_bytes,
        "plain_bytes": counts.plain_bytes,
        "ratio": counts.plain_bytes / counts.sent_bytes if counts.sent_bytes else None,
        "density": counts.kept / counts.entries if counts.entries else None,
        "thresholds": {"scheduled": counts.scheduled, "drift": counts.drifted},
        "sums": {"thresholded": counts.sums - counts.whole, "whole": counts.whole},
    }


def vectors(session: Session) -> dict[str, Any]:
    """``exchange_thresholds`` of summary.json: of all owners, since this process began. Collective.

    ``density``: elements of thresholded vectors that crossed in training, of all; ``drift``: thresholds found anew
    because they let too many through. Empty where vectors are not thresholded.
    """
    remembered = session.parts.exchange.masks
    mine = (0, 0, 0) if remembered is None else remembered.counts()
    kept, elements, drifts = session.parts.world.main.allreduce(np.array(mine, np.int64)).tolist()
    return {"density": kept / elements, "drift": drifts} if elements else {}


def cut_widths(parts: Parts) -> list[int]:
    """Widths of vectors that are thresholded, at any owner, rising. Collective."""
    masks = parts.exchange.masks
    return sorted({w for of in parts.world.main.allgather([] if masks is None else masks.cut_widths()) for w in of})


def advise(parts: Parts) -> None:
    """Warns where codec ``dct`` thresholds nothing, or leaves next to nothing of a vector. Collective."""
    how = parts.exchange.thresholding
    if how is None or how.density == 1 or parts.chosen is not None:  # auto weighed it
        return
    widths = cut_widths(parts)
    if parts.world.main.rank > 0:
        return
    if not widths:
        warnings.warn(
            "exchange.codec is 'dct', but nothing of this model is thresholded: what crosses are partial results, or "
            f"vectors of one column, whole, so exchange.dct.density = {how.density} has no effect. Set exchange.form "
            "to 'pooled', or exchange.codec to 'fp16', which says what happens.",
            stacklevel=3,
        )
    elif how.by_vector and how.of_vector(widths[0]) < FEW:
        warnings.warn(
            f"exchange.dct.density = {how.density} leaves {how.of_vector(widths[0])} of the {widths[0]} elements of a "
            "vector, and those that never cross learn nothing. Allowed, but some ten ought to cross: raise model.width "
            "or exchange.dct.density (docs/dct.md).",
            stacklevel=3,
        )


def advise_reader(session: Session, checkpoint: Checkpoint, *, auto: bool, whole: Collection[str]) -> None:
    """Warns where whoever reads a run may see other elements of vectors than the run did.

    Parameters
    ----------
    session, checkpoint
        What reads, and of what.
    auto : bool
        Whether the run chose forms itself.
    whole : collection of str
        Features whose tables were asked to be whole at one owner.
    """
    how = session.parts.exchange.thresholding
    if how is None or how.density == 1:
        return
    if auto:
        warnings.warn(
            "exchange.form is 'auto': partial results that the run sent whole are read by thresholded vectors. Set "
            "exchange.forms to what summary.json has under 'exchange'.",
            stacklevel=4,
        )
    if checkpoint.state.get("uncoded_inside") and not session.parts.world.by_levels:
        warnings.warn(
            "the run went by levels, so that dense ranks had whole vectors of owners on their own host; who reads it "
            "has thresholded ones of all. Set exchange.dct.evaluate = false to read it by whole ones.",
            stacklevel=4,
        )
    then, now = len(checkpoint.state.get("thresholds", [])), session.topology.size
    dataset = session.parts.splits["test"].dataset
    several = [f.name for f in dataset.features if dataset.jagged(f.name) and f.name not in whole]
    summed = [name for name in checkpoint.state.get("summed", []) if name in several]
    if summed:
        warnings.warn(
            f"the run chose elements of vectors that hosts had added, of {', '.join(summed[:8])}; who reads it adds "
            "none, and chooses elements of each owner's part, so that other elements may cross. Read it on one rank, "
            "where vectors are whole, or train with embedding.tables.<table>.shard = 'table'.",
            stacklevel=4,
        )
    elif then and then != now and several:
        warnings.warn(
            f"{now} rank{'s' * (now > 1)} read{'s' * (now == 1)} a run of {then}: where a table's rows are dealt to "
            "owners, each thresholds its own part of a bag, so that other elements may cross of features with several "
            f"ids ({', '.join(several[:8])}). Read it on {then}, or train with embedding.tables.<table>.shard = "
            "'table'.",
            stacklevel=4,
        )


def evaluated_otherwise(session: Session, split: str) -> dict[str, float] | None:
    """AUC and log-loss on vectors that are thresholded if they are not else in evaluations, or whole if they are.

    As ``masked_auc`` and ``masked_logloss``, or ``unmasked_...``; nothing where none is.
    Collective; None where a rank was asked to stop meanwhile.
    """
    how = session.parts.exchange.thresholding
    if how is None or not cut_widths(session.parts):
        return {}
    how.evaluates = not how.evaluates
    try:
        found = session.evaluate_unless_stopped(split)
    finally:
        masked, how.evaluates = how.evaluates, not how.evaluates
    name = "masked" if masked else "unmasked"
    return None if found is None else {f"{name}_{m}": found[m] for m in ("auc", "logloss") if m in found}
