"""What evaluations of a run measure: metrics by name, functions of the user's own, and features to tell apart by.

Knows names (``metric_names``) and the columns that they need of a data set; ``metrics`` computes them.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from hpcrec.models.own import find
from hpcrec.training.metric_names import DEFAULT, is_own, kind_of
from hpcrec.training.over_ranks import Doubles
from hpcrec.types import Ints

SIGNATURE = "metric(predictions, total)"


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a metric of the user's own is given: samples of this rank. Where there are several labels, of one of them.

    Attributes
    ----------
    logit, label, weight : float64 [N]
        No weight is 0.
    group_start : int64 [G] or None
        Where the data set has ``/group``: all samples of a group are on one rank, group after group, from the highest
        logit down; these are the first samples of the groups. None where it has none.
    """

    logit: Doubles
    label: Doubles
    weight: Doubles
    group_start: Ints | None

    @property
    def probability(self) -> Doubles:
        """Predicted probabilities, float64 [N]."""
        found: Doubles = np.exp(-np.logaddexp(0.0, -self.logit))
        return found


Total = Callable[[Doubles | Sequence[float]], Doubles]  # numbers [M] of this rank -> their sums over all ranks [M]
Own = Callable[[Predictions, Total], float | None]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What is measured.

    Attributes
    ----------
    metrics : tuple of str
        Names, and import paths.
    own : mapping of str to function
        What the import paths name.
    by : tuple of str
        Features by whose values calibration is told apart.
    """

    metrics: tuple[str, ...] = DEFAULT
    own: Mapping[str, Own] = field(default_factory=dict)
    by: tuple[str, ...] = ()

    def columns(self, dataset: DataSet) -> tuple[str, ...]:
        """Optional columns of a data set that are needed besides weights.

        Raises
        ------
        ConfigError
            It has no ``/group``, and a metric needs it.
        """
        needing = [name for name in self.metrics if (kind := kind_of(name)) is not None and kind.by_group]
        if "group" in dataset.optional:
            return ("group",) if needing or self.own else ()
        if needing:
            raise ConfigError(
                f"evaluation.metrics: {', '.join(needing)} {'is' if len(needing) == 1 else 'are'} by group, and "
                f"{dataset.path} has no /group (int64, one a sample: say the user; docs/data.md). Prepare it with "
                "one, or leave these out of evaluation.metrics and train.early_stop.metric."
            )
        return ()

    def check_by(self, features: Sequence[str]) -> None:
        """Refuses features that are not among ``features``, those that the model reads.

        Raises
        ------
        ConfigError
            Naming the first.
        """
        for name in self.by:
            if name not in features:
                raise ConfigError(
                    f"evaluation.by names feature {name!r}, which the model does not read. Allowed: "
                    f"{', '.join(features)}."
                )


def load_own(names: Sequence[str], folder: Path | None) -> dict[str, Own]:
    """Functions of the user's own among ``names``, by import path; ``folder`` is searched first.

    Raises
    ------
    ConfigError
        One is not found, or does not take what it is given.
    """
    found: dict[str, Own] = {}
    for name in names:
        if not is_own(name):
            continue
        function = find(name, folder, what="metric")
        try:
            inspect.signature(function).bind(None, None)
        except TypeError as error:
            raise ConfigError(
                f"metric {name}: it cannot be called with two arguments: {error}; its signature must allow {SIGNATURE}"
            ) from error
        found[name] = function
    return found
