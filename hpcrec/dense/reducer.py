"""DenseReducer: dense gradients in flat buckets of fixed composition, summed over the dense ranks during backward.

A bucket's allreduce starts in backward, as soon as all its parameters have their gradient. Buckets start in one fixed
order on every rank, so that a parameter that only some ranks use cannot pair one rank's bucket with another's, and the
summation order never depends on timing. Losses are divided by the weight of the global batch before backward: sums are
final here.

Knows torch and two functions that sum a tensor over ranks; knows neither MPI, nor Horovod, nor optimizers.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import nn

from hpcrec.dense.finite import all_finite
from hpcrec.errors import HpcrecError

_CLIP_EPS = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds to the norm


class Allreduce(Protocol):
    """Sums tensors in place over the dense ranks.

    Every rank starts the same tensors in the same order, each under a name that is not in flight.
    """

    def start(self, flat: torch.Tensor, name: str) -> Any:
        """Starts the sum of a contiguous tensor, which is not touched until ``wait`` returns."""

    def wait(self, handle: Any) -> None:
        """Waits for one started sum."""

    def cancel(self, handle: Any) -> None:
        """The same for a sum that is of no use: nothing of it is kept."""


@dataclass(eq=False)
class _Bucket:
    """Gradients of some parameters, one after the other in one tensor."""

    name: str
    flat: torch.Tensor
    names: list[str]
    parameters: list[nn.Parameter]
    views: list[torch.Tensor]
    missing: set[int] = field(default_factory=set)  # numbers of parameters whose gradient is awaited in this step
    handle: Any = None
    started: bool = False


class DenseReducer:
    """Sums the gradients of ``parameters`` over the dense ranks.

    A step is ``zero_grad()``, one backward, perhaps ``send()``, ``reduce()``, perhaps ``scale()``, and the optimizer;
    or ``cancel()`` in place of ``reduce()`` and all after it.
    With several backward calls in one step, all but the last run inside ``accumulating()``.

    Parameters
    ----------
    parameters : list of (str, nn.Parameter)
        Those that require a gradient are reduced; same names, shapes and order on every rank.
    allreduce : Allreduce
    bucket_bytes : int
        Buckets are filled up to this size, from the last parameter to the first; a larger parameter has its own.

    Attributes
    ----------
    wait_s : float
        Seconds spent in ``reduce`` so far.
    n_bytes : int
        Size of all buckets: payload of one step.
    nonfinite : list of str
        Parameters whose gradient on this rank was not finite when it was sent in this step; whole after ``send``.
    """

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], allreduce: Allreduce, *, bucket_bytes: int
    ) -> None:
        self._allreduce = allreduce
        self._names = [name for name, p in parameters if p.requires_grad and p.numel()]
        reduced = [p for _, p in parameters if p.requires_grad and p.numel()]
        if len({id(p) for p in reduced}) != len(reduced):
            raise HpcrecError("a parameter is listed twice; list a shared parameter under one of its names only")
        self._buckets, self._place = _pack(self._names, reduced, bucket_bytes)
        self.n_bytes = sum(b.flat.nbytes for b in self._buckets)
        self.wait_s = 0.0
        self.nonfinite: list[str] = []
        self._next = 0  # the first bucket not started
        self._accumulating = False
        self._reduced = False
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(i)) for i, p in enumerate(reduced)]
        self.zero_grad()

    @property
    def contents(self) -> dict[str, tuple[torch.Tensor, list[tuple[str, int]]]]:
        """The flat tensor of each bucket by its name, and its parameters with their elements, in order."""
        return {
            b.name: (b.flat, [(name, view.numel()) for name, view in zip(b.names, b.views, strict=True)])
            for b in self._buckets
        }

    @property
    def bucket_sizes_bytes(self) -> list[int]:
        """Size of each bucket, in the order of sending."""
        return [b.flat.nbytes for b in self._buckets]

    def zero_grad(self) -> None:
        """Opens a step: gradients are zero and ``.grad`` is a view into its bucket again."""
        if self._next and not self._reduced:
            raise HpcrecError(
                "DenseReducer.zero_grad: buckets of this step are in flight. Call reduce() first, on every dense rank."
            )
        self._next = 0
        self._reduced = False
        self.nonfinite = []
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.started = False
            bucket.missing = set(range(len(bucket.parameters)))
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                if parameter.grad is not view:
                    parameter.grad = view

    @contextmanager
    def accumulating(self) -> Iterator[None]:
        """Backward calls inside add to the gradients and send nothing."""
        self._accumulating = True
        try:
            yield
        finally:
            self._accumulating = False

    def send(self) -> None:
        """Sends what backward has not sent, zeros for parameters without a gradient; waits for nothing."""
        for bucket in self._buckets[self._next :]:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                _adopt(parameter, view)
            self._start(bucket)
        self._next = len(self._buckets)

    def reduce(self) -> None:
        """Sends what is not sent yet, and waits for every sum."""
        began = time.perf_counter()
        self.send()
        for bucket in self._buckets:
            self._allreduce.wait(bucket.handle)
            bucket.handle = None
        self._reduced = True
        self.wait_s += time.perf_counter() - began

    def cancel(self) -> None:
        """Ends what ``send`` started, in place of ``reduce``, for a step that is left out; gradients are undefined."""
        self.send()
        for bucket in self._buckets:
            self._allreduce.cancel(bucket.handle)
            bucket.handle = None
        self._reduced = True

    def squared_norm(self) -> float:
        """Square of the 2-norm of all gradients, summed in float64; after ``reduce``, the same on every rank."""
        assert self._reduced, "before reduce() it would be that of each rank's own part"
        return sum(float(torch.linalg.vector_norm(b.flat, dtype=torch.float64)) ** 2 for b in self._buckets)

    def scale(self, factor: float) -> None:
        """Multiplies all gradients; after ``reduce``."""
        assert self._reduced, "before reduce() it would scale each rank's own part"
        if factor != 1.0:
            for bucket in self._buckets:
                bucket.flat.mul_(factor)

    def close(self) -> None:
        """Takes the hooks off the parameters, whose ``.grad`` stays as it is."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, number: int) -> Any:
        bucket, inside = self._place[number]

        def ready(parameter: nn.Parameter) -> None:
            if bucket.started or self._reduced:
                raise HpcrecError(
                    f"parameter {self._names[number]!r} got a gradient after its bucket was sent in this step. With "
                    "several backward calls a step, run all but the last inside DenseReducer.accumulating(); call "
                    "zero_grad() before the next step."
                )
            _adopt(parameter, bucket.views[inside])
            if self._accumulating:
                return
            bucket.missing.discard(inside)
            while self._next < len(self._buckets) and not self._buckets[self._next].missing:
                self._start(self._buckets[self._next])
                self._next += 1

        return ready

    def _start(self, bucket: _Bucket) -> None:
        bucket.started = True
        if not all_finite(bucket.flat):  # now: once it is under way it is no longer this rank's own
            named = zip(bucket.names, bucket.views, strict=True)
            self.nonfinite += [name for name, view in named if not all_finite(view)]
        bucket.handle = self._allreduce.start(bucket.flat, bucket.name)


def clip_factor(norm: float, max_norm: float) -> float:
    """What gradients of that norm are multiplied by, so that it is at most ``max_norm``; 1 where it is not finite."""
    return min(1.0, max_norm / (norm + _CLIP_EPS)) if math.isfinite(norm) else 1.0


def _adopt(parameter: nn.Parameter, view: torch.Tensor) -> None:
    """Moves a gradient that is not in its bucket (replaced by a user's code, or by a double backward) into it."""
    grad = parameter.grad
    if grad is view:
        return
    if grad is None:
        view.zero_()
    else:
        view.copy_(grad.detach().to_dense() if grad.is_sparse else grad.detach())
    parameter.grad = view


def _pack(
    names: Sequence[str], parameters: Sequence[nn.Parameter], bucket_bytes: int
) -> tuple[list[_Bucket], dict[int, tuple[_Bucket, int]]]:
    """Buckets in the order of sending, and the bucket and place of each parameter."""
    groups: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], tuple[list[int], int]] = {}
    for number in reversed(range(len(parameters))):
        parameter = parameters[number]
        kind = (parameter.dtype, parameter.device)
        group, filled_bytes = filling.get(kind, ([], bucket_bytes))
        if not group or filled_bytes + parameter.nbytes > bucket_bytes:
            group, filled_bytes = [], 0
            groups.append(group)
        group.append(number)
        filling[kind] = (group, filled_bytes + parameter.nbytes)
    buckets, place = [], {}
    for index, group in enumerate(groups):
        members = [parameters[number] for number in group]
        flat = torch.zeros(sum(p.numel() for p in members), dtype=members[0].dtype, device=members[0].device)
        ends = accumulate(p.numel() for p in members)
        views = [flat[end - p.numel() : end].view(p.shape) for end, p in zip(ends, members, strict=True)]
        called = [names[number] for number in group]
        bucket = _Bucket(name=f"dense.{index}", flat=flat, names=called, parameters=members, views=views)
        buckets.append(bucket)
        place.update({number: (bucket, inside) for inside, number in enumerate(group)})
    return buckets, place
