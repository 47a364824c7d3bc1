"""One fault a check, each named with its rank and host: answers of ranks that do not exist, judged without MPI."""

import os
import resource
import subprocess
from types import SimpleNamespace

import pytest

from hpcrec.doctor import machine, software
from hpcrec.doctor.base import Finding, fail, odd_ones, ok, warn
from hpcrec.doctor.disk import Speed
from hpcrec.doctor.registry import CHECKS, CONFIG_CHECKS, LAST_CHECKS
from tests.doctor.site import fake_root, judged, only, site_of

CHECK = {check.name: check for check in (*CHECKS, *CONFIG_CHECKS, *LAST_CHECKS)}
THREE = ["node1", "node1", "node2"]
SOFTWARE = {
    **dict.fromkeys(("hpcrec", "torch", "numpy", "mpi4py", "h5py", "horovod", "python"), "1.0"),
    "mpi_library": "Open MPI v5", "mpi_standard": "3.1", "mpi_threads": "multiple", "cpu": "A",
}  # fmt: skip
CORES = {"cores": frozenset({0, 1}), "threads": 1, "host": 2}
MEMORY = {"total": 64 * 10**9, "available": 60 * 10**9, "cgroup": None, "slurm": None, "process": None}
LIMITS = {
    "files": 4096, "processes": None, "locked": None, "address": None, "data": None, "shm": 10**9,
    "fabric": True, "root": False,
}  # fmt: skip
FOLDER = {"error": None, "unseen": [], "bytes": 10**6, "free": 10**12, "write_s": 0.1, "renamed": True}
FOLDER |= {"made": False, "unmade": ""}
SPEED = Speed(bytes=10**9, slowest_s=1.0, gbs_of_host={0: 0.5, 1: 0.5}, cached=0.0, errors={})
BROKEN = Speed(bytes=0, slowest_s=0.0, gbs_of_host={}, cached=None, errors={2: "No space left on device"})
DISK = {"folder": "/runs", "kind": "nfs4", "write": SPEED, "read": SPEED, "free": 10**12, "inodes": 10**6}
DISK |= {"needs": None, "why": "", "samples_per_s": None}
ROWS = {
    "folder": "/scratch", "kind": "ext4", "error": None, "reads_per_s": 50_000.0, "free": 10**12, "page_bytes": 4096,
    "owners": (0, 1, 2), "reads": {0: {4096: 100.0}}, "space": {0: 1e9}, "why": "", "many": False, "step_s": 0.02,
    "step_said": "--samples-per-s",
}  # fmt: skip
DATA = {"folder": "/data.h5", "kind": "nfs4", "read": SPEED, "bytes": 10**9, "needs": None, "samples_per_s": None}
SUM = {"reducer": "horovod", "set_up_s": 0.1, "took_s": 0.001, "right": True, "facts": {"mpi_built": True}}
CONTENTS = {"wrong": [], "took_s": {"MPI": {64: 1e-4}, "shared memory": {64: 1e-5}}, "without_windows": ""}
JOB = {"environment": {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2"}, "threads": 2, "now_s": 0.0}
SIZES = (1024, 65536, 4 * 2**20)


def swaps(slow: float = 1.0) -> list[dict[int, list[float]]]:
    """Swap times of three ranks; ``slow`` multiplies those of ranks 0 and 2."""
    times = [[0.0, 1e-5, 1e-5 * slow], [1e-5, 0.0, 1e-5], [1e-5 * slow, 1e-5, 0.0]]
    return [{n: list(times[rank]) for n in SIZES} for rank in range(3)]


def links(n: int = 3, **slow: float) -> list[dict[str, list[list[float | None]]]]:
    """What three ranks know of links between ``n`` hosts: 1.0 GB/s, but for ``slow``, by name: ``_0_2=0.1``."""
    gbs = [[None if a == b else slow.get(f"_{a}_{b}", 1.0) for b in range(n)] for a in range(n)]
    return [{"gbs": gbs}] * 3


def three(good: dict, bad: dict | None = None) -> list[dict]:
    """Two answers that are good and the last rank's, with what is bad in it."""
    return [good, good, {**good, **(bad or {})}]


# check, answers of three ranks, level, what its finding is called, and words of it. The last rank is at fault.
FAULTS = [
    ("launch", [("SLURM_NTASKS", 8)], "FAIL", "launch", "started 8 tasks (SLURM_NTASKS), but MPI sees a world of 1"),
    ("launch", [("OMPI_COMM_WORLD_SIZE", 4)] * 3, "FAIL", "launch", "started 4 tasks"),
    ("versions", three(SOFTWARE, {"torch": "0.9"}), "FAIL", "versions", "torch is 0.9 on rank 2 on node2, 1.0 elsew"),
    ("versions", three(SOFTWARE, {"hpcrec": "2"}), "FAIL", "versions", "hpcrec is 2 on rank 2 on node2"),
    ("versions", three(SOFTWARE, {"mpi_library": "MPICH"}), "FAIL", "versions", "mpi_library is MPICH on rank 2"),
    ("versions", three(SOFTWARE, {"cpu": "B"}), "warn", "processors", "B on rank 2 on node2, A elsewhere"),
    ("mpi", three(SOFTWARE, {"mpi_threads": "funneled"}), "FAIL", "mpi threads", "funneled on rank 2 on node2"),
    ("native kernels", three({}, {"missing": "no module"}), "FAIL", "native kernels", "missing on rank 2 on node2: no"),
    ("native kernels", three({}, {"crashed": "exit -4"}), "FAIL", "native kernels", "crashed on rank 2 on node2: exit"),
    ("cores", three(CORES, {"cores": frozenset({0}), "threads": 2}), "warn", "cores", "1 core for 2 threads on rank 2"),
    ("cores", three(CORES, {"host": 8}), "warn", "cores", "the ranks on node2 may use 2 of its 8 cores"),
    ("memory", three(MEMORY, {"available": 10**8}), "FAIL", "memory", "100.00 MB free of 64.00 GB on node2, for 1"),
    ("memory", three(MEMORY, {"cgroup": 2 * 10**8}), "FAIL", "memory", "64.00 GB, cgroup limit 200.00 MB on node2"),
    ("memory", three(MEMORY, {"slurm": 2 * 10**8}), "FAIL", "memory", "64.00 GB, Slurm's limit 200.00 MB on node2"),
    ("memory", three(MEMORY, {"process": 2 * 10**8}), "FAIL", "memory", "ulimit -v, -d) 200.00 MB on node2"),
    ("limits", three(LIMITS, {"files": 64}), "FAIL", "open files", "64 on rank 2 on node2; 3 ranks may need 2"),
    ("limits", three(LIMITS, {"processes": 10}), "FAIL", "processes", "10 on rank 2 on node2"),
    ("limits", three(LIMITS, {"shm": 10**6}), "FAIL", "shared memory", "1.00 MB free in /dev/shm on rank 2 on node2"),
    ("limits", three(LIMITS, {"locked": 65536}), "warn", "locked memory", "65.54 kB on rank 2 on node2"),
    ("limits", three(LIMITS, {"address": 10**9}), "warn", "address space", "1.00 GB on rank 2 on node2"),
    ("limits", three(LIMITS, {"data": 10**9}), "warn", "data segment", "1.00 GB on rank 2 on node2"),
    ("clocks", [[0.0, 0.001, 9.0]] * 3, "warn", "clocks", "+9.0 s against the others on rank 2 on node2"),
    ("hosts", links(2, _0_1=0.2), "warn", "slow link", "node1 to node2: 0.20 GB/s, back 1.00 GB/s"),
    ("folder", three(FOLDER, {"error": "Read-only file system"}), "FAIL", "folder", "rank 2 on node2 cannot write th"),
    ("folder", three(FOLDER, {"unseen": [0]}), "FAIL", "folder", "rank 2 on node2 does not see what rank 0 on node1 w"),
    ("folder", three(FOLDER, {"free": 10**6}), "warn", "folder", "1.00 MB free"),
    ("folder", three(FOLDER, {"renamed": False}), "FAIL", "folder", "rank 2 on node2 does not see a folder under the"),
    ("folder", three(FOLDER, {"unmade": "Not supported"}), "warn", "claims", "rank 2 on node2 cannot make a file"),
    ("folder", three({**FOLDER, "made": True}), "warn", "claims", "all made one file, exclusively"),
    ("disk of the run", [{**DISK, "write": BROKEN}] * 3, "FAIL", "disk of the run", "cannot write to it: No space lef"),
    ("disk of the run", [{**DISK, "why": "no data"}] * 3, "warn", "checkpoint", "its size is not known: no data"),
    ("disk of the run", three(DISK, {"inodes": 7}), "warn", "files", "/runs: room for 7 more files"),
    ("local scratch", [{**DISK, "read": BROKEN}] * 3, "FAIL", "local scratch", "rank 2 on node2 cannot read from it"),
    ("local scratch", [{"folder": None, "without": [2]}] * 3, "warn", "local scratch", "set for rank 2 on node2, but"),
    ("disk of data", [{**DATA, "read": BROKEN}] * 3, "FAIL", "disk of data", "/data.h5: rank 2 on node2 cannot read f"),
    ("alltoallv", three(CONTENTS, {"wrong": [(0, 64, "MPI")]}), "FAIL", "alltoallv", "64 B by MPI"),
    ("alltoallv", three(CONTENTS, {"wrong": [(0, 64, "shared memory")]}), "FAIL", "alltoallv", "by shared memory"),
    ("allocation", [{**JOB, "threads": 4}] * 3, "warn", "threads", "4 for 2 cpus a task on every rank"),
    ("allreduce", three(SUM, {"right": False}), "FAIL", "allreduce", "horovod sums wrongly on rank 2 on node2"),
    ("allreduce", three(SUM, {"facts": {"mpi_built": False}}), "FAIL", "horovod", "built without MPI on rank 2 on"),
    ("allreduce", [{**SUM, "reducer": "mpi", "missing": "none"}] * 3, "warn", "horovod", "none"),
    ("topology", ["of 3 ranks, 2 own rows"] * 3, "FAIL", "topology", "of 3 ranks, 2 own rows"),
    ("memory of a run", [{"error": "no data"}] * 3, "FAIL", "memory of a run", "cannot be predicted: no data"),
    ("disk of rows", three(ROWS, {"error": "no O_DIRECT"}), "FAIL", "disk of rows", "rank 2 on node2: no O_DIRECT"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answers", "level", "what", "words"), FAULTS)
def test_a_fault_is_named(name, answers, level, what, words):
    hosts = THREE[: len(answers)]
    found = only(judged(CHECK[name], answers, hosts), level)
    assert found.what == what and words in found.found and found.do
    assert found.lines[0].startswith(f"{level:<4}  {what}") and found.lines[-1].startswith("      do: ")


FINE = {
    "launch": [("OMPI_COMM_WORLD_SIZE", 3)] * 3,
    "versions": three(SOFTWARE),
    "mpi": three(SOFTWARE),
    "native kernels": three({"flags": "avx2"}),
    "cuda": three({"devices": 0, "driver": False, "torch": 0, "built": None}),
    "cores": [{**CORES, "cores": frozenset({r, r + 3})} for r in range(3)],
    "memory": three(MEMORY),
    "limits": three(LIMITS),
    "clocks": [[0.0, 0.001, -0.001]] * 3,
    "alltoallv": three(CONTENTS),
    "pairs": swaps(),
    "hosts": links(2),
    "folder": three(FOLDER),
    "disk of the run": three(DISK),
    "local scratch": three(DISK),
    "disk of data": three(DATA),
    "disk of rows": three(ROWS),
    "allocation": [JOB] * 3,
    "allreduce": three(SUM),
}


@pytest.mark.parametrize("name", FINE)
def test_all_is_well(name):
    findings = judged(CHECK[name], FINE[name], THREE)
    assert findings and all(f.level == "ok" and not f.do for f in findings), findings


def test_every_check_has_a_fault_and_a_fine_case():
    assert set(CHECK) - {fault[0] for fault in FAULTS} == {"cuda", "pairs", "data"}  # below, and on ranks
    assert set(CHECK) - set(FINE) == {"topology", "data", "memory of a run"}  # need a configuration: test_doctor


def test_a_slow_pair_is_named_and_the_others_are_not():
    found = only(judged(CHECK["pairs"], swaps(slow=9.0), ["node1"] * 3), "warn")
    assert found.what == "slow pair" and "rank 0 on node1, rank 2" not in found.found
    assert found.found.startswith(
        "rank 0 on node1 and rank 2 on node1: 4.19 MB in 90 us, other pairs on one host 10 us"
    )
    across = judged(
        CHECK["pairs"], swaps(slow=9.0), ["node1", "node1", "node2"]
    )  # 2 pairs across, no third to judge by
    assert "slow pair" in [f.what for f in across] or all(f.level == "ok" for f in across)
    data = judged(CHECK["pairs"], swaps(), ["node1"] * 3)[0].data["seconds"]
    assert data["1024"][0] == [0.0, 1e-5, 1e-5]


@pytest.mark.parametrize(
    ("answer", "level", "words"),
    [
        ({"devices": 0, "driver": False, "torch": 0, "built": None}, "ok", "none, CPU only"),
        (
            {"devices": 2, "driver": True, "torch": 2, "built": "13.0"},
            "ok",
            "2 devices for each rank, torch for CUDA 13",
        ),
        ({"devices": 2, "driver": True, "torch": 0, "built": None}, "warn", "torch is built without CUDA"),
        ({"devices": 2, "driver": True, "torch": 0, "built": "13.0"}, "warn", "torch is built for CUDA 13.0"),
        ({"devices": 0, "driver": True, "torch": 0, "built": "13.0"}, "warn", "a driver but no device"),
    ],
)
def test_cuda(answer, level, words):
    found = only(judged(CHECK["cuda"], [answer] * 2, ["a", "b"]), level)
    assert words in found.found


def test_ranks_see_other_numbers_of_devices():
    one, two = ({"devices": n, "driver": True, "torch": n, "built": "13.0"} for n in (1, 2))
    assert (
        "torch sees 1 devices on rank 2 on node2" in only(judged(CHECK["cuda"], [two, two, one], THREE), "warn").found
    )


def test_more_threads_than_cores():
    found = only(judged(CHECK["cores"], [{**CORES, "threads": 2}] * 2, ["node1"] * 2), "warn")
    assert "2 ranks with 4 threads in all share 2 cores of node1" in found.found


# ---- measurements of a host that is made up --------------------------------------------------------------------------


def test_memory_is_the_least_limit_above_this_process(tmp_path):
    site = site_of(["a"], root=fake_root(tmp_path, cgroup=5 * 10**9))
    found = machine.measure_memory(site)
    assert (found["cgroup"], found["total"] // 10**9, found["available"] // 10**9) == (5 * 10**9, 64, 60)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/slurm\n0::/x\n")
    (tmp_path / "sys/fs/cgroup/memory/slurm").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes").write_text("7000000000")
    assert machine.measure_memory(site)["cgroup"] == 7 * 10**9
    (tmp_path / "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes").write_text(str(2**63 - 4096))  # v1's "none"
    assert machine.measure_memory(site)["cgroup"] is None
    (tmp_path / "sys/fs/cgroup/x").mkdir()
    (tmp_path / "sys/fs/cgroup/x/memory.max").write_text("9000000000")
    (tmp_path / "sys/fs/cgroup/x/memory.high").write_text("8000000000")
    assert machine.measure_memory(site)["cgroup"] == 8 * 10**9


@pytest.mark.parametrize(
    ("environment", "mib"),
    [
        ({}, None),
        ({"SLURM_MEM_PER_NODE": "5000"}, 5000),
        ({"SLURM_MEM_PER_NODE": "0", "SLURM_CPUS_ON_NODE": "4"}, None),  # all of the node's
        ({"SLURM_MEM_PER_CPU": "1000", "SLURM_CPUS_ON_NODE": "4"}, 4000),
        ({"SLURM_MEM_PER_GPU": "1000", "SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_ON_NODE": "4"}, 2000),
        ({"SLURM_MEM_PER_CPU": "1000"}, None),
    ],
)
def test_memory_that_slurm_gives(environment, mib):
    assert machine.slurm_limit_bytes(environment) == (None if mib is None else mib * 2**20)
    share = {**MEMORY, "slurm": machine.slurm_limit_bytes(environment)}
    assert machine.limit_bytes(share) == (64 * 10**9 if mib is None else mib * 2**20)


def test_what_a_process_may_have(tmp_path, monkeypatch):
    limits = {resource.RLIMIT_AS: 3 * 10**9, resource.RLIMIT_DATA: 2 * 10**9}
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (limits.get(which, -1), -1))
    found = machine.measure_memory(site_of(["a"], root=fake_root(tmp_path)))
    assert found["process"] == 2 * 10**9
    fine = only(judged(CHECK["memory"], [found], ["a"]), "ok")
    assert "limit (ulimit -v, -d) 2.00 GB" in fine.found and "free: 2.00 GB for each rank on a" in fine.found


def test_limits_are_this_process_s(tmp_path, monkeypatch):
    site = site_of(["a"], root=fake_root(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        found = machine.measure_limits(site)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found["files"] == 200 and found["shm"] > 0 and found["fabric"] is False
    assert only(judged(CHECK["limits"], [found], ["a"]), "FAIL").what == "open files"
    monkeypatch.setattr(
        os, "statvfs", lambda _: SimpleNamespace(f_bavail=100, f_frsize=4096)
    )  # docker's default is 64 MB
    small = machine.measure_limits(site)
    assert only(judged(CHECK["limits"], [small] * 4, ["a"] * 4), "FAIL").what == "shared memory"


def test_cores_are_counted_as_the_run_will_use_them():
    site = site_of(["a"], {"OMP_NUM_THREADS": "3", "SLURM_CPUS_ON_NODE": "4"})
    found = machine.measure_cores(site)
    assert (found["threads"], found["host"], found["cores"]) == (3, 4, frozenset(os.sched_getaffinity(0)))
    assert machine.measure_cores(site_of(["a"]))["threads"] == 0


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2", "OMPI_COMM_WORLD_SIZE": "4"}, ("OMPI_COMM_WORLD_SIZE", 4)),
        ({"SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "2"}, ("SLURM_STEP_NUM_TASKS", 2)),
        ({"PMI_SIZE": "3", "SLURM_NTASKS": "8"}, ("PMI_SIZE", 3)),
        ({"SLURM_NTASKS": "many"}, None),
    ],
)
def test_tasks_of_the_launcher(environment, said):
    assert software.tasks_of(environment) == said


def test_a_kernel_that_crashes_is_a_finding(monkeypatch, tmp_path):
    done = subprocess.CompletedProcess([], -4, "", "")
    monkeypatch.setattr(software.subprocess, "run", lambda *_, **__: done)
    answer = software.measure_native(site_of(["a"], root=fake_root(tmp_path)))
    assert "exit -4" in only(judged(CHECK["native kernels"], [answer], ["a"]), "FAIL").found
    monkeypatch.setattr(software.native, "available", lambda: False)
    answer = software.measure_native(site_of(["a"]))
    assert "missing on rank 0 on a" in only(judged(CHECK["native kernels"], [answer], ["a"]), "FAIL").found


# ---- findings --------------------------------------------------------------------------------------------------------


def test_findings_say_what_to_do_or_that_all_is_well():
    assert ok("x", "fine").lines == ["ok    x               fine"]
    assert warn("x", "so so", "try").lines == ["warn  x               so so", "      do: try"]
    assert fail("x", "bad", "mend").level == "FAIL"
    for level, do in (("ok", "do this"), ("FAIL", ""), ("bad", "do")):
        with pytest.raises(AssertionError):
            Finding(level=level, what="x", found="y", do=do)


def test_names_of_ranks():
    site = site_of(["a", "a", "b"])
    assert site.who([2]) == "rank 2 on b" and site.who([0, 1, 2]) == "every rank"
    many = site_of(["a"] * 9)
    assert many.who(range(6)) == "rank 0 on a, rank 1 on a, rank 2 on a, rank 3 on a and 2 more"
    assert odd_ones(["x", "y", "x"]) == ("x", [1])
