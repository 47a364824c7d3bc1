"""What one process does in place of policy ``cached``: every dense rank's copies, one row after the other.

Knows of a session how its tables are cut and what is read together, nothing of how that is done. Asserts at every read
that it lacks no more ticks than the policy promises.
"""

import math
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
    promised: int = 0  # what it will know of its owner's clock once all answers on their way are in place
    n: int = 0
    at: int = 0
    since: int = 0
    has: int = 0  # ticks of the row, and of pushes since
    count: int = 1
    turn: int = 0
    used: int = 0
    life: int | None = 0


@dataclass
class Answer:
    """What an owner has answered to an ask for a row, as it was then."""

    copy: Copy | None
    sent: bool
    rows: dict[str, torch.Tensor]
    accumulated: dict[str, float]
    clock: int
    learned: int
    life: int | None


@dataclass
class Pushed:
    """A push on its way, until an answer contains it."""

    step: int
    key: Key
    copy: Copy
    scale: float


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
    rule : str
        ``sum``: the clock of a row is the number of its ticks; ``max``: the largest of what copies knew and pushed.
    evict : str
    window : int
        Under ``known``: steps that it looks ahead.
    max_age : int or None
    lookahead : int
        Steps by which rows are asked for ahead.
    drains, evaluated : sequence of int
        Numbers of steps after which nothing is held back, nor kept at the first.
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
        rule: str = "sum",
        evict: str = "lru",
        window: int = 0,
        max_age: int | None = None,
        lookahead: int = 0,
        drains: Sequence[int] = (),
        evaluated: Sequence[int] = (),
        scale: Callable[[int], float] = lambda step: 1.0,
        columns: Mapping[str, int | None] | None = None,
        rules: Rules | None = None,
        compared: Callable[[int, int, int], bool] = lambda bundle, row, step: False,
    ) -> None:
        self._reference, self._bundles, self._cuts = reference, bundles, cuts
        self._staleness, self._capacity, self._evict, self._max_age = staleness, capacity, evict, max_age
        self._window, self._later = window, list[dict[Key, int]]()  # by rank: the next step in it that asks for a row
        self._drains, self._done, self._turn, self._scale = set(drains), 0, 0, scale
        self._whole = {*drains, *evaluated}
        self._base_lr = [group["lr"] for group in reference.dense_optimizer.param_groups]  # type: ignore[union-attr]
        self._columns, self._rules, self.dropped = columns or {}, rules, 0
        self._lives = Counter[tuple[str, int]]()  # by family and id: how often it was given a row
        if rules is not None:
            rules.started = lambda family, i: self._lives.update([(family, i)])
        self._copies: list[dict[Key, Copy]] = [{} for _ in range(ranks)]
        self._rule = rule
        self._clock: dict[Key, int] = {}
        self._learned: dict[Key, int] = {}  # ticks, by whatever rule
        self._lookahead, self._asked_until = lookahead, 0
        self._answers: dict[int, list[dict[Key, Answer]]] = {}  # by step
        self._left: list[list[tuple[Key, Copy]]] = [[] for _ in range(ranks)]  # of copies that are gone
        self._on_way: list[list[Pushed]] = [[] for _ in range(ranks)]
        self.made: dict[Key, int] = {}
        self._compared, self.missing, self.lags = compared, list[int](), list[int]()
        self.distances: dict[str, list[float]] = {}
        self.most_missing = 0
        self.counts = dict.fromkeys(("copies_read", "misses", "too_old", "evictions"), 0)
        self.counts |= {f"pushed_{reason}": 0 for reason in ("bound", "eviction", "no_room", "no_row", "age", "drain")}

    def step(self, batch: GlobalBatch, *, left_out: bool = False, coming: Sequence[GlobalBatch] = ()) -> float:
        """Loss before the step; ``coming`` are all batches after it, of which it looks at as many as it may."""
        self._done += 1
        t, reference = self._done, self._reference
        until = min([t + self._lookahead, t + len(coming), *(drain for drain in self._whole if drain >= t)])
        for u in range(self._asked_until + 1, until + 1):
            self._look_ahead(u, coming[u - t : u - t + self._window])
            self._ask(u, [batch, *coming][u - t])
        self._asked_until = until
        pushes, self._left = self._left, [[] for _ in self._copies]
        answers = self._answers.pop(t)
        views = [self._begin(rank, answers[rank], t, pushes[rank]) for rank in range(len(self._copies))]
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
        if t in self._whole:
            assert not self._answers
            for rank, copies in enumerate(self._copies):
                assert not any(copy.n for copy in copies.values()) and not self._left[rank]
                self._on_way[rank].clear()
                if t in self._drains:
                    copies.clear()
        if self._rules is not None:
            self._rules.forget()
        return loss

    def goes_on(
        self,
        bundles: Sequence[Bundle],
        ranks: int,
        cuts: Callable[[int], Sequence[int]],
        columns: Mapping[str, int | None],
    ) -> None:
        """After a drain, on other ranks: the arguments of ``CachedReference`` that depend on them.

        Clocks of rows begin anew, as those of a run that goes on from a checkpoint do.
        """
        assert self._done in self._drains and not any(self._copies), "copies are left behind"
        self._bundles, self._cuts, self._columns = bundles, cuts, columns
        self._copies = [{} for _ in range(ranks)]
        self._clock, self._learned, self.made = {}, {}, {}
        self._left, self._on_way = [[] for _ in range(ranks)], [[] for _ in range(ranks)]

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

    def _look_ahead(self, u: int, batches: Sequence[GlobalBatch]) -> None:
        """Of the steps after ``u`` in the window: which is the first, on each rank, that asks for a row."""
        self._later = [{} for _ in self._copies]
        for rank, later in enumerate(self._later):
            for v, batch in enumerate(batches, u + 1):
                for key in self._asked(self._part(batch, rank)):
                    later.setdefault(key, v)

    def _ask(self, u: int, batch: GlobalBatch) -> None:
        """All ranks ask for the rows of step ``u``, and owners answer."""
        if self._rules is not None:
            self._rules.admit(batch.bags)
        asked = [self._asked(self._part(batch, rank)) for rank in range(len(self._copies))]
        for rank, keys in enumerate(asked):
            self._make_room(rank, keys, u)
        self._answers[u] = [self._answered(rank, keys, u) for rank, keys in enumerate(asked)]

    def _make_room(self, rank: int, asked: Sequence[Key], u: int) -> None:
        copies = self._copies[rank]
        for key in asked:  # first those that are there are used, then others get their room
            if key in copies:
                self._turn += 1
                copies[key].used, copies[key].turn, copies[key].count = u, self._turn, copies[key].count + 1
        for key in sorted(asked, key=lambda key: self._next_use(rank, key)):  # those that are asked for again first
            if key not in copies and (self._has_room(copies, key) or self._gave_way(rank, key, u, self._left[rank])):
                self._turn += 1
                copies[key] = Copy(used=u, turn=self._turn)

    def _answered(self, rank: int, asked: Sequence[Key], u: int) -> dict[Key, Answer]:
        found = {}
        for key in asked:
            copy, tables, life = self._copies[rank].get(key), self._bundles[key[0]].tables, self._life(key)
            of = {name: self._at(name, key[1]) if life is not None else -1 for name in tables}
            rows = {name: self._reference.tables[name].bags.weight.detach()[of[name]].clone() for name in tables}
            clock, has = self._clock.get(key, 0), copy is not None and copy.known is not None
            if copy is not None and self._max_age is not None and u - copy.at >= self._max_age:
                has = False
            if self._staleness == 0 and self._lookahead > 0:
                has = False  # a step in between may push it
            sent = not has or life is None
            if copy is not None and not sent:
                sent = clock - copy.promised > self._staleness or copy.life != life
            self.counts["misses"] += not has
            self.counts["too_old"] += has and sent
            self.counts["copies_read"] += not sent
            accumulated = {} if life is None else {name: self._accumulated(name, key[1]) for name in tables}
            if copy is not None and sent:
                copy.promised, copy.life = clock, life
            self.lags.append(0 if copy is None or sent else clock - copy.promised)
            if copy is not None and not sent and self._compared(*key, u):
                self._compare(copy.value, rows)
            found[key] = Answer(copy, sent, rows, accumulated, clock, self._learned.get(key, 0), life)
        return found

    def _begin(
        self, rank: int, answers: Mapping[Key, Answer], t: int, out: list[tuple[Key, Copy]]
    ) -> dict[Key, tuple[Copy | None, dict[str, torch.Tensor]]]:
        """Of each row that the step reads: its copy, if it has room for one, and what is read."""
        self._on_way[rank] = [push for push in self._on_way[rank] if push.step >= t - self._lookahead]
        found = {}
        for key, answer in answers.items():
            copy = answer.copy
            if answer.life is None:  # it is read as it is, and no copy is kept
                self._has_no_row(copy, key, out)
                found[key] = None, answer.rows
                continue
            if copy is None or answer.sent:
                fresh = Copy(base=answer.rows, accumulated=answer.accumulated, known=answer.clock, has=answer.learned)
                for push in self._on_way[rank]:
                    if push.key == key:
                        self._contains(fresh, push)
                if copy is None:
                    contained, read = fresh.has, fresh.base
                else:
                    copy.base, copy.accumulated, copy.at = fresh.base, fresh.accumulated, t
                    copy.known, copy.has = fresh.known, fresh.has
                    copy.value = self._preview(copy, self._scale(t - 1) if t > 1 else 1.0)
            if copy is not None:
                assert copy.known is not None
                contained, read = copy.has + copy.n, copy.value
            missing = self.made.get(key, 0) - contained
            self.missing.append(missing)
            self.most_missing = max(self.most_missing, missing)
            assert 0 <= missing <= self._most(), (key, missing)
            found[key] = copy, read
        return found

    def _compare(self, read: Mapping[str, torch.Tensor], rows: Mapping[str, torch.Tensor]) -> None:
        for name, row in rows.items():
            if row.norm() > 0:
                self.distances.setdefault(name, []).append(float((read[name] - row).norm() / row.norm()))

    def _contains(self, copy: Copy, push: Pushed) -> None:
        """What came becomes what a push on its way will make of it."""
        held = Copy(base=copy.base, held=push.copy.held, squares=push.copy.squares, n=push.copy.n)
        held.accumulated = copy.accumulated
        copy.base = self._preview(held, push.scale)
        copy.accumulated = {n: of + push.copy.squares.get(n, 0.0) for n, of in copy.accumulated.items()}
        copy.known, copy.has = copy.known + push.copy.n, copy.has + push.copy.n  # type: ignore[operator]

    def _most(self) -> int:
        """Ticks that a read may lack."""
        ranks = len(self._copies)
        lag = self._staleness * (ranks if self._rule == "sum" else 3 * (ranks - 1))
        return lag + (ranks - 1) * self._lookahead

    def _has_no_row(self, copy: Copy | None, key: Key, out: list[tuple[Key, Copy]]) -> None:
        if copy is None:
            return
        if copy.n:
            self.counts["pushed_no_row"] += 1
            out.append((key, _gone(copy)))
        copy.known, copy.n = None, 0

    def _has_room(self, copies: Mapping[Key, Copy], key: Key) -> bool:
        return sum(self._beside(key, other) for other in copies) < self._capacity

    def _beside(self, key: Key, other: Key) -> bool:
        """Whether their copies are in one pool: those of a dynamic table have their own."""
        return self._rules is None or key[0] == other[0]

    def _gave_way(self, rank: int, to: Key, t: int, out: list[tuple[Key, Copy]]) -> bool:
        copies = self._copies[rank]
        free = [key for key, copy in copies.items() if t - copy.used > self._lookahead and self._beside(to, key)]
        if not free:
            return False
        counts = self._evict == "lfu"
        first = min(free, key=lambda k: (copies[k].count if counts else -self._next_use(rank, k), copies[k].turn))
        if self._evict == "known" and self._next_use(rank, to) >= self._next_use(rank, first):
            return False  # it is worth no more than any that is there
        copy = copies.pop(first)
        self.counts["evictions"] += copy.at > 0  # an id without a row has a place, and nothing in it
        if copy.n:
            self.counts["pushed_eviction"] += 1
            out.append((first, copy))
        return True

    def _next_use(self, rank: int, key: Key) -> float:
        """The next step of the window that asks for a row: infinity where none does. Only ``known`` knows any."""
        return self._later[rank].get(key, math.inf) if self._evict == "known" else 0.0

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
                now = self._clock.get(key, 0)
                out.append((key, Copy(held=gradients[key], squares=squares, n=1, known=now, life=self._life(key))))
                if key in self._copies[rank]:  # a later step has found room
                    self._copies[rank][key].promised += 1
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
            elif copy.n and t in self._whole:
                reason = "drain"
            if reason is not None:
                self.counts[f"pushed_{reason}"] += 1
                out.append((key, _gone(copy)))
                copy.base = copy.value = self._preview(copy, self._scale(t))
                copy.accumulated = {n: copy.accumulated[n] + copy.squares[n] for n in copy.held}
                assert copy.known is not None
                copy.known = None if self._staleness == 0 or self._rule == "max" else copy.known + copy.n
                copy.promised += copy.n
                copy.has, copy.n = copy.has + copy.n, 0

    def _apply(self, pushes: Sequence[Sequence[tuple[Key, Copy]]], t: int) -> None:
        merged: dict[Key, list[Copy]] = {}
        for rank, of_rank in enumerate(pushes):
            self._on_way[rank] += [Pushed(t, key, copy, self._scale(t)) for key, copy in of_rank]
            for key, copy in of_rank:
                merged.setdefault(key, []).append(copy)
        for key, copies in merged.items():
            clock, ticks = self._clock.get(key, 0), sum(copy.n for copy in copies)
            self._learned[key] = self._learned.get(key, 0) + ticks
            if self._rule == "sum":
                self._clock[key] = clock + ticks
                continue
            knew = [clock if copy.life != self._life(key) else copy.known for copy in copies]
            risen = [known + copy.n for known, copy in zip(knew, copies, strict=True)]  # type: ignore[operator]
            self._clock[key] = max(clock, *risen)
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


def _gone(copy: Copy) -> Copy:
    """What is pushed of it, and what it knew."""
    return Copy(held=copy.held, squares=dict(copy.squares), n=copy.n, known=copy.known, life=copy.life)


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
