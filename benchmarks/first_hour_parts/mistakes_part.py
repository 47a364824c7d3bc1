"""How many of the forty mistakes of ``tests/first_hour`` are caught: the list, and what catching means, are there."""

import sys
from pathlib import Path

from _report import ROOT, claim, finish


def run(path: Path | None) -> None:
    """Makes them all and writes how many are caught."""
    sys.path.insert(0, str(ROOT))
    from tests.first_hour.caught import count

    caught, of = count()
    rows = [{"caught": caught, "of": of}]
    finish("first_hour", rows, [claim("first_hour.mistakes_caught", caught, f"of {of}", ">= 40")], path)
