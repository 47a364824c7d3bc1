"""What came of the phase ``ids`` of one batch. Holds things; does nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcrec.exchange.codec import Kept
from hpcrec.exchange.columns import Dealing
from hpcrec.exchange.copies import Came, Wanted
from hpcrec.exchange.dense_side import Arrived, Asked
from hpcrec.exchange.forms.conditional import Asked as AskedRows
from hpcrec.exchange.forms.conditional import Push
from hpcrec.exchange.passage import Passage
from hpcrec.exchange.work import Served
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Reading:
    """Which tables a batch is read of, where there are several sets of them (``embedding.sets``).

    Attributes
    ----------
    sets : tuple of int
        The set that each world rank reads, if it is dense.
    counted : bool
        As of ``Route``.
    dealing : Dealing or None
        What its forms ask for, where that is known already.
    """

    sets: tuple[int, ...]
    counted: bool
    dealing: Dealing | None = None


@dataclass
class Route:
    """A routed batch.

    Attributes
    ----------
    asked : Asked or None
        On dense ranks.
    served : Served or None
        On ranks that hold rows.
    train : bool
        Gradients will follow.
    stop : bool
        Some rank had been asked to stop when this batch was routed; every rank sees the same.
    total_weight : float
        Sum of the global batch's sample weights; every rank sees the same.
    weights_R : float64 [R] or None
        That sum by world rank, zeros of ranks that are not dense.
    save_failed : bool
        Some rank knew by then of a checkpoint that could not be written; every rank sees the same.
    kept : Kept or None
        What the codec of its values has to know of them when gradients come back.
    counted : bool
        Whether what is sent counts as sent in training; not in an evaluation.
    early : bool [bags] or None
        Of the bags that this dense rank asks for, those that may come before the step before is learned, where reads
        come in two parts.
    urgent : bool [bags] or None
        Those whose gradients go first, once the step after it is routed.
    values : float, flat or None
        What has come of a step that is read in two parts.
    gradients : float, flat or None
        What is to go of a step that is learned in two parts.
    learned : bool
        The verdict on a step that is learned in two parts.
    arrived : (leaves, partial results) or None
        What was read for this dense rank's model, until the model takes it.
    came : Came or None
        What owners have sent of rows that dense ranks keep, until the step begins.
    pushes : (Wanted, list of Push) or None
        What this dense rank pushes after the step, until it is sent.
    drain : bool
        Nothing is held back after the step.
    passage : Passage or None
        Where messages pass other ranks on their way.
    version : int
        Steps whose updates were in the rows when they were read, all that came before these.
    foreseen : sequence of lists of AskedRows
        Rows that steps to come will ask for, which copies are told of with this one; by step and bundle.
    ages : int64 [steps in flight] or None
        Of the distinct rows that this rank was asked for: how many lacked so many updates. Where they are counted.
    """

    asked: Asked | None
    served: Served | None
    train: bool
    stop: bool
    total_weight: float
    weights_R: Floats | None = None
    save_failed: bool = False
    kept: Kept | None = None
    counted: bool = True
    early: np.ndarray | None = None
    urgent: np.ndarray | None = None
    values: Floats | None = None
    gradients: Floats | None = None
    learned: bool = False
    arrived: Arrived | None = None
    came: Came | None = None
    pushes: tuple[Wanted, list[Push]] | None = None
    drain: bool = True
    passage: Passage | None = None
    version: int = 0
    foreseen: Sequence[Sequence[AskedRows]] = ()
    ages: Ints | None = None
