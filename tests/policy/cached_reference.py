"""What one process does in place of policy ``cached``: every dense rank's copies, one row after the other.

Knows of a session how its tables are cut and what is read together, nothing of how that is done. Asserts at every read
that it lacks no more ticks than the policy promises.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tests.reference import Bag, GlobalBatch, Reference, update_rows
from tests.training.dynamic_runs import Rules, ids_of_table

Key = tuple[int, int]  # number of the bundle, row


@dataclass(frozen=True)
class Bundle:
    """Features that read the same tables. ``place`` says where a row is: its part, and what it is called there."""

    features: tuple[str, ...]
    tables: tuple[str, ...]
    place: Callable[[int], tuple[int, int]]


@dataclass
class Copy:
    """Of a row on one dense rank; by table where a row has several."""

    base: dict[str, torch.Tensor] = field(default_factory=dict)
    value: dict[str, torch.Tensor] = field(default_factory=dict)
    held: dict[str, torch.Tensor] = field(default_factory=dict)
    accumulated: dict[str, float] = field(default_factory=dict)  # of each row, the mean over its columns
    squares: dict[str, float] = field(default_factory=dict)
    known: int | None = None
    n: int = 0
    at: int = 0
    since: int = 0
    count: int = 1
    turn: int = 0
    used: int = 0
    life: int | None = 0


class CachedReference:
    """Trains a reference on global batches.

    Parameters
    ----------
    reference : Reference
    bundles : sequence of Bundle
        In the order in which a rank asks for them; of all tables.
    ranks : int
        Dense ranks.
    cuts : callable
        Samples of a batch -> where it is cut into their parts.
    staleness, capacity : int
    evict : str
    max_age : int or None
    drains : sequence of int
        Numbers of steps after which nothing is held back or kept.
    scale : callable
        Number of a step, from 1 -> what learning rates are multiplied by in it.
    columns : mapping of str to int, optional
        Columns of a table that their first owner has; left out: all.
    rules : Rules, optional
        Of dynamic tables: who has a row. Keys are ids then.
    compared : callable, optional
        Number of the bundle, row, number of the step -> whether a read of its copy is compared with the row.

    Attributes
    ----------
    most_missing : int
        The most ticks that any read has lacked.
    counts : dict of str to int
        Reads by what they were answered with, and pushes by their reason, of all ranks.
    dropped : int
        Rows that were pushed of ids that had lost theirs.
    missing, lags : list of int
        Of each read: ticks that it lacked, and those among them that had been pushed by then.
    distances : dict of str to list of float
        By table, of reads that are compared: how far apart, as a share of the row's length.
    made : dict of Key to int
        Ticks of all ranks.
    """

    def __init__(
        self,
        reference: Reference,
        bundles: Sequence[Bundle],
        ranks: int,
        cuts: Callable[[int], Sequence[int]],
        *,
        staleness: int,
        capacity: int,
        evict: str = "lru",
        max_age: int | None = None,
        drains: Sequence[int] = (),
        scale: Callable[[int], float] = lambda step: 1.0,
        columns: Mapping[str, int | None] | None = None,
        rules: Rules | None = None,
        compared: Callable[[int, int, int], bool] = lambda bundle, row, step: False,
    ) -> None:
        self._reference, self._bundles, self._cuts = reference, bundles, cuts
        self._staleness, self._capacity, self._evict, self._max_age = staleness, capacity, evict, max_age
        self._drains, self._done, self._turn, self._scale = set(drains), 0, 0, scale
        self._base_lr = [group["lr"] for group in reference.dense_optimizer.param_groups]  # type: ignore[union-attr]
        self._columns, self._rules, self.dropped = columns or {}, rules, 0
        self._lives = Counter[tuple[str, int]]()  # by family and id: how often it was given a row
        if rules is not None:
            rules.started = lambda family, i: self._lives.update([(family, i)])
        self._copies: list[dict[Key, Copy]] = [{} for _ in range(ranks)]
        self._clock: dict[Key, int] = {}
        self.made: dict[Key, int] = {}
        self._compared, self.missing, self.lags = compared, list[int](), list[int]()
        self.distances: dict[str, list[float]] = {}
        self.most_missing = 0
        self.counts = dict.fromkeys(("copies_read", "misses", "too_old", "evictions"), 0)
        self.counts |= {f"pushed_{reason}": 0 for reason in ("bound", "eviction", "no_room", "no_row", "age", "drain")}

    def step(self, batch: GlobalBatch, *, left_out: bool = False) -> float:
        """Loss before the step."""
        self._done += 1
        t, reference = self._done, self._reference
        if self._rules is not None:
            self._rules.admit(batch.bags)
        pushes: list[list[tuple[Key, Copy]]] = [[] for _ in self._copies]
        views = [self._read(rank, self._part(batch, rank), t, pushes[rank]) for rank in range(len(self._copies))]
        reference.module.zero_grad()
        total, loss = self._weight(batch), 0.0
        gradients = []
        for rank, view in enumerate(views):
            loss_of_rank, of_rank = self._backward(self._part(batch, rank), view, total)
            loss += loss_of_rank
            gradients.append(of_rank)
        if not left_out:
            assert reference.dense_optimizer is not None
            for group, lr in zip(reference.dense_optimizer.param_groups, self._base_lr, strict=True):
                group["lr"] = lr * self._scale(t)
            reference.dense_optimizer.step()
        for rank, view in enumerate(views):
            self._push(rank, view, None if left_out else gradients[rank], t, pushes[rank])
        self._apply(pushes, t)
        if t in self._drains:
            for copies in self._copies:
                assert not any(copy.n for copy in copies.values())
                copies.clear()
        if self._rules is not None:
            self._rules.forget()
        return loss

    def _life(self, key: Key) -> int | None:
        """Which life of its id a row is in; 0 of declared tables, None where the id has no row."""
        if self._rules is None:
            return 0
        table = self._bundles[key[0]].tables[0]
        family = next(f.name for f in self._rules.families if table in f.tables)
        return self._lives[family, key[1]] if key[1] in self._rules.rows[family] else None

    def _at(self, name: str, row: int) -> int:
        """Where the reference has it."""
        return row if self._rules is None else int(np.searchsorted(ids_of_table(name), row))

    def _part(self, batch: GlobalBatch, rank: int) -> GlobalBatch:
        first, last = self._cuts(len(batch.label))[rank : rank + 2]
        bags = {}
        for name, bag in batch.bags.items():
            a, b = bag.offsets[first], bag.offsets[last]
            weights = None if bag.weights is None else bag.weights[a:b]
            bags[name] = Bag(bag.ids[a:b], bag.offsets[first : last + 1] - a, weights)
        weight = None if batch.weight is None else batch.weight[first:last]
        return GlobalBatch(batch.dense[first:last], batch.label[first:last], weight, bags)

    @staticmethod
    def _weight(batch: GlobalBatch) -> float:
        return float(len(batch.label) if batch.weight is None else batch.weight.sum(dtype=np.float64))

    def _asked(self, part: GlobalBatch) -> list[Key]:
        keys = []
        for b, bundle in enumerate(self._bundles):
            rows = {int(i) for f in bundle.features for i in part.bags[f].ids}
            keys += [(b, row) for row in sorted(rows, key=bundle.place)]
        return keys

    def _read(
        self, rank: int, part: GlobalBatch, t: int, out: list[tuple[Key, Copy]]
    ) -> dict[Key, tuple[Copy | None, dict[str, torch.Tensor]]]:
        """Of each row that is asked for: its copy, if it has room for one, and what is read."""
        copies, asked = self._copies[rank], self._asked(part)
        for key in asked:  # first those that are there are used, then others get their room
            if key in copies:
                self._turn += 1
                copies[key].used, copies[key].turn, copies[key].count = t, self._turn, copies[key].count + 1
        for key in asked:
            if key not in copies and (self._has_room(copies, key) or self._gave_way(rank, key, t, out)):
                self._turn += 1
                copies[key] = Copy(used=t, turn=self._turn)
        found = {}
        for key in asked:
            copy, tables = copies.get(key), self._bundles[key[0]].tables
            life = self._life(key)
            of = {name: self._at(name, key[1]) if life is not None else -1 for name in tables}
            rows = {name: self._reference.tables[name].bags.weight.detach()[of[name]].clone() for name in tables}
            if life is None:  # it is read as it is, and no copy is kept
                self._has_no_row(copy, key, out)
                self.lags.append(0)
                found[key] = None, rows
                continue
            clock = self._clock.get(key, 0)
            known = None if copy is None else copy.known
            if copy is not None and self._max_age is not None and t - copy.at >= self._max_age:
                known = None
            sent = known is None or clock - known > self._staleness or (copy is not None and copy.life != life)
            self.counts["misses"] += known is None
            self.counts["too_old"] += known is not None and sent
            self.counts["copies_read"] += not sent
            if copy is not None and sent:
                copy.base, copy.known, copy.at, copy.life = rows, clock, t, life
                copy.accumulated = {name: self._accumulated(name, key[1]) for name in tables}
                copy.value = self._preview(copy, self._scale(t - 1) if t > 1 else 1.0)
            contained = clock if copy is None else copy.known + copy.n  # type: ignore[operator]
            missing = self.made.get(key, 0) - contained
            self.missing.append(missing)
            self.lags.append(0 if sent else clock - known)  # type: ignore[operator]
            if copy is not None and not sent and self._compared(*key, t):
                self._compare(copy.value, rows)
            self.most_missing = max(self.most_missing, missing)
            assert 0 <= missing <= len(self._copies) * self._staleness, (key, missing)
            found[key] = copy, rows if copy is None else copy.value
        return found

    def _compare(self, read: Mapping[str, torch.Tensor], rows: Mapping[str, torch.Tensor]) -> None:
        for name, row in rows.items():
            if row.norm() > 0:
                self.distances.setdefault(name, []).append(float((read[name] - row).norm() / row.norm()))

    def _has_no_row(self, copy: Copy | None, key: Key, out: list[tuple[Key, Copy]]) -> None:
        self.counts["misses"] += copy is None or copy.known is None
        self.counts["too_old"] += copy is not None and copy.known is not None
        if copy is None:
            return
        if copy.n:
            self.counts["pushed_no_row"] += 1
            out.append((key, Copy(held=copy.held, squares=dict(copy.squares), n=copy.n)))
        copy.known, copy.n = None, 0

    def _has_room(self, copies: Mapping[Key, Copy], key: Key) -> bool:
        return sum(self._beside(key, other) for other in copies) < self._capacity

    def _beside(self, key: Key, other: Key) -> bool:
        """Whether their copies are in one pool: those of a dynamic table have their own."""
        return self._rules is None or key[0] == other[0]

    def _gave_way(self, rank: int, to: Key, t: int, out: list[tuple[Key, Copy]]) -> bool:
        copies = self._copies[rank]
        free = [key for key, copy in copies.items() if copy.used != t and self._beside(to, key)]
        if not free:
            return False
        first = min(free, key=lambda k: (copies[k].count if self._evict == "lfu" else 0, copies[k].turn))
        copy = copies.pop(first)
        self.counts["evictions"] += copy.at > 0  # an id without a row has a place, and nothing in it
        if copy.n:
            self.counts["pushed_eviction"] += 1
            out.append((first, copy))
        return True

    def _accumulated(self, name: str, row: int) -> float:
        """Of its first columns, where several owners have some."""
        states = self._reference.tables[name].states
        if not states:
            return 0.0
        return float(states["accumulator"][self._at(name, row)].reshape(-1)[: self._columns.get(name)].mean())

    def _preview(self, copy: Copy, scale: float) -> dict[str, torch.Tensor]:
        if not copy.n:
            return copy.base
        found = {}
        for name, base in copy.base.items():
            optimizer, sums = self._reference.tables[name].optimizer, copy.held[name]
            rate = torch.tensor(optimizer.lr * scale, dtype=base.dtype)
            if optimizer.name != "sgd":
                before = torch.tensor(copy.accumulated[name], dtype=base.dtype)
                rate = _rate(optimizer, scale, before, _spread(optimizer.name, copy.squares[name], sums), copy.n)
            found[name] = (base - rate * sums).clamp(-optimizer.bound, optimizer.bound)
        return found

    def _backward(
        self, part: GlobalBatch, view: dict[Key, tuple[Copy | None, dict[str, torch.Tensor]]], total: float
    ) -> tuple[float, dict[Key, dict[str, torch.Tensor]]]:
        """The part's loss, of the global mean, and the gradients of the rows that it reads."""
        reference = self._reference
        kept = {name: table.bags.weight.detach().clone() for name, table in reference.tables.items()}
        for name, table in reference.tables.items():
            table.bags.weight.grad = None
            for (b, row), (_, rows) in view.items():
                if name in self._bundles[b].tables and self._life((b, row)) is not None:
                    table.bags.weight.data[self._at(name, row)] = rows[name]
        loss = reference.loss(reference.logits(part), part) * (self._weight(part) / total)
        loss.backward()
        gradients: dict[Key, dict[str, torch.Tensor]] = {}
        for b, row in view:
            of = {}
            for name in self._bundles[b].tables:
                grad = reference.tables[name].bags.weight.grad
                at = self._at(name, row)
                of[name] = torch.zeros_like(kept[name][at]) if grad is None else grad[at].clone()
            gradients[b, row] = of
        for name, table in reference.tables.items():
            table.bags.weight.data.copy_(kept[name])
        return loss.item(), gradients

    def _push(
        self,
        rank: int,
        view: dict[Key, tuple[Copy | None, dict[str, torch.Tensor]]],
        gradients: dict[Key, dict[str, torch.Tensor]] | None,
        t: int,
        out: list[tuple[Key, Copy]],
    ) -> None:
        for key, (copy, _) in view.items() if gradients is not None else ():
            assert gradients is not None
            if self._life(key) is None:
                continue
            self.made[key] = self.made.get(key, 0) + 1
            if copy is None:
                self.counts["pushed_no_room"] += 1
                squares = {n: float((g**2).mean()) for n, g in gradients[key].items()}
                out.append((key, Copy(held=gradients[key], squares=squares, n=1)))
            else:
                copy.since = copy.since if copy.n else t
                for n, g in gradients[key].items():
                    copy.squares[n] = (copy.squares[n] if copy.n else 0.0) + float((g**2).mean())
                copy.held = {n: copy.held[n] + g if copy.n else g for n, g in gradients[key].items()}
                copy.n += 1
                copy.value = self._preview(copy, self._scale(t))
        for key, copy in self._copies[rank].items():
            reason = None
            if copy.n > self._staleness and key in view:
                reason = "bound"
            elif copy.n and self._max_age is not None and t - copy.since >= self._max_age:
                reason = "age"
            elif copy.n and t in self._drains:
                reason = "drain"
            if reason is not None:
                self.counts[f"pushed_{reason}"] += 1
                out.append((key, Copy(held=copy.held, squares=dict(copy.squares), n=copy.n)))
                copy.base = copy.value = self._preview(copy, self._scale(t))
                copy.accumulated = {n: copy.accumulated[n] + copy.squares[n] for n in copy.held}
                assert copy.known is not None
                copy.known = None if self._staleness == 0 else copy.known + copy.n
                copy.n = 0

    def _apply(self, pushes: Sequence[Sequence[tuple[Key, Copy]]], t: int) -> None:
        merged: dict[Key, list[Copy]] = {}
        for of_rank in pushes:
            for key, copy in of_rank:
                merged.setdefault(key, []).append(copy)
                self._clock[key] = self._clock.get(key, 0) + copy.n
        for (b, row), copies in merged.items():
            if self._life((b, row)) is None:
                self.dropped += len(copies)
                continue
            ticks = max(copy.n for copy in copies)
            for name in self._bundles[b].tables:
                total = copies[0].held[name]
                for copy in copies[1:]:
                    total = total + copy.held[name]
                table, optimizer = self._reference.tables[name], self._reference.tables[name].optimizer
                at = self._at(name, row)
                with torch.no_grad():
                    if ticks == 1 or optimizer.name == "sgd":
                        update_rows(table, torch.tensor([at]), total[None], lr_scale=self._scale(t), step=t)
                        continue
                    of_each = [_spread(optimizer.name, copy.squares[name], copy.held[name]) for copy in copies]
                    squares = torch.stack(of_each).sum(0)
                    rate = _rate(optimizer, self._scale(t), table.states["accumulator"][at], squares, ticks)
                    table.states["accumulator"][at] += squares
                    moved = table.bags.weight[at] - rate * total
                    table.bags.weight[at] = moved.clamp(-optimizer.bound, optimizer.bound)


def _spread(name: str, squares: float, sums: torch.Tensor) -> torch.Tensor:
    """By how much an accumulator grows: a number of a row's, or of each element as its own square says."""
    if name == "rowwise_adagrad":
        return torch.tensor(squares, dtype=sums.dtype)
    mean = float((sums**2).mean())
    return sums**2 * (squares / mean if mean > 0 else 0.0)


def _rate(optimizer: Any, scale: float, before: torch.Tensor, squares: torch.Tensor, ticks: int) -> torch.Tensor:
    """What multiplies a sum of so many steps' gradients."""
    lr = optimizer.lr * scale
    if ticks == 1:
        return lr / ((before + squares).sqrt() + optimizer.eps)
    half = squares / (2 * ticks)
    return 2 * lr / ((before + half).sqrt() + (before + squares + half).sqrt() + 2 * optimizer.eps)


def first_columns(session: object) -> dict[str, int | None]:
    """Of each table: the columns of the owner that has its first ones."""
    layout = session.parts.exchange.layout  # type: ignore[attr-defined]
    return {
        s.table: s.columns[1] for leg in layout.legs.values() for s in leg.apart if s.columns[0] == 0
    }  # fmt: skip


def bundles_of(session: object) -> list[Bundle]:
    """Those of a session whose features all have the form."""
    layout = session.parts.exchange.layout  # type: ignore[attr-defined]
    found = []
    for form in layout.bundled():
        family = form.family

        def place(row: int, family: object = family) -> tuple[int, int]:
            if family.kind != "row":  # type: ignore[attr-defined]
                return 0, row
            part, there = family.deal(np.array([row]))  # type: ignore[attr-defined]
            return int(part[0]), int(there[0])

        found.append(Bundle(form.features, tuple(layout.tables_of[form.features[0]]), place))
    return found
