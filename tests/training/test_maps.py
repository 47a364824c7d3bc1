"""By levels on maps of hosts, up to 4 of 2 ranks and of 1, 2 and 3: the flat run, in the messages of the formula."""

import json
from pathlib import Path

import pytest
from mpi4py import MPI

from tests.comm.job import Job
from tests.together import on_every_rank
from tests.training import maps
from tests.training.test_host_sums import on_hosts
from tests.training.test_levels import AHEAD

pytestmark = AHEAD

ROOT = Path(__file__).resolve().parents[2]
CASES = len(list(maps.cases()))
LARGE = {"4x2": 0, "1+2+3": 1}  # and whether its first case is of split ranks: each is fused on one of them
MANY = ("4x8", "8x8")  # ranks that count alone
LIMIT_S = 1200  # of 2 cores with no other work
BODY = """
ready()
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.training import maps
maps.main(Path({folder!r}), {name!r}, {check!r}, {first})
"""


def on_ranks(folder: Path, name: str, check: str) -> dict[str, int]:
    """What rank 0 of a job on all ranks of the map says that it has seen; a rank that fails ends it."""
    body = BODY.format(root=str(ROOT), folder=str(folder), name=name, check=check, first=LARGE.get(name, 0))
    ended = Job(folder, body, ranks=len(maps.MAPS[name])).end(limit_s=LIMIT_S)
    assert ended.code == 0, ended.out[-4000:] + ended.err[-12000:]
    (told,) = [line for line in ended.out.splitlines() if line.startswith("{")]
    return dict(json.loads(told))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE)
def test_every_case_is_the_flat_run_but_for_the_order_of_sums(tmp_path: Path, name: str) -> None:
    seen = on_ranks(tmp_path, name, "cases")
    assert seen["cases"] == CASES
    assert seen["added"] >= CASES // 3 and seen["split"] >= CASES // 3, seen


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE)
def test_every_run_has_the_bits_of_the_flat_one_where_nothing_is_added(tmp_path: Path, name: str) -> None:
    seen = on_ranks(tmp_path, name, "bits")
    assert seen["cases"] == len(maps.LEVELS) and seen["split"] >= len(maps.LEVELS) // 3, seen


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", LARGE)
def test_towers_at_their_place_learn_as_in_one_process(tmp_path: Path, name: str) -> None:
    seen = on_ranks(tmp_path, name, "towers")
    assert seen["cases"] >= 12 and seen["several"] >= 4 and seen["split"] >= 4, seen


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*LARGE, *MANY])
def test_messages_and_bytes_are_those_of_the_formula(tmp_path: Path, name: str) -> None:
    """Of both forms, by levels with four ways of roles and flat with one; on 32 and 64 ranks with one way of roles."""
    seen = on_ranks(tmp_path, name, "counts")
    if name in MANY:
        assert seen["runs"] == 4 and seen["added"] == 2, seen
    else:
        assert seen["runs"] == 10 and 3 <= seen["added"] <= 8, seen


@pytest.mark.slow
@pytest.mark.parallel([2, 4])
@pytest.mark.parametrize("ranks_a_host", [1, 2])
def test_small_maps(folder: Path, monkeypatch: pytest.MonkeyPatch, ranks_a_host: int) -> None:
    """One host of 2, two of 1, two of 2 and four of 1: on one host, and where each rank has one, nothing is added."""
    size = MPI.COMM_WORLD.size
    name = f"{size // ranks_a_host}x{ranks_a_host}"
    on_hosts(monkeypatch, maps.MAPS[name])
    seen = [maps.check_cases(folder, maps.MAPS[name], size // ranks_a_host % 2)]
    seen += [maps.check_bits(folder, maps.MAPS[name])]
    with on_every_rank():
        assert [of["cases"] for of in seen] == [CASES, len(maps.LEVELS)]
        assert (seen[0]["added"] > CASES // 4) if name == "2x2" else (seen[0]["added"] == 0), seen
