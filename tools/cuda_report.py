"""Compiles native/cuda for GPUs and prints what each kernel takes: registers, stack, spills, shared memory.

    python tools/cuda_report.py [sm_80 sm_90 ...]     sm_80, sm_90 and sm_100 where none is named

Fails where nvcc warns, or a kernel of ours spills registers or keeps an array in local memory. Needs nvcc, and no GPU.
"""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GPUS = ("sm_80", "sm_90", "sm_100")
FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra", "-Xptxas=-v", "-cubin"]
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")


def main() -> int:
    """Prints the table; returns 1 where something is not as it should be."""
    gpus = sys.argv[1:] or GPUS
    sources = sorted((ROOT / "native/cuda").glob("*.cu"))
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(source, gpu, Path(folder) / f"{source.stem}-{gpu}") for source in sources for gpu in gpus]
        results = list(pool.map(lambda job: compiled(*job), jobs))
    rows, failed = [], False
    for (source, gpu, _), done in zip(jobs, results, strict=True):
        if done.returncode:
            print(f"{source.name} for {gpu}: {done.stdout}{done.stderr}", file=sys.stderr)
            failed = True
        here = kernels_of(done.stderr, source.name)
        if len(here) != done.stderr.count("Compiling entry function"):
            print(f"{source.name} for {gpu}: ptxas's log is not as expected:\n{done.stderr}", file=sys.stderr)
            failed = True
        rows += here
    names = demangled([row[1] for row in rows])
    print(f"{'registers':>9} {'stack':>6} {'spilt':>6} {'shared':>7}  gpu     file        kernel")
    for (source, _, gpu, registers, stack, spilt, shared), name in sorted(zip(rows, names, strict=True)):
        print(f"{registers:9d} {stack:6d} {spilt:6d} {shared:7d}  {gpu:7s} {source:11s} {name}")
        failed |= (stack > 0 or spilt > 0) and not name.startswith(("cub::", "_ZN3cub"))  # those are not ours
    failed |= not rows
    print(f"{len(rows)} kernels: {'FAILED' if failed else 'no warnings; no stacks and no spills in ours'}")
    return int(failed)


def compiled(source: Path, gpu: str, out: Path) -> subprocess.CompletedProcess[str]:
    """Nvcc's run over one file for one GPU."""
    command = ["nvcc", *FLAGS, f"-arch={gpu}", f"-I{ROOT}/native/include", str(source), "-o", str(out)]
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}  # a sanitizer's runtime
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment)


def kernels_of(log: str, source: str) -> list[tuple[str, str, str, int, int, int, int]]:
    """File, mangled name, GPU, registers, and bytes of stack, spills and shared memory of each kernel in a log."""
    rows = []
    for text in log.split("Compiling entry function")[1:]:
        entry = ENTRY.search("Compiling entry function" + text)
        stack, used = STACK.search(text), USED.search(text)
        if entry and stack and used:
            # of the kernel, and of functions that it calls
            frames = [tuple(map(int, found.groups())) for found in STACK.finditer(text)]
            frame, spilt = max(f[0] for f in frames), sum(f[1] + f[2] for f in frames)
            rows.append((source, entry[1], entry[2], int(used[1]), frame, spilt, int(used[2] or 0)))
    return rows


def demangled(names: list[str]) -> list[str]:
    """Names as they are written, where c++filt is there."""
    if not shutil.which("c++filt") or not names:
        return names
    plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = [re.sub(r"hpcrec::(cuda::)?(\(anonymous namespace\)::)?", "", name) for name in plain.splitlines()]
    return [re.sub(r"^void ", "", name).split("(")[0] for name in short]


if __name__ == "__main__":
    sys.exit(main())
