"""One rank of ``benchmarks/house.py``: the time of a step and the most memory, of whichever hpcrec is installed.

    hpcrec run -n 2 -- benchmarks/house_parts/rank.py OUT CONFIG WARMUP STEPS [section.key=value ...]

Any commit has to be able to run it, so it knows how a session is opened and stepped through, and nothing else of the
package. The session has more steps than are run, so that what runs ahead does so to the end.
"""

import json
import os
import sys
import time
from pathlib import Path

from mpi4py import MPI

import hpcrec
from hpcrec.comm.start import start

SPARE_STEPS = 3  # that are routed ahead, never run


def main(out: str, config: str, warmup: str, steps: str, *settings: str) -> None:
    rank = start(os.environ)
    first, last = int(warmup), int(warmup) + int(steps)
    losses, began_s = [], 0.0
    with hpcrec.open_session(config, [f"train.steps={last + SPARE_STEPS}", *settings]) as session:
        for done, step in enumerate(session.steps(), 1):
            losses.append(step.run())
            if done == first:
                MPI.COMM_WORLD.Barrier()
                began_s = time.perf_counter()
            if done == last:
                break
        MPI.COMM_WORLD.Barrier()
        step_s = (time.perf_counter() - began_s) / int(steps)
    every = MPI.COMM_WORLD.gather((step_s, peak_bytes(), losses[-1]), root=0)
    if rank == 0:
        step_s_R, peak_R, loss_R = zip(*every, strict=True)
        row = {"step_s": max(step_s_R), "peak_bytes": peak_R, "loss": sum(loss_R), "package": hpcrec.__file__}
        Path(out).write_text(json.dumps(row))


def peak_bytes() -> int:
    """Most memory that this process has held at once: resident, with what it shares."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
