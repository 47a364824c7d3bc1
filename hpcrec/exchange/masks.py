"""Which elements of pooled vectors cross under codec ``dct``, and what is remembered from batch to batch [DCT].

Two ways, both by magnitude: elements that reach a threshold of their feature, which lives for many batches
(``FeatureMasks``); or of each vector its largest, chosen anew in every batch (``VectorMasks``). What is added up
elsewhere is not chosen from, since no element of it stands for itself: partial results, and vectors of width 1.

Knows the streams of a holder and where they are in its message; how chosen elements are written is for ``thresholds``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.sets import name_in
from hpcrec.exchange.layout import Leg
from hpcrec.exchange.work import Spans
from hpcrec.types import Floats, Ints

DRIFT = 2  # times the elements wanted, above which a threshold is found anew at once

Chosen = tuple[Ints, Floats]
"""Rising positions, and the elements there."""


@dataclass
class Thresholding:
    """How; the same on every rank.

    Attributes
    ----------
    density : float
        Share of a stream's elements that is to cross, above 0 and at most 1.
    every : int
        Training batches until thresholds are found anew.
    evaluates : bool
        Whether evaluations are thresholded too; may be changed between batches, on every rank alike.
    by_vector : bool
        Whether each vector has a threshold of its own.
    """

    density: float
    every: int
    evaluates: bool
    by_vector: bool = False

    def of_vector(self, width: int) -> int:
        """How many elements of each vector cross, by thresholds of their own."""
        return max(1, round(self.density * width))

    def density_of(self, width: int) -> float:
        """Share of the elements of such vectors that is to cross."""
        return self.of_vector(width) / width if self.by_vector else self.density


def make_masks(leg: Leg, how: Thresholding, sets: int = 1) -> "Masks":
    """Those of one holder, who has so many sets of tables."""
    return VectorMasks(leg, how) if how.by_vector else FeatureMasks(leg, how, sets)


class Masks(ABC):
    """Those of one holder, by its streams that have values.

    Parameters
    ----------
    leg : Leg
    how : Thresholding

    Attributes
    ----------
    names : list of (str, str)
        Of the streams: the table, and what else tells them apart.
    whole_S : bool [S]
        Streams that cross whole.
    batches, drifts : int
        Training batches so far; thresholds found anew because they let too many through.
    kept, elements : int
        Elements that crossed in training, and all, of what is chosen from.
    """

    def __init__(self, leg: Leg, how: Thresholding) -> None:
        self._how = how
        streams = leg.streams[: leg.n_value_streams]
        self.names = [(s.table, f" of {'+'.join(leg.entries[s.entry].features)} {s.columns}") for s in streams]
        self.widths = [s.width for s in streams]
        self.whole_S = np.array([s.width == 1 or how.density == 1 for s in streams], bool)
        self.batches = self.drifts = self.kept = self.elements = 0

    def picked(self, sent: Floats, spans: Spans, *, train: bool) -> list[Chosen]:
        """For each sender of ``spans``: positions in its message, rising, and the elements there."""
        by_sender = self._chosen(sent, spans, train=train)
        if train:
            self.batches += 1
            cut = ~self.whole_S
            self.kept += sum(len(x) for streams in by_sender for (x, _), of in zip(streams, cut, strict=True) if of)
            self.elements += int(spans.elements_PS.sum(axis=0)[cut].sum())
        out = []
        for p, streams in enumerate(by_sender):
            at, n = spans.behind(p)
            tail = np.arange(at, at + n) - spans.at_P[p]  # partial results, whole
            positions = np.concatenate([x for x, _ in streams] + [tail])
            out.append((positions, np.concatenate([x for _, x in streams] + [sent[at : at + n]])))
        return out

    def cut_widths(self) -> list[int]:
        """Of vectors that are thresholded, a stream each."""
        return [width for width, whole in zip(self.widths, self.whole_S.tolist(), strict=True) if not whole]

    def counts(self) -> tuple[int, int, int]:
        """``kept``, ``elements`` and ``drifts``."""
        return self.kept, self.elements, self.drifts

    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps of one rank's, JSON-like."""
        return {"batches": self.batches}

    def restore(self, by_rank: Sequence[Mapping[str, Any]], rank: int | None) -> None:  # noqa: ARG002
        """Takes over what ``saved`` gave on every rank, this one as ``rank``; None where they were more or fewer."""
        self.batches = max((found["batches"] for found in by_rank if found), default=0)

    @abstractmethod
    def _chosen(self, sent: Floats, spans: Spans, *, train: bool) -> list[list[Chosen]]:
        """For each sender, of each stream: positions in the message, and the elements there."""


class VectorMasks(Masks):
    """Of each vector its ``density`` width largest elements, one or more: all vectors of a stream alike."""

    def _chosen(self, sent: Floats, spans: Spans, *, train: bool) -> list[list[Chosen]]:  # noqa: ARG002
        return [
            [self._of_stream(sent, spans, p, s, width) for s, width in enumerate(self.widths)]
            for p in range(len(spans.at_P))
        ]

    def _of_stream(self, sent: Floats, spans: Spans, p: int, s: int, width: int) -> Chosen:
        start, stop = spans.of(p, s)
        keep = width if self.whole_S[s] else self._how.of_vector(width)
        positions, chosen = kernels.select_largest(sent[start:stop].reshape(-1, width), keep)
        positions += start - int(spans.at_P[p])
        return positions, chosen


class FeatureMasks(Masks):
    """Elements that reach the threshold of their feature's table.

    It is found anew every ``every`` training batches so that the share ``density`` of all its elements in that batch
    reaches it, and at once where more than twice as many do. Zeros never do. Evaluations use the thresholds of
    training, or, before there are any, their own batch's. Each set of tables has thresholds of its own.

    Attributes
    ----------
    tau_GS : float64 [G, S]
        By set of tables; 0 takes all, NaN is not found yet.
    """

    def __init__(self, leg: Leg, how: Thresholding, sets: int = 1) -> None:
        super().__init__(leg, how)
        self.tau_GS = np.tile(np.where(self.whole_S, 0.0, np.nan), (sets, 1))

    def _chosen(self, sent: Floats, spans: Spans, *, train: bool) -> list[list[Chosen]]:
        chosen: dict[int, list[Chosen]] = {}
        for g in range(len(self.tau_GS)):
            mine = np.flatnonzero(spans.sets_P == g).tolist()
            chosen |= zip(mine, self._of_set(g, sent, spans, mine, train=train), strict=True)
        return [chosen[p] for p in range(len(spans.at_P))]

    def _of_set(self, g: int, sent: Floats, spans: Spans, senders: Sequence[int], *, train: bool) -> list[list[Chosen]]:
        """For each of these senders, who read one set of tables."""
        tau_S, due = self.tau_GS[g].copy(), train and self.batches % self._how.every == 0
        for s in np.flatnonzero(~self.whole_S).tolist():
            if due or np.isnan(tau_S[s]):
                tau_S[s] = self._found(sent, spans, senders, s)
        by_sender = [self._of_sender(sent, spans, p, tau_S) for p in senders]
        kept_S = np.sum([[len(x) for x, _ in streams] for streams in by_sender], axis=0) if by_sender else 0 * tau_S
        n_S = spans.elements_PS[senders].sum(axis=0)
        drifted = ~self.whole_S & (kept_S > DRIFT * np.maximum(1, self._how.density * n_S)) & (n_S > 0)
        for s in np.flatnonzero(drifted).tolist() if train and not due else ():
            tau_S[s] = self._found(sent, spans, senders, s)
            self.drifts += 1
            for p, streams in zip(senders, by_sender, strict=True):
                streams[s] = self._of_stream(sent, spans, p, s, tau_S[s])
        if train:
            self.tau_GS[g] = tau_S
        return by_sender

    def saved(self) -> dict[str, Any]:
        """See ``Masks``."""
        found = [(name, tau) for name, tau, whole in self._named() if not whole]
        tau_of = {name: None if math.isnan(tau) else tau for name, tau in found}
        return {**super().saved(), "density": self._how.density, "tau": tau_of}

    def restore(self, by_rank: Sequence[Mapping[str, Any]], rank: int | None) -> None:
        """See ``Masks``; thresholds of streams, too, of those that this rank did not have the mean over others.

        Streams that nobody had (of other columns, say), or had at another density, find theirs when it is needed.
        """
        super().restore(by_rank, rank)
        told = [found.get("tau", {}) if found.get("density") == self._how.density else {} for found in by_rank]
        now = []
        for name, tau, whole in self._named():
            if whole:
                now.append(tau)
            elif rank is not None and name in told[rank]:
                now.append(told[rank][name])
            else:
                theirs = [of_rank[name] for of_rank in told if of_rank.get(name) is not None]
                now.append(float(np.mean(theirs)) if theirs else tau)
        self.tau_GS = np.array(now, np.float64).reshape(self.tau_GS.shape)  # None, not found yet, is NaN

    def _named(self) -> list[tuple[str, float, bool]]:
        """Streams of every set, their tables called as there; their thresholds, and whether they cross whole."""
        held = list(zip(self.names, self.whole_S.tolist(), strict=True))
        return [
            (name_in(g, table) + rest, tau, whole)
            for g, tau_S in enumerate(self.tau_GS.tolist())
            for ((table, rest), whole), tau in zip(held, tau_S, strict=True)
        ]

    def _found(self, sent: Floats, spans: Spans, senders: Sequence[int], s: int) -> float:
        parts = [sent[slice(*spans.of(p, s))] for p in senders]
        values = np.concatenate(parts) if parts else np.zeros(0, np.float32)
        if not len(values):
            return np.nan
        found = kernels.threshold_of(values, max(1, round(self._how.density * len(values))))
        return max(found, float(np.finfo(np.float32).smallest_subnormal))  # a zero is read as one without being sent

    def _of_sender(self, sent: Floats, spans: Spans, p: int, tau_S: np.ndarray) -> list[Chosen]:
        return [self._of_stream(sent, spans, p, s, tau) for s, tau in enumerate(tau_S.tolist())]

    def _of_stream(self, sent: Floats, spans: Spans, p: int, s: int, tau: float) -> Chosen:
        start, stop = spans.of(p, s)
        if start == stop:
            return np.zeros(0, np.int64), sent[:0]
        positions, chosen = kernels.select_above(sent[start:stop], tau)
        positions += start - int(spans.at_P[p])
        return positions, chosen
