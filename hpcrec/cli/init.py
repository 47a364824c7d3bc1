"""``hpcrec init``: drafts a column map and a configuration from a look at tables.

Knows options; what is guessed and why is `drafts`'.
"""

from pathlib import Path
from typing import Any

import click

from hpcrec.cli.options import File, WithFiles, examples, parts_options
from hpcrec.systems import OF_THE_MACHINE, SYSTEMS


@click.command(
    "init",
    cls=WithFiles,
    short_help="Draft a column map and a configuration from your tables.",
    epilog=examples(
        "hpcrec init clicks.csv --label click",
        "hpcrec init ratings.csv.gz --label rating --label-from 4 --together user_id --out mine",
        "hpcrec init days/0*.parquet --validation days/10.parquet --test days/11.parquet --label click",
    ),
)
@click.argument("files", nargs=-1, type=File, required=True)
@click.option("--label", required=True, help="Column of the label: 0 or 1, or two words or numbers.")
@click.option("--label-from", type=float, help="Label 1 is a number from here on, say a rating from 4.")
@click.option("--positive", metavar="WORD", help="Which of the label's two words is label 1, where none says yes.")
@click.option("--together", metavar="COLUMN", help="Rows with the same value, say user or session, stay in one part.")
@click.option("--columns", metavar="A,B,...", help="Names of the columns of text without a header; else c1, c2, ...")
@click.option(
    "--system",
    type=click.Choice([name for name in SYSTEMS if name not in OF_THE_MACHINE]),
    help="run.toml has the keys of a published system (hpcrec/systems).",
)
@parts_options
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=".",
    show_default=True,
    help="Folder to write to.",
)
@click.option("--force", is_flag=True, help="Write over map.toml and run.toml.")
def init(files: tuple[Path, ...], columns: str | None, system: str | None, force: bool, **given: Any) -> None:
    """Look at tables and write map.toml (for 'hpcrec prepare table') and run.toml (for 'hpcrec train').

    FILES are delimited text (plain or gzip), Parquet or Arrow; a sample of some 200,000 rows is read. Every line of the
    two files has its reason. Columns that give the label away are named and left out.
    """
    from hpcrec.config import load_config
    from hpcrec.drafts import draft

    names = tuple(columns.split(",")) if columns else ()
    recipe = {} if system is None else SYSTEMS[system]()
    tables = draft.Tables(train=files, columns=names, recipe=recipe, system=system or "", **given)
    found = draft.write(tables, force=force)
    load_config(tables.out / draft.RUN)
    click.echo(f"wrote {tables.out / draft.MAP} and {tables.out / draft.RUN}; read them, then:")
    click.echo(f"  {draft.prepare_command(tables)}")
    several = "run -n 2 -- " if system is not None else ""  # owners and dense ranks may be apart
    click.echo(f"  hpcrec {several}train {tables.out / draft.RUN}")
    for name, leak in found.leaks.items():
        click.echo(f"left out: column {name} gives the label away: {leak.sentence}.")
    for note in found.notes:
        click.echo(f"note: {note}")
