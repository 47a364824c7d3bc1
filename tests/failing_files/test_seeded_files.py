"""Each seeded fault of files is found within a tenth of the counts of the soak."""

from pathlib import Path

import pytest

from tests.failing_files.ask import asked
from tests.failing_files.seeded import FAULTS

TENTH = 1000  # of 10,000 errors, and of as many cuts


@pytest.mark.parametrize("name", FAULTS)
def test_the_sources_have_what_the_fault_replaces(name: str) -> None:
    for path, source in FAULTS[name].changed().items():
        compile(source, path, "exec")


def test_there_are_ten_of_each() -> None:
    for method in ("errors", "cuts"):
        assert sum(fault.method == method for fault in FAULTS.values()) >= 10


def is_found(name: str, folder: Path) -> None:
    fault = FAULTS[name]
    option = "--cases" if fault.method == "errors" else "--cuts"
    arguments = ["--scenarios", fault.scenarios, option, str(TENTH), "--wrong", "1", "--seed", "3"]
    found = asked(fault.method, [arguments], folder, fault=name, limit_s=600)[0]
    assert found["wrong"], f"not found: {found}"


def test_a_fault_is_found(tmp_path: Path) -> None:
    is_found("names of files that are not synced", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found(name: str, tmp_path: Path) -> None:
    is_found(name, tmp_path)
