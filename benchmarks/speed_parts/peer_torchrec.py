"""Peer: TorchRec's DistributedModelParallel with FBGEMM's fused row-wise Adagrad; the planner places the tables.

The dense part is the peers' own, like everybody's here; TorchRec's ``DLRM`` picks the products by a slower index.
"""

import logging

import peer
import torch
import torch.distributed as dist
import workload
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, PoolingType
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class Model(nn.Module):
    """Tables, dense part and loss."""

    def __init__(self, run: peer.Run) -> None:
        super().__init__()
        uniform = {"weight_init_max": run.w.init_scale, "weight_init_min": -run.w.init_scale}
        tables = [
            EmbeddingBagConfig(
                name=f"t{i}",
                embedding_dim=run.w.width,
                num_embeddings=rows,
                feature_names=[f"f{i}"],
                pooling=PoolingType.SUM,
                **uniform,
            )
            for i, rows in enumerate(run.w.rows)
        ]
        self.tables = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.dense = run.model(range(len(tables)))
        self.keys, self.width = [f"f{i}" for i in range(len(tables))], run.w.width

    def forward(self, dense: Tensor, ids: KeyedJaggedTensor, label: Tensor) -> Tensor:
        """Mean loss over this rank's samples."""
        pooled = self.tables(ids)
        vectors = pooled.values().view(len(label), -1, self.width)
        if list(pooled.keys()) != self.keys:
            vectors = vectors[:, [pooled.keys().index(key) for key in self.keys]]
        return peer.loss_of(self.dense(dense, vectors), label)


def batches_of(run: peer.Run, keys: list[str]) -> list[tuple[Tensor, KeyedJaggedTensor, Tensor]]:
    """This rank's batches as TorchRec takes them."""
    lengths = torch.full((len(keys) * run.batch,), run.w.ids, dtype=torch.int32)
    offsets = torch.arange(0, len(keys) * run.batch * run.w.ids + 1, run.w.ids, dtype=torch.int32)
    return [
        (
            run.dense[n],
            KeyedJaggedTensor(keys, run.ids[n].reshape(-1), lengths=lengths, offsets=offsets, stride=run.batch),
            run.label[n],
        )
        for n in range(run.w.n_batches)
    ]


def main() -> None:
    logging.disable(logging.WARNING)
    run = peer.start()
    model = Model(run)
    keys = model.keys
    apply_optimizer_in_backward(
        RowWiseAdagrad, model.tables.parameters(), {"lr": run.w.lr_rows, "eps": workload.EPS_ROWS}
    )
    sharders = [EmbeddingBagCollectionSharder()]
    topology = Topology(world_size=run.world, compute_device="cpu")
    planner = EmbeddingShardingPlanner(topology=topology, batch_size=run.batch)
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    of_dense = dict(in_backward_optimizer_filter(sharded.named_parameters()))
    dense = KeyedOptimizerWrapper(of_dense, lambda p: torch.optim.SGD(p, lr=workload.LR_DENSE, foreach=True))
    optimizer = CombinedOptimizer([sharded.fused_optimizer, dense])
    batches = batches_of(run, keys)

    def step(i: int) -> Tensor:
        optimizer.zero_grad()
        loss = sharded(*batches[i % run.w.n_batches])
        loss.backward()
        optimizer.step()
        return loss.detach()

    run.time(step, plan=sorted({p.sharding_type for module in plan.plan.values() for p in module.values()}))


if __name__ == "__main__":
    main()
