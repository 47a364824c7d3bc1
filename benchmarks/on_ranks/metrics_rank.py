"""One rank of ``benchmarks/metrics.py``: draws its samples, and times metrics of those of all ranks.

metrics_rank.py JOB OUT     JOB as JSON: samples and groups of all ranks, repeats; rank 0 writes OUT
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.training.measures import Measures
from hpcrec.training.metrics import Beside, evaluate

METRICS = ("gauc", "ndcg@10", "recall@20", "mrr")


def main() -> None:
    job, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    world = MPI.COMM_WORLD
    comm = Collectives(world.Dup(), range(world.size), Ledger(world.rank, [0] * world.size), windows=True)
    rng = np.random.default_rng(world.rank)
    n = job["samples"] * (world.rank + 1) // world.size - job["samples"] * world.rank // world.size
    logits = rng.standard_normal(n, np.float32)
    labels = (rng.random(n, np.float32) < 0.2).astype(np.float32)
    weights = rng.uniform(0.5, 2.0, n).astype(np.float32)
    beside = Beside(group=rng.integers(0, job["groups"], n))
    rows = []
    for name, weighed in ((METRICS[0], None), (METRICS[0], weights), *((name, None) for name in METRICS[1:])):
        seconds, value = [], None
        for _ in range(job["repeats"] + 1):
            comm.barrier()
            began = time.perf_counter()
            found = evaluate(logits, labels, weighed, comm, measures=Measures(metrics=(name,)), beside=beside)
            seconds.append(max(comm.allgather(time.perf_counter() - began)))
            assert value in (None, found[name]), "a metric has the same bits each time"
            value = found[name]
        shown = name if weighed is None else f"{name}, with weights"
        rows.append({"metric": shown, "value": value, "seconds": seconds[1:]})  # the first warms up
    if world.rank == 0:
        out.write_text(json.dumps(rows))
    comm.close()


if __name__ == "__main__":
    main()
