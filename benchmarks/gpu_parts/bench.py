"""How the parts of ``gpu.py`` are timed and what they give: rows, claims and checks.

Every timed call takes turns with torch's copy of 1 GiB, so that a share of its bandwidth is of the same moment. Calls
are timed by events of the stream around as many repetitions as take some milliseconds; what a call waits for within,
as a sort does for the number of distinct ids, counts. On the emulator a clock of the host times one call of each, to
run the same code; those figures mean nothing. Knows torch and the device; not what is timed.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from _timing import Rounds

from hpcrec import kernels
from hpcrec.kernels import DeviceArray
from hpcrec.units import MiB

Row = dict[str, Any]
SEED = 20260101
COPY = "copy"
COPY_FLOATS = 256 * MiB  # 1 GiB is read, and as much is written
MOST_REPEATS = 50
KEYS = (
    "case", "status", "ms", "gb_per_s", "of_copy", "copy_gb_per_s", "million_per_s", "torch_ms", "times_torch", "work",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Work:
    """A call to be timed.

    Attributes
    ----------
    run : callable
    n_bytes : int
        That it has to move; 0 where no such number says much.
    n_ids : int
        That it is given; 0 where ids per second say nothing.
    work : str
        The sizes, in words.
    before : callable, optional
        Run before each call, untimed: what the call needs to find the same again.
    """

    run: Callable[[], Any]
    work: str
    n_bytes: int = 0
    n_ids: int = 0
    before: Callable[[], Any] | None = None


@dataclass
class Found:
    """What a part has found: rows by case, values of claims by id, and of checks whether they agree."""

    rows: list[Row] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the benchmark, and all that it will tell of, known before it runs.

    Attributes
    ----------
    cases, checks : tuple of str
        Of its rows and of its comparisons.
    claims : tuple of (id, unit, goal)
    measure : callable
    """

    name: str
    cases: tuple[str, ...]
    checks: tuple[str, ...]
    claims: tuple[tuple[str, str, str], ...]
    measure: Callable[["Machine"], Found]


class Machine:
    """The device that is measured: its arrays, its random numbers, its times.

    Parameters
    ----------
    name : str
        ``cuda``, or ``emulated``, where all sizes are tiny.
    quick : bool
        Fewer and shorter rounds.
    """

    def __init__(self, name: str, *, quick: bool) -> None:
        self.device = kernels.device(name)  # type: ignore[arg-type]
        self.emulated = name == "emulated"
        self.place = "cpu" if self.emulated else "cuda"
        self.random = torch.Generator(self.place).manual_seed(SEED)
        self._n_rounds = 1 if self.emulated else 3 if quick else 9
        self._ms = 10.0 if quick else 25.0
        self._copied = [torch.zeros(self.pick(COPY_FLOATS, 1024), device=self.place) for _ in range(2)]

    def pick(self, full: int, tiny: int) -> int:
        """A size: of the GPU, or of the emulator."""
        return tiny if self.emulated else full

    def free_bytes(self) -> int:
        """Memory that can be had."""
        if self.emulated:
            return 2**30
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def array(self, tensor: torch.Tensor) -> Any:
        """A tensor as what the kernels take."""
        return DeviceArray(self.device, tensor)

    def normal(self, *shape: int) -> torch.Tensor:
        """float32, standard normal."""
        return torch.randn(shape, generator=self.random, device=self.place)

    def arange(self, *bounds: int) -> torch.Tensor:
        """int64 of the device, as Python's range."""
        return torch.arange(*bounds, device=self.place)

    def uniform_ids(self, n_rows: int, n: int) -> torch.Tensor:
        """int64 [n] in [0, n_rows)."""
        return torch.randint(n_rows, (n,), generator=self.random, device=self.place)

    def zipf_ids(self, n_rows: int, n: int) -> torch.Tensor:
        """int64 [n] as ``_workloads.zipf_ids`` draws them: rank k with probability ~ (k + 1)^-1.05, ranks spread."""
        weights = (self.arange(1, n_rows + 1).double() ** -1.05).cumsum(0)
        drawn = torch.rand(n, generator=self.random, device=self.place, dtype=torch.float64) * weights[-1]
        ranks = torch.searchsorted(weights, drawn).clamp_(max=n_rows - 1)
        return ranks * 2654435761 % n_rows  # a prime above the number of rows: each has one rank

    def time(self, works: Mapping[str, Work]) -> "Timed":
        """Times the works, in turn with each other and with the copy."""
        to, from_ = self._copied
        copy = Work(run=partial(to.copy_, from_), work="", n_bytes=to.nbytes + from_.nbytes)
        every = {COPY: copy, **works}
        repeats = {name: self._repeats(work) for name, work in every.items()}
        runs = {name: partial(self._timed, work, repeats[name]) for name, work in every.items()}
        return Timed(every, Rounds(runs, self._n_rounds), "emulated" if self.emulated else "measured")

    def _repeats(self, work: Work) -> int:
        """As many calls as take long enough; those of a work that needs something before are few."""
        if self.emulated:
            return 1
        self._timed(work, 1)
        least = math.ceil(self._ms / max(self._timed(work, 1), 1e-3))
        return max(1, min(least, MOST_REPEATS if work.before is None else 5))

    def _timed(self, work: Work, n: int) -> float:
        """Milliseconds of a call, the mean over n. What kernels refuse is told at the end, and no call waits for it."""
        total = 0.0
        with self.device.together():
            for _ in range(n if work.before else 1):
                if work.before:
                    work.before()
                total += self._span(work.run, 1 if work.before else n)
        return total / n

    def _span(self, run: Callable[[], Any], n: int) -> float:
        if self.emulated:
            began = time.perf_counter()
            for _ in range(n):
                run()
            return (time.perf_counter() - began) * 1e3
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(n):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


@dataclass(frozen=True)
class Timed:
    """Times of works, and rows made of them."""

    works: dict[str, Work]
    rounds: Rounds
    status: str

    def of_copy(self, name: str) -> float:
        """Bytes per second over those of the copy, round by round."""
        copies = self.works[name].n_bytes / self.works[COPY].n_bytes
        return self.rounds.ratio(lambda ms: copies * ms(COPY) / ms(name))

    def ids_per_s(self, name: str) -> float:
        """Ids per second."""
        return self.works[name].n_ids / self.rounds.median(name) * 1e3

    def times(self, name: str, peer: str) -> float:
        """Time of a peer over that of the work, round by round."""
        return self.rounds.ratio(lambda ms: ms(peer) / ms(name))

    def row(self, name: str, peer: str | None = None) -> Row:
        """The row of a work; ``peer`` is another that torch does the same with."""
        work, ms = self.works[name], self.rounds.median(name)
        found = dict.fromkeys(KEYS) | {"case": name, "status": self.status, "ms": ms, "work": work.work}
        found["copy_gb_per_s"] = self.works[COPY].n_bytes / self.rounds.median(COPY) / 1e6
        if work.n_bytes:
            found |= {"gb_per_s": work.n_bytes / ms / 1e6, "of_copy": self.of_copy(name)}
        if work.n_ids:
            found["million_per_s"] = self.ids_per_s(name) / 1e6
        if peer:
            found |= {"torch_ms": self.rounds.median(peer), "times_torch": self.times(name, peer)}
        return found


def unmeasured(part: Part, status: str, reason: str) -> list[Row]:
    """The rows of a part that was not run, or not to its end: all that it would tell of, without a figure."""
    why = {"status": status, "reason": reason}
    cases = [{"case": case, **dict.fromkeys(KEYS[1:]), **why} for case in part.cases]
    return [*cases, *({"check": check, **why} for check in part.checks)]


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal up to the order of additions."""
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)
