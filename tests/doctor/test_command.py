"""``hpcrec doctor`` as a user starts it: alone, where the launcher's MPI is another, and with a check that hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.comm.job import Job

LAUNCHER = ("OMPI_COMM", "PMIX_", "PRTE_", "PMI_", "SLURM_")


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER)}
    line = [sys.executable, "-m", "hpcrec", "doctor", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=200, env={**clean, **environment})


def test_alone_it_says_what_it_cannot_check(tmp_path: Path) -> None:
    done = doctor("--folder", str(tmp_path), "--json")
    found = json.loads(done.stdout)
    by_name = {finding["what"]: finding for finding in found["findings"]}
    bad = [finding for finding in found["findings"] if finding["level"] == "FAIL"]
    assert done.returncode == (1 if bad else 0) and found["ready"] == (not bad), done.stdout + done.stderr
    assert "what takes several ranks is not checked" in by_name["launch"]["found"] and found["ranks"] == 1
    assert {"versions", "mpi", "native kernels", "cuda", "alltoallv", "folder", "allreduce"} <= set(by_name)
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_do_not_meet_are_told_once() -> None:
    first = doctor(SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="0")
    assert first.returncode == 1 and first.stdout.rstrip().endswith("not ready: 1 problem"), first.stdout + first.stderr
    assert "FAIL  launch          the launcher started 4 tasks (SLURM_STEP_NUM_TASKS), but MPI sees" in first.stdout
    other = doctor(SLURM_STEP_NUM_TASKS="4", SLURM_PROCID="3")
    assert (other.returncode, other.stdout) == (1, "")


def test_a_check_that_hangs_ends_the_job(tmp_path: Path) -> None:
    body = """
    from pathlib import Path
    from hpcrec.comm.probe import Probe
    from hpcrec.doctor.base import Check, Site
    from hpcrec.doctor.examine import examine
    probe = Probe()
    def hang(site):
        ready()
        while site.probe.rank == 1:
            time.sleep(1)
    def make():
        return Site(probe=probe, environment={}, folder=Path(), host="here")
    checks = [Check(name="stuck", measure=hang, judge=lambda answers, site: iter([]))]
    examine(probe, make, checks, lambda text: print(text, flush=True), limit_s=1.0, as_json=False)
    print("went on")
    """
    ended = Job(tmp_path, body, ranks=2).end(limit_s=15.0)
    assert ended.code == 1 and "timed out: stuck, after 1 s; no answer from rank 1 on here" in ended.out
    assert ended.out.rstrip().endswith("not ready: 1 problem") and "went on" not in ended.out


def test_set_without_a_configuration_is_refused() -> None:
    done = doctor("--set", "train.steps=1")
    assert done.returncode == 2 and "give --config FILE too" in done.stderr
