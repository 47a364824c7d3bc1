"""Forms ``rows`` and ``replicate``: distinct ids go out, pooling and merging of gradients by row happen on this rank.

Under ``rows`` their rows come back; under ``replicate`` this rank has them, and distinct ids go to all copies so that
gradients can follow. Knows one batch; knows no MPI.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hpcrec import kernels
from hpcrec.exchange.columns import Column, Dealt
from hpcrec.exchange.forms.form import Form
from hpcrec.types import Ints


class Rows(Form):
    """See ``Form``: features that read the same tables, so that a row of several of them crosses once."""

    name = "rows"
    sends = "distinct rows"
    simplicity: ClassVar[int | None] = 1
    whole = "whose rows are shared by samples, which have no mask in common"
    bundled = True
    pools = True

    def ask(self, columns: Mapping[str, Column]) -> tuple[Dealt, Ints | None]:
        """See ``Form``. What each part is asked for rises."""
        mine = [columns[f].rows for f in self.features]
        unique, index = kernels.dedup(mine[0] if len(mine) == 1 else np.concatenate(mine))
        part = None
        if self.family.kind == "row":
            unique, part, order = self._by_part(unique)
            arrived = np.empty_like(order)
            arrived[order] = np.arange(len(order))
            index = arrived[index]
        return Dealt(unique, part, np.ones(len(unique), np.int64), None), index

    def _by_part(self, unique: Ints) -> tuple[Ints, Ints, Ints]:
        """What ascending rows are called at their parts, part after part and rising in each; the parts; the order."""
        part, there = self.family.deal(unique)
        if self.family.dynamic is not None:  # ids that ascend still do in each part
            _, order = kernels.partition(part.astype(np.int32), self.family.row_parts)
        else:
            order = kernels.group(part * self.family.part_rows(0) + there).order
        return there[order], part[order], order


class Replicate(Rows):
    """See ``Form``."""

    name = "replicate"
    sends = "distinct rows, to every copy"
    simplicity = None
    local = True
