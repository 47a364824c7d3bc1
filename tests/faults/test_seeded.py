"""Each seeded fault turns the test that is named for it red."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import MPI_ENVIRONMENT
from tests.faults.seeded import FAULTS, ROOT, VARIABLE, Fault, changed

HANGS_S = 200.0


@pytest.mark.parametrize("name", FAULTS)
def test_the_source_has_what_the_fault_replaces(name: str) -> None:
    """So that the list follows the code."""
    compile(changed(FAULTS[name]), FAULTS[name].file, "exec")


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 12


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_found(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    passed, said = run(fault, tmp_path, {VARIABLE: name}, "-p", "tests.faults.seeded")
    assert not passed, f"{fault.test} does not notice it:\n{said[-2000:]}"
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    assert any(one.startswith(fault.test) for one in failed) or "Timeout" in said, said[-4000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_a_fault_they_pass(tmp_path: Path) -> None:
    for test, ranks in sorted({(fault.test, fault.ranks) for fault in FAULTS.values()}):
        passed, said = run(Fault("", "", "", test, ranks), tmp_path, {})
        assert passed, said[-4000:]


def run(fault: Fault, folder: Path, environment: dict[str, str], *options: str) -> tuple[bool, str]:
    """The test of a fault, alone, until the first that fails; a rank that waits for one that failed is killed."""
    marks = f"parallel[{fault.ranks}] and not slow" if fault.ranks else "not parallel and not slow"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--color=no", *options]
    command += ["-o", "faulthandler_timeout=60"]  # by a thread of its own: ranks that wait in MPI run no signal handler
    command += ["-m", marks, fault.test]
    if fault.ranks:
        command = ["mpirun", "-n", str(fault.ranks), "--oversubscribe", *command]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    environment = {**kept, **MPI_ENVIRONMENT, **environment}
    with (folder / "said").open("w+b") as said:
        started = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        deadline_s = time.monotonic() + (HANGS_S if options else 280)
        while started.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.2)
            if options and b"\nFAILED " in Path(said.name).read_bytes():
                time.sleep(1.0)
                break
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        passed = started.wait() == 0
        return passed, Path(said.name).read_text(errors="replace")
