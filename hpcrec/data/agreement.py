"""Whether two data sets, or two files of one, have the same columns; if not, the first that differs. Opens no file."""

from collections.abc import Sequence
from typing import Protocol

from hpcrec.types import Feature


class Described(Protocol):
    """What a data set and a file both say of their columns."""

    @property
    def features(self) -> Sequence[Feature]:
        """Categorical inputs, in the order of the file."""

    @property
    def n_dense(self) -> int:
        """Dense inputs of a sample."""

    @property
    def n_labels(self) -> int:
        """Labels of a sample."""


def difference(mine: Described, other: Described) -> tuple[str, str] | None:
    """What ``mine`` has, and what ``other`` has in its stead, of the first column that differs; None where none does.

    Of features count names, order, cardinalities, and whether ids are weighted; of dense inputs and labels how many.
    """
    here, there = ({f.name: f for f in data.features} for data in (mine, other))
    for name in dict.fromkeys((*there, *here)):
        if name not in here or name not in there:
            said = f"feature {name!r}", f"no feature {name!r}"
            return said if name in here else (said[1], said[0])
        a, b = here[name], there[name]
        if a.cardinality != b.cardinality:
            return _cardinality(a), _cardinality(b)
        if a.weighted != b.weighted:
            return _weights(a), _weights(b)
    for place, (a_name, b_name) in enumerate(zip(here, there, strict=True), 1):
        if a_name != b_name:
            return f"{a_name!r} as feature {place}", f"{b_name!r} as feature {place}"
    for number, other_number, what in (
        (mine.n_dense, other.n_dense, "dense inputs"),
        (mine.n_labels, other.n_labels, "labels"),
    ):
        if number != other_number:
            return f"{number} {what}", f"{other_number} {what}"
    return None


def _cardinality(feature: Feature) -> str:
    return f"feature {feature.name!r} with cardinality {feature.cardinality or 'not declared'}"


def _weights(feature: Feature) -> str:
    return f"feature {feature.name!r} with {'' if feature.weighted else 'no '}weights"
