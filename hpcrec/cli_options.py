"""What the commands of ``hpcrec`` have in common: types of arguments and examples in help texts."""

from pathlib import Path

import click

HELP = ["-h", "--help"]
CONTEXT = {"help_option_names": HELP, "max_content_width": 100}


def examples(*lines: str) -> str:
    """Command lines for the end of a help text, kept as they are."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


File = click.Path(exists=True, dir_okay=False, path_type=Path)
Target = click.Path(dir_okay=False, path_type=Path)
Anything = click.Path(exists=True, path_type=Path)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="A.B=VALUE", help="Change a key of the configuration; repeatable."
)
