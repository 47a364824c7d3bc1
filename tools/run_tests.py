"""Runs the whole test suite: serial tests in one pytest, then MPI tests in one mpirun for each rank count they ask for.

Serial tests run in three lanes, as each waits a good part of its time; after the last those on one rank. Beside them
run those on a Slurm of several nodes, which mostly wait; as root on Debian it is installed and started for them. What
runs beside is shown when it has ended.

``make test`` calls it with the virtual environment's Python. Rank 0 is shown as it runs, the other ranks' output is
kept apart and its end is shown when something fails. A run past its limit is asked for every rank's stacks (USR2,
tests/conftest.py), then ended. Nothing that it starts outlives it. The last line is
``N passed, N failed, N skipped`` over all runs; the exit status is 1 where a test failed or nothing passed.

Knows pytest, mpi-pytest's marker and mpirun, and how benchmarks report; nothing else of hpcrec.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STARTED_S = time.monotonic()
SLURM, APART = -1, -2  # in place of a number of ranks; lanes of serial tests from APART downwards
# Of the serial tests, in lanes that take about as long as the others, the last with those on one rank after it.
APART_FILES = (
    ("tests/kernels", "tests/failing_files", "tests/simulated", "tests/bad_input", "tests/api"),
    (
        "tests/test_end_to_end.py",
        *(f"tests/{name}" for name in ("cli", "data", "disk", "docs", "drafts", "embedding", "first_hour", "launcher")),
    ),
)
SHOWN_FILES, SHOWN_S = 10, 10.0  # of those that take most CPU, and from how much on
TAIL_LINES = 120  # of each other rank's output, shown on failure
STACKS_S = 3.0  # between asking for the stacks and ending a run
END_S = 10.0  # between asking a run to end and killing it
WORDS = ("passed", "failed", "skipped")
WORST = ("failed", "began", "passed", "skipped")  # a test on several ranks counts once, as the first of these words
# Rank 0 writes to mpirun's output; the others to files of their own, whatever the MPI library can do itself. Their
# temporary folders are in the run's.
KEEP_APART = (
    'r=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-0}}}; export PYTEST_DEBUG_TEMPROOT="$0"; '
    '[ "$r" = 0 ] || exec > "$0/rank-$r.log" 2>&1; exec "$@"'
)
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a run, and a single test in it, may take."""

    run_s: float
    test_s: float


Show = Callable[[str], None]  # takes a line, or several


@dataclass(frozen=True)
class Run:
    """One part: its name and limits, where its output goes, its environment beside ours."""

    name: str
    limits: Limits
    show: Show
    environment: Mapping[str, str] = field(default_factory=dict)


COLLECTED = threading.Event()  # the serial run has noted what tests ask for, or is over
ENDED = threading.Event()  # by an error or an interrupt: nothing else is begun
RUNNING: list[subprocess.Popen[str]] = []  # parts
FAILURES: list[str] = []  # a line each, said again at the end: what is shown of a run far above may be cut off


def main() -> int:
    """Runs every part, prints the total, returns the exit status."""
    args, pytest_args = parse()
    # The virtual environment's programs, whether or not it is active.
    os.environ["PATH"] = str(Path(sys.executable).parent) + os.pathsep + os.environ.get("PATH", "")
    # Images of containers set them. With the first each of some hundred processes would compile every test and module
    # anew; with the second what Python's buffers hold back, as a user's do, would not be seen.
    for name in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    speed = "slow" if args.slow else "fast"
    chosen = "slow" if args.slow else "not slow"
    limits = Limits(run_s=args.limit_s, test_s=args.test_limit_s)
    rows: list[dict[str, Any]] = []
    whole_s = time.monotonic()
    apart = not names_files(pytest_args) and args.slurm != "only"

    def part(run: Run, ranks: int, marks: str, files: Sequence[str] = ()) -> None:
        began_s = time.monotonic()
        selection = [f"{marks} and {chosen}", *pytest_args, *files]
        found = run_part(run, Path(folder) / str(ranks), ranks, selection)
        counts = {word: found[word] for word in WORDS}
        rows.append({"part": run.name, "seconds": round(time.monotonic() - began_s), **counts})

    def on_ranks(n: int, show: Show) -> None:
        # No rank imports files in which nothing is for it; where the caller names files, those are taken.
        files = [] if names_files(pytest_args) else rank_counts(notes, speed).get(n, [])
        part(Run(f"{n} rank" + "s" * (n > 1), limits, show), n, f"parallel and parallel[{n}]", files)

    def on_slurm(show: Show) -> None:
        with slurm_at_hand(show) as environment:
            part(Run("slurm", limits, show, environment), SLURM, "slurm")

    def counts() -> list[int]:
        return list(rank_counts(notes, speed)) if args.ranks is None else args.ranks

    def lane(number: int) -> None:
        if apart:
            with kept() as show:
                name = f"apart {number + 1}"
                part(Run(name, limits, show), APART - number, "not parallel and not slurm", APART_FILES[number])
        if number == len(APART_FILES) - 1 and wait_collected(notes) and 1 in counts():
            with kept() as show:
                on_ranks(1, show)

    def waiting() -> None:
        if args.slurm == "too" and args.ranks is None and wait_collected(notes) and asks_slurm(notes, speed):
            with kept() as show:
                on_slurm(show)

    with tempfile.TemporaryDirectory(prefix="hpcrec-test-") as folder, ThreadPoolExecutor() as pool, ended_with_us():
        notes, counted = Path(folder) / "0", Path(folder) / "counts"
        counted.mkdir()
        os.environ["HPCREC_COUNTS"] = str(counted)  # where tests may say what they counted: <name>.json, an object
        if args.slurm == "only":
            on_slurm(print_now)
        else:
            lanes = [partial(lane, number) for number in range(len(APART_FILES))]
            others = [pool.submit(run) for run in (*lanes, waiting)] if args.serial else []
            try:
                left_out = [f"--ignore={file}" for files in APART_FILES for file in files] if apart else []
                if args.serial:
                    part(Run("serial", limits, print_now), 0, "not parallel and not slurm", left_out)
            finally:
                COLLECTED.set()
            for other in others:
                other.result()
            for number, files in enumerate(APART_FILES if apart else ()):
                if asked := asks(Path(folder) / str(APART - number), speed, but="0"):
                    raise SystemExit(f"{', '.join(files)} are run without ranks, but ask for some: {asked}")
            for n in counts():
                if n != 1 or not args.serial:
                    on_ranks(n, print_now)
        rows += [{"counted": path.stem, **json.loads(path.read_text())} for path in sorted(counted.glob("*.json"))]
    total = {word: sum(row.get(word, 0) for row in rows) for word in WORDS}
    took = ", ".join(f"{row['part']} {row['seconds']} s" for row in rows if "part" in row)
    print("".join(f"\nfailed: {failure}" for failure in FAILURES))
    print(f"time: {took}; in all {time.monotonic() - whole_s:.0f} s")
    if args.json:
        sys.path.insert(0, str(ROOT / "benchmarks"))
        from _report import claim, finish

        took = {"took_s": round(time.monotonic() - STARTED_S)}
        finish("tests", rows, [claim("tests.failed", total["failed"], "tests", "<= 0")], args.json, took)
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return int(total["failed"] > 0 or total["passed"] == 0)


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The command line; what is not known here is pytest's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", action="store_true", help="the tests marked slow, instead of all others")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what passed in which part here")
    parser.add_argument("--limit-s", type=float, help="seconds for each run (4200; 7200 with --slow)")
    parser.add_argument("--test-limit-s", type=float, help="seconds for each test (240; 1800 with --slow)")
    parser.add_argument("--slurm", choices=["too", "only", "no"], default="too", help="the tests on a Slurm (too)")
    numbers = "only these counts, 2,3; none where it is empty"
    parser.add_argument("--ranks", type=lambda text: [int(n) for n in text.split(",") if n], help=numbers)
    only = "leave the serial tests out, and those that run apart beside them; with --ranks"
    parser.add_argument("--no-serial", dest="serial", action="store_false", help=only)
    args, pytest_args = parser.parse_known_args()
    if not args.serial and not args.ranks:
        parser.error("--no-serial needs --ranks: it is the serial tests that say which counts are asked for")
    args.limit_s = args.limit_s or (7200.0 if args.slow else 4200.0)
    args.test_limit_s = args.test_limit_s or (1800.0 if args.slow else 240.0)
    return args, pytest_args


def print_now(line: str) -> None:
    """Shows a line, or several, at once."""
    print(line, flush=True)


@contextlib.contextmanager
def kept() -> Iterator[Show]:
    """Takes lines, and shows them together after the block."""
    lines: list[str] = []
    try:
        yield lines.append
    finally:
        print_now("\n".join(lines))


@contextlib.contextmanager
def ended_with_us() -> Iterator[None]:
    """Ends all runs of other threads where the block ends by an error, an interrupt for one."""
    try:
        yield
    except BaseException:
        ENDED.set()
        COLLECTED.set()
        for process in tuple(RUNNING):  # which each thread takes its own out of
            end_session(process)
        raise


def wait_collected(notes: Path) -> bool:
    """Waits until the serial run has noted what all tests ask for; False where it never will."""
    while not COLLECTED.wait(0.2):
        if any(word == "began" for word, _ in lines_of(notes, 0)):
            return True
    return not ENDED.is_set()


def run_part(run: Run, folder: Path, ranks: int, pytest_args: list[str]) -> Counter[str]:
    """One pytest run, on ``ranks`` ranks or without MPI (0 and below); returns how many tests had which outcome."""
    folder.mkdir()
    colour = "yes" if sys.stdout.isatty() else "no"
    command = [sys.executable, "-m", "pytest", "-q", f"--color={colour}", f"--outcomes={folder}"]
    # The watch here ends a test that hangs: pytest's own would end one rank, and mpirun the others without stacks.
    command += ["-o", "faulthandler_timeout=0", "-m", *pytest_args]
    if ranks > 0:
        command = [*mpirun(ranks), "sh", "-c", KEEP_APART, str(folder), *command]
    run.show(f"\n=== tests: {run.name}")
    status = watched(command, folder, run)
    of_test = outcomes(folder, max(ranks, 1))
    counts = Counter(of_test.values())
    if most := most_cpu(folder, max(ranks, 1)):
        run.show(f"most CPU: {', '.join(f'{file} {seconds:.0f} s' for file, seconds in most)}")
    if status not in (0, 5) and not counts["failed"]:
        counts["failed"] = 1  # a crash before or after the tests, or a file that cannot be collected
        FAILURES.append(f"{run.name}: no test of it, but its exit status is {status}")
    FAILURES.extend(f"{run.name}: {test}" for test, word in of_test.items() if word == "failed")
    if counts["failed"]:
        show_others(folder, ranks, run.show)
        for rank in range(max(ranks, 1)):
            for test in (test for test, word in on_rank(folder, rank).items() if word == "began"):
                run.show(f"=== {test}: never ended" + f" on rank {rank}" * (ranks > 1))
        run.show(f"=== tests: {run.name}: failed, exit status {status}\n    " + shlex.join(command))
    return counts


@contextlib.contextmanager
def slurm_at_hand(show: Show) -> Iterator[dict[str, str]]:
    """A Slurm while the block lasts, where this machine lets us have one, and the environment of tests on it.

    There a test may not skip.

    Not with another MPI than Open MPI: srun starts ranks by PMIx.
    """
    script = str(ROOT / "tools" / "slurm.sh")
    ours = os.geteuid() == 0 and Path("/etc/debian_version").exists() and "--oversubscribe" in mpirun(1)
    if not ours:
        yield {}
        return

    def call(verb: str) -> None:
        done = subprocess.run(
            [script, verb],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        show(done.stdout.rstrip())

    try:
        for verb in ("install", "start"):
            call(verb)
        said = subprocess.run([script, "env"], check=True, capture_output=True, text=True).stdout
        yield {"SLURM_CONF": said.strip().partition("=")[2], "HPCREC_SLURM_TESTS": "required"}
    finally:
        call("stop")


def mpirun(ranks: int) -> list[str]:
    """How to start ranks, more than there are cores if need be."""
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    return ["mpirun", "-n", str(ranks), *(["--oversubscribe"] if "Open MPI" in version else [])]


def watched(command: list[str], folder: Path, run: Run) -> int:
    """Runs a command in a session of its own, showing its output; ends it with stacks past its limits."""
    environment = {**MPI_ENVIRONMENT, **os.environ, **run.environment}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    RUNNING.append(process)
    if ENDED.is_set():
        end_session(process)
    threading.Thread(target=watch, args=(process, folder, run), daemon=True).start()
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if worth_showing(line):
                run.show(line.removesuffix("\n"))
        return process.wait()
    finally:
        end_session(process)
        process.stdout.close()
        RUNNING.remove(process)


def watch(process: subprocess.Popen[str], folder: Path, run: Run) -> None:
    """Ends a run that takes too long, or in which no rank began or ended a test for too long, with all stacks first."""
    began_s = moved_s = time.time()
    while process.poll() is None:
        now_s, limits = time.time(), run.limits
        moved_s = max([moved_s, *(path.stat().st_mtime for path in folder.glob("outcomes-*"))])
        if now_s - began_s > limits.run_s or now_s - moved_s > limits.test_s:
            why = f"{now_s - moved_s:.0f} s in one test (limit {limits.test_s:.0f} s)"
            if now_s - began_s > limits.run_s:
                why = f"still running after {limits.run_s:.0f} s"
            run.show(f"\n=== {why}: the stacks of every rank follow, twice, then the run is ended")
            for _ in range(2):  # the same ones where ranks wait for each other; others where they are slow
                for rank in range(len(list(folder.glob("outcomes-*")))):
                    for word, pid in lines_of(folder, rank):
                        if word == "pid":  # not by mpirun, which may not hand it on
                            signal_one(int(pid), signal.SIGUSR2)
                time.sleep(STACKS_S)
            end_session(process)
            return
        time.sleep(0.5)


def worth_showing(line: str) -> bool:
    """False for the frames of pytest itself in a stack."""
    return not (
        line.startswith("  File ") and any(part in line for part in ("/_pytest/", "/pluggy/", "<frozen runpy>"))
    )


def end_session(process: subprocess.Popen[str]) -> None:
    """Ends what is left of a run: first politely, then not. Only processes of its own session are touched."""
    if process.poll() is None:
        process.terminate()  # mpirun ends its ranks
    deadline_s = time.monotonic() + END_S
    while time.monotonic() < deadline_s and (process.poll() is None or members(process.pid)):
        time.sleep(0.1)
        if process.poll() is not None:
            for pid in members(process.pid):
                signal_one(pid, signal.SIGTERM)
    for pid in members(process.pid):
        print(f"=== killing process {pid}, which its run left behind", flush=True)
        signal_one(pid, signal.SIGKILL)


def members(session: int) -> list[int]:
    """Processes of a session, zombies left out."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue  # ended meanwhile
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def signal_one(pid: int, number: signal.Signals) -> None:
    """Signals a process that may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def lines_of(folder: Path, rank: int) -> list[list[str]]:
    """What tests/conftest.py noted on a rank: pairs of a word and the rest."""
    path = folder / f"outcomes-{rank}"
    return [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []


def asks(folder: Path, speed: str, but: str = "") -> list[tuple[str, str]]:
    """What tests ask for (a rank count, ``slurm``) ``but`` this, and a file with such tests: each pair once."""
    found = [rest.split(" ", 2) for word, rest in lines_of(folder, 0) if word == "asks"]
    return [(ranks, file) for ranks, its_speed, file in found if its_speed == speed and ranks != but]


def asks_slurm(folder: Path, speed: str) -> bool:
    """Whether any test is to run on a Slurm."""
    return "slurm" in dict(asks(folder, speed))


def rank_counts(folder: Path, speed: str) -> dict[int, list[str]]:
    """Rank counts that any test asks for, so that none is left out, from the least on, and the files of those tests."""
    files: dict[int, list[str]] = {}
    for ranks, file in asks(folder, speed):
        if ranks not in ("0", "slurm"):
            files.setdefault(int(ranks), []).append(file)
    return dict(sorted(files.items()))


def names_files(pytest_args: Sequence[str]) -> bool:
    """Whether arguments of pytest name files, folders or tests in them."""
    return any((ROOT / argument.split("::")[0]).exists() for argument in pytest_args)


def on_rank(folder: Path, rank: int) -> dict[str, str]:
    """The last word on each test on a rank; ``began`` where it has no outcome, ``failed`` where anything of it did."""
    words: dict[str, str] = {}
    for word, test in lines_of(folder, rank):
        if word in WORST and words.get(test) != "failed":
            words[test] = word
    return words


def outcomes(folder: Path, ranks: int) -> dict[str, str]:
    """The worst outcome of each test over all ranks. One that began on some rank and has none there failed."""
    worst: dict[str, str] = {}
    for rank in range(ranks):
        for test, word in on_rank(folder, rank).items():
            worst[test] = min(word, worst.get(test, word), key=WORST.index)
    return {test: "failed" if word == "began" else word for test, word in worst.items()}


def most_cpu(folder: Path, ranks: int) -> list[tuple[str, float]]:
    """Files of which tests took most seconds of CPU, over all ranks, with those; whoever waits takes them too."""
    took = defaultdict[str, float](float)
    for rank in range(ranks):
        for word, rest in lines_of(folder, rank):
            if word == "took":
                seconds, test = rest.split(" ", 1)
                took[test.partition("::")[0].removeprefix("tests/")] += float(seconds)
    most = sorted(took.items(), key=lambda of: -of[1])[:SHOWN_FILES]
    return [(file, seconds) for file, seconds in most if seconds >= SHOWN_S]


def show_others(folder: Path, ranks: int, show: Show) -> None:
    """The end of what the ranks other than 0 wrote, where it says more than rank 0 did."""
    for rank in range(1, ranks):
        words = on_rank(folder, rank)
        if words == on_rank(folder, 0) and "began" not in words.values():
            show(f"--- rank {rank}: the same outcomes as on rank 0")
            continue
        log = folder / f"rank-{rank}.log"
        text = log.read_text(errors="replace") if log.exists() else "(it wrote nothing)"
        lines = [line for line in text.splitlines() if worth_showing(line)]
        left_out = f" (last {TAIL_LINES} of {len(lines)} lines)" if len(lines) > TAIL_LINES else ""
        show("\n".join([f"\n--- rank {rank}{left_out}", *lines[-TAIL_LINES:]]))


if __name__ == "__main__":
    sys.exit(main())
