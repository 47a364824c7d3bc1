"""One prepared table of clicks for all tests of the Python interface, and the command line beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcrec
from tests.api import clicks
from tests.forked import Forked


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Data sets by part, made of a frame."""
    out: Path = tmp_path_factory.mktemp("clicks") / "data"
    return hpcrec.prepare(clicks.Stream(clicks.frame()), out, clicks.MAP).files


@pytest.fixture(scope="session")
def command() -> Iterator[Forked]:
    """``hpcrec`` in processes of its own."""
    with Forked(whole=True) as forked:
        yield forked
