"""The Slurm that these tests run on; skips where there is none, fails as root on Debian, where one can be had."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.slurm.cluster import slurm
from tests.slurm.runs import ONE_KIND, Run, job
from tests.training.runs import write_data


def why_not() -> str | None:
    """Why these tests cannot run here; None where a Slurm answers."""
    if "SLURM_CONF" not in os.environ:
        return "no Slurm: SLURM_CONF is not set. As root on Debian: make slurm-test"
    if shutil.which("sbatch") is None:
        return "no sbatch in PATH. As root on Debian: tools/slurm.sh install"
    done = subprocess.run(["sinfo", "-h", "-o", "%D"], capture_output=True, text=True, timeout=60)
    return None if done.returncode == 0 else f"no Slurm answers: {done.stderr.strip()}"


@pytest.fixture(scope="session", autouse=True)
def nodes() -> int:
    """Nodes of the Slurm at hand, at least 5."""
    reason = why_not()
    if reason is not None:
        if os.environ.get("HPCREC_SLURM_TESTS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    found = int(slurm("sinfo", "-h", "-p", "batch", "-o", "%D"))
    assert found >= 5, "4 nodes for a job, and one more for when one of them fails"
    return found


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data sets of all tests here."""
    folder = tmp_path_factory.mktemp("slurm")
    write_data(folder / "train.h5", samples=300, seed=3)
    write_data(folder / "validation.h5", samples=120, seed=4)
    return folder


@pytest.fixture(scope="session")
def reference(shared: Path) -> Run:
    """The uninterrupted split run: 2 owners and 2 dense ranks on 4 nodes, by mpirun."""
    run = Run(shared, "reference", held=False)
    with job(shared, run, "split", *ONE_KIND) as batch:
        batch.wait_completed()
        assert len(batch.hosts()) == 4
    return run
