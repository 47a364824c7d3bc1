"""What a form is: how a dense rank asks for one bundle of features, and what it does with the vectors that answer.

Owners know bags and no forms: a request is bags of ids, the answer one vector a bag and table. So a form says which
bags are asked for (``ask``), whether the answers are vectors of bags or rows that are pooled here (``pools``), and what
the layout, the choice of forms, the plan and the configuration have to know: nothing else names a form. Knows one
batch; knows no MPI.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, ClassVar

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
    sends : str
        What its bags are. Forms that ask alike have the same word, and what they ask is counted once.
    simplicity : int or None
        Its place among the forms that ``auto`` chooses from, the simplest first; None: it is not among them.
    whole : str
        Why its vectors cannot be thresholded, as an error goes on after its name; empty: they can.
    bundled : bool
        Features of the same tables travel together, and it is chosen for all or some of them; else each by itself.
    pools : bool
        Distinct rows come, and are pooled here; else a vector a bag.
    answers : int
        Vectors of bags that one part of the family answers for one sample, at most. Where there are several, they are
        added in their order, or the largest is taken, as those of several parts are.
    local : bool
        Rows are on this rank: nothing comes back, and gradients go to every copy.
    stays : bool
        Operators may be computed at the owners, whose vectors then stay there. Only where ``answers`` is 1.
    conditional : bool
        Dense ranks keep copies of rows, and owners say which of them are too old: see ``conditional.Conditional``.
    stages : tuple of str
        Those that its vectors pass on their way here (``stages``).
    """

    name: ClassVar[str]
    sends: ClassVar[str]
    simplicity: ClassVar[int | None] = None
    whole: ClassVar[str] = ""
    bundled: ClassVar[bool] = False
    pools: ClassVar[bool] = False
    answers: ClassVar[int] = 1
    local: ClassVar[bool] = False
    stays: ClassVar[bool] = False
    conditional: ClassVar[bool] = False
    stages: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "ask" in cls.__dict__ and "sends" not in cls.__dict__:
            raise TypeError(f"form {cls.__name__} asks in its own way. Set sends, by which what it asks is counted.")
        if cls.stays and cls.answers > 1:
            raise TypeError(
                f"form {cls.__name__} has several answers a sample, and operators at the owners need one. Set stays = "
                "False, or answers = 1."
            )

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

    @classmethod
    def meets(cls, family: Family) -> bool:
        """Whether several vectors of one bag may come, which then meet on this rank."""
        return not cls.pools and (cls.answers > 1 or family.row_parts > 1)

    @classmethod
    def vectors(cls, ids: float, samples: float) -> float:
        """How many answer so many ids of so many samples at one part, at most: what is planned with, before a batch."""
        return ids if cls.pools else min(ids, cls.answers * samples)

    @classmethod
    def wire_bytes(
        cls, id_bytes: float, bags: float, widths: Iterable[int], item_bytes: Callable[[int], tuple[float, float]]
    ) -> dict[str, float]:
        """Bytes of one entry by tag, as they are counted before a run, and as the ledger has them, without padding.

        Parameters
        ----------
        id_bytes, bags : float
            What its ids take, and how many bags are asked for.
        widths : iterable of int
            Columns of each stream of vectors that crosses.
        item_bytes : callable
            Width -> bytes of an element of vectors, and of gradients.
        """
        elements = [(bags * width, item_bytes(width)) for width in widths]
        return {
            "ids": id_bytes,
            "values": 0.0 if cls.local else sum(n * n_bytes for n, (n_bytes, _) in elements),
            "gradients": sum(n * n_bytes for n, (_, n_bytes) in elements),
        }

    @abstractmethod
    def ask(self, columns: Mapping[str, Column]) -> tuple[Dealt, Ints | None]:
        """What each part of the family is asked for; and, of forms that pool, the bag of each id, in their order."""

    def scale(self, columns: Mapping[str, Column]) -> Floats | None:
        """What each vector that answers is multiplied by, by sample: 1 / ids, for means that owners have added up."""
        del columns
        return None
