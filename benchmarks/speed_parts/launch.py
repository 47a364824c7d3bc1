"""Starts one contender of ``benchmarks/speed.py`` and brings back its row. Knows command lines alone."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTS = Path(__file__).resolve().parent
LIMIT_S = 900
HPCREC = {
    "hpcrec-fused": ("topology.mode=fused",),
    "hpcrec-fused-mpi": ("topology.mode=fused", "dense.reducer=mpi"),  # without Horovod
    "hpcrec-split": ("topology.mode=split",),
}
PEERS = {"tbe": "peer_tbe.py", "torchrec": "peer_torchrec.py", "ddp": "peer_ddp.py"}
DLRMS = ("w1", "w1-16k", "w2")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where things are, and how long contenders run.

    Attributes
    ----------
    peers : Path
        Python that the peers' packages are in.
    data : Path
    warmup, steps : int
    settings : sequence of "section.key=value"
        For hpcrec's configurations.
    """

    peers: Path
    data: Path
    warmup: int
    steps: int
    settings: Sequence[str] = ()


def threads_of(ranks: int) -> int:
    """Threads of each rank: the same for all contenders, for the 2 cores of the machine that the goals are for."""
    return 2 if ranks == 1 else 1


def why_not(place: Place, contender: str, name: str, ranks: int) -> str | None:
    """Why a contender cannot run, if it cannot."""
    if contender in HPCREC:
        return "one rank cannot be split" if contender == "hpcrec-split" and ranks == 1 else None
    if name not in DLRMS and contender not in ("tbe", "ddp"):
        return "trains DLRMs only"
    if not place.peers.exists():
        return f"no {place.peers}: tools/peers.sh makes it, --peers names another"
    return None


def launch(place: Place, contender: str, name: str, ranks: int) -> dict[str, Any]:
    """What one launch measured; ``{"result": "skipped: ..." or "failed: ..."}`` where it measured nothing."""
    reason = why_not(place, contender, name, ranks)
    if reason is not None:
        return {"result": f"skipped: {reason}"}
    line = hpcrec_line if contender in HPCREC else peer_line
    return run(lambda out: line(place, contender, name, ranks, out), environment(ranks))


def python(script: Sequence[str], more: Callable[[Path], list[str]]) -> dict[str, Any]:
    """What a script of hpcrec's side measured in one process, on all cores."""
    return run(lambda out: [sys.executable, *script, *more(out)], environment(1))


def hpcrec_line(place: Place, contender: str, name: str, ranks: int, out: Path) -> list[str]:
    """The command of hpcrec's loop."""
    settings = [f"data.train={place.data / name}.h5", *HPCREC[contender], *place.settings]
    words = [name, str(out), str(place.warmup), str(place.steps), str(PARTS / f"{name}.toml"), *settings]
    return [*hpcrec_run(ranks), str(PARTS / "hpcrec_rank.py"), *words]


def hpcrec_run(ranks: int) -> list[str]:
    """``hpcrec run`` with the threads that a rank has."""
    return [sys.executable, "-m", "hpcrec", "run", "-n", str(ranks), "--threads", str(threads_of(ranks)), "--"]


def peer_line(place: Place, contender: str, name: str, ranks: int, out: Path) -> list[str]:
    """The command of a peer's loop."""
    torchrun = [str(place.peers), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words = [name, str(place.data), str(out), str(place.warmup), str(place.steps)]
    return [*torchrun, str(PARTS / PEERS[contender]), *words]


def environment(ranks: int) -> dict[str, str]:
    """What a launch needs in the environment."""
    quiet = {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return {"OMP_NUM_THREADS": str(threads_of(ranks)), "GLOO_SOCKET_IFNAME": "lo", **quiet}


def run(line: Callable[[Path], list[str]], more: dict[str, str]) -> dict[str, Any]:
    """Runs ``line(out)`` and reads what it wrote to ``out``."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        argv = line(out)
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **more}
        ) as process:
            try:
                said, _ = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                said = f"{ended(process)}\nno end after {LIMIT_S} s"
        if process.returncode or not out.exists():
            print(" ".join(argv), said[-3000:], sep="\n", file=sys.stderr, flush=True)
            return {"result": f"failed: {(said.strip().splitlines() or ['nothing said'])[-1][:200]}"}
        return {**json.loads(out.read_text()), "load_before": load}


def ended(process: subprocess.Popen[str]) -> str:
    """Ends a launcher and its ranks; what they had said. ``hpcrec run`` kills its ranks on the second INT."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT, signal.SIGKILL):
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=30)[0]
    return ""
