"""The dense side of routing: from a batch's bags to the messages that ask for them, and the moves that follow.

Where holders read the ids themselves (``read_ids``) there are moves, but no messages. Knows the layout, the forms and
one batch; knows no MPI.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.store import Store
from hpcrec.exchange import verdict
from hpcrec.exchange.collect import CopyMoves, PoolMoves
from hpcrec.exchange.forms import Collected, Starts
from hpcrec.exchange.inputs import Gradients
from hpcrec.exchange.layout import Layout, LeafGroup, Partial
from hpcrec.exchange.moves import Move, PartialMove
from hpcrec.exchange.split import Splitter
from hpcrec.exchange.staged import Mover, brought, written
from hpcrec.exchange.wire import Coded, Piece, compact, cumulative, message_bytes, write_message
from hpcrec.types import Bags, Floats, Ints

Room = Callable[[Ints], np.ndarray]
"""Bytes of the messages on the wire, int64 [R] -> where to write them, uint8."""


@dataclass(frozen=True)
class Asked:
    """One step's work of a dense rank.

    Attributes
    ----------
    id_bytes_R, value_bytes_R, gradient_bytes_R : int64 [R]
        Sizes on the wire: of the ids messages, of what comes back, and of the gradients that follow.
    moves : sequence of Move
    partials : sequence of PartialMove
    n_samples : int
    filled : sequence of bool
        By leaf group: whether the moves write every element of the leaf; if not, it has to start as zeros.
    verdicts : int64 [N]
        Places in the gradients of the verdicts that this rank tells (``verdict``).
    told : mapping of int to int
        Whom it tells, and the place in that rank's message.
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

    def assemble(
        self, device: kernels.Device | None, received: Floats, groups: Sequence[LeafGroup]
    ) -> tuple[list[Floats], list[tuple[Partial, Floats]]]:
        """Leaves [B, F, D] and partial results [B, P], from the values that came: the device's, if there is one."""
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


class Asker:
    """A dense rank's: turns its part of a batch into messages and moves.

    Parameters
    ----------
    splitter : Splitter
    layout : Layout
    replicas : Store or None
        The replicated tables on this rank.
    size : int
        Ranks in the world.
    pad : callable
        Bytes of messages -> bytes on the wire.
    dtype : numpy float type
    far : set of int
        World ranks on other hosts, to which ids are written in fewer bytes at the price of more time.
    sent : callable, optional
        Holder -> numbers of its partial results that it sends to this rank; default: all.
    tells : sequence of int
        Ranks that this one tells the verdict.
    device : Device, optional
        Whose kernels assemble what comes: positions are brought there as ids are asked for, ahead of the step.
    """

    def __init__(
        self,
        splitter: Splitter,
        layout: Layout,
        *,
        replicas: Store | None,
        size: int,
        pad: Callable[[Ints], Ints],
        dtype: np.dtype,
        far: AbstractSet[int] = frozenset(),
        sent: Callable[[int], Sequence[int]] | None = None,
        tells: Sequence[int] = (),
        device: kernels.Device | None = None,
    ) -> None:
        self._splitter = splitter
        self._layout = layout
        self._replicas = replicas
        self._device = device
        self._size = size
        self._pad = pad
        self._dtype = np.dtype(dtype)
        self._far = far
        self._tells = np.array(tells, np.int64)
        self._partials = {  # that reach this rank, by holder
            holder: [leg.partials[n] for n in (range(len(leg.partials)) if sent is None else sent(holder))]
            for holder, leg in layout.legs.items()
        }

    def ask(
        self, bags: Bags, n_samples: int, room: Room | None, *, train: bool, tables_of: int = 0
    ) -> tuple[Asked, np.ndarray]:
        """Messages and moves for this rank's part of a batch.

        Parameters
        ----------
        bags : Bags
        n_samples : int
        room : callable, or None
            None: holders read the ids, there are no messages.
        train : bool
            Whether gradients will come back.
        tables_of : int
            The set of tables that is read.

        Returns
        -------
        (Asked, uint8, flat)
            The second: ids messages to all ranks, one after the other, padded.

        Raises
        ------
        DataError
            An id outside its table.
        """
        parts = self._splitter.split(bags, n_samples, slice(0, n_samples))
        pieces = {key: piece for part in parts for key, piece in part.pieces.items()}
        message, id_bytes_R = np.empty(0, np.uint8), np.zeros(self._size, np.int64)
        if room is not None:
            message, id_bytes_R = self._encode(pieces, room)
        starts, partials, value_bytes_R, gradient_bytes_R, verdicts, told = self._starts(pieces, n_samples)
        collected = Collected(CopyMoves(), PoolMoves(), tables_of)
        for part in parts:
            part.place(starts, collected)
        replicas = (
            []
            if self._replicas is None
            else [
                self._replicas.copies(b) if block.kind == "replicate" else np.empty(0)
                for b, block in enumerate(self._replicas.blocks)
            ]
        )
        widths = [g.width for g in self._layout.groups]
        moves: list[Move] = [
            *collected.copies.finish(self._dtype, train=train),
            *collected.pools.finish(widths, replicas, self._dtype, train=train),
        ]
        written = [sum(m.written for m in moves if m.group == g) for g in range(len(widths))]
        filled = [
            n == n_samples * len(group.lookups) * group.width
            for n, group in zip(written, self._layout.groups, strict=True)
        ]
        if self._device is not None:
            with self._device.aside():
                moves = [Mover(self._device).move(m) for m in moves]
        asked = Asked(
            id_bytes_R, value_bytes_R, gradient_bytes_R, moves, partials, n_samples, filled, verdicts, told
        )  # fmt: skip
        return asked, message

    def _encode(self, pieces: Mapping[tuple[int, int], Piece], room: Room) -> tuple[np.ndarray, Ints]:
        size_R = np.zeros(self._size, np.int64)
        once: dict[tuple[int, bool], Coded] = {}  # copies of a table are asked the same
        messages: dict[int, list[Coded]] = {}
        for holder, leg in self._layout.legs.items():
            far = holder in self._far
            messages[holder] = []
            for e in range(len(leg.entries)):
                piece = pieces[holder, e]
                key = (id(piece), far)
                once[key] = once.get(key) or compact(piece, far=far)
                messages[holder].append(once[key])
            size_R[holder] = message_bytes(messages[holder])
        padded_R = self._pad(size_R)
        message = room(padded_R)
        for holder, at in enumerate(cumulative(padded_R)[:-1].tolist()):
            if holder in messages:
                write_message(messages[holder], message[at : at + size_R[holder]])
        return message, padded_R

    def _starts(
        self, pieces: Mapping[tuple[int, int], Piece], n_samples: int
    ) -> tuple[Starts, list[PartialMove], Ints, Ints, Ints, dict[int, int]]:
        item = self._dtype.itemsize
        value_R, gradient_R = np.zeros(self._size, np.int64), np.zeros(self._size, np.int64)
        counts: dict[int, Ints] = {}
        for holder, leg in self._layout.legs.items():
            counts[holder] = np.array([pieces[holder, s.entry].n_bags * s.width for s in leg.streams], np.int64)
            partial = n_samples * sum(p.elements for p in self._partials[holder])
            value_R[holder] = (counts[holder][: leg.n_value_streams].sum() + partial) * item
            gradient_R[holder] = (counts[holder].sum() + partial) * item
        inside_N = gradient_R[self._tells] // item
        gradient_R[self._tells] += item
        value_R, gradient_R = self._pad(value_R), self._pad(gradient_R)
        value_at, gradient_at = cumulative(value_R) // item, cumulative(gradient_R) // item
        starts, partials = Starts({}, {}, {}), list[PartialMove]()
        for holder, leg in self._layout.legs.items():
            inside = cumulative(counts[holder])
            for s, stream in enumerate(leg.streams):
                key = (holder, stream.entry, stream.table)
                starts.value[key] = int(value_at[holder] + inside[s])
                starts.gradient[key] = int(gradient_at[holder] + inside[s])
                starts.columns[key] = stream.columns
            value_from = int(value_at[holder] + inside[leg.n_value_streams])
            gradient_from = int(gradient_at[holder] + inside[-1])
            for p in self._partials[holder]:
                partials.append(PartialMove(p, n_samples, value_from, gradient_from))
                value_from += n_samples * p.elements
                gradient_from += n_samples * p.elements
        told = dict(zip(self._tells.tolist(), inside_N.tolist(), strict=True))
        return starts, partials, value_R, gradient_R, gradient_at[self._tells] + inside_N, told
