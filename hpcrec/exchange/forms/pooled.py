"""Forms ``pooled`` and ``partial``: bags go out, a pooled vector a bag comes back, or its part where rows are dealt.

Under ``partial`` [DES], where all operators that read a table can be computed at the owners, these send one partial
result a sample and operator, and no vectors of that table cross; their empty bags go out too. Knows one batch; knows no
MPI.
"""

from collections.abc import Mapping

from hpcrec.exchange.columns import Column, Dealt
from hpcrec.exchange.forms.form import Form
from hpcrec.types import Floats, Ints


class Pooled(Form):
    """See ``Form``; one feature a bundle."""

    name = "pooled"
    sends = "bags"
    simplicity = 0

    def ask(self, columns: Mapping[str, Column]) -> tuple[Dealt, Ints | None]:
        """See ``Form``."""
        column = columns[self.features[0]]
        if self.family.kind != "row":
            return Dealt(column.rows, None, column.lengths, column.weights), None
        part, there = self.family.deal(column.rows)
        return Dealt(there, part, column.lengths, column.weights), None

    def scale(self, columns: Mapping[str, Column]) -> Floats | None:
        """See ``Form``."""
        return columns[self.features[0]].scale


class Partial(Pooled):
    """See ``Form``."""

    name = "partial"
    simplicity = 2
    stays = True
