"""Starts ``rank.py`` with a list of jobs, on this machine or over emulated hosts, and hands its rows on as they come.

Knows command lines alone.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

RANK = str(Path(__file__).resolve().parent / "rank.py")
RANKS = HOSTS = 4
LOOK_EVERY_S = 0.2


def local(jobs: Sequence[Mapping[str, Any]], ranks: int = RANKS, *, bound: bool = True) -> Iterator[dict[str, Any]]:
    """Rows of the jobs, in order, on ranks of this machine with one thread each.

    Not ``bound`` to cores where several launches are to run at once: each would take the first ones.
    """
    free = [] if bound else ["--launcher-option", "--oversubscribe --bind-to none"]
    return _rows([sys.executable, "-m", "hpcrec", "run", "-n", str(ranks), "--threads", "1", *free, "--", RANK], jobs)


def why_no_hosts(cluster: Path) -> str | None:
    """Why there can be no emulated hosts, if there can be none."""
    if not (cluster / "hosts" / "up.sh").exists():
        return f"there is no {cluster}/hosts/up.sh; --cluster names the folder that has it"
    missing = [tool for tool in ("ip", "tc", "nsenter") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        return f"emulated hosts need root and {', '.join(missing) or 'its rights'}"
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout.split()
    if "h1" in names:
        return f"there are emulated hosts already; {cluster}/hosts/down.sh removes them"
    return None


def on_hosts(
    jobs: Sequence[Mapping[str, Any]],
    cluster: Path,
    rate: str = "1gbit",
    ranks_per_host: int = 1,
    *,
    hosts: int = HOSTS,
    burst: str | None = None,
    library: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """The same with so many ranks on each of some emulated hosts, which are there for as long as it takes.

    ``rate`` is of their links, both ways, and ``burst`` what passes unshaped, as ``tc`` writes it (None: as the scripts
    have it). ``library``: variables of the MPI library's.
    """
    scripts = cluster.resolve() / "hosts"
    # Ranks that wait give way to others of their session alone (Linux's autogroup), and a daemon would begin one.
    environment = {**os.environ, "MPIOPTS": f"{os.environ.get('MPIOPTS', '')} --leave-session-attached"}
    try:
        shaping = environment if burst is None else {**environment, "BURST": burst}
        subprocess.run([str(scripts / "up.sh"), str(hosts), rate], check=True, stdout=subprocess.DEVNULL, env=shaping)
        ranks = [str(hosts * ranks_per_host), str(ranks_per_host)]
        line = [str(scripts / "run.sh"), *ranks, sys.executable, "-u", RANK]
        yield from _rows(line, jobs, {**environment, **library})
    finally:
        subprocess.run([str(scripts / "down.sh")], check=False)


def _rows(
    line: Sequence[str], jobs: Sequence[Mapping[str, Any]], environment: Mapping[str, str] = os.environ
) -> Iterator[dict[str, Any]]:
    """Runs ``line JOBS OUT`` and yields what it appends to OUT; ends with its output where it fails."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted, out, said = folder / "jobs.json", folder / "rows", folder / "said"
        wanted.write_text(json.dumps(jobs))
        out.touch()
        path = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"  # where mpirun is
        with said.open("w") as output, out.open() as rows:
            process = subprocess.Popen(
                [*line, str(wanted), str(out)], stdout=output, stderr=output, env={**environment, "PATH": path}
            )
            try:
                yield from _lines(rows, process)
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait()
        if process.returncode:
            sys.exit(f"{' '.join(line)} ended with {process.returncode}\n{said.read_text()[-3000:]}")


def _lines(rows: Any, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Objects of whole lines, until the process has ended and none is left."""
    begun = ""
    while True:
        ended = process.poll() is not None
        while line := rows.readline():
            begun += line
            if begun.endswith("\n"):
                yield json.loads(begun)
                begun = ""
        if ended:
            return
        time.sleep(LOOK_EVERY_S)
