"""Kernels on a holder's arenas in a step: vectors are gathered, gradients summed by row, rows stepped.

Arrays are all the host's or all a device's. Knows what one step wants of each arena; knows no messages and no MPI.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.arena import Arena, Part
from hpcrec.exchange.work import ArenaWork, Served, needs_norms
from hpcrec.types import Floats

Merged = dict[int, tuple[Floats, Floats]]  # by arena: summed gradients [U, D], and their squared norms [U]


def gather(arenas: Sequence[Arena], served: Served, values: Floats) -> None:
    """Pooled vectors of every arena, to where they lie in the values."""
    for a, (arena, work) in enumerate(zip(arenas, served.works, strict=True)):
        if work.maxima is not None:
            work.maxima.forward(arena.step_rows, values)
        if work.value_start is None or not len(work.value_start) or a in served.beside.values():
            continue
        n_added = len(work.index) - (0 if work.maxima is None else len(work.maxima.index))
        beside = None
        if a in served.beside:
            narrow = served.works[served.beside[a]]
            assert narrow.value_start is not None
            beside = kernels.Beside(arenas[served.beside[a]].step_rows, narrow.value_start)
        kernels.pooled_gather(
            arena.step_rows,
            work.index[:n_added],
            work.offsets,
            values,
            out_start=work.value_start,
            weights=None if work.weights is None else work.weights[:n_added],
            beside=beside,
        )


def merge_split(arenas: Sequence[Arena], served: Served, gradients: Floats) -> tuple[Merged, dict[str, Floats]]:
    """Of arenas whose steps need norms over columns elsewhere: sums of gradients; and norms of these columns, by table.

    The norms are the host's, to be added to those of other ranks.
    """
    split: Merged = {}
    norms: dict[str, Floats] = {}
    for a, (arena, work) in enumerate(zip(arenas, served.works, strict=True)):
        if not needs_norms(arena):
            continue
        assert work.grouping is not None, "this step was routed for evaluation"
        if work.maxima is not None:
            work.maxima.backward(gradients)
        merged = kernels.merge(work.grouping, gradients, work.source_start, arena.width, weights=work.weights)
        norm = kernels.squared_norm(merged)
        split[a] = merged, norm
        norms |= {part.table: np.asarray(norm[span]) for part, span in _spans(arena, work)}
    return split, norms


def learn(
    arenas: Sequence[Arena],
    served: Served,
    gradients: Floats,
    split: Merged,
    norms: Mapping[str, Floats],
    *,
    step: int,
    lr_scale: float,
) -> None:
    """Steps the rows of every arena; ``norms`` are those over all columns, of the arenas that ``split`` has."""
    for arena, work in zip(
        arenas, served.works, strict=True
    ):  # all before any: one arena's turn may step another's rows
        if arena.cache is None and work.grouping is not None and len(work.index):
            arena.will_change(work.grouping.unique)
    for a, (arena, work) in enumerate(zip(arenas, served.works, strict=True)):
        assert work.grouping is not None, "this step was routed for evaluation"
        lr = arena.spec.lr * lr_scale
        if a in split:
            merged, total = split[a]
            for part, span in _spans(arena, work):
                total[span] = norms[part.table]
            kernels.update(
                arena.spec,
                arena.step_rows,
                arena.step_states,
                work.grouping.unique,
                merged,
                lr=lr,
                step=step,
                squared_norm=total,
                total_width=arena.total_width,
            )
        elif len(work.index) and a not in served.beside.values():
            if work.maxima is not None:
                work.maxima.backward(gradients)
            beside = None
            if a in served.beside:
                narrow = arenas[served.beside[a]]
                its_start = served.works[served.beside[a]].source_start
                beside = kernels.BesideStep(
                    narrow.spec, narrow.step_rows, narrow.step_states, its_start, narrow.spec.lr * lr_scale
                )
            kernels.merge_update(
                arena.spec,
                arena.step_rows,
                arena.step_states,
                work.grouping,
                gradients,
                work.source_start,
                weights=work.weights,
                lr=lr,
                step=step,
                beside=beside,
            )


def _spans(arena: Arena, work: ArenaWork) -> list[tuple[Part, slice]]:
    """Each part of an arena with its share of the step's touched rows, which are in ascending order."""
    assert work.grouping is not None
    unique = np.asarray(work.grouping.unique if work.distinct is None else work.distinct[0])
    return [(p, slice(*np.searchsorted(unique, (p.base, p.base + p.rows)).tolist())) for p in arena.parts]
