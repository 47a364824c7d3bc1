"""hpcrec's contender, on each rank: a loop of its own over ``hpcrec.open_session``, timed like the peers' loops.

    hpcrec run -n 2 -- benchmarks/speed_parts/hpcrec_rank.py W1 OUT WARMUP STEPS CONFIG [section.key=value ...]

Batches come through hpcrec's loader from HDF5 in the order of the file, so batch t is the peers' batch t. The session
has more steps than are run, so that what runs ahead does so to the end. Phases are seconds of threads that overlap.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workload

import hpcrec
from hpcrec.comm.start import start

SPARE_STEPS = 3  # that are routed ahead, never run


def main(name: str, out: str, warmup: str, steps: str, config: str, *overrides: str) -> None:
    rank = start(os.environ)
    n_warmup, n_steps = int(warmup), int(steps)
    settings = [f"train.steps={n_warmup + n_steps + SPARE_STEPS}", *overrides]
    with hpcrec.open_session(config, settings) as session:
        set_weights(session.model, workload.WORKLOADS[name])
        main_ranks = session.parts.world.main
        row = timed(session, n_warmup, n_steps)
        rows = main_ranks.allgather(row)
        if rank == 0:
            batch = session.parts.splits["train"].order.batch_size
            workload.write(Path(out), joined(batch, rows))


def set_weights(model: torch.nn.Module | None, w: workload.Workload) -> None:
    """The starting weights that every contender has; biases are 0 already."""
    if model is None or w.is_fm:
        return
    matrices = [p for p in model.parameters() if p.ndim == 2]
    with torch.no_grad():
        for parameter, values in zip(matrices, workload.dense_weights(w), strict=True):
            parameter.copy_(torch.from_numpy(values))


def timed(session: Any, warmup: int, steps: int) -> dict[str, Any]:
    """What this rank measured; the loop of ``workload.time_steps``, over a generator."""
    barrier, timer = session.parts.world.main.barrier, session.parts.timer
    losses: list[float] = []
    ends_s: list[float] = []
    before: dict[str, float] = {}
    cpu_s = 0.0
    for step in session.steps():
        losses.append(step.run())
        if session.step == warmup:
            barrier()
            before, cpu_s = timer.seconds(), time.process_time()
            ends_s.append(time.perf_counter())
        elif session.step > warmup:
            ends_s.append(time.perf_counter())
        if session.step == warmup + steps:
            break
    barrier()
    measured = {"wall_s": time.perf_counter() - ends_s[0], "step_s": np.diff(ends_s).tolist(), "losses": losses}
    phase_ms = {k: 1e3 * (v - before.get(k, 0.0)) / steps for k, v in timer.seconds().items()}
    topology = session.topology
    role = "both" if topology.is_owner and topology.is_dense else "owner" if topology.is_owner else "dense"
    cpu_ms = 1e3 * (time.process_time() - cpu_s) / steps
    return {**measured, "role": role, "phase_ms": phase_ms, "cpu_ms": cpu_ms, "threads": torch.get_num_threads()}


def joined(batch: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of all ranks': the slowest rank's wall time, losses summed, phases as means over ranks of a role."""
    slowest = max(rows, key=lambda row: row["wall_s"])
    losses = np.sum([row["losses"] for row in rows], axis=0).tolist()
    phases: dict[str, dict[str, float]] = {}
    for role in sorted({row["role"] for row in rows}):
        of_role = [row for row in rows if row["role"] == role]
        names = sorted({phase for row in of_role for phase in row["phase_ms"]})
        phases[role] = {p: float(np.mean([row["phase_ms"].get(p, 0.0) for row in of_role])) for p in names}
        phases[role]["cpu_time"] = float(np.mean([row["cpu_ms"] for row in of_role]))
    return workload.result(batch, {**slowest, "losses": losses}, phase_ms=phases, threads=rows[-1]["threads"])


if __name__ == "__main__":
    main(*sys.argv[1:])
