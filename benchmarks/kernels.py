"""Times each kernel against the memory's copy bandwidth and against torch.nn.EmbeddingBag, in one process.

    python benchmarks/kernels.py [--quick] [--threads N] [--json FILE]

Tables do not fit into the caches; ids are uniform (the hard case for memory) or Zipf (a click log). Bytes are those
that a kernel must move: ids, rows read, results written; a row that an update changes counts twice, as in a copy.
FBGEMM is timed as well where it is installed.
"""

import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from _report import claim, finish, options

from hpcrec import kernels
from hpcrec.types import OptimizerSpec
from hpcrec.units import GB, MiB


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much work: a table of ``table_bytes`` and ``n_ids`` ids a call, timed for about ``seconds`` each."""

    table_bytes: int
    n_ids: int
    seconds: float


FULL = Size(table_bytes=1024 * MiB, n_ids=1_000_000, seconds=2.0)
QUICK = Size(table_bytes=256 * MiB, n_ids=300_000, seconds=0.3)


@dataclass
class Results:
    """Rows of the table, and the claims made from them."""

    size: Size
    copy_bytes_per_s: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def time(self, kernel: str, case: str, run: Callable[[], Any], n: int, n_bytes: int) -> float:
        """Median seconds of ``run`` after one call to warm up; adds a row."""
        run()
        samples: list[float] = []
        end = time.perf_counter() + self.size.seconds
        while len(samples) < 5 or (time.perf_counter() < end and len(samples) < 200):
            start = time.perf_counter()
            run()
            samples.append(time.perf_counter() - start)
        seconds = statistics.median(samples)
        rate = n_bytes / seconds
        self.rows.append(
            {
                "kernel": kernel,
                "case": case,
                "ms": seconds * 1e3,
                "ms_min": min(samples) * 1e3,
                "M_per_s": n / seconds / 1e6,
                "GB_per_s": rate / GB,
                "of_copy": rate / self.copy_bytes_per_s if self.copy_bytes_per_s else 1.0,
            }
        )
        return seconds


def copy_bandwidth(results: Results) -> None:
    """Bytes read and written a second by a large copy on all threads: the limit of the other rows."""
    n = 64 * MiB
    source, target = torch.ones(n // 4 * 4), torch.zeros(n // 4 * 4)
    seconds = results.time("copy", "256 MiB, torch", lambda: target.copy_(source), n, 2 * source.nbytes)
    results.copy_bytes_per_s = 2 * source.nbytes / seconds


def make_ids(kind: str, n: int, n_rows: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    if kind == "uniform":
        return rng.integers(0, n_rows, n)
    weights = np.arange(1, n_rows + 1) ** -1.05
    ranks = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(n))
    return kernels.permute(np.minimum(ranks, n_rows - 1), n_rows, 1)


def time_ids(results: Results, n_rows: int) -> None:
    """Kernels that see ids only, beside NumPy's."""
    n = results.size.n_ids
    for kind in ("uniform", "zipf"):
        ids = make_ids(kind, n, n_rows)
        results.time("group", f"{kind} ids", lambda ids=ids: kernels.group(ids), n, 40 * n)
        results.time("dedup", f"{kind} ids", lambda ids=ids: kernels.dedup(ids), n, 24 * n)
        results.time("numpy unique", f"{kind} ids", lambda ids=ids: np.unique(ids, return_inverse=True), n, 24 * n)
    part = (ids % 64).astype(np.int32)
    results.time("partition", "64 parts", lambda: kernels.partition(part, 64), n, 12 * n)
    results.time("hash_ids", "", lambda: kernels.hash_ids(ids, n_rows, 1), n, 16 * n)
    results.time("permute", "", lambda: kernels.permute(ids, n_rows, 1), n, 16 * n)
    some = ids[: n // 8]
    results.time("init_rows", "width 64", lambda: kernels.init_rows(1, some, 64, scale=0.1), n // 8, n // 8 * 256)


def time_gather(results: Results, table: np.ndarray, width: int, bag: int, kind: str) -> dict[str, float]:
    """Pooled gather and EmbeddingBag's forward."""
    rows = table.reshape(-1, width)
    index = make_ids(kind, results.size.n_ids // bag * bag, len(rows))
    offsets = np.arange(0, index.size + 1, bag)
    out = np.empty((index.size // bag, width), np.float32)
    n_bytes = index.nbytes + index.size * width * 4 + out.nbytes
    case = f"width {width}, {bag} a bag, {kind}"
    ours = results.time(
        "pooled_gather", case, lambda: kernels.pooled_gather(rows, index, offsets, out.reshape(-1)), index.size, n_bytes
    )
    table_, index_, offsets_ = (torch.from_numpy(x) for x in (rows, index, offsets[:-1]))
    with torch.no_grad():
        theirs = results.time(
            "EmbeddingBag",
            case,
            lambda: torch.nn.functional.embedding_bag(index_, table_, offsets_, mode="sum"),
            index.size,
            n_bytes,
        )
    starts = np.random.default_rng(2).permutation(len(out)).astype(np.int64) * width
    target = np.empty_like(out).reshape(-1)
    results.time(
        "copy_vectors",
        f"width {width}, scattered",
        lambda: kernels.copy_vectors(out.reshape(-1), target, width, target_start=starts),
        len(out),
        2 * out.nbytes,
    )
    return {"gather": ours, "embedding_bag": theirs}


def time_updates(results: Results, table: np.ndarray, width: int, bag: int, kind: str) -> dict[str, float]:
    """Each optimizer fused with the merge, grouping included; torch's sparse backward and Adagrad."""
    rows = table.reshape(-1, width)
    n = results.size.n_ids // bag * bag
    index = make_ids(kind, n, len(rows))
    gradients = np.random.default_rng(3).standard_normal((n // bag, width)).astype(np.float32)
    starts = np.repeat(np.arange(n // bag) * width, bag)
    case = f"width {width}, {bag} a bag, {kind}"
    seconds: dict[str, float] = {}
    grouping = kernels.group(index)
    n_unique = grouping.unique.size
    read = n * (width * 4 + 16)
    merged = kernels.merge(grouping, gradients.reshape(-1), starts, width)
    results.time(
        "merge",
        case,
        lambda: kernels.merge(grouping, gradients.reshape(-1), starts, width, out=merged),
        n,
        read + merged.nbytes,
    )
    for name in ("sgd", "rowwise_adagrad", "adagrad", "adam"):
        spec = OptimizerSpec(name=name)
        states = kernels.initial_states(spec, *rows.shape, np.float32)
        moved = 2 * n_unique * (width * 4 + sum(s.nbytes // len(rows) for s in states.values()))

        def step(spec=spec, states=states, grouping=grouping) -> None:
            kernels.merge_update(spec, rows, states, grouping, gradients.reshape(-1), starts, lr=1e-3, step=1)

        seconds[name] = results.time("merge_update", f"{name}, {case}", step, n, read + moved)
    seconds["group"] = results.time("group", f"of {case}", lambda: kernels.group(index), n, 40 * n)
    seconds["torch"] = time_torch_update(results, rows, index, gradients, bag, case)
    if importlib.util.find_spec("fbgemm_gpu"):
        seconds["fbgemm"] = time_fbgemm(results, rows, index, gradients, bag, case)
    return seconds


def time_torch_update(
    results: Results, rows: np.ndarray, index: np.ndarray, gradients: np.ndarray, bag: int, case: str
) -> float:
    """EmbeddingBag's sparse backward and torch.optim.Adagrad; the forward is left out."""
    module = torch.nn.EmbeddingBag.from_pretrained(torch.from_numpy(rows), freeze=False, mode="sum", sparse=True)
    optimizer = torch.optim.Adagrad(module.parameters(), lr=1e-3)
    index_, offsets = torch.from_numpy(index), torch.arange(0, index.size, bag)
    gradient = torch.from_numpy(gradients)
    forward_s = statistics.median(timed(lambda: module(index_, offsets)) for _ in range(3))

    def step() -> None:
        optimizer.zero_grad()
        module(index_, offsets).backward(gradient)
        optimizer.step()

    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        name = "EmbeddingBag + Adagrad"
        seconds = results.time(name, f"with forward, {case}", step, index.size, 0)
    return seconds - forward_s


def time_fbgemm(
    results: Results, rows: np.ndarray, index: np.ndarray, gradients: np.ndarray, bag: int, case: str
) -> float:
    """FBGEMM's CPU table with row-wise Adagrad: forward, backward and update; the forward's time is taken off."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    batched = SplitTableBatchedEmbeddingBagsCodegen(
        [(*rows.shape, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=1e-3,
        stochastic_rounding=False,
    )
    index_, offsets = torch.from_numpy(index), torch.arange(0, index.size + 1, bag)
    gradient = torch.from_numpy(gradients)
    n_bytes = index.nbytes + index.size * rows.shape[1] * 4 + gradients.nbytes
    forward_s = results.time("FBGEMM forward", case, lambda: batched(index_, offsets), index.size, n_bytes)
    step = lambda: batched(index_, offsets).backward(gradient)  # noqa: E731
    return results.time("FBGEMM rowwise", f"with forward, {case}", step, index.size, 0) - forward_s


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(size: Size) -> tuple[Results, list[dict[str, Any]]]:
    results = Results(size=size)
    claims = []
    copy_bandwidth(results)
    table = kernels.aligned_empty((size.table_bytes // 4,), np.float32)
    table.fill(1)
    time_ids(results, 1_000_000)
    for width, bag, kind in (
        (16, 1, "zipf"),
        (16, 20, "uniform"),
        (64, 20, "uniform"),
        (64, 20, "zipf"),
        (128, 20, "uniform"),
    ):
        gather = time_gather(results, table, width, bag, kind)
        claims.append(claim(f"kernels-gather-w{width}-bag{bag}-{kind}-vs-embeddingbag",
                            gather["embedding_bag"] / gather["gather"], "times as fast"))  # fmt: skip
    for width, bag, kind in ((16, 1, "zipf"), (64, 20, "uniform"), (64, 20, "zipf")):
        update = time_updates(results, table, width, bag, kind)
        label = f"kernels-update-w{width}-bag{bag}-{kind}"
        claims.append(
            claim(f"{label}-vs-torch-adagrad", update["torch"] / (update["group"] + update["adagrad"]), "times as fast")
        )
        if "fbgemm" in update:
            ours = update["group"] + update["rowwise_adagrad"]
            claims.append(claim(f"{label}-vs-fbgemm-rowwise", update["fbgemm"] / ours, "times as fast"))
    claims += [
        claim(f"kernels-gather-{row['case'].replace(', ', '-').replace(' ', '')}-of-copy", row["of_copy"], "of copy")
        for row in results.rows
        if row["kernel"] == "pooled_gather"
    ]
    return results, claims


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # torch's and FBGEMM's, of what they lack
    kernels.use("native")
    kernels.set_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    results, claims = measure(QUICK if arguments.quick else FULL)
    print(f"\n{'kernel':24}{'case':48}{'ms':>9}{'M/s':>9}{'GB/s':>8}{'of copy':>9}   {arguments.threads} threads")
    for row in results.rows:
        rates = f"{row['GB_per_s']:8.2f}{row['of_copy']:9.2f}" if row["GB_per_s"] else f"{'-':>8}{'-':>9}"
        print(f"{row['kernel']:24}{row['case']:48}{row['ms']:9.2f}{row['M_per_s']:9.2f}{rates}")
    finish("kernels", results.rows, claims, arguments.json)


if __name__ == "__main__":
    main()
