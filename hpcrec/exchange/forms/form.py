"""What a form is: how a dense rank asks for one bundle of features, and what it does with the vectors that answer.

Owners know bags and no forms: a request is bags of ids, the answer one vector a bag and table. So a form says which
bags are asked for (``ask``), whether the answers are vectors of bags or rows that are pooled here (``pools``), and what
the layout has to know. Knows one batch; knows no MPI.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import ClassVar

from hpcrec.embedding.shards import Family
from hpcrec.exchange.columns import Column, Dealt
from hpcrec.types import Floats, Ints


class Form(ABC):
    """One bundle of features under one form.

    Parameters
    ----------
    family : Family
    features : tuple of str
        The bundle: what travels together.

    Attributes
    ----------
    name : str
        As ``exchange.form`` has it.
    bundled : bool
        Features of the same tables travel together; else each by itself.
    pools : bool
        Distinct rows come, and are pooled here; else a vector a bag.
    local : bool
        Rows are on this rank: nothing comes back, and gradients go to every copy.
    stays : bool
        Operators may be computed at the owners, whose vectors then stay there.
    conditional : bool
        Dense ranks keep copies of rows, and owners say which of them are too old: see ``conditional.Conditional``.
    stages : tuple of str
        Those that its vectors pass on their way here (``stages``).
    """

    name: ClassVar[str]
    bundled: ClassVar[bool] = False
    pools: ClassVar[bool] = False
    local: ClassVar[bool] = False
    stays: ClassVar[bool] = False
    conditional: ClassVar[bool] = False
    stages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, family: Family, features: tuple[str, ...]) -> None:
        self.family = family
        self.features = features

    @classmethod
    def weighs(cls) -> bool:
        """Whether weights of ids travel with them: where rows are pooled by the owner."""
        return not cls.pools

    def carries_weights(self, weighted: AbstractSet[str]) -> bool:
        """Whether this bundle's ids travel with weights, which these features have."""
        return self.weighs() and self.features[0] in weighted

    @abstractmethod
    def ask(self, columns: Mapping[str, Column]) -> tuple[Dealt, Ints | None]:
        """What each part of the family is asked for; and, of forms that pool, the bag of each id, in their order."""

    def scale(self, columns: Mapping[str, Column]) -> Floats | None:
        """What each vector that answers is multiplied by, by bag: 1 / ids, for means that owners have added up."""
        del columns
        return None
