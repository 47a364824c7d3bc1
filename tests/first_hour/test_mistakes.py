"""Forty mistakes of a first hour: each is refused, before ranks start where that can be, and says what to write."""

from collections.abc import Iterator

import pytest

from tests.bad_input.forked import Forked
from tests.first_hour import ground as grounds
from tests.first_hour.caught import tried
from tests.first_hour.ground import Ground
from tests.first_hour.mistakes import MISTAKES


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Forked() as hpcrec:
        yield grounds.make(tmp_path_factory.mktemp("first hour"), hpcrec)


def test_there_are_forty() -> None:
    assert len(MISTAKES) == 40
    assert all(mistake.names and mistake.found and mistake.write for mistake in MISTAKES.values())


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught(ground: Ground, name: str) -> None:
    found = tried(MISTAKES[name], ground)
    assert not found.lacks, f"{name}: {found.said}"
