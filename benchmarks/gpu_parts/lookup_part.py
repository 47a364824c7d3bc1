"""Pooled gather, and ids to updated rows, over a table far beyond the caches. One part for each width.

Float32 rows, uniform ids over 16 GB (half of the GPU's free memory, if that is less), one id a bag and bags of 20.
What a call has to move:

gather   every row that is asked for, ids, offsets, and the vectors that are written
update   gradients, once; ids; each distinct row and its state, read and written. ``group`` and ``merge_update`` of
         row-wise Adagrad. With bags of 20 each gradient is of 20 ids and counts once.

``gpu.gather.*`` is the lower share of the copy's bandwidth of both kinds of bags, ``gpu.update.*`` that of one id a
bag. Other rows: the two halves of the update, and ids that repeat, by Zipf's law.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_parts.bench import Found, Machine, Part, Work, close
from gpu_parts.by_definition import agrees

from hpcrec import kernels
from hpcrec.types import OptimizerSpec

GOALS = {64: (">= 0.8", ">= 0.5"), 128: (">= 0.85", ">= 0.6")}
TABLE_BYTES = 16 * 10**9
BAG = 20
SPEC = OptimizerSpec(name="rowwise_adagrad")
LR = 1e-3
SAMPLE = 256
UNIT = "of copy bandwidth"


class Bags:
    """A table, ids of bags of one length, and gradients of the bags."""

    def __init__(
        self, machine: Machine, table: torch.Tensor, states: torch.Tensor, ids: torch.Tensor, bag: int
    ) -> None:
        self.table, self.states, self.ids, self.bag = table, states, ids, bag
        self.width = table.shape[1]
        self.n_bags = ids.numel() // bag
        self.gradients = machine.normal(self.n_bags * self.width)
        self.out = torch.zeros(self.n_bags * self.width, device=table.device)
        offsets = machine.arange(0, ids.numel() + 1, bag)
        places = machine.arange(self.n_bags) * self.width
        self.calls = [machine.array(a) for a in (table, ids, offsets, self.out, self.gradients, places, states)]
        self.n_distinct = self.group().unique.size

    def gather(self) -> None:
        """Pools the rows of each bag."""
        rows, ids, offsets, out, *_ = self.calls
        kernels.pooled_gather(rows, ids, offsets, out)

    def group(self) -> Any:
        """Sorts the ids."""
        _, ids, offsets, *_ = self.calls
        return kernels.group(ids, offsets)

    def merge_update(self, grouping: Any) -> None:
        """Sums gradients and steps rows."""
        rows, _, _, _, gradients, places, states = self.calls
        kernels.merge_update(SPEC, rows, {"accumulator": states}, grouping, gradients, places, lr=LR, step=1)

    def update(self) -> None:
        """From ids to updated rows."""
        self.merge_update(self.group())

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return 4 * self.width

    def gather_work(self) -> Work:
        """The gather as it is timed."""
        n_bytes = self.ids.numel() * (self.row_bytes + 8) + (self.n_bags + 1) * 8 + self.n_bags * self.row_bytes
        return Work(run=self.gather, n_bytes=n_bytes, n_ids=self.ids.numel(), work=self.said())

    def update_work(self) -> Work:
        """The whole update as it is timed."""
        n_bytes = self.update_bytes() + self.ids.numel() * 8
        return Work(run=self.update, n_bytes=n_bytes, n_ids=self.ids.numel(), work=self.said())

    def update_bytes(self) -> int:
        """Of gradients, and of distinct rows and states there and back."""
        return self.n_bags * self.row_bytes + self.n_distinct * 2 * (self.row_bytes + 4)

    def said(self) -> str:
        """The sizes, in words."""
        return f"{self.ids.numel():,} ids, {self.n_distinct:,} distinct, of {len(self.table):,} rows"


def gather_agrees(bags: Bags) -> bool:
    """The first bags, and the last ones, as torch sums them."""
    bags.gather()
    n = min(SAMPLE, bags.n_bags)
    found = bags.out.view(-1, bags.width)
    ids = bags.ids[: bags.n_bags * bags.bag].view(bags.n_bags, bags.bag)
    return all(close(found[some], bags.table[ids[some]].sum(1)) for some in (slice(n), slice(-n, None)))


def update_agrees(bags: Bags) -> bool:
    """Some rows after an update, as torch computes them."""
    some = bags.ids[:SAMPLE].unique()
    rows, states = bags.table[some], bags.states[some]
    mine = torch.isin(bags.ids, some).nonzero()[:, 0]
    summed = torch.zeros_like(rows)
    summed.index_add_(
        0, torch.searchsorted(some, bags.ids[mine]), bags.gradients.view(-1, bags.width)[mine // bags.bag]
    )
    states += summed.square().mean(1)
    rows -= LR * summed / (states.sqrt() + SPEC.eps)[:, None]
    bags.update()
    return close(bags.table[some], rows) and close(bags.states[some], states)


def definition_agrees(machine: Machine, width: int) -> dict[str, bool]:
    """The bits of NumPy's definition, of bags of any length, on a small table."""
    rng = np.random.default_rng(width)
    lengths = rng.integers(0, 9, 60)
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int64)
    rows = rng.standard_normal((50, width), np.float32)
    ids = rng.integers(0, 50, offsets[-1])
    gradients = rng.standard_normal(60 * width, np.float32)
    places = np.arange(60) * width

    def gathered(rows: Any, ids: Any, offsets: Any, out: Any) -> tuple[Any]:
        kernels.pooled_gather(rows, ids, offsets, out)
        return (out,)

    def updated(rows: Any, state: Any, ids: Any, offsets: Any, gradients: Any, places: Any) -> tuple[Any, ...]:
        grouping = kernels.group(ids, offsets)
        kernels.merge_update(SPEC, rows, {"accumulator": state}, grouping, gradients, places, lr=LR, step=1)
        return (*grouping, rows, state)

    return {
        f"pooled_gather {width}, NumPy's bits": agrees(machine, gathered, rows, ids, offsets, np.zeros_like(gradients)),
        f"group and merge_update {width}, NumPy's bits": agrees(
            machine, updated, rows, np.zeros(50, np.float32), ids, offsets, gradients, places
        ),
    }


def measure(machine: Machine, width: int) -> Found:
    """All cases of a width."""
    found = Found(checks=definition_agrees(machine, width))
    n_bytes = machine.pick(min(TABLE_BYTES, machine.free_bytes() // 2), 200 * 4 * width)
    n_rows = n_bytes // (4 * width)
    table = torch.empty((n_rows, width), device=machine.place).uniform_(-0.1, 0.1, generator=machine.random)
    states = torch.zeros(n_rows, device=machine.place)
    n = machine.pick(1 << 22, 200)
    single = Bags(machine, table, states, machine.uniform_ids(n_rows, n), 1)
    pooled = Bags(machine, table, states, machine.uniform_ids(n_rows, n // BAG * BAG), BAG)
    zipf = Bags(machine, table, states, machine.zipf_ids(n_rows, n), 1)
    for name, bags in (("one id a bag", single), (f"bags of {BAG}", pooled)):
        found.checks[f"pooled_gather {width}, {name}, timed size, torch"] = gather_agrees(bags)
        found.checks[f"update {width}, {name}, timed size, torch"] = update_agrees(bags)
    grouping = single.group()
    merge = Work(run=partial(single.merge_update, grouping), n_bytes=single.update_bytes(), n_ids=n, work=single.said())
    # order and segments are written too, which the update as a whole does not count
    group_bytes = 8 * (2 * n + 2 * single.n_distinct)
    timed = machine.time(
        {
            f"gather {width}, one id a bag": single.gather_work(),
            f"gather {width}, bags of {BAG}": pooled.gather_work(),
            f"update {width}, one id a bag": single.update_work(),
            f"update {width}, bags of {BAG}": pooled.update_work(),
            f"update {width}, Zipf ids": zipf.update_work(),
            f"group, as for {width}": Work(run=single.group, n_bytes=group_bytes, n_ids=n, work=single.said()),
            f"merge_update {width}, one id a bag": merge,
        }
    )
    found.rows = [timed.row(case) for case in cases(width)]
    gathers = (timed.of_copy(f"gather {width}, {bags}") for bags in ("one id a bag", f"bags of {BAG}"))
    found.values[f"gpu.gather.{width}"] = min(gathers)
    found.values[f"gpu.update.{width}"] = timed.of_copy(f"update {width}, one id a bag")
    return found


def cases(width: int) -> tuple[str, ...]:
    """Names of the rows."""
    kinds = ("one id a bag", f"bags of {BAG}")
    every = [f"{call} {width}, {kind}" for call in ("gather", "update") for kind in kinds]
    return (*every, f"update {width}, Zipf ids", f"group, as for {width}", f"merge_update {width}, one id a bag")


def part(width: int) -> Part:
    """The part of a width."""
    gather, update = GOALS[width]
    kinds = ("one id a bag", f"bags of {BAG}")
    by_torch = (f"{call} {width}, {kind}, timed size, torch" for kind in kinds for call in ("pooled_gather", "update"))
    return Part(
        name=f"lookup{width}",
        cases=cases(width),
        checks=(
            f"pooled_gather {width}, NumPy's bits", f"group and merge_update {width}, NumPy's bits", *by_torch,
        ),
        claims=((f"gpu.gather.{width}", UNIT, gather), (f"gpu.update.{width}", UNIT, update)),
        measure=partial(measure, width=width),
    )  # fmt: skip
