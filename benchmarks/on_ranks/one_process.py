"""Policy ``cached`` on several dense ranks, computed by one: the same updates in the same steps, several times as fast.

Each rank's copies of all rows are arrays here, and the model sees the whole batch at once, each sample with the vectors
that its rank would read. So a run differs from one over ranks by the order of sums alone; ``tests/test_one_process.py``
holds it to that in float64. Room for every row, declared tables, sums, no age and no look ahead: what a run of the AUC
parts has. Drains once, at the end. Knows the definition (docs/consistency.md), DeepFM's three operators and a session
of one rank, of which it uses the data, the model, the schedule and the evaluation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hpcrec.data.deal import cut, equal_parts
from hpcrec.data.loader import Loader
from hpcrec.errors import HpcrecError
from hpcrec.training.session import Session
from hpcrec.training.update import update_dense
from hpcrec.types import Batch, Floats, Ints

NEVER = -1  # a copy has never been sent, or is to be sent anew


@dataclass
class Table:
    """A feature's rows: of a table, and of one of a single column that is read with it, as one row of both.

    ``first`` is the number of its first row among those of all features.
    """

    feature: str
    pooling: str
    names: tuple[str, str]
    rows: int
    first: int


class Copies:
    """Owners' rows, and what each of some dense ranks keeps of them.

    Parameters
    ----------
    rows : float [N, D]
        Of all features; changed in place.
    spans : sequence of slice
        The columns of each table.
    ranks, staleness : int
    lr, eps : float
    adagrad : bool
        Row-wise Adagrad, with an accumulator of each table's part of a row; else SGD.
    """

    def __init__(
        self, rows: Floats, spans: Sequence[slice], ranks: int, staleness: int, lr: float, eps: float, *, adagrad: bool
    ) -> None:
        self.rows, self._spans, self._staleness = rows, spans, staleness
        self._n, self._lr, self._eps, self._adagrad = len(rows), rows.dtype.type(lr), rows.dtype.type(eps), adagrad
        self.accumulator = np.zeros((self._n, len(spans)), rows.dtype)
        self._clock = np.zeros(self._n, np.int64)
        of_all = ranks * self._n  # copy of row k on rank r: r N + k
        self._value, self._base, self._held = (np.zeros((of_all, rows.shape[1]), rows.dtype) for _ in range(3))
        self._known, self._ticks = np.full(of_all, NEVER, np.int64), np.zeros(of_all, np.int64)
        self._accumulated, self._squares = (np.zeros((of_all, len(spans)), rows.dtype) for _ in range(2))

    def read(self, copy_U: Ints, scale: float) -> Floats:
        """Values [U, D] of distinct copies; those that are too old are sent. ``scale``: of the step before."""
        row_U = copy_U % self._n
        known = self._known[copy_U]
        sent = (known == NEVER) | (self._clock[row_U] - known > self._staleness)
        of, row = copy_U[sent], row_U[sent]
        self._base[of], self._accumulated[of], self._known[of] = self.rows[row], self.accumulator[row], self._clock[row]
        self._value[of] = self._shown(of, scale)
        return self._value[copy_U]

    def learn(self, copy_U: Ints, gradients_UD: Floats, scale: float, *, drains: bool) -> None:
        """What a step adds to the copies that it has read; what has more than it may is pushed, or all that is held."""
        held = (self._ticks[copy_U] > 0)[:, None]
        self._held[copy_U] = np.where(held, self._held[copy_U] + gradients_UD, gradients_UD)
        squares = self._mean_squares(gradients_UD)
        self._squares[copy_U] = np.where(held, self._squares[copy_U] + squares, squares)
        self._ticks[copy_U] += 1
        self._value[copy_U] = self._shown(copy_U, scale)
        self._push(np.flatnonzero(self._ticks) if drains else copy_U[self._ticks[copy_U] > self._staleness], scale)

    def drain(self, scale: float) -> None:
        """All that is held back is pushed, by a step that adds nothing."""
        self._push(np.flatnonzero(self._ticks), scale)

    def _push(self, of: Ints, scale: float) -> None:
        ticks, sums, squares = self._ticks[of], self._held[of].copy(), self._squares[of].copy()
        self._base[of] = self._value[of] = self._shown(of, scale)
        self._accumulated[of] += squares
        self._known[of] = NEVER if self._staleness == 0 else self._known[of] + ticks
        self._ticks[of] = 0
        row_V, place = np.unique(of % self._n, return_inverse=True)  # rank after rank
        total, grown = (
            np.zeros((len(row_V), sums.shape[1]), sums.dtype),
            np.zeros((len(row_V), squares.shape[1]), sums.dtype),
        )
        most = np.zeros(len(row_V), np.int64)
        np.add.at(total, place, sums)
        np.add.at(grown, place, squares)
        np.maximum.at(most, place, ticks)
        np.add.at(self._clock, of % self._n, ticks)
        one = (most == 1)[:, None]
        grown = np.where(one, self._mean_squares(total), grown)  # as ``sync`` has it
        rate = self._rate(self.accumulator[row_V], grown, most, scale)
        self.rows[row_V] -= rate * total
        self.accumulator[row_V] += grown

    def _shown(self, of: Ints, scale: float) -> Floats:
        """What copies show: what came, and what a rank holds back on it."""
        ticks = self._ticks[of]
        rate = self._rate(self._accumulated[of], self._squares[of], ticks, scale)
        return np.where((ticks > 0)[:, None], self._base[of] - rate * self._held[of], self._base[of])

    def _rate(self, before: Floats, squares: Floats, ticks: Ints, scale: float) -> Floats:
        """What multiplies sums of so many steps' gradients [V, D]."""
        lr = self._lr * self.rows.dtype.type(scale)
        if not self._adagrad:
            return np.broadcast_to(lr, (len(ticks), self.rows.shape[1]))
        half = squares / (2 * np.maximum(ticks, 1)[:, None]).astype(squares.dtype)
        several = 2 * lr / (np.sqrt(before + half) + np.sqrt(before + squares + half) + 2 * self._eps)
        single = lr / (np.sqrt(before + squares) + self._eps)
        found = np.where((ticks > 1)[:, None], several, single)
        return np.repeat(found, [span.stop - span.start for span in self._spans], axis=1)

    def _mean_squares(self, gradients: Floats) -> Floats:
        return np.stack([(gradients[:, span] ** 2).mean(axis=1) for span in self._spans], axis=1)


class OneProcess:
    """The steps of a session of one rank, computed as if so many dense ranks shared its batches.

    Parameters
    ----------
    session : Session
        Of a DeepFM under ``sync`` whose features each have tables of their own.
    ranks, staleness : int
    """

    def __init__(self, session: Session, ranks: int, staleness: int) -> None:
        assert session.parts.dense is not None and session.topology.size == 1
        self._session, self._ranks = session, ranks
        self._model: Any = session.parts.dense.model
        operators: Mapping[str, Any] = self._model.operators
        wide = {lookup.feature: lookup.table for lookup in operators["wide"].lookups}
        deep = operators["fm2"].lookups
        assert set(operators) == {"wide", "fm2", "first"} and set(wide) == {of.feature for of in deep}, "a DeepFM"
        assert not {of.pooling for of in deep} - {"sum", "mean"}
        self._tables, first, specs = list[Table](), 0, session.parts.tables
        for of in deep:
            rows = specs[of.table].rows
            self._tables.append(Table(of.feature, of.pooling, (of.table, wide[of.feature]), rows, first))
            first += rows
        assert len({of.names for of in self._tables}) == len(self._tables), "tables of their own"
        spec = specs[self._tables[0].names[0]]
        self._width, o = spec.width, spec.optimizer
        assert o.name in ("sgd", "rowwise_adagrad") and math.isinf(o.bound) and o.initial_accumulator == 0
        dtype = np.dtype(str(session.parts.dtype).removeprefix("torch."))
        every = np.zeros((first, self._width + 1), dtype)
        for table in self._tables:
            for name, span in zip(table.names, self._spans, strict=True):
                for ids, values, _ in session.parts.store.export(name):  # type: ignore[union-attr]
                    every[table.first + ids, span] = values
        self.copies = Copies(every, self._spans, ranks, staleness, o.lr, o.eps, adagrad=o.name == "rowwise_adagrad")

    @property
    def _spans(self) -> tuple[slice, slice]:
        return slice(0, self._width), slice(self._width, self._width + 1)

    def run(self, steps: int) -> list[float]:
        """So many steps from the first one on, and the drain; then the session has the rows. Their losses."""
        parts, losses, before = self._session.parts, list[float](), 1.0
        split = parts.splits["train"]
        with Loader(split.dataset, split.order, part=0, parts=1, prefetch=2).batches(0, 0, steps) as batches:
            for step, batch in enumerate(batches):
                scale = parts.schedule.multiplier(step)
                row_scale = scale if parts.scale_embeddings else 1.0
                losses.append(self._step(batch, before, row_scale, scale, step=step, last=step == steps - 1))
                before = row_scale
        self._give_back()
        return losses

    def _step(self, batch: Batch, before: float, row_scale: float, scale: float, *, step: int, last: bool) -> float:
        dense = self._session.parts.dense
        assert dense is not None and batch.weight is None
        copy_K, offsets_FB = self._copies_of(batch)
        copy_U, place_K = np.unique(copy_K, return_inverse=True)
        values = torch.from_numpy(self.copies.read(copy_U, before)).requires_grad_()
        dense.model.train()
        dense.reducer.zero_grad()
        bags = functional.embedding_bag(
            torch.from_numpy(place_K), values, torch.from_numpy(offsets_FB), mode="sum", include_last_offset=True
        )
        logits = self._model(
            self._inputs(self._pooled(bags, offsets_FB)), torch.from_numpy(batch.dense).to(values.dtype)
        )
        label = torch.from_numpy(batch.label).to(values.dtype)
        loss = functional.binary_cross_entropy_with_logits(logits, label)
        loss.backward()
        dense.reducer.send()
        assert values.grad is not None
        if bool(loss.isfinite()) and bool(values.grad.isfinite().all()):
            update_dense(self._session.parts, step, scale)
            self.copies.learn(copy_U, values.grad.numpy(), row_scale, drains=last)
        else:  # the step is left out
            dense.reducer.cancel()
            if last:
                self.copies.drain(row_scale)
        return float(loss.detach())

    def _copies_of(self, batch: Batch) -> tuple[Ints, Ints]:
        """Which copies [K] are read, feature by feature and sample by sample, and where each bag begins, [F B + 1]."""
        n, every, lengths = len(batch.label), list[Ints](), list[Ints]()
        rank_B = np.repeat(np.arange(self._ranks), np.diff(cut(equal_parts, n, self._ranks)))
        offsets, names = np.asarray(batch.bags.offsets), list(batch.bags.features)
        assert batch.bags.weights is None
        for of in self._tables:
            at = names.index(of.feature)
            ends = offsets[at * n : (at + 1) * n + 1]
            lengths.append(np.diff(ends))
            ids = batch.bags.ids[ends[0] : ends[-1]] + of.first
            every.append(ids + np.repeat(rank_B, lengths[-1]) * len(self.copies.rows))
        return np.concatenate(every), np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)

    def _pooled(self, bags: Tensor, offsets_FB: Ints) -> Tensor:
        """Sums, or means, of bags: [F, B, D]."""
        counts = torch.from_numpy(np.maximum(np.diff(offsets_FB), 1).reshape(len(self._tables), -1, 1)).to(bags.dtype)
        means = torch.tensor([of.pooling == "mean" for of in self._tables])[:, None, None]
        found = bags.view(len(self._tables), -1, bags.shape[1])
        return torch.where(means, found / counts, found) if bool(means.any()) else found

    def _inputs(self, vectors_FBD: Tensor) -> Mapping[str, Tensor]:
        deep, wide = vectors_FBD[..., : self._width], vectors_FBD[..., self._width]
        total = deep.sum(0)
        first = self._model.operators["first"]
        return {
            "wide": wide.sum(0),
            "fm2": ((total**2).sum(1) - (deep**2).sum((0, 2))) / 2,
            "first": torch.cat(list(deep), 1) @ torch.cat(list(first.weights)),
        }

    def _give_back(self) -> None:
        store = self._session.parts.store
        assert store is not None
        for of in self._tables:
            mine = self.copies.rows[of.first : of.first + of.rows]
            for name, span in zip(of.names, self._spans, strict=True):
                width = span.stop - span.start
                store.load(name, np.arange(of.rows), np.ascontiguousarray(mine[:, span]), {}, (0, width))


def run(session: Session, ranks: int, staleness: int) -> dict[str, Any]:
    """A whole run, and the AUC of its validation; 0 where that cannot be, of a model that has diverged."""
    losses = OneProcess(session, ranks, staleness).run(session.total_steps)
    return {"left_out": int((~np.isfinite(losses)).sum()), **evaluated(session)}


def evaluated(session: Session) -> dict[str, float]:
    """AUC and log-loss of the validation data; an AUC of 0 where that cannot be, of a model that has diverged."""
    try:
        found = session.evaluate("validation")
    except HpcrecError as error:
        if "not finite" not in str(error):
            raise
        return {"auc": 0.0, "logloss": math.inf}
    return {"auc": found["auc"], "logloss": found["logloss"]}
