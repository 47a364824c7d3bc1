"""The dense side of a step, from top to bottom: asks owners for a batch's bags, fills leaves, and sends gradients back.

What is static (which streams of which owner go where) is laid out once as flat arrays over all owners; a step adds how
many bags each entry has. So the cost of a step grows with ids and bags, not with owners, but for partial results, whose
places are counted owner by owner. Where owners read the ids themselves (``id_reader``) there are places, and
no messages. Knows the layout, the forms and one batch; knows no MPI.

Legend: ``S`` streams of all owners, ``E`` entries of all owners, ``V`` vectors of one move, ``R`` ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.sets import name_in
from hpcrec.embedding.store import Store
from hpcrec.exchange import verdict
from hpcrec.exchange.bags import Entries, Requests, Splitter, cumulative
from hpcrec.exchange.columns import Column, Dealing, Dealt
from hpcrec.exchange.copies import DenseCopies, Kept, Wanted
from hpcrec.exchange.dense_places import MessagePlaces, Streams, Tails, places
from hpcrec.exchange.foresight import Foreseen
from hpcrec.exchange.forms.conditional import Asked as AskedRows
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.exchange.host_rows import HostRows, Together
from hpcrec.exchange.inputs import Gradients
from hpcrec.exchange.layout import Layout, LeafGroup, Partial
from hpcrec.exchange.moves import CopyMove, Crossing, MaxMove, Move, PartialMove, PoolMove
from hpcrec.exchange.parts import Places
from hpcrec.exchange.staged import Mover, brought, written
from hpcrec.types import Bags, Floats, Ints

Room = Callable[[Ints], np.ndarray]
"""Bytes of the messages on the wire, int64 [R] -> where to write them, uint8."""
Arrived = tuple[list[Floats], list[tuple[Partial, Floats]]]
"""Leaves [B, F, D], and partial results [B, P]."""

_KEPT = -2  # of a pool: rows are neither here nor on the wire, but those that a conditional form has


@dataclass(frozen=True)
class Asked:
    """One step's work of a dense rank.

    Attributes
    ----------
    id_bytes_R, value_bytes_R, gradient_bytes_R : int64 [R]
        Sizes on the wire: of the ids messages, of what comes back, and of the gradients that follow.
    moves : sequence of Move
    kept_moves : sequence of PoolMove
        Those of rows that conditional forms have: they follow when the step begins, and go before it is learned.
    partials : sequence of PartialMove
    n_samples : int
    filled : sequence of bool
        By leaf group: whether the moves write every element of the leaf; if not, it has to start as zeros.
    verdicts : int64 [N]
        Places in the gradients of the verdicts that this rank tells (``verdict``).
    told : mapping of int to int
        Whom it tells, and the place in that rank's message.
    kept : sequence of Kept
        What conditional forms have of it, by bundle.
    wanted : Wanted or None
        What these ask owners for; None where no form is conditional.
    places, back, bags_R : Places, Places and int64 [R], or None
        Of the vectors that come, of the gradients that go, and how many bags each rank is asked for, where steps come
        in two parts.
    bags_E : int64 [E]
        Bags of each entry of all owners.
    together : Together or None
        What ranks of this host ask for together.
    """

    id_bytes_R: Ints
    value_bytes_R: Ints
    gradient_bytes_R: Ints
    moves: Sequence[Move]
    partials: Sequence[PartialMove]
    n_samples: int
    filled: Sequence[bool]
    verdicts: Ints
    told: Mapping[int, int]
    bags_E: Ints
    kept: Sequence[Kept] = ()
    kept_moves: Sequence[PoolMove] = ()
    wanted: Wanted | None = None
    places: Places | None = None
    back: Places | None = None
    bags_R: Ints | None = None
    together: Together | None = None

    @property
    def crossing_bytes_R(self) -> tuple[Ints, Ints]:
        """``value_bytes_R`` and ``gradient_bytes_R`` of messages as they cross, where hosts ask together."""
        at = None if self.together is None else self.together.crossing
        return (self.value_bytes_R, self.gradient_bytes_R) if at is None else (at.value_bytes_R, at.gradient_bytes_R)

    def take_copies(self) -> "Asked":
        """The same with rows of replicated tables as they are now, whatever their copies learn before ``assemble``."""
        moves = [
            replace(move, table_rows=move.table_rows[move.row_of], row_of=np.arange(len(move.row_of)))
            if isinstance(move, PoolMove) and move.table_rows is not None and move.row_of is not None
            else move
            for move in self.moves
        ]
        return replace(self, moves=moves)

    def assemble(self, device: kernels.Device | None, received: Floats, groups: Sequence[LeafGroup]) -> Arrived:
        """Leaves and partial results, from the values that came: the device's, if there is one."""
        n = int(self.value_bytes_R.sum()) // received.dtype.itemsize
        with brought(device, received, n, 0) as values:
            leaves = [
                kernels.room_beside(values, (self.n_samples, len(g.lookups), g.width), received.dtype) for g in groups
            ]
            for leaf, filled in zip(leaves, self.filled, strict=True):
                if not filled:
                    leaf.fill(0.0)
            for move in self.moves:
                move.forward(values, leaves)
            return leaves, [(p.of, p.take(values)) for p in self.partials]

    def disassemble(
        self, device: kernels.Device | None, found: Gradients, sent: Floats, behind: int, *, learned: bool
    ) -> None:
        """Writes the gradients of both, and the verdict, into the messages, behind which are so many elements more."""
        with written(device, sent, behind) as gradients:
            for move in self.moves:
                move.backward(found.leaves, gradients)
            for partial, gradient_BP in zip(self.partials, found.partials, strict=True):
                partial.give(gradient_BP, gradients)
        verdict.write(sent, self.verdicts, learned=learned)

    def pool_kept(self, device: kernels.Device | None, leaves: Sequence[Floats]) -> None:
        """Rows that conditional forms have -> leaves, which ``assemble`` has begun."""
        with nullcontext() if device is None else device.together():
            for move in self.kept_moves:
                move.forward(leaves[move.group].reshape(-1), leaves)

    def merge_kept(self, device: kernels.Device | None, found: Gradients) -> None:
        """Gradients of leaves -> of these rows."""
        with nullcontext() if device is None else device.together():
            for move in self.kept_moves:
                move.backward(found.leaves, found.leaves[move.group].reshape(-1))


@dataclass(frozen=True)
class _Pool:
    """Bundles with their tables whose rows are pooled alike on this rank, one after the other.

    ``block`` is that of the copies; -1: rows come; -2: a conditional form has them. ``widths``: streams of each width
    that crosses, and the part that each is of. ``features`` and ``places`` are those of all parts, with their lookups'
    places in the leaf.
    """

    group: int
    block: int
    largest: bool
    parts: list[tuple[int, str]]
    widths: dict[int, tuple[Ints, Ints]]
    features: list[str]
    places: list[int]


@dataclass(frozen=True)
class _Step:
    """One batch: its columns, what each form has dealt, and where vectors lie in the messages."""

    columns: Mapping[str, Column]
    dealt: Sequence[tuple[Dealt, Ints | None]]
    requests: Requests
    first_E: Ints
    value_S: Ints
    gradient_S: Ints
    n_samples: int
    tables_of: int
    train: bool
    kept: Sequence[Kept] = ()

    def vectors(self, entry: Ints) -> "_Vectors":
        """Of streams of these entries, one after the other."""
        return _Vectors(self.requests, self.first_E[entry], self.requests.bags_E[entry])


class _Vectors:
    """Vectors of some streams, one stream after the other, bag after bag. A pass over all of them is made when asked.

    Parameters
    ----------
    requests : Requests
    first_S, bags_S : int64 [S]
        Of each stream's entry: its first bag among all that are asked, and how many it has.
    """

    def __init__(self, requests: Requests, first_S: Ints, bags_S: Ints) -> None:
        self._requests, self._first_S, self._bags_S = requests, first_S, bags_S
        self._before_S = np.cumsum(bags_S) - bags_S

    def __len__(self) -> int:
        return int(self._bags_S.sum())

    def of(self, number_S: Ints) -> Ints:
        """A number of each stream, for each of its vectors."""
        return np.repeat(number_S, self._bags_S)

    def lying(self, first_S: Ints, width: int) -> Ints:
        """Where each is, if those of a stream lie one behind the other from its first element on."""
        at = np.arange(0, len(self) * width, width)
        at += self.of(first_S - self._before_S * width)
        return at

    def asked(self) -> Ints:
        """The bag of each, among all that are asked."""
        return self.lying(self._first_S, 1)

    def bag(self) -> Ints:
        """The bag of each in its bundle."""
        shift_S = self._first_S - self._before_S
        if len(shift_S) and (shift_S == shift_S[0]).all():  # neighbours
            return self._requests.bag[shift_S[0] : shift_S[0] + len(self)]
        return self._requests.bag[self.asked()]


class DenseSide:
    """A dense rank's.

    Parameters
    ----------
    splitter : Splitter
        Of all owners.
    layout : Layout
    replicas : Store or None
        The replicated tables on this rank.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes on the wire.
    far : set of int
        World ranks on other hosts, to which ids are written in fewer bytes at the price of more time.
    sent : callable, optional
        Owner -> numbers of its partial results that it sends to this rank; default: all.
    tells : sequence of int
        Ranks that this one tells the verdict.
    parts : bool
        Steps may be read in two parts.
    device : Device, optional
        Whose kernels assemble what comes: positions are brought there as ids are asked for, ahead of the step.
    keeping : Keeping, optional
        By what conditional forms keep rows.

    Attributes
    ----------
    streams : Streams
    rows : HostRows or None
        By what ranks of its host ask together; who has one sets it.
    """

    def __init__(
        self,
        splitter: Splitter,
        layout: Layout,
        *,
        replicas: Store | None,
        size: int,
        pad: Callable[[Ints], Ints],
        far: AbstractSet[int] = frozenset(),
        sent: Callable[[int], Sequence[int]] | None = None,
        tells: Sequence[int] = (),
        parts: bool = False,
        device: kernels.Device | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self._splitter, self._layout, self._replicas = splitter, layout, replicas
        self._size, self._pad, self._device = size, pad, device
        self._parts = parts
        self._dtype, self._item = splitter.dtype, splitter.dtype.itemsize
        self._far_R = np.isin(np.arange(size), list(far))
        self._tells = np.array(tells, np.int64)
        self._weighted = splitter.entries.weighted
        self._partials = {  # that reach this rank, by owner
            owner: [leg.partials[n] for n in (range(len(leg.partials)) if sent is None else sent(owner))]
            for owner, leg in layout.legs.items()
            if leg.partials
        }
        self.streams = self._laid_out()
        self._copies, self._pools = self._kinds()
        self.copies = None
        self.rows: HostRows | None = None
        if layout.conditional:
            self.copies = DenseCopies(layout, splitter.forms, keeping or Keeping(), size=size, dtype=self._dtype)

    @property
    def entries(self) -> Entries:
        """Of all owners."""
        return self._splitter.entries

    def _laid_out(self) -> Streams:
        """The static part of every step."""
        layout, entries = self._layout, self._splitter.entries
        named = zip(entries.owner_E.tolist(), entries.bundle_E.tolist(), strict=True)
        flat = {at: i for i, at in enumerate(named)}
        bundle = {form.features: b for b, form in enumerate(layout.bundled())}
        number = {form.features: b for b, form in enumerate(self._splitter.forms)}
        rows, tables = [], []
        for owner, leg in sorted(layout.legs.items()):
            for s, stream in enumerate(leg.streams):
                features = leg.entries[stream.entry].features
                if features in number:
                    group, place = layout.place[features[0], stream.table]
                    valued = s < leg.n_value_streams
                    rows.append(
                        (owner, flat[owner, bundle[features]], stream.width, valued, stream.columns[0], group, place,
                         number[features])
                    )  # fmt: skip
                    tables.append(stream.table)
        of: list[Ints] = list(np.array(rows, np.int64).reshape(len(rows), 8).T)
        begins: Ints = np.searchsorted(of[0], of[0]).astype(np.int64)
        return Streams(*of[:3], of[3].astype(bool), *of[4:], tuple(tables), begins)  # type: ignore[call-arg, arg-type]

    def _kinds(self) -> tuple[dict[tuple[int, int, str], Ints], list[_Pool]]:
        """Streams whose vectors are moved alike: by leaf group, width and how answers of a bag meet; and pools."""
        s, layout = self.streams, self._layout
        part_S = self._splitter.entries.part_E[s.entry_S]
        copies: dict[tuple[int, int, str], list[int]] = {}
        for i, b in enumerate(s.bundle_S.tolist()):
            form = self._splitter.forms[b]
            if not form.pools:
                largest = layout.pooling[form.features[0]] == "max"
                meets = "set" if not form.meets(form.family) else "max" if largest else "add"
                copies.setdefault((int(s.group_S[i]), int(s.width_S[i]), meets), []).append(i)
        pools: dict[tuple[int, int, bool], list[tuple[int, str]]] = {}
        for b, form in enumerate(self._splitter.forms):
            for table in layout.tables_of[form.features[0]] if form.pools else ():
                block = _KEPT if form.conditional else -1
                if form.local:
                    found = None if self._replicas is None else self._replicas.place(table)
                    assert found is not None, "every dense rank has every replicated table"
                    block = found[0]
                key = layout.place[form.features[0], table][0], block, layout.pooling[form.features[0]] == "max"
                pools.setdefault(key, []).append((b, table))
        in_order = {  # answers of a bag meet in the order of the parts, and of each part's bags
            key: np.array(sorted(some, key=lambda i: (s.bundle_S[i], part_S[i])), np.int64)
            for key, some in copies.items()
        }
        return in_order, [self._pool(*key, parts) for key, parts in pools.items()]

    def _pool(self, group: int, block: int, largest: bool, parts: list[tuple[int, str]]) -> _Pool:
        number, s = {part: i for i, part in enumerate(parts)}, self.streams
        part_S = np.array(
            [number.get((b, t), -1) for b, t in zip(s.bundle_S.tolist(), s.tables, strict=True)], np.int64
        )
        widths = {}
        for width in np.unique(s.width_S[part_S >= 0]).tolist():
            streams = np.flatnonzero((part_S >= 0) & (s.width_S == width))
            widths[width] = streams, part_S[streams]
        forms = [self._splitter.forms[b] for b, _ in parts]
        features = [f for form in forms for f in form.features]
        named = zip(parts, forms, strict=True)
        places = [self._layout.place[f, table][1] for (_, table), form in named for f in form.features]
        return _Pool(group, block, largest, parts, widths, features, places)

    def deal(self, bags: Bags, n_samples: int) -> Dealing:
        """What is asked for of this rank's part of a batch.

        Raises
        ------
        DataError
            An id outside its table.
        """
        columns = self._splitter.columns(bags, n_samples, slice(0, n_samples))
        return Dealing(columns, [form.ask(columns) for form in self._splitter.forms])

    def ask(
        self,
        bags: Bags,
        n_samples: int,
        room: Room | None,
        *,
        train: bool,
        tables_of: int = 0,
        dealing: Dealing | None = None,
    ) -> tuple[Asked, np.ndarray]:
        """Messages and moves for this rank's part of a batch.

        Parameters
        ----------
        bags : Bags
        n_samples : int
        room : callable, or None
            None: owners read the ids, there are no messages.
        train : bool
            Whether gradients will come back.
        tables_of : int
            The set of tables that is read.
        dealing : Dealing, optional
            What ``deal`` has made of the bags, where it has.

        Returns
        -------
        (Asked, uint8, flat)
            The second: ids messages to all ranks, one after the other, padded.

        Raises
        ------
        DataError
            An id outside its table.
        """
        dealing = dealing or self.deal(bags, n_samples)
        columns, dealt = dealing.columns, dealing.dealt
        requests = self._splitter.asked([of for of, _ in dealt])
        message, id_bytes_R = np.empty(0, np.uint8), np.zeros(self._size, np.int64)
        asks, together = (requests, None) if self.rows is None else self.rows.asks.merge(requests)
        if room is not None:
            message, id_bytes_R = self._written(asks, room)
        requests = self._splitter.answers(requests)
        tails = self._tails(n_samples)
        at = self._places(requests.bags_E, tails)
        if self.rows is not None and together is not None:
            crossing = self._places(self.rows.asks.sent_E(together, requests.bags_E), tails)
            together = replace(together, bags_E=requests.bags_E, whole=at, crossing=crossing, tails=tails)
        first_E = cumulative(requests.bags_E)
        kept, wanted = ((), None) if self.copies is None else self.copies.kept(self._of_copies(dealt))
        step = _Step(columns, dealt, requests, first_E, at.value_S, at.gradient_S, n_samples, tables_of, train, kept)
        pool_moves, groups = [self._pool_move(step, pool) for pool in self._pools], self._layout.groups
        kept_moves = [move for move in pool_moves if move.kept]
        moves: list[Move] = [*self._copy_moves(step), *(move for move in pool_moves if not move.kept)]
        n_written = [sum(m.written for m in (*moves, *kept_moves) if m.group == g) for g in range(len(groups))]
        filled = [n == n_samples * len(g.lookups) * g.width for n, g in zip(n_written, groups, strict=True)]
        if self._device is not None:
            with self._device.aside():
                moves = [Mover(self._device).move(m) for m in moves]
        verdicts = at.gradient_tail_R[self._tells] + tails.partial_R[self._tells]
        inside_N = verdicts - cumulative(at.gradient_bytes_R)[self._tells] // self._item
        told = dict(zip(self._tells.tolist(), inside_N.tolist(), strict=True))
        asked = Asked(
            id_bytes_R,
            at.value_bytes_R,
            at.gradient_bytes_R,
            moves,
            self._partial_moves(at, n_samples),
            n_samples,
            filled,
            verdicts,
            told,
            requests.bags_E,
            together=together,
        )
        if self.copies is not None or self._parts:
            there, back, bags_R = self._parted(step) if self._parts and train else (None, None, None)
            asked = replace(asked, kept=kept, kept_moves=kept_moves, wanted=wanted)
            asked = replace(asked, places=there, back=back, bags_R=bags_R)
        return asked, message

    def _parted(self, step: _Step) -> tuple[Places, Places, Ints]:
        """Where the vectors are that may come in two parts, and their gradients; bags that each rank is asked for."""
        s = self.streams

        def crossing(streams: Ints, start_S: Ints) -> Places:
            entry = s.entry_S[streams]
            v = step.vectors(entry)
            width_V, asked_V = v.of(s.width_S[streams]), v.asked()
            inside_V = asked_V - v.of(step.first_E[entry])
            start_V = v.of(start_S[streams]) + inside_V * width_V
            return Places(v.of(s.owner_S[streams]), width_V, start_V, asked_V)

        bags_R = np.bincount(self._splitter.entries.owner_E, step.requests.bags_E, self._size).astype(np.int64)
        values = crossing(np.flatnonzero(s.valued_S), step.value_S)
        return values, crossing(np.arange(len(s.valued_S)), step.gradient_S), bags_R

    def _of_copies(self, dealt: Sequence[tuple[Dealt, Ints | None]]) -> list[Dealt]:
        """What conditional forms ask for."""
        forms = zip(self._splitter.forms, dealt, strict=True)
        return [of for form, (of, _) in forms if form.conditional]

    def foresee(self, batch: Foreseen) -> list[AskedRows]:
        """Deals a batch of a step to come; returns the rows that conditional forms will ask for, by bundle."""
        assert self.copies is not None
        batch.dealing = self.deal(batch.batch.bags, len(batch.batch.label))
        return self.copies.asked(self._of_copies(batch.dealing.dealt))

    def _written(self, requests: Requests, room: Room) -> tuple[np.ndarray, Ints]:
        """The ids messages, and their sizes."""
        r, item = requests, self._item
        plan = kernels.plan_requests(r.ids, r.lengths, r.cells, self._far_R, self._weighted, item)
        padded_R = self._pad(plan.bytes_R)
        message, at_R = room(padded_R), cumulative(padded_R)[:-1]
        weights = r.weights if len(r.weights) else None
        kernels.write_requests(plan, r.ids, r.lengths, r.cells, weights, self._weighted, item, message, at_R)
        return message, padded_R

    def _places(self, bags_E: Ints, tails: Tails) -> MessagePlaces:
        return places(self.streams, bags_E, tails, self._pad, self._item)

    def _tails(self, n_samples: int) -> Tails:
        """What is behind the streams of each owner's messages."""
        partial_R, told_R = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
        for owner, some in self._partials.items():
            partial_R[owner] = n_samples * sum(p.elements for p in some)
        told_R[self._tells] = 1
        return Tails(partial_R, told_R)

    def _partial_moves(self, at: MessagePlaces, n_samples: int) -> list[PartialMove]:
        moves = list[PartialMove]()
        for owner, some in self._partials.items():
            value_from, gradient_from = int(at.value_tail_R[owner]), int(at.gradient_tail_R[owner])
            for p in some:
                moves.append(PartialMove(p, n_samples, value_from, gradient_from))
                value_from += n_samples * p.elements
                gradient_from += n_samples * p.elements
        return moves

    def _copy_moves(self, step: _Step) -> list[Move]:
        """Of vectors of bags: one move for all streams that are moved alike."""
        s, moves = self.streams, list[Move]()
        scales = [form.scale(step.columns) for form in self._splitter.forms]
        for (group, width, meets), streams in self._copies.items():
            v = step.vectors(s.entry_S[streams])
            bundles, sample = set(s.bundle_S[streams].tolist()), v.bag()
            for b in bundles:  # what vectors say is their bag, which may be one of several of a sample
                if (sample_of := step.dealt[b][0].sample) is not None:
                    mine, sample = v.of(s.bundle_S[streams]) == b, sample.copy()
                    sample[mine] = sample_of[sample[mine]]
            leaf = self._layout.groups[group]
            leaf_start = sample * (len(leaf.lookups) * leaf.width)
            leaf_start += v.of(s.place_S[streams] * leaf.width + s.column_S[streams])
            value_start, gradient_start = (v.lying(at[streams], width) for at in (step.value_S, step.gradient_S))
            scale = None
            if any(scales[b] is not None for b in bundles):
                one = np.ones(step.n_samples, self._dtype)
                by_bundle = np.stack([one if scale_B is None else scale_B for scale_B in scales])
                scale = by_bundle[v.of(s.bundle_S[streams]), sample]
            if meets == "max":
                meet = kernels.group(leaf_start)  # stable: the parts of a bag stay in their order
                winners = np.empty((len(meet.unique), width), np.int32) if step.train else None
                starts = value_start[meet.order], gradient_start[meet.order]
                moves.append(MaxMove(group, width, *starts, meet.segments, meet.unique, winners))
            else:
                moves.append(CopyMove(group, width, meets == "add", value_start, gradient_start, leaf_start, scale))
        return moves

    def _pool_move(self, step: _Step, pool: _Pool) -> PoolMove:
        """Of rows that come, or are here."""
        leaf, s, dealt = self._layout.groups[pool.group], self.streams, step.dealt
        base = cumulative(np.array([len(dealt[b][0].rows) for b, _ in pool.parts], np.int64))
        crossings = []
        for width, (streams, part) in pool.widths.items():
            v = step.vectors(s.entry_S[streams])
            value_start = None if pool.block >= 0 else v.lying(step.value_S[streams], width)
            row_start = v.bag() * leaf.width
            row_start += v.of(base[part] * leaf.width + s.column_S[streams])
            crossings.append(Crossing(width, value_start, v.lying(step.gradient_S[streams], width), row_start))
        index = [(dealt[b][1], first) for (b, _), first in zip(pool.parts, base.tolist(), strict=False)]
        index_K = np.concatenate([at + first for at, first in index if at is not None])
        every = [step.columns[f] for f in pool.features]
        offsets = cumulative(np.concatenate([c.lengths for c in every]))
        weights = filled([c.weights for c in every], [len(c.rows) for c in every], self._dtype)
        samples, by_bag = np.arange(step.n_samples), weights is None and not pool.largest
        table_rows, row_of = self._copies_of(step, pool)
        kept = list[tuple[Kept, str]]()
        if pool.block == _KEPT:
            of_form = {of.form: of for of in step.kept}
            kept = [(of_form[self._splitter.forms[b]], table) for b, table in pool.parts]  # type: ignore[index]
        return PoolMove(
            group=pool.group,
            width=leaf.width,
            table_rows=table_rows,
            row_of=row_of,
            n_unique=int(base[-1]),
            crossings=crossings,
            index=index_K,
            offsets=offsets,
            leaf_start=np.concatenate([(samples * len(leaf.lookups) + p) * leaf.width for p in pool.places]),
            weights=weights,
            scale=filled([c.scale for c in every], [len(c.lengths) for c in every], self._dtype),
            grouping=kernels.group(index_K, offsets if by_bag else None) if step.train else None,
            largest=pool.largest,
            winners=np.empty((len(offsets) - 1, leaf.width), np.int32) if step.train and pool.largest else None,
            kept=kept,
        )

    def _copies_of(self, step: _Step, pool: _Pool) -> tuple[Floats | None, Ints | None]:
        """The copies that a pool reads, and the row there of each distinct row; None of rows that come."""
        if pool.block < 0:
            return None, None
        assert self._replicas is not None
        rows = []
        for b, table in pool.parts:
            found = self._replicas.place(name_in(step.tables_of, table))
            assert found is not None, "every dense rank has every replicated table"
            rows.append(step.dealt[b][0].rows + found[1].base)
        return self._replicas.copies(pool.block), np.concatenate(rows)


def filled(parts: Sequence[Floats | None], lengths: Sequence[int], dtype: np.dtype) -> Floats | None:
    """The parts joined, ones for the missing; None where all are missing."""
    if all(p is None for p in parts):
        return None
    return np.concatenate([np.ones(n, dtype) if p is None else p for p, n in zip(parts, lengths, strict=True)])
