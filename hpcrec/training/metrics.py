"""Metrics of predictions, exact over any number of ranks: AUC, log-loss, normalized entropy, calibration.

Each rank brings its own samples, any number of them, none included; every rank gets the same answer. For AUC, distinct
scores are range-partitioned over the ranks by sampled splitters in one all-to-all, so no rank ever holds everything:
about 100 bytes a local sample at most, and twice its share where the samples mislead. Equal scores meet on one rank,
where a tie counts half.

Sums are float64. Knows neither models, nor MPI beyond the collectives handed in, nor torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcrec.errors import DataError, HpcrecError
from hpcrec.types import Floats, Ints

_SAMPLES = 128  # scores that each rank shows for choosing splitters
_WIRE_ROWS = 8  # a message is whole multiples of these rows: 8 rows of 3 float64 are whole units of 64 bytes

Doubles = NDArray[np.float64]


class Reductions(Protocol):
    """What metrics need of ``comm.collectives.Collectives``."""

    rank: int
    size: int

    def allreduce(self, values: NDArray[Any], tag: str = "control", op: str = "sum") -> NDArray[Any]:
        """Sum over the ranks."""

    def allgather(self, thing: Any) -> list[Any]:
        """Small objects from every rank, in rank order."""

    def alltoall(self, send_RM: Ints, tag: str) -> Ints:
        """Row i to rank i."""

    def alltoallv(self, send: NDArray[Any], send_bytes_R: Ints, recv_bytes_R: Ints, tag: str) -> NDArray[Any]:
        """Consecutive pieces to the ranks in order."""


def evaluate(
    logits: Floats, labels: Floats, weights: Floats | None = None, comm: Reductions | None = None
) -> dict[str, Any]:
    """Metrics over the samples of all ranks; collective over ``comm``.

    Parameters
    ----------
    logits : float [N] or [N, L]
        Of this rank's samples; N may differ, and be 0.
    labels : float [N] or [N, L]
        In [0, 1]; a label between counts as that part of a positive and the rest of a negative.
    weights : float [N] or None
        None means 1.
    comm : Collectives or None
        The dense ranks; None for this rank's samples alone.

    Returns
    -------
    dict
        ``auc``: the chance that a positive is scored above a negative, ties half. ``logloss`` in nats.
        ``normalized_entropy``: log-loss over that of always predicting the base rate. ``calibration``: sum of
        predictions over sum of labels. ``samples``: their number.
        A metric that these samples do not define is None (null in JSON): auc and normalized_entropy where all have
        one class, calibration where none is positive. With several labels each is the mean over the labels that define
        it, and ``per_label`` holds lists of them.

    Raises
    ------
    HpcrecError
        Logits that are not finite, or no samples; on every rank together.
    DataError
        Labels outside [0, 1], or weights that are negative or not finite; on every rank together.
    """
    logits_NL = _columns(logits)
    labels_NL = _columns(labels)
    assert logits_NL.shape == labels_NL.shape, f"logits {logits.shape} do not fit labels {labels.shape}"
    weights_N = np.ones(len(logits_NL)) if weights is None else np.asarray(weights, np.float64)
    assert weights_N.shape == logits_NL.shape[:1], f"weights {weights_N.shape} do not fit logits {logits.shape}"
    samples = _check(logits_NL, labels_NL, weights_N, comm)
    by_label = [
        _evaluate_label(logits_NL[:, label], labels_NL[:, label], weights_N, comm)
        for label in range(logits_NL.shape[1])
    ]
    if len(by_label) == 1:
        return {**by_label[0], "samples": samples}
    lists = {name: [of[name] for of in by_label] for name in by_label[0]}
    means = {name: _mean(values) for name, values in lists.items()}
    return {**means, "samples": samples, "per_label": lists}


def auc(logits: Floats, labels: Floats, weights: Floats | None = None, comm: Reductions | None = None) -> float | None:
    """Area under the ROC curve of one label over all ranks; None where all samples have one class.

    Arguments as for ``evaluate``, and finite.
    """
    y = np.asarray(labels, np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    rows_K3 = _merge_ties(np.stack([np.asarray(logits, np.float64), w * y, w * (1.0 - y)], axis=1))
    if comm is not None and comm.size > 1:
        rows_K3 = _merge_ties(_partition(rows_K3, comm))
    positive_K, negative_K = rows_K3[:, 1], rows_K3[:, 2]
    mine = np.array([positive_K.sum(), negative_K.sum()])
    sums_R2 = np.array([mine] if comm is None else comm.allgather(mine))
    positives, negatives = float(sums_R2[:, 0].sum()), float(sums_R2[:, 1].sum())
    below = float(sums_R2[: 0 if comm is None else comm.rank, 1].sum())
    below_K = below + np.cumsum(negative_K) - negative_K
    pairs = float(_sum(np.array([np.sum(positive_K * (below_K + negative_K / 2.0))]), comm)[0])
    if positives == 0.0 or negatives == 0.0:
        return None
    return min(1.0, pairs / (positives * negatives))


def named_by_label(found: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What ``evaluate`` gave, with ``by_label``, the metrics of each label by its name, in place of ``per_label``."""
    named = {name: value for name, value in found.items() if name != "per_label"}
    if "per_label" in found:
        lists = found["per_label"]
        named["by_label"] = {label: {name: of[i] for name, of in lists.items()} for i, label in enumerate(names)}
    return named


def flat(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same as numbers alone: those of each label as ``<label>_<metric>``."""
    by_label = {f"{label}_{name}": v for label, of in found.get("by_label", {}).items() for name, v in of.items()}
    return {**by_label, **{name: value for name, value in found.items() if name != "by_label"}}


class RunningMetrics:
    """AUC and log-loss of this rank's last samples, for a progress bar. Local, and cheap to update.

    Parameters
    ----------
    window : int
        Samples to look back on.
    """

    def __init__(self, window: int = 65_536) -> None:
        self._window = window
        self._parts: list[tuple[Floats, Floats, Floats | None]] = []
        self._held = 0

    def update(self, logits: Floats, labels: Floats, weights: Floats | None = None) -> None:
        """Adds a batch; forgets what falls out of the window, by whole batches. Arrays are kept, not copied."""
        self._parts.append((logits, labels, weights))
        self._held += len(logits)
        while len(self._parts) > 1 and self._held - len(self._parts[0][0]) >= self._window:
            self._held -= len(self._parts.pop(0)[0])

    def read(self) -> dict[str, float | None]:
        """``auc`` and ``logloss`` of the window; None where they are not defined, diverged logits included."""
        parts = [part for part in self._parts if len(part[0])]
        if not parts:
            return {"auc": None, "logloss": None}
        weights = [np.ones(len(x)) if w is None else w for x, _, w in parts]
        try:
            found = evaluate(
                np.concatenate([x for x, _, _ in parts]),
                np.concatenate([y for _, y, _ in parts]),
                np.concatenate(weights),
            )
        except HpcrecError:
            return {"auc": None, "logloss": None}
        return {"auc": found["auc"], "logloss": found["logloss"]}


def _evaluate_label(x_N: Doubles, y_N: Doubles, w_N: Doubles, comm: Reductions | None) -> dict[str, float | None]:
    loss_N = np.logaddexp(0.0, x_N) - y_N * x_N
    predicted_N = np.exp(-np.logaddexp(0.0, -x_N))
    sums = np.array([np.dot(w_N, loss_N), np.dot(w_N, predicted_N), np.dot(w_N, y_N), w_N.sum()])
    loss, predicted, positive, weight = (float(value) for value in _sum(sums, comm))
    logloss = loss / weight
    rate = positive / weight
    entropy = -(rate * np.log(rate) + (1.0 - rate) * np.log1p(-rate)) if 0.0 < rate < 1.0 else 0.0
    return {
        "auc": auc(x_N, y_N, w_N, comm),
        "logloss": logloss,
        "normalized_entropy": float(logloss / entropy) if entropy > 0.0 else None,
        "calibration": predicted / positive if positive > 0.0 else None,
    }


def _check(x_NL: Doubles, y_NL: Doubles, w_N: Doubles, comm: Reductions | None) -> int:
    """Number of samples; raises on every rank together, so that none waits for another."""
    bad_label = ~((y_NL >= 0.0) & (y_NL <= 1.0))
    bad_weight = ~((w_N >= 0.0) & np.isfinite(w_N))
    found = [len(x_NL), (~np.isfinite(x_NL)).sum(), bad_label.sum(), bad_weight.sum(), (w_N > 0.0).sum()]
    samples, logits, labels, weights, weighed = (int(n) for n in _sum(np.array(found, np.float64), comm))
    if weights:
        raise DataError(f"{weights} of {samples} sample weights are negative or not finite. Allowed: 0 and more.")
    if labels:
        raise DataError(
            f"{labels} of {samples * y_NL.shape[1]} labels are outside [0, 1]. Metrics are for click-like labels: "
            "prepare them as 0 and 1."
        )
    if logits:
        raise HpcrecError(
            f"{logits} of {samples * x_NL.shape[1]} logits are not finite: the model has diverged. Lower the learning "
            "rate, add a warm-up (schedule.warmup_steps), or clip gradients."
        )
    if not weighed:
        raise HpcrecError(f"there is nothing to evaluate: {samples} samples, none with a weight above 0")
    return samples


def _merge_ties(rows_K3: Doubles) -> Doubles:
    """Rows of (score, positive weight, negative weight), ascending, one for each distinct score."""
    if not len(rows_K3):
        return rows_K3
    rows_K3 = rows_K3[np.argsort(rows_K3[:, 0], kind="stable")]
    starts = np.flatnonzero(np.concatenate([[True], rows_K3[1:, 0] != rows_K3[:-1, 0]]))
    merged = np.add.reduceat(rows_K3, starts, axis=0)
    merged[:, 0] = rows_K3[starts, 0]
    return merged


def _partition(rows_K3: Doubles, comm: Reductions) -> Doubles:
    """Ascending rows of every rank, such that rank r ends with all scores below those of rank r + 1."""
    shown = rows_K3[np.linspace(0, len(rows_K3) - 1, min(_SAMPLES, len(rows_K3))).astype(np.int64), 0]
    splitters = _splitters(comm.allgather((shown, len(rows_K3))), comm.size)
    bounds = np.searchsorted(rows_K3[:, 0], splitters, side="left")
    counts_R = np.diff(np.concatenate([[0], bounds, [len(rows_K3)]])).astype(np.int64)
    recv_counts_R = comm.alltoall(counts_R[:, None], "control")[:, 0]
    padded_R, recv_padded_R = (-(-counts // _WIRE_ROWS) * _WIRE_ROWS for counts in (counts_R, recv_counts_R))
    send = np.zeros((padded_R.sum(), 3))
    send[_places(counts_R, padded_R)] = rows_K3
    row_bytes = 3 * send.itemsize
    recv = comm.alltoallv(send.reshape(-1), padded_R * row_bytes, recv_padded_R * row_bytes, "control")
    return recv.reshape(-1, 3)[_places(recv_counts_R, recv_padded_R)]


def _splitters(shown: Sequence[tuple[Doubles, int]], size: int) -> Doubles:
    """``size - 1`` scores that cut what all ranks hold into about equal parts."""
    scores = np.concatenate([sample for sample, _ in shown])
    if not len(scores):
        return np.zeros(size - 1)
    stands_for = np.concatenate([np.full(len(sample), held / max(1, len(sample))) for sample, held in shown])
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(stands_for[order])
    cuts = np.searchsorted(reached, reached[-1] * np.arange(1, size) / size)
    return scores[order][np.minimum(cuts, len(scores) - 1)]


def _places(counts_R: Ints, padded_R: Ints) -> NDArray[np.bool_]:
    """Which rows of a padded buffer hold something."""
    starts_R = np.cumsum(padded_R) - padded_R
    number = np.arange(padded_R.sum())
    return number - np.repeat(starts_R, padded_R) < np.repeat(counts_R, padded_R)


def _sum(values: Doubles, comm: Reductions | None) -> Doubles:
    return values if comm is None else comm.allreduce(values)


def _columns(values: Floats) -> Doubles:
    array = np.asarray(values, np.float64)
    return array[:, None] if array.ndim == 1 else array


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
