"""The command line of the launcher, its filter of mpirun's remarks, and logs that take no more."""

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrec.errors import ConfigError, MissingError
from hpcrec.launcher import mpirun as launch_ranks
from hpcrec.launcher import srun as launch_slurm
from hpcrec.launcher import watch as launch_watch
from hpcrec.launcher.found import find_mpirun, flavour_of, physical_cores
from hpcrec.launcher.mpirun import Launch, crowded, mpirun_line, run_command
from hpcrec.launcher.relay import Heard, Outlet, RemarkFilter, relay, say, say_later
from hpcrec.launcher.restarts import Run, run_attempts

PROGRAM = ["python", "-m", "hpcrec", "train"]


YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # whatever the binding: a rank has several threads


def line(environment=None, **options):
    launch = Launch(mpirun="mpirun", **{"flavour": "openmpi", "ranks": 4, "cores": 8, **options})
    argv, env = mpirun_line(launch, PROGRAM, environment or {})
    assert argv[-4:] == PROGRAM
    return " ".join(argv[:-4]), env


def test_ranks_that_fit_are_bound_to_cores():
    assert line() == (
        "mpirun -n 4 -x OMP_NUM_THREADS --map-by slot:pe=2 --bind-to core",
        {"OMP_NUM_THREADS": "2", **YIELD},
    )
    assert line(threads=1)[0].endswith("--map-by slot:pe=1 --bind-to core")
    assert line({"OMP_NUM_THREADS": "1"})[1] == {"OMP_NUM_THREADS": "1", **YIELD}
    assert line({"OMP_NUM_THREADS": "1"}, threads=2)[1] == {"OMP_NUM_THREADS": "2", **YIELD}
    assert line({"OMP_NUM_THREADS": "many"})[1] == {"OMP_NUM_THREADS": "2", **YIELD}


def test_more_ranks_than_cores_are_not_bound():
    argv, env = line(cores=2)
    assert argv == "mpirun -n 4 -x OMP_NUM_THREADS --oversubscribe --bind-to none"
    assert env == {"OMP_NUM_THREADS": "1", **YIELD}
    assert line(threads=3)[0].endswith("--oversubscribe --bind-to none")


@pytest.mark.parametrize(
    ("ranks", "threads", "cores", "set_"),
    [
        (4, 2, 8, None),
        (4, 3, 8, "Set --threads 2 (or OMP_NUM_THREADS), or -n 2, or take more nodes."),
        (4, 1, 2, "Set -n 2, or take more nodes."),
        (2, 9, 8, "Set --threads 4 (or OMP_NUM_THREADS), or -n 1 --threads 8, or take more nodes."),
    ],
)
def test_more_threads_than_cores_are_said(ranks, threads, cores, set_):
    launch = Launch(mpirun="mpirun", flavour="openmpi", ranks=ranks, cores=cores)
    said = f"{ranks} ranks with {threads} threads each on {cores} cores: ranks are not bound to cores and take turns, "
    assert crowded(launch, threads) == (f"{said}which slows all of them. {set_}" if set_ else "")
    assert crowded(replace(launch, hostfile="hosts"), threads) == ""  # whose cores are not known


def test_a_start_says_once_that_it_is_crowded(capfd):
    ranks = physical_cores() + 1
    program = (sys.executable, "-c", "pass")
    assert run_command(ranks, [], environment=dict(os.environ), threads=1, program=program) == 0
    assert capfd.readouterr().err.count(f"hpcrec: warning: {ranks} ranks with 1 threads each on {ranks - 1} cores") == 1


def test_modules_of_a_folder_that_one_works_in_are_not_taken(tmp_path):
    """A folder of somebody else's sources, say: ``hpcrec prepare`` by itself takes none either."""
    (tmp_path / "numpy.py").write_text("open('ran', 'w')")
    (tmp_path / "source").write_text("no criteo")
    line = [Path(sys.executable).parent / "hpcrec", "run", "-n", "1", "--", "prepare", "criteo", "--out=x", "source"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "source, line 1: " in done.stderr.splitlines()[-1] and "-u -P -m hpcrec prepare" in done.stderr, done.stderr
    assert not (tmp_path / "ran").exists()


def test_hostfile_root_and_own_options():
    argv, env = line(hostfile="hosts", ranks=64, threads=4, is_root=True)
    assert argv == "mpirun -n 64 -x OMP_NUM_THREADS --hostfile hosts --map-by slot:pe=4 --bind-to core"
    assert env == {
        "OMP_NUM_THREADS": "4",
        **YIELD,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    assert line(options=("--report-bindings",))[0].endswith("--bind-to core --report-bindings")
    assert line(options=("--map-by", "node"))[0] == "mpirun -n 4 -x OMP_NUM_THREADS --map-by node"
    assert line(options=("--bind-to=none",))[0] == "mpirun -n 4 -x OMP_NUM_THREADS --bind-to=none"


def test_mpich_takes_other_flags():
    assert line(flavour="mpich", is_root=True) == ("mpirun -n 4 -bind-to core:2", {"OMP_NUM_THREADS": "2"})
    assert line(flavour="mpich", cores=2, hostfile=None)[0] == "mpirun -n 4 -bind-to none"
    assert line(flavour="mpich", hostfile="hosts", threads=1)[0] == "mpirun -n 4 -f hosts -bind-to core:1"
    assert line(flavour="mpich", options=("-bind-to", "socket"))[0] == "mpirun -n 4 -bind-to socket"


def test_the_flavour_is_read_from_the_version():
    assert (
        flavour_of("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/") == "openmpi"
    )
    assert flavour_of("mpirun (Open MPI) 4.1.6") == "openmpi"
    assert flavour_of("HYDRA build details:\n    Version:                                 4.2.1") == "mpich"
    assert flavour_of("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005") == "mpich"
    with pytest.raises(MissingError, match=r"'mpirun 0\.1', which is neither Open MPI nor MPICH"):
        flavour_of("mpirun 0.1\nmore")


def test_mpirun_is_found_beside_python_first(tmp_path):
    command = tmp_path / "mpirun"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    found = find_mpirun({"PATH": str(tmp_path)})
    assert Path(found).parent in (Path(sys.executable).parent, tmp_path)
    assert 1 <= physical_cores() <= len(os.sched_getaffinity(0))


def test_no_mpirun_says_how_to_get_one(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MissingError, match="'make setup'"):
        find_mpirun({"PATH": str(tmp_path)})


def test_wrong_arguments_are_refused():
    with pytest.raises(ConfigError, match=r"-n is 0. Allowed: 1 and more"):
        line(ranks=0)
    with pytest.raises(ConfigError, match="--threads is -1"):
        line(threads=-1)
    with pytest.raises(ConfigError, match="--hostfile /nowhere is not a file"):
        run_command(1, [], environment={}, hostfile="/nowhere")


RULE = b"-" * 74 + b"\n"
STOPPED = (
    RULE + b"prterun detected that one or more processes exited with non-zero status,\nthus causing the job to be "
    b"terminated. The first process to do so was:\n\n   Process name: [prterun-vm-1@1,1]\n   Exit code:    75\n" + RULE
)
ABORTED = b"".join(
    b"Abort(%d) on node 0 (rank 0 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, %d) - process 0\n"
    % (code, code)
    for code in (2, 75)
)
KILLED = RULE + b"prterun noticed that process rank 1 with PID 15144 on node vm exited on\nsignal 9 (Killed).\n" + RULE


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_remarks_on_ends_on_purpose_are_taken_out_however_they_arrive(piece):
    text = b"a\n" + STOPPED + b"\0--- b\n" + ABORTED + STOPPED.replace(b"75", b"3") + KILLED + b"50%|###\r60%"
    remarks = RemarkFilter()
    out = b"".join(remarks.feed(text[i : i + piece]) for i in range(0, len(text), piece))
    assert out == b"a\n--- b\n" + STOPPED.replace(b"75", b"3") + KILLED + b"50%|###\r60%"
    assert not remarks.holds


def test_a_user_who_prints_rules_gets_all_of_them():
    remarks = RemarkFilter()
    lines = b"".join(b"line %d\n" % i for i in range(40))
    assert remarks.feed(b"-") == b""
    assert remarks.feed(RULE[1:] + lines) == RULE + lines
    assert remarks.feed(RULE + b"half") == b""
    assert remarks.flush() == RULE + b"half"


def test_relay_passes_on_what_is_held_once_nothing_follows():
    source, write = os.pipe()
    read, target = os.pipe()
    os.write(write, b"x\n" + STOPPED + RULE)
    os.close(write)
    handler = signal.getsignal(signal.SIGINT)
    heard = Heard()
    relay(source, target, heard)
    assert heard.tail == b"x\n" + STOPPED + RULE and not heard.stopping
    os.close(target)
    assert os.read(read, 1000) == b"x\n" + RULE
    for fd in (source, read):
        os.close(fd)
    assert signal.getsignal(signal.SIGINT) is handler


def said(n: int) -> bytes:
    return b"".join(b"line %d\n" % i for i in range(n))


def fed(text: bytes, target: int) -> Heard:
    """What a relay has heard once ``text`` has come, which is more than a pipe holds."""
    source, write = os.pipe()
    heard = Heard()
    relaying = threading.Thread(target=relay, args=(source, target, heard))
    relaying.start()
    try:
        while text:  # a rank, which would wait here for a relay that reads no more
            ready = select.select([], [write], [], 5.0)[1]
            assert ready, "nobody reads"
            text = text[os.write(write, text[:4096]) :]
    finally:
        os.close(write)
        relaying.join(timeout=5.0)
        os.close(source)
    assert not relaying.is_alive()
    return heard


@pytest.mark.parametrize("target", ["full", "closed", "blocks"])
def test_ranks_are_read_to_the_end_whatever_becomes_of_the_log(target):
    read, write = os.pipe()
    if target == "closed":
        os.close(read)
    full = os.open("/dev/full", os.O_WRONLY)
    text = said(300_000)  # 3.9 MB
    assert fed(text, full if target == "full" else write).tail == text[-65536:]
    if target == "blocks":
        os.close(read)
        time.sleep(0.5)  # for the thread that waits, before its number is another file's
    os.close(full)
    os.close(write)


def test_a_log_that_takes_lines_again_says_how_much_is_not_there(monkeypatch):
    whole, refused, write_to = os.write, [0], {}

    def write(target, data):
        if target == write_to.get("log") and b"line 7\n" in data and not refused[0]:
            refused[0] = len(data)
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        return whole(target, data)

    monkeypatch.setattr("hpcrec.launcher.relay.os.write", write)
    read, write_to["log"] = os.pipe()
    outlet = Outlet(write_to["log"])
    for i in range(10):
        outlet.put(b"line %d\n" % i)
    outlet.close()
    os.close(write_to["log"])
    note = b"\nhpcrec: 7 bytes that the ranks said are not here: Disk quota exceeded\n"
    assert os.read(read, 1000) == said(7) + note + b"line 8\nline 9\n" and refused == [7]
    os.close(read)


RANK = """
import os, signal, sys, time
folder, leaves = sys.argv[1], sys.argv[2] == "leaves"
def on_signal(*_):
    open(folder + "/told", "w").close()
    if leaves:
        sys.exit(75)
signal.signal(signal.SIGUSR1, on_signal)
with open(folder + "/pid", "w") as file:
    file.write(str(os.getpid()))
open(folder + "/ready", "w").close()
until = time.monotonic() + 300
while time.monotonic() < until:
    time.sleep(0.1)
"""
LAUNCHER = f"""
import os, sys
from hpcrec.launcher.mpirun import run_command
sys.exit(run_command(1, sys.argv[1:], environment=os.environ, program=[sys.executable, "-c", {RANK!r}]))
"""
LIMIT_S = 60.0  # on a busy machine; a rank stays for 300 s


def becomes(true) -> bool:
    until = time.monotonic() + LIMIT_S
    while not true() and time.monotonic() < until:
        time.sleep(0.05)
    return true()


def comes(path: Path) -> bool:
    return becomes(path.exists)


def fill(pipe: int) -> None:
    """Writes until a pipe takes no more: who writes to it then, waits."""
    os.set_blocking(pipe, False)
    for size in (65536, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(pipe, b"." * size)
    os.set_blocking(pipe, True)


@pytest.fixture
def launched():
    """Starts a program that is ended with the test, should it still be there."""
    started = []

    def launch(*line: str, log: int) -> subprocess.Popen:
        started.append(subprocess.Popen([sys.executable, "-c", *line], stdout=log, stderr=log))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.wait()


def test_a_full_log_keeps_no_signal_from_the_ranks(launched, tmp_path):
    """The launcher says that it passes a signal on, and cannot."""
    with Path("/dev/full").open("w") as full:
        launcher = launched(LAUNCHER, str(tmp_path), "leaves", log=full.fileno())
        assert comes(tmp_path / "ready")
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=LIMIT_S) == 75


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_log_that_nobody_reads_keeps_no_signal_from_the_ranks(launched, tmp_path, number):
    read, write = os.pipe()
    launcher = launched(LAUNCHER, str(tmp_path), "leaves", log=write)
    assert comes(tmp_path / "ready")
    fill(write)
    launcher.send_signal(number)
    assert launcher.wait(timeout=LIMIT_S) == 75
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(("command", "said"), [("predict", "are ended"), ("train", "write a checkpoint")])
def test_what_becomes_of_ranks_that_are_told_to_stop_is_said_by_what_they_do(launched, tmp_path, command, said):
    starts = LAUNCHER.replace("sys.argv[1], sys.argv[2]", "sys.argv[2], sys.argv[3]")  # of the rank
    with (tmp_path / "log").open("w") as log:
        launcher = launched(starts, command, str(tmp_path), "leaves", log=log.fileno())
        assert comes(tmp_path / "ready")
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=LIMIT_S) == 75
    assert said in (tmp_path / "log").read_text()


def test_a_hangup_that_was_to_be_ignored_is_and_an_interrupt_is_not(launched, tmp_path):
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + LAUNCHER  # as under nohup
    launcher = launched(ignoring, str(tmp_path), "leaves", log=subprocess.DEVNULL)
    assert comes(tmp_path / "ready")
    launcher.send_signal(signal.SIGHUP)
    time.sleep(1.0)
    assert launcher.poll() is None and not (tmp_path / "told").exists()
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(timeout=LIMIT_S) == 75


def test_a_log_that_nobody_reads_keeps_no_second_interrupt_from_the_ranks(launched, tmp_path):
    read, write = os.pipe()
    launcher = launched(LAUNCHER, str(tmp_path), "stays", log=write)
    assert comes(tmp_path / "ready")
    fill(write)
    launcher.send_signal(signal.SIGINT)
    assert comes(tmp_path / "told")
    assert launcher.poll() is None
    for _ in range(3):  # an impatient user
        launcher.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert launcher.wait(timeout=LIMIT_S) not in (0, 75)
    rank = Path("/proc", (tmp_path / "pid").read_text())
    assert becomes(lambda: not rank.exists())  # mpirun may be gone a little before it
    os.close(read)
    os.close(write)


def test_a_log_that_nobody_reads_holds_up_no_start_and_no_restart(launched, tmp_path):
    """The first attempt fails, the second ends well, and neither waits for what is said before it."""
    rank = "import sys; file = open(sys.argv[1], 'a'); file.write('x'); sys.exit(int(file.tell() == 1))"
    starts = f"""
import os, sys
from pathlib import Path
from hpcrec.launcher.mpirun import run_command
from hpcrec.launcher.restarts import Run, run_attempts
program = [sys.executable, "-c", {rank!r}]
def start(arguments, environment, heard):
    return run_command(1, arguments, environment=environment, program=program, heard=heard)
sys.exit(run_attempts(start, sys.argv[2:], environment=os.environ, run=Run(Path(sys.argv[1]), "auto"), restarts=1))
"""
    read, write = os.pipe()
    fill(write)
    launcher = launched(starts, str(tmp_path / "run"), str(tmp_path / "starts"), log=write)
    assert launcher.wait(timeout=LIMIT_S) == 0
    assert (tmp_path / "starts").read_text() == "xx"
    os.close(read)
    os.close(write)


def test_what_the_launcher_says_comes_in_order_and_whole(capfd):
    for i in range(50):
        say_later(f"later {i}")
        say(f"line {i}", "and more")
    found = capfd.readouterr().err
    assert found == "".join(f"hpcrec: later {i}\nhpcrec: line {i}\nhpcrec: and more\n" for i in range(50))


def test_freed_memory_is_kept() -> None:
    """In a process of its own: a second array of 20 MB takes no page from the system."""
    code = """
import resource
import numpy as np
from hpcrec.comm.start import keep_freed_memory

faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
assert keep_freed_memory()
np.ones(20_000_000, np.uint8)
before = faults()
np.ones(20_000_000, np.uint8)
assert faults() - before < 100, faults() - before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "3", "SLURM_JOB_NUM_NODES": "2"}
TWO_PARTS = {
    **JOB,
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "7",
    "SLURM_JOB_ID_HET_GROUP_1": "8",
    "SLURM_NTASKS_HET_GROUP_0": "2",
    "SLURM_CPUS_PER_TASK_HET_GROUP_0": "8",
    "SLURM_NTASKS_HET_GROUP_1": "4",
}


def srun(ranks, environment, **more):
    return " ".join(launch_slurm.srun_line("srun", ranks, PROGRAM, environment, **more))


def test_srun_starts_the_tasks_of_a_job():
    program = " ".join(PROGRAM)
    assert srun(4, JOB) == (
        "srun --mpi=pmix --export=ALL --wait=30 -n 4 --cpus-per-task 3 --cpu-bind=cores env OMP_NUM_THREADS=3 "
        + program
    )
    line = srun(2, JOB, threads=2, options=["--cpu-bind=none", "-l"])
    assert line.endswith("-n 2 --cpus-per-task 2 --cpu-bind=none -l env OMP_NUM_THREADS=2 " + program)
    without = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "1", "OMP_NUM_THREADS": "5"}
    assert srun(1, without).endswith("-n 1 --cpu-bind=cores env OMP_NUM_THREADS=5 " + program)
    with pytest.raises(ConfigError, match=r"-n is 5\. Allowed: 1 to 4\."):
        srun(5, JOB)


def test_srun_says_that_threads_share_the_core_of_their_task(tmp_path, capfd):
    command = tmp_path / "srun"
    command.write_text("#!/bin/sh\necho pmix\n")
    command.chmod(0o755)
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for more, threads, said in (
        ({"OMP_NUM_THREADS": "8"}, None, 1),
        ({"OMP_NUM_THREADS": "8"}, 4, 0),
        ({}, None, 0),
        ({"OMP_NUM_THREADS": "8", "SLURM_CPUS_PER_TASK": "8"}, None, 0),
    ):
        assert run_command(2, [], environment={**job, **more}, launcher="srun", threads=threads) == 0
        assert capfd.readouterr().err.count("OMP_NUM_THREADS=8 threads each in a job of one core a task") == said


def test_srun_starts_one_world_over_both_parts_of_a_heterogeneous_job():
    program = " ".join(PROGRAM)
    assert srun(6, {**TWO_PARTS, "OMP_NUM_THREADS": "2"}) == (
        "srun --mpi=pmix --export=ALL --wait=30 "
        f"--het-group=0 -n 2 --cpus-per-task 8 --cpu-bind=cores env OMP_NUM_THREADS=8 {program} : "
        f"--het-group=1 -n 4 --cpu-bind=cores env OMP_NUM_THREADS=2 {program}"
    )
    with pytest.raises(ConfigError, match=r"-n is 2\. Allowed: 2 \+ 4 = 6, all tasks of a heterogeneous job"):
        srun(2, TWO_PARTS)
    with pytest.raises(ConfigError, match=r"job of 2 parts, of which mpirun sees the first alone. Use --launcher srun"):
        run_command(6, [], environment=TWO_PARTS)


def test_srun_needs_a_job_with_pmix(tmp_path):
    command = tmp_path / "srun"
    command.write_text("#!/bin/sh\necho 'MPI plugin types are... none pmi2'\n")
    command.chmod(0o755)
    with pytest.raises(ConfigError, match=r"no SLURM_JOB_ID"):
        run_command(1, [], environment={"PATH": str(tmp_path)}, launcher="srun")
    with pytest.raises(MissingError, match=r"no PMIx \(MPI plugin types are... none pmi2\)"):
        launch_slurm.find_srun({**JOB, "PATH": str(tmp_path)})
    with pytest.raises(MissingError, match="no srun in PATH"):
        launch_slurm.find_srun({**JOB, "PATH": str(tmp_path / "nothing")})
    with pytest.raises(ConfigError, match="srun takes the nodes of its job"):
        run_command(1, [], environment=JOB, launcher="srun", hostfile="hosts")


# What such an srun was seen to do: all ranks have ended, it says so, and stays.
STAYS = """#!/bin/sh
[ "$1" != --mpi=list ] || { echo pmix; exit; }
trap '' TERM
cat "$(dirname "$0")/said" >&2
echo "$$" > "$(dirname "$0")/process"
while :; do sleep 600 & wait; done
"""
LAST_RANK = """
import os, sys, time
from pathlib import Path
from hpcrec.comm import board
from hpcrec.training import attempts
run, left, code = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
board.open_board(os.environ[board.FOLDER], 0, 1)
attempts.begin(run, attempts.now(), 0, 1, ["node"], attempts.Allocation())
time.sleep(1)  # until its board is seen
attempts.end(run, 7, "stopped")
left.write_text(str(time.time()))
sys.exit(code)
"""


@pytest.mark.parametrize("ends_late", [True, False])
def test_an_mpirun_that_stays_when_its_ranks_have_left_is_ended(ends_late, tmp_path, monkeypatch, capfd):
    """After a while, for it ends by itself mostly; and the exit status is what the record says."""
    monkeypatch.setattr(launch_ranks, "LOOK_S", 0.1)
    monkeypatch.setattr(launch_ranks, "_KILL_AFTER_S", 0.3)
    monkeypatch.setattr(launch_watch, "_LINGERS_S", 5.0 if ends_late else 1.0)
    mpirun, run, left = tmp_path / "mpirun", tmp_path / "run", tmp_path / "left"
    run.mkdir()
    stays = "trap '' TERM\nsleep 1\nexit 6\n" if ends_late else "trap '' TERM\nwhile :; do sleep 600 & wait; done\n"
    rank = f"{sys.executable} -c '{LAST_RANK}' {run} {left} 75"
    mpirun.write_text(f'#!/bin/sh\n[ "$1" != --version ] || {{ echo "Open MPI"; exit; }}\n{rank}\n{stays}')
    mpirun.chmod(0o755)
    monkeypatch.setattr(launch_ranks, "find_mpirun", lambda _environment: str(mpirun))

    def start(arguments, environment, heard):
        return run_command(1, arguments, environment=environment, heard=heard)

    began = Run(run, "auto")
    assert run_attempts(start, ["train"], environment=dict(os.environ), run=began, restarts=1) == 75
    took_s, said = time.time() - float(left.read_text()), capfd.readouterr().err
    assert ("hpcrec: every rank has ended, and mpirun has not: it is ended now" in said) == (not ends_late)
    code = 6 if ends_late else 137
    assert f"ends with {code}, after all of them had left in order: the run is stopped" in said
    assert took_s >= 1.0


STEPS_OF_7 = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/asked"
[ "$(wc -l < "$(dirname "$0")/asked")" -ne 2 ] || { echo "squeue: error: not now" >&2; exit 1; }
printf '%s\\n' 7.batch
[ "$(wc -l < "$(dirname "$0")/asked")" -ne SEEN ] || printf '%s\\n' 8.0
"""
AT_ITS_END = "srun: First task exited 30s ago\nsrun: StepId=7.0 tasks 0-1: exited\n"


@pytest.mark.parametrize(
    ("seen", "said", "status"),
    [
        (3, "", 0),
        (0, AT_ITS_END, 0),
        (0, "srun: error: n1: tasks 0-1: Exited with exit code 75\n" + AT_ITS_END, 75),
        (3, "srun: error: n2: task 2: Exited with exit code 1\nsrun: error: n1: task 0: Exited with exit code 2\n", 2),
        (0, "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n", 137),
        (1, "srun: error: n3: task 4: Killed\n", 137),
    ],
)
def test_an_srun_that_stays_when_the_ranks_of_two_parts_have_ended_is_ended(
    seen, said, status, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(launch_ranks, "LOOK_S", 0.3)
    monkeypatch.setattr(launch_ranks, "_KILL_AFTER_S", 0.3)
    (tmp_path / "said").write_text(said)
    for name, text in (("srun", STAYS), ("squeue", STEPS_OF_7.replace("SEEN", str(seen)))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    assert run_command(6, [], environment={**os.environ, **TWO_PARTS}, launcher="srun") == status
    process = int((tmp_path / "process").read_text())
    assert becomes(lambda: not Path(f"/proc/{process}").exists())
    assert "hpcrec: every rank has ended, and srun has not: it is ended now" in capfd.readouterr().err
    asked = (tmp_path / "asked").read_text().splitlines()
    assert set(asked) == {"--all --noheader --steps --jobs 7,8 --format=%i"} and len(asked) == max(seen, 2) + 2


def test_an_srun_whose_step_waits_for_its_nodes_or_runs_is_let_be(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 7.batch\n")
    squeue.chmod(0o755)
    heard = bytearray(b"srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n")
    step = launch_slurm.Step(TWO_PARTS, heard)
    assert not step.is_over()
    squeue.write_text("#!/bin/sh\necho 8.3\n")
    heard += b"srun: error: n2: task 2: Exited with exit code 1\n"  # the others have not ended
    assert not step.is_over()
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert not step.is_over()
    squeue.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not step.is_over()


def test_mpirun_takes_cores_and_threads_from_the_job():
    argv, env = line(JOB, cores=16)
    assert argv.endswith("--map-by slot:pe=3 --bind-to core") and env["OMP_NUM_THREADS"] == "3"
    assert line({**JOB, "OMP_NUM_THREADS": "2"}, cores=16)[1]["OMP_NUM_THREADS"] == "2"
    assert (launch_slurm.nodes_of(JOB), launch_slurm.nodes_of({})) == (2, 1)


def test_remarks_of_srun_on_ends_on_purpose_are_taken_out():
    purpose = b"srun: error: n1: task 0: Exited with exit code 75\n"
    purpose += b"srun: error: n[2-3]: tasks 1-2,4: Exited with exit code 1\n"
    news = b"srun: error: n4: task 3: Killed\nsrun: error: n4: task 3: Exited with exit code 14\n"
    remarks = RemarkFilter()
    assert remarks.feed(purpose + news + b"srun: cluster configuration lacks support for cpu binding\n") == news
