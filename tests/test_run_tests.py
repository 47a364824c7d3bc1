"""tools/run_tests.py counts over ranks, and ends what hangs with its stacks: the suite's own alarm has to ring."""

import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_tests", ROOT / "tools" / "run_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["run_tests"] = module
    spec.loader.exec_module(module)
    return module


def write(folder: Path, *ranks: str) -> None:
    for rank, text in enumerate(ranks):
        (folder / f"outcomes-{rank}").write_text(text.replace("; ", "\n") + "\n")


def of(runner: ModuleType, limits: Any) -> Any:
    return runner.Run("one", limits, runner.print_now)


def test_counts_the_worst_rank(runner: ModuleType, tmp_path: Path) -> None:
    write(
        tmp_path,
        "began a; passed a; began b; passed b; began c; skipped c; began d; passed d; failed d",
        "began a; passed a; began b; failed b; began c; skipped c; began d; passed d",
    )
    assert runner.outcomes(tmp_path, 2) == {"a": "passed", "b": "failed", "c": "skipped", "d": "failed"}


def test_a_test_that_never_ended_failed(runner: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "began a; passed a; began b; passed b", "began a; passed a; began b")
    assert runner.outcomes(tmp_path, 2) == {"a": "passed", "b": "failed"}


def test_says_which_files_take_most_cpu(runner: ModuleType, tmp_path: Path) -> None:
    write(
        tmp_path,
        "took 7.50 tests/a.py::one; took 2.00 tests/a.py::two[x::y z]; took 9.90 tests/b.py::one",
        "took 1.50 tests/a.py::one; took 30.00 tests/c/d.py::one",
    )
    assert runner.most_cpu(tmp_path, 2) == [("c/d.py", 30.0), ("a.py", 11.0)]


def test_no_rank_count_is_left_out(runner: ModuleType, tmp_path: Path) -> None:
    fast = "asks 0 fast a.py; asks 7 fast a.py; asks 3 fast a.py; asks 3 fast b c.py"
    write(tmp_path, f"{fast}; asks 3 slow a.py; asks 12 slow b c.py; asks slurm slow a.py; began a; passed a")
    assert list(runner.rank_counts(tmp_path, "fast").items()) == [(3, ["a.py", "b c.py"]), (7, ["a.py"])]
    assert list(runner.rank_counts(tmp_path, "slow").items()) == [(3, ["a.py"]), (12, ["b c.py"])]
    assert runner.asks(tmp_path, "fast", but="0") == [("7", "a.py"), ("3", "a.py"), ("3", "b c.py")]
    assert [runner.asks_slurm(tmp_path, speed) for speed in ("fast", "slow")] == [False, True]


def test_files_that_the_caller_names_are_taken(runner: ModuleType) -> None:
    assert runner.names_files(["-k", "pooled", "tests/exchange"])
    assert runner.names_files(["tests/test_run_tests.py::test_counts_the_worst_rank"])
    assert not runner.names_files(["-k", "pooled", "--durations=5", "-x"])


def test_a_hang_ends_with_stacks(runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = (
        "import faulthandler, os, pathlib, signal, subprocess, sys, time\n"
        "faulthandler.register(signal.SIGUSR2)\n"
        "pathlib.Path(sys.argv[1], 'outcomes-0').write_text(f'pid {os.getpid()}\\n')\n"
        "child = subprocess.Popen(['sleep', '987'])\n"
        "print('child', child.pid, flush=True)\n"
        "def stuck_here(): time.sleep(987)\n"
        "stuck_here()\n"
    )
    began_s = time.monotonic()
    limits = runner.Limits(run_s=1.0, test_s=60.0)
    status = runner.watched([sys.executable, "-c", script, str(tmp_path)], tmp_path, of(runner, limits))
    assert status != 0
    assert time.monotonic() - began_s < 30
    said = capfd.readouterr().out
    assert "still running after 1 s" in said
    assert "in stuck_here" in said or 'File "<string>", line 6' in said
    child = int(said.split("child ")[1].split()[0])
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_test_without_progress_is_ended(
    runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "began a")
    status = runner.watched(["sleep", "987"], tmp_path, of(runner, runner.Limits(run_s=60.0, test_s=1.0)))
    assert status != 0
    assert "s in one test (limit 1 s)" in capfd.readouterr().out


def test_ranks_that_hang_say_where(runner: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run sets handlers of signals and puts them back: the stacks have to come all the same."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_it.py").write_text(
        "import time\nimport pytest\nfrom mpi4py import MPI\nfrom hpcrec.comm.failure import StopSignal\n"
        "@pytest.mark.parallel(2)\ndef test_here():\n"
        "    StopSignal().close()\n    kept = StopSignal()\n"
        "    def stuck_here():\n        time.sleep(987)\n    stuck_here()\n"
    )
    run = of(runner, runner.Limits(run_s=60.0, test_s=8.0))
    selection = ["parallel", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path / "test_it.py")]
    assert runner.run_part(run, tmp_path / "notes", 2, selection)["failed"] == 1
    said = capfd.readouterr().out
    assert said.count("in stuck_here") == 4, said  # a stack of each rank, twice
    for rank in range(2):
        assert f"test_it.py::test_here: never ended on rank {rank}" in said
    assert len(runner.FAILURES) == 1 and runner.FAILURES[0].endswith("test_it.py::test_here"), runner.FAILURES


ASKING = """
import pytest

@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("case", "abc")
def test_many(case): ...

@pytest.mark.parallel([1, 2, 3, 4])
def test_one(): ...

@pytest.mark.parallel([1, 2, 4])
def test_even(): ...

@pytest.mark.parallel([2, 3])
def test_two(): ...

@pytest.mark.parallel(2)
def test_only(): ...
"""


def test_each_case_runs_on_3_ranks_and_on_another_number(tmp_path: Path) -> None:
    (tmp_path / "test_asking.py").write_text(ASKING)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "tests.conftest", f"--rootdir={tmp_path}"]
    done = {
        mark: subprocess.run([*command, "-m", mark, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True)
        for mark in ("not slow", "slow")
    }
    fast, slow = (
        {(of[0], int(of[1]), of[2] or "") for of in re.findall(r"::test_(\w+)(?:\[nprocs=(\d)(?:-(\w))?])", one.stdout)}
        for one in done.values()
    )
    whole = {("many", n, case) for n in (1, 2, 3, 4) for case in "abc"} | {("one", n, "") for n in (1, 2, 3, 4)}
    kept = {("even", 1, ""), ("even", 2, ""), ("even", 4, ""), ("two", 2, ""), ("two", 3, "")}
    assert fast | slow == whole | kept
    assert fast & slow == set()
    assert kept < fast
    assert {n for name, n, _ in fast if name == "many"} == {1, 2, 3, 4}
    for name, case in [("one", ""), ("many", "a"), ("many", "b"), ("many", "c")]:
        of = {n for its, n, its_case in fast if (its, its_case) == (name, case)}
        assert 3 in of
        assert len(of) == 2
