"""The column map of Criteo's click logs (the Kaggle layout; the 1 TB logs have the same columns).

A line has 40 columns apart by tabs, without header: label, 13 integers I1..I13, 26 values C1..C26 of 8 hexadecimal
digits; any but the label may be empty. Conventions, recorded in the files: a missing integer is 0, negative ones are
clipped to 0, then log(x + 1); a missing category is id 0.
"""

from collections.abc import Sequence
from pathlib import Path

from hpcrec.comm.ranks import Ranks
from hpcrec.errors import ConfigError
from hpcrec.preparation import stages
from hpcrec.preparation.job import Job, sources_of
from hpcrec.preparation.numbering import BINS_CONVENTION
from hpcrec.preparation.pieces import PIECE_BYTES
from hpcrec.preparation.split import Cut, Split, Summary
from hpcrec.preparation.tablemap import DenseColumn, SparseColumn, TableMap

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


def prepare_criteo(
    sources: Sequence[Path | str],
    out_dir: Path | str,
    *,
    ids: str = "hash",
    rows_per_feature: int | None = None,
    min_count: int = 1,
    bin_integers: bool = False,
    split: Cut | None = None,
    max_bad: float = 0.0,
    piece_bytes: int = PIECE_BYTES,
    compression: str = "none",
    restart: bool = False,
    progress: bool = False,
    ranks: Ranks | None = None,
) -> Summary:
    """Convert Criteo files, plain or gzip, in the order given; collective.

    Parameters
    ----------
    sources : sequence of Path
    out_dir : Path
    ids : str
        ``hash``: ids 1 and above are a hash of the value into `rows_per_feature` - 1 rows (one pass). ``vocabulary``:
        id 1 is a value seen less than `min_count` times in the train samples, ids 2 and above are the others by
        falling count (two passes); the values are written to ``vocabulary.h5``, ``/<feature>`` uint32, id 2 first.
    rows_per_feature : int, optional
        Cardinality of each feature; 100,000 for ``hash``, at most this many (no limit by default) for ``vocabulary``.
    min_count : int
        Only for ``vocabulary``.
    bin_integers : bool
        I1..I13 are features too, besides dense inputs: id 0 missing, 1 negative, 2 + x up to 2, then 2 + the integer
        part of the squared logarithm.
    split : Cut, optional
        ``order:0.8,0.1,0.1`` by default.
    max_bad, piece_bytes, compression, progress
        See `Job`.
    restart : bool
        Begin anew whatever the folder holds.
    ranks : Ranks, optional
        This process alone by default.

    Raises
    ------
    DataError
        At the first bad line, naming file, line and column; or when there are more than `max_bad`.
    ConfigError
        For options that do not fit.
    """
    if ids not in ("hash", "vocabulary"):
        raise ConfigError(f"prepare criteo: ids {ids!r}; 'hash' and 'vocabulary' are allowed.")
    if ids == "hash" and min_count != 1:
        raise ConfigError(f"prepare criteo: min_count {min_count} with hashed ids; it needs ids='vocabulary'.")
    if min_count < 1 or (rows_per_feature is not None and rows_per_feature < 3):
        raise ConfigError(
            f"prepare criteo: min_count {min_count}, rows_per_feature {rows_per_feature}; at least 1 and 3."
        )
    sparse = {
        name: SparseColumn(ids=ids, value="hex", digits=8, rows=rows_per_feature, min_count=min_count)  # type: ignore[arg-type]
        for name in CATEGORIES
    }
    if bin_integers:
        sparse |= {name: SparseColumn(ids="bins", value="integer") for name in INTEGERS}
    columns = TableMap(
        labels=("label",),
        delimiter="\t",
        header=False,
        columns=("label", *INTEGERS, *CATEGORIES),
        dense={name: DenseColumn(integer=True, transform="log1p", missing=0.0) for name in INTEGERS},
        sparse=sparse,
    )
    convention = {
        "hash": "hash of the value (splitmix64, salted by feature) into 1..cardinality-1; 0 missing",
        "vocabulary": f"vocabulary of the train samples, min_count {min_count}; 0 missing, 1 rare, then by falling "
        "count",
    }
    conversion = Job(
        command="criteo",
        table=columns,
        sources=sources_of(sources),
        out=Path(out_dir),
        split=split or Split(),
        max_bad=max_bad,
        piece_bytes=piece_bytes,
        compression=compression,
        progress=progress,
        conventions={
            "ids": convention[ids],
            "bins": BINS_CONVENTION if bin_integers else "none",
            "dense": "missing 0, negative clipped to 0, log(x + 1); columns " + " ".join(INTEGERS),
        },
    )
    return stages.run(conversion, ranks, restart=restart)
