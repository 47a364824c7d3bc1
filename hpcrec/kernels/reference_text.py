"""The text kernels in plain Python and NumPy: what they compute, and what runs where the native module is missing.

The native module gives the same bits. What is no good value is 0. Arguments have passed the checks of ``text``.
"""

import re

import numpy as np
from numpy.typing import NDArray

from hpcrec.kernels.reference_mix import mix
from hpcrec.types import Floats, Ints

GOOD, EMPTY, BAD = 0, 1, 2  # states of a value

Bytes = NDArray[np.uint8]
Places = NDArray[np.int32]
States = NDArray[np.uint8]
Words = NDArray[np.uint64]

_INTEGER = re.compile(rb"[+-]?[0-9]{1,18}")
_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def cut_lines(
    text: Bytes, delimiter: int, quote: int, wanted: Places, n_lines: int
) -> tuple[Places, Places, Places, Places]:
    """Where the wanted values of each line stand, where lines begin, and how many columns each has."""
    lines = text.tobytes().split(b"\n")
    if lines.pop() or len(lines) != n_lines:
        raise ValueError("text must end in a newline, and have as many lines as was said")
    begin, end = (np.zeros((len(wanted), n_lines), np.int32) for _ in range(2))
    line_begin, columns = np.zeros(n_lines + 1, np.int32), np.zeros(n_lines, np.int32)
    for number, line in enumerate(lines):
        first, is_open, at, values = int(line_begin[number]), False, -1, []
        while at < len(line):
            value, at, left_open = _next_value(line, at + 1, delimiter, quote)
            values.append(value)
            is_open |= left_open
        for place, column in enumerate(wanted.tolist()):
            value = values[column] if column < len(values) else (at, at)
            begin[place, number], end[place, number] = first + value[0], first + value[1]
        columns[number] = -1 if is_open else len(values)
        line_begin[number + 1] = first + len(line) + 1
    return begin, end, line_begin, columns


def _next_value(line: bytes, at: int, delimiter: int, quote: int) -> tuple[tuple[int, int], int, bool]:
    """Begin and end of the value at `at`, where the line goes on, and whether a quote was left open."""
    begin = at
    if quote >= 0 and line[at : at + 1] == bytes([quote]):
        at += 1
        while at < len(line) and (line[at] != quote or line[at + 1 : at + 2] == bytes([quote])):
            at += 2 if line[at] == quote else 1
        end = at
        if at < len(line):
            at += 1
            at += line[at:] == b"\r"
            if at == len(line) or line[at] == delimiter:
                return (begin + 1, end), at, False
        while at < len(line) and line[at] != delimiter:
            at += 1
        return (begin, at), at, True
    found = line.find(delimiter, at)
    at = len(line) if found < 0 else found
    end = at - 1 if found < 0 and line[begin:at].endswith(b"\r") else at
    return (begin, end), at, False


def cut_lists(text: Bytes, begin: Places, end: Places, separator: int) -> tuple[Places, Places, Ints]:
    """Begin and end of each item, and the offsets of values among them."""
    spans, offsets = [], [0]
    for at, stop, value in zip(begin.tolist(), end.tolist(), _values(text, begin, end), strict=True):
        for item in value.split(bytes([separator])) if stop > at else ():
            spans.append((at, at + len(item)))
            at += len(item) + 1
        offsets.append(len(spans))
    items = np.array(spans, np.int32).reshape(-1, 2)
    return items[:, 0].copy(), items[:, 1].copy(), np.array(offsets, np.int64)


def parse_integers(text: Bytes, begin: Places, end: Places) -> tuple[Ints, States]:
    """Up to 18 digits with or without a sign."""
    values = _values(text, begin, end)
    fits = [_INTEGER.fullmatch(value) is not None for value in values]
    out = [int(value) if fit else 0 for value, fit in zip(values, fits, strict=True)]
    return np.array(out, np.int64), _states(values, fits)


def parse_numbers(text: Bytes, begin: Places, end: Places) -> tuple[Floats, States]:
    """Decimal numbers, correctly rounded, that float64 holds: neither infinite nor rounded to 0."""
    values = _values(text, begin, end)
    out = [float(value) if _NUMBER.fullmatch(value) else np.nan for value in values]
    fits = [
        bool(np.isfinite(x)) and (x != 0 or not re.search(rb"[1-9]", re.split(rb"[eE]", value)[0]))
        for x, value in zip(out, values, strict=True)
    ]
    return np.where(fits, np.array(out, np.float64), 0.0), _states(values, fits)


def parse_hex(text: Bytes, begin: Places, end: Places, digits: int) -> tuple[Words, States]:
    """Hexadecimal digits: exactly `digits`, or where that is 0 from 1 to 16."""
    pattern = re.compile(rb"[0-9a-fA-F]{%d,%d}" % (digits or 1, digits or 16))
    values = _values(text, begin, end)
    fits = [pattern.fullmatch(value) is not None for value in values]
    out = [int(value, 16) if fit else 0 for value, fit in zip(values, fits, strict=True)]
    return np.array(out, np.uint64), _states(values, fits)


def hash_text(text: Bytes, begin: Places, end: Places) -> tuple[Words, States]:
    """``mix`` folded over the length and the bytes, 8 at a time, little-endian, padded with zeros."""
    values = _values(text, begin, end)
    lengths = np.array([len(value) for value in values], np.uint64)
    out = mix(lengths)
    for place in range(0, int(lengths.max(initial=0)), 8):
        more = np.flatnonzero(lengths > place)
        words = [int.from_bytes(values[i][place : place + 8], "little") for i in more.tolist()]
        out[more] = mix(out[more] ^ np.array(words, np.uint64))
    return out, _states(values, [True] * len(values))


def salted_rows(words: Words, salt: int, rows: int) -> Ints:
    """``1 + mix(word ^ salt) % (rows - 1)``."""
    return (mix(words ^ np.uint64(salt)) % np.uint64(rows - 1)).astype(np.int64) + 1


def _values(text: Bytes, begin: Places, end: Places) -> list[bytes]:
    if len(begin) and not (begin.min() >= 0 and (begin <= end).all() and end.max() <= len(text)):
        raise ValueError("values must lie in the text: 0 <= begin <= end <= bytes")
    whole = text.tobytes()
    return [whole[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]


def _states(values: list[bytes], fits: list[bool]) -> States:
    return np.array(
        [GOOD if value and fit else BAD if value else EMPTY for value, fit in zip(values, fits, strict=True)], np.uint8
    )
