"""Slurm jobs for training runs: which of the scripts in slurm/ a run takes, with which options, and their submission.

A job is the script as it stands there, under its own ``#SBATCH`` lines with what was asked for put in. Knows scripts,
sbatch and squeue; the configuration was checked, and its roles are given as arguments.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from hpcrec.again import read_json_lines
from hpcrec.errors import ConfigError, HpcrecError, MissingError
from hpcrec.training import attempts, queue

JOBS = "jobs.jsonl"  # in a run folder: which jobs were submitted for it
_FOLDER = "give run.folder another name"
_OURS = {  # options of sbatch that are not for --option, and what is in place of them
    **dict.fromkeys(("--nodes", "-N"), "give --nodes"),
    **dict.fromkeys(("--ntasks", "-n", "--ntasks-per-node"), "give --ranks-per-node"),
    **dict.fromkeys(("--array", "-a"), "submit each run by itself"),
    **dict.fromkeys(("--chdir", "-D"), "submit from the folder that paths are relative to"),
    **dict.fromkeys(("--output", "-o", "--error", "-e", "--job-name", "-J"), _FOLDER),
}
_OF_SITES = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_UMASK", "SLURM_EXIT_ERROR")  # for sbatch itself
_LEAD = re.compile(r"--signal=\S*@(\d+)")
_SPARE_S = 30  # of a warning's lead: for the script, and to requeue
_TIME = re.compile(r"(\d+-)?\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Nodes that are alike, and what runs on each.

    Attributes
    ----------
    nodes, ranks_per_node : int
    cpus_per_rank : int or None
        None: as the script has it.
    options : tuple of str
        Further options of sbatch, ``--gres=gpu:4``; they come last, and so win. One with nothing behind ``=`` takes the
        script's out.
    """

    nodes: int
    ranks_per_node: int
    cpus_per_rank: int | None = None
    options: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """Ranks of all its nodes."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked for. ``parts`` are one, or two: owners, then dense ranks.

    Attributes
    ----------
    arguments : tuple of str
        Of the script: the configuration file, and ``--set`` options.
    run_folder : Path
        Where the job's output goes.
    env_sh : Path
        The site's settings.
    time, partition, account, launcher : str or None
        None: as the script, or the site, has it.
    min_nodes : int or None
        With so many nodes or more the job goes on where it loses others; None: it is requeued.
    """

    arguments: tuple[str, ...]
    run_folder: Path
    env_sh: Path
    programs: Path
    parts: tuple[Part, ...]
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    launcher: str | None = None
    min_nodes: int | None = None

    def __post_init__(self) -> None:
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise ConfigError(
                f"hpcrec submit: --time is {self.time!r}. Allowed, as by sbatch: minutes, HH:MM:SS, D-HH or D-HH:MM:SS."
            )
        for option in (option for part in self.parts for option in part.options):
            if not re.fullmatch(r"--?[a-zA-Z]\S*", option):
                raise ConfigError(
                    f"hpcrec submit: option {option!r} for sbatch. Allowed: one word, as --gres=gpu:4 or --exclusive."
                )
            if (name := re.match(r"--[^=]*|-.", option)) and name[0] in _OURS:
                raise ConfigError(
                    f"hpcrec submit: option {option!r} for sbatch. hpcrec submit sets {name[0]} itself, by what "
                    f"it has checked: {_OURS[name[0]]}."
                )
        if wrong := re.search(r'["\\\x00-\x1f\x7f]', str(self.run_folder)):
            raise ConfigError(
                f"hpcrec submit: run.folder is {str(self.run_folder)!r}. sbatch takes no path with {wrong[0]!r} in it: "
                f"{_FOLDER}."
            )
        if len(self.parts) > 1 and self.launcher == "mpirun":
            raise ConfigError(
                "hpcrec submit: --launcher mpirun with --owner-nodes: mpirun starts ranks in the first part of a "
                "heterogeneous job alone. Leave --launcher out."
            )


def scripts_folder() -> Path:
    """Where the job scripts are: in the package where it was installed from a wheel, else in the checkout."""
    here = Path(__file__).resolve().parents[1]
    return next(folder for folder in (here / "slurm", here.parent / "slurm") if (folder / "env.sh").is_file())


def render(job: Job, script: str) -> str:
    """The script of ``job``: the text of one in slurm/, with its options and arguments put in."""
    lines = script.splitlines()
    headers: list[list[str]] = [[]]
    for line in lines[1:]:
        if line == "#SBATCH hetjob":
            headers.append([])
        elif line.startswith("#SBATCH "):
            headers[-1].append(line.removeprefix("#SBATCH "))
    body = [line for line in lines[1:] if not line.startswith("#SBATCH ")]
    out = [lines[0]]
    for number, (options, part) in enumerate(zip(headers, job.parts, strict=True)):
        out += ["#SBATCH hetjob"] if number else []
        out += [f"#SBATCH {_quoted(option)}" for option in _options(job, part, options, first=number == 0)]
    first_command = next(i for i, line in enumerate(body) if line and not line.startswith("#"))
    out += body[:first_command]
    out += [f"export PATH={shlex.quote(str(job.programs))}:$PATH HPCREC_ENV={shlex.quote(str(job.env_sh))}"]
    out += [f"set -- {shlex.join(job.arguments)}"]
    site = next(i for i, line in enumerate(body) if line.startswith(". ")) + 1
    # After the site's settings: what was asked for here is for this job.
    chosen = [f"HPCREC_LAUNCHER={job.launcher}"] if job.launcher else []
    chosen += [f"HPCREC_MIN_NODES={job.min_nodes}"] if job.min_nodes else []
    leads_s = [int(found[1]) for part in job.parts for o in part.options if (found := _LEAD.fullmatch(o))]
    chosen += [f"HPCREC_STOP_S={max(leads_s[-1] - _SPARE_S, 1)}"] if leads_s else []
    return "\n".join([*out, *body[first_command:site], *chosen, *body[site:]]) + "\n"


def _quoted(option: str) -> str:
    """An option on a line of ``#SBATCH``, where spaces end it and ``#`` begins a comment."""
    return f'"{option}"' if re.search(r"[\s#'\\]", option) else option


def _options(job: Job, part: Part, before: Sequence[str], *, first: bool) -> list[str]:
    """The options of one part: the script's, with what was asked for in their place."""
    wanted: dict[str, str | None] = {
        "--nodes": str(part.nodes),
        "--ntasks-per-node": str(part.ranks_per_node),
        "--cpus-per-task": None if part.cpus_per_rank is None else str(part.cpus_per_rank),
        "--time": job.time,
        "--partition": job.partition,
        "--account": job.account,
    }
    own = [] if job.min_nodes is None else ["--no-kill"]
    if first:
        wanted["--job-name"] = re.sub(r"[^\w.-]", "-", f"hpcrec-{job.run_folder.name}")
        wanted["--output"] = str(job.run_folder).replace("%", "%%") + "/slurm-%j.out"
    merged: dict[str, str | None] = {}
    own += [f"{key}={value}" for key, value in wanted.items() if value is not None]
    for option in (*before, *own, *part.options):
        key, equals, value = option.partition("=")
        if equals and not value:
            merged.pop(key, None)
        else:
            merged[key] = value if equals else None
    return [key if value is None else f"{key}={value}" for key, value in merged.items()]


def submit(job: Job, text: str, *, force: bool = False) -> str:
    """Hands a rendered script to sbatch, notes the job in the run folder, and returns its number.

    Parameters
    ----------
    force : bool
        Also where squeue does not say whether an earlier job of this run is in the queue.

    Raises
    ------
    HpcrecError
        A job of this run is in the queue, or may be; or sbatch refuses, with what it says.
    MissingError
        No sbatch.
    """
    earlier = jobs_of(job.run_folder)
    present = queued(earlier)
    if present is None and not force:
        raise HpcrecError(
            f"squeue does not answer, so job {earlier[-1]} for {job.run_folder} may be in the queue: two would write "
            "the same run. Try again once it answers; or see that no job of this run is there, and give --force."
        )
    if present:
        raise HpcrecError(
            f"job {present[0].number} for {job.run_folder} is in the queue ({present[0].state}): two would write the "
            f"same run. End it by 'scancel {present[0].number}', or give this run a run.folder of its own."
        )
    job.run_folder.mkdir(parents=True, exist_ok=True)
    script = job.run_folder / "job.sbatch"
    script.write_text(text, encoding="utf-8")
    # sbatch hands its environment on: of a job that this is called in, the new one would take it for its own.
    told = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _OF_SITES}
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(script)], env=told, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise MissingError(
            f"hpcrec submit: no sbatch in PATH. Submit from a login node of the cluster; the script is {script}."
        ) from None
    if done.returncode:
        raise HpcrecError(f"sbatch refuses {script}: {' '.join(done.stderr.split())}")
    number = done.stdout.strip().split(";")[0]
    try:
        line = {"job": number, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        attempts.append_line(job.run_folder / JOBS, line)
    except OSError as error:
        raise HpcrecError(
            f"job {number} is submitted, and that could not be noted: {error}. Until it has begun, another hpcrec "
            f"submit does not know of it: 'scancel {number}' ends it."
        ) from error
    return number


@dataclass(frozen=True)
class Queued:
    """A job in the queue, as squeue has it."""

    number: str
    state: str  # PENDING, RUNNING, ...
    left: str  # time left of its allocation, [D-]HH:MM:SS
    reason: str  # why it waits
    nodes: str
    starts: str  # expected or actual start


def jobs_of(run_folder: Path) -> list[str]:
    """Numbers of the jobs that were submitted for a run, or that it says it ran in; the newest last."""
    found: dict[str, None] = {}
    for name in (JOBS, "attempts.jsonl"):
        for line in read_json_lines(run_folder / name):
            if line.get("job") is not None:
                found[str(line["job"])] = None
    return sorted(found, key=lambda number: (len(number), number))


def queued(jobs: Sequence[str]) -> list[Queued] | None:
    """Which of these jobs are in the queue, whoever submitted them; None where nobody can be asked."""
    if not jobs:
        return []
    form = "%i|%T|%L|%r|%N|%S"
    try:
        done = queue.asked("-o", form, limit_s=60, any_cluster=True)  # of the cluster that sbatch submits to
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    found: dict[str, Queued] = {}
    for line in done.stdout.splitlines():
        if line.count("|") == form.count("|"):
            row = Queued(*line.split("|"))
            number = row.number.split("+")[0].split("_")[0]  # of a part of a heterogeneous job, of a task of an array
            nodes = ",".join(text for text in (found[number].nodes if number in found else "", row.nodes) if text)
            found[number] = replace(row, number=number, nodes=nodes)
    return [found[number] for number in jobs if number in found]
