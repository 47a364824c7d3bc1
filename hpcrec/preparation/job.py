"""What a conversion of a table is to do. Knows what makes two conversions the same; how one is done is for `stages`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from hpcrec.preparation import pieces
from hpcrec.preparation.journal import Record
from hpcrec.preparation.pieces import PIECE_BYTES
from hpcrec.preparation.split import Cut
from hpcrec.preparation.tablemap import TableMap


@dataclass(frozen=True, kw_only=True)
class Job:
    """A conversion.

    Attributes
    ----------
    command : str
        What a user calls it.
    table : TableMap
    sources : tuple of Path
        In the order of their samples.
    out : Path
        Folder of the data set.
    split : Cut
    max_bad : float
        Share of lines that may be bad; they are written to ``rejects.tsv``. With 0 the first one ends the conversion.
    piece_bytes : int
        See `pieces.cut`.
    compression : str
        Of the files' columns: see `Writer`.
    conventions : dict, optional
        For the files' attribute, instead of those of the map.
    progress : bool
        Show a bar of this rank's bytes.
    known_by : dict, optional
        What the sources are known again by, instead of their paths and times: they were written for this conversion.
    """

    command: str
    table: TableMap
    sources: tuple[Path, ...]
    out: Path
    split: Cut
    max_bad: float = 0.0
    piece_bytes: int = PIECE_BYTES
    compression: str = "none"
    conventions: dict[str, str] | None = None
    progress: bool = False
    known_by: Record | None = None

    def identity(self) -> Record:
        """What makes two conversions the same. A larger `max_bad` goes on with what a smaller one refused."""
        return {
            "command": self.command,
            "hpcrec": metadata.version("hpcrec"),
            "table": asdict(self.table),
            "split": self.split.describe(),
            "piece_bytes": self.piece_bytes,
            "compression": self.compression,
            "sources": [pieces.identity(path) for path in self.sources] if self.known_by is None else [self.known_by],
        }


def sources_of(paths: Sequence[Path | str]) -> tuple[Path, ...]:
    """As `Job` takes them."""
    return tuple(Path(path) for path in paths)
