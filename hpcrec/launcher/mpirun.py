"""Starts hpcrec on N ranks by mpirun or srun, with the binding, threads and signals that a run needs.

``mpirun`` kills its ranks on TERM and INT before they can do anything, but passes USR1 on: so TERM and INT to the
launcher become USR1 to the ranks, who write a checkpoint and leave with exit code 75. Its own remarks on ranks that
ended on purpose are taken out of stderr.

Knows Open MPI's and MPICH's command lines (srun's is in ``srun``), and nothing of what it starts. Imports no
MPI: that would make the launcher a rank.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hpcrec.comm.board import FOLDER
from hpcrec.errors import ConfigError
from hpcrec.launcher import srun
from hpcrec.launcher.found import find_mpirun, flavour_of, physical_cores, version_text
from hpcrec.launcher.nodes import LOOK_S
from hpcrec.launcher.relay import Heard, relay, say, say_later
from hpcrec.training.bar import STDERR, TERMINAL, columns_at

_KILL_AFTER_S = 5.0
_LOST_LOOKS = 2  # until ranks, or what started them, are ended: srun and mpirun mostly end by themselves
_ROOT_PERMISSION = {
    f"{package}_ALLOW_RUN_AS_ROOT{suffix}": "1" for package in ("OMPI", "PRTE") for suffix in ("", "_CONFIRM")
}
_OWN_BINDING = ("--bind-to", "-bind-to", "--map-by", "-map-by", "--oversubscribe", "-oversubscribe", "--rankfile")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started, on what.

    Attributes
    ----------
    mpirun : str
        Path or name of the command.
    flavour : str
        ``openmpi`` or ``mpich``: whose options it takes.
    ranks : int
    threads : int or None
        OpenMP threads a rank; None takes ``OMP_NUM_THREADS`` of the environment, else an equal part of the cores.
    cores : int
        Physical cores of this machine, times the nodes of a Slurm job; what other hosts have is known to mpirun only.
    hostfile : str or None
    options : tuple of str
        Further options for mpirun. Any about binding or mapping replaces all of ours.
    is_root : bool
    """

    mpirun: str
    flavour: str
    ranks: int
    threads: int | None = None
    cores: int = 1
    hostfile: str | None = None
    options: tuple[str, ...] = ()
    is_root: bool = False


def mpirun_line(
    launch: Launch, program: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """The command line, and what it needs in the environment beside ``environment``.

    Raises
    ------
    ConfigError
        Fewer than one rank or thread.
    """
    _check_counts(launch.ranks, launch.threads)
    given = environment.get("OMP_NUM_THREADS", "")
    threads = launch.threads or (int(given) if given.isdigit() and int(given) else None)
    allotted = next((group.threads for group in srun.groups_of(environment)), None)
    threads = threads or allotted or max(1, launch.cores // launch.ranks)
    fits = launch.hostfile is not None or launch.ranks * threads <= launch.cores
    env = {"OMP_NUM_THREADS": str(threads)}
    argv = [launch.mpirun, "-n", str(launch.ranks)]
    binds_itself = any(option.split("=")[0] in _OWN_BINDING for option in launch.options)
    if launch.flavour == "openmpi":
        argv += ["-x", "OMP_NUM_THREADS"]
        argv += [word for name in (FOLDER, TERMINAL) if name in environment for word in ("-x", name)]
        argv += ["--hostfile", launch.hostfile] if launch.hostfile else []
        if not binds_itself:
            argv += ["--map-by", f"slot:pe={threads}", "--bind-to", "core"] if fits else []
            argv += [] if fits else ["--oversubscribe", "--bind-to", "none"]
        # A thread that waits lets the others of its core compute: other ranks' where there are more ranks than cores,
        # else the rank's own, whose routing thread and Horovod's wait while it computes (2.4 times the samples/s).
        env["OMPI_MCA_mpi_yield_when_idle"] = "1"
        env.update(_ROOT_PERMISSION if launch.is_root else {})
    else:  # a rank of MPICH that waits gives way by itself
        argv += ["-f", launch.hostfile] if launch.hostfile else []
        if not binds_itself:
            argv += ["-bind-to", f"core:{threads}" if fits else "none"]
    return [*argv, *launch.options, *program], env


def run_command(
    ranks: int,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    launcher: str = "mpirun",
    threads: int | None = None,
    hostfile: str | None = None,
    options: Sequence[str] = (),
    program: Sequence[str] = (sys.executable, "-u", "-P", "-m", "hpcrec"),
    heard: Heard | None = None,
    is_short: Callable[[], bool] | None = None,
) -> int:
    """Runs ``hpcrec ARGUMENTS`` on ``ranks`` ranks; returns the exit code for the caller to exit with.

    The first TERM, INT, HUP or USR1 to this process becomes USR1 to the ranks; a second INT kills them. Called on the
    main thread.

    Parameters
    ----------
    arguments : sequence of str
        What follows ``hpcrec`` on each rank.
    environment : mapping
        ``os.environ``, for the ranks.
    launcher : str
        ``mpirun``, or in a Slurm job ``srun``.
    options : sequence of str
        Further options for the launcher, each one word or several (``"--map-by node"``).
    program : sequence of str
        What ``arguments`` are for.
    heard : Heard, optional
        Filled with what is heard of the job.
    is_short : callable, optional
        Whether a node that ranks are on is lost, asked now and then: the others are ended, should they wait for it.

    Returns
    -------
    int
        The ranks' exit code (0, 1, 2, 75, ...); 128 + n where the launcher ended by signal n. Where a rank did, 128 + n
        from Open MPI, n from MPICH; or that of ranks that then ended too: 9 from MPICH, 14 from srun.

    Raises
    ------
    ConfigError
        Fewer than one rank or thread, or no such host file.
    MissingError
        No mpirun.
    """
    _check_counts(ranks, threads)
    line = srun.found_srun_line if launcher == "srun" else _found_mpirun_line
    columns = columns_at(STDERR)  # whatever a launcher around this one has set
    environment = {name: text for name, text in environment.items() if name != TERMINAL}
    environment.update({} if columns is None else {TERMINAL: str(columns)})
    words = [piece for option in options for piece in shlex.split(option)]
    argv, more = line(ranks, [*program, *arguments], environment, threads=threads, hostfile=hostfile, options=words)
    say(f"{' '.join(f'{k}={v}' for k, v in more.items())} {shlex.join(argv)}")
    heard = Heard() if heard is None else heard
    several = launcher == "srun" and len(srun.groups_of(environment)) > 1
    step = srun.Step(environment, heard.tail) if several else None
    # A session of its own: Ctrl-C in a terminal goes to the whole foreground group, and would reach mpirun as INT.
    with subprocess.Popen(
        argv, env={**environment, **more}, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stderr is not None
        ends = (process.stderr.fileno(), STDERR)
        relaying = threading.Thread(target=relay, args=(*ends, heard), daemon=True)
        relaying.start()
        try:
            with _signals_to(process, heard, _what_ranks_do(arguments)):
                code = _wait(process, is_short, heard.all_left, step)
        except BaseException:
            _end_group(process)
            raise
        relaying.join(timeout=2.0)
    return code if code >= 0 else 128 - code


def _found_mpirun_line(
    ranks: int,
    program: Sequence[str],
    environment: Mapping[str, str],
    *,
    threads: int | None,
    hostfile: str | None,
    options: Sequence[str],
) -> tuple[list[str], dict[str, str]]:
    """``mpirun_line`` with the mpirun and the machine at hand."""
    if hostfile is not None and not Path(hostfile).is_file():
        raise ConfigError(f"hpcrec run: --hostfile {hostfile} is not a file.")
    srun.check_mpirun(environment)
    mpirun = find_mpirun(environment)
    launch = Launch(
        mpirun=mpirun,
        flavour=flavour_of(version_text(mpirun)),
        ranks=ranks,
        threads=threads,
        cores=physical_cores() * srun.nodes_of(environment),
        hostfile=hostfile,
        options=tuple(options),
        is_root=os.geteuid() == 0,
    )
    line, more = mpirun_line(launch, program, environment)
    if crowding := crowded(launch, int(more["OMP_NUM_THREADS"])):
        say(f"warning: {crowding}")
    return line, more


def crowded(launch: Launch, threads: int) -> str:
    """What to say where ranks have more threads than there are cores; empty where they fit, or cores are not known."""
    ranks, cores = launch.ranks, launch.cores
    if launch.hostfile is not None or ranks * threads <= cores:
        return ""
    fitting = [f"--threads {cores // ranks} (or OMP_NUM_THREADS)"] if cores >= ranks else []
    fitting += [f"-n {max(cores // threads, 1)}"] if threads <= cores else [f"-n 1 --threads {cores}"]
    return (
        f"{ranks} ranks with {threads} threads each on {cores} cores: ranks are not bound to cores and take turns, "
        f"which slows all of them. Set {', or '.join(fitting)}, or take more nodes."
    )


def _check_counts(ranks: int, threads: int | None) -> None:
    for name, value in (("-n", ranks), ("--threads", threads)):
        if value is not None and value < 1:
            raise ConfigError(f"hpcrec run: {name} is {value}. Allowed: 1 and more.")


def _what_ranks_do(arguments: Sequence[str]) -> str:
    """Once they are told to stop, in words."""
    trains = not arguments or arguments[0] not in ("evaluate", "predict", "prepare", "doctor")
    return "stop after this step and write a checkpoint" if trains else "are ended"


@contextlib.contextmanager
def _signals_to(process: subprocess.Popen[bytes], heard: Heard, what: str) -> Iterator[None]:
    """Passes signals on for as long as the block lasts: first to the ranks, then to the log, which may take no more."""
    interrupts = 0

    def pass_on(number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        heard.stopping = True
        if process.poll() is not None or heard.killing:
            return
        if interrupts > 1:
            heard.killing = True
            _end_group(process)
            say_later("killing the ranks")
        else:
            process.send_signal(signal.SIGUSR1)
            say_later(f"the ranks {what}; Ctrl-C (again) kills them")

    hung_up = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]  # by nohup: it outlives that
    numbers = (signal.SIGTERM, signal.SIGINT, *hung_up, signal.SIGUSR1)
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(
    process: subprocess.Popen[bytes],
    is_short: Callable[[], bool] | None,
    all_left: Callable[[], bool],
    step: srun.Step | None = None,
) -> int:
    """The exit status of a launcher of ranks, which is ended where it does not end: on a lost node, or without ranks.

    Where a step of srun's is over it has nothing left to wait for, and the status is that of its ranks.
    """
    name = Path(process.args[0]).name  # type: ignore[index,arg-type]
    nothing_left = f"every rank has ended, and {name} has not: it is ended now"
    asks = {all_left: nothing_left}
    if is_short is not None:
        asks[is_short] = "a node is lost, and the ranks have not ended: they are ended now"
    if step is not None:
        asks[step.is_over] = nothing_left
    looks = dict.fromkeys(asks, 0)  # in a row that found it so
    while _LOST_LOOKS not in looks.values():
        try:
            return process.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            looks = {ask: n + 1 if ask() else 0 for ask, n in looks.items()}
    _end_group(process)
    found = [ask for ask, n in looks.items() if n == _LOST_LOOKS]
    say(asks[found[-1]])
    code = process.wait()
    return step.status() if step is not None and found[-1] == step.is_over else code


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """TERM to mpirun, which ends its ranks; KILL to all that is left of its session a few seconds later."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()

    def kill() -> None:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(_KILL_AFTER_S, kill)
    timer.daemon = True
    timer.start()
