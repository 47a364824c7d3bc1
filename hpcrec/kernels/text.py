"""Kernels on delimited text: where the values of a block of lines stand, and what they are.

A value is the bytes ``[begin, end)`` of the block. Each has a state: `GOOD`, `EMPTY`, or `BAD` where it is not what it
should be; the result is then 0. Files and what a bad value means are known above. One thread, whatever `set_threads`
says: ranks share out the files. Shapes: C columns, L lines, V values.
"""

from types import ModuleType

import numpy as np

from hpcrec.kernels import native_text, reference_text
from hpcrec.kernels.backend import active
from hpcrec.kernels.reference_text import BAD, EMPTY, GOOD, Bytes, Places, States, Words
from hpcrec.types import Floats, Ints

__all__ = [
    "BAD",
    "EMPTY",
    "GOOD",
    "Bytes",
    "Places",
    "States",
    "Words",
    "cut_lines",
    "cut_lists",
    "hash_text",
    "parse_hex",
    "parse_integers",
    "parse_numbers",
    "salted_rows",
]
_MOST_BYTES = 2**31 - 1


def _backend() -> ModuleType:
    return native_text if active() == "native" else reference_text


def cut_lines(
    text: Bytes, *, delimiter: str, quote: str | None, wanted: Places, n_lines: int
) -> tuple[Places, Places, Places, Places]:
    r"""Cut whole lines into values.

    Parameters
    ----------
    text : uint8 [n]
        Lines, each ended by ``\n`` (``\r\n`` will do).
    delimiter : str
        Of one byte.
    quote : str or None
        A value that begins with it goes on to the next one, delimiters and doubled quotes included; it ends on its
        line. The quotes around it are no part of the value; doubled ones in it stay doubled.
    wanted : int32 [C]
        Numbers of columns, ascending.
    n_lines : int
        Newlines in the text.

    Returns
    -------
    begin, end : int32 [C, L]
        Of the wanted values; a column that a line does not have is empty.
    line_begin : int32 [L + 1]
    columns : int32 [L]
        How many a line has; -1 where a quote is not closed, or closed inside a value.
    """
    if text.dtype != np.uint8 or text.ndim != 1 or len(text) > _MOST_BYTES:
        raise ValueError(f"text is {text.dtype}{list(text.shape)}; needed are fewer than 2^31 bytes, uint8")
    return _backend().cut_lines(text, _byte(delimiter), -1 if quote is None else _byte(quote), wanted, n_lines)


def cut_lists(text: Bytes, begin: Places, end: Places, separator: str) -> tuple[Places, Places, Ints]:
    """Begin and end of each item (int32 [K]) of lists, and offsets (int64 [V + 1]); an empty value has no items."""
    return _backend().cut_lists(text, *_places(begin, end), _byte(separator))


def parse_integers(text: Bytes, begin: Places, end: Places) -> tuple[Ints, States]:
    """Values of up to 18 digits, with or without a sign, as int64 [V]; their states."""
    return _backend().parse_integers(text, *_places(begin, end))


def parse_numbers(text: Bytes, begin: Places, end: Places) -> tuple[Floats, States]:
    """Decimal numbers as float64 [V]; their states. What is infinite, no number, or too small for float64 is bad."""
    return _backend().parse_numbers(text, *_places(begin, end))


def parse_hex(text: Bytes, begin: Places, end: Places, digits: int = 0) -> tuple[Words, States]:
    """Values of exactly `digits` hexadecimal digits (0: from 1 to 16) as uint64 [V]; their states."""
    return _backend().parse_hex(text, *_places(begin, end), digits)


def hash_text(text: Bytes, begin: Places, end: Places) -> tuple[Words, States]:
    """A 64-bit hash of each value's bytes; its state, `GOOD` or `EMPTY`."""
    return _backend().hash_text(text, *_places(begin, end))


def salted_rows(words: Words, salt: int, rows: int) -> Ints:
    """Words hashed, with a salt, into rows ``1 .. rows - 1``; int64, same length."""
    if rows < 2:
        raise ValueError(f"rows is {rows}; 2 or more are needed")
    return _backend().salted_rows(np.ascontiguousarray(words, np.uint64), salt, rows)


def _byte(character: str) -> int:
    code = character.encode()
    if len(code) != 1 or code in b"\r\n":
        raise ValueError(f"{character!r} is not one byte that may stand between values")
    return code[0]


def _places(begin: Places, end: Places) -> tuple[Places, Places]:
    if not (begin.dtype == end.dtype == np.int32 and begin.shape == end.shape and begin.ndim == 1):
        raise ValueError(f"begin is {begin.dtype}{begin.shape}, end {end.dtype}{end.shape}; needed: int32, one shape")
    return np.ascontiguousarray(begin), np.ascontiguousarray(end)
