"""The converters behind ``hpcrec prepare``, in one place to import from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcrec.comm.ranks import Ranks
from hpcrec.preparation import job, stages
from hpcrec.preparation.criteo import prepare_criteo
from hpcrec.preparation.movielens import prepare_movielens
from hpcrec.preparation.prepare_synthetic import prepare_synthetic
from hpcrec.preparation.split import Split, Summary
from hpcrec.preparation.tablemap import TableMap, load_map

__all__ = ["Split", "Summary", "TableMap", "prepare_criteo", "prepare_movielens", "prepare_synthetic", "prepare_table"]


def prepare_table(
    sources: Sequence[Path | str],
    out_dir: Path | str,
    table: TableMap | Path | str,
    *,
    split: Split | None = None,
    restart: bool = False,
    ranks: Ranks | None = None,
    **options: Any,
) -> Summary:
    """Convert tables of delimited text or Parquet, in the order given; collective.

    Parameters
    ----------
    sources : sequence of Path
    out_dir : Path
    table : TableMap or Path
        What the columns are, or the TOML file that says so.
    split : Split, optional
        ``order:0.8,0.1,0.1`` by default.
    restart : bool
        Begin anew whatever the folder holds.
    ranks : Ranks, optional
        This process alone by default.
    **options
        ``max_bad``, ``piece_bytes``, ``compression``, ``progress``, ``known_by``: see `job.Job`.

    Raises
    ------
    ConfigError
        The map is wrong, or does not fit the sources.
    DataError
        A source that cannot be read, or too many bad lines.
    """
    columns = table if isinstance(table, TableMap) else load_map(Path(table))
    conversion = job.Job(
        command="table",
        table=columns,
        sources=job.sources_of(sources),
        out=Path(out_dir),
        split=split or Split(),
        **options,
    )
    return stages.run(conversion, ranks, restart=restart)
