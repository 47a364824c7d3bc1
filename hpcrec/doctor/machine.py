"""Checks of each host: cores that ranks are bound to, memory, and the limits that MPI and many files run into.

Reads ``proc`` and ``sys`` below ``Site.root``, and this process's limits.
"""

import itertools
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrec.doctor.base import Finding, Site, fail, ok, text_of, warn
from hpcrec.units import GB, KiB, MiB, format_bytes

_BASE_BYTES = GB // 2  # a rank before any rows: Python, torch, MPI, Horovod
_SHM_BYTES = 16 * MiB  # of /dev/shm for each rank: Open MPI's btl_sm_segment_size
_FILES_BASE, _FILES_A_RANK = 256, 4  # data files, libraries, logs; sockets to each other rank
_FILES_A_NEIGHBOUR = 4  # on the same host: its windows of two communicators, two sides each
_PROCESSES_A_RANK = 16  # threads beside the kernels': MPI's progress, Horovod, loader, routing
_UNLIMITED = 1 << 60


# ---- cores -----------------------------------------------------------------------------------------------------------


def threads_of(site: Site) -> int:
    """Threads that a rank will have: the configuration's, else the environment's; 0 where neither says."""
    given = site.environment.get("OMP_NUM_THREADS", "")
    threads = int(given) if given.isdigit() else 0
    if site.config is None:
        return threads
    return max(site.config.topology.owner_threads, site.config.topology.dense_threads) or threads


def measure_cores(site: Site) -> dict[str, Any]:
    """Cores that this rank may use, threads that it will, and cores that the host has for this job."""
    threads = threads_of(site)
    allotted = site.environment.get("SLURM_CPUS_ON_NODE", "")
    here = int(allotted) if allotted.isdigit() else os.cpu_count() or 1
    return {"cores": frozenset(os.sched_getaffinity(0)), "threads": threads, "host": here}


def judge_cores(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Each rank has the cores that its threads need, and no host's cores lie idle."""
    tight = [rank for rank, a in enumerate(answers) if len(a["cores"]) < a["threads"]]
    wrong = bool(tight)
    if tight:
        a = answers[tight[0]]
        yield warn(
            "cores",
            f"{len(a['cores'])} core{'s' * (len(a['cores']) > 1)} for {a['threads']} threads on {site.who(tight)}",
            "start by 'hpcrec run', mpirun --map-by slot:pe=THREADS, or srun --cpus-per-task=THREADS; or lower "
            "OMP_NUM_THREADS",
        )
    for ranks in site.by_host().values():
        union = frozenset().union(*(answers[r]["cores"] for r in ranks))
        has, host = answers[ranks[0]]["host"], site.hosts[ranks[0]]
        threads = sum(answers[r]["threads"] or 1 for r in ranks)
        if threads > len(union) and not set(ranks) & set(tight):
            wrong = True
            yield warn(
                "cores",
                f"{len(ranks)} ranks with {threads} threads in all share {len(union)} cores of {host}",
                "start fewer ranks on a host, or fewer threads a rank; for a trial it does no harm",
            )
        elif 2 * len(union) <= has and not tight:
            wrong = True
            yield warn(
                "cores",
                f"the ranks on {host} may use {len(union)} of its {has} cores",
                "mpirun pins each rank to one core by default: use 'hpcrec run', --map-by slot:pe=THREADS or "
                "--bind-to none; under Slurm --cpus-per-task",
            )
    if not wrong:
        low, high = (f(len(a["cores"]) for a in answers) for f in (min, max))
        threads_R = {a["threads"] or "an equal share of" for a in answers}
        span = f"{low}" if low == high else f"{low} to {high}"
        yield ok("cores", f"{span} for each rank; threads: {', '.join(map(str, sorted(threads_R, key=str)))}")


# ---- memory ----------------------------------------------------------------------------------------------------------


def measure_memory(site: Site) -> dict[str, Any]:
    """Main memory, what of it is free, what the job's cgroup and Slurm allow a host, and what one process may have."""
    info = {}
    for line in (text_of(site.root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        info[name] = int(rest.split()[0]) * KiB
    processes = [soft_limit(which) for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return {
        "total": info["MemTotal"],
        "available": info["MemAvailable"],
        "cgroup": cgroup_limit_bytes(site.root),
        "slurm": slurm_limit_bytes(site.environment),
        "process": min((n for n in processes if n is not None), default=None),
    }


def slurm_limit_bytes(environment: Mapping[str, str]) -> int | None:
    """What a Slurm job may use on a node, enforced by a cgroup or by Slurm's own polling; None: all, or no Slurm."""

    def count(name: str) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdigit() else 0

    a_node_mb = count("SLURM_MEM_PER_NODE") or max(
        count("SLURM_MEM_PER_CPU") * count("SLURM_CPUS_ON_NODE"),
        count("SLURM_MEM_PER_GPU") * count("SLURM_GPUS_ON_NODE"),
    )
    return a_node_mb * MiB or None  # Slurm's MB


def cgroup_limit_bytes(root: Path) -> int | None:
    """The least limit of this process's cgroup and those above it; None where there is none.

    ``memory.high`` counts too: above it a process is not killed, but slowed until it hardly runs.
    """
    limits = []
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        names = ("memory.limit_in_bytes",) if controllers else ("memory.max", "memory.high")
        parts = [p for p in path.split("/") if p and p != ".."]
        # in a container the path may be the host's: then only the top is there
        for depth, name in itertools.product(range(len(parts) + 1), names):
            found = text_of(base.joinpath(*parts[:depth]) / name) or ""
            if found.isdigit() and int(found) < _UNLIMITED:
                limits.append(int(found))
    return min(limits, default=None)


def limit_bytes(answer: dict[str, Any]) -> int:
    """What the job may use of a host's memory."""
    return min([answer["total"], *(answer[key] for key in ("cgroup", "slurm") if answer[key])])


def _limits_text(answer: dict[str, Any]) -> str:
    said = {"cgroup": "cgroup limit", "slurm": "Slurm's limit", "process": "a process's limit (ulimit -v, -d)"}
    return ", ".join(f"{text} {format_bytes(answer[k])}" for k, text in said.items() if answer[k])


def judge_memory(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Each rank's share takes at least a process without rows."""
    shares = {}
    for ranks in site.by_host().values():
        a = answers[ranks[0]]
        share = min(limit_bytes(a), a["available"]) / len(ranks)
        share = min([share, *(answers[r]["process"] for r in ranks if answers[r]["process"])])
        shares[ranks[0]] = share
        if share < _BASE_BYTES:
            why = ", ".join(["", *filter(None, [_limits_text(a)])])
            yield fail(
                "memory",
                f"{format_bytes(a['available'])} free of {format_bytes(a['total'])}{why} on {site.hosts[ranks[0]]}, "
                f"for {len(ranks)} rank{'s' * (len(ranks) > 1)}; each takes {format_bytes(_BASE_BYTES)} before rows",
                "ask for more memory (--mem), or start fewer ranks on a host",
            )
    if min(shares.values()) >= _BASE_BYTES:
        rank = min(shares, key=lambda r: shares[r])
        a = answers[rank]
        limit = _limits_text(a) or "no limit of a cgroup or of Slurm"
        yield ok(
            "memory",
            f"{format_bytes(a['total'])}, {limit}, {format_bytes(a['available'])} free: {format_bytes(shares[rank])} "
            f"for each rank on {site.hosts[rank]}, the least",
        )


# ---- limits ----------------------------------------------------------------------------------------------------------


def measure_limits(site: Site) -> dict[str, Any]:
    """Soft limits of this process, room in /dev/shm, and whether there is a fabric that locks memory."""
    shm = site.root / "dev/shm"
    room = os.statvfs(shm) if shm.is_dir() else None
    return {
        "files": soft_limit(resource.RLIMIT_NOFILE),
        "processes": soft_limit(resource.RLIMIT_NPROC),
        "locked": soft_limit(resource.RLIMIT_MEMLOCK),
        "address": soft_limit(resource.RLIMIT_AS),
        "data": soft_limit(resource.RLIMIT_DATA),
        "shm": None if room is None else room.f_bavail * room.f_frsize,
        "fabric": (site.root / "sys/class/infiniband").is_dir(),
        "root": os.geteuid() == 0,
    }


def soft_limit(which: int) -> int | None:
    """None: unlimited."""
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def judge_limits(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Each limit against what this many ranks need."""
    size = site.probe.size
    most = max(len(ranks) for ranks in site.by_host().values())
    files = _FILES_BASE + _FILES_A_RANK * size + _FILES_A_NEIGHBOUR * most
    processes = most * (_PROCESSES_A_RANK + (os.cpu_count() or 1) // most)
    shm = most * _SHM_BYTES

    def low(key: str, need: int, applies: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[int]:
        return [r for r, a in enumerate(answers) if a[key] is not None and a[key] < need and applies(a)]

    problems = list[Finding]()
    if bad := low("files", files):
        found = f"{answers[bad[0]]['files']} on {site.who(bad)}; {size} ranks may need {files}"
        problems.append(fail("open files", found, f"ulimit -n {max(files, 4096)}, before the launch and on every host"))
    if bad := low("processes", processes, lambda a: not a["root"]):
        found = (
            f"{answers[bad[0]]['processes']} on {site.who(bad)}; {most} ranks on a host may need {processes} threads"
        )
        problems.append(
            fail("processes", found, f"ulimit -u {max(processes, 4096)}, before the launch and on every host")
        )
    if bad := low("shm", shm):
        found = (
            f"{format_bytes(answers[bad[0]]['shm'])} free in /dev/shm on {site.who(bad)}; MPI takes {format_bytes(shm)}"
        )
        do = "free it (files of ended runs stay there), start the container with a larger --shm-size, or set "
        problems.append(fail("shared memory", found, do + "OMPI_MCA_btl_sm_backing_directory to a local folder"))
    if bad := low("locked", _UNLIMITED, lambda a: bool(a["fabric"])):
        found = f"{format_bytes(answers[bad[0]]['locked'])} on {site.who(bad)}, which has an RDMA fabric"
        problems.append(warn("locked memory", found, "ulimit -l unlimited on every host; RDMA locks what it sends"))
    if bad := low("address", _UNLIMITED):
        found = f"{format_bytes(answers[bad[0]]['address'])} on {site.who(bad)}"
        problems.append(
            warn("address space", found, "ulimit -v unlimited: large tables are mapped before they are used")
        )
    if bad := low("data", _UNLIMITED):
        found = f"{format_bytes(answers[bad[0]]['data'])} on {site.who(bad)}"
        problems.append(warn("data segment", found, "ulimit -d unlimited: it counts the memory that tables are in"))
    yield from problems
    if not problems:
        a = answers[0]
        parts = [f"open files {a['files'] or 'unlimited'}", f"processes {a['processes'] or 'unlimited'}"]
        parts += ["locked memory " + ("unlimited" if a["locked"] is None else format_bytes(a["locked"]))]
        parts += ["/dev/shm " + ("none" if a["shm"] is None else format_bytes(a["shm"]))]
        yield ok("limits", ", ".join(parts))
