"""A run that is evaluated as it goes: log-loss of each group over steps, and what the first one's model predicts.

Knows sessions; which runs are compared, and what is made of the curves, is said above.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import hpcrec
from hpcrec.training.session import Session
from hpcrec.types import Floats

STOPPED = 75  # exit code of ranks that were asked to stop


def curve(config: str, settings: Sequence[str], every: int, predict_at: int, predictions: str) -> Any:
    """One run.

    Parameters
    ----------
    config : str
        Path of a configuration.
    settings : sequence of str
        As ``section.key=value``; ``data.test`` is what is evaluated.
    every : int
        Steps between two evaluations.
    predict_at : int
        Step after which the first group's model predicts the test data.
    predictions : str
        File for these probabilities, in the order of samples: float32 .npy.

    Returns
    -------
    dict
        ``steps`` of evaluations, ``logloss`` and ``auc`` of each, a list by group.
    """
    steps: list[int] = []
    found: dict[str, list[list[float]]] = {"logloss": [], "auc": []}
    with hpcrec.open_session(config, settings) as session:
        for step in session.steps():
            step.run()
            if session.step % every == 0:
                evaluation = session.evaluate("test")
                steps.append(session.step)
                for name, values in found.items():
                    values.append(evaluation.get(f"group_{name}", [evaluation[name]]))
            if session.step == predict_at:
                predicted = predict(session)
                if predicted is not None:
                    np.save(predictions, predicted)
        if session.stopped:  # by a signal: the jobs that follow are not to be begun
            sys.exit(STOPPED)
    return {"steps": steps, **found}


def predict(session: Session) -> Floats | None:
    """Probabilities of the test data by the run's model, float32 [samples]; on the first dense rank, else None."""
    dense = session.parts.world.dense
    out = np.empty(session.parts.splits["test"].dataset.samples, np.float32)
    for first, _, logits in session.outputs("test"):
        assert dense is not None
        parts = dense.gather_arrays(torch.sigmoid(logits).to(torch.float32).numpy())
        if parts is not None:
            joined = np.concatenate(parts)
            out[first : first + len(joined)] = joined
    return out if dense is not None and dense.rank == 0 else None
