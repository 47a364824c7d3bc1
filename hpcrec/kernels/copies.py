"""Kernels of copies of rows that a dense rank keeps: what is read of them, gradients that are added up, and pushes.

A copy has a slot, and of each table that is kept together a row: the values as their owner sent them, or as pushes left
them, and the sum of the gradients that are not pushed yet, beside each other. What is told and counted of a copy is its
record. Each kernel is one pass by all threads, in which a thread has rows of its own. When a copy is too old, and when
something is pushed, is known above; which slot is whose, the map of ids knows.

Shapes: N copies, K rows of a step, D width, B bundles. Slots are distinct; -1, where it is allowed, stands for no copy.
Where slots are repeated, or after an error, the contents of what is written are undefined.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hpcrec.kernels import checks, native, reference, reference_copies
from hpcrec.kernels.backend import backend, native_fits
from hpcrec.kernels.memory import reserved_zeros
from hpcrec.kernels.reference_copies import RECORD, Flags
from hpcrec.types import Floats, Ints

_CODES = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 2}  # as ``rules.RULES`` has them
_MOST_STEP = 2**31 - 1
_FLOAT64, _BOOL = np.dtype(np.float64), np.dtype(np.bool_)
_TABLE = "written records: int64[N, 4]", "written rows: float[N, 2, D]", "written numbers?: float[N, 2]"
_records_fit = native_fits("written records: int64[N, 4]", "slots: int64[K]")
_read_fits = native_fits(
    *_TABLE, "slots: int64[K]", "sent: uint8[K]", "written values: float[K, D]", "accumulators?: float[K]"
)  # fmt: skip
_add_fits = native_fits(*_TABLE, "slots: int64[K]", "gradients: float[K, D]")


@dataclass(frozen=True)
class CopyTable:
    """Copies of one table's rows, and how they learn meanwhile.

    Attributes
    ----------
    rule : str
        ``sgd``, ``adagrad`` or ``rowwise_adagrad``: by what copies show their own ticks.
    lr_B, eps_B, bound_B : float64 [B]
        Of the table of each bundle; ``bound_B`` above 0, perhaps infinite. Copied, and read-only.
    rows : float32 or float64 [N, 2, D]
        Values, and sums of gradients.
    numbers : like rows [N, 2], or None
        Accumulators, and sums of the mean squares of gradients; None of ``sgd``.
    """

    rule: Literal["sgd", "adagrad", "rowwise_adagrad"]
    lr_B: Floats
    eps_B: Floats
    bound_B: Floats
    rows: Floats
    numbers: Floats | None = None

    def __post_init__(self) -> None:
        if self.rule not in _CODES:
            raise ValueError(f"rule is {self.rule!r}; allowed are {', '.join(_CODES)}")
        for name in ("lr_B", "eps_B", "bound_B"):
            own = checks.floats(name, getattr(self, name), (len(self.lr_B),), _FLOAT64).copy()
            own.flags.writeable = False
            object.__setattr__(self, name, own)
        if not (self.bound_B > 0).all():
            raise ValueError("bound_B has a number that is not above 0")

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What kernels take of it."""
        return _CODES[self.rule], self.lr_B, self.eps_B, self.bound_B, self.rows, self.numbers


def copy_records(n: int) -> Ints:
    """Records of n copies, int64 [N, 4], that have no values: zeros. See ``record_fields``."""
    return reserved_zeros((n, 4), np.int64)


def record_fields(records: Ints) -> np.ndarray:
    """The same memory [N], by name.

    ``scale``, float64, of the learning rates by which its own ticks are shown; ``ticks``, how many of them are not
    pushed; ``at`` and ``since``, the steps from which its values and the first of these ticks are; ``bundle``; and
    ``has_values``, 0 where its row is to be sent: int32.
    """
    return records.reshape(-1).view(RECORD)


def kept_copies(records: Ints, slots: Ints, *, step: int, max_age: int | None = None) -> Flags:
    """Whether there is a copy that has values, bool [K]: none of ``max_age`` steps or more.

    Parameters
    ----------
    records : int64 [N, 4]
    slots : int64 [K]
        May be -1.
    step : int
        The present one, below 2^31.
    max_age : int, optional
    """
    fits = _records_fit(records, slots)
    if not fits:
        _check_records(records, slots)
    step = checks.whole("step", step, 0, _MOST_STEP)
    first = -(2**31) if max_age is None else step - checks.positive("max_age", max_age) + 1
    kept = np.empty(slots.size, bool)
    run = native if fits else _backend(records, slots)
    run.kept_copies(records, slots, max(first, -(2**31)), kept)
    return kept


def read_copies(
    records: Ints,
    table: CopyTable,
    slots: Ints,
    sent: Flags,
    values: Floats,
    accumulators: Floats | None = None,
    *,
    step: int,
    scale: float,
) -> None:
    """Takes rows that came into their copies, and turns ``values`` into what is read.

    That is what its own ticks will have made of each copy, at the scale of its record: by the rule of its table for
    sums of several steps' gradients. Several tables of a bundle are read one after the other, with the same arguments.

    Parameters
    ----------
    records : int64 [N, 4]
    table : CopyTable
    slots : int64 [K]
        May be -1: then what came is read.
    sent : bool [K]
        Which rows came; of the others the copy will do.
    values : like table.rows [K, D]
        What came, where something did; written over.
    accumulators : like table.rows [K], optional
        Likewise; needed where the rule has any.
    step : int
        Of which the values are that came.
    scale : float
        Of learning rates, by which their ticks are shown.

    Raises
    ------
    ValueError
        A type, shape, slot or bundle is wrong, or what is written shares memory with another argument.
    """
    step = checks.whole("step", step, 0, _MOST_STEP)
    checks.ints("sent", sent, dtype=_BOOL)
    rows, numbers = table.rows, table.numbers
    fits = (numbers is None) == (accumulators is None) == (table.rule == "sgd")
    fits = fits and _read_fits(records, rows, numbers, slots, sent.view(np.uint8), values, accumulators)
    if not fits:
        _check_table(records, table, slots)
        checks.ints("sent", sent, slots.size, dtype=_BOOL)
        checks.floats("values", values, (slots.size, rows.shape[2]), rows.dtype, write=True)
        _check_given("accumulators", accumulators, (slots.size,), table)
        _check_apart(records, table, sent=sent, values=values, accumulators=accumulators)
        checks.apart("values", values, slots=slots, sent=sent, accumulators=accumulators)
    run = native if fits else _backend(records, slots, rows, values)
    run.read_copies(records, slots, *table.arguments, sent, step, float(scale), values, accumulators)


def tick_copies(records: Ints, slots: Ints, *, step: int, scale: float, most: int) -> Ints:
    """Each of these copies has one tick more; returns the places [M] of those that have more than ``most``, ascending.

    Parameters
    ----------
    records : int64 [N, 4]
    slots : int64 [K]
        May be -1.
    step : int
        The present one.
    scale : float
        Of learning rates, by which ticks are shown from now on.
    most : int
    """
    fits = _records_fit(records, slots)
    if not fits:
        _check_records(records, slots)
    over = np.empty(slots.size, np.int64)
    step, most = checks.whole("step", step, 0, _MOST_STEP), checks.whole("most", most, 0)
    run = native if fits else _backend(records, slots)
    n = run.tick_copies(records, slots, step, float(scale), most, over)
    return over[:n]


def add_to_copies(records: Ints, table: CopyTable, slots: Ints, gradients: Floats) -> None:
    """Adds the gradients of a tick that ``tick_copies`` has counted to the sums of copies, and their mean squares.

    Parameters
    ----------
    records : int64 [N, 4]
    table : CopyTable
    slots : int64 [K]
        May be -1: those gradients are left out.
    gradients : like table.rows [K, D]

    Raises
    ------
    ValueError
        As ``read_copies``.
    """
    rows, numbers = table.rows, table.numbers
    fits = (numbers is None) == (table.rule == "sgd") and _add_fits(records, rows, numbers, slots, gradients)
    if not fits:
        _check_table(records, table, slots)
        checks.floats("gradients", gradients, (slots.size, rows.shape[2]), rows.dtype)
        _check_apart(records, table, gradients=gradients)
    run = native if fits else _backend(records, slots, rows, gradients)
    run.add_to_copies(records, slots, *table.arguments, gradients)


def sums_of_copies(
    records: Ints, table: CopyTable, slots: Ints, *, scale: float | None = None
) -> tuple[Floats, Floats | None]:
    """Sums of gradients that copies have, and what is said of their squares, for a push.

    Parameters
    ----------
    records : int64 [N, 4]
    table : CopyTable
    slots : int64 [K]
        None is -1.
    scale : float, optional
        Then copies become what their ticks have made of them, at this scale of learning rates, and accumulators grow
        by the squares. Left out: they stay as they are.

    Returns
    -------
    like table.rows [K, D]
    like table.rows [K], or None
        Sums of mean squares; of ``adagrad`` what the squares of the sum have to be multiplied by, so that their mean is
        that, 0 of a sum that is 0. None of ``sgd``.

    Raises
    ------
    ValueError
        As ``read_copies``.
    """
    _check_table(records, table, slots)
    dtype = table.rows.dtype
    sums = np.empty((slots.size, table.rows.shape[2]), dtype)
    squares = None if table.numbers is None else np.empty(slots.size, dtype)
    run = _backend(records, slots, table.rows).sums_of_copies
    run(records, slots, *table.arguments, None if scale is None else float(scale), sums, squares)
    return sums, squares


def end_ticks(records: Ints, slots: Ints, *, forget: bool) -> Ints:
    """How many ticks each copy has, int64 [K]; these have been pushed, and are none any more.

    Parameters
    ----------
    records : int64 [N, 4]
    slots : int64 [K]
        None is -1.
    forget : bool
        Copies have no values from now on.
    """
    fits = _records_fit(records, slots)
    if not fits:
        _check_records(records, slots)
    ticks = np.empty(slots.size, np.int64)
    run = native if fits else _backend(records, slots)
    run.end_ticks(records, slots, bool(forget), ticks)
    return ticks


def _backend(*arrays: Any) -> Any:
    current = backend(*arrays)
    return reference_copies if current is reference else current


def _check_records(records: Ints, slots: Ints) -> None:
    checks.writable("records", checks.table("records", records, 4))
    checks.ints("slots", slots)
    checks.apart("records", records, slots=slots)


def _check_given(name: str, array: Floats | None, shape: tuple[int, ...], table: CopyTable) -> None:
    """What there is of the Adagrads alone."""
    if (array is None) != (table.rule == "sgd"):
        raise ValueError(f"{name} are {'missing' if array is None else 'given'}; the rule is {table.rule}")
    if array is not None:
        checks.floats(name, array, shape, table.rows.dtype)


def _check_table(records: Ints, table: CopyTable, slots: Ints) -> None:
    rows, numbers = table.rows, table.numbers
    _check_records(records, slots)
    checks.floats("rows", rows, (len(records), 2, None), write=True)
    checks.width_of("width of rows", rows.shape[2])
    _check_given("numbers", numbers, (len(records), 2), table)
    if numbers is not None:
        checks.writable("numbers", numbers)
    _check_apart(records, table, slots=slots)


def _check_apart(records: Ints, table: CopyTable, **read: Any) -> None:
    rows, numbers = table.rows, table.numbers
    checks.apart("records", records, rows=rows, numbers=numbers, **read)
    checks.apart("rows", rows, numbers=numbers, **read)
    if numbers is not None:
        checks.apart("numbers", numbers, **read)
