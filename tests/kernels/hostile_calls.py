"""Calls of the native kernels made from a seed, right ones and spoilt ones, for ``test_kernels_hostile.py``.

Knows what arguments a kernel takes, and nothing of what it computes.
"""

import os
import tempfile
from collections.abc import Callable
from copy import copy as copied
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from hpcrec import kernels
from hpcrec.kernels import reference_chunks, reference_packed
from hpcrec.types import OptimizerSpec

EDGES = (-1, -(2**63), 2**63 - 1, 2**31 - 1, 2**31, 2**32, 2**62)
SCALARS = (0, -1, 1, 2.5, float("nan"), "3", None, True, np.int64(3), 2**40, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63))


@dataclass
class Call:
    """A kernel and its arguments by name; which arrays it writes into."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    written: tuple[str, ...] = ()

    def run(self) -> Any:
        found = self.function(**self.arguments)
        return found, [self.arguments[name] for name in self.written]


# --- calls that are right --------------------------------------------------------------------------------------------


def floats(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype)


def offsets_of(rng: np.random.Generator, n: int, longest: int) -> np.ndarray:
    return np.r_[0, np.cumsum(rng.integers(0, longest + 1, n))].astype(np.int64)


def sizes(rng: np.random.Generator) -> tuple[int, int, int, Any]:
    """Vectors, rows, width, type; now and then enough of them for a team of threads."""
    large = rng.random() < 0.1
    n = int(rng.integers(100, 200)) if large else int(rng.integers(0, 8))
    return n, int(rng.integers(1, 9)), int(rng.choice((100, 128) if large else (1, 2, 3, 8, 16))), rng.choice(
        np.array([np.float32, np.float64], object)
    )  # fmt: skip


def gather(rng: np.random.Generator) -> Call:
    n, n_rows, width, dtype = sizes(rng)
    offsets = offsets_of(rng, n, 3)
    index = rng.integers(0, n_rows, offsets[-1])
    arguments = {
        "rows": floats(rng, (n_rows, width), dtype), "index": index, "offsets": offsets,
        "out": np.zeros(n * width, dtype),
        "out_start": np.arange(n)[::-1] * width if rng.random() < 0.5 else None,
        "weights": floats(rng, index.size, dtype) if rng.random() < 0.5 else None,
        "scale": floats(rng, n, dtype) if rng.random() < 0.5 else None,
    }  # fmt: skip
    arguments["out_start"] = contiguous(arguments["out_start"])
    return Call(kernels.pooled_gather, arguments, ("out",))


def beside_gather(rng: np.random.Generator) -> Call:
    call = gather(rng)
    rows, out = call.arguments["rows"], call.arguments["out"]
    width = rows.shape[1]
    call.arguments["out"] = np.zeros(out.size + out.size // width, out.dtype)
    starts = np.arange(out.size, out.size + out.size // width)
    call.arguments |= {"narrow": floats(rng, (len(rows), 1), rows.dtype), "start": starts}

    def run(narrow: Any, start: Any, **rest: Any) -> Any:
        return kernels.pooled_gather(beside=kernels.Beside(narrow, start), **rest)

    return Call(run, call.arguments, ("out",))


def maximum(rng: np.random.Generator) -> Call:
    call = gather(rng)
    del call.arguments["weights"], call.arguments["scale"]
    n, width = call.arguments["offsets"].size - 1, call.arguments["rows"].shape[1]
    call.arguments["winners"] = np.zeros((n, width), np.int32) if rng.random() < 0.5 else None
    return Call(kernels.pooled_max, call.arguments, ("out", "winners"))


def maximum_backward(rng: np.random.Generator) -> Call:
    n, _, width, dtype = sizes(rng)
    offsets = offsets_of(rng, n, 3)
    arguments = {
        "winners": rng.integers(0, np.maximum(np.diff(offsets), 1)[:, None], (n, width)).astype(np.int32),
        "offsets": offsets, "gradients": floats(rng, n * width, dtype),
        "out": np.zeros((offsets[-1], width), dtype),
        "source_start": rng.permutation(n) * width if rng.random() < 0.5 else None,
    }  # fmt: skip
    return Call(kernels.pooled_max_backward, arguments, ("out",))


def fm(rng: np.random.Generator) -> Call:
    n, n_features, width, dtype = sizes(rng)
    vectors = floats(rng, (n, n_features, width), dtype)
    arguments = {"vectors": vectors, "sums": np.zeros((n, width), dtype), "squares": np.zeros(n, dtype)}
    return Call(kernels.fm_sums, arguments, ("sums", "squares"))


def fm_backward(rng: np.random.Generator) -> Call:
    n, n_features, width, dtype = sizes(rng)
    vectors = floats(rng, (n_features, n, width), dtype).transpose(1, 0, 2)
    arguments = {
        "vectors": vectors, "sums_gradient": floats(rng, (n, width), dtype),
        "squares_gradient": floats(rng, n, dtype), "gradient": np.zeros_like(vectors),
    }  # fmt: skip
    return Call(kernels.fm_sums_backward, arguments, ("gradient",))


def contiguous(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else np.ascontiguousarray(array)


def copy(rng: np.random.Generator) -> Call:
    n, n_source, width, dtype = sizes(rng)
    with_starts = rng.random() < 0.7
    accumulate = bool(rng.random() < 0.5)
    starts = rng.integers(0, n_source * width - width + 1, n) if with_starts else None
    source = floats(rng, (n_source if with_starts else n) * width, dtype)
    arguments = {
        "source": source, "target": np.ones(n * width, dtype), "width": width, "source_start": starts,
        "target_start": rng.permutation(n) * width if with_starts and rng.random() < 0.5 else None,
        "accumulate": accumulate, "scale": floats(rng, n, dtype) if rng.random() < 0.5 else None,
    }  # fmt: skip
    return Call(kernels.copy_vectors, arguments, ("target",))


def grouped(rng: np.random.Generator) -> tuple[dict[str, Any], int, Any]:
    n, n_rows, width, dtype = sizes(rng)
    grouping = kernels.group(rng.integers(0, n_rows, 3 * n))
    arguments = {
        "unique": grouping.unique, "segments": grouping.segments, "order": grouping.order,
        "gradients": floats(rng, (n + 1) * width, dtype), "source_start": rng.integers(0, n * width + 1, 3 * n),
        "weights": floats(rng, 3 * n, dtype) if rng.random() < 0.5 else None,
    }  # fmt: skip
    return arguments, width, dtype


def with_grouping(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(unique: Any, segments: Any, order: Any, **rest: Any) -> Any:
        return function(grouping=kernels.Grouping(unique, segments, order), **rest)

    return call


def merge(rng: np.random.Generator) -> Call:
    arguments, width, dtype = grouped(rng)
    out = np.zeros((arguments["unique"].size, width), dtype) if rng.random() < 0.5 else None
    return Call(with_grouping(kernels.merge), {**arguments, "width": width, "out": out}, ("out",))


def stepped(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(name: str, state1: Any = None, state2: Any = None, **rest: Any) -> Any:
        names = kernels.initial_states(OptimizerSpec(name=name), 1, 1, np.float32)
        states = dict(zip(names, (state1, state2), strict=False))
        return function(spec=OptimizerSpec(name=name), states=states, lr=0.1, **rest)

    return call


def rows_and_states(rng: np.random.Generator, n_rows: int, width: int, dtype: Any) -> dict[str, Any]:
    name = str(rng.choice(["sgd", "adagrad", "rowwise_adagrad", "adam"]))
    states = list(kernels.initial_states(OptimizerSpec(name=name), n_rows, width, dtype).values())
    numbered = {f"state{i + 1}": state for i, state in enumerate(states)}
    return {"name": name, "rows": floats(rng, (n_rows, width), dtype), **numbered, "step": int(rng.integers(1, 5))}


def update(rng: np.random.Generator) -> Call:
    n, _, width, dtype = sizes(rng)
    arguments = rows_and_states(rng, n + 3, width, dtype)
    arguments |= {"unique": np.sort(rng.permutation(n + 3)[:n]), "merged": floats(rng, (n, width), dtype)}
    if arguments["name"] == "rowwise_adagrad" and rng.random() < 0.5:
        arguments |= {"squared_norm": np.abs(floats(rng, n, dtype)), "total_width": 2 * width}
    return Call(stepped(kernels.update), arguments, ("rows", *(k for k in arguments if k.startswith("state"))))


def merge_update(rng: np.random.Generator) -> Call:
    occurrences, width, dtype = grouped(rng)
    arguments = rows_and_states(rng, 9, width, dtype) | occurrences
    written = ("rows", *(k for k in arguments if k.startswith("state")))
    return Call(stepped(with_grouping(kernels.merge_update)), arguments, written)


def beside_merge_update(rng: np.random.Generator) -> Call:
    call = merge_update(rng)
    arguments = call.arguments
    rows, starts = arguments["rows"], arguments["source_start"]
    its_states = kernels.initial_states(OptimizerSpec(name=arguments["name"]), len(rows), 1, rows.dtype)
    its = {f"its_{key}": state for key, state in zip(("state1", "state2"), its_states.values(), strict=False)}
    arguments |= {"narrow": floats(rng, (len(rows), 1), rows.dtype), "its_start": starts // 2, **its}

    def run(narrow: Any, its_start: Any, its_state1: Any = None, its_state2: Any = None, **rest: Any) -> Any:
        spec = OptimizerSpec(name=rest["name"])
        names = kernels.initial_states(spec, 1, 1, np.float32)
        states = dict(zip(names, (its_state1, its_state2), strict=False))
        return call.function(beside=kernels.BesideStep(spec, narrow, states, its_start, 0.1), **rest)

    return Call(run, arguments, (*call.written, "narrow", *its))


def of_halves(make: Callable[[np.random.Generator], Call]) -> Callable[[np.random.Generator], Call]:
    """The same call with rows of halves; float64 becomes float32."""

    def half_call(rng: np.random.Generator) -> Call:
        call = make(rng)
        single = {k: as_single(a) for k, a in call.arguments.items()}
        bits = rng.integers(0, 2**16, single.pop("rows").shape, np.uint16)
        arguments = {**single, "bits": bits, "kind": str(rng.choice(["bf16", "fp16"])), "seed": int(rng.integers(9))}
        if rng.random() < 0.3:
            arguments["seed"] = None
        written = tuple("bits" if name == "rows" else name for name in call.written)
        return Call(lambda bits, kind, seed, **rest: call.function(rows=kernels.HalfRows(bits, kind, seed), **rest),
                    arguments, written)  # fmt: skip

    half_call.__name__ = f"half_{make.__name__}"
    return half_call


def as_single(value: Any) -> Any:
    return value.astype(np.float32) if isinstance(value, np.ndarray) and value.dtype == np.float64 else value


half_gather, half_maximum = of_halves(gather), of_halves(maximum)
half_update, half_merge_update = of_halves(update), of_halves(merge_update)


def to_half_rows(rng: np.random.Generator) -> Call:
    n, n_rows, width, _ = sizes(rng)
    kind, seed = str(rng.choice(["bf16", "fp16"])), int(rng.integers(9)) if rng.random() < 0.7 else None
    rows = edge_value(rng, floats(rng, (n_rows * n, width), np.float32))
    arguments = {"rows": rows, "first_row": int(rng.integers(0, 99))}
    return Call(lambda **given: kernels.to_half_rows(kind=kind, seed=seed, **given).bits, arguments)


def from_half_rows(rng: np.random.Generator) -> Call:
    n, n_rows, width, _ = sizes(rng)
    kind = str(rng.choice(["bf16", "fp16"]))
    bits = rng.integers(0, 2**16, (n_rows * n, width), np.uint16)
    return Call(lambda bits: kernels.from_half_rows(kernels.HalfRows(bits, kind)), {"bits": bits})


def squared_norm(rng: np.random.Generator) -> Call:
    n, _, width, dtype = sizes(rng)
    return Call(kernels.squared_norm, {"merged": floats(rng, (n, width), dtype)})


def any_ids(rng: np.random.Generator, high: int = 2**62) -> np.ndarray:
    n = int(rng.choice([0, 1, 5, 60]))
    return rng.integers(-high, high, n) if rng.random() < 0.5 else rng.integers(0, 5, n)


def group(rng: np.random.Generator) -> Call:
    return Call(kernels.group, {"index": any_ids(rng)})


def dedup(rng: np.random.Generator) -> Call:
    return Call(kernels.dedup, {"ids": any_ids(rng)})


def partition(rng: np.random.Generator) -> Call:
    n_parts = int(rng.integers(1, 6))
    part = rng.integers(0, n_parts, int(rng.integers(0, 30))).astype(np.int32)
    return Call(kernels.partition, {"part": part, "n_parts": n_parts})


def permute(rng: np.random.Generator) -> Call:
    rows = int(rng.choice([1, 2, 7, 2**20, 2**63 - 1]))
    function = kernels.permute if rng.random() < 0.5 else kernels.unpermute
    return Call(function, {"ids": rng.integers(0, rows, 9), "rows": rows, "seed": int(rng.integers(-9, 9))})


def hash_ids(rng: np.random.Generator) -> Call:
    return Call(kernels.hash_ids, {"ids": any_ids(rng), "rows": int(rng.choice([1, 7, 2**62])), "seed": 3})


def init_rows(rng: np.random.Generator) -> Call:
    dtype = rng.choice(np.array([np.float32, np.float64], object))
    arguments = {"seed": 3, "ids": any_ids(rng), "width": int(rng.integers(1, 9)), "scale": 0.5, "dtype": dtype}
    return Call(kernels.init_rows, {**arguments, "column_start": int(rng.choice([0, 4, 2**62]))})


def take_bags(rng: np.random.Generator) -> Call:
    n, n_bags, _, _ = sizes(rng)
    offsets = offsets_of(rng, n_bags, 5)
    rows = rng.integers(0, n_bags, n)
    dtype = np.int64 if rng.random() < 0.5 else np.float32
    arguments = {
        "items": rng.integers(0, 99, offsets[-1]).astype(dtype), "offsets": offsets, "rows": rows,
        "out_offsets": np.r_[0, np.cumsum(np.diff(offsets)[rows])].astype(np.int64),
    }  # fmt: skip
    return Call(kernels.take_bags, {**arguments, "out": np.zeros(arguments["out_offsets"][-1], dtype)}, ("out",))


def whole_numbers(rng: np.random.Generator) -> tuple[np.ndarray, bool]:
    """Some of any width that can be packed, and whether they rise."""
    n, rising = int(rng.choice([0, 1, 9, 200])), bool(rng.random() < 0.5)
    numbers = (
        rng.integers(0, 2 ** int(rng.integers(57)), n) if rng.random() < 0.8 else rng.integers(-(2**63), 2**63 - 1, n)
    )
    return (np.unique(numbers) if rising else numbers), rising


def packed_of(numbers: np.ndarray, rising: bool) -> np.ndarray:
    out = np.zeros(reference_packed.packed_bytes(numbers)[rising], np.uint8)
    reference_packed.pack_numbers(numbers, rising, out)
    return out


def packed_bytes(rng: np.random.Generator) -> Call:
    return Call(lambda **arguments: np.array(kernels.packed_bytes(**arguments)), {"numbers": whole_numbers(rng)[0]})


def pack_numbers(rng: np.random.Generator) -> Call:
    numbers, rising = whole_numbers(rng)
    arguments = {"numbers": numbers, "out": np.zeros_like(packed_of(numbers, rising)), "rising": rising}
    return Call(kernels.pack_numbers, arguments, ("out",))


def unpack_numbers(rng: np.random.Generator) -> Call:
    numbers, rising = whole_numbers(rng)
    return Call(kernels.unpack_numbers, {"packed": packed_of(numbers, rising), "n": len(numbers), "rising": rising})


def as_array(function: Callable[..., int]) -> Callable[..., np.ndarray]:
    return lambda **arguments: np.array(function(**arguments))


def fletcher32(rng: np.random.Generator) -> Call:
    return Call(as_array(kernels.fletcher32), {"data": rng.integers(0, 256, int(rng.choice([0, 1, 9, 700])), np.uint8)})


CHUNKS, CHUNK_ITEMS = 4, 24


@cache
def file_of_chunks() -> Any:
    """A file of numbers of 4 bytes in chunks with checksums, the last of which is wrong."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - until the process ends
    for _ in range(CHUNKS):
        chunk = np.arange(CHUNK_ITEMS, dtype=np.int32)
        file.write(chunk.tobytes() + reference_chunks.fletcher32(chunk.view(np.uint8)).to_bytes(4, "little"))
    file.seek(-1, os.SEEK_CUR)
    file.write(b"?")
    file.flush()
    return file


def read_or_nothing(**arguments: Any) -> int:
    """What is not promised, after a piece that could not be read, becomes 0."""
    read = kernels.read_chunks(file_of_chunks().fileno(), **arguments)
    if read < len(arguments["wanted"]):
        arguments["out"][...] = 0
    return read


def read_chunks(rng: np.random.Generator) -> Call:
    wide = rng.random() < 0.7
    wanted = np.empty((int(rng.integers(0, 4)), 7), np.int64)
    for piece in wanted:
        start = int(rng.integers(0, 2 * CHUNK_ITEMS))
        n = int(rng.integers(0, 2 * CHUNK_ITEMS - start + 1))
        piece[:] = rng.integers(0, CHUNKS - 1), 2, CHUNK_ITEMS, 4, start, n, CHUNK_ITEMS if wide else 0
    arguments = {
        "chunk_at": np.arange(CHUNKS, dtype=np.int64) * (4 * CHUNK_ITEMS + 4), "checked": np.zeros(CHUNKS, np.uint8),
        "wanted": wanted, "out": np.zeros(int(wanted[:, 5].sum()), np.int64 if wide else np.float32),
    }  # fmt: skip
    return Call(as_array(read_or_nothing), arguments, ("out", "checked"))


KINDS = ("bf16", "fp16", "fp32")


def single(rng: np.random.Generator) -> np.ndarray:
    """float32, now and then enough of them for a team of threads, some at the edges of their type."""
    n = int(rng.choice([0, 1, 9, 130, 20_000], p=[0.1, 0.2, 0.3, 0.3, 0.1]))
    return floats(rng, n, np.float32) * rng.choice(np.array([1, 0, 1e-38, 1e37, np.nan], np.float32), n)


def write_halves(rng: np.random.Generator) -> Call:
    values, kind = single(rng), str(rng.choice(KINDS))
    out = np.zeros(kernels.half_bytes(values.size, kind), np.uint8)
    return Call(lambda **arrays: kernels.write_halves(**arrays, kind=kind), {"values": values, "out": out}, ("out",))


def read_halves(rng: np.random.Generator) -> Call:
    out, kind = single(rng), str(rng.choice(KINDS))
    data = rng.integers(0, 256, kernels.half_bytes(out.size, kind), np.uint8)
    return Call(lambda **arrays: kernels.read_halves(**arrays, kind=kind), {"data": data, "out": out}, ("out",))


def threshold_of(rng: np.random.Generator) -> Call:
    values = np.r_[single(rng), np.float32(1)]
    return Call(as_array(kernels.threshold_of), {"values": values, "keep": int(rng.integers(1, values.size + 1))})


def tau_of(rng: np.random.Generator) -> float:
    return float(rng.choice([0.0, 0.5, 1e-39, 1e38, np.inf]))


def select_above(rng: np.random.Generator) -> Call:
    tau = tau_of(rng)
    return Call(lambda values: kernels.select_above(values, tau), {"values": single(rng)})


def select_largest(rng: np.random.Generator) -> Call:
    width = int(rng.integers(1, 9))
    keep = int(rng.integers(1, width + 1))
    values = floats(rng, 40 * width, np.float32).reshape(40, width)
    return Call(lambda values: kernels.select_largest(values, keep), {"values": values})


def select_with_feedback(rng: np.random.Generator) -> Call:
    gradient, tau = single(rng), tau_of(rng)
    arguments = {"gradient": gradient, "residual": floats(rng, gradient.size, np.float32)}
    return Call(lambda **arrays: kernels.select_with_feedback(**arrays, tau=tau), arguments, ("residual",))


def rising(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Positions that rise, and how many there could be."""
    n = int(rng.choice([1, 9, 130, 40_000], p=[0.2, 0.3, 0.4, 0.1]))
    return np.flatnonzero(rng.random(n) < rng.choice([0.02, 0.5, 1])), n


def scatter(rng: np.random.Generator) -> Call:
    positions, n = rising(rng)
    function = kernels.scatter_add if rng.random() < 0.5 else kernels.expand
    arguments = {"out": floats(rng, n, np.float32), "positions": positions}
    return Call(function, {**arguments, "values": floats(rng, positions.size, np.float32)}, ("out",))


def gather_positions(rng: np.random.Generator) -> Call:
    positions, n = rising(rng)
    return Call(kernels.gather, {"values": floats(rng, n, np.float32), "positions": rng.permutation(positions)})


def positions_bytes(rng: np.random.Generator) -> Call:
    positions, n = rising(rng)
    return Call(lambda **arguments: np.array(kernels.positions_bytes(**arguments)), {"positions": positions, "n": n})


def write_positions(rng: np.random.Generator) -> Call:
    positions, n = rising(rng)
    n_bytes, coding = kernels.positions_bytes(positions, n)
    arguments = {"positions": positions, "n": n, "coding": int(coding), "out": np.zeros(n_bytes, np.uint8)}
    return Call(kernels.write_positions, arguments, ("out",))


def read_positions(rng: np.random.Generator) -> Call:
    call = write_positions(rng)
    call.run()
    k, data = call.arguments.pop("positions").size, call.arguments.pop("out")
    return Call(kernels.read_positions, {"data": data, "k": k, **call.arguments})


def asked(rng: np.random.Generator) -> dict[str, Any]:
    """What some owners are asked: few ids a cell, and now and then as many as are packed by themselves."""
    n_owners, n_entries = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    keys = np.flatnonzero(rng.random(n_owners * n_entries) < 0.6)
    n_bags = rng.choice([1, 3, 130], keys.size)
    lengths = np.ones(n_bags.sum(), np.int64) if rng.random() < 0.5 else rng.integers(0, 3, n_bags.sum())
    n_ids = np.array([part.sum() for part in np.split(lengths, np.cumsum(n_bags))[:-1]], np.int64)
    return {
        "ids": rng.integers(-(2**63) if rng.random() < 0.2 else 0, 2 ** int(rng.integers(1, 60)), lengths.sum()),
        "lengths": lengths, "cells": np.stack([keys // n_entries, keys % n_entries, n_ids, n_bags], axis=1),
        "far": rng.random(n_owners) < 0.5, "weighted": rng.random(n_entries) < 0.3, "item": 4,
    }  # fmt: skip


def deal_requests(rng: np.random.Generator) -> Call:
    """Of two bundles, the second in full to each of its parts; each array is an argument of its own."""
    n, n_entries = int(rng.integers(0, 40)), 5
    lengths = [np.bincount(rng.integers(0, 9, n), minlength=9) for _ in range(2)]
    arguments = {
        "ids_0": rng.integers(0, 1000, n), "ids_1": rng.integers(0, 1000, n), "lengths_0": lengths[0],
        "lengths_1": lengths[1], "parts_0": rng.integers(0, 3, n), "weights_1": rng.integers(0, 256, 4 * n, np.uint8),
        "entries": rng.permutation(n_entries) - int(rng.integers(0, 2)), "first_B": np.array([0, 3, 5]),
        "every": rng.random(n_entries) < 0.4, "item": 4,
    }  # fmt: skip

    def run(**of: Any) -> tuple[np.ndarray, ...]:
        return tuple(
            kernels.deal_requests(
                [of["ids_0"], of["ids_1"]], [of["lengths_0"], of["lengths_1"]], [of["parts_0"], None],
                [None, of["weights_1"]], of["entries"], of["first_B"], of["every"], of["item"],
            )
        )  # fmt: skip

    return Call(run, arguments)


def plan_requests(rng: np.random.Generator) -> Call:
    return Call(lambda **arguments: tuple(kernels.plan_requests(**arguments)), asked(rng))


def write_requests(rng: np.random.Generator) -> Call:
    arguments = asked(rng)
    plan = kernels.plan_requests(**arguments)
    del arguments["far"]
    cells, padded_R = arguments["cells"], -(-plan.bytes_R // 64) * 64
    n_weighted = int(cells[arguments["weighted"][cells[:, 1]], 2].sum())
    arguments |= plan._asdict() | {
        "weights": rng.integers(0, 256, 4 * n_weighted, np.uint8), "out": np.zeros(padded_R.sum(), np.uint8),
        "at_R": np.cumsum(padded_R) - padded_R,
    }  # fmt: skip

    def run(**given: Any) -> None:
        kernels.write_requests(kernels.RequestPlan(*(given.pop(name) for name in plan._fields)), **given)

    return Call(run, arguments, ("out",))


def read_requests(rng: np.random.Generator) -> Call:
    call = write_requests(rng)
    call.run()
    given = call.arguments
    arguments = {
        "message": given["out"], "at_P": given["at_R"], "bytes_P": given["bytes_R"], "weighted": given["weighted"],
        "item": given["item"],
    }  # fmt: skip
    return Call(lambda **arguments: tuple(kernels.read_requests(**arguments)), arguments)


def of_copies(rng: np.random.Generator, *, none: bool) -> dict[str, Any]:
    """Copies, those of a step, and how many there are; ``unique`` are slots, the first of them perhaps -1."""
    n, n_copies, width, dtype = sizes(rng)
    records = kernels.copy_records(n_copies + n)
    of = kernels.record_fields(records)
    of["ticks"], of["at"], of["bundle"] = rng.integers(0, 4, (3, len(of)))
    of["bundle"] %= 2
    of["scale"], of["has_values"] = rng.random(len(of)), rng.integers(0, 2, len(of))
    slots = rng.permutation(len(of))[:n]
    slots[: int(none and rng.random() < 0.5)] = -1
    rows = floats(rng, (len(of), 2, width), dtype)
    return {"records": records, "rows": rows, "numbers": np.abs(floats(rng, (len(of), 2), dtype)), "unique": slots}


def copies_call(rng: np.random.Generator, given: dict[str, Any], run: Callable[..., Any]) -> Call:
    """Calls ``run(records, table, slots, the rest by name)``."""
    rule = str(rng.choice(["sgd", "adagrad", "rowwise_adagrad"]))
    if rule == "sgd":
        del given["numbers"]

    learns = np.array([0.1, 2.0]), np.array([1e-8, 0.1]), np.array([np.inf, 0.5])
    made = kernels.CopyTable(rule, *learns, given["rows"], given.get("numbers"))  # type: ignore[arg-type]

    def with_table(records: Any, rows: Any, unique: Any, numbers: Any = None, **rest: Any) -> Any:
        table = copied(made)  # which is made once, and looked at then
        for name, value in (("rows", rows), ("numbers", numbers)):
            object.__setattr__(table, name, value)
        return run(records, table, unique, **rest)

    written = [name for name in ("records", "rows", "numbers", "values") if name in given]
    return Call(with_table, given, tuple(written))


def read_copies(rng: np.random.Generator) -> Call:
    given = of_copies(rng, none=True)
    n, dtype = len(given["unique"]), given["rows"].dtype
    given |= {"sent": rng.random(n) < 0.5, "values": floats(rng, (n, given["rows"].shape[2]), dtype), "step": 7}
    accumulators = np.abs(floats(rng, n, dtype))

    def run(records: Any, table: Any, slots: Any, sent: Any, values: Any, step: Any) -> None:
        sums = None if table.rule == "sgd" else accumulators
        kernels.read_copies(records, table, slots, sent, values, sums, step=step, scale=0.5)

    return copies_call(rng, given, run)


def add_to_copies(rng: np.random.Generator) -> Call:
    given = of_copies(rng, none=True)
    shape = len(given["unique"]), given["rows"].shape[2]
    return copies_call(rng, {**given, "gradients": floats(rng, shape, given["rows"].dtype)}, kernels.add_to_copies)


def sums_of_copies(rng: np.random.Generator) -> Call:
    scale = 0.5 if rng.random() < 0.5 else None
    return copies_call(
        rng, of_copies(rng, none=False), lambda *given: kernels.sums_of_copies(*given, scale=scale)
    )  # fmt: skip


def kept_copies(rng: np.random.Generator) -> Call:
    given = of_copies(rng, none=True)
    arguments = {"records": given["records"], "slots": given["unique"], "step": 3, "max_age": 2}
    return Call(kernels.kept_copies, arguments)


def tick_copies(rng: np.random.Generator) -> Call:
    given = of_copies(rng, none=True)
    arguments = {"records": given["records"], "unique": given["unique"], "step": 3, "most": 2}
    return Call(
        lambda records, unique, **rest: kernels.tick_copies(records, unique, scale=0.5, **rest), arguments, ("records",)
    )  # fmt: skip


def end_ticks(rng: np.random.Generator) -> Call:
    given, forget = of_copies(rng, none=False), bool(rng.random() < 0.5)
    arguments = {"records": given["records"], "unique": given["unique"]}
    return Call(
        lambda records, unique: kernels.end_ticks(records, unique, forget=forget), arguments, ("records",)
    )  # fmt: skip


CALLS = (
    gather, beside_gather, maximum, maximum_backward, fm, fm_backward, copy, merge, update, merge_update,
    beside_merge_update, squared_norm, group, dedup, partition, permute, hash_ids, init_rows, take_bags, packed_bytes,
    pack_numbers, unpack_numbers, fletcher32, read_chunks, write_halves, read_halves, threshold_of, select_above,
    select_largest, select_with_feedback, scatter, gather_positions, positions_bytes, write_positions, read_positions,
    half_gather, half_maximum, half_update, half_merge_update, to_half_rows, from_half_rows, deal_requests,
    plan_requests, write_requests, read_requests, kept_copies, read_copies, tick_copies, add_to_copies, sums_of_copies,
    end_ticks,
)  # fmt: skip


# --- and what is done to them ----------------------------------------------------------------------------------------


def misaligned(array: np.ndarray) -> np.ndarray:
    memory = bytearray(array.nbytes + 1)
    memory[1:] = array.tobytes()
    return np.frombuffer(memory, np.uint8)[1:].view(array.dtype).reshape(array.shape)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def resized(array: np.ndarray, n: int) -> np.ndarray:
    return np.concatenate([array, array[: max(0, n - len(array))]])[:n] if n <= 2 * len(array) else array


def edge_value(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    """One element becomes a value at an edge of its type, or of the other arrays."""
    array = array.copy()
    if array.size:
        at = int(rng.integers(array.size))
        if array.dtype.kind == "i":
            edges = [edge for edge in (*EDGES, array.size, int(array.max()) + 1) if edge in limits(array.dtype)]
            array.flat[at] = edges[int(rng.integers(len(edges)))]
        else:
            array.flat[at] = rng.choice([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1e38])
    return array


def limits(dtype: np.dtype) -> range:
    return range(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


ARRAYS: dict[str, Callable[[np.random.Generator, np.ndarray], Any]] = {
    "another type": lambda rng, a: a.astype(rng.choice(["i4", "u8", "f2", "c16", "O", "?", "f4", "f8", ">i8", ">f4"])),
    "strided": lambda rng, a: np.repeat(a, 2, axis=0)[::2],
    "backwards": lambda rng, a: a[::-1],
    "columns first": lambda rng, a: np.asfortranarray(a),
    "misaligned": lambda rng, a: misaligned(a),
    "read-only": lambda rng, a: read_only(a),
    "one longer": lambda rng, a: resized(a, len(a) + 1),
    "one shorter": lambda rng, a: resized(a, max(0, len(a) - 1)),
    "twice as long": lambda rng, a: resized(a, 2 * len(a)),
    "empty": lambda rng, a: a[:0],
    "no dimension": lambda rng, a: a.reshape(-1)[0] if a.size else np.array(0, a.dtype),
    "one dimension more": lambda rng, a: a[None],
    "one dimension": lambda rng, a: a.reshape(-1),
    "without rows, absurdly wide": lambda rng, a: np.empty((0, 2**59), a.dtype),
    "a list": lambda rng, a: a.tolist(),
    "nothing": lambda rng, a: None,
    "a word": lambda rng, a: "rows",
    "an edge value": edge_value,
    "another edge value": edge_value,
    "falling": lambda rng, a: np.ascontiguousarray(a[np.r_[len(a) - 1, 0 : len(a) - 1]]) if len(a) else a,
}


def overlapping(rng: np.random.Generator, call: Call) -> bool:
    """One array that is written comes to lie over another argument, which keeps its values. Whether there was one."""
    arrays = {
        k: a for k, a in call.arguments.items() if isinstance(a, np.ndarray) and a.nbytes and a.flags.c_contiguous
    }
    pairs = [(one, other) for one in call.written for other in arrays if one in arrays and one != other]
    if not pairs:
        return False
    one, other = pairs[int(rng.integers(len(pairs)))]
    memory = np.zeros(max(arrays[one].nbytes, arrays[other].nbytes), np.uint8)
    memory[: arrays[other].nbytes] = np.frombuffer(arrays[other].tobytes(), np.uint8)
    for name in (one, other):
        a = arrays[name]
        call.arguments[name] = memory[: a.nbytes].view(a.dtype).reshape(a.shape)
    return True


def spoilt(seed: int) -> tuple[str, Call]:
    """A call made from a seed, and what was done to it: the same for the same seed."""
    rng = np.random.default_rng(seed)
    make = CALLS[seed % len(CALLS)]
    with np.errstate(all="ignore"):
        return spoil(rng, make.__name__, make(rng), seed)


def spoil(rng: np.random.Generator, kernel: str, call: Call, seed: int) -> tuple[str, Call]:
    """Does one or two things to the arguments; says which."""
    done: list[str] = []
    for name in rng.choice(list(call.arguments), min(len(call.arguments), int(rng.integers(1, 3))), replace=False):
        value = call.arguments[name]
        if not done and rng.random() < 0.05 and overlapping(rng, call):
            done.append("overlapping")
            break
        if isinstance(value, np.ndarray) and value.ndim:
            what = str(rng.choice(list(ARRAYS)))
            call.arguments[name] = ARRAYS[what](rng, value)
            done.append(f"{name}: {what}")
        elif isinstance(value, int) and not isinstance(value, bool) and name != "seed":
            call.arguments[name] = SCALARS[int(rng.integers(len(SCALARS)))]
            done.append(f"{name} = {call.arguments[name]!r}")
    return f"{kernel}({', '.join(done)}), seed {seed}", call
