"""Runs ``hpcrec`` command lines in processes of their own, without waiting for torch to be imported each time.

A server imports what takes long (but not MPI) and forks for each command line; what a child prints and how it ends is
what a user would see. A child past its limit is killed and counts as a hang.
"""

import atexit
import gc
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
HUNG = "hung"


@dataclass(frozen=True)
class Done:
    """How a command line ended: exit status, negative for a signal, ``HUNG`` past its limit."""

    code: int | str
    out: str
    err: str


class Forked:
    """``hpcrec`` as a callable; a context manager.

    Parameters
    ----------
    whole : bool
        Whether the server imports all that any command does. MPI is then loaded before a command line is forked, and
        started for those alone that a process of its own has to be a rank for.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, *(["whole"] if self._whole else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=30)
        self._server.stdout.close()

    def __call__(
        self,
        *arguments: object,
        file_bytes: int | None = None,
        limit_s: float = 60,
        folder: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        absent: Sequence[str] = (),
        python: Path | None = None,
        script: str | None = None,
    ) -> Done:
        """Runs ``hpcrec arguments``.

        Parameters
        ----------
        file_bytes : int, optional
            No file can grow past it, as on a full disk.
        limit_s : float
        folder : Path
            That it runs in.
        environment : mapping, optional
            Variables beside those of this process.
        absent : sequence of str
            Modules that cannot be imported, as if they were not installed.
        python : Path, optional
            What it takes for its Python, beside which it looks for programs.
        script : str, optional
            Lines of Python that are run instead of a command line. An error that ends them is told in its last line.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        asked = {
            "arguments": [str(a) for a in arguments],
            "file_bytes": file_bytes,
            "limit_s": limit_s,
            "folder": str(folder),
            "environment": dict(environment or {}),
            "absent": list(absent),
            "python": None if python is None else str(python),
            "script": script,
        }
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        return Done(**json.loads(self._server.stdout.readline()))


class Absent:
    """Finds no module of these names, wherever else they may be found."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """As of a finder of ``sys.meta_path``."""
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _import_all() -> None:
    """What commands import as they run, with MPI's library, which is not started."""
    from hpcrec.comm.unstarted import leave_unstarted

    leave_unstarted()
    import hpcrec.api.commands
    import hpcrec.api.loaded
    import hpcrec.api.reading
    import hpcrec.api.trained
    import hpcrec.build.check
    import hpcrec.drafts.draft
    import hpcrec.launcher.submit  # noqa: F401


def _start_mpi() -> None:
    from mpi4py import MPI

    MPI.Init_thread()
    atexit.register(lambda: None if MPI.Is_finalized() else MPI.Finalize())


def _serve(*, whole: bool) -> None:
    import h5py  # noqa: F401
    import torch._dynamo  # noqa: F401 - the first optimizer would

    import hpcrec.config
    import hpcrec.kernels
    import hpcrec.models.zoo
    import hpcrec.preparation.convert  # noqa: F401
    from hpcrec.cli.main import main

    if whole:
        _import_all()
        gc.collect()
        gc.freeze()  # what a child looks through at its end would be copied to it
    for line in iter(sys.stdin.readline, ""):
        asked = json.loads(line)
        folder = Path(tempfile.mkdtemp())  # not as a context manager, which a child would leave, too
        files = [folder / name for name in ("out", "err")]
        child = os.fork()
        if child == 0:
            for number, path in enumerate(files, start=1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
            if asked["file_bytes"] is not None:
                if asked["arguments"][0] != "prepare":  # which does without MPI on one rank
                    # memory that ranks share may be files, too, to which the limit is not meant to apply
                    from mpi4py import MPI  # noqa: F401
                resource.setrlimit(resource.RLIMIT_FSIZE, (asked["file_bytes"], asked["file_bytes"]))
            os.chdir(asked["folder"])
            os.environ.update(asked["environment"])
            sys.meta_path.insert(0, Absent(asked["absent"]))
            sys.executable = asked["python"] or sys.executable
            if whole and (asked["script"] is not None or asked["arguments"][0] in ("train", "evaluate", "predict")):
                _start_mpi()
            if asked["script"] is not None:
                _run(asked["script"])
            main(asked["arguments"])  # ends the process; nothing here may come between it and an error's hook
        code = _wait(child, asked["limit_s"])
        out, err = (path.read_text(errors="replace") if path.exists() else "" for path in files)
        shutil.rmtree(folder)
        print(json.dumps({"code": code, "out": out, "err": err}), flush=True)


def _run(script: str) -> None:
    """Runs it and ends the process: with 1 after an error of hpcrec's, whose last line is said as Python says it."""
    from hpcrec.errors import HpcrecError

    try:
        exec(script, {"__name__": "__main__"})
    except HpcrecError as error:
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        sys.exit(1)
    sys.exit(0)


def _wait(child: int, limit_s: float) -> int | str:
    until = time.monotonic() + limit_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return HUNG
        time.sleep(0.005)


if __name__ == "__main__":
    _serve(whole="whole" in sys.argv)
