"""What the contenders of ``benchmarks/speed.py`` train on: shapes, ids, dense inputs, labels, and how steps are timed.

Read by hpcrec's side and by the peers', who have a Python of their own: imports NumPy alone. Ids of a table are drawn
with P(rank k) ~ (k + 1)^-1.05, where it names no other exponent, and a seeded permutation from rank to row; dense
inputs are N(0, 1), labels Bernoulli (0.25). There are ``n_batches`` distinct global batches, used cyclically; rank r of
R takes the r-th of R equal parts of each.
"""
# mypy: disable-error-code="arg-type"

import json
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ZIPF_EXPONENT = 1.05
SEED = 20260101
LR_DENSE, EPS_ROWS = 0.1, 1e-8  # of SGD, of row-wise Adagrad
CRITEO_KAGGLE_ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model on one kind of data.

    Attributes
    ----------
    rows : tuple of int
        Of each table; one feature a table.
    width : int
        Columns of a row; in an FM each table has a width-1 table beside it.
    ids : int
        Ids a sample and feature, pooled by sum.
    batch : int
        Samples of a global batch.
    n_batches : int
        Distinct ones.
    n_dense : int
    bottom, top : tuple of int
        Layers of the DLRM's MLPs, all with ReLU but the logit's; empty: the model is an FM.
    lr_rows : float
        Of row-wise Adagrad. An FM that sums 600 ids a sample diverges at the DLRMs'.
    init_scale : float
        Rows start uniform in [-init_scale, init_scale), each contender by a generator of its own; small in an FM, whose
        first losses would differ by it.
    exponent : float
        Of the power law that ids are drawn by.
    """

    rows: tuple[int, ...]
    width: int
    ids: int
    batch: int
    n_batches: int = 40
    n_dense: int = 13
    bottom: tuple[int, ...] = ()
    top: tuple[int, ...] = ()
    lr_rows: float = 0.02
    init_scale: float = 0.01
    exponent: float = ZIPF_EXPONENT

    @property
    def is_fm(self) -> bool:
        """Whether the model is a factorisation machine, not a DLRM."""
        return not self.bottom

    @property
    def layers(self) -> list[list[tuple[int, int]]]:
        """Inputs and outputs of each dense layer: the bottom MLP's, the top MLP's."""
        if self.is_fm:
            return []
        n = len(self.rows) + 1
        sizes = ((self.n_dense, *self.bottom), (self.width + n * (n - 1) // 2, *self.top))
        return [list(pairwise(s)) for s in sizes]


_W1_ROWS = tuple(min(rows, 1_000_000) for rows in CRITEO_KAGGLE_ROWS)
_W1 = {"rows": _W1_ROWS, "width": 16, "ids": 1, "bottom": (512, 256, 64, 16), "top": (512, 256, 1)}
_FM = {"n_dense": 0, "lr_rows": 2e-4, "init_scale": 1e-3}
_ONEHOT = {"rows": _W1_ROWS, "width": 16, "ids": 1, "batch": 4096, "n_batches": 12}
_W1_OWN = {**_W1, "rows": CRITEO_KAGGLE_ROWS, "batch": 2048, "n_batches": 900}
_W2 = {"width": 64, "ids": 20, "batch": 2048, "bottom": (512, 256, 64), "top": (512, 256, 1)}
_W2_1M = {**_W2, "rows": (1_000_000,) * 26, "n_batches": 150}
_FEW = {**_W1, "rows": tuple(min(rows, 200_000) for rows in CRITEO_KAGGLE_ROWS), "batch": 2048, "n_batches": 120}
_WIDE = {"width": 64, "ids": 1, "batch": 2048, "n_batches": 4, "bottom": (512, 256, 64), "top": (512, 256, 1)}
_MULTIHOT = {"rows": (1_000_000,) * 30, "width": 16, "ids": 20, "batch": 4096, "n_batches": 12}
WORKLOADS = {
    "w1": Workload(**_W1, batch=2048),
    "w1-16k": Workload(**_W1, batch=16384, n_batches=20),
    "w2": Workload(**_W2, rows=(100_000,) * 26),
    # Of benchmarks/tiers.py: enough batches that none comes twice.
    "w1-own": Workload(**_W1_OWN),
    "w1-own-1.2": Workload(**_W1_OWN, exponent=1.2),
    "w2-1m": Workload(**_W2_1M),
    "w2-1m-1.2": Workload(**_W2_1M, exponent=1.2),
    "w1-few": Workload(**_FEW),
    "drift": Workload(**_WIDE, rows=(4_000_000,) * 26),
    "drift-few": Workload(**_WIDE, rows=(40_000,) * 26),
    "des-onehot": Workload(**_ONEHOT),
    "des-onehot-1.2": Workload(**_ONEHOT, exponent=1.2),
    "des-multihot": Workload(**_MULTIHOT),
    "des-multihot-1.2": Workload(**_MULTIHOT, exponent=1.2),
    "w3": Workload(rows=(1_000_000,) * 30, width=16, ids=20, batch=8192, n_batches=8, **_FM),
}


def generate(name: str, folder: Path) -> None:
    """Writes a workload's arrays into ``folder`` unless they are there: <name>-{ids,dense,label}.npy."""
    w = WORKLOADS[name]
    if path(name, folder, "label").exists():
        return
    ids_NTBL = np.empty((w.n_batches, len(w.rows), w.batch, w.ids), np.int32)
    for table, n_rows in enumerate(w.rows):
        rng = np.random.default_rng([SEED, table])
        row_of = rng.permutation(n_rows).astype(np.int32)
        share = np.cumsum(np.arange(1, n_rows + 1, dtype=np.float64) ** -w.exponent)
        share /= share[-1]
        for number in range(w.n_batches):
            ranks = np.searchsorted(share, rng.random(w.batch * w.ids))
            ids_NTBL[number, table] = row_of[np.minimum(ranks, n_rows - 1)].reshape(w.batch, w.ids)
    rng = np.random.default_rng([SEED, 10**6])
    dense_NBX = rng.standard_normal((w.n_batches, w.batch, w.n_dense), dtype=np.float32)
    label_NB = (rng.random((w.n_batches, w.batch)) < 0.25).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    for part, values in (("ids", ids_NTBL), ("dense", dense_NBX), ("label", label_NB)):
        hidden = folder / f".{name}-{part}.{os.getpid()}.npy"
        np.save(hidden, values)
        hidden.replace(path(name, folder, part))


def path(name: str, folder: Path, part: str) -> Path:
    """File of one of a workload's arrays."""
    return folder / f"{name}-{part}.npy"


def load(name: str, folder: Path, rank: int = 0, world: int = 1) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """A rank's part: ids int64 [N, T, b, L], dense [N, b, X], label [N, b]."""
    batch = WORKLOADS[name].batch
    start, stop = batch * rank // world, batch * (rank + 1) // world
    ids, dense, label = (np.load(path(name, folder, part), mmap_mode="r") for part in ("ids", "dense", "label"))
    return ids[:, :, start:stop].astype(np.int64), np.array(dense[:, start:stop]), np.array(label[:, start:stop])


def dense_weights(w: Workload) -> list[NDArray[Any]]:
    """Starting weights [out, in] of the dense layers, bottom then top: Xavier normal, the same for everybody.

    Biases start at 0.
    """
    rng = np.random.default_rng([SEED, 10**6 + 1])
    return [
        (rng.standard_normal((n_out, n_in)) * (2 / (n_in + n_out)) ** 0.5).astype(np.float32)
        for layers in w.layers
        for n_in, n_out in layers
    ]


def time_steps(step: Callable[[int], float], barrier: Callable[[], Any], warmup: int, steps: int) -> dict[str, Any]:
    """Runs ``step(i)``, which returns this rank's part of the mean loss; what it took, from barrier to barrier."""
    losses = [step(i) for i in range(warmup)]
    barrier()
    ends_s, cpu_s = [time.perf_counter()], time.process_time()
    for i in range(warmup, warmup + steps):
        losses.append(step(i))
        ends_s.append(time.perf_counter())
    barrier()
    cpu_ms = 1e3 * (time.process_time() - cpu_s) / steps
    wall_s = time.perf_counter() - ends_s[0]
    return {"wall_s": wall_s, "step_s": np.diff(ends_s).tolist(), "losses": losses, "cpu_ms": cpu_ms}


def result(batch: int, timed: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One contender's row: speed over the whole of the measured steps, and by the median step; CPU time of a rank."""
    steps = len(timed["step_s"])
    p10, p50, p90 = (1e3 * float(np.percentile(timed["step_s"], q)) for q in (10, 50, 90))
    losses: Sequence[float] = timed["losses"]
    return {
        "samples_per_s": batch * steps / timed["wall_s"],
        "samples_per_s_median_step": batch / p50 * 1e3,
        "step_ms": {"mean": 1e3 * timed["wall_s"] / steps, "p10": p10, "p50": p50, "p90": p90},
        "cpu_ms": timed["cpu_ms"],
        "loss_first": losses[0],
        "loss_last": float(np.mean(losses[-5:])),
        "steps": steps,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **more,
    }


def write(out: Path, row: dict[str, Any]) -> None:
    """Hands a row to ``speed.py``."""
    out.write_text(json.dumps(row))
