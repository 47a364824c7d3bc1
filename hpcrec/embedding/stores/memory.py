"""Store ``dram``: rows in the host's memory, where steps read and change them; and what every step does with rows.

Vectors are gathered and pooled, gradients summed by row, rows stepped, all blocks in one call each. Knows rows and what
a step asks of them; knows no messages and no MPI.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.asked import Asked, pairs_of, picked, some_rows
from hpcrec.embedding.blocks import Part
from hpcrec.embedding.store import NormSum, RowStore
from hpcrec.plan.memory import Elsewhere
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class Worked:
    """What a step works on of one block, and where that lies now.

    Attributes
    ----------
    asked : Asked
        Of ``rows``.
    rows : float [N, D]
    states : dict of str to float
    unique : int64 [U]
        Distinct rows of the block, ascending; where ``asked`` names them by other numbers, the same in their order.
    """

    asked: Asked
    rows: Floats
    states: dict[str, Floats]
    unique: Ints


class MemoryStore(RowStore):
    """See ``Store``. What a subclass changes is where a step finds its rows (``_worked``)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._apart = [False] * len(self.blocks)  # whether a step finds a block's rows elsewhere than their numbers say
        self._in_pieces = False  # the same gradients will come again
        self._squared: Floats | None = None  # then, of these
        self._dynamic = [b for b, block in enumerate(self.blocks) if block.kind == "dynamic"]
        # of steps that were gathered and not released: by family, rows that other ids were given since
        self._given: dict[int, dict[str, list[Ints]]] = {}

    on_device: ClassVar[bool] = False
    """Whether the steps' arrays are those of ``store.device``."""

    keys: ClassVar[tuple[str, ...]] = ()
    """Arguments of its own, from the ``[store]`` section and a rank's folder below its path."""

    @staticmethod
    def memory(memory_bytes: int | None, gpu_bytes: int | None = None) -> Elsewhere | None:  # noqa: ARG004
        """What it changes of the formula of a rank's memory, by that section: nothing."""
        return None

    @property
    def waited_s(self) -> float:
        """See ``Store``: rows are here."""
        return 0.0

    @property
    def looks_ahead(self) -> bool:
        """See ``Store``: rows are here."""
        return False

    def foresee(self, step: int, rows: Sequence[Ints]) -> None:
        """See ``Store``: rows are here."""

    @property
    def window(self) -> int:
        """See ``Store``: rows are here."""
        return 0

    @property
    def looks_further(self) -> bool:
        """See ``Store``: rows are here."""
        return False

    def look(self, rows: Sequence[Ints]) -> None:
        """See ``Store``: rows are here."""

    def look_anew(self) -> None:
        """See ``Store``: rows are here."""

    def prefetch(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``: rows are here."""

    def extend(self, step: int, asked: Sequence[Asked]) -> None:
        """See ``Store``: rows are here."""

    def release(self, step: int) -> None:
        """See ``Store``."""
        self._given.pop(step, None)

    def _worked(self, step: int, block: int, asked: Asked) -> Worked:  # noqa: ARG002
        held = self.held[block]
        unique = asked.index if asked.grouping is None else asked.grouping.unique
        return Worked(asked, held.rows, held.states, unique)

    def gather(self, step: int, asked: Sequence[Asked], values: Floats) -> None:
        """See ``Store``."""
        beside = pairs_of(self.blocks, asked, apart=self._apart)
        if self._dynamic:
            self._given.setdefault(step, {})
        for b, wanted in enumerate(asked):
            if wanted.maxima is None and (wanted.value_start is None or not len(wanted.value_start)):
                continue
            work = self._worked(step, b, wanted)
            if work.asked.maxima is not None:
                work.asked.maxima.forward(work.rows, values)
            if wanted.value_start is None or not len(wanted.value_start) or b in beside.values():
                continue
            n_added = len(wanted.index) - (0 if wanted.maxima is None else len(wanted.maxima.index))
            narrow = None
            if b in beside:
                start = asked[beside[b]].value_start
                assert start is not None
                narrow = kernels.Beside(self.held[beside[b]].rows, start)
            kernels.pooled_gather(
                work.rows,
                work.asked.index[:n_added],
                wanted.offsets,
                values,
                out_start=wanted.value_start,
                weights=None if wanted.weights is None else wanted.weights[:n_added],
                beside=narrow,
            )

    def learn(
        self, step: int, asked: Sequence[Asked], gradients: Floats, norms: NormSum, *, number: int, lr_scale: float
    ) -> None:
        """See ``Store``."""
        works = [self._worked(step, b, wanted) for b, wanted in enumerate(asked)]
        for b in self._dynamic if self._given.get(step) else ():
            works[b] = self._without_lost(step, b, works[b])
        merged, own = self._merge_split(works, gradients)
        totals = norms(own)
        self._will_change(step, works)  # all before any: one block's turn may step another's rows
        beside = pairs_of(self.blocks, asked, apart=self._apart)
        for b, (block, work) in enumerate(zip(self.blocks, works, strict=True)):
            grouping = work.asked.grouping
            assert grouping is not None, "this step was routed for evaluation"
            lr = block.spec.lr * lr_scale
            if work.asked.sums is not None:
                several = work.asked.sums.ticks > 1
                self._learn_sums(b, work, gradients, several, lr=lr, number=number)
                grouping = picked(grouping, ~several, self.device)
            if b in merged:
                sums, total = merged[b]
                for part, span in _spans(block.parts, work):
                    total[span] = totals[part.table]
                if work.asked.sums is not None:
                    sums, total = sums[~several], total[~several]
                kernels.update(
                    block.spec,
                    work.rows,
                    work.states,
                    grouping.unique,
                    sums,
                    lr=lr,
                    step=number,
                    squared_norm=total,
                    total_width=block.total_width,
                )
            elif len(work.asked.index) and b not in beside.values():
                if work.asked.maxima is not None:
                    work.asked.maxima.backward(gradients)
                narrow = None
                if b in beside:
                    other, spec = works[beside[b]], self.blocks[beside[b]].spec
                    narrow = kernels.BesideStep(
                        spec, other.rows, other.states, other.asked.source_start, spec.lr * lr_scale
                    )
                kernels.merge_update(
                    block.spec,
                    work.rows,
                    work.states,
                    grouping,
                    gradients,
                    work.asked.source_start,
                    weights=work.asked.weights,
                    lr=lr,
                    step=number,
                    beside=narrow,
                )
        self.clear_spares()

    def _learn_sums(
        self, block: int, work: Worked, gradients: Floats, several: np.ndarray, *, lr: float, number: int
    ) -> None:
        """Rows, bool [U], whose gradients are sums of several steps'."""
        asked, spec, width = work.asked, self.blocks[block].spec, self.blocks[block].width
        assert asked.grouping is not None and asked.sums is not None
        if not several.any():
            return
        grouping, squares_S = picked(asked.grouping, several, self.device), asked.sums.squares
        merged = kernels.merge(grouping, gradients, asked.source_start, width, weights=asked.weights)
        if spec.name == "adagrad":
            squared = gradients * gradients if self._squared is None else self._squared
            self._squared = squared if self._in_pieces else None
            squares = kernels.merge(grouping, squared, asked.source_start, width, weights=squares_S)
        else:
            squares = kernels.merge(grouping, squares_S, np.arange(len(squares_S)), 1)[:, 0]
        ticks = asked.sums.ticks[several]
        kernels.update_sums(
            spec, work.rows, work.states, grouping.unique, merged, ticks, squares, lr=lr, step=number
        )  # fmt: skip

    def start_rows(self, family: str, rows: Ints, ids: Ints) -> None:
        """See ``RowStore``."""
        super().start_rows(family, rows, ids)
        for given in self._given.values() if len(rows) else ():
            given.setdefault(family, []).append(rows)

    def _without_lost(self, step: int, block: int, work: Worked) -> Worked:
        """Without rows that were given to another id since the step was gathered: their gradients are dropped."""
        rows = np.asarray(work.unique)
        lost = np.zeros(len(rows), bool)
        for part in self.blocks[block].parts:
            given = self._given[step].get(part.family.name)
            if given is not None:
                span = slice(*np.searchsorted(rows, (part.base, part.end)).tolist())
                lost[span] = np.isin(rows[span] - part.base, np.concatenate(given))
                if part.table == part.family.tables[0]:  # of the tables of a family one counts
                    self.dynamic[part.family.name].dropped += int(lost[span].sum())
        if not lost.any():
            return work
        asked = some_rows(work.asked, ~lost, self.device)
        return replace(work, asked=asked, unique=rows[~lost])

    def _will_change(self, step: int, works: Sequence[Worked]) -> None:  # noqa: ARG002
        """Rows of a step are about to change where it works on them."""
        for held, work in zip(self.held, works, strict=True):
            if len(work.asked.index):
                held.will_change(work.unique)

    def _merge_split(
        self, works: Sequence[Worked], gradients: Floats
    ) -> tuple[dict[int, tuple[Floats, Floats]], dict[str, Floats]]:
        """Of blocks whose steps need norms over columns elsewhere: sums of gradients [U, D] with their norms [U].

        And these norms by table, the host's, to be added to those of other ranks.
        """
        merged: dict[int, tuple[Floats, Floats]] = {}
        own: dict[str, Floats] = {}
        for b, (block, work) in enumerate(zip(self.blocks, works, strict=True)):
            if not block.needs_norms:
                continue
            grouping = work.asked.grouping
            assert grouping is not None, "this step was routed for evaluation"
            if work.asked.maxima is not None:
                work.asked.maxima.backward(gradients)
            sums = kernels.merge(grouping, gradients, work.asked.source_start, block.width, weights=work.asked.weights)
            norm = kernels.squared_norm(sums)
            merged[b] = sums, norm
            own |= {part.table: np.asarray(norm[span]) for part, span in _spans(block.parts, work)}
        return merged, own


def _spans(parts: Sequence[Part], work: Worked) -> list[tuple[Part, slice]]:
    """Each part of a block with its share of the step's distinct rows, which are in ascending order."""
    unique = np.asarray(work.unique)
    return [(p, slice(*np.searchsorted(unique, (p.base, p.base + p.rows)).tolist())) for p in parts]
