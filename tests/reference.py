"""The single-process reference: one process, whole tables, the global batch at once. Imports torch and NumPy only.

It repeats nothing of hpcrec's code: operators come from their formulas, row optimizers from their definitions, and
lookups from ``torch.nn.EmbeddingBag``. A distributed run on the parts of the same global batches must give the same
logits, losses and rows.

Use::

    reference = Reference(module, describe(module.operators), {"f": rows_f, ...}, {"f": RowOptimizer(...), ...},
                          torch.optim.SGD(module.parameters(), 0.1))
    loss, logits = reference.step(join(parts), lr_scale=1.0)      # parts: the ranks' hpcrec.types.Batch, in rank order
    reference.rows("f"), reference.states("f")

Legend: ``B`` samples of the global batch, ``F`` lookups, ``D`` row width, ``N`` dense inputs, ``L`` labels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

Lookups = Sequence[tuple[str, str, str]]  # (feature, table, pooling)


class Bag(NamedTuple):
    """Ids of one feature: those of sample b are ``ids[offsets[b] : offsets[b + 1]]``."""

    ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None = None


@dataclass
class GlobalBatch:
    """All samples of a step, in global order."""

    dense: np.ndarray  # [B, N]
    label: np.ndarray  # [B] or [B, L]
    weight: np.ndarray | None  # [B]
    bags: dict[str, Bag]


@dataclass
class RowOptimizer:
    """``sgd``, ``adagrad``, ``rowwise_adagrad`` or ``adam``, for the touched rows of one table."""

    name: str = "sgd"
    lr: float = 0.1
    eps: float = 1e-8
    beta1: float = 0.9
    beta2: float = 0.999
    initial_accumulator: float = 0.0
    bound: float = float("inf")


@dataclass
class Table:
    """A whole table, its optimizer and that optimizer's states."""

    bags: nn.EmbeddingBag
    optimizer: RowOptimizer
    states: dict[str, Tensor] = field(default_factory=dict)


def describe(operators: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Operator objects as plain data: name -> (kind, [(feature, table, pooling), ...]), then weights or a module."""
    return {
        name: (
            type(operator).__name__,
            [(k.feature, k.table, k.pooling) for k in operator.lookups],
            *(getattr(operator, what) for what in ("weights", "module") if hasattr(operator, what)),
        )
        for name, operator in operators.items()
    }


def join(parts: Sequence[Any]) -> GlobalBatch:
    """The global batch of the ranks' parts (each like ``hpcrec.types.Batch``), in rank order."""
    bags: dict[str, Bag] = {}
    for f, name in enumerate(parts[0].bags.features):
        ids, lengths, weights = [], [], []
        for part in parts:
            n = len(part.label)
            offsets = np.asarray(part.bags.offsets)[f * n : (f + 1) * n + 1]
            ids.append(part.bags.ids[offsets[0] : offsets[-1]])
            lengths.append(np.diff(offsets))
            if part.bags.weights is not None:
                weights.append(part.bags.weights[offsets[0] : offsets[-1]])
        joined = np.concatenate(([0], np.cumsum(np.concatenate(lengths)))).astype(np.int64)
        bags[name] = Bag(np.concatenate(ids), joined, np.concatenate(weights) if weights else None)
    return GlobalBatch(
        dense=np.concatenate([part.dense for part in parts]),
        label=np.concatenate([part.label for part in parts]),
        weight=None if parts[0].weight is None else np.concatenate([part.weight for part in parts]),
        bags=bags,
    )


def operator_result(kind: str, pooled: Sequence[Tensor], weights: Any = ()) -> Tensor:
    """An operator from its formula; ``pooled`` has a [B, D] for each of its lookups. Of a tower its module."""
    if kind == "Tower":
        return weights(torch.stack(list(pooled), 1))
    if kind == "Folded":
        return torch.cat(list(pooled), 1) @ torch.cat(list(weights))
    if kind == "Block":
        return torch.stack(list(pooled), 1)
    total_BD = sum(pooled[1:], start=pooled[0])
    if kind == "WideSum":
        return total_BD[:, 0] if total_BD.shape[1] == 1 else total_BD
    if kind == "FM2":
        pairs = [(pooled[i] * pooled[j]).sum(1) for i in range(len(pooled)) for j in range(i)]
        return sum(pairs, start=torch.zeros_like(total_BD[:, 0]))
    raise ValueError(f"no formula for operator {kind!r}")


def segment_max(rows: Tensor, ids: Tensor, offsets: Tensor) -> Tensor:
    """The largest of each column of a bag's rows, [B, D]; of equal ones the first; zeros of an empty bag."""
    bags = []
    for first, last in zip(offsets.tolist(), offsets.tolist()[1:], strict=False):
        own = ids[first:last]
        if first == last:
            bags.append(torch.zeros_like(rows[0]))
        else:  # NumPy's argmax gives the first of equals, torch's any
            winner_D = own[torch.as_tensor(rows.detach()[own].numpy().argmax(0))]
            bags.append(rows[winner_D, torch.arange(rows.shape[1])])
    return torch.stack(bags) if bags else rows[:0]


class Reference:
    """Trains ``module`` and whole tables on global batches.

    Parameters
    ----------
    module : nn.Module
        ``module(inputs, dense)`` gives logits. It is trained in place: pass a copy.
    operators : mapping
        Name -> (kind, [(feature, table, pooling), ...]), then its weights, parameters of the module, if it has any; see
        ``describe``.
    tables : mapping of str to array [rows, D]
        Initial rows; row i belongs to id i, or to the ids that ``row_of`` maps to i.
    optimizers : mapping of str to RowOptimizer
        By table.
    dense_optimizer : torch.optim.Optimizer or None
        Over the module's parameters; None for a module without any.
    dtype : torch.dtype
        Of rows and inputs; the module must have it already.
    row_of : mapping of str to callable, optional
        Table -> function from ids to rows, where they differ (hashed tables).
    """

    def __init__(
        self,
        module: nn.Module,
        operators: Mapping[str, tuple[Any, ...]],
        tables: Mapping[str, np.ndarray],
        optimizers: Mapping[str, RowOptimizer],
        dense_optimizer: torch.optim.Optimizer | None,
        *,
        dtype: torch.dtype = torch.float32,
        row_of: Mapping[str, Callable[[np.ndarray], np.ndarray]] | None = None,
    ) -> None:
        self.module = module
        self.operators = operators
        self.dense_optimizer = dense_optimizer
        self.dtype = dtype
        self.n_steps = 0
        self._row_of = row_of or {}
        self._base_lr = [group["lr"] for group in dense_optimizer.param_groups] if dense_optimizer else []
        self.tables = {name: self._table(rows, optimizers[name]) for name, rows in tables.items()}

    def _table(self, rows: np.ndarray, optimizer: RowOptimizer) -> Table:
        weight = torch.tensor(rows, dtype=self.dtype)
        bags = nn.EmbeddingBag.from_pretrained(weight, freeze=False, mode="sum", include_last_offset=True)
        states = {}
        if optimizer.name == "adagrad":
            states["accumulator"] = torch.full_like(weight, optimizer.initial_accumulator)
        elif optimizer.name == "rowwise_adagrad":
            states["accumulator"] = torch.full_like(weight[:, 0], optimizer.initial_accumulator)
        elif optimizer.name == "adam":
            states = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
        return Table(bags, optimizer, states)

    def rows(self, table: str) -> np.ndarray:
        """The table as it stands, [rows, D]."""
        return self.tables[table].bags.weight.detach().numpy().copy()

    def states(self, table: str) -> dict[str, np.ndarray]:
        """Its optimizer's states: [rows, D], or [rows] for row-wise ones."""
        return {name: state.numpy().copy() for name, state in self.tables[table].states.items()}

    def logits(self, batch: GlobalBatch) -> Tensor:
        """Logits [B] or [B, L], under autograd."""
        results = {}
        pooled: dict[tuple[str, str], Tensor] = {}
        for name, (kind, lookups, *weights) in self.operators.items():
            for feature, table, pooling in lookups:
                if (feature, table) not in pooled:
                    pooled[feature, table] = self._pool(table, batch.bags[feature], pooling)
            results[name] = operator_result(kind, [pooled[feature, table] for feature, table, _ in lookups], *weights)
        return self.module(results, torch.as_tensor(batch.dense, dtype=self.dtype))

    def _pool(self, table: str, bag: Bag, pooling: str) -> Tensor:
        """Weighted sums of rows [B, D]; a mean divides by the number of ids; or a max; an empty bag gives zeros."""
        ids, offsets = torch.as_tensor(self._rows_of(table, bag.ids)), torch.as_tensor(bag.offsets)
        if pooling == "max":
            assert bag.weights is None or (bag.weights == 1).all(), "no max of weighted ids"
            return segment_max(self.tables[table].bags.weight, ids, offsets)
        weights = None if bag.weights is None else torch.as_tensor(bag.weights, dtype=self.dtype)
        sums_BD = self.tables[table].bags(ids, offsets, per_sample_weights=weights)
        if pooling == "sum":
            return sums_BD
        assert pooling == "mean"
        return sums_BD / offsets.diff().clamp(min=1).to(self.dtype)[:, None]

    def _rows_of(self, table: str, ids: np.ndarray) -> np.ndarray:
        return self._row_of[table](ids) if table in self._row_of else ids

    def loss(self, logits: Tensor, batch: GlobalBatch) -> Tensor:
        """Weighted mean over samples of the binary cross-entropy (mean over labels): a scalar."""
        label = torch.as_tensor(batch.label, dtype=self.dtype)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
        losses_B = losses.mean(1) if losses.dim() == 2 else losses
        weight_B = (
            torch.ones_like(losses_B) if batch.weight is None else torch.as_tensor(batch.weight, dtype=self.dtype)
        )
        return (weight_B * losses_B).sum() / weight_B.sum()

    def step(self, batch: GlobalBatch, lr_scale: float = 1.0) -> tuple[float, np.ndarray]:
        """One training step: (loss, logits) before it."""
        self.n_steps += 1
        self.module.zero_grad()
        for table in self.tables.values():
            table.bags.weight.grad = None
        logits = self.logits(batch)
        loss = self.loss(logits, batch)
        loss.backward()
        if self.dense_optimizer is not None:
            for group, lr in zip(self.dense_optimizer.param_groups, self._base_lr, strict=True):
                group["lr"] = lr * lr_scale
            self.dense_optimizer.step()
        for name, touched in self.touched(batch).items():
            table = self.tables[name]
            gradient = table.bags.weight.grad
            if gradient is None:  # the loss does not depend on this table
                gradient = torch.zeros_like(table.bags.weight)
            with torch.no_grad():
                update_rows(table, touched, gradient[touched], lr_scale=lr_scale, step=self.n_steps)
        return loss.item(), logits.detach().numpy()

    def touched(self, batch: GlobalBatch) -> dict[str, Tensor]:
        """Table -> the rows that occur in the batch, ascending; whatever their gradients."""
        found: dict[str, list[np.ndarray]] = {}
        for _, lookups, *_ in self.operators.values():
            for feature, table, _ in lookups:
                found.setdefault(table, []).append(self._rows_of(table, batch.bags[feature].ids))
        return {table: torch.as_tensor(np.unique(np.concatenate(rows))) for table, rows in found.items()}


def update_rows(table: Table, rows_U: Tensor, gradient_UD: Tensor, *, lr_scale: float, step: int) -> None:
    """One optimizer step of the rows ``rows_U`` (distinct), by gradients summed over their occurrences."""
    optimizer, states, weight = table.optimizer, table.states, table.bags.weight
    lr = optimizer.lr * lr_scale
    if optimizer.name == "sgd":
        change_UD = lr * gradient_UD
    elif optimizer.name == "adagrad":
        states["accumulator"][rows_U] += gradient_UD**2
        change_UD = lr * gradient_UD / (states["accumulator"][rows_U].sqrt() + optimizer.eps)
    elif optimizer.name == "rowwise_adagrad":
        states["accumulator"][rows_U] += (gradient_UD**2).mean(1)
        change_UD = lr * gradient_UD / (states["accumulator"][rows_U].sqrt() + optimizer.eps)[:, None]
    elif optimizer.name == "adam":
        beta1, beta2 = optimizer.beta1, optimizer.beta2
        states["exp_avg"][rows_U] = m_UD = beta1 * states["exp_avg"][rows_U] + (1 - beta1) * gradient_UD
        states["exp_avg_sq"][rows_U] = v_UD = beta2 * states["exp_avg_sq"][rows_U] + (1 - beta2) * gradient_UD**2
        step_size = lr * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        change_UD = step_size * m_UD / (v_UD.sqrt() + optimizer.eps)
    else:
        raise ValueError(f"no definition of optimizer {optimizer.name!r}")
    weight[rows_U] = (weight[rows_U] - change_UD).clamp(-optimizer.bound, optimizer.bound)
