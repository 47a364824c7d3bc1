"""Converts click logs in Criteo's layout: MB of text a second of a core, HDF5 included; polars beside it.

    python benchmarks/prepare.py [--quick] [--json FILE] [--data DIR]

The text is generated: 13 integers and 26 categories that follow power laws, some missing, 240 bytes a line. Each row is
a process of its own; its time is from opening the text to the files' names, without the start of Python. A second of a
core is one of processor time, user's and system's, of all threads: what a core that does nothing else takes where the
disk keeps up. Sizes: 1 GB, --quick 120 MB. hpcrec runs on one rank with one thread (and then on two ranks); polars
(``pip install polars``) with one thread reads the same file and writes it, whole in memory. With --data, the
folder of public samples, Criteo's own lines are shuffled and repeated as another row.
"""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _report import claim, finish, options, repeated

MB = 1e6
LINES = 100_000  # that differ: more than an HDF5 chunk, so that nothing repeats within one
HPCREC = """
import sys, time
from hpcrec.preparation.convert import Split, prepare_criteo
wall, cpu = time.perf_counter(), time.process_time()
found = prepare_criteo([sys.argv[1]], sys.argv[2], split=Split("hash", (0.9, 0.0, 0.1)), piece_bytes=64 << 20)
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
"""
TWO_RANKS = """
import os, sys, time
from hpcrec.comm.everyone import everyone
from hpcrec.preparation.convert import Split, prepare_criteo
ranks = everyone(os.environ)
ranks.barrier()
wall, cpu = time.perf_counter(), time.process_time()
prepare_criteo([sys.argv[1]], sys.argv[2], split=Split("hash", (0.9, 0.0, 0.1)), piece_bytes=64 << 20, ranks=ranks)
ranks.barrier()
wall, cpu = time.perf_counter() - wall, sum(ranks.allgather(time.process_time() - cpu))
if ranks.rank:
    sys.exit()
"""
POLARS = """
import sys, time
import polars
wall, cpu = time.perf_counter(), time.process_time()
table = polars.read_csv(sys.argv[1], separator="\\t", has_header=False)
table.write_{form}(sys.argv[2])
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
"""
REPORT = """
import json, re
# not getrusage: its peak begins with that of the process that started this one
peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
print(json.dumps([wall, cpu, peak / 1024]))
"""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with criteo_kaggle_sample.tsv.gz")
    arguments = parser.parse_args()
    n_bytes, repeats = (120 * MB, 1) if arguments.quick else (1000 * MB, 3)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = repeat(folder / "train.txt", generated(), n_bytes)
        one, two = list[dict[str, Any]](), list[dict[str, Any]]()
        for _ in range(repeats):  # in turn, so that a pair has the same neighbours
            one.append(measure(folder, "hpcrec", "generated", HPCREC, text))
            two.append(measure(folder, "hpcrec, 2 ranks", "generated", TWO_RANKS, text, ranks=2))
        rows += one + two
        if importlib.util.find_spec("polars"):
            for form in ("parquet", "ipc"):
                script = POLARS.replace("{form}", form)
                rows += [measure(folder, f"polars, {form}", "generated", script, text) for _ in range(repeats)]
        else:
            rows.append({"what": "polars", "text": "generated", "skipped": "pip install polars"})
        if arguments.data is None:
            rows.append({"what": "hpcrec", "text": "Criteo's", "skipped": "give --data DIR"})
        else:
            sample = gzip.decompress((arguments.data / "criteo_kaggle_sample.tsv.gz").read_bytes()).splitlines(True)
            real = repeat(folder / "real.txt", sample, n_bytes)
            rows += [measure(folder, "hpcrec", "Criteo's", HPCREC, real) for _ in range(repeats)]
    for row in rows:
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else str(value) for key, value in row.items()))
    per_core, speed = ([row[key] for row in one] for key in ("mb_per_cpu_s", "mb_per_s"))
    more = [b["mb_per_s"] / a["mb_per_s"] for a, b in zip(one, two, strict=True)]
    peers = [row["mb_per_cpu_s"] for row in rows if row["what"] == "polars, parquet"]
    finish(
        "prepare",
        rows,
        [
            repeated("prepare.mb_per_s_core", per_core, "MB of text a CPU second, one rank", ">= 60"),
            repeated("prepare.mb_per_s", speed, "MB/s of text, one rank"),
            repeated("prepare.two_ranks", more, "of the speed of one rank", ">= 1.6"),
            claim("prepare.peak_rss_mib", max(row["peak_mib"] for row in one + two), "MiB a rank", "<= 1024"),
            repeated("prepare.polars_mb_per_s_core", peers, "MB a CPU second, to Parquet"),
        ],
        arguments.json,
    )


def generated() -> list[bytes]:
    """Lines in Criteo's layout."""
    rng = np.random.default_rng(0)
    integers = np.minimum(rng.zipf(1.5, (LINES, 13)) - 1, 100_000).astype(str)
    integers[rng.random((LINES, 13)) < 0.2] = ""
    sizes = np.geomspace(4, 1_000_000, 26).astype(np.int64)
    values = (rng.random((LINES, 26)) ** 3 * sizes).astype(np.uint64)  # few of them often
    words = (values * np.uint64(2654435761) + np.arange(26, dtype=np.uint64) * np.uint64(40503)) % np.uint64(1 << 32)
    categories = np.array([f"{word:08x}" for word in words.ravel().tolist()]).reshape(LINES, 26)
    categories[rng.random((LINES, 26)) < 0.1] = ""
    labels = (rng.random((LINES, 1)) < 0.25).astype(int).astype(str)
    return [("\t".join(row) + "\n").encode() for row in np.concatenate([labels, integers, categories], axis=1)]


def repeat(path: Path, lines: list[bytes], n_bytes: float) -> Path:
    """A text of that size: the lines in another order each time."""
    rng = np.random.default_rng(1)
    with path.open("wb") as file:
        while file.tell() < n_bytes:
            file.write(b"".join(lines[i] for i in rng.permutation(len(lines))))
    return path


def measure(folder: Path, what: str, of: str, script: str, text: Path, ranks: int = 1) -> dict[str, Any]:
    """Run a script in a process of its own, or one on each rank."""
    out = folder / "out"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    program = [sys.executable, "-c", script + REPORT, str(text), str(out)]
    if ranks > 1:
        file = folder / "script.py"
        file.write_text(script + REPORT)
        program = [sys.executable, "-m", "hpcrec", "run", "-n", str(ranks), "--", str(file), str(text), str(out)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    wall, cpu, peak = json.loads(done.stdout.splitlines()[-1])
    size = text.stat().st_size / MB
    return {
        "what": what,
        "text": of,
        "mb": size,
        "s": wall,
        "cpu_s": cpu,
        "mb_per_s": size / wall,
        "mb_per_cpu_s": size / cpu,
        "peak_mib": peak,
    }


if __name__ == "__main__":
    main()
