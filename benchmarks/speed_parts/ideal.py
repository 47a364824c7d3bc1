"""What a step of a workload costs at least on 2 cores: dense part, gathers, one read and write of each distinct row.

    python benchmarks/speed_parts/ideal.py WORKLOAD DATA OUT STEPS

Dense part: forward, backward and optimizer on pooled inputs that are there, by 2 processes of 1 thread (half a batch
each, no sum of gradients) or by 1 process of 2 threads, the faster. Gathers: one batch's pooled vectors by hpcrec's
kernel or torch's, the faster. Rows: SGD on each distinct row of a batch, gradients merged already, by hpcrec's kernel
or torch's, the faster: what it moves is what any optimizer moves at least. No ids, no exchange, no Python between.
"""
# mypy: disable-error-code="arg-type"

import multiprocessing
import sys
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import peer
import torch
import workload
from torch.nn import functional

from hpcrec import kernels
from hpcrec.types import OptimizerSpec

THREADS = 2


def main(name: str, data: str, out: str, steps: str) -> None:
    repeats, w = int(steps), workload.WORKLOADS[name]
    torch.set_num_threads(THREADS)
    kernels.set_threads(THREADS)
    dense_ms = {"1x2": 1e3 * dense_s(w, w.batch, repeats), "2x1": 1e3 * two_processes_s(name, repeats)}
    moves = {"gather_ms": 0.0, "rows_ms": 0.0}
    ids = first_batch(w, name, Path(data))
    for width in (w.width, 1) if w.is_fm else (w.width,):
        rows = np.random.default_rng(1).random((sum(w.rows), width), np.float32)
        moves["gather_ms"] += 1e3 * gather_s(rows, ids, w.ids, repeats)
        moves["rows_ms"] += 1e3 * rows_s(rows, np.unique(ids), repeats)
    ideal_ms = min(dense_ms.values()) + sum(moves.values())
    workload.write(
        Path(out),
        {"ideal_ms": ideal_ms, "samples_per_s": 1e3 * w.batch / ideal_ms, "dense_ms": dense_ms, **moves},
    )


def first_batch(w: workload.Workload, name: str, data: Path) -> np.ndarray:
    """Ids [T * B * L] of a batch, as rows of all tables one after the other."""
    ids_TBL = np.load(workload.path(name, data, "ids"), mmap_mode="r")[0].astype(np.int64)
    first = np.array([0, *accumulate(w.rows)][:-1])
    return (ids_TBL + first[:, None, None]).reshape(-1)


def median_s(work: Callable[[], Any], repeats: int) -> float:
    """Of ``work``, after two calls to warm up."""
    taken = []
    for number in range(repeats + 2):
        began = time.perf_counter()
        work()
        if number >= 2:
            taken.append(time.perf_counter() - began)
    return float(np.median(taken))


def dense_s(w: workload.Workload, batch: int, repeats: int) -> float:
    """One step of the dense part on ``batch`` samples."""
    net = peer.Fm() if w.is_fm else peer.Dlrm(w, range(len(w.rows)))
    optimizer = peer.sgd(net)
    pooled = (0.1 * torch.randn(batch, len(w.rows), w.width)).requires_grad_()
    first = torch.randn(batch, len(w.rows) if w.is_fm else w.n_dense, requires_grad=w.is_fm)
    label = (torch.rand(batch) < 0.25).float()

    def step() -> None:
        optimizer.zero_grad()
        pooled.grad = first.grad = None
        peer.loss_of(net(first, pooled), label).backward()
        optimizer.step()

    return median_s(step, repeats)


def two_processes_s(name: str, repeats: int) -> float:
    """The dense part by two processes of one thread, half a batch each, at the same time; the slower one's."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(2), context.Queue()
    both = [context.Process(target=_one_process, args=(name, repeats, barrier, answers)) for _ in range(2)]
    for process in both:
        process.start()
    slower = max(answers.get(timeout=300) for _ in both)
    for process in both:
        process.join()
    return slower


def _one_process(name: str, repeats: int, barrier: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    w = workload.WORKLOADS[name]
    dense_s(w, w.batch // 2, 1)
    barrier.wait()
    answers.put(dense_s(w, w.batch // 2, repeats))


def gather_s(rows: np.ndarray, ids: np.ndarray, bag: int, repeats: int) -> float:
    """One batch's pooled vectors, the faster of two kernels."""
    offsets = np.arange(0, ids.size + 1, bag)
    out = np.empty(ids.size // bag * rows.shape[1], np.float32)
    tensors = [torch.from_numpy(array) for array in (ids, rows, offsets[:-1])]
    with torch.no_grad():
        theirs = median_s(lambda: functional.embedding_bag(*tensors, mode="sum"), repeats)
    return min(theirs, median_s(lambda: kernels.pooled_gather(rows, ids, offsets, out), repeats))


def rows_s(rows: np.ndarray, distinct: np.ndarray, repeats: int) -> float:
    """A read and a write of each distinct row of a batch, the faster of two kernels."""
    gradients = np.full((distinct.size, rows.shape[1]), 1e-9, np.float32)
    spec = OptimizerSpec(name="sgd")
    ours = median_s(lambda: kernels.update(spec, rows, {}, distinct, gradients, lr=1.0, step=1), repeats)
    target, index, source = (torch.from_numpy(array) for array in (rows, distinct, gradients))
    return min(ours, median_s(lambda: target.index_add_(0, index, source), repeats))


if __name__ == "__main__":
    main(*sys.argv[1:])
