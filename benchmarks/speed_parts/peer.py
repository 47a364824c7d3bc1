"""What all peers share: the dense part in plain torch, the ranks' group, this rank's batches, and the timed loop.

Runs in the peers' own Python: imports torch and ``workload``, nothing of hpcrec. A peer is started by torchrun::

    torchrun --standalone --nproc-per-node 2 peer_tbe.py WORKLOAD DATA OUT WARMUP STEPS
"""
# mypy: disable-error-code="arg-type"

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import workload
from torch import Tensor, nn
from torch.nn import functional


class Dlrm(nn.Module):
    """MLPs and dot products over pooled vectors [b, T, D], which may come in any ``order`` of tables."""

    def __init__(self, w: workload.Workload, order: Sequence[int]) -> None:
        super().__init__()
        weights = iter(workload.dense_weights(w))
        bottom, top = w.layers
        self.bottom = nn.Sequential(*(layer for sizes in bottom for layer in (_linear(sizes, weights), nn.ReLU())))
        self.top = nn.Sequential(*[layer for sizes in top for layer in (_linear(sizes, weights), nn.ReLU())][:-1])
        n = len(w.rows) + 1
        place = torch.tensor([0, *(1 + order.index(table) for table in range(len(w.rows)))])
        row, column = place[torch.tril_indices(n, n, -1)]
        self.register_buffer("pairs", row * n + column, persistent=False)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Logits [b]."""
        x = self.bottom(dense)
        vectors = torch.cat([x.unsqueeze(1), pooled], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([x, products], 1)).squeeze(1)


class Fm(nn.Module):
    """``b + sum of weights + sum over pairs of features of <v_f, v_g>``, over pooled vectors and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, wide: Tensor, pooled: Tensor) -> Tensor:
        """Logits [b] of pooled weights [b, T] and vectors [b, T, D]."""
        total = pooled.sum(1)
        return self.bias + wide.sum(1) + 0.5 * (total.square().sum(1) - pooled.square().sum((1, 2)))


def _linear(sizes: tuple[int, int], weights: Iterator[Any]) -> nn.Linear:
    layer = nn.Linear(*sizes)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(next(weights)))
        layer.bias.zero_()
    return layer


@dataclass(frozen=True)
class Run:
    """One rank's part of a run: where it is, and its batches as tensors.

    Attributes
    ----------
    ids : int64 [N, T, b, L]
    dense : float32 [N, b, X]
    label : float32 [N, b]
    """

    name: str
    w: workload.Workload
    out: Path
    warmup: int
    steps: int
    rank: int
    world: int
    ids: Tensor
    dense: Tensor
    label: Tensor

    @property
    def batch(self) -> int:
        """Samples of a batch on this rank."""
        return self.label.shape[1]

    def model(self, order: Sequence[int]) -> nn.Module:
        """The dense model, for tables in this order."""
        return Fm() if self.w.is_fm else Dlrm(self.w, order)

    def dense_part(self, order: Sequence[int]) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The dense model, under DDP where there are several ranks, and its optimizer."""
        net = self.model(order)
        optimizer = sgd(net)
        if self.world > 1:
            net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)
        return net, optimizer

    def time(self, step: Callable[[int], Tensor], **more: object) -> None:
        """Times ``step(i)``, which returns the mean loss over this rank's samples; rank 0 writes the row."""

        def barrier() -> None:
            if self.world > 1:
                dist.barrier()

        timed = workload.time_steps(lambda i: step(i).item() / self.world, barrier, self.warmup, self.steps)
        losses = torch.tensor(timed["losses"], dtype=torch.float64)
        wall_s = torch.tensor(timed["wall_s"], dtype=torch.float64)
        if self.world > 1:
            dist.all_reduce(losses)
            dist.all_reduce(wall_s, op=dist.ReduceOp.MAX)
        if self.rank == 0:
            timed = {**timed, "losses": losses.tolist(), "wall_s": wall_s.item()}
            row = workload.result(self.w.batch, timed, threads=torch.get_num_threads(), **more)
            workload.write(self.out, row)
        if self.world > 1:
            dist.barrier()
        dist.destroy_process_group()


def start() -> Run:
    """Joins the group and loads this rank's batches."""
    name, data, out, warmup, steps = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    arrays = (torch.from_numpy(values) for values in workload.load(name, Path(data), rank, world))
    return Run(name, workload.WORKLOADS[name], Path(out), int(warmup), int(steps), rank, world, *arrays)


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of dense parameters."""
    return torch.optim.SGD(net.parameters(), lr=workload.LR_DENSE, foreach=True)


def loss_of(logits: Tensor, label: Tensor) -> Tensor:
    """Mean binary cross-entropy over this rank's samples."""
    return functional.binary_cross_entropy_with_logits(logits, label)
