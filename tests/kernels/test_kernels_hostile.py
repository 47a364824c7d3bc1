"""Hostile arguments at the boundary of the native kernels: refused in words, or computed as the definition does.

A call is made from a seed, one or two of its arguments are spoilt, and both backends get it: they must agree, in the
bits of the results or in refusing, by a ValueError, TypeError or MemoryError that is not the bindings'. A crash is the
failure that this looks for; `make sanitize` runs it on a module that crashes at the first byte out of bounds.
"""

import itertools
import mmap
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hostile_calls import CALLS, Call, misaligned, spoilt

from hpcrec import kernels
from hpcrec.kernels import checks
from hpcrec.types import OptimizerSpec

REFUSALS = (ValueError, TypeError, MemoryError)


def outcome(call: Call, where: str) -> Any:
    """What the call computes, or the class of the error by which it is refused."""
    try:
        with np.errstate(all="ignore"):
            return call.run()
    except REFUSALS as error:
        # the bindings' own refusal names no argument
        assert "incompatible function arguments" not in str(error), where
        assert str(error), where
        return type(error)


def flat(outcome: Any) -> Iterator[Any]:
    if isinstance(outcome, tuple | list):
        for part in outcome:
            yield from flat(part)
    else:
        yield outcome


def agree(found: Any, wanted: Any) -> bool:
    """Both refused, or same shapes, types and bits; of a NaN only that it is one."""
    a_parts, b_parts = list(flat(found)), list(flat(wanted))
    return len(a_parts) == len(b_parts) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape)
        and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        and np.array_equal(np.signbit(a[a == a]), np.signbit(b[b == b]))
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
        else isinstance(a, type) == isinstance(b, type) and (isinstance(a, type) or a is b)
        for a, b in zip(a_parts, b_parts, strict=True)
    )


def promises_nothing(call: Call) -> bool:
    """Whether it names a place to write to twice, whose value then depends on the threads: it must not crash."""
    arguments = call.arguments
    if arguments.get("accumulate"):
        return False
    rows = arguments.get("bits", arguments.get("rows"))
    width = rows.shape[1] if "out_start" in arguments and np.ndim(rows) == 2 else arguments.get("width", 1)
    places = (arguments.get(name) for name in ("unique", "out_start", "target_start"))
    gaps = (np.diff(np.sort(a)) for a in places if isinstance(a, np.ndarray) and a.dtype == np.int64 and a.ndim == 1)
    return any((gap < width).any() for gap in gaps) or narrow_in_wide(arguments, width)


def narrow_in_wide(arguments: dict[str, Any], width: int) -> bool:
    """Whether a vector of a table beside lies on another, of its own table or the wide one."""
    narrow, n_bags = arguments.get("start"), np.size(arguments["offsets"]) - 1 if "offsets" in arguments else 0
    if not isinstance(narrow, np.ndarray) or n_bags < 1:
        return False
    starts = arguments["out_start"] if arguments["out_start"] is not None else np.arange(n_bags) * width
    wide = (np.asarray(starts)[:, None] + np.arange(width)).ravel()
    return len(set(narrow.tolist())) < narrow.size or bool(np.isin(narrow, wide).any())


def fuzz(seeds: range) -> Counter[str]:
    """Runs the spoilt calls of all seeds on both backends; returns how many were refused, and computed."""
    ended: Counter[str] = Counter()
    for seed in seeds:
        kernels.use("native")
        kernels.set_threads(1 + seed // len(CALLS) % 3)
        where, call = spoilt(seed)
        found = outcome(call, where)
        kernels.use("reference")
        wanted = outcome(spoilt(seed)[1], where)
        if not isinstance(found, type) and promises_nothing(spoilt(seed)[1]):
            ended["undefined"] += 1
            continue
        assert agree(found, wanted), f"{where}: native {found}, reference {wanted}"
        ended["refused" if isinstance(found, type) else "computed"] += 1
    return ended


def test_hostile_arguments_are_refused_or_computed():
    ended = fuzz(range(3000))
    assert ended["refused"] > 1000, ended
    assert ended["computed"] > 600, ended


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100_000, 200_000, 20_000))
def test_many_hostile_arguments(start):
    ended = fuzz(range(start, start + 20_000))
    assert ended["refused"] > 6_000, ended
    assert ended["computed"] > 4_000, ended


def test_calls_that_are_not_spoilt_compute():
    for make, seed in itertools.product(CALLS, range(20)):
        kernels.use("native")
        found = outcome(make(np.random.default_rng(seed)), make.__name__)
        kernels.use("reference")
        assert not isinstance(found, type), (make.__name__, seed, found)
        assert agree(found, outcome(make(np.random.default_rng(seed)), make.__name__)), (make.__name__, seed)


# --- what the fuzzing found, or could not ----------------------------------------------------------------------------


def sparse_rows(n_rows: int, width: int) -> np.ndarray:
    """float32 rows of which only those that are touched take memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE, which Python 3.11 has no name for
    return np.frombuffer(mmap.mmap(-1, 4 * n_rows * width, flags=flags), np.float32).reshape(n_rows, width)


def test_places_past_2_31_elements():
    rows, ids = sparse_rows(2**30 + 8, 4), np.array([0, 2**29 + 1, 2**30 + 7])
    spec, grouping = OptimizerSpec(name="sgd"), kernels.group(ids)
    starts = np.arange(3) * 4
    kernels.merge_update(spec, rows, {}, grouping, -np.arange(12, dtype=np.float32), starts, lr=1.0, step=1)
    kernels.update(spec, rows, {}, ids, np.full((3, 4), -100, np.float32), lr=1.0, step=1)
    out = np.zeros(4, np.float32)
    kernels.pooled_gather(rows, ids, np.array([0, 3]), out)
    assert out.tolist() == [312, 315, 318, 321]
    target = sparse_rows(2**30 + 8, 4).reshape(-1)
    kernels.copy_vectors(out, target, 4, source_start=np.array([0]), target_start=np.array([2**32 + 28]))
    assert target[2**32 + 28 :].tolist() == [312, 315, 318, 321]
    assert target[:100].sum() == 0


def test_an_empty_array_of_absurd_width_is_no_room_for_vectors():
    with pytest.raises(ValueError, match="width of rows is 1152921504606846976; allowed are 1 to 2147483647"):
        kernels.pooled_gather(
            np.empty((0, 2**60), np.float32), np.zeros(0, np.int64), np.zeros(17, np.int64), np.zeros(4, np.float32)
        )


def test_misaligned_arrays_are_refused():
    with pytest.raises(ValueError, match=r"index is int64\[3\], not aligned to its elements; needed is an aligned"):
        kernels.group(misaligned(np.arange(3)))


def test_outputs_over_inputs_are_refused():
    memory = np.zeros(16)
    with pytest.raises(ValueError, match="out shares memory with index; the kernel writes into it"):
        kernels.pooled_gather(np.ones((1, 2)), memory.view(np.int64)[:1], np.array([0, 1]), memory[:2])
    with pytest.raises(ValueError, match="rows shares memory with unique"):
        rows = memory.reshape(8, 2)
        kernels.update(OptimizerSpec(name="sgd"), rows, {}, memory.view(np.int64)[:1], np.ones((1, 2)), lr=1.0, step=1)


def test_memory_is_shared_whoever_allocated_it():
    own, foreign, tensor = np.zeros(16), np.frombuffer(bytearray(128)), torch.zeros(16, dtype=torch.float64)
    for memory in (own, own.view(np.int64), own.reshape(4, 4).reshape(-1), foreign, tensor.numpy()):
        checks.apart("out", memory[:8], others=memory[8:], none=None, another=np.zeros(16))
        for inside in (memory, memory[7:9], memory.view(np.int32)[:1]):
            with pytest.raises(ValueError, match="out shares memory with given"):
                checks.apart("out", memory[:8], given=inside)
    with pytest.raises(ValueError, match="out shares memory with given"):
        checks.apart("out", tensor.numpy(), given=tensor[3:].numpy())


@pytest.mark.parametrize("bad", [2.5, "3", None])
def test_a_number_that_is_no_integer_is_refused(bad):
    with pytest.raises(TypeError, match=r"rows is .*; it must be an integer"):
        kernels.hash_ids(np.arange(3), bad, 0)
    with pytest.raises(TypeError, match=r"threads is .*; it must be an integer"):
        kernels.set_threads(bad)
