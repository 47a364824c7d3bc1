"""Kernels by which rows learn: gradients of occurrences summed by row, and the optimizer's step on the touched rows.

Semantics are FBGEMM's ``EXACT_SGD``, ``EXACT_ADAGRAD``, ``EXACT_ROWWISE_ADAGRAD`` and torch's ``SparseAdam``: gradients
of a row's occurrences are summed first, the row moves once, ``eps`` is outside the square root. Where rows live is
known above. After an error the contents of rows and states are undefined.
Shapes: N rows, D width, K occurrences, U unique rows.
"""

from functools import partial
from typing import Any

import numpy as np

from hpcrec.kernels import checks, native
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.kernels.beside import BesideStep
from hpcrec.kernels.device_array import room_beside
from hpcrec.kernels.half_rows import HalfRows, Rows, memory
from hpcrec.kernels.reference import Grouping
from hpcrec.kernels.rules import RULES, Rule, rule_of, state_shapes, step_numbers
from hpcrec.types import Floats, Ints, OptimizerSpec

_OCCURRENCES = (
    "unique: int64[U]", "segments: int64[U + 1]", "order: int64[any]", "gradients: float[any]",
    "source_start: int64[S]", "weights?: float[S]",
)  # fmt: skip
_merge_fits = native_fits(*_OCCURRENCES, "width: D", "written out?: float[U, D]")
_norm_fits = native_fits("merged: float[U, D]")
# By rule, whose states follow in its order.
_update_fits = {
    name: native_fits(
        "written rows: float[N, D]", "unique: int64[U]", "merged: float[U, D]", "squared_norm?: float[U]",
        *(f"written state: float[{sizes}]" for sizes in rule.sizes("N", "D")),
    )
    for name, rule in RULES.items()
}  # fmt: skip
_merge_updates_fit = {
    name: native_fits(
        *_OCCURRENCES, "written rows: float[N, D]",
        *(f"written state: float[{sizes}]" for sizes in rule.sizes("N", "D")),
        "...", "written beside.rows: float[M, 1]", "beside.source_start: int64[S]",
        *(f"written beside.state: float[{sizes}]" for sizes in rule.sizes("M", "1")),
    )
    for name, rule in RULES.items()
}  # fmt: skip


def _merge_update_fits(
    rule: Rule,
    spec: OptimizerSpec,
    rows: Rows,
    states: dict[str, Floats],
    grouping: Grouping,
    gradients: Floats,
    source_start: Ints,
    weights: Floats | None,
    beside: BesideStep | None,
) -> bool:
    if states.keys() != rule.states.keys():
        return False
    its: list[Any] = []
    if beside is not None:
        if beside.spec.name != spec.name or beside.states.keys() != states.keys():
            return False
        its = [beside.rows, beside.source_start, *[beside.states[name] for name in rule.states]]
    found = [states[name] for name in rule.states]
    return _merge_updates_fit[spec.name](*grouping, gradients, source_start, weights, rows, *found, *its)


def _check_occurrences(
    grouping: Grouping, gradients: Floats, source_start: Ints, weights: Floats | None, dtype: np.dtype
) -> None:
    checks.ints("grouping.order", grouping.order)
    checks.ints("grouping.unique", grouping.unique)
    checks.ints("grouping.segments", grouping.segments, grouping.unique.size + 1)
    checks.floats("gradients", gradients, (None,), dtype)
    n_sources = checks.ints("source_start", source_start).size
    if weights is not None:
        checks.floats("weights", weights, (n_sources,), dtype)


def _check_apart(written: dict[str, Floats], **read: Floats | Ints | None) -> None:
    """No array that is written shares memory with another argument."""
    rest = dict(written)
    for name, array in written.items():
        del rest[name]
        checks.apart(name, array, **rest, **read)


def _check_rows(spec: OptimizerSpec, rows: Rows, states: dict[str, Floats], step: int) -> np.dtype:
    dtype = checks.rows("rows", rows, write=True)
    if isinstance(rows, HalfRows):
        checks.whole("step", step, 0)  # its random bits are drawn
    shapes = state_shapes(spec, *rows.shape)
    if states.keys() != shapes.keys():
        raise ValueError(f"states are {sorted(states)}; optimizer {spec.name} needs {sorted(shapes)}")
    for name, shape in shapes.items():
        checks.floats(f"state {name}", states[name], shape, dtype, write=True)
    return dtype


def merge(
    grouping: Grouping,
    gradients: Floats,
    source_start: Ints,
    width: int,
    *,
    weights: Floats | None = None,
    out: Floats | None = None,
) -> Floats:
    """``merged[u] = sum(weights[s] * gradients[source_start[s]:][:width])`` over the occurrences of ``unique[u]``.

    s is the source that an occurrence names: its position, or its bag where ``group`` was given bags.
    Added in blocks of 128 occurrences, each in order from 0, folded in order: the bits depend on no number of threads.

    Parameters
    ----------
    grouping : Grouping
        Of K occurrences, from ``group``.
    gradients : float32 or float64, flat
    source_start : int64 [S]
        Element where the gradient of source s begins; sources may share one.
    width : int
    weights : like gradients [S], optional
    out : like gradients [U, width], optional
        Where to write; left out: a new array.

    Returns
    -------
    like gradients [U, width]
    """
    if _merge_fits(*grouping, gradients, source_start, weights, width, out):
        if out is None:
            out = np.empty((grouping.unique.size, width), gradients.dtype)
        native.merge(grouping, gradients, source_start, width, weights, out)
        return out
    dtype = checks.floats("gradients", gradients, (None,)).dtype
    width = checks.width_of("width", width)
    _check_occurrences(grouping, gradients, source_start, weights, dtype)
    shape = (grouping.unique.size, width)
    if out is None:
        out = room_beside(gradients, shape, dtype)
    else:
        checks.floats("out", out, shape, dtype, write=True)
        _check_apart(
            {"out": out}, gradients=gradients, source_start=source_start, weights=weights, **grouping._asdict()
        )  # fmt: skip
    backend(grouping, gradients, source_start, weights, out).merge(
        grouping, gradients, source_start, width, weights, out
    )
    return out


def squared_norm(merged: Floats) -> Floats:
    """Sum of squares of each of the U rows of ``merged [U, D]``: what row-wise Adagrad adds up over column shards."""
    if _norm_fits(merged):
        return native.squared_norm(merged)
    checks.width_of("width of merged", checks.floats("merged", merged, (None, None)).shape[1])
    return backend(merged).squared_norm(merged)


def update(
    spec: OptimizerSpec,
    rows: Rows,
    states: dict[str, Floats],
    unique: Ints,
    merged: Floats,
    *,
    lr: float,
    step: int,
    squared_norm: Floats | None = None,
    total_width: int | None = None,
) -> None:
    """One optimizer step of the rows ``unique``, in place; no other row or state is touched.

    Parameters
    ----------
    spec : OptimizerSpec
        Its ``lr`` is not read: schedules decide ``lr``.
    rows : float32, float64 or HalfRows [N, D]
        Those of halves move as float32 rows would, and are then rounded as ``HalfRows`` says; ``like rows`` is float32
        for them.
    states : dict of str to like rows
        Shapes as ``state_shapes`` gives them.
    unique : int64 [U]
        Distinct, in ``[0, N)``.
    merged : like rows [U, D]
        Gradients, summed by row.
    lr : float
    step : int
        Global step, counted from 1; read by Adam, and by rows of halves, which draw other random bits in each.
    squared_norm : like rows [U], optional
        Row-wise Adagrad of a table whose columns are sharded: the squared norm over all of its columns.
    total_width : int, optional
        The width of that whole table; left out: D.

    Raises
    ------
    ValueError
        The optimizer is not known, a state is missing, a type or shape is wrong, a row is outside the table, or rows
        or a state share memory with another argument.
    """
    rule = RULES.get(spec.name)
    fits = (
        rule is not None
        and states.keys() == rule.states.keys()
        and _update_fits[spec.name](rows, unique, merged, squared_norm, *[states[name] for name in rule.states])
    )
    if not fits:
        dtype = _check_rows(spec, rows, states, step)
        checks.ints("unique", unique)
        checks.floats("merged", merged, (unique.size, rows.shape[1]), dtype)
        if squared_norm is not None:
            checks.floats("squared_norm", squared_norm, (unique.size,), dtype)
        _check_apart({"rows": memory(rows), **states}, unique=unique, merged=merged, squared_norm=squared_norm)
    if spec.name != "rowwise_adagrad" and (squared_norm is not None or total_width is not None):
        raise ValueError(f"squared_norm and total_width are row-wise Adagrad's; the optimizer is {spec.name}")
    width = rows.shape[1] if total_width is None else checks.positive("total_width", total_width)
    numbers = step_numbers(spec, lr=lr, step=step)
    run = native if fits else backend(memory(rows), states, unique, merged, squared_norm)
    run.update(spec.name, numbers, rows, states, unique, merged, squared_norm, width)


def update_sums(
    spec: OptimizerSpec,
    rows: Rows,
    states: dict[str, Floats],
    unique: Ints,
    merged: Floats,
    ticks: Ints,
    squares: Floats,
    *,
    lr: float,
    step: int,
) -> None:
    """One step of the rows ``unique``, in place, by sums of several steps' gradients; of the Adagrads.

    The accumulator grows by the sum of these steps' squares, as it would have step by step, and not by the square of
    the sum, which is up to ``ticks`` times as large; what divides the sum is the mean over the steps
    (``reference.mean_rate``). [HET] has SGD alone.

    Parameters
    ----------
    spec, rows, states, unique, merged, lr, step
        As of ``update``.
    ticks : int64 [U]
        Of how many steps each gradient is the sum, 1 and more.
    squares : like rows [U] or [U, D]
        By how much each accumulator grows, of its shape.

    Raises
    ------
    ValueError
        As ``update``; or the optimizer is another.
    """
    if spec.name not in ("adagrad", "rowwise_adagrad"):
        raise ValueError(f"optimizer is {spec.name!r}; sums of several steps' squares are for the Adagrads")
    dtype = _check_rows(spec, rows, states, step)
    checks.ints("unique", unique)
    checks.floats("merged", merged, (unique.size, rows.shape[1]), dtype)
    checks.ints("ticks", ticks, unique.size)
    checks.floats("squares", squares, (unique.size, *states["accumulator"].shape[1:]), dtype)
    if ticks.size and ticks.min() < 1:
        raise ValueError(f"ticks have {ticks.min()}; each gradient is of one step or more")
    _check_apart({"rows": memory(rows), **states}, unique=unique, merged=merged, ticks=ticks, squares=squares)
    numbers = step_numbers(spec, lr=lr, step=step)
    run = backend(memory(rows), states, unique, merged, ticks, squares)
    run.update_sums(spec.name, numbers, rows, states, unique, merged, ticks, squares)


def merge_update(
    spec: OptimizerSpec,
    rows: Rows,
    states: dict[str, Floats],
    grouping: Grouping,
    gradients: Floats,
    source_start: Ints,
    *,
    weights: Floats | None = None,
    lr: float,
    step: int,
    beside: BesideStep | None = None,
) -> None:
    """``merge`` and ``update`` in one pass, with the same bits and no array between them.

    ``grouping`` groups the occurrences' rows in ``[0, N)``; the other parameters are those of the two. ``beside``, a
    table of width 1 that was asked for the same rows, moves as by a second call, in the same pass. Beside rows of
    halves it is float32, too, and the pass is a second one.
    """
    rule = rule_of(spec)
    if _merge_update_fits(rule, spec, rows, states, grouping, gradients, source_start, weights, beside):
        native.merge_update(
            spec.name, step_numbers(spec, lr=lr, step=step), rows, states, grouping, gradients, source_start, weights,
            None if beside is None else (beside, step_numbers(beside.spec, lr=beside.lr, step=step)),
        )  # fmt: skip
        return
    dtype = _check_rows(spec, rows, states, step)
    _check_occurrences(grouping, gradients, source_start, weights, dtype)
    written = {"rows": memory(rows), **states}
    read = {"gradients": gradients, "source_start": source_start, "weights": weights, **grouping._asdict()}
    numbers = step_numbers(spec, lr=lr, step=step)
    narrow = None
    if beside is not None:
        if beside.spec.name != spec.name:
            raise ValueError(f"the optimizer beside is {beside.spec.name}; it must be {spec.name}, as that of the rows")
        _check_rows(beside.spec, checks.floats("beside.rows", beside.rows, (None, 1), dtype), beside.states, step)
        checks.ints("beside.source_start", beside.source_start, source_start.size)
        written |= {"beside.rows": beside.rows, **{f"beside.{name}": state for name, state in beside.states.items()}}
        read["beside.source_start"] = beside.source_start
        narrow = beside, step_numbers(beside.spec, lr=beside.lr, step=step)
    _check_apart(written, **read)
    run = partial(backend(*written.values(), *read.values()).merge_update, spec.name)
    if narrow is None or not isinstance(rows, HalfRows):
        run(numbers, rows, states, grouping, gradients, source_start, weights, narrow)
    else:
        its, its_numbers = narrow
        run(numbers, rows, states, grouping, gradients, source_start, weights, None)
        run(its_numbers, its.rows, its.states, grouping, gradients, its.source_start, weights, None)
