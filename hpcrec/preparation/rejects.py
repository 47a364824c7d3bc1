"""What becomes of lines that give no sample: refused at once, or counted, written down, and refused past a share.

Knows nothing of what is wrong with a line.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hpcrec.again import is_there
from hpcrec.data import files
from hpcrec.errors import DataError
from hpcrec.preparation.blocks import Block
from hpcrec.preparation.lines import lines_before
from hpcrec.preparation.pieces import TYPED, Piece, Span
from hpcrec.preparation.table import Problems

HEADER = "file\tline\tbyte\tcolumn\treason\ttext\n"
_TEXT = 1000  # characters of a line that are written down
_PIECE_LINES = 100_000  # a piece may have the share of at least so many lines, whatever it has read so far


@dataclass
class Rejects:
    """The bad lines of one piece.

    Parameters
    ----------
    path : Path
        Where they are written, line numbers counted in their span.
    max_bad : float
        Share of lines that may be bad.
    n : int
        How many there were.
    """

    path: Path
    max_bad: float
    n: int = 0

    def take(self, block: Block, problems: Problems, span_number: int, lines: int) -> None:
        """Note the bad rows of a block; `lines` have been read of the piece, the block's included.

        Raises
        ------
        DataError
            At the first where none is allowed, with its line; or when there are too many.
        """
        if not problems.found:
            return
        rows = sorted(problems.found)
        if self.max_bad == 0:
            raise DataError(self._refusal(block, rows[0], *problems.found[rows[0]], problems.hints.get(rows[0], "")))
        self.n += len(rows)
        if self.n > self.max_bad * max(lines, _PIECE_LINES):
            last = self._refusal(block, rows[-1], *problems.found[rows[-1]])
            raise DataError(f"{too_many(self.n, lines, self.max_bad)} The last: {last}")
        with files.named(self.path), self.path.open("a", encoding="utf-8") as out:
            for row in rows:
                column, reason = problems.found[row]
                byte = "" if block.offset_R is None else int(block.offset_R[row])
                text = [_plain(column), _plain(reason), _plain(block.raw(row)[:_TEXT])]
                out.write("\t".join([str(span_number), str(block.first + row), str(byte), *text]) + "\n")
            out.flush()
            os.fsync(out.fileno())  # the note of the piece says how many there are

    def _refusal(self, block: Block, row: int, column: str, reason: str, hint: str = "") -> str:
        word = "row" if block.span.kind in TYPED else "line"
        before = 0 if block.span.kind in TYPED else lines_before(block.span)
        where = f"{block.span.path}, {word} {before + block.first + row + 1}"
        if block.span.kind in TYPED and block.span.start:
            where += f" from row group {block.span.start} on"
        where += f", column {column}" if column else ""
        hint = hint and f"{hint} "
        return f"{where}: {reason}. {hint}Mend or remove the {word}, or allow some (--max-bad)."


def too_many(n: int, lines: int, max_bad: float) -> str:
    """Says that the share of bad lines is past what is allowed."""
    return (
        f"{n} of {lines} lines are bad, a share of {n / lines:.3g}; allowed is {max_bad:g} (--max-bad). Mend the "
        "source, or allow more: the same command with a larger --max-bad goes on from here."
    )


def write_all(path: Path, pieces: Sequence[Piece], parts: Sequence[tuple[Path, dict[str, Any]]]) -> None:
    """Join the rejects of all pieces, in order, with line numbers of whole files; no file where there are none.

    Parameters
    ----------
    path : Path
    pieces : sequence of Piece
    parts : sequence of (Path, dict)
        For each piece its rejects and its record, whose ``lines`` are those of each span.
    """
    before: dict[Path, int] = {}
    temporary = files.temporary_beside(path)
    try:
        with files.synced(temporary) as out:
            out.write(HEADER.encode())
            for piece, (part, record) in zip(pieces, parts, strict=True):
                _join(out, piece.spans, part, record["lines"], before)
        files.publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _join(out: BinaryIO, spans: Sequence[Span], part: Path, lines: Sequence[int], before: dict[Path, int]) -> None:
    starts = []
    for span, n in zip(spans, lines, strict=True):
        starts.append(before.get(span.path, 0))
        before[span.path] = starts[-1] + n
    if not is_there(part):
        return
    with files.named(part), part.open(encoding="utf-8") as rows:
        for row in rows:
            number, line, rest = row.split("\t", 2)
            place = int(number)
            out.write(f"{_plain(str(spans[place].path))}\t{starts[place] + int(line) + 1}\t{rest}".encode())


def _plain(text: str) -> str:
    """On one line and in one column."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
