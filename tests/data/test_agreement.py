"""The first column in which two data sets differ, with what each has."""

from dataclasses import dataclass, field

import pytest

from hpcrec.data.agreement import difference
from hpcrec.types import Feature

USER, SITE = Feature(name="user", cardinality=10), Feature(name="site", cardinality=0)


@dataclass(frozen=True)
class Columns:
    features: tuple[Feature, ...] = field(default=(USER, SITE))
    n_dense: int = 3
    n_labels: int = 1


@pytest.mark.parametrize(
    ("mine", "wanted"),
    [
        (Columns(), None),
        (Columns((USER, Feature(name="site", cardinality=0, mean_ids=3.5))), None),
        (Columns((USER,)), ("no feature 'site'", "feature 'site'")),
        (Columns((USER, SITE, Feature(name="new", cardinality=2))), ("feature 'new'", "no feature 'new'")),
        (
            Columns((USER, Feature(name="site", cardinality=5))),
            ("feature 'site' with cardinality 5", "feature 'site' with cardinality not declared"),
        ),
        (
            Columns((Feature(name="user", cardinality=10, weighted=True), SITE)),
            ("feature 'user' with weights", "feature 'user' with no weights"),
        ),
        (Columns((SITE, USER)), ("'site' as feature 1", "'user' as feature 1")),
        (Columns(n_dense=4), ("4 dense inputs", "3 dense inputs")),
        (Columns(n_labels=2), ("2 labels", "1 labels")),
    ],
)
def test_the_first_difference(mine: Columns, wanted: tuple[str, str] | None) -> None:
    assert difference(mine, Columns()) == wanted
