"""A node of the emulated Slurm that is lost as by a power cut or cut off, and comes back; Slurm's notice; its own disk.

Knows how ``tools/slurm.sh`` makes nodes: a network and a host name each, held by a process that sleeps.
"""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from tests.slurm.cluster import slurm, until


def _holder(node: str) -> int:
    return int((Path(os.environ["SLURM_CONF"]).parent / f"run/host.{node}.pid").read_text())


def _link(node: str, state: str) -> None:
    subprocess.run(
        ["nsenter", "-t", str(_holder(node)), "-n", "ip", "link", "set", "eth0", state], check=True, timeout=30
    )


def _processes(node: str) -> list[int]:
    """All that run on a node but for the one that holds it: slurmd, step daemons, ranks."""
    holder = _holder(node)
    network, found = Path(f"/proc/{holder}/ns/net").readlink(), []
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        with contextlib.suppress(OSError):
            if pid != holder and Path(f"/proc/{pid}/ns/net").readlink() == network:
                found.append(pid)
    return found


def _state(node: str) -> str:
    return slurm("sinfo", "-h", "-p", "batch", "-n", node, "-o", "%t").strip()


def _resume(node: str) -> None:
    line = ["scontrol", "update", f"NodeName={node}", "State=RESUME"]
    subprocess.run(line, check=False, timeout=60)  # refused where it came back meanwhile


def _returned(node: str) -> None:
    """Until Slurm has it back; it was once seen to leave a node in another state for minutes: then it is told."""
    try:
        until(f"return of {node}", lambda: _state(node) == "idle", 45)
    except AssertionError:
        print(f"{node} is {_state(node)}: {slurm('scontrol', 'show', 'node', node)}")
        _resume(node)
        until(f"return of {node} by hand", lambda: _state(node) == "idle", 45)


@contextmanager
def lost(node: str) -> Iterator[None]:
    """The node is gone for as long as the block lasts: its link first, so that nobody hears of the end of the rest."""
    _link(node, "down")
    for pid in _processes(node):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        _link(node, "up")
        subprocess.run(
            ["nsenter", "-t", str(_holder(node)), "-n", "-u", "-m", "--", "slurmd", "-N", node], check=True, timeout=60
        )
        _returned(node)


@contextmanager
def cut_off(node: str) -> Iterator[None]:
    """Nobody hears of the node for as long as the block lasts, nor it of anybody; what runs on it goes on."""
    _link(node, "down")
    try:
        yield
    finally:
        _link(node, "up")
        _resume(node)  # its slurmd does not come by itself, and slurmctld may take a minute to ask
        _returned(node)


def on_disk(node: str, path: Path) -> Path:
    """A file of a node's own disk, as it is seen from here."""
    return Path(f"/proc/{_holder(node)}/root{path}")


@contextmanager
def full(node: str, folder: Path) -> Iterator[None]:
    """The node's own disk takes no more for as long as the block lasts."""
    filling = on_disk(node, folder) / "filling"
    try:
        with filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"0" * 4096)
        yield
    finally:
        filling.unlink()


def noticed_s(node: str) -> float | None:
    """When Slurm took the node for down, in seconds since the epoch, rounded down; None where it has not."""
    said = slurm("scontrol", "show", "node", node)
    found = re.search(r"Reason=Not responding \[\w+@(\S+)\]", said)
    return datetime.fromisoformat(found[1]).timestamp() if found and "State=DOWN" in said else None
