"""One rank of part ``checkpoint`` of ``benchmarks/tiers.py``: checkpoints of store disk, and going on from them.

    python benchmarks/on_ranks/linking.py CONFIG --memory N --steps N --rounds N --out FILE

All rows are written to the disk first, in random order. Then steps, until the cache is full and has been written to; a
checkpoint by links; as many steps again; and the one that is measured, once by links and once as HDF5, of one step. It
is gone on from links, from links whose files have to be copied to the store (as from another file system), and from
HDF5. The store is told of checkpoints by links to come, as ``hpcrec train`` does; what it writes early for one counts
as its own. Knows sessions and savers; what the figures are claimed to be is for ``benchmarks/tiers.py``.
"""

import argparse
import errno
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from saving import forget, nothing

from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.checkpoint.saver import Saver
from hpcrec.config import Config, load_config
from hpcrec.training.session import Session

_PIECE_ROWS = 1 << 15


def main() -> None:
    """Measures, and writes what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    for name in ("memory", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    on_disk = replace(config.store, name="disk", path=f"{config.run.folder}-rows", memory_bytes=arguments.memory)
    by = {
        "links": replace(config, store=on_disk),
        "hdf5": replace(config, store=on_disk, checkpoint=replace(config.checkpoint, rows="hdf5")),
    }
    found = written(by, arguments.steps)
    found["dram"] = in_memory(config, arguments.steps)
    runs = {name: Path(f"{config.run.folder}-{name}") for name in by}
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in (*by, "copies")}
    for _ in range(arguments.rounds):
        for name, one in by.items():
            seconds[name].append(gone_on(one, runs[name]))
        with without_links():
            seconds["copies"].append(gone_on(by["links"], runs["links"]))
    arguments.out.write_text(json.dumps({**found, "resumed": seconds}))


def filled(session: Session) -> int:
    """Every row has been written, in random order; returns bytes of rows and states."""
    rng, store = np.random.default_rng(1), session.parts.store
    for held in store.held:
        order = rng.permutation(held.block.rows)
        for start in range(0, len(order), _PIECE_ROWS):
            some = np.sort(order[start : start + _PIECE_ROWS])
            held.write_back(some, held.fetch(some))
    return int(store.figures()["bytes"])


def written(by: dict[str, Config], steps: int) -> dict[str, Any]:
    """What a checkpoint by links writes, and how long steps stand still for it and for one of HDF5."""
    with open_session(by["links"]) as session:
        n_bytes, tier = filled(session), session.parts.store._tier
        coming = session.steps()
        runs = {name: Path(f"{one.run.folder}-{name}") for name, one in by.items()}
        savers = {name: Saver(session, runs[name], background=True, full_every=1) for name in by}
        found: dict[str, Any] = {"bytes": n_bytes}
        before: set[int] = set()
        for turn in range(2):
            early = session.parts.store._early.rows
            for left in reversed(range(steps)):
                next(coming).run()
                session.parts.store.will_keep(left)
            counted, began_s = tier.counts.written_bytes, time.perf_counter()
            session.parts.links_rows = True
            savers["links"].save({}, nothing)
            stopped_s = time.perf_counter() - began_s
            early = (session.parts.store._early.rows - early) * max(of.record_bytes for of in tier.blocks)
            flushed = tier.counts.written_bytes - counted + early
            savers["links"].wait()
            whole_s = time.perf_counter() - began_s
            folder = runs["links"] / f"checkpoints/step-{session.step}"
            segments = {path.stat().st_ino: path.stat().st_size for path in folder.glob("rows-*/segment-*")}
            small = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and "segment" not in p.name)
            if turn:
                new = sum(size for inode, size in segments.items() if inode not in before)
                found["links"] = {"stopped_s": stopped_s, "whole_s": whole_s, "flushed": flushed, "small": small}
                found["links"] |= {"new_segments": new, "segments": sum(segments.values())}
            before = set(segments)
        session.parts.links_rows = False
        began_s = time.perf_counter()
        savers["hdf5"].save({}, nothing)
        stopped_s = time.perf_counter() - began_s
        savers["hdf5"].wait()
        found["hdf5"] = {"stopped_s": stopped_s, "whole_s": time.perf_counter() - began_s}
        folder = runs["hdf5"] / f"checkpoints/step-{session.step}"
        found["hdf5"]["bytes"] = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        found["cache_hits"] = session.parts.store.figures()["cache_hits"]
        return found


def in_memory(config: Config, steps: int) -> dict[str, float]:
    """How long steps stand still for a checkpoint where all rows are in memory."""
    with open_session(config) as session:
        coming = session.steps()
        for _ in range(min(steps, 50)):
            next(coming).run()
        saver = Saver(session, Path(f"{config.run.folder}-dram"), background=True, full_every=1)
        began_s = time.perf_counter()
        saver.save({}, nothing)
        stopped_s = time.perf_counter() - began_s
        saver.wait()
        return {"stopped_s": stopped_s}


@contextmanager
def without_links() -> Iterator[None]:
    """As if the store were on another file system than the run."""

    def far(source: Any, *_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)

    link, os.link = os.link, far
    try:
        yield
    finally:
        os.link = link


def gone_on(config: Config, run: Path) -> dict[str, float]:
    """Seconds from an open session to the end of the first step, with nothing of the checkpoint in memory."""
    forget([path for path in run.rglob("*") if path.is_file()])
    with open_session(config) as session:
        began_s = time.perf_counter()
        checkpoint = find_checkpoint(run, "last", session.parts.world.main)
        state.load(session, checkpoint, resume=True)
        loaded_s = time.perf_counter() - began_s
        next(session.steps()).run()
        return {"loaded_s": loaded_s, "training_s": time.perf_counter() - began_s}


if __name__ == "__main__":
    main()
