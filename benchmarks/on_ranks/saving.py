"""One rank of ``benchmarks/checkpoint.py``: steps with and without checkpoints beside them, writing and loading.

    python benchmarks/on_ranks/saving.py CONFIG --bytes N --window-s S --windows N --rounds N --out FILE

Knows a session and its saver; what the figures are claimed to be is for ``benchmarks/checkpoint.py``.
"""

import argparse
import contextlib
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.checkpoint.saver import Saver
from hpcrec.comm.collectives import Collectives
from hpcrec.config import load_config
from hpcrec.training.session import Session

_PIECE_BYTES = 16 << 20
_SAMPLE_S = 0.05


def main() -> None:
    """Measures, and writes what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--bytes", type=int, required=True, help="of a checkpoint, about")
    parser.add_argument("--window-s", type=float, required=True)
    parser.add_argument("--windows", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    run = Path(config.run.folder)
    with open_session(config) as session:
        main = session.parts.world.main
        steps = session.steps()
        for _ in range(20):
            next(steps).run()
        # A virtual disk may be several times slower where nothing was ever written: all that follows has been.
        disk_writing(run, (arguments.windows + arguments.rounds + 2) * arguments.bytes, session)
        saver = Saver(session, run, background=True, full_every=1)
        beside = [steps_beside(session, steps, saver, arguments.window_s) for _ in range(arguments.windows)]
        files = [path for path in (run / f"checkpoints/step-{beside[-1]['step']}").rglob("*") if path.is_file()]
        n_bytes = sum(path.stat().st_size for path in files)
        disk, writing, reading, loading = [], [], [], []
        for _ in range(arguments.rounds):  # in turn, for a disk's rate changes
            disk.append(disk_writing(run, n_bytes, session))
            next(steps).run()  # so that no checkpoint is replaced, whose removal would be timed too
            writing.append(once(session, lambda: (saver.save({}, nothing), saver.wait())))
        files = [path for path in (run / f"checkpoints/step-{session.step}").rglob("*") if path.is_file()]
        mine = files[main.rank :: main.size]
        for _ in range(arguments.rounds):
            reading.append(disk_reading(mine, files, session))
            forget(files)
            loading.append(once(session, lambda: load(session, run, main)))
        if main.rank == 0:
            found = {"ranks": main.size, "bytes": n_bytes, "beside": beside, "disk_s": disk, "writing_s": writing}
            arguments.out.write_text(json.dumps({**found, "reading_s": reading, "loading_s": loading}))


def steps_beside(session: Session, steps: Iterator[Any], saver: Saver, window_s: float) -> dict[str, Any]:
    """A window of steps that begins with a checkpoint, which is whole before the second half.

    What is lost is held against that half: the machine's pace changes more from one window to the next.
    """
    out: dict[str, Any] = {"step": session.step, "before_bytes": most(session, [anonymous_bytes()])}
    whole_s: list[float] = []
    whole = threading.Event()

    def is_whole(_: object) -> None:
        whole_s.append(time.perf_counter() - began_s)
        whole.set()

    with sampled(whole) as memory:
        done, began_s, half = 0, time.perf_counter(), None
        saver.save({}, is_whole)
        out["stopped_s"] = time.perf_counter() - began_s
        while agreed_less(session, took_s := time.perf_counter() - began_s, window_s):
            if half is None and took_s >= window_s / 2:
                half = (done, took_s)
            for _ in range(5):
                next(steps).run()
            done += 5
        saver.wait()
    if session.parts.world.main.bcast(not whole_s or whole_s[0] > window_s / 2 or half is None):
        raise SystemExit(f"a checkpoint takes longer than half of {window_s:g} s here")
    assert half is not None
    out |= {"per_s": done / took_s, "alone_per_s": (done - half[0]) / (took_s - half[1])}
    return out | {"bytes": most(session, memory), "whole_after_s": whole_s[0] if whole_s else None}


def agreed_less(session: Session, took_s: float, window_s: float) -> bool:
    """Whether rank 0 goes on: all do what it does."""
    return bool(session.parts.world.main.bcast(took_s < window_s))


def most(session: Session, memory: list[int]) -> int:
    """Of the rank that took most."""
    return max(session.parts.world.main.allgather(max(memory)))


@contextlib.contextmanager
def sampled(ended: threading.Event) -> Iterator[list[int]]:
    """Memory of this process that only it has, every now and then until that event."""
    taken = [anonymous_bytes()]

    def watch() -> None:
        while not ended.wait(_SAMPLE_S):
            taken.append(anonymous_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()


def anonymous_bytes() -> int:
    """Pages of files are left out: the system takes them back when it wants."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("this system does not say RssAnon")


def once(session: Session, work: Any) -> float:
    """Seconds until all ranks have done it."""
    session.parts.world.main.barrier()
    began_s = time.perf_counter()
    work()
    session.parts.world.main.barrier()
    return time.perf_counter() - began_s


def disk_writing(run: Path, n_bytes: int, session: Session) -> float:
    """Seconds for so many bytes, in one file a rank, one piece after the other, and flushed at the end.

    The better of two: by the system's page cache, and past it.
    """
    path = run / f"disk-{session.topology.rank}"
    piece = np.frombuffer(aligned(), np.uint8)
    piece[:] = np.random.default_rng(1).integers(0, 256, len(piece), np.uint8)

    def write(how: int) -> None:
        file = os.open(path, os.O_CREAT | os.O_WRONLY | how)
        for _ in range(n_bytes // session.topology.size // _PIECE_BYTES):
            os.write(file, piece.data)
        os.fsync(file)
        os.close(file)

    took_s = []
    for how in (0, os.O_DIRECT):
        took_s.append(once(session, partial(write, how)))
        path.unlink()
    return min(took_s)


def disk_reading(files: list[Path], all_files: list[Path], session: Session) -> float:
    """Seconds for these, one piece after the other; the better of two, as above."""
    took_s = []
    for how in (0, os.O_DIRECT):
        forget(all_files)
        took_s.append(once(session, partial(read, files, how)))
    return min(took_s)


def aligned() -> mmap.mmap:
    """Memory for a piece, which begins at a page."""
    return mmap.mmap(-1, _PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def forget(files: list[Path]) -> None:
    """Asks the system to read these from the disk again."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read(files: list[Path], how: int) -> None:
    """One piece after the other."""
    with aligned() as piece:
        for path in files:
            file = os.open(path, os.O_RDONLY | how)
            while os.readv(file, [piece]) == len(piece):
                pass
            os.close(file)


def load(session: Session, run: Path, main: Collectives) -> None:
    """As a run that goes on: checksums are looked at, and everything is taken over."""
    state.load(session, find_checkpoint(run, "last", main), resume=False)


def nothing(_: object) -> None:
    """After a checkpoint."""


if __name__ == "__main__":
    main()
