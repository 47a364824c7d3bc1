"""Fills a template of a page: its style stands inside, and all text is escaped.

Names of features, runs and metrics are anybody's. Knows templates and files beside them; nothing of what they show.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

_HERE = Path(__file__).parent
_STYLES = ("uplot/uPlot.min.css", "page.css")


def filled_in(template: str, shown: Mapping[str, Any]) -> str:
    """The page of this template, as text.

    Parameters
    ----------
    template : str
        A file of this package.
    shown : mapping
        What it is filled with; ``title`` at least.
    """
    return _environment().get_template(template).render(shown, style=texts(_STYLES))


def texts(names: Sequence[str]) -> str:
    """Of files of this package, one after the other."""
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment
