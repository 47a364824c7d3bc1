"""fio's random reads past the page cache: what a disk gives, in the same run. Knows fio's command line alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

NO_FIO = "fio is not installed"
PAGE_BYTES = 4096


def why_none() -> str | None:
    """Why there are no reads by fio, if there are none."""
    return None if shutil.which("fio") else f"{NO_FIO}: apt-get install fio"


def fio(folder: Path, n_bytes: int, depth: int, seconds: float | None) -> float:
    """Reads a second of pages at random; ``seconds`` None: only makes the file, ``folder``/fio."""
    size = n_bytes >> 20 << 20
    line = ["fio", "--name=reads", f"--filename={folder}/fio", f"--size={size}", "--direct=1"]
    line += ["--output-format=json", "--ioengine=io_uring", f"--iodepth={depth}"]
    if seconds is None:
        line += ["--rw=write", "--bs=1m"]
    else:
        line += ["--rw=randread", f"--bs={PAGE_BYTES}", "--fixedbufs=1", "--registerfiles=1"]
        line += ["--norandommap=1", "--randrepeat=0", "--time_based=1", f"--runtime={seconds:g}"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    found = json.loads(done.stdout[done.stdout.index("{") :])
    return float(found["jobs"][0]["read"]["iops"])
