"""Calibration, mean prediction over mean label, of parts of the samples: by decile of the prediction, and by values.

Exact over any number of ranks, of which none holds everything. Knows neither files nor models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrec.training.over_ranks import Doubles, Reductions, below, by_group, starts_of, total
from hpcrec.types import Ints

DECILES = 10
MOST_VALUES = 20  # values that are told of, those that most samples have; the rest are told of together
OTHERS, NONE = "others", "none"  # in place of a value: of all values that are not told of, of samples without any


@dataclass(frozen=True)
class Values:
    """What samples have of a feature.

    Attributes
    ----------
    ids : int64 [K]
    sample : int64 [K]
        Which of this rank's samples has each.
    """

    ids: Ints
    sample: Ints


def by_decile(rows_K4: Doubles, comm: Reductions | None) -> list[dict[str, Any]]:
    """Ten parts of as many samples, from the lowest predictions up; collective.

    Equal predictions are in one decile, that of the first of them, so that some may have more samples and some none.

    Parameters
    ----------
    rows_K4 : float64 [K, 4]
        Of ``over_ranks.by_score``: score, weight of positives, of negatives, and number of samples, of each score.

    Returns
    -------
    list of dict
        ``samples``, ``predicted`` and ``label``, weighted means, and ``calibration``, their quotient; None where there
        is none.
    """
    score_K, positive_K, negative_K, samples_K = rows_K4.T
    all_samples = float(total(np.array([samples_K.sum()]), comm)[0])
    decile_K = (DECILES * below(samples_K, comm) // max(all_samples, 1.0)).astype(np.int64)  # whole numbers: exact
    weight_K = positive_K + negative_K
    predicted_K = weight_K * np.exp(-np.logaddexp(0.0, -score_K))
    columns = (samples_K, weight_K, predicted_K, positive_K)
    sums = np.zeros((DECILES, 4))
    for at, column_K in enumerate(columns):
        sums[:, at] = np.bincount(decile_K, column_K, DECILES)  # whose type is another where there are none
    return [_described(*row) for row in total(sums, comm).tolist()]


def by_value(
    values: Values, predicted_N: Doubles, label_N: Doubles, weight_N: Doubles, comm: Reductions | None
) -> list[dict[str, Any]]:
    """Samples by what they have of a feature, the most frequent values first; collective.

    A sample with several values is one of each of them, one with none is of ``NONE``. Samples of weight 0 are of none.

    Returns
    -------
    list of dict
        As of ``by_decile``, with ``value``: an id, ``OTHERS`` or ``NONE``.
    """
    counts = weight_N > 0.0
    samples_N = np.stack([counts, weight_N, weight_N * predicted_N, weight_N * label_N], axis=1).astype(np.float64)
    ids, sample = _distinct(values, counts)
    without_N = counts.copy()
    without_N[sample] = False
    order = np.argsort(ids, kind="stable")
    ids, sample = ids[order], sample[order]
    starts = starts_of(ids[1:] != ids[:-1])[: len(ids)]
    sums_V4 = np.add.reduceat(samples_N[sample], starts, axis=0) if len(starts) else np.zeros((0, 4))
    ids_V, sums_V4 = _meet(ids[starts], sums_V4, comm)
    first_V = np.lexsort((ids_V, -sums_V4[:, 0]))[:MOST_VALUES]
    shown = list(zip(ids_V[first_V].tolist(), sums_V4[first_V].tolist(), strict=True))
    found = [one for rank in ([shown] if comm is None else comm.allgather(shown)) for one in rank]
    found = sorted(found, key=lambda one: (-one[1][0], one[0]))[:MOST_VALUES]
    rest_V = ~np.isin(ids_V, [value for value, _ in found])
    others, none = total(np.stack([sums_V4[rest_V].sum(axis=0), samples_N[without_N].sum(axis=0)]), comm).tolist()
    last = [(name, sums) for name, sums in ((OTHERS, others), (NONE, none)) if sums[0]]
    return [{"value": value, **_described(*sums)} for value, sums in [*found, *last]]


def told(name: str, found: Any) -> dict[str, float | None]:
    """Calibration of each part of what ``by_decile`` gave, or ``by_value`` by feature: a number each, under one name.

    As ``calibration_by_decile/1``, the lowest decile, and ``calibration_by/<feature>/<value>``.
    """
    if isinstance(found, Mapping):
        return {f"{name}/{feature}/{one['value']}": one["calibration"] for feature in found for one in found[feature]}
    return {f"{name}/{decile}": one["calibration"] for decile, one in enumerate(found, start=1)}


def _distinct(values: Values, counts_N: Any) -> tuple[Ints, Ints]:
    """Ids and samples of pairs, each once, of samples that count."""
    order = np.lexsort((values.ids, values.sample))
    ids, sample = values.ids[order], values.sample[order]
    keep = counts_N[sample]
    keep[1:] &= (ids[1:] != ids[:-1]) | (sample[1:] != sample[:-1])
    return ids[keep], sample[keep]


def _meet(ids_V: Ints, sums_V4: Doubles, comm: Reductions | None) -> tuple[Ints, Doubles]:
    """Distinct ids of all ranks, each on one of them, and their sums over all ranks."""
    if comm is None or comm.size == 1:
        return ids_V, sums_V4
    _, (id_bits, *columns) = by_group(ids_V, [ids_V.view(np.float64), *sums_V4.T], comm)
    ids, sums = id_bits.view(np.int64), np.stack(columns, axis=1)
    order = np.argsort(ids, kind="stable")
    ids, sums = ids[order], sums[order]
    starts = starts_of(ids[1:] != ids[:-1])[: len(ids)]
    return ids[starts], np.add.reduceat(sums, starts, axis=0) if len(starts) else sums


def _described(samples: float, weight: float, predicted: float, label: float) -> dict[str, Any]:
    return {
        "samples": round(samples),
        "predicted": predicted / weight if weight > 0.0 else None,
        "label": label / weight if weight > 0.0 else None,
        "calibration": predicted / label if label > 0.0 else None,
    }
