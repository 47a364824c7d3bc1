"""Codec ``dct``: of values only those of large magnitude cross, and gradients of just those come back [DCT].

An owner compares each pooled vector's elements with a threshold of their feature; those that reach it are sent with
their positions, the rest is read as zeros. Gradients come back for the elements that were sent, without positions; the
others get none. What is added up elsewhere is not thresholded, since no element of it stands for itself: partial
results, and vectors of width 1. Nothing is left over for the next step: a sample's activations have none.

Thresholds are those of a feature's table at its owner, found anew every ``every`` training batches so that the share
``density`` of all its elements in that batch reaches them, and at once where more than twice as many do.

::

    holder -> dense   int64 [4] (tag ``control``): how many elements, how their positions are written, their bytes
                      positions, in the message's floats: a mask or packed (``kernels.positions_bytes``)
                      values, as ``codec`` writes them
    dense -> holder   gradients of the same elements, written alike

Knows messages and where streams are in them; does not know what they are for. Evaluations use the thresholds of
training, or, before there are any, their own batch's.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.comm.collectives import Collectives, padded_bytes
from hpcrec.exchange.codec import Halves, Kept
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.work import Spans
from hpcrec.types import Floats, Ints

DRIFT = 2  # times the elements wanted, above which a threshold is found anew at once
_ITEM = 4


@dataclass(frozen=True)
class Thresholding:
    """How.

    Attributes
    ----------
    density : float
        Share of a stream's elements that is to cross, above 0 and at most 1.
    every : int
        Training batches until thresholds are found anew.
    evaluates : bool
        Whether evaluations are thresholded too.
    """

    density: float
    every: int
    evaluates: bool


class Thresholds:
    """Those of one holder, by its streams that have values.

    Parameters
    ----------
    leg : Leg
    how : Thresholding

    Attributes
    ----------
    names : list of str
        Of the streams.
    tau_S : float64 [S]
        0 takes all; NaN is not found yet.
    batches, drifts : int
        Training batches so far; thresholds found anew because they let too many through.
    kept, elements : int
        Elements that crossed in training, and all, of what is thresholded.
    """

    def __init__(self, leg: Leg, how: Thresholding) -> None:
        self._density, self._every = how.density, how.every
        streams = leg.streams[: leg.n_value_streams]
        self.names = [f"{s.table} of {'+'.join(leg.entries[s.entry].features)} {s.columns}" for s in streams]
        whole = [s.width == 1 or how.density == 1 for s in streams]
        self.tau_S = np.where(whole, 0.0, np.nan)
        self.batches = self.drifts = self.kept = self.elements = 0

    def picked(self, sent: Floats, spans: Spans, *, train: bool) -> list[tuple[Ints, Floats]]:
        """For each sender of ``spans``: positions in its message, rising, and the elements there."""
        tau_S, due = self.tau_S.copy(), train and self.batches % self._every == 0
        for s in np.flatnonzero(self.tau_S != 0).tolist():
            if due or np.isnan(tau_S[s]):
                tau_S[s] = self._found(sent, spans, s)
        by_sender = [self._of_sender(sent, spans, p, tau_S) for p in range(len(spans.at_P))]
        kept_S = np.sum([[len(x) for _, x in streams] for streams in by_sender], axis=0) if by_sender else 0 * tau_S
        n_S = spans.elements_PS.sum(axis=0)
        drifted = (self.tau_S != 0) & (kept_S > DRIFT * np.maximum(1, self._density * n_S)) & (n_S > 0)
        for s in np.flatnonzero(drifted).tolist() if train and not due else ():
            tau_S[s] = self._found(sent, spans, s)
            self.drifts += 1
            for p, streams in enumerate(by_sender):
                streams[s] = self._of_stream(sent, spans, p, s, tau_S[s])
        if train:
            self.tau_S, self.batches = tau_S, self.batches + 1
            cut = self.tau_S != 0
            self.kept += sum(len(x) for streams in by_sender for (x, _), of in zip(streams, cut, strict=True) if of)
            self.elements += int(n_S[cut].sum())
        out = []
        for p, streams in enumerate(by_sender):
            at, n = spans.behind(p)
            tail = np.arange(at, at + n) - spans.at_P[p]  # partial results, whole
            positions = np.concatenate([x for x, _ in streams] + [tail])
            out.append((positions, np.concatenate([x for _, x in streams] + [sent[at : at + n]])))
        return out

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps of one rank's, JSON-like."""
        found = zip(self.names, self.tau_S.tolist(), strict=True)
        return {"tau": {name: tau for name, tau in found if not math.isnan(tau)}, "batches": self.batches}

    def counts(self) -> tuple[int, int, int]:
        """``kept``, ``elements`` and ``drifts``."""
        return self.kept, self.elements, self.drifts

    def restore(self, by_rank: Sequence[Mapping[str, Any]], rank: int) -> None:
        """Takes over what ``saved`` gave on every rank, where this one had the same streams; else it finds its own."""
        self.batches = max((found["batches"] for found in by_rank if found), default=0)
        mine = by_rank[rank] if rank < len(by_rank) else {}
        if set(mine.get("tau", ())) == set(self.names):
            self.tau_S = np.array([mine["tau"][name] for name in self.names])

    def _found(self, sent: Floats, spans: Spans, s: int) -> float:
        parts = [sent[slice(*spans.of(p, s))] for p in range(len(spans.at_P))]
        values = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        if not len(values):
            return np.nan
        return kernels.threshold_of(values, max(1, round(self._density * len(values))))

    def _of_sender(self, sent: Floats, spans: Spans, p: int, tau_S: np.ndarray) -> list[tuple[Ints, Floats]]:
        return [self._of_stream(sent, spans, p, s, tau) for s, tau in enumerate(tau_S.tolist())]

    def _of_stream(self, sent: Floats, spans: Spans, p: int, s: int, tau: float) -> tuple[Ints, Floats]:
        start, stop = spans.of(p, s)
        if start == stop:
            return np.zeros(0, np.int64), sent[:0]
        positions, chosen = kernels.select_above(sent[start:stop], tau)
        return positions + (start - int(spans.at_P[p])), chosen


class Thresholded:
    """The codec of one rank.

    Parameters
    ----------
    collectives : Collectives
    thresholds : Thresholds or None
        Of a holder; None elsewhere.
    kind : str
        How values are written: ``fp32``, ``bf16`` or ``fp16``.
    evaluates : bool
        Whether evaluations are thresholded too; else all their values cross, as ``kind``.
    """

    def __init__(
        self, collectives: Collectives, thresholds: Thresholds | None, kind: str, *, evaluates: bool = True
    ) -> None:
        self._collectives = collectives
        self._whole = Halves(collectives, kind)
        self._kind = kind
        self._thresholds = thresholds
        self._evaluates = evaluates

    def message(self, bytes_R: Ints, behind_bytes: int = 0) -> Floats:
        """See ``Codec``."""
        return self._whole.message(bytes_R, behind_bytes)

    def values(
        self, sent: Floats, sent_R: Ints, due_R: Ints, spans: Spans | None, *, train: bool
    ) -> tuple[Floats, Kept | None]:
        """See ``Codec``."""
        if not train and not self._evaluates:
            return self._whole.alltoallv(sent, sent_R, due_R, "values"), None
        size = self._collectives.size
        picked: dict[int, tuple[Ints, Floats]] = {}
        if self._thresholds is not None and spans is not None:
            found = self._thresholds.picked(sent, spans, train=train)
            picked = dict(zip(spans.ranks_P.tolist(), found, strict=True))
        control_RM = np.zeros((size, 4), np.int64)
        for rank, (positions, _) in picked.items():
            n_bytes, coding = kernels.positions_bytes(positions, int(sent_R[rank]) // _ITEM)
            control_RM[rank, :3] = len(positions), coding, n_bytes
        heard_RM = self._collectives.alltoall(control_RM, "control")
        wire_R, wire_due_R = self._bytes(control_RM), self._bytes(heard_RM)
        message = self._collectives.message(wire_R, np.uint8)
        for rank, at in _begins(wire_R, picked):
            positions, chosen = picked[rank]
            _, coding, n_bytes, _ = control_RM[rank].tolist()
            kernels.write_positions(positions, int(sent_R[rank]) // _ITEM, coding, message[at : at + n_bytes])
            self._write(chosen, message, at + n_bytes)
        came = self._collectives.alltoallv(message, wire_R, wire_due_R, "values")
        received = np.zeros(int(due_R.sum()) // _ITEM, np.float32)
        kept = Kept({rank: positions for rank, (positions, _) in picked.items()}, {})
        floats_R = (np.cumsum(due_R) - due_R) // _ITEM
        for rank, at in _begins(wire_due_R, np.flatnonzero(wire_due_R).tolist()):
            k, coding, n_bytes, _ = heard_RM[rank].tolist()
            n, first = int(due_R[rank]) // _ITEM, int(floats_R[rank])
            positions = kernels.read_positions(came[at : at + n_bytes], k, n, coding)
            kernels.scatter(received[first : first + n], positions, self._read(came, at + n_bytes, k))
            kept.came[rank] = positions
        return received, kept

    def gradients(self, sent: Floats, sent_R: Ints, due_R: Ints, behind_bytes: int, kept: Kept | None) -> Floats:
        """See ``Codec``."""
        assert kept is not None, "gradients of values that were not thresholded"
        wire_R, wire_due_R = self._counted(kept.came), self._counted(kept.sent)
        message = self._collectives.message(wire_R, np.uint8)
        floats_R = (np.cumsum(sent_R) - sent_R) // _ITEM
        for rank, at in _begins(wire_R, kept.came):
            first = int(floats_R[rank])
            of_rank = sent[first : first + int(sent_R[rank]) // _ITEM]
            self._write(kernels.gather(of_rank, kept.came[rank]), message, at)
        came = self._collectives.alltoallv(message, wire_R, wire_due_R, "gradients")
        received = np.zeros((int(due_R.sum()) + behind_bytes) // _ITEM, np.float32)
        floats_R = (np.cumsum(due_R) - due_R) // _ITEM
        for rank, at in _begins(wire_due_R, kept.sent):
            first, positions = int(floats_R[rank]), kept.sent[rank]
            of_rank = received[first : first + int(due_R[rank]) // _ITEM]
            kernels.scatter(of_rank, positions, self._read(came, at, len(positions)))
        return received

    def _bytes(self, control_RM: Ints) -> Ints:
        """Of messages with positions and values."""
        exact = [n_bytes + kernels.half_bytes(k, self._kind) for k, _, n_bytes, _ in control_RM.tolist()]
        return padded_bytes(np.array(exact, np.int64))

    def _counted(self, positions: Mapping[int, Ints]) -> Ints:
        """Of messages with values alone."""
        size = self._collectives.size
        exact = [kernels.half_bytes(len(positions.get(r, ())), self._kind) for r in range(size)]
        return padded_bytes(np.array(exact, np.int64))

    def _write(self, values: Floats, message: np.ndarray, at: int) -> None:
        kernels.write_halves(values, message[at : at + kernels.half_bytes(len(values), self._kind)], self._kind)

    def _read(self, came: np.ndarray, at: int, k: int) -> Floats:
        values = np.empty(k, np.float32)
        kernels.read_halves(came[at : at + kernels.half_bytes(k, self._kind)], values, self._kind)
        return values


def _begins(wire_R: Ints, ranks: Sequence[int] | Mapping[int, Any]) -> list[tuple[int, int]]:
    """Those ranks, in order, and where the message of each begins."""
    at_R = np.cumsum(wire_R) - wire_R
    return [(rank, int(at_R[rank])) for rank in sorted(ranks)]
