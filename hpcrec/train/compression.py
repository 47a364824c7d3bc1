"""What thresholding has come to, for metrics.jsonl and summary.json: of dense gradients, and of pooled vectors.

Knows what a session counts and evaluates; does not know how anything is thresholded.
"""

from typing import Any

import numpy as np

from hpcrec.dense.dct_choose import Counts
from hpcrec.train.session import Session


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
    remembered = session.parts.engine.masks
    mine = (0, 0, 0) if remembered is None else remembered.counts()
    kept, elements, drifts = session.parts.world.main.allreduce(np.array(mine, np.int64)).tolist()
    return {"density": kept / elements, "drift": drifts} if elements else {}


def evaluated_otherwise(session: Session, split: str) -> dict[str, float] | None:
    """AUC and log-loss on vectors that are thresholded if they are not else in evaluations, or whole if they are.

    As ``masked_auc`` and ``masked_logloss``, or ``unmasked_...``; nothing where the density is 1.
    Collective; None where a rank was asked to stop meanwhile.
    """
    how = session.parts.engine.thresholding
    if how is None or how.density == 1:
        return {}
    how.evaluates = not how.evaluates
    try:
        found = session.evaluate_unless_stopped(split)
    finally:
        masked, how.evaluates = how.evaluates, not how.evaluates
    name = "masked" if masked else "unmasked"
    return None if found is None else {f"{name}_{metric}": found[metric] for metric in ("auc", "logloss")}
