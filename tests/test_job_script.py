"""What the job scripts of ``slurm/`` do when a run ends, allocation by allocation.

Without a Slurm: ``hpcrec`` and ``scontrol`` are small scripts here. On a real one: tests/slurm.
"""

import os
import subprocess
from pathlib import Path

import pytest

from hpcrec.submit import scripts_folder

HPCREC = """#!/bin/sh
case $1 in
  config) printf '[data]\\ntrain = "t.h5"\\n[run]\\nfolder = "%s"\\n[x]\\nfolder = "no"\\n' "$RUN" ;;
  run) [ -z "$BRINGS" ] || mkdir -p "$RUN/checkpoints/step-$BRINGS"; exit "${CODE:-75}" ;;
esac
"""
PARTS = {"SLURM_HET_SIZE": "2", "SLURM_NTASKS_HET_GROUP_0": "1", "SLURM_NTASKS_HET_GROUP_1": "1"}


@pytest.fixture(params=["fused", "split", "split-het"])
def allocation(request: pytest.FixtureRequest, tmp_path: Path):
    """Runs the script once; returns its status, whether the job is requeued, and what it says."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"hpcrec": HPCREC, "scontrol": '#!/bin/sh\necho "$@" >> "$RUN.requeues"\n'}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    # a site's settings of before: some that scripts know today are not there
    (tmp_path / "env.sh").write_text("HPCREC_LAUNCHER=srun HPCREC_RESTARTS=0 HPCREC_REQUEUES=9 HPCREC_STOP_S=1\n")
    requeues = tmp_path / "a run.requeues"

    def allocate(job: int, brings: str = "", **more: str) -> tuple[int, bool, str]:
        requeues.unlink(missing_ok=True)
        variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HPCREC_ENV": str(tmp_path / "env.sh"),
            "RUN": str(tmp_path / "a run"),
            "SLURM_JOB_ID": str(job),
            "SLURM_NTASKS": "2",
            "BRINGS": brings,
            **(PARTS if request.param == "split-het" else {}),
            **more,
        }
        script = scripts_folder() / f"{request.param}.sbatch"
        done = subprocess.run(["bash", script, "x.toml"], env=variables, capture_output=True, text=True, check=False)
        assert not requeues.exists() or requeues.read_text() == f"requeue {job}\n"
        return done.returncode, requeues.exists(), done.stdout + done.stderr

    return allocate


def test_two_allocations_in_a_row_without_a_checkpoint_are_the_last(allocation):
    for brings in ("8", "", "16", "", "24"):  # one without is not two
        code, again, said = allocation(7, brings)
        assert (code, again, said) == (75, True, "job 7: to be requeued, for the 1. time\n")
    assert allocation(7)[1]
    code, again, said = allocation(7)
    assert (code, again) == (75, False)
    assert said == (
        "job 7: not requeued, for its last two allocations brought no checkpoint: one more would not either. Give it a "
        "longer --time. Submit it again to go on.\n"
    )
    assert allocation(8)[1], "another job begins anew"
    assert not allocation(8)[1]


def test_only_what_was_stopped_or_warned_is_requeued(allocation):
    assert allocation(7, CODE="0")[:2] == (0, False)
    assert allocation(7, CODE="1")[:2] == (1, False)
    code, again, said = allocation(7, SLURM_RESTART_COUNT="9")
    assert (code, again, said) == (75, False, "job 7: not requeued, HPCREC_REQUEUES=9. Submit it again to go on.\n")


def test_a_run_folder_that_cannot_be_written_is_no_reason_to_stop(allocation, tmp_path):
    (tmp_path / "a run").write_text("")
    code, again, said = allocation(7)
    assert (code, again) == (75, True) and "to be requeued" in said
