"""Peer: FBGEMM's CPU table-batched embedding by hand, the tables split whole over ranks, DDP for the dense part.

Ids and pooled vectors cross by gloo's all_to_all_single, one call a direction. An FM's width-1 tables are tables of
width 4 (FBGEMM's least) of which three columns stay unread: row-wise Adagrad takes the mean over columns, so half the
learning rate learns the same.
"""

from typing import Any

import fbgemm_gpu  # noqa: F401  registers the operators
import peer
import torch
import torch.distributed as dist
import workload
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor

WIDE = 4


class Cross(torch.autograd.Function):
    """[B, own tables * D] for the samples of all ranks -> [b, all tables * D] for this rank's samples."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, columns: list[int], batch: int) -> Tensor:
        """Pooled vectors, from the tables' ranks to the samples' ranks."""
        ctx.columns, ctx.batch, ctx.rank_columns = columns, batch, own.shape[1]
        got = own.new_empty(batch * sum(columns))
        sizes = [batch * c for c in columns]
        dist.all_to_all_single(got, own.reshape(-1), sizes, [batch * own.shape[1]] * len(columns))
        return torch.cat([part.view(batch, -1) for part in got.split(sizes)], 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Their gradients, the other way."""
        world, columns, batch = len(ctx.columns), ctx.columns, ctx.batch
        sent = torch.cat([part.reshape(-1) for part in gradient.split(columns, 1)])
        got = gradient.new_empty(world * batch * ctx.rank_columns)
        sizes = [batch * ctx.rank_columns] * world
        dist.all_to_all_single(got, sent, sizes, [batch * c for c in columns])
        return got.view(world * batch, -1).div_(world), None, None  # DDP takes means over ranks, so do the tables


class Tables:
    """This rank's tables, and the way to them and back."""

    def __init__(self, run: peer.Run) -> None:
        self.run, rows = run, run.w.rows
        by_size = sorted(range(len(rows)), key=lambda table: -rows[table])
        owned = [sorted(by_size[rank :: run.world]) for rank in range(run.world)]
        self.order = [table for tables in owned for table in tables]
        self.counts = [len(tables) for tables in owned]
        self.own = owned[run.rank]
        self.block = self._tbe(run.w.width, run.w.lr_rows)
        self.wide = self._tbe(WIDE, run.w.lr_rows / WIDE**0.5) if run.w.is_fm else None
        n = len(self.own) * run.w.batch
        self.offsets = torch.arange(0, n * run.w.ids + 1, run.w.ids)
        self.ids = run.ids[:, self.order].contiguous() if run.world > 1 else run.ids
        self.wire = self.ids.to(torch.int32) if run.world > 1 else self.ids

    def _tbe(self, width: int, lr: float) -> SplitTableBatchedEmbeddingBagsCodegen:
        tbe = SplitTableBatchedEmbeddingBagsCodegen(
            [(self.run.w.rows[t], width, EmbeddingLocation.HOST, ComputeDevice.CPU) for t in self.own],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=lr,
            eps=workload.EPS_ROWS,
            stochastic_rounding=False,
        )
        tbe.init_embedding_weights_uniform(-self.run.w.init_scale, self.run.w.init_scale)
        return tbe

    def ids_of(self, number: int) -> Tensor:
        """Ids of the global batch for this rank's tables."""
        run, each = self.run, self.run.batch * self.run.w.ids
        flat = self.wire[number % run.w.n_batches].reshape(-1)
        if run.world == 1:
            return flat
        got = torch.empty(run.world * len(self.own) * each, dtype=torch.int32)
        parts = ([len(self.own) * each] * run.world, [count * each for count in self.counts])
        dist.all_to_all_single(got, flat, *parts)
        by_rank = got.view(run.world, len(self.own), -1)
        ids = torch.empty(len(self.own), run.world, by_rank.shape[2], dtype=torch.int64)
        return ids.copy_(by_rank.transpose(0, 1)).view(-1)

    def pooled(self, ids: Tensor, tbe: SplitTableBatchedEmbeddingBagsCodegen, width: int) -> Tensor:
        """[b, T, D], tables in the order of owners."""
        own = tbe(ids, self.offsets)
        if self.run.world > 1:
            own = Cross.apply(own, [count * width for count in self.counts], self.run.batch)
        return own.view(self.run.batch, -1, width)


def main() -> None:
    run = peer.start()
    tables = Tables(run)
    net, optimizer = run.dense_part(tables.order)

    def step(i: int) -> Tensor:
        optimizer.zero_grad()
        number = i % run.w.n_batches
        ids = tables.ids_of(i)
        vectors = tables.pooled(ids, tables.block, run.w.width)
        wide = None if tables.wide is None else tables.pooled(ids, tables.wide, WIDE)[:, :, 0]
        first = run.dense[number] if wide is None else wide
        loss = peer.loss_of(net(first, vectors), run.label[number])
        loss.backward()
        optimizer.step()
        return loss.detach()

    run.time(step)


if __name__ == "__main__":
    main()
