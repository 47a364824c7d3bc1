"""Definitions of the kernels of copies of rows. See ``reference``; what arguments are, ``copies`` says.

Each product, sum, root and quotient rounds once, in the order in which it stands here.
"""

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels import checks
from hpcrec.kernels.reference import mean_rate, squared_norm
from hpcrec.types import Floats, Ints

Flags = NDArray[np.bool_]
# Of a copy; half a cache line. As ``CopyRecord`` in native/include/hpcrec/copies.h.
RECORD = np.dtype(
    [
        ("scale", np.float64),
        ("ticks", np.int32),
        ("at", np.int32),
        ("since", np.int32),
        ("bundle", np.int32),
        ("has_values", np.int32),
        ("unused", np.int32),
    ]
)
_SGD, _ADAGRAD = 0, 1  # codes of rules


def kept_copies(records: Ints, slots: Ints, first: int, kept: Flags) -> None:
    """None has values from before step ``first``."""
    places, of = _kept(records, slots)
    kept.fill(False)
    kept[places] = (of["has_values"] != 0) & (of["at"] >= first)


def read_copies(
    records: Ints,
    slots: Ints,
    rule: int,
    lr_B: Floats,
    eps_B: Floats,
    bound_B: Floats,
    rows: Floats,
    numbers: Floats | None,
    sent: Flags,
    step: int,
    scale: float,
    values: Floats,
    accumulators: Floats | None,
) -> None:
    """First what came is taken; then all are read."""
    places, of = _kept(records, slots, len(lr_B))
    taken = sent[places]
    into = slots[places[taken]]
    of["has_values"][taken], of["at"][taken], of["scale"][taken] = 1, step, scale
    _fields(records)[into] = of[taken]
    rows[into, 0] = values[places[taken]]
    if numbers is not None and accumulators is not None:
        numbers[into, 0] = accumulators[places[taken]]
    values[places] = _shown(of, of["scale"], slots[places], rule, lr_B, eps_B, bound_B, rows, numbers)


def tick_copies(records: Ints, slots: Ints, step: int, scale: float, most: int, over: Ints) -> int:
    """Returns how many have more than ``most``."""
    places, of = _kept(records, slots)
    of["since"] = np.where(of["ticks"] == 0, step, of["since"])
    of["ticks"] += 1
    of["scale"] = scale
    _fields(records)[slots[places]] = of
    found = places[of["ticks"] > most]
    over[: len(found)] = found
    return len(found)


def add_to_copies(
    records: Ints,
    slots: Ints,
    rule: int,  # noqa: ARG001 - as of the others
    lr_B: Floats,
    eps_B: Floats,  # noqa: ARG001
    bound_B: Floats,  # noqa: ARG001
    rows: Floats,
    numbers: Floats | None,
    gradients: Floats,
) -> None:
    """The first of a copy's ticks is stored, not added to 0, which would lose the sign of -0."""
    places, of = _kept(records, slots, len(lr_B))
    first, into, own = of["ticks"] == 1, slots[places], gradients[places]
    rows[into, 1] = np.where(first[:, None], own, rows[into, 1] + own)
    if numbers is not None:
        squares = _mean_squares(own)
        numbers[into, 1] = np.where(first, squares, numbers[into, 1] + squares)


def sums_of_copies(
    records: Ints,
    slots: Ints,
    rule: int,
    lr_B: Floats,
    eps_B: Floats,
    bound_B: Floats,
    rows: Floats,
    numbers: Floats | None,
    scale: float | None,
    sums: Floats,
    squares: Floats | None,
) -> None:
    """What copies show is what they become, before their accumulators have grown."""
    checks.require_below("slots", slots, len(records))
    _, of = _kept(records, slots, len(lr_B))
    sums[:] = rows[slots, 1]
    if numbers is not None and squares is not None:
        squares[:] = _factors(numbers[slots, 1], sums) if rule == _ADAGRAD else numbers[slots, 1]
    if scale is None:
        return
    scales = np.full(len(slots), scale)
    rows[slots, 0] = _shown(of, scales, slots, rule, lr_B, eps_B, bound_B, rows, numbers)
    if numbers is not None:
        numbers[slots, 0] += numbers[slots, 1]


def end_ticks(records: Ints, slots: Ints, forget: bool, ticks: Ints) -> None:
    """Its values stay, or are none any more."""
    checks.require_below("slots", slots, len(records))
    _, of = _kept(records, slots)
    ticks[:] = of["ticks"]
    of["ticks"] = 0
    if forget:
        of["has_values"] = 0
    _fields(records)[slots] = of


def _fields(records: Ints) -> np.ndarray:
    return records.reshape(-1).view(RECORD)


def _kept(records: Ints, slots: Ints, n_bundles: int | None = None) -> tuple[Ints, np.ndarray]:
    """Places of slots that are not -1, and a copy of their records, whose bundles are looked at."""
    checks.require_below("slots + 1", np.where(slots == checks.LARGEST, slots, slots + 1), len(records) + 1)
    places = np.flatnonzero(slots >= 0)
    of = _fields(records)[slots[places]]
    if n_bundles is not None:
        checks.require_below("bundle", of["bundle"].astype(np.int64), n_bundles)
    return places, of


def _shown(
    of: np.ndarray,
    scale: Floats,
    slots: Ints,
    rule: int,
    lr_B: Floats,
    eps_B: Floats,
    bound_B: Floats,
    rows: Floats,
    numbers: Floats | None,
) -> Floats:
    """What their own ticks will have made of these copies."""
    out, held = rows[slots, 0], of["ticks"] > 0
    own, mine, ticks = slots[held], of["bundle"][held], of["ticks"][held, None].astype(np.int64)
    gradient = rows[own, 1]
    rate = (lr_B[mine] * scale[held]).astype(out.dtype)[:, None]
    if rule != _SGD and numbers is not None:
        before, squares = numbers[own, 0][:, None], numbers[own, 1][:, None]
        eps = eps_B[mine].astype(out.dtype)[:, None]
        if rule == _ADAGRAD:
            squares = _factors(squares[:, 0], gradient)[:, None] * gradient * gradient
        one = rate / (np.sqrt(before + squares) + eps)
        rate = np.where(ticks == 1, one, mean_rate(rate, eps, before, squares, ticks))
    bound = bound_B[mine].astype(out.dtype)[:, None]
    out[held] = np.clip(out[held] - rate * gradient, -bound, bound)
    return out


def _mean_squares(gradients: Floats) -> Floats:
    """Over all columns, as row-wise Adagrad adds them up."""
    return squared_norm(gradients) / gradients.dtype.type(gradients.shape[1])


def _factors(squares: Floats, sums: Floats) -> Floats:
    """What the squares of sums are to be multiplied by, so that their means are these; 0 of a sum that is 0."""
    mean = _mean_squares(sums)
    return np.divide(squares, mean, out=np.zeros_like(squares), where=mean > 0)
