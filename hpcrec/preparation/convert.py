"""The converters behind ``hpcrec prepare``, in one place to import from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrec.comm.ranks import Ranks
from hpcrec.errors import ConfigError
from hpcrec.preparation import job, stages
from hpcrec.preparation.blocks import Reader
from hpcrec.preparation.criteo import prepare_criteo
from hpcrec.preparation.movielens import prepare_movielens
from hpcrec.preparation.prepare_synthetic import prepare_synthetic
from hpcrec.preparation.split import Cut, FileSplit, Split, Summary, by_files, parse_cut
from hpcrec.preparation.tablemap import TableMap, load_map

__all__ = [
    "Cut",
    "FileSplit",
    "Split",
    "Summary",
    "TableMap",
    "check_columns",
    "parse_cut",
    "prepare_criteo",
    "prepare_movielens",
    "prepare_synthetic",
    "prepare_table",
]


def check_columns(sources: Sequence[Path | str], table: TableMap) -> None:
    """Holds the columns of tables to a map, as `prepare_table` does before it reads a row.

    Raises
    ------
    ConfigError, DataError
        A column that the map names is not there; headers that differ; a file that cannot be read.
    """
    Reader(table, [Path(path) for path in sources])


def prepare_table(
    sources: Sequence[Path | str],
    out_dir: Path | str,
    table: TableMap | Path | str,
    *,
    validation: Sequence[Path | str] = (),
    test: Sequence[Path | str] = (),
    split: Cut | None = None,
    seed: int = 0,
    restart: bool = False,
    ranks: Ranks | None = None,
    **options: Any,
) -> Summary:
    """Convert tables of delimited text, Parquet or Arrow, in the order given; collective.

    Parameters
    ----------
    sources : sequence of Path
    out_dir : Path
    table : TableMap or Path
        What the columns are, or the TOML file that says so.
    validation, test : sequence of Path
        Where these parts have files of their own: all sources are of train then. Vocabularies are those of train.
    split : Cut, optional
        By default what the map says, or ``order:0.8,0.1,0.1``.
    seed : int
        Of the map's split, where it is random.
    restart : bool
        Begin anew whatever the folder holds.
    ranks : Ranks, optional
        This process alone by default.
    **options
        ``max_bad``, ``piece_bytes``, ``compression``, ``progress``, ``known_by``: see `job.Job`.

    Raises
    ------
    ConfigError
        The map is wrong, or does not fit the sources; a split beside files of validation or test.
    DataError
        A source that cannot be read, or too many bad lines.
    """
    columns = table if isinstance(table, TableMap) else load_map(Path(table))
    if validation or test:
        if split is not None:
            raise ConfigError(
                "split: is for sources that hold all parts; leave it out, or the files of validation and test."
            )
        split = by_files(sources, validation, test)
    elif split is None:
        split = Split() if columns.split is None else parse_cut(columns.split, seed)
    conversion = job.Job(
        command="table",
        table=columns,
        sources=job.sources_of([*sources, *validation, *test]),
        out=Path(out_dir),
        split=split,
        **options,
    )
    return stages.run(conversion, ranks, restart=restart)
