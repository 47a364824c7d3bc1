"""Horovod on some ranks leaves the others, and the world's collectives, alone."""

import os
import subprocess
import sys
from pathlib import Path


def test_horovod_on_two_of_four_ranks_leaves_the_owners_alone():
    launcher = "import os, sys; from hpcrec.launcher.mpirun import run_command; sys.exit(run_command(4, [], \
environment=os.environ, program=(sys.executable, sys.argv[1])))"
    script = Path(__file__).with_name("horovod_part.py")
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PMIX_", "OMPI_COMM", "PRTE_MCA"))}
    done = subprocess.run(
        [sys.executable, "-c", launcher, str(script)], capture_output=True, text=True, timeout=90, env=outside
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} done" for rank in range(4)]
