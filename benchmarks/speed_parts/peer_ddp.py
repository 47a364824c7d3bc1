"""Peer: nn.EmbeddingBag under DDP, every rank with all tables, gradients sparse.

The tables of all features are one ``EmbeddingBag`` over ids with the tables' first rows added, so that there is one
lookup and one sparse sum a step. torch has no row-wise Adagrad, and its Adagrad keeps as much state as rows; the one
here keeps one number a row. An FM's weights are a table beside it.
"""
# mypy: disable-error-code="arg-type"

from itertools import accumulate

import peer
import torch
import workload
from torch import Tensor, nn


class Model(nn.Module):
    """All tables, and the dense part: one module, for DDP."""

    def __init__(self, run: peer.Run) -> None:
        super().__init__()
        w = run.w
        widths = (w.width, 1) if w.is_fm else (w.width,)
        self.tables = nn.ModuleList(nn.EmbeddingBag(sum(w.rows), n, mode="sum", sparse=True) for n in widths)
        for table in self.tables:
            nn.init.uniform_(table.weight, -w.init_scale, w.init_scale)
        self.dense = run.model(range(len(w.rows)))
        self.n_tables = len(w.rows)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Logits [b] of ids [b * T, L]."""
        vectors, *wide = (table(ids).view(len(dense), self.n_tables, -1) for table in self.tables)
        return self.dense(wide[0].squeeze(2) if wide else dense, vectors)


class RowwiseAdagrad:
    """Steps the rows that a sparse gradient touches, by the mean square of each row's gradient."""

    def __init__(self, tables: nn.ModuleList, lr: float) -> None:
        self.weights, self.lr = [table.weight for table in tables], lr
        self.sums = [torch.zeros(len(weight)) for weight in self.weights]

    @torch.no_grad()
    def step(self) -> None:
        """Uses up the gradients."""
        for weight, sums in zip(self.weights, self.sums, strict=True):
            gradient = weight.grad.coalesce()
            rows, values = gradient.indices()[0], gradient.values()
            touched = sums.index_select(0, rows) + values.square().mean(1)
            sums.index_copy_(0, rows, touched)
            values.mul_((-self.lr / (touched.sqrt_() + workload.EPS_ROWS)).unsqueeze(1))
            weight.index_add_(0, rows, values)
            weight.grad = None


def main() -> None:
    run = peer.start()
    model = Model(run)
    optimizers = [RowwiseAdagrad(model.tables, run.w.lr_rows), peer.sgd(model.dense)]
    net: nn.Module = model
    if run.world > 1:
        net = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    first = torch.tensor([0, *accumulate(run.w.rows)][:-1]).view(1, -1, 1, 1)
    ids = (run.ids + first).transpose(1, 2).flatten(1, 2).contiguous()

    def step(i: int) -> Tensor:
        optimizers[1].zero_grad()
        number = i % run.w.n_batches
        loss = peer.loss_of(net(run.dense[number], ids[number]), run.label[number])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss.detach()

    run.time(step)


if __name__ == "__main__":
    main()
