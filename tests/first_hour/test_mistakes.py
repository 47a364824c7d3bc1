"""Forty mistakes of a first hour: each is refused, before ranks start where that can be, and says what to write."""

from collections.abc import Callable, Iterator

import pytest

from tests.first_hour import ground as grounds
from tests.first_hour import table
from tests.first_hour.caught import Tried, tried
from tests.first_hour.ground import Ground
from tests.first_hour.mistakes import MISTAKES
from tests.forked import Forked


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Forked(whole=True) as hpcrec:
        yield grounds.make(tmp_path_factory.mktemp("first-hour"), hpcrec)


@pytest.fixture(scope="module")
def met(ground: Ground) -> Callable[[str], Tried]:
    """How a mistake is met; each is made once."""
    known: dict[str, Tried] = {}

    def one(name: str) -> Tried:
        if name not in known:
            known[name] = tried(MISTAKES[name], ground)
        return known[name]

    return one


def test_there_are_forty() -> None:
    assert len(MISTAKES) == 40
    assert all(mistake.names and mistake.found and mistake.write for mistake in MISTAKES.values())


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught(met: Callable[[str], Tried], name: str) -> None:
    found = met(name)
    assert not found.lacks, f"{name}: {found.said}"


def test_the_page_of_mistakes_is_up_to_date(met: Callable[[str], Tried], ground: Ground) -> None:
    page = table.page({name: met(name) for name in MISTAKES}, ground.folder)
    assert table.PAGE.read_text() == page, "run: python -m tests.first_hour.table > docs/mistakes.md"
