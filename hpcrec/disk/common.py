"""What the logs of a folder share: settings, who reads and writes, counts, numbers. Knows no rows."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrec.disk import pages
from hpcrec.units import KiB


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of all logs of a folder.

    Attributes
    ----------
    io : str
        See ``page_io``.
    depth : int, optional
        Reads under way, at most.
    spare : float
        The disk may have so many times the bytes of the rows that are alive, more than 1.1.
    segment_bytes, piece_bytes : int, optional
        Of a file, about, and of what is written at once.
    """

    io: pages.Way = "auto"
    depth: int | None = None
    spare: float = 1.5
    segment_bytes: int | None = None
    piece_bytes: int = 128 * KiB


@dataclass
class Counts:
    """Since the tier was opened: bytes of rows handed over, written for whatever reason, and cleaned; what was read."""

    handed_bytes: int = 0
    written_bytes: int = 0
    cleaned_bytes: int = 0
    read_rows: int = 0
    read_pages: int = 0
    cleaned_segments: int = 0


@dataclass
class Common:
    """What the logs of a folder share."""

    folder: Path
    io: Any
    settings: Settings
    counts: Counts = field(default_factory=Counts)
    numbers: Any = field(default_factory=lambda: itertools.count(1))  # of segments
    stamp: int = 1  # of the next page
    cleans: bool = True

    def path(self, number: int) -> Path:
        """Of a segment."""
        return self.folder / f"segment-{number:08d}"
