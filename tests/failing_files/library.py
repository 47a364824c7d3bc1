"""The library that stands before the C library's calls on files: built once, and its block of memory from Python.

A process that is started with ``environment()`` has it; ``Control`` then says which call is to fail, or where all are
noted. ``preload.c`` is the other half. Knows nothing of what files hold; ``kind_of`` knows them by their names.
"""

import ctypes
import errno
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "preload.c"
VARIABLE = "HPCREC_FAILING_FILES"  # the built library, for the process that has it

CALLS = ("open", "read", "write", "fsync", "close", "rename", "unlink", "mkdir")
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "ESTALE", "EMFILE", "ETIMEDOUT")
# Cells of CALLS x ERRORS that stay empty, and why.
TAKES_NO_SPACE = "it takes no space"
MAKES_NO_DESCRIPTOR = "it makes no descriptor"
EMPTY: dict[tuple[str, str], str] = {
    **{(call, error): TAKES_NO_SPACE for call in ("read", "unlink") for error in ("ENOSPC", "EDQUOT")},
    **{(call, "EMFILE"): MAKES_NO_DESCRIPTOR for call in CALLS if call != "open"},
}
PATH_BYTES, HITS = 512, 64  # as in preload.c

_KINDS = (  # the first that is found in a path below the folder
    (r"/part-\d+\.h5$", "rows"),
    (r"/(dense|snapshot-|residuals-)[^/]*\.h5$", "dense"),
    (r"/state\.json$", "state"),
    (r"/\.?manifest\.json[^/]*$", "manifest"),
    (r"/\.?best\.json[^/]*$", "best"),
    (r"/\.?claim-\d+\.json[^/]*$|/\.claim\.[^/]*$", "claim"),
    (r"/attempts\.jsonl$", "attempts"),
    (r"/\.?(metrics\.jsonl|summary\.json|config\.toml|report\.html)[^/]*$|/tensorboard/.", "told"),
    (r"/prepare\.work/[^/]*(json|part|lock)$|/\.?prepare\.json[^/]*$", "journal"),
    (r"/(prepare\.work|pieces)/.", "pieces"),
    (r"\.csv$|/map\.toml$", "source"),
    (r"/\.?(out|right)-(safetensors|hdf5)[^/]*/.*\.", "export"),
    (r"\.(h5|index\.json)(\.\d+\.part)?$|/rejects\.tsv$", "data"),
)
KINDS = ("folder", *dict.fromkeys(kind for _, kind in _KINDS))
# Cells of CALLS x KINDS that stay empty, and why.
HAS_NO_BYTES = "a folder has no bytes"
IS_READ_ALONE = "it is read alone, so its close has nothing to say either"
MOVES_WITH_ITS_FOLDER = "it is renamed with its folder"
IS_APPENDED_TO = "it is appended to, and stays as long as its run"
EMPTY_KINDS: dict[tuple[str, str], str] = {
    **{("mkdir", kind): "it is a file" for kind in KINDS if kind != "folder"},
    **{(call, "folder"): HAS_NO_BYTES for call in ("read", "write", "close")},
    **{(call, "source"): IS_READ_ALONE for call in ("write", "fsync", "close", "rename", "unlink")},
    **{("rename", kind): MOVES_WITH_ITS_FOLDER for kind in ("rows", "dense", "state")},
    **{(call, "attempts"): IS_APPENDED_TO for call in ("rename", "unlink")},
    ("read", "told"): "an export reads it: test_errors.MET",
    **{(call, "export"): "exports have cells of their own: test_errors.MET" for call in CALLS if call != "mkdir"},
}
_FOLDERS = re.compile(r"/\.step-\d+\.(\w+\.)?(tmp|old)$|/\.(out|right)-[^/]*\.part$|/prepare\.work$")


class _Hit(ctypes.Structure):
    _fields_ = (("call", ctypes.c_int32), ("path", ctypes.c_char * PATH_BYTES))


class _Block(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("call", "n", "error", "on", "counted", "hits", "log", "skip_sync")),
        ("calls", ctypes.c_int64 * len(CALLS)),
        ("under", ctypes.c_char * PATH_BYTES),
        ("hit", _Hit * HITS),
    )


@dataclass(frozen=True)
class Hit:
    """A call that failed because it was told to."""

    call: str
    path: str


class Control:
    """The block of this process, which children that it forks have too."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[VARIABLE])
        self._library.failing_control.restype = ctypes.POINTER(_Block)
        self._block: _Block = self._library.failing_control().contents

    def watch(self, folder: Path, *, skip_sync: bool = True) -> None:
        """From now on calls under ``folder`` are counted; ``skip_sync``: no sync reaches the disk."""
        self._block.under, self._block.skip_sync = str(folder).encode(), int(skip_sync)
        for i in range(len(CALLS)):
            self._block.calls[i] = 0

    def arm(self, call: str, n: int, error: str, *, on: bool) -> None:
        """The n-th ``call`` from now, counted from 1, fails by ``error``; ``on``: each one after it too."""
        block = self._block
        block.counted = block.hits = 0
        block.n, block.error, block.on = n, getattr(errno, error), int(on)
        block.call = CALLS.index(call)

    def disarm(self) -> None:
        """Nothing fails any more."""
        self._block.call = -1

    def calls(self) -> dict[str, int]:
        """Calls since ``watch``."""
        return {call: self._block.calls[i] for i, call in enumerate(CALLS)}

    def hits(self) -> int:
        """Calls that have failed since ``arm``."""
        return int(self._block.hits)

    def hit(self, i: int) -> Hit:
        """One of the first ``HITS`` of them."""
        found = self._block.hit[i]
        return Hit(CALLS[found.call], found.path.decode())

    def note_to(self, descriptor: int | None) -> None:
        """Notes each change to a file under the folder, and its bytes, to a descriptor; None: no more."""
        self._block.log = -1 if descriptor is None else descriptor

    def mark(self, text: str) -> None:
        """Notes what a test says, among them."""
        self._library.failing_mark(text.encode())

    def host(self, number: int) -> None:
        """What this thread does from now on is noted for this host."""
        self._library.failing_host(number)


def built(folder: Path | None = None) -> Path:
    """The library, compiled where it is not there or older than its source."""
    folder = folder or Path(tempfile.gettempdir()) / f"hpcrec-failing-files-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / "preload.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        own = folder / f"preload.{os.getpid()}.so"
        compiler = os.environ.get("CC", "cc")
        options = ["-O2", "-shared", "-fPIC", "-o", str(own), str(SOURCE), "-ldl", "-lpthread"]
        subprocess.run([compiler, *options], check=True)
        own.replace(library)
    return library


def environment() -> dict[str, str]:
    """Of a process that has the library."""
    library = str(built())
    return {**os.environ, "LD_PRELOAD": library, VARIABLE: library}


def kind_of(path: str, folder: str) -> str:
    """Which kind of file a path below ``folder`` is, one of ``KINDS``; ``other`` where it is none of them."""
    below = path.removeprefix(folder)
    for pattern, kind in _KINDS:
        if re.search(pattern, below):
            return kind
    if re.search(r"/(segment|generation)-\d+(\.part)?$|/lock$", below):  # of rows on a disk
        return "other"
    return "folder" if "." not in Path(below).name or _FOLDERS.search(below) else "other"
