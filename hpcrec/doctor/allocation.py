"""Check of the Slurm allocation that this runs in: what was asked for, what of it is used, and what its end will do.

Reads the environment's ``SLURM_*`` and, on rank 0, what ``scontrol`` says where it is there. Outside Slurm it finds
nothing.
"""

import datetime as dt
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcrec.config import Config
from hpcrec.doctor.base import Finding, Site, fail, ok, warn
from hpcrec.doctor.machine import threads_of

_LIMIT_S = 5.0  # for each call of scontrol
_KEPT = (
    *("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK"),
    *("SLURM_JOB_PARTITION", "SLURM_HET_SIZE", "SLURM_JOB_END_TIME", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"),
)
_HET_NODES = "SLURM_JOB_NODELIST_HET_GROUP_"
_LEAD_S = 60.0  # between the warning and the end, where nothing is known of checkpoints


def measure_allocation(site: Site) -> dict[str, Any]:
    """This rank's part of the environment and its threads; on rank 0 what ``scontrol`` says of the job, or why not."""
    given = {k: v for k, v in site.environment.items() if k in _KEPT or k.startswith(_HET_NODES)}
    answer: dict[str, Any] = {"environment": given, "threads": threads_of(site), "now_s": time.time()}
    job = given.get("SLURM_JOB_ID")
    if job is not None and site.probe.rank == 0:
        answer["job"], answer["why"] = _scontrol(site, "show", "job", "-o", job)
        answer["script"], _ = _scontrol(site, "write", "batch_script", job, "-")
    return answer


def _scontrol(site: Site, *arguments: str) -> tuple[str | None, str]:
    """What it prints; or None and why there is nothing."""
    program = shutil.which("scontrol", path=site.environment.get("PATH", ""))
    if program is None:
        return None, "no scontrol here"
    line = [program, *arguments]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_LIMIT_S, check=False, env=site.environment)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"scontrol: {error}"
    if done.returncode:
        return None, f"scontrol: {(done.stderr.strip() or done.stdout.strip())[-200:]}"
    return done.stdout, ""


def job_fields(text: str) -> dict[str, str]:
    """Fields of a job by name, from ``scontrol show job -o``; of the first component of a heterogeneous job."""
    first = next(iter(text.strip().splitlines()), "")
    return dict(re.findall(r"(?:^|\s)([A-Za-z][\w/:]*)=(\S*)", first))


def signal_of(script: str) -> tuple[str, float] | None:
    """What ``--signal`` asks for in a job script: as it is written, and seconds before the time limit."""
    for line in script.splitlines():
        if line.startswith("#SBATCH") and (found := re.search(r"--signal[=\s]+\"?([\w:]+)(?:@(\d+))?", line)):
            return found[0], float(found[2] or _LEAD_S)  # 60 s is Slurm's own default
    return None


def nodes_in(nodelist: str) -> int:
    """Number of nodes in a list such as ``h[1-3,7],login``."""
    count = 0
    for name in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", nodelist):
        nodes = 1
        for ranges in re.findall(r"\[([^\]]*)\]", name):
            bounds = [piece.partition("-") for piece in ranges.split(",")]
            nodes *= sum(int(high or low) - int(low) + 1 for low, _, high in bounds)
        count += nodes
    return count


def judge_allocation(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """The job against the ranks; its end against the checkpoints."""
    given = answers[0]["environment"]
    if "SLURM_JOB_ID" not in given:
        return
    job = job_fields(answers[0].get("job") or "")
    left_s = _left_s(job, given, answers[0]["now_s"])
    findings = [*_launched(given, site), *_threads(answers, site), *_gpus(answers, site)]
    if answers[0].get("job") is not None:
        findings += _requeue(job)
        if job.get("BatchFlag", "1") != "0":
            findings += _warned(answers[0].get("script"), site.found)
    findings += _end(left_s, site.found)
    yield from findings
    said = [f"job {given['SLURM_JOB_ID']}"]
    for text, value in (
        ("partition {}", job.get("Partition") or given.get("SLURM_JOB_PARTITION")),
        ("{} nodes", _nodes(given)),
        ("tasks a node {}", given.get("SLURM_TASKS_PER_NODE")),
        ("{} cpus a task", given.get("SLURM_CPUS_PER_TASK")),
        ("{} GPUs a node", _gpus_of(given)),
        ("{} left", None if left_s is None else dt.timedelta(seconds=round(left_s))),
        ("restarted {} times", job.get("Restarts")),
    ):
        said += [text.format(value)] if value is not None else []
    if job:
        said += [f"{'is' if job.get('Requeue') == '1' else 'is not'} requeued after a failure or preemption"]
        signal = signal_of(answers[0].get("script") or "")
        said += [f"warned by {signal[0]}"] if signal else []
    else:
        said += [f"time limit and requeue not known: {answers[0].get('why', 'no scontrol here')}"]
    what = "allocation" if not findings else "of the job"
    yield ok(what, ", ".join(said), environment=given, scontrol=job, left_s=left_s)


def _nodes(given: Mapping[str, str]) -> int | None:
    """Of all components."""
    lists = _components(given)
    if len(lists) > 1:
        return sum(map(nodes_in, lists))
    text = given.get("SLURM_JOB_NUM_NODES", given.get("SLURM_NNODES", ""))
    return int(text) if text.isdigit() else None


def _components(given: Mapping[str, str]) -> list[str]:
    size = given.get("SLURM_HET_SIZE", "")
    return [given.get(f"{_HET_NODES}{i}", "") for i in range(int(size))] if size.isdigit() else []


def _launched(given: Mapping[str, str], site: Site) -> Iterator[Finding]:
    hosts, nodes, components = len(site.by_host()), _nodes(given), _components(given)
    if nodes is None or hosts >= nodes:
        return
    if len(components) > 1 and hosts <= nodes_in(components[0]):
        groups = ",".join(str(i) for i in range(len(components)))
        yield fail(
            "launch",
            f"the job has {len(components)} components with {nodes} nodes, but ranks are on {hosts} "
            f"host{'s' * (hosts > 1)}: mpirun starts the first component only",
            f"srun --mpi=pmix --het-group={groups} starts one world over all of them",
        )
    else:
        yield warn(
            "nodes",
            f"the job has {nodes} nodes, ranks are on {hosts}",
            "start ranks on all of them (mpirun -n NODES*TASKS --map-by ppr:TASKS:node), or ask for fewer nodes; hosts "
            "are counted by what shares memory, so nodes that are one machine count once",
        )


def _threads(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    def cpus(answer: dict[str, Any]) -> int:
        text = answer["environment"].get("SLURM_CPUS_PER_TASK", "")
        return int(text) if text.isdigit() else 0

    over = [r for r, a in enumerate(answers) if 0 < cpus(a) < a["threads"]]
    idle = [r for r, a in enumerate(answers) if a["threads"] and cpus(a) >= 2 * a["threads"]]
    for ranks, do in (
        (over, "ask for --cpus-per-task=THREADS, or lower OMP_NUM_THREADS"),
        (idle, "set OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK, or ask for fewer --cpus-per-task"),
    ):
        if ranks:
            a = answers[ranks[0]]
            yield warn("threads", f"{a['threads']} for {cpus(a)} cpus a task on {site.who(ranks)}", do)


def _gpus_of(given: Mapping[str, str]) -> int | None:
    text = given.get("SLURM_GPUS_ON_NODE", "")
    listed = [g for g in given.get("SLURM_JOB_GPUS", "").split(",") if g]
    return int(text) if text.isdigit() else len(listed) or None


def _gpus(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    if site.config is None or not _wants_gpus(site.config):
        return
    without = [r for r, a in enumerate(answers) if not _gpus_of(a["environment"])]
    if without:
        yield warn(
            "gpus",
            f"the run is to use GPUs, and Slurm gave none to {site.who(without)}",
            "ask for them (--gpus-per-node), or set store.name, store.gpu_bytes and dense.device to what is there",
        )


def _wants_gpus(config: Config) -> bool:
    return config.dense.device == "cuda" or (config.store.on_gpu and config.store.device == "cuda")


def _left_s(job: Mapping[str, str], given: Mapping[str, str], now_s: float) -> float | None:
    """Seconds to the time limit; None where there is none, or none is known."""
    try:  # may have been changed since the job began
        return dt.datetime.fromisoformat(job.get("EndTime", "")).timestamp() - now_s
    except ValueError:
        end = given.get("SLURM_JOB_END_TIME", "")
        return float(end) - now_s if not job and end.isdigit() else None


def _requeue(job: Mapping[str, str]) -> Iterator[Finding]:
    if job.get("Requeue") == "0" and job.get("BatchFlag", "1") != "0":
        yield warn(
            "requeue",
            "this job is not started again after a preemption or a failed node",
            "add #SBATCH --requeue; a run goes on from its newest checkpoint (checkpoint.resume is auto)",
        )


def _warned(script: str | None, found: Mapping[str, float]) -> Iterator[Finding]:
    """The signal before the time limit against the time that writing a checkpoint takes."""
    if script is None:
        return
    signal, write_s = signal_of(script), found.get("checkpoint_s")
    need_s = _LEAD_S if write_s is None else max(_LEAD_S, 2 * write_s)
    asked = f"#SBATCH --signal=B:USR1@{need_s:.0f}"
    if signal is None:
        yield warn(
            "signal",
            "the job script asks for no --signal (one given to sbatch itself does not show): the time limit then kills "
            "the run, and what it did since its last checkpoint is lost",
            f"add {asked}, and pass it on to the ranks as the scripts in slurm/ do",
        )
    elif write_s is not None and signal[1] < write_s:
        yield warn(
            "signal",
            f"{signal[0]} leaves {signal[1]:.0f} s; a checkpoint takes about {write_s:.0f} s",
            f"ask for more: {asked}",
        )


def _end(left_s: float | None, found: Mapping[str, float]) -> Iterator[Finding]:
    """The time left against the first checkpoint."""
    write_s, every_s = found.get("checkpoint_s"), found.get("every_s")
    if left_s is None or write_s is None:
        return
    first_s = write_s + (every_s or 0.0)
    if left_s < first_s:
        when = f"the first checkpoint is whole after about {first_s:,.0f} s" if every_s else "writing one checkpoint"
        takes = "" if every_s else f" takes about {write_s:,.0f} s"
        yield warn(
            "time limit",
            f"{left_s:,.0f} s are left of the job; {when}{takes}",
            "ask for more time (--time), or lower checkpoint.every",
        )
