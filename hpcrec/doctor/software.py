"""Checks of what runs: the launch, versions, MPI's thread level, the native module, CUDA."""

import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hpcrec.doctor.base import Finding, Site, fail, odd_ones, ok, text_of, warn
from hpcrec.kernels import native
from hpcrec.training import telemetry

_TASKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
_MUST_AGREE = ("hpcrec", "torch", "numpy", "mpi4py", "h5py", "horovod", "python", "mpi_library")
_KERNEL_LIMIT_S = 20.0
_TRY_KERNEL = (
    "import numpy as np; from hpcrec import kernels; a = np.arange(64); kernels.use('native'); "
    "r = kernels.init_rows(1, a, 16, scale=1.0); o = np.zeros(16, np.float32); "
    "kernels.pooled_gather(r, a, np.array([0, 64]), o); assert np.isfinite(o).all()"
)


# ---- launch ----------------------------------------------------------------------------------------------------------


def tasks_of(environment: Mapping[str, str]) -> tuple[str, int] | None:
    """Who says how many tasks were started. mpirun's word comes first: inside it Slurm counts mpirun's helpers."""
    for name in _TASKS:
        if environment.get(name, "").isdigit():
            return name, int(environment[name])
    return None


def measure_launch(site: Site) -> tuple[str, int] | None:
    """What the launcher says."""
    return tasks_of(site.environment)


def judge_launch(answers: Sequence[tuple[str, int] | None], site: Site) -> Iterator[Finding]:
    """The world's size against the launcher's tasks."""
    size, said = site.probe.size, answers[0]
    hosts = len(set(site.probe.host_of))
    world = f"{size} rank{'s' * (size > 1)} on {hosts} host{'s' * (hosts > 1)}"
    if said is None or (said[0] == "SLURM_NTASKS" and size < said[1] and size > 1):
        text = "" if size > 1 else "; what takes several ranks is not checked (hpcrec run -n 4 -- doctor)"
        yield ok("launch", world + text)
    elif said[1] == size:
        yield ok("launch", f"{world}, as {said[0]} says")
    else:
        yield fail(
            "launch",
            f"the launcher started {said[1]} tasks ({said[0]}), but MPI sees a world of {size}"
            + (": each task believes to be alone" if size == 1 else ""),
            "under Slurm use 'srun --mpi=pmix', or mpirun inside the allocation; MPI must be the launcher's",
        )


# ---- versions --------------------------------------------------------------------------------------------------------


def measure_versions(site: Site) -> dict[str, str]:
    """Of all software that a result depends on."""
    return {**telemetry.versions(), **site.probe.mpi}


def judge_versions(answers: Sequence[Mapping[str, str]], site: Site) -> Iterator[Finding]:
    """The same everywhere."""
    differ = False
    for name in _MUST_AGREE:
        usual, odd = odd_ones([a[name] for a in answers])
        if odd:
            differ = True
            yield fail(
                "versions",
                f"{name} is {answers[odd[0]][name]} on {site.who(odd)}, {usual} elsewhere",
                "start every rank from one virtual environment, on a shared file system",
            )
    usual, odd = odd_ones([a["cpu"] for a in answers])
    if odd:
        yield warn(
            "processors",
            f"{answers[odd[0]]['cpu']} on {site.who(odd)}, {usual} elsewhere",
            "build without -march=native (HPCREC_NATIVE_ARCH=OFF), and expect the slowest to set the pace; results are "
            "bit for bit the same only on equal processors",
        )
    if not differ:
        first = answers[0]
        found = ", ".join(f"{n} {first[n]}" for n in _MUST_AGREE)
        yield ok("versions", found + ("" if len(answers) == 1 else "; the same on every rank"), **dict(first))


def judge_mpi(answers: Sequence[Mapping[str, str]], site: Site) -> Iterator[Finding]:
    """The thread level."""
    low = [rank for rank, a in enumerate(answers) if a["mpi_threads"] != "multiple"]
    first = answers[0]
    if low:
        yield fail(
            "mpi threads",
            f"{answers[low[0]]['mpi_threads']} on {site.who(low)} ({first['mpi_library']}); multiple is needed",
            "use an MPI built with MPI_THREAD_MULTIPLE, or set exchange.prefetch = 0 and dense.reducer = 'mpi'",
        )
    else:
        yield ok("mpi", f"{first['mpi_library']}, standard {first['mpi_standard']}, threads multiple")


# ---- native module ---------------------------------------------------------------------------------------------------


def measure_native(site: Site) -> dict[str, str]:
    """Whether the native module loads and its kernels run here.

    They run in a process of their own, once a host: code for another processor ends by SIGILL.
    """
    if not native.available():
        return {"missing": str(native.load_error())}
    if site.by_host()[site.probe.host_of[site.probe.rank]][0] != site.probe.rank:
        return {}
    done = subprocess.run(
        [sys.executable, "-c", _TRY_KERNEL], capture_output=True, text=True, timeout=_KERNEL_LIMIT_S, check=False
    )
    crashed = {"crashed": f"exit {done.returncode} {done.stderr.strip()[-200:]}".strip()} if done.returncode else {}
    return {"flags": _simd(text_of(site.root / "proc/cpuinfo") or ""), **crashed}


def judge_native(answers: Sequence[Mapping[str, str]], site: Site) -> Iterator[Finding]:
    """Loads and runs on every host."""
    for key, do in (
        ("crashed", "build on these hosts, or with HPCREC_NATIVE_ARCH=OFF: make setup, after removing build/"),
        ("missing", "run 'make setup'; without it the NumPy kernels run, many times slower"),
    ):
        bad = [rank for rank, a in enumerate(answers) if key in a]
        if bad:
            yield fail("native kernels", f"{key} on {site.who(bad)}: {answers[bad[0]][key]}", do)
            return
    yield ok("native kernels", f"loaded, and run on every host; vector units: {answers[0].get('flags', 'unknown')}")


def _simd(cpuinfo: str) -> str:
    line = next((x for x in cpuinfo.splitlines() if x.lower().startswith(("flags", "features"))), "")
    known = [f for f in ("avx512f", "avx2", "sve", "asimd") if f in line.split()]
    return ", ".join(known) or "unknown"


# ---- CUDA ------------------------------------------------------------------------------------------------------------


def measure_cuda(site: Site) -> dict[str, Any]:
    """The driver, its devices, and what torch sees of them."""
    devices = sorted(p.name for p in (site.root / "dev").glob("nvidia[0-9]*"))
    driver = text_of(site.root / "proc/driver/nvidia/version")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says in a warning what is reported here
        seen = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"devices": len(devices), "driver": driver is not None, "torch": seen, "built": torch.version.cuda}


def judge_cuda(answers: Sequence[Mapping[str, Any]], site: Site) -> Iterator[Finding]:
    """Devices that are there can be used; the same number everywhere."""
    blind = [rank for rank, a in enumerate(answers) if (a["devices"] or a["driver"]) and not a["torch"]]
    _, odd = odd_ones([a["torch"] for a in answers])
    if blind:
        a = answers[blind[0]]
        why = "torch is built without CUDA" if a["built"] is None else f"torch is built for CUDA {a['built']}"
        if not a["devices"]:
            why = "a driver but no device"
        yield warn(
            "cuda",
            f"{a['devices']} devices, torch sees none on {site.who(blind)}: {why}",
            "install a CUDA build of torch that the driver supports, and ask the scheduler for GPUs; or use CPUs only",
        )
    elif odd:
        yield warn(
            "cuda",
            f"torch sees {answers[odd[0]]['torch']} devices on {site.who(odd)}, elsewhere another number",
            "ask for the same GPUs for every task (--gpus-per-task)",
        )
    else:
        seen = answers[0]["torch"]
        yield ok(
            "cuda", f"{seen} devices for each rank, torch for CUDA {answers[0]['built']}" if seen else "none, CPU only"
        )
