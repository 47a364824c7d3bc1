"""Metrics of predictions, exact over any number of ranks; docs/metrics.md defines each.

Each rank brings its own samples, any number of them, none included; every rank gets the same answer. Samples change
ranks by ranges of their scores (AUC, average precision, deciles: about 130 bytes a local sample at most, and twice its
share where the samples mislead) or by group (``by_group``), so no rank ever holds everything (``over_ranks``). Equal
scores meet on one rank, where a tie counts half.

Sums are float64. Knows neither models, nor MPI beyond the collectives handed in, nor torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from hpcrec.errors import DataError, HpcrecError
from hpcrec.training import by_group
from hpcrec.training.by_group import Grouped
from hpcrec.training.calibration import Values, by_decile, by_value
from hpcrec.training.measures import Measures, Own, Predictions
from hpcrec.training.metric_names import KINDS, TABLES, is_own, kind_of, parse
from hpcrec.training.over_ranks import Doubles, Reductions, below, by_score, total
from hpcrec.types import Floats, Ints

_OF_GROUPS = {"gauc": by_group.gauc, "mrr": by_group.mrr}
_AT_K = {"ndcg": by_group.ndcg, "recall": by_group.recall}
_RUNNING = Measures(metrics=("auc", "logloss"))


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What metrics take of this rank's samples besides logits, labels and weights.

    Attributes
    ----------
    group : int64 [N] or None
    values : mapping of str to Values
        By feature.
    """

    group: Ints | None = None
    values: Mapping[str, Values] = field(default_factory=dict)


def evaluate(
    logits: Floats,
    labels: Floats,
    weights: Floats | None = None,
    comm: Reductions | None = None,
    *,
    measures: Measures | None = None,
    beside: Beside | None = None,
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
    measures : Measures, optional
        Which metrics; by default auc, logloss, normalized_entropy and calibration.
    beside : Beside, optional
        Groups, where a metric needs them, and the values that ``measures.by`` names.

    Returns
    -------
    dict
        Each metric by its name: ``auc``, the chance that a positive is scored above a negative, ties half; ``logloss``
        in nats; ``normalized_entropy``, log-loss over that of always predicting the base rate; ``calibration``, sum of
        predictions over sum of labels; and so on (docs/metrics.md). ``samples``: their number. With calibration
        ``calibration_by_decile``, with ``measures.by`` ``calibration_by``, by feature; beside a metric by group
        ``<metric>_left_out``, the share of the weight of groups without a value.
        A metric that these samples do not define is None (null in JSON): auc and normalized_entropy where all have
        one class, calibration where none is positive. With several labels each is the mean over the labels that define
        it, and ``per_label`` holds lists of them, and of what is no number.

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
        _OneLabel(logits_NL[:, label], labels_NL[:, label], weights_N, beside or Beside(), comm).measure(
            measures or Measures()
        )
        for label in range(logits_NL.shape[1])
    ]
    if len(by_label) == 1:
        return {**by_label[0], "samples": samples}
    lists = {name: [of[name] for of in by_label] for name in by_label[0]}
    means = {name: _mean(values) for name, values in lists.items() if name not in TABLES}
    return {**means, "samples": samples, "per_label": lists}


def auc(logits: Floats, labels: Floats, weights: Floats | None = None, comm: Reductions | None = None) -> float | None:
    """Area under the ROC curve of one label over all ranks; None where all samples have one class.

    Arguments as for ``evaluate``, and finite.
    """
    y = np.asarray(labels, np.float64)
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    return _auc(by_score(np.stack([np.asarray(logits, np.float64), w * y, w * (1.0 - y)], axis=1), comm), comm)


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
                measures=_RUNNING,
            )
        except HpcrecError:
            return {"auc": None, "logloss": None}
        return {"auc": found["auc"], "logloss": found["logloss"]}


class _OneLabel:
    """Samples of this rank and one label, and what is made of them once for several metrics."""

    def __init__(self, x_N: Doubles, y_N: Doubles, w_N: Doubles, beside: Beside, comm: Reductions | None) -> None:
        self._x_N, self._y_N, self._w_N, self._beside, self._comm = x_N, y_N, w_N, beside, comm
        self._predicted_N = np.exp(-np.logaddexp(0.0, -x_N))

    def measure(self, measures: Measures) -> dict[str, Any]:
        """All that is asked for; collective."""
        kinds = {parse(name)[0] for name in measures.metrics if not is_own(name)}
        found: dict[str, Any] = self._of_sums()
        if kinds & {"auc", "pr_auc", "calibration"}:
            found |= self._of_scores(kinds)
        by_groups = [name for name in measures.metrics if (kind := kind_of(name)) is not None and kind.by_group]
        grouped = self._grouped() if by_groups or (measures.own and self._beside.group is not None) else None
        for name in by_groups:
            assert grouped is not None
            found[name], found[f"{name}_left_out"] = self._of_groups(name, grouped)
        for name, own in measures.own.items():
            found[name] = self._own(name, own, grouped)
        asked = [part for name in measures.metrics for part in (name, f"{name}_left_out", f"{name}_by_decile")]
        kept = {name: found[name] for name in asked if name in found}
        if measures.by:
            kept["calibration_by"] = {
                name: by_value(self._beside.values[name], self._predicted_N, self._y_N, self._w_N, self._comm)
                for name in measures.by
            }
        return kept

    def _of_sums(self) -> dict[str, Any]:
        x_N, y_N, w_N, predicted_N = self._x_N, self._y_N, self._w_N, self._predicted_N
        loss_N = np.logaddexp(0.0, x_N) - y_N * x_N
        columns = (loss_N, predicted_N, y_N, (predicted_N - y_N) ** 2)
        sums = total(np.array([*(np.dot(w_N, column) for column in columns), w_N.sum()]), self._comm)
        loss, predicted, positive, squares, weight = (float(value) for value in sums)
        logloss = loss / weight
        rate = positive / weight
        entropy = -(rate * np.log(rate) + (1.0 - rate) * np.log1p(-rate)) if 0.0 < rate < 1.0 else 0.0
        return {
            "logloss": logloss,
            "normalized_entropy": float(logloss / entropy) if entropy > 0.0 else None,
            "calibration": predicted / positive if positive > 0.0 else None,
            "rmse": math.sqrt(squares / weight),
        }

    def _of_scores(self, kinds: set[str]) -> dict[str, Any]:
        """What is of samples in the order of their scores, each kind that is asked for."""
        x_N, y_N, w_N, comm = self._x_N, self._y_N, self._w_N, self._comm
        rows_K4 = by_score(np.stack([x_N, w_N * y_N, w_N * (1.0 - y_N), w_N > 0.0], axis=1), comm)
        of = {"auc": _auc, "pr_auc": _average_precision, "calibration": by_decile}
        return {("calibration_by_decile" if k == "calibration" else k): of[k](rows_K4, comm) for k in of if k in kinds}

    def _grouped(self) -> Grouped:
        assert self._beside.group is not None, "Measures.columns has refused data without groups"
        return Grouped.of(self._x_N, self._y_N, self._w_N, self._beside.group, self._comm)

    def _of_groups(self, name: str, grouped: Grouped) -> tuple[float | None, float | None]:
        kind, k = parse(name)
        values = _AT_K[kind](grouped, k) if KINDS[kind].at_k else _OF_GROUPS[kind](grouped)
        return by_group.over_groups(grouped, values, self._comm)

    def _own(self, name: str, own: Own, grouped: Grouped | None) -> float | None:
        """A metric of the user's own, which has to be a number, and the same on all ranks."""
        if grouped is not None:
            x_N, y_N, w_N = grouped.score_N, grouped.label_N, grouped.weight_N
        else:
            counts = self._w_N > 0.0
            x_N, y_N, w_N = self._x_N[counts], self._y_N[counts], self._w_N[counts]
        starts_G = None if grouped is None else grouped.group_G
        predictions = Predictions(logit=x_N, label=y_N, weight=w_N, group_start=starts_G)
        value: Any = own(predictions, partial(_total_of_own, comm=self._comm))
        if isinstance(value, int | float | np.number):
            value = float(value) if math.isfinite(value) else None
        value_R = [value] if self._comm is None else self._comm.allgather(value)
        for rank, one in enumerate(value_R):
            if one is not None and not isinstance(one, float):
                raise HpcrecError(
                    f"metric {name} returned {type(one).__name__} on dense rank {rank}. Allowed: a number, or None "
                    "where it is not defined."
                )
            if one != value_R[0]:
                raise HpcrecError(
                    f"metric {name} returned {value_R[0]} on dense rank 0 and {one} on dense rank {rank}. Allowed: the "
                    "same on all. Compute it from sums over all ranks, which total() gives."
                )
        found: float | None = value_R[0]
        return found


def _total_of_own(values: Any, comm: Reductions | None) -> Doubles:
    """Sums over the ranks of numbers that a user's function hands in."""
    return total(np.array(values, np.float64), comm)


def _auc(rows_KC: Doubles, comm: Reductions | None) -> float | None:
    """Of rows of ``by_score``: score, weight of positives, weight of negatives."""
    positive_K, negative_K = rows_KC[:, 1], rows_KC[:, 2]
    positives, negatives = (float(n) for n in total(np.array([positive_K.sum(), negative_K.sum()]), comm))
    below_K = below(negative_K, comm)
    pairs = float(total(np.array([np.sum(positive_K * (below_K + negative_K / 2.0))]), comm)[0])
    if positives == 0.0 or negatives == 0.0:
        return None
    return min(1.0, pairs / (positives * negatives))


def _average_precision(rows_KC: Doubles, comm: Reductions | None) -> float | None:
    """Precision at each score, of all samples with it or above, by the share of positives that have it; rows as above.

    None where there is no positive.
    """
    positive_K, negative_K = rows_KC[:, 1], rows_KC[:, 2]
    positives, negatives = (float(n) for n in total(np.array([positive_K.sum(), negative_K.sum()]), comm))
    found_K = np.maximum(positives - below(positive_K, comm), positive_K)
    wrong_K = np.maximum(negatives - below(negative_K, comm), negative_K)
    at_all_K = found_K + wrong_K
    precision_K = np.divide(found_K, at_all_K, out=np.zeros(len(at_all_K)), where=at_all_K > 0.0)
    area = float(total(np.array([np.sum(positive_K * precision_K)]), comm)[0])
    return min(1.0, area / positives) if positives > 0.0 else None


def _check(x_NL: Doubles, y_NL: Doubles, w_N: Doubles, comm: Reductions | None) -> int:
    """Number of samples; raises on every rank together, so that none waits for another."""
    bad_label = ~((y_NL >= 0.0) & (y_NL <= 1.0))
    bad_weight = ~((w_N >= 0.0) & np.isfinite(w_N))
    found = [len(x_NL), (~np.isfinite(x_NL)).sum(), bad_label.sum(), bad_weight.sum(), (w_N > 0.0).sum()]
    samples, logits, labels, weights, weighed = (int(n) for n in total(np.array(found, np.float64), comm))
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


def _columns(values: Floats) -> Doubles:
    array = np.asarray(values, np.float64)
    return array[:, None] if array.ndim == 1 else array


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
