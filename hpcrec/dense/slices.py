"""Dense parameters that are trained in slices, each on the rank that has the rows which meet it.

::

    dense ranks: DenseReducer, optimizer            holders: Slices
    all other parameters, reduced                   rows [start, stop) of parameters that are away from dense ranks,
                                                    with gradients over the global batch
    norm^2  ------------------> one sum over all ranks <------------------  norm^2      only where gradients are clipped

The optimizer is the same on both sides, and works element by element, so a parameter learns the same wherever its parts
are. Every rank has the whole of each parameter that may be away; it is what it was when it was last gathered. Knows
torch and the ranks; does not know what is computed with a slice, nor who chose its place.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from hpcrec.comm.collectives import Collectives
from hpcrec.dense.optimizer import State, load_optimizer_state, optimizer_state, step
from hpcrec.dense.slice_sums import SliceSums
from hpcrec.errors import CheckpointError, ConfigError, NonFiniteError

Named = list[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class Slice:
    """Rows [start, stop) of a parameter, trained on this rank as ``part``, and alike on all of ``ranks``, if any."""

    start: int
    stop: int
    part: nn.Parameter
    ranks: tuple[int, ...] = ()


class Slices:
    """This rank's slices, and what every rank knows of those of the others.

    Parameters
    ----------
    ranks : Collectives
        All ranks.
    wholes : mapping of str to nn.Parameter
        Parameters that may be away, by name; the same on every rank.
    away : tuple of str
        Those that are not trained on dense ranks; the same on every rank.
    own : mapping of str to Slice
        This rank's, which have their values already.
    optimizer_for : callable
        Named parameters -> their optimizer.
    near : Collectives, optional
        Ranks of this host: gradients of slices that are trained within it are summed there.

    Attributes
    ----------
    wholes, away, own
        As given.

    Raises
    ------
    ConfigError
        A row of a parameter that is away is no rank's; on every rank.
    """

    def __init__(
        self,
        ranks: Collectives,
        wholes: Mapping[str, nn.Parameter],
        away: tuple[str, ...],
        own: Mapping[str, Slice],
        optimizer_for: Callable[[Named], torch.optim.Optimizer],
        near: Collectives | None = None,
    ) -> None:
        self.wholes, self.away, self.own = dict(wholes), away, dict(own)
        self._ranks = ranks
        self._optimizer = optimizer_for(self._named) if self._named else None
        together = [(own.ranks, name, own.part) for name, own in self.own.items() if len(own.ranks) > 1]
        self._together = sorted((one for one in together if one[2].requires_grad), key=lambda one: one[:2])
        self._near = near
        self._dtype = np.dtype(np.float32)
        self._sums: dict[bool, SliceSums] = {}  # within the near ranks, and within all
        if away:
            self._find_sums()
        self._refuse_gaps()

    def _find_sums(self) -> None:
        """Who sums with whom; collective."""
        mine = [0, 0]  # ranks of the largest group: of those of all ranks, and of the near ones
        for ranks, _, _ in self._together:
            at = self._is_near(ranks)
            mine[at] = max(mine[at], len(ranks))
        dtypes = [str(part.dtype).split(".")[-1] for _, _, part in self._together]
        every = self._ranks.allgather((mine, dtypes[:1]))
        if self._near is not None and (largest := max(every[rank][0][True] for rank in self._near.ranks)):
            self._sums[True] = SliceSums(self._near, largest)
        if largest := max(found[False] for found, _ in every):
            self._sums[False] = SliceSums(self._ranks, largest)
        self._dtype = np.dtype(next((name for _, names in every for name in names), "float32"))

    def _refuse_gaps(self) -> None:
        """Refuses rows that no rank has; collective where parameters are away."""
        if not self.away:
            return
        everyone = self._ranks.allgather([(name, own.start, own.stop) for name, own in self.own.items()])
        spans = sorted({span for theirs in everyone for span in theirs})
        for name in self.away:
            end = 0
            for _, start, stop in (span for span in (*spans, (name, len(self.wholes[name]), 0)) if span[0] == name):
                if start > end:
                    raise ConfigError(
                        f"rows {end} to {start - 1} of dense parameter {name!r} are used and trained by no rank, "
                        "though it is not trained on dense ranks. Give it as many rows as are used on these ranks."
                    )
                end = max(end, stop)

    @property
    def _named(self) -> Named:
        """This rank's slices that are trained."""
        return [(name, own.part) for name, own in self.own.items() if own.part.requires_grad]

    def _speaks(self, name: str) -> bool:
        """Whether this rank is the first that has these rows."""
        ranks = self.own[name].ranks
        return not ranks or self._ranks.rank == ranks[0]

    # Where they are.

    def gather(self) -> State:
        """Brings whole parameters up to date on every rank; collective. Returns their optimizer state by name."""
        mine: list[tuple[str, int, int, dict[str, Any]]] = []
        state = {} if self._optimizer is None else optimizer_state(self._optimizer, self._named)
        for name, own in ((name, own) for name, own in self.own.items() if self._speaks(name)):
            mine.append((name, own.start, own.stop, {"": _out(own.part), **_all_out(state.get(name, {}))}))
        found: State = {}
        for name, start, stop, values in (item for items in self._ranks.allgather(mine) for item in items):
            whole = self.wholes[name]
            whole.detach()[start:stop].copy_(torch.from_numpy(values.pop("")))
            held = found.setdefault(name, {}) if whole.requires_grad else {}
            for key, value in values.items():
                if np.ndim(value) == 0:  # a count of steps
                    held[key] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
                else:
                    into = held.setdefault(key, torch.empty_like(whole.detach()))
                    assert isinstance(into, torch.Tensor)
                    into[start:stop].copy_(torch.from_numpy(value))
        return found

    def take(self, values: Mapping[str, torch.Tensor], state: State) -> None:
        """This rank's slices of whole parameters and their optimizer state, as a checkpoint has them.

        Raises
        ------
        CheckpointError
            State of another optimizer, or of another shape.
        """
        with torch.no_grad():
            for name, own in self.own.items():
                self.wholes[name].copy_(values[name])
                own.part.copy_(values[name][own.start : own.stop])
        if self._optimizer is None:
            return
        cut: State = {}
        for name, _ in self._named:
            own, shape = self.own[name], self.wholes[name].shape
            cut[name] = {}
            for key, value in state.get(name, {}).items():
                whole = isinstance(value, torch.Tensor) and value.ndim > 0
                if whole and value.shape != shape:  # type: ignore[union-attr]
                    raise CheckpointError(
                        f"dense optimizer state {key!r} of {name!r} has shape {tuple(value.shape)} in the checkpoint, "  # type: ignore[union-attr]
                        f"the parameter {tuple(shape)}. The model differs from the one that was saved."
                    )
                cut[name][key] = value[own.start : own.stop] if whole else value  # type: ignore[index]
        load_optimizer_state(self._optimizer, self._named, cut)

    # A step.

    def reduce(self) -> None:
        """Sums gradients of rows that several ranks train together; collective over all ranks where there are any.

        Raises
        ------
        NonFiniteError
            A sum is not finite, though the step is learned; on all ranks that have it.
        """
        if not self._sums:
            return
        mine: dict[bool, dict[tuple[int, ...], list[np.ndarray]]] = {True: {}, False: {}}
        for ranks, _, part in self._together:
            assert part.grad is not None, "a slice has its gradient from the exchange"
            mine[self._is_near(ranks)].setdefault(ranks, []).append(part.grad.numpy().reshape(-1))
        found: dict[tuple[int, ...], np.ndarray] = {}
        for near, sums in self._sums.items():
            found |= sums({ranks: np.concatenate(some) for ranks, some in mine[near].items()}, self._dtype)
        at_of = dict.fromkeys(found, 0)
        for ranks, name, part in self._together:
            total = found[ranks][at_of[ranks] : at_of[ranks] + part.numel()]
            at_of[ranks] += part.numel()
            if not np.isfinite(total).all():
                raise NonFiniteError(
                    f"the gradient of {name!r}, summed over ranks {ranks}, is not finite, though theirs are. Lower the "
                    "learning rates, or look for extreme inputs."
                )
            part.grad = torch.from_numpy(total.reshape(part.shape))

    def _is_near(self, ranks: tuple[int, ...]) -> bool:
        return self._near is not None and set(self._near.ranks).issuperset(ranks)

    def norm(self, squared_here: float) -> float:
        """The norm of all dense gradients; collective over all ranks where parameters are away.

        Parameters
        ----------
        squared_here : float
            Squared norm of the gradients that are reduced, on one dense rank; 0 on the other ranks.
        """
        squared = squared_here
        for name, part in self._named:
            assert part.grad is not None, "a slice has its gradient from the exchange"
            if self._speaks(name):
                squared += float(torch.linalg.vector_norm(part.grad, dtype=torch.float64)) ** 2
        return math.sqrt(self._ranks.allreduce(np.array([squared]))[0])

    def scale(self, factor: float) -> None:
        """Multiplies this rank's gradients."""
        if factor == 1.0:
            return
        for _, part in self._named:
            assert part.grad is not None
            part.grad.mul_(factor)

    def step(self, lr_scale: float) -> None:
        """Steps this rank's slices; ``lr_scale`` is what the schedule multiplies the dense learning rate by."""
        if self._optimizer is not None:
            step_scaled(self._optimizer, lr_scale)
            for _, part in self._named:
                part.grad = None


def step_scaled(optimizer: torch.optim.Optimizer, lr_scale: float) -> None:
    """One step at its learning rate times ``lr_scale``."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("base_lr", group["lr"]) * lr_scale
    step(optimizer)


def _out(value: torch.Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()


def _all_out(values: Mapping[str, torch.Tensor | float]) -> dict[str, Any]:
    return {key: _out(value) if isinstance(value, torch.Tensor) else value for key, value in values.items()}
