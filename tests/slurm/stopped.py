"""Processes that stop themselves directly before a rename, by a preloaded library (``stopped.c``), built here."""

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().with_name("stopped.c")


def before_rename_of(pattern: str, folder: Path) -> dict[str, str]:
    """What the environment of a process has that stops before its first rename of a path that fits a shell pattern.

    The library is built into ``folder`` where it is not there.
    """
    library = folder / "stopped.so"
    if not library.exists():
        line = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
        subprocess.run(line, check=True, timeout=60)
    return {"LD_PRELOAD": str(library), "HPCREC_STOPS_BEFORE_RENAME_OF": pattern}


def is_stopped(process: int) -> bool:
    """Whether a signal has stopped a process of this machine, and none has continued it."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] == "T"
