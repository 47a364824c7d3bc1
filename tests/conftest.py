"""Settings for all tests: an environment that mpirun starts in, stacks on a signal, outcomes for tools/run_tests.py.

Runs in serial pytest and in each rank of ``mpirun -n N pytest``. Knows nothing of what the tests test.
"""

import faulthandler
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO
from zlib import crc32

import pytest

# For the runs that tests start themselves: as root (a container), and with more ranks than cores.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
}
ODD = 3  # ranks on which every test runs that asks for them
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")

for _name, _value in MPI_ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)


def launched_rank() -> int | None:
    """The rank that a launcher gave this process; None where there is no launcher."""
    return next((int(os.environ[name]) for name in RANK_VARIABLES if name in os.environ), None)


def ranks_of(item: pytest.Item) -> int:
    """Ranks that a test asks for by mpi-pytest's marker; 0 where it has none."""
    if not item.get_closest_marker("parallel"):
        return 0
    names = (marker.name for marker in item.iter_markers())
    return next(int(name[9:-1]) for name in names if name.startswith("parallel[") and name[9:-1].isdigit())


def speed_of(item: pytest.Item) -> str:
    """Whether a test is for ``make soak`` or for every run."""
    return "slow" if item.get_closest_marker("slow") else "fast"


def in_turn(item: pytest.Item) -> bool:
    """Whether it is the turn of a test's case on its number of ranks; of other tests always.

    ``@pytest.mark.in_turn`` is for tests that may show their property on any of the numbers of ranks. A case of
    ``parametrize`` runs on one of them (by the sum of the places of its values), and each of them has a case; a test
    without it runs on one that its name chooses.
    """
    if not item.get_closest_marker("in_turn") or speed_of(item) == "slow":
        return True
    chosen = item.callspec.params  # type: ignore[attr-defined]
    counts = list(item.get_closest_marker("parallel").args[0])  # type: ignore[union-attr]
    if not item.get_closest_marker("parametrize"):
        return crc32(item.function.__name__.encode()) % len(counts) == counts.index(chosen["_nprocs"])  # type: ignore[attr-defined]
    place, last = 0, 0
    for names, values in (marker.args for marker in item.iter_markers("parametrize")):
        several = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
        fast = [in_order for value in values if (in_order := fast_values(value, len(several))) is not None]
        place, last = place + fast.index(tuple(chosen[name] for name in several)), last + len(fast) - 1
    turns = min(len(counts), last + 1)
    return place % turns == counts.index(chosen["_nprocs"]) % turns


def on_some(item: pytest.Item, places: Counter[tuple[str, int]]) -> bool:
    """Whether a test without ``in_turn`` is for every run on its number of ranks; ``places`` counts those seen so far.

    One that asks for 3 ranks and for two or more other numbers runs on 3, as odd numbers find most, and on one of the
    others: which one its name and the place of its case choose, so that a test's cases are on different ones.
    """
    asked = item.get_closest_marker("parallel")
    if not asked or not asked.args or item.get_closest_marker("in_turn") or speed_of(item) == "slow":
        return True
    counts = [asked.args[0]] if isinstance(asked.args[0], int) else list(asked.args[0])
    others = [n for n in counts if n != ODD]
    if len(others) < 2 or len(others) == len(counts):
        return True
    test, n = item.nodeid.partition("[")[0], item.callspec.params["_nprocs"]  # type: ignore[attr-defined]
    place = places[test, n]
    places[test, n] += 1
    return n in (ODD, others[(crc32(test.encode()) + place) % len(others)])


def fast_values(value: Any, n: int) -> tuple[Any, ...] | None:
    """A value of ``parametrize`` for each of n names; None where it is for ``make soak``."""
    if any(mark.name == "slow" for mark in getattr(value, "marks", ())):
        return None
    values = getattr(value, "values", value) if hasattr(value, "marks") else value
    return tuple(values) if n > 1 or hasattr(value, "marks") else (values,)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases on numbers of ranks whose turn it is not to ``make soak``; and those between ``--every``."""
    places = Counter[tuple[str, int]]()
    for item in items:
        if not in_turn(item) or not on_some(item, places):
            item.add_marker(pytest.mark.slow)
    if (every := config.getoption("--every")) > 1:
        seen = Counter[str]()
        for item in items:
            test = item.nodeid.partition("[")[0]
            if seen[test] % every:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


class Outcomes:
    """Writes what happens as it happens, so that a crash or a hang leaves it behind."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._cpu_s = file, 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Any:
        """Notes which rank counts the collected tests ask for, and where, before any selection takes tests out."""
        everything = list(items)
        yield
        asked = {
            ("slurm" if item.get_closest_marker("slurm") else str(ranks_of(item)), speed_of(item), str(item.path))
            for item in everything
        }
        for ranks, speed, file in sorted(asked):
            self._file.write(f"asks {ranks} {speed} {file}\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Notes that a test began: one without an outcome crashed or hung."""
        self._file.write(f"began {nodeid}\n")
        self._cpu_s = cpu_s()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a test's outcome: that of its call, or of a set-up or tear-down that did not pass."""
        if report.when == "call" or report.outcome != "passed":
            self._file.write(f"{report.outcome} {report.nodeid}\n")
        if report.when == "teardown":
            self._file.write(f"took {cpu_s() - self._cpu_s:.2f} {report.nodeid}\n")


def cpu_s() -> float:
    """Seconds of CPU that this process has taken so far, and those that it started and waited for."""
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--outcomes DIR``: writes each test's outcome there, one file a rank. ``--every N``: takes some of its cases."""
    parser.addoption("--outcomes", metavar="DIR", default=None, help="folder for one file of outcomes a rank")
    some = "the first of each test's cases and each N-th one after it; the others are marked slow"
    parser.addoption("--every", metavar="N", type=int, default=1, help=some)


def pytest_configure(config: pytest.Config) -> None:
    """Stacks of all threads on USR2, and a folder of its own for each rank's temporary ones."""
    if (rank := launched_rank()) is not None:
        # pytest prunes old temporary folders, and several ranks at once would prune each other's.
        parent = os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        own = Path(parent) / f"pytest-of-user-{os.getuid()}-rank-{rank}"
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        if own.stat().st_uid != os.getuid():
            raise pytest.UsageError(f"{own} is another user's. Set PYTEST_DEBUG_TEMPROOT to a folder of your own.")
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(own)
    stderr = os.dup(2)  # pytest captures fd 2 while tests run; here it is still the real one
    # Not on USR1, which is what runs are stopped by: a run within a test takes it, and leaves the default behind, as
    # Python does not know of handlers that are not its own.
    faulthandler.register(signal.SIGUSR2, file=stderr, all_threads=True)
    if folder := config.getoption("--outcomes"):
        file = (Path(folder) / f"outcomes-{launched_rank() or 0}").open("w", buffering=1)
        file.write(f"pid {os.getpid()}\n")
        config.add_cleanup(file.close)
        config.pluginmanager.register(Outcomes(file))


@pytest.fixture(autouse=True)
def no_stop_is_left() -> Iterator[None]:
    """A stop that a test has asked for, and no run has taken, would end the run of a test after it.

    A session that ends by an error goes on to watch for signals: its process is to end. So does its claim, which asks
    for a stop where its folder has gone: here a test later.
    """
    yield
    failure = sys.modules.get("hpcrec.comm.failure")
    if failure is not None:
        left = [one.name for one in failure._watching if one.requested]
        failure.unwatch()
        assert not left, f"a stop that was asked for here ({left[0]}) is still known, and would end the next run"


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all ranks."""
    from mpi4py import MPI  # which starts MPI, and so comes after the environment

    return Path(MPI.COMM_WORLD.bcast(str(tmp_path_factory.mktemp("run")), root=0))
