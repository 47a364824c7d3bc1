"""Options of files that take all files up to the next option."""

import click
import pytest
from click.testing import CliRunner

from hpcrec.cli.options import WithFiles


@click.command(cls=WithFiles)
@click.argument("files", nargs=-1)
@click.option("--validation", multiple=True)
@click.option("--test", multiple=True)
@click.option("--out")
def said(files: tuple[str, ...], validation: tuple[str, ...], test: tuple[str, ...], out: str | None) -> None:
    click.echo(f"{' '.join(files)}|{' '.join(validation)}|{' '.join(test)}|{out}")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("a b --validation c d --out o --test e", "a b|c d|e|o"),
        ("--out o a", "a|||o"),
        ("--test e f --validation c", "|c|e f|None"),
    ],
)
def test_they_take_what_follows(line: str, wanted: str) -> None:
    assert CliRunner().invoke(said, line.split()).output == f"{wanted}\n"


def test_one_without_a_file_is_refused() -> None:
    """An empty pattern of a shell would else cut the training data without a word."""
    result = CliRunner().invoke(said, ["a", "--validation"])
    assert result.exit_code == 2 and "'--validation' requires an argument" in result.output
