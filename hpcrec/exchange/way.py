"""The way of messages that pass other ranks between owners and dense ranks: transfers, and stages between them.

::

    place 0: owner  -- transfer 0 -->  place 1: stage.via(owner, dense)  -- transfer 1 -->  place 2: dense rank

There is one message for each owner and dense rank, of which a stage says where it passes. At every place a rank has its
messages in the order (owner, dense rank), as owners and dense ranks have theirs, one after the other; a transfer is one
all-to-all of them, bundled by the rank that each goes to, and each written by the codec as if it were sent alone. So
passing a rank changes no bit; but by levels, where a message that goes round by another host is written, and one that
stays inside a host is not. Bytes of a transfer: those of all messages but of those that stay where they are
(``exchange``). Their sizes, and how many bags each entry has, dense ranks tell the ranks between as ids are routed: one
all-to-all of tag ``control``, 8 bytes a number, 2 numbers and one for each entry of the owner that has most, rounded up
to 8 numbers a message and place. Knows places of messages and of vectors in them; does not know what a stage makes of
them.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.sizes import UNIT_BYTES, clear_padding
from hpcrec.comm.topology import Topology
from hpcrec.comm.world import World
from hpcrec.errors import ConfigError, NonFiniteError
from hpcrec.exchange.bags import Entries, cumulative, ranges
from hpcrec.exchange.codec import Bundles, Elementwise, make_codec
from hpcrec.exchange.codecs import uncoded_ranks
from hpcrec.exchange.dense_side import Asked
from hpcrec.exchange.layout import Layout, Stream
from hpcrec.exchange.passage import Passage
from hpcrec.exchange.slices import Slice
from hpcrec.exchange.stages.stage import Stage, Vectors
from hpcrec.operators.base import Operator
from hpcrec.types import Floats, Ints

_NUMBERS = 8  # a unit of messages has so many


@dataclass(kw_only=True)
class StagedPassage(Passage):
    """One step's messages past stages.

    Attributes
    ----------
    bytes_of : mapping of str to list of int64 [N]
        By tag: sizes of this rank's messages at each place.
    bags : list of int64 [N, E]
        Of each stage: bags of each entry of its messages here.
    kept : dict of int to object
        What each stage wants to know on the way back.
    """

    bytes_of: dict[str, list[Ints]]
    bags: list[Ints]
    kept: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _End:
    """One rank's end of a transfer: its messages by the rank at the other end.

    ``order_N``: their places in the order (owner, dense rank); ``rank_N``: the ranks, rising.
    """

    order_N: Ints
    rank_N: Ints


class Transfer:
    """One hop, and back: collective, on the lane of its codec."""

    def __init__(self, number: int, near: _End, far: _End, codec: Elementwise) -> None:
        self._number, self._codec = number, codec
        self._near, self._far = near, far

    def forward(self, passage: StagedPassage, flat: Floats) -> Floats:
        """Values that leave this rank -> those that arrive here."""
        bytes_P, p = passage.bytes_of["values"], self._number
        return _cross(flat, (bytes_P[p], self._near), (bytes_P[p + 1], self._far), self._codec, "values", 0)

    def backward(self, passage: StagedPassage, flat: Floats, behind_bytes: int) -> Floats:
        """Gradients of what arrived here -> those of what left, with room behind them."""
        bytes_P, p = passage.bytes_of["gradients"], self._number
        far, near = (bytes_P[p + 1], self._far), (bytes_P[p], self._near)
        return _cross(flat, far, near, self._codec, "gradients", behind_bytes)


Hop = tuple[int, Stage | None, Transfer]
"""A place, what is done there, and how messages go on."""


class Way:
    """One rank's part in the way of a layout.

    Parameters
    ----------
    layout : Layout
    topology : Topology
    stages : sequence of Stage
        This rank's, of ``layout.way``.
    entries : Entries or None
        Of all owners, as a dense rank asks them; None elsewhere.
    dtype : numpy float type
    codec, codec_of_step : Elementwise
        By which ``ahead`` and ``current`` write, each on its lane.

    Attributes
    ----------
    ahead, current : list of Hop
        What may run ahead of the step; and the rest, from the
        first stage with dense parameters on, which runs in it.
    slices : list of Slice
        Of all stages.
    """

    def __init__(
        self,
        layout: Layout,
        topology: Topology,
        stages: Sequence[Stage],
        entries: Entries | None,
        dtype: np.dtype[Any],
        codec: Elementwise,
        codec_of_step: Elementwise,
    ) -> None:
        self._dtype, self._rank, self._size = np.dtype(dtype), topology.rank, topology.size
        owners = sorted({*layout.legs, *topology.owners})
        self._dense: Ints = np.array(topology.dense, np.int64)
        self._owner_M = np.repeat(np.array(owners, np.int64), len(self._dense))  # of all messages, everywhere
        self._dense_M = np.tile(self._dense, len(owners))
        pairs = list(zip(self._owner_M.tolist(), self._dense_M.tolist(), strict=True))
        between = [np.array([stage.via(topology, *pair) for pair in pairs], np.int64) for stage in stages]
        self._rank_PM = [self._owner_M, *between, self._dense_M]
        self._here = [np.flatnonzero(rank_M == topology.rank) for rank_M in self._rank_PM]
        learns = [any(stage.weights(operator) for operator in stage.operators.values()) for stage in stages]
        n_ahead = 1 + learns.index(True) if True in learns else 1 + len(stages)
        hops = list[Hop]()
        for p, stage in enumerate((None, *stages)):
            near, far = self._end(p, self._rank_PM[p + 1]), self._end(p + 1, self._rank_PM[p])
            hops.append((p, stage, Transfer(p, near, far, codec if p < n_ahead else codec_of_step)))
        self.slices: Sequence[Slice] = [own for stage in stages for own in stage.slices]
        self.ahead: Sequence[Hop] = hops[:n_ahead]
        self.current: Sequence[Hop] = hops[n_ahead:]
        self._streams = self._passing(layout)
        self._tell(layout, entries)

    def _end(self, place: int, other_M: Ints) -> _End:
        rank_N = other_M[self._here[place]]
        order_N = np.argsort(rank_N, kind="stable")
        return _End(order_N, rank_N[order_N])

    @staticmethod
    def _passing(layout: Layout) -> dict[int, list[tuple[Stream, tuple[str, ...], bool]]]:
        """Of each owner: the streams of its values, with their features and whether stages are given them."""
        found = {}
        for owner, leg in layout.legs.items():
            entries = [(stream, leg.entries[stream.entry]) for stream in leg.streams[: leg.n_value_streams]]
            found[owner] = [(stream, entry.features, bool(entry.form.stages)) for stream, entry in entries]
        return found

    def _tell(self, layout: Layout, entries: Entries | None) -> None:
        """Lays out who tells whom of which messages: places of these in the sizes that are told, and in those heard."""
        between, legs = range(1, len(self._rank_PM) - 1), layout.legs
        most = max((len(leg.entries) for leg in legs.values()), default=0)
        self._width = -(-(2 + most) // _NUMBERS) * _NUMBERS
        number = {(o, entry.features): e for o, leg in legs.items() for e, entry in enumerate(leg.entries)}
        self._told_entries: tuple[Ints, Ints] | None = None
        if entries is not None:
            self._told_entries = entries.owner_E, np.array([number[name] for name in entries.names()], np.int64)
        mine = np.flatnonzero(self._dense_M == self._rank)
        to = np.concatenate([self._rank_PM[p][mine] for p in between])
        order = np.argsort(to, kind="stable")  # by rank, then by place, then by owner
        self._told_owner = np.tile(self._owner_M[mine], len(between))[order]
        self._told_bytes_R = np.bincount(to, minlength=self._size) * self._width * _NUMBERS
        of = np.concatenate([self._dense_M[self._here[p]] for p in between])
        self._heard_order = np.argsort(of, kind="stable")
        self._heard_bytes_R = np.bincount(of, minlength=self._size) * self._width * _NUMBERS
        self._heard_ends = cumulative(np.array([len(self._here[p]) for p in between], np.int64))

    def passage(
        self, route: Collectives, asked: Asked | None, value_bytes_R: Ints, gradient_bytes_R: Ints
    ) -> StagedPassage:
        """Sizes of this step's messages at all places; collective.

        Parameters
        ----------
        route : Collectives
            All ranks.
        asked : Asked or None
        value_bytes_R, gradient_bytes_R : int64 [R]
            Bytes to and from each dense rank, as of an owner; zeros on the other ranks.
        """
        rows_RW = np.zeros((self._size, self._width), np.int64)
        if asked is not None:
            assert self._told_entries is not None, "a dense rank knows the entries of all owners"
            owner_E, entry_E = self._told_entries
            rows_RW[:, 0], rows_RW[:, 1] = asked.value_bytes_R, asked.gradient_bytes_R
            rows_RW[owner_E, 2 + entry_E] = asked.bags_E
        told = rows_RW[self._told_owner].reshape(-1)
        heard = route.alltoallv(told, self._told_bytes_R.copy(), self._heard_bytes_R.copy(), "control")
        rows_NW = np.empty((len(self._heard_order), self._width), np.int64)
        rows_NW[self._heard_order] = heard[: rows_NW.size].reshape(rows_NW.shape)
        middle = np.split(rows_NW, self._heard_ends[1:-1])
        ends = (value_bytes_R, rows_RW[:, 0]), (gradient_bytes_R, rows_RW[:, 1])
        first, last = self._dense_M[self._here[0]], self._owner_M[self._here[-1]]
        bytes_of = {
            tag: [sent_R[first], *(rows[:, i] for rows in middle), got_R[last]]
            for i, (tag, (sent_R, got_R)) in enumerate(zip(("values", "gradients"), ends, strict=True))
        }
        return StagedPassage(bytes_of=bytes_of, bags=[rows[:, 2:] for rows in middle])

    def message(self, bytes_R: Ints, behind_bytes: int = 0, tag: str = "gradients") -> Floats:  # noqa: ARG002
        """Where messages of these sizes are written, and room behind them; memory that nobody uses again."""
        room = np.empty(int(bytes_R.sum()) + behind_bytes, np.uint8)
        clear_padding(room, bytes_R)
        return room.view(self._dtype)

    def forward(self, passage: StagedPassage, flat: Floats, hops: Sequence[Hop], *, train: bool) -> Floats:
        """Values on one part of the way."""
        for place, stage, transfer in hops:
            if stage is not None:
                kept = stage.forward(list(self._vectors(passage, place, "values", flat)), train=train)
                passage.kept[place] = kept if train else None
            flat = transfer.forward(passage, flat)
        return flat

    def backward(self, passage: StagedPassage, flat: Floats, hops: Sequence[Hop], behind_bytes: int = 0) -> Floats:
        """Gradients, the other way; with room behind what comes to an owner."""
        for place, stage, transfer in reversed(hops):
            flat = transfer.backward(passage, flat, 0 if place else behind_bytes)
            if stage is not None:
                self._back(stage, list(self._vectors(passage, place, "gradients", flat)), passage.kept.pop(place))
        return flat

    def _vectors(self, passage: StagedPassage, place: int, tag: str, flat: Floats) -> Iterator[Vectors]:
        """Those of all messages here that stages are given; empty ones are left out."""
        here, bags_NE = self._here[place], passage.bags[place - 1]
        begins = cumulative(passage.bytes_of[tag][place]) // self._dtype.itemsize
        messages = zip(
            self._owner_M[here].tolist(), self._dense_M[here].tolist(), begins.tolist(), bags_NE, strict=False
        )
        for owner, dense, at, bags_E in messages:
            for stream, features, passes in self._streams.get(owner, ()):
                n = int(bags_E[stream.entry])
                size = n * stream.width
                if passes and n:
                    values_VD = flat[at : at + size].reshape(n, stream.width)
                    yield Vectors(owner, dense, features, stream.table, stream.columns, values_VD)
                at += size

    @staticmethod
    def _back(stage: Stage, passing: Sequence[Vectors], kept: Any) -> None:
        """``stage.backward``; what it makes of finite gradients has to be finite.

        Raises
        ------
        NonFiniteError
            It is not, on this rank alone: who agrees on it has finite ones.
        """
        if not stage.slices:
            stage.backward(passing, kept)
            return
        for own in stage.slices:
            own.part.grad = torch.zeros_like(own.part)
        whole = all(np.isfinite(vectors.values_VD).all() for vectors in passing)
        stage.backward(passing, kept)
        made = all(np.isfinite(vectors.values_VD).all() for vectors in passing)
        for own in stage.slices:
            assert own.part.grad is not None, "set above"
            made = made and bool(torch.isfinite(own.part.grad).all())
        if whole and not made:
            raise NonFiniteError(
                f"gradients that left stage {stage.name!r} are not finite, though those that came to it are. Lower the "
                'learning rates, look for extreme inputs, or set exchange.form = "pooled", where such a batch can be '
                "left out (train.nonfinite)."
            )


def make_way(
    world: World,
    layout: Layout,
    operators: Mapping[str, Operator],
    entries: Entries | None,
    dtype: np.dtype[Any],
    codec: str,
    lane: Collectives | None,
) -> Way | None:
    """The way of a layout; None where messages pass no stage. See ``Way`` and ``Exchange``; collective.

    Raises
    ------
    ConfigError
        A stage's ``via`` names ranks that there are not, or differs between ranks; on all of them.
    """
    if not layout.way:
        return None
    _check_via(world, layout)
    stages = [stage(world.topology, {name: operators[name] for name in layout.left}) for stage in layout.way]
    uncoded = uncoded_ranks(world, layout)
    ahead, current = (make_codec(codec, ranks, dtype, uncoded) for ranks in (lane or world.main, world.main))
    return Way(layout, world.topology, stages, entries, dtype, ahead, current)


def _check_via(world: World, layout: Layout) -> None:
    topology = world.topology
    for stage in layout.way:
        owners = sorted({*layout.legs, *topology.owners})
        ranks = np.array([stage.via(topology, o, d) for o in owners for d in topology.dense], np.int64)
        bad = ranks[(ranks < 0) | (ranks >= topology.size)]
        said = f"rank {bad[0]}, of {topology.size} ranks" if len(bad) else f"{zlib.crc32(ranks.tobytes())}"
        said_R = world.main.allgather((bool(len(bad)), said))
        if any(wrong for wrong, _ in said_R) or len(set(said_R)) > 1:
            found = next((text for wrong, text in said_R if wrong), "other ranks on one rank than on another")
            raise ConfigError(
                f"exchange: messages are to pass stage {stage.name!r} by {found}. Let its via() be a function of its "
                f"arguments alone, with results from 0 to {topology.size - 1}."
            )


def _cross(
    flat: Floats, here: tuple[Ints, _End], there: tuple[Ints, _End], codec: Elementwise, tag: str, behind_bytes: int
) -> Floats:
    """What comes to this rank for the messages that leave it; both in the order (owner, dense rank)."""
    (bytes_N, leaving), (due_N, coming) = here, there
    out, due = Bundles(bytes_N[leaving.order_N], leaving.rank_N), Bundles(due_N[coming.order_N], coming.rank_N)
    sent = codec.message(out.bytes_N, 0, tag)
    _take(flat, bytes_N, leaving.order_N, sent)
    came = codec.pass_on(sent, out, due, tag)
    found: Floats = np.empty((int(due_N.sum()) + behind_bytes) // flat.itemsize, flat.dtype)
    _take(came, due.bytes_N, np.argsort(coming.order_N), found)
    return found


def _take(flat: Floats, bytes_N: Ints, order_N: Ints, out: Floats) -> None:
    """Consecutive messages, in another order: they are whole units."""
    units_N, item = bytes_N // UNIT_BYTES, UNIT_BYTES // flat.itemsize
    n = int(units_N.sum())
    at = ranges(cumulative(units_N)[:-1][order_N], units_N[order_N])
    out[: n * item].reshape(n, item)[:] = flat[: n * item].reshape(n, item)[at]
