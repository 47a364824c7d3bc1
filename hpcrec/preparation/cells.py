"""The values of one column in a block of rows, from text or from Arrow: one interface for both.

Each reading gives values and their states (`kernels.text`: good, empty, bad). Knows no files and no conventions.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcrec.data.gather import ends
from hpcrec.kernels import text
from hpcrec.kernels.text import BAD, EMPTY, GOOD, Bytes, Places, States, Words
from hpcrec.types import Floats, Ints

Value = Literal["text", "integer", "hex"]


class Cells(Protocol):
    """Values of a column."""

    def integers(self) -> tuple[Ints, States]:
        """As int64."""

    def numbers(self) -> tuple[Floats, States]:
        """As float64, finite."""

    def words(self, value: Value, digits: int) -> tuple[Words, States]:
        """As uint64: a hash of the text, the integer, or hexadecimal digits (exactly `digits`; 0 for up to 16)."""

    def items(self, separator: str | None) -> tuple["Cells", Ints]:
        """Each value as a list: the items of all, and int64 offsets."""

    def without(self, marks: Sequence[str]) -> "Cells":
        """These values, but empty where they are one of the marks."""

    def shown(self, row: int) -> str:
        """A value, for a message."""


class TextCells:
    """Values in a block of text."""

    def __init__(self, block: Bytes, begin: Places, end: Places) -> None:
        self._at = (block, begin, end)

    @property
    def places(self) -> tuple[Bytes, Places, Places]:
        """The block, and where each value begins and ends in it."""
        return self._at

    def integers(self) -> tuple[Ints, States]:
        """See `Cells`."""
        return text.parse_integers(*self._at)

    def numbers(self) -> tuple[Floats, States]:
        """See `Cells`."""
        return text.parse_numbers(*self._at)

    def words(self, value: Value, digits: int) -> tuple[Words, States]:
        """See `Cells`."""
        if value == "hex":
            return text.parse_hex(*self._at, digits)
        if value == "text":
            return text.hash_text(*self._at)
        found, state = self.integers()
        return found.view(np.uint64), state

    def items(self, separator: str | None) -> tuple[Self, Ints]:
        """See `Cells`."""
        assert separator is not None
        begin, end, offsets = text.cut_lists(*self._at, separator)
        return type(self)(self._at[0], begin, end), offsets

    def without(self, marks: Sequence[str]) -> Self:
        """See `Cells`."""
        block, begin, end = self._at
        end = end.copy()
        for mark in marks:
            wanted = np.frombuffer(mark.encode(), np.uint8)
            rows = np.flatnonzero(end - begin == len(wanted))
            same = (block[begin[rows, None] + np.arange(len(wanted))] == wanted).all(axis=1)
            end[rows[same]] = begin[rows[same]]
        return type(self)(block, begin, end)

    def shown(self, row: int) -> str:
        """See `Cells`."""
        block, begin, end = self._at
        return block[begin[row] : end[row]].tobytes().decode(errors="replace")


class ArrowCells:
    """Values of an Arrow array; what is null is empty."""

    def __init__(self, array: Any) -> None:
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        self._array = array

    @property
    def array(self) -> Any:
        """The values, as an Arrow array."""
        return self._array

    def integers(self) -> tuple[Ints, States]:
        """See `Cells`; times are seconds since 1970."""
        kind = self._array.type
        if self._is_text():
            return self._as_text().integers()
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            seconds = pc.cast(pc.cast(self._array, pa.timestamp("s"), safe=False), pa.int64())
            return self._plain(seconds, np.int64), self._states()
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
            states = self._states()
            if kind == pa.uint64():
                values = self._plain(self._array, np.uint64)
                states[values > np.iinfo(np.int64).max] = BAD
                return np.where(states == GOOD, values, 0).astype(np.int64), states
            return self._plain(pc.cast(self._array, pa.int64()), np.int64), states
        values, states = self.numbers()
        whole = (values == np.floor(values)) & (np.abs(values) < 2**53)
        states[(states == GOOD) & ~whole] = BAD
        return np.where(states == GOOD, values, 0).astype(np.int64), states

    def numbers(self) -> tuple[Floats, States]:
        """See `Cells`."""
        if self._is_text():
            return self._as_text().numbers()
        states = self._states()
        try:
            values = self._plain(pc.cast(self._array, pa.float64(), safe=False), np.float64)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            states[states == GOOD] = BAD
            return np.zeros(len(states)), states
        states[~np.isfinite(values)] = BAD
        return np.where(states == GOOD, values, 0.0), states

    def words(self, value: Value, digits: int) -> tuple[Words, States]:
        """See `Cells`; what is no text is hashed, or read as digits, as its text."""
        if value == "integer":
            found, states = self.integers()
            return found.view(np.uint64), states
        return self._as_text().words(value, digits)

    def items(self, separator: str | None) -> tuple[Cells, Ints]:
        """See `Cells`; a null list has no items."""
        if separator is not None:
            return self._as_text().items(separator)
        lengths = pc.fill_null(pc.list_value_length(self._array), 0).to_numpy().astype(np.int64)
        return ArrowCells(self._array.flatten()), ends(lengths)

    def without(self, marks: Sequence[str]) -> Self:
        """See `Cells`; of floats, NaN is a mark where 'nan' is one, however it is written."""
        array = self._array
        if self._is_text():
            marked = pc.is_in(array, value_set=pa.array(marks).cast(array.type))
        elif pa.types.is_floating(array.type) and any(mark.lower() == "nan" for mark in marks):
            marked = pc.fill_null(pc.is_nan(array), False)
        else:
            return self
        return type(self)(pc.if_else(marked, pa.scalar(None, array.type), array))

    @property
    def is_list(self) -> bool:
        """Whether a value is a list."""
        kind = self._array.type
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

    def shown(self, row: int) -> str:
        """See `Cells`."""
        value = self._array[row]
        try:
            return str(value.as_py())
        except (ValueError, OverflowError):  # a time that Python has no object for
            return str(getattr(value, "value", value))

    def _is_text(self) -> bool:
        kind = self._array.type
        return bool(
            pa.types.is_string(kind)
            or pa.types.is_large_string(kind)
            or pa.types.is_binary(kind)
            or pa.types.is_large_binary(kind)
        )

    def _as_text(self) -> TextCells:
        array = self._array if self._is_text() else pc.cast(self._array, pa.string())
        filled = pc.fill_null(pc.cast(array, pa.binary()), b"")
        if isinstance(filled, pa.ChunkedArray):
            filled = filled.combine_chunks()
        _, offsets, data = filled.buffers()
        places = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1]
        block = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        return TextCells(block, places[:-1].copy(), places[1:].copy())

    def _states(self) -> States:
        states = np.full(len(self._array), GOOD, np.uint8)
        if self._array.null_count:
            states[self._array.is_null().to_numpy(zero_copy_only=False)] = EMPTY
        return states

    @staticmethod
    def _plain(array: Any, dtype: Any) -> Any:
        return pc.fill_null(array, 0).to_numpy(zero_copy_only=False).astype(dtype, copy=False)
