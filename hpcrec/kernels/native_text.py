"""The text kernels of the native module, under the reference's names and signatures."""

import numpy as np

from hpcrec.kernels.native import module
from hpcrec.kernels.reference_text import Bytes, Places, States, Words
from hpcrec.types import Floats, Ints


def cut_lines(
    text: Bytes, delimiter: int, quote: int, wanted: Places, n_lines: int
) -> tuple[Places, Places, Places, Places]:
    """See the reference."""
    begin, end = (np.empty((len(wanted), n_lines), np.int32) for _ in range(2))
    line_begin, columns = np.zeros(n_lines + 1, np.int32), np.empty(n_lines, np.int32)
    module().cut_lines(text, delimiter, quote, wanted, begin, end, line_begin, columns)
    return begin, end, line_begin, columns


def cut_lists(text: Bytes, begin: Places, end: Places, separator: int) -> tuple[Places, Places, Ints]:
    """See the reference."""
    room = int((end - begin).sum(dtype=np.int64)) + len(begin)  # an item is at least the separator before it
    item_begin, item_end = (np.empty(room, np.int32) for _ in range(2))
    offsets = np.empty(len(begin) + 1, np.int64)
    n = module().cut_lists(text, begin, end, separator, item_begin, item_end, offsets)
    return item_begin[:n].copy(), item_end[:n].copy(), offsets


def parse_integers(text: Bytes, begin: Places, end: Places) -> tuple[Ints, States]:
    """See the reference."""
    out, state = np.empty(len(begin), np.int64), np.empty(len(begin), np.uint8)
    module().parse_integers(text, begin, end, out, state)
    return out, state


def parse_numbers(text: Bytes, begin: Places, end: Places) -> tuple[Floats, States]:
    """See the reference."""
    out, state = np.empty(len(begin), np.float64), np.empty(len(begin), np.uint8)
    module().parse_numbers(text, begin, end, out, state)
    return out, state


def parse_hex(text: Bytes, begin: Places, end: Places, digits: int) -> tuple[Words, States]:
    """See the reference."""
    out, state = np.empty(len(begin), np.uint64), np.empty(len(begin), np.uint8)
    module().parse_hex(text, begin, end, digits, out, state)
    return out, state


def hash_text(text: Bytes, begin: Places, end: Places) -> tuple[Words, States]:
    """See the reference."""
    out, state = np.empty(len(begin), np.uint64), np.empty(len(begin), np.uint8)
    module().hash_text(text, begin, end, out, state)
    return out, state


def salted_rows(words: Words, salt: int, rows: int) -> Ints:
    """See the reference."""
    out = np.empty(len(words), np.int64)
    module().salted_rows(words, salt, rows, out)
    return out
