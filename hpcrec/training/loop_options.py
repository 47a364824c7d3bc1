"""What a training loop is told of when to do what. Knows nothing of how."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """When to do what; the fields are those of ``[train]`` and ``[checkpoint]``.

    Attributes
    ----------
    log_every, eval_every, eval_batches, checkpoint_every : int or None
        In steps, or batches; 0 means only at the end.
    background, keep_best : bool
    full_every, keep : int
    resume : str
        ``auto``, ``never`` or the path of a checkpoint.
    patience : int or None
        Evaluations without improvement that end the run; None: no early stopping.
    min_delta : float
    metric : str
        What is to improve.
    """

    log_every: int
    eval_every: int
    eval_batches: int | None
    checkpoint_every: int
    background: bool
    full_every: int
    keep: int
    keep_best: bool
    resume: str
    patience: int | None
    min_delta: float
    metric: str
