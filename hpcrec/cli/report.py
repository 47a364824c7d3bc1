"""``hpcrec report``: the page of one run, or of several side by side.

Knows arguments; run folders are ``report_page.folder``'s, the page ``report_page.page``'s.
"""

from collections.abc import Sequence
from pathlib import Path

import click

from hpcrec.cli.options import Target, examples
from hpcrec.errors import ConfigError


@click.command(
    short_help="Write the page of a run, or of several side by side.",
    epilog=examples(
        "hpcrec report runs/quickstart",
        "hpcrec report runs/sync runs/hybrid --out compared.html",
        "hpcrec report runs/quickstart --text",
    ),
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=Target,
    help="File to write; by default report.html in the folder of the run, or of several in the working directory.",
)
@click.option("--text", is_flag=True, help="Print all that summary.json says, instead of a page.")
def report(runs: Sequence[Path], out: Path | None, text: bool) -> None:
    """Write one HTML file of the runs in the folders RUN: results, curves, times, bytes, memory.

    A run may have finished or failed, or go on at this moment. Curves of several runs are laid over each other, and
    what differs in their configurations is shown as a table. The file needs no network and no other file.
    """
    from hpcrec.launcher.status import status_of
    from hpcrec.report_page.folder import read_run
    from hpcrec.report_page.page import FILE, write_page
    from hpcrec.training.report import text_table

    if text and out is not None:
        raise ConfigError(
            f"hpcrec report: --text prints, and --out {out} names a file to write. Leave one of them out."
        )
    folders = [run.absolute().resolve() for run in runs]
    for i, folder in enumerate(folders):
        if folder in folders[:i]:
            raise ConfigError(f"hpcrec report: {runs[i]} is given twice. Give each run once.")
    names = [folder.name for folder in folders]
    named = [name if names.count(name) == 1 else str(run) for name, run in zip(names, runs, strict=True)]
    read = [read_run(run, name, lambda folder: status_of(folder).state) for run, name in zip(runs, named, strict=True)]
    if text:
        for run in read:
            head = f"{run.name}: {run.state}\n" if len(read) > 1 else ""
            click.echo(
                head + (text_table(run.summary) if run.summary.get("status") else "It has not written how it ended.")
            )
        return
    if out is None:
        out = runs[0] / FILE if len(runs) == 1 else Path(FILE)
    path = write_page(read, out)
    said = ", ".join(f"{run.name} {run.state}" for run in read)
    click.echo(f"{path}: {said}")
