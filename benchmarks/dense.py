"""Times forward, backward and SGD of dense towers against the same formulas in plain torch, in turns, in one process.

    python benchmarks/dense.py [--quick] [--threads N] [--json FILE]

The embeddings are given: nothing is looked up. ``dlrm.w1`` is DLRM with 26 features of width 16 (bottom
13-512-256-64-16, top 367-512-256-1), ``dlrm.w2`` with width 64 (bottom 13-512-256-64, top 415-512-256-1), 1024 samples
each; ``fm.w3`` is a factorisation machine of 30 features of width 16, 4096 samples. A claim is plain torch's time over
ours: medians of processor time of the calling thread where there is one thread, of elapsed time where there are more.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from _report import claim, finish, options
from torch import Tensor, nn

from hpcrec import kernels
from hpcrec.models import build_model
from hpcrec.operators import product
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its options and its batch."""

    name: str
    model: str
    options: dict[str, Any]
    n_features: int
    n_dense: int
    width: int
    n_samples: int


TOP = {"top": [512, 256]}
CASES = (
    Case(name="dlrm.w1", model="dlrm", options={"bottom": [512, 256, 64], **TOP}, n_features=26, n_dense=13, width=16,
         n_samples=1024),
    Case(name="dlrm.w2", model="dlrm", options={"bottom": [512, 256], **TOP}, n_features=26, n_dense=13, width=64,
         n_samples=1024),
    Case(name="fm.w3", model="fm", options={}, n_features=30, n_dense=13, width=16, n_samples=4096),
)  # fmt: skip


def plain_dlrm(model: Any, inputs: dict[str, Tensor], dense_BN: Tensor) -> Tensor:
    """DLRM as its formula: layer by layer, a batched matrix product of all vectors, its lower triangle."""
    x_BD = nn.Sequential.forward(model.bottom, dense_BN)
    vectors_BND = torch.cat([x_BD[:, None], inputs["block"]], 1)
    products_BNN = torch.bmm(vectors_BND, vectors_BND.transpose(1, 2))
    products_BP = products_BNN.flatten(1).index_select(1, model.interaction.place_P)
    return nn.Sequential.forward(model.top, torch.cat([x_BD, products_BP], 1)).squeeze(1)


def plain_fm2(pooled_BFD: Tensor) -> Tensor:
    """Half of the square of the sum less the sum of the squares."""
    return 0.5 * (pooled_BFD.sum(1).square().sum(1) - pooled_BFD.square().sum((1, 2)))


def steps(case: Case) -> dict[str, Callable[[], Tensor]]:
    """One step of each form, on the same parameters; each returns the loss."""
    torch.manual_seed(1)
    features = [Feature(name=f"f{i}", cardinality=2) for i in range(case.n_features)]
    model = build_model(case.model, features, case.n_dense, width=case.width, options=case.options)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    dense, label = torch.randn(case.n_samples, case.n_dense), (torch.rand(case.n_samples) < 0.25).float()
    leaves = {
        name: torch.randn(case.n_samples, case.n_features, operator.width).mul_(0.1).requires_grad_(True)
        for name, operator in model.operators.items()
    }

    def ours() -> Tensor:
        inputs = {name: o.finish(o.partial(leaves[name])) for name, o in model.operators.items()}
        return model(inputs, dense)

    def plain() -> Tensor:
        if case.model == "dlrm":
            return plain_dlrm(model, leaves, dense)
        return model({"wide": leaves["wide"].sum(1).squeeze(1), "fm2": plain_fm2(leaves["fm2"])}, dense)

    def step(forward: Callable[[], Tensor]) -> Tensor:
        for leaf in leaves.values():
            leaf.grad = None
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.binary_cross_entropy_with_logits(forward(), label)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return {"torch": lambda: step(plain), "ours": lambda: step(ours)}


def measure(case: Case, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """A row: milliseconds of each form, measured in turns."""
    forms = steps(case)
    losses = [float(step()) for _ in range(3) for step in forms.values()]  # and warm
    assert max(losses) - min(losses) < 1e-3, losses
    samples: dict[str, list[float]] = {name: [] for name in forms}
    end = time.perf_counter() + seconds
    while len(samples["ours"]) < 5 or time.perf_counter() < end:
        for name, step in forms.items():
            start = clock()
            step()
            samples[name].append((clock() - start) * 1e3)
    row: dict[str, Any] = {"case": case.name, "n": len(samples["ours"])}
    for name, values in samples.items():
        row |= {f"{name}_ms": statistics.median(values), f"{name}_ms_min": min(values)}
    return row | {"ratio": row["torch_ms"] / row["ours_ms"]}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    kernels.use("native")
    kernels.set_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    rows = [measure(case, 5.0 if arguments.quick else 30.0, clock) for case in CASES]
    print(f"{arguments.threads} threads; hidden layers by {'oneDNN' if product.onednn_works() else 'plain torch'}")
    print(f"{'case':10}{'torch ms':>10}{'min':>8}{'ours ms':>10}{'min':>8}{'ratio':>8}")
    for row in rows:
        print(f"{row['case']:10}{row['torch_ms']:10.2f}{row['torch_ms_min']:8.2f}{row['ours_ms']:10.2f}"
              f"{row['ours_ms_min']:8.2f}{row['ratio']:8.2f}")  # fmt: skip
    claims = [claim(f"dense.{row['case']}", row["ratio"], "times as fast as plain torch") for row in rows]
    finish("dense", rows, claims, arguments.json)


if __name__ == "__main__":
    main()
