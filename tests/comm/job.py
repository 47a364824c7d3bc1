"""Starts small scripts on ranks through the launcher, with a time-out; nothing outlives the test."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass

import pytest

# By what was asked for, not by what is found: where it should be there and is not, tests fail.
needs_horovod = pytest.mark.skipif(os.environ.get("HOROVOD") == "no", reason="HOROVOD=no: set up without Horovod")
PREAMBLE = """
import os, sys, threading, time
from mpi4py import MPI
from hpcrec import errors
from hpcrec.comm import failure
world = MPI.COMM_WORLD
failure.install(world)
class Everyone:
    rank = world.rank
    allgather = staticmethod(world.allgather)
def say(text):
    os.write(1, (text + "\\n").encode())  # in one piece: MPICH mixes the pieces of several ranks
def ready():
    world.Barrier()
    if world.rank == 0:
        open(sys.argv[1], "w").close()
"""
_START_S = 120  # imports of torch and Horovod on a machine with other work
# What Open MPI's launcher ends with now and then on a machine with much other work, before it has started any rank.
_NOT_STARTED, _STARTS = "The PMIx server's listener thread failed to start", 3
LAUNCHER = "import os, sys; from hpcrec.launcher.mpirun import run_command; sys.exit(run_command(int(sys.argv[1]), \
sys.argv[3:], environment=os.environ, program=(sys.executable, '-u', sys.argv[2])))"

WATCHED = (  # the same, with the launcher's last words
    "import os, sys; from hpcrec.launcher.mpirun import run_command; "
    "from hpcrec.launcher.restarts import run_attempts; "
    "sys.exit(run_attempts(lambda a, e, h: run_command(int(sys.argv[1]), a, environment=e, heard=h, "
    "program=(sys.executable, '-u', sys.argv[2])), sys.argv[3:], environment=os.environ))"
)


def crowded():
    """How many times the cores what wants to run would keep busy, as of the last minute; from 1 to 4."""
    return min(4.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@dataclass
class Ended:
    code: int
    out: str
    err: str
    seconds_s: float  # from the moment all ranks were ready


class Job:
    """``body`` on ``ranks`` ranks; it calls ``ready()`` once it is under way."""

    def __init__(self, tmp_path, body, ranks=3, launcher=LAUNCHER):
        self.flag = tmp_path / "ready"
        self.script = tmp_path / "body.py"
        self.script.write_text(PREAMBLE + textwrap.dedent(body))
        self._line = [sys.executable, "-c", launcher, str(ranks), str(self.script), str(self.flag)]
        self._starts = 0
        self._start()

    def _start(self):
        without_mpi = {k: v for k, v in os.environ.items() if not k.startswith(("PMIX_", "OMPI_COMM", "PRTE_MCA"))}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self._line, stdout=pipe, stderr=pipe, text=True, env=without_mpi)
        self._starts += 1

    def wait_ready(self):
        until = time.monotonic() + _START_S
        while not self.flag.exists():
            if self.process.poll() is not None:
                said = self.process.communicate()
                assert _NOT_STARTED in said[1] and self._starts < _STARTS, said
                self._start()
            assert time.monotonic() < until, f"the ranks were not ready in {_START_S} s"
            time.sleep(0.01)

    def end(self, limit_s=5.0):
        """Waits for the end, which must come within ``limit_s`` of all ranks being ready.

        Where more wants to run than there are cores, within as many times as much: a rank that waits for its turn is
        not slow to end.
        """
        try:
            self.wait_ready()
            began, before = time.monotonic(), crowded()
            out, err = self.process.communicate(timeout=4 * limit_s + 60)
            took_s = time.monotonic() - began
        finally:
            self.clean()
        crowd = max(before, crowded())
        assert took_s < limit_s * crowd, f"{took_s:.1f} s, {crowd:.1f} times as much to run as there are cores\n{err}"
        assert not self.alive(), "processes were left behind"
        lines = err.splitlines(keepends=True)  # of a machine with few cores it is said that it has
        told = "".join(line for line in lines if "ranks are not bound to cores and take turns" not in line)
        return Ended(self.process.returncode, out, told, took_s)

    def alive(self):
        """Processes that run the script, zombies left out."""
        found = subprocess.run(["pgrep", "-r", "R,S,D,T", "-f", str(self.script)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def clean(self):
        until = time.monotonic() + 2
        while self.process.poll() is not None and self.alive() and time.monotonic() < until:
            time.sleep(0.05)
        if self.process.poll() is None:
            self.process.kill()
            for pid in self.alive():
                os.kill(pid, signal.SIGKILL)
            self.process.communicate()
