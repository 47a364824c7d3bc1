"""What is left of a step: thresholds, halves, vectors copied, initial rows, distinct ids, and copies to the device.

Bytes are what a call has to read and write once. ``gpu.threshold``: ``select_above`` of 256 MB by a threshold that one
in a hundred passes; values read once, positions and values written. It reads them once and writes a bit for each; then
it waits for their number. Copies between host and device are of pageable memory through pinned buffers
(``hpcrec/kernels/staging.py``), beside torch's copy of pinned memory (``torch_ms``).
"""
# mypy: disable-error-code="arg-type"

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_parts.bench import Found, Machine, Part, Work
from gpu_parts.by_definition import agrees

from hpcrec import kernels
from hpcrec.units import MiB

ABOVE = "select_above, 1 %"
TAU = 2.575829  # what one in a hundred of standard normal numbers reach
UNIT = "of copy bandwidth"
WIDTH = 64
KINDS = ("bf16", "fp16")
WAYS = ("host to device", "device to host")
CASES = (
    ABOVE, "threshold_of, 1 %", *(f"{call}_halves, {kind}" for kind in KINDS for call in ("write", "read")),
    "copy_vectors, width 64, shuffled", "init_rows, width 64", "dedup, uniform ids", "dedup, Zipf ids",
)  # fmt: skip
CHECKS = (
    "select_above and threshold_of, NumPy's bits", "halves, NumPy's bits", "copy_vectors, NumPy's bits",
    "init_rows and dedup, NumPy's bits",
)  # fmt: skip
STAGED = "what is copied comes back"
Works = Iterator[tuple[str, Work]]


def picks(machine: Machine, values: torch.Tensor) -> Works:
    """Thresholds."""
    given, said = machine.array(values), f"{values.numel():,} values"
    picked = kernels.select_above(given, TAU)[0].size
    moved = values.nbytes + 12 * picked
    yield ABOVE, Work(run=partial(kernels.select_above, given, TAU), n_bytes=moved, work=f"{said}, {picked:,} picked")
    run = partial(kernels.threshold_of, given, values.numel() // 100)
    yield CASES[1], Work(run=run, n_bytes=values.nbytes, work=said)


def halves(machine: Machine, values: torch.Tensor) -> Works:
    """There and back."""
    n = values.numel()
    back = machine.array(torch.empty_like(values))
    for kind in KINDS:
        packed = machine.device.zeros(kernels.half_bytes(n, kind), np.uint8)
        moved, said = values.nbytes + packed.nbytes, f"{n:,} values"
        run = partial(kernels.write_halves, machine.array(values), packed, kind)
        yield f"write_halves, {kind}", Work(run=run, n_bytes=moved, work=said)
        yield (
            f"read_halves, {kind}",
            Work(run=partial(kernels.read_halves, packed, back, kind), n_bytes=moved, work=said),
        )


def vectors(machine: Machine, n: int) -> Works:
    """Copied in any order, and drawn."""
    source = machine.normal(n * WIDTH)
    order = torch.randperm(n, generator=machine.random, device=machine.place)
    starts, target = machine.array(order * WIDTH), machine.array(torch.empty_like(source))
    run = partial(kernels.copy_vectors, machine.array(source), target, WIDTH, source_start=starts)
    yield CASES[6], Work(run=run, n_bytes=2 * source.nbytes + starts.nbytes, work=f"{n:,} vectors")
    run = partial(kernels.init_rows, 1, machine.array(order), WIDTH, scale=0.1)
    yield CASES[7], Work(run=run, n_bytes=source.nbytes + order.nbytes, n_ids=n, work=f"{n:,} rows")


def distinct(machine: Machine, n: int) -> Works:
    """Ids once each."""
    n_rows = machine.pick(1 << 26, 500)
    for kind, ids in (("uniform", machine.uniform_ids(n_rows, n)), ("Zipf", machine.zipf_ids(n_rows, n))):
        given = machine.array(ids)
        n_unique = kernels.dedup(given)[0].size
        said = f"{n:,} ids, {n_unique:,} distinct, of {n_rows:,}"
        yield (
            f"dedup, {kind} ids",
            Work(run=partial(kernels.dedup, given), n_bytes=8 * (2 * n + n_unique), n_ids=n, work=said),
        )


def checks(machine: Machine) -> dict[str, bool]:
    """All but the copies, of small arrays."""
    rng = np.random.default_rng(7)
    values, ids = rng.standard_normal(3000, np.float32), rng.integers(0, 300, 1000)

    def picked(values: Any) -> tuple[Any, ...]:
        return (*kernels.select_above(values, TAU / 2), np.float32(kernels.threshold_of(values, 30)))

    def there_and_back(values: Any, back: Any, *packed: Any) -> tuple[Any, ...]:
        for kind, data in zip(KINDS, packed, strict=True):
            kernels.write_halves(values, data, kind)
            kernels.read_halves(data, back, kind)
        return (*packed, back)

    def copied(values: Any, target: Any, starts: Any) -> tuple[Any]:
        kernels.copy_vectors(values, target, 10, source_start=starts)
        return (target,)

    def drawn(ids: Any) -> tuple[Any, ...]:
        return (*kernels.dedup(ids), kernels.init_rows(1, ids, 12, scale=0.1))

    packed = [np.zeros(kernels.half_bytes(values.size, kind), np.uint8) for kind in KINDS]
    starts = rng.permutation(300) * 10
    found = (
        agrees(machine, picked, values), agrees(machine, there_and_back, values, np.zeros_like(values), *packed),
        agrees(machine, copied, values, np.zeros_like(values), starts), agrees(machine, drawn, ids),
    )  # fmt: skip
    return dict(zip(CHECKS, found, strict=True))


def measure(machine: Machine) -> Found:
    """All rows but those of copies between host and device."""
    values = machine.normal(machine.pick(64 * MiB, 4096))
    n_vectors, n_ids = machine.pick(1 << 22, 30), machine.pick(1 << 24, 200)
    works: dict[str, Work] = {}
    for some in (
        picks(machine, values),
        halves(machine, values),
        vectors(machine, n_vectors),
        distinct(machine, n_ids),
    ):
        works |= dict(some)
    timed = machine.time(works)
    rows = [timed.row(case) for case in CASES]
    return Found(rows=rows, values={"gpu.threshold": timed.of_copy(ABOVE)}, checks=checks(machine))


def staging(machine: Machine) -> Found:
    """Copies between host and device."""
    host = np.random.default_rng(1).integers(0, 256, machine.pick(512 * MiB, 4096), np.uint8)
    pinned = torch.empty(host.size, dtype=torch.uint8, pin_memory=not machine.emulated)
    there, back = machine.device.array(host), np.empty_like(host)
    there.copy_to(back)
    found = Found(checks={STAGED: bool(np.array_equal(host, back))})
    said = f"{host.size:,} bytes"
    runs: dict[str, Any] = {
        WAYS[0]: partial(machine.device.array, host),
        WAYS[1]: partial(there.copy_to, back),
        f"torch, {WAYS[0]}": partial(there.tensor.copy_, pinned, non_blocking=True),
        f"torch, {WAYS[1]}": partial(pinned.copy_, there.tensor, non_blocking=True),
    }
    timed = machine.time({name: Work(run=run, n_bytes=host.size, work=said) for name, run in runs.items()})
    found.rows = [timed.row(way, f"torch, {way}") for way in WAYS]
    for row in found.rows:  # of a copy within the GPU's memory it is no share
        row["of_copy"] = None
    return found


PART = Part(
    name="values", cases=CASES, checks=CHECKS, claims=(("gpu.threshold", UNIT, ">= 0.8"),), measure=measure
)  # fmt: skip
STAGING = Part(name="staging", cases=WAYS, checks=(STAGED,), claims=(), measure=staging)
