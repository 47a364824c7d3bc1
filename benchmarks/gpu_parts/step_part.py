"""A step of the embeddings of W1 and W2 beside torch's own tables on the same GPU. One part for each workload.

Batch 65,536, tables and ids as ``_workloads.py`` has them (drawn on the device). The step is ids to rows of one block,
pooled gather, group, and the optimizer's step by gradients that are given. torch has it in two ways, of which the
faster counts: an ``EmbeddingBag(sparse=True)`` for each table, whose outputs are joined as ours lie, and
``torch.optim.Adagrad``; and one table for all, as it is written by hand, with ``embedding_bag``, ``unique``,
``index_add_`` (whose sums have no order of their own), and Adagrad over the distinct rows. Ours is Adagrad too in the
case that is claimed, and row-wise Adagrad in another. ``gpu.step.*``: torch's time over ours.

The whole step has a tower on both sides: the tables' dot products (in bfloat16, as all its products), an MLP, log-loss
and SGD. Where the GPU has not the memory, the batch is halved until it fits; the row says so.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from _workloads import W1, W2, Workload
from gpu_parts.bench import Found, Machine, Part, Work, close

from hpcrec import kernels
from hpcrec.types import OptimizerSpec

WORKLOADS = {"W1": W1, "W2": W2}
BATCH = 65536
LR, EPS = 0.02, 1e-10
ADAGRAD = OptimizerSpec(name="adagrad", eps=EPS)
ROWWISE = OptimizerSpec(name="rowwise_adagrad", eps=EPS)
HIDDEN = (512, 256)
GOAL = ">= 5"


class Ours:
    """All tables in a block."""

    def __init__(self, machine: Machine, workload: Workload, tables: list[torch.Tensor], spec: OptimizerSpec) -> None:
        self._machine, self._spec = machine, spec
        self.rows = torch.cat(tables)
        shapes = kernels.state_shapes(spec, *self.rows.shape)
        self.states = {name: torch.zeros(shape, device=machine.place) for name, shape in shapes.items()}
        heights = torch.tensor([0, *(len(t) for t in tables[:-1])], device=machine.place)
        self._bases = heights.cumsum(0)[:, None, None]
        n_bags = len(tables) * workload.batch
        self._offsets = machine.array(machine.arange(0, n_bags * workload.pooling + 1, workload.pooling))
        self._places = machine.device.array(workload.places())
        self.pooled = torch.zeros((workload.batch, len(tables) * workload.width), device=machine.place)
        self._index: Any = None

    def forward(self, ids_TBP: torch.Tensor) -> torch.Tensor:
        """Vectors [B, tables x width]."""
        array = self._machine.array
        self._index = array((ids_TBP + self._bases).view(-1))
        out = array(self.pooled.view(-1))
        kernels.pooled_gather(array(self.rows), self._index, self._offsets, out, out_start=self._places)
        return self.pooled

    def backward(self, gradient: torch.Tensor) -> None:
        """Steps the rows by the gradient of the vectors."""
        array = self._machine.array
        states = {name: array(state) for name, state in self.states.items()}
        grouping = kernels.group(self._index, self._offsets)
        flat = array(gradient.reshape(-1))
        kernels.merge_update(self._spec, array(self.rows), states, grouping, flat, self._places, lr=LR, step=1)

    def step(self, ids_TBP: torch.Tensor, gradient: torch.Tensor) -> None:
        """Both."""
        self.forward(ids_TBP)
        self.backward(gradient)


class Torch:
    """A module for each table."""

    def __init__(self, tables: list[torch.Tensor]) -> None:
        self.bags = [torch.nn.EmbeddingBag(*t.shape, mode="sum", sparse=True, _weight=t.clone()) for t in tables]
        self.optimizer = torch.optim.Adagrad([bag.weight for bag in self.bags], lr=LR, eps=EPS)

    def forward(self, ids_TBP: torch.Tensor) -> torch.Tensor:
        """Vectors [B, tables x width]."""
        return torch.cat([bag(ids) for bag, ids in zip(self.bags, ids_TBP, strict=True)], 1)

    def backward(self, pooled: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """From the vectors, or a loss of them, to stepped tables."""
        self.optimizer.zero_grad()
        pooled.backward(gradient)
        self.optimizer.step()

    def step(self, ids_TBP: torch.Tensor, gradient: torch.Tensor) -> None:
        """Both."""
        self.backward(self.forward(ids_TBP), gradient)


class TorchJoined:
    """All tables in one, and Adagrad by hand."""

    def __init__(self, tables: list[torch.Tensor]) -> None:
        self.rows = torch.cat(tables)
        self._state = torch.zeros_like(self.rows)
        heights = torch.tensor([0, *(len(t) for t in tables[:-1])], device=self.rows.device)
        self._bases = heights.cumsum(0)[:, None, None]
        self._index = torch.empty((0, 0))

    def forward(self, ids_TBP: torch.Tensor) -> torch.Tensor:
        """Vectors [B, tables x width]."""
        n_tables, batch, pooling = ids_TBP.shape
        self._index = (ids_TBP + self._bases).view(-1, pooling)
        pooled = torch.nn.functional.embedding_bag(self._index, self.rows, mode="sum")
        return pooled.view(n_tables, batch, -1).transpose(0, 1).reshape(batch, -1)

    def backward(self, gradient: torch.Tensor) -> None:
        """Steps the rows by the gradient of the vectors."""
        batch, (n_bags, pooling) = len(gradient), self._index.shape
        of_bags = gradient.view(batch, n_bags // batch, -1).transpose(0, 1).reshape(n_bags, -1)
        unique, inverse = torch.unique(self._index.view(-1), return_inverse=True)
        summed = torch.zeros((len(unique), self.rows.shape[1]), device=self.rows.device)
        summed.index_add_(0, inverse, of_bags.repeat_interleave(pooling, 0))
        state = self._state[unique].addcmul_(summed, summed)
        self._state[unique] = state
        self.rows[unique] = self.rows[unique].addcdiv_(summed, state.sqrt_().add_(EPS), value=-LR)

    def step(self, ids_TBP: torch.Tensor, gradient: torch.Tensor) -> None:
        """Both."""
        self.forward(ids_TBP)
        self.backward(gradient)


class Tower:
    """The dense part: dot products of the tables' vectors, an MLP, a loss; and its optimizer."""

    def __init__(self, machine: Machine, n_tables: int, width: int, batch: int) -> None:
        self._shape, self._place = (batch, n_tables, width), machine.place
        self.label = torch.randint(2, (batch, 1), generator=machine.random, device=machine.place).float()
        sizes = (n_tables * (width + n_tables), *HIDDEN)
        layers = []
        for n_in, n_out in pairwise(sizes):
            layers += [torch.nn.Linear(n_in, n_out), torch.nn.ReLU()]
        self.mlp = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 1)).to(machine.place)
        self.optimizer = torch.optim.SGD(self.mlp.parameters(), lr=0.01)

    def loss(self, pooled: torch.Tensor) -> torch.Tensor:
        """Mean log-loss of the vectors."""
        vectors = pooled.view(self._shape)
        with torch.autocast(self._place, torch.bfloat16):
            dots = vectors @ vectors.transpose(1, 2)
            logits = self.mlp(torch.cat([pooled, dots.flatten(1).float()], 1))
        return torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), self.label)

    def whole(self, tables: Ours | TorchJoined, ids: torch.Tensor) -> None:
        """A step of the tower over tables that are in one."""
        self.optimizer.zero_grad()
        pooled = tables.forward(ids).detach().requires_grad_()
        self.loss(pooled).backward()
        assert pooled.grad is not None
        self.optimizer.step()
        tables.backward(pooled.grad)

    def whole_torch(self, tables: Torch, ids: torch.Tensor) -> None:
        """The same over torch's modules."""
        self.optimizer.zero_grad()
        tables.backward(self.loss(tables.forward(ids)), None)
        self.optimizer.step()


def ids_of(machine: Machine, workload: Workload) -> torch.Tensor:
    """int64 [tables, batch, pooling]."""
    shape = (workload.batch, workload.pooling)
    return torch.stack([machine.zipf_ids(n, shape[0] * shape[1]).view(shape) for n in workload.rows])


def tables_of(machine: Machine, workload: Workload) -> list[torch.Tensor]:
    """Rows that the steps begin with."""
    return [0.1 * machine.normal(n, workload.width) for n in workload.rows]


def fitted(machine: Machine, workload: Workload) -> Workload:
    """At the largest batch for which torch's gradients, one row an id, and their sums fit."""
    if machine.emulated:
        small = [min(n, 40) for n in workload.rows]
        return replace(workload, rows=small, width=8, pooling=min(workload.pooling, 3), batch=8)
    batch, row_bytes, free = BATCH, 4 * workload.width, machine.free_bytes()
    while (
        len(workload.rows) * batch * (3 * workload.pooling + 12) * row_bytes + 8 * sum(workload.rows) * row_bytes > free
    ):
        batch //= 2
    return replace(workload, batch=batch)


def check(machine: Machine, workload: Workload) -> bool:
    """Whether vectors and tables after two steps are torch's, on small tables."""
    small = replace(workload, rows=[min(n, 60) for n in workload.rows[:8]], batch=32)
    tables = tables_of(machine, small)
    ours, theirs, joined = Ours(machine, small, tables, ADAGRAD), Torch(tables), TorchJoined(tables)
    good = True
    for _ in range(2):
        ids, gradient = ids_of(machine, small), machine.normal(*ours.pooled.shape)
        good &= close(ours.forward(ids), theirs.forward(ids)) and close(ours.forward(ids), joined.forward(ids))
        for tables_of_one in (ours, theirs, joined):
            tables_of_one.step(ids, gradient)
    good &= close(ours.rows, joined.rows)
    return good and close(ours.rows, torch.cat([bag.weight.detach() for bag in theirs.bags]))


def measure(machine: Machine, name: str) -> Found:
    """All cases of a workload."""
    torch.sparse.check_sparse_tensor_invariants.disable()  # the default; torch warns unless it is chosen
    found = Found(checks={f"{name}: vectors and tables after two steps, torch": check(machine, WORKLOADS[name])})
    workload = fitted(machine, WORKLOADS[name])
    ids, tables = ids_of(machine, workload), tables_of(machine, workload)
    ours, rowwise = (Ours(machine, workload, tables, spec) for spec in (ADAGRAD, ROWWISE))
    theirs, joined = Torch(tables), TorchJoined(tables)
    gradient = 0.01 * machine.normal(*ours.pooled.shape)
    towers = [Tower(machine, len(tables), workload.width, workload.batch) for _ in range(3)]
    said = f"batch {workload.batch:,}, {ids.numel():,} ids, {len(ours.rows):,} rows of {workload.width}"
    if not machine.emulated and workload.batch < BATCH:
        said += ", a smaller batch than asked for, to fit"
    runs = {
        "Adagrad": partial(ours.step, ids, gradient),
        "row-wise Adagrad": partial(rowwise.step, ids, gradient),
        "Adagrad, with a tower": partial(towers[0].whole, ours, ids),
        "torch": partial(theirs.step, ids, gradient),
        "torch, one table": partial(joined.step, ids, gradient),
        "torch, with a tower": partial(towers[1].whole_torch, theirs, ids),
        "torch, one table, with a tower": partial(towers[2].whole, joined, ids),
    }
    works = {f"{name} {kind}": Work(run=run, n_ids=ids.numel(), work=said) for kind, run in runs.items()}
    timed = machine.time(works)
    ways = f"{name} torch", f"{name} torch, one table"
    plain = min(ways, key=timed.rounds.median)
    whole = min((f"{way}, with a tower" for way in ways), key=timed.rounds.median)
    peers = {case: None if "torch" in case else whole if "tower" in case else plain for case in cases(name)}
    found.rows = [timed.row(case, peer) for case, peer in peers.items()]
    found.values[f"gpu.step.{name.lower()}"] = timed.times(f"{name} Adagrad", plain)
    return found


def cases(name: str) -> tuple[str, ...]:
    """Names of the rows."""
    kinds = ("Adagrad", "row-wise Adagrad", "Adagrad, with a tower", "torch", "torch, one table")
    return tuple(f"{name} {kind}" for kind in kinds)


def part(name: str) -> Part:
    """The part of a workload."""
    return Part(
        name=name.lower(),
        cases=cases(name),
        checks=(f"{name}: vectors and tables after two steps, torch",),
        claims=((f"gpu.step.{name.lower()}", "times as fast as torch", GOAL),),
        measure=partial(measure, name=name),
    )
