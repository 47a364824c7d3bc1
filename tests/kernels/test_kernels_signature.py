"""What native code sees of arguments: nothing but what Python's checks let through, and that without them."""

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hostile_calls import CALLS, Call, misaligned, read_only
from test_kernels_hostile import agree, outcome, promises_nothing

from hpcrec import kernels
from hpcrec.kernels import checks
from hpcrec.kernels.backend import native_fits

N = np.arange(4, dtype=np.float32)
AREA = np.zeros(64)
HUGE = np.lib.stride_tricks.as_strided(np.zeros(1), (2**31,), (0,))

FIT: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...] = (
    (("a: float[A]", "b: float[A]"), (N, N)),
    (("a: float[A]", "b: float[A + 1]"), (N[1:], N)),
    (("a: float[A + 1]", "b: float[A]"), (N[:1], N[:0])),
    (("a: float[any, 2]", "b?: float[B]"), (N.reshape(2, 2), None)),
    (("a: int64[any]", "b: int32[any]", "c: uint8[any]"), tuple(np.zeros(1, t) for t in (np.longlong, "i4", "u1"))),
    (("a: number[any]", "written b: number[any]"), (np.arange(3), np.zeros(2, np.int64))),
    (("written a: float[any]", "written b: float[any]"), (AREA[:32], AREA[32:])),
    (("written a: float[any]", "b: float[any]"), (AREA[:0], AREA)),
    (("a: float[any, D]", "width: D", "n: 1+"), (N.reshape(1, 4), 4, 2**63 - 1)),
    (("a: float[any]", "...", "b: float[any]"), (N,)),
    (("a: float[any]", "...", "b: float[any]"), (N, N)),
    (("a: float[any]",), (np.memmap,)),
)  # fmt: skip
MISFIT: tuple[tuple[tuple[str, ...], tuple[Any, ...]], ...] = (
    (("a: float[A]", "b: float[A]"), (N, N[1:])),
    (("a: float[A]", "b: float[A]"), (N, N.astype(np.float64))),
    (("a: float[A + 1]",), (N[:0],)),
    (("a: float[any]",), (None,)),
    (("a: float[any]",), ([1.0],)),
    (("a: float[any]",), (memoryview(N),)),
    (("a: float[any]",), (N[::2],)),
    (("a: float[any]",), (misaligned(N),)),
    (("a: float[any]",), (N.astype(">f4"),)),
    (("a: float[any]",), (N.reshape(2, 2),)),
    (("a: float[any]",), (np.zeros(1, "M8[s]"),)),
    (("a: float[A]",), (HUGE,)),
    (("a: float[any, D]",), (np.zeros((4, 0)),)),
    (("a: int64[any]",), (np.zeros(1, np.uint64),)),
    (("written a: float[any]",), (read_only(N.copy()),)),
    (("written a: float[any]", "b: float[any]"), (AREA[:33], AREA[32:])),
    (("a: float[any]", "written b: float[any]"), (AREA[:33], AREA[32:])),
    (("written a: float[any]", "b: uint8[any]"), (AREA, AREA.view(np.uint8)[8:9])),
    (("a: float[any, D]", "width: D"), (N.reshape(1, 4), 3)),
    (("n: D",), (0,)),
    (("n: D",), (2**31,)),
    (("n: 1+",), (0,)),
    (("n: 0+",), (-1,)),
    (("n: 0+",), (2**63,)),
    (("n: 0+",), (True,)),
    (("n: 0+",), (1.0,)),
    (("a: float[any]", "...", "b: float[any]"), (N, None)),
    (("a: float[any]", "...", "b: float[any]"), (N, N, N)),
    (("a: float[any]",), ()),
)  # fmt: skip


@pytest.mark.parametrize(("parameters", "given"), FIT)
def test_what_fits(parameters, given, tmp_path):
    given = tuple(np.memmap(tmp_path / "map", np.float64, "w+", shape=3) if a is np.memmap else a for a in given)
    fits = native_fits(*parameters)
    assert fits(*given)
    kernels.use("reference")
    assert not fits(*given)


@pytest.mark.parametrize(("parameters", "given"), MISFIT)
def test_what_does_not(parameters, given):
    assert not native_fits(*parameters)(*given)


@pytest.mark.parametrize("text", ["a", "a: double[any]"])
def test_a_parameter_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match=f"of a kernel.*: {text}".replace("[", r"\[")):
        native_fits(text)


MAKERS = ("initial_states", "state_shapes", "state_values", "rule_of", "aligned_empty")  # called by the test


def entered(call: Any) -> Counter[str]:
    """Functions of the kernels' package that a call enters."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_name
        if event == "call" and "/hpcrec/kernels/" in frame.f_code.co_filename and name[0] != "<" and name not in MAKERS:
            found[name] += 1

    sys.setprofile(note)
    try:
        call.run()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_arrays_that_are_right_cost_few_calls(make, monkeypatch):
    if make.__name__.startswith(("half_", "to_half", "from_half")) or make.__name__ in (
        "fm_backward", "write_positions", "read_positions", "read_chunks", "fletcher32", "read_copies",
        "sums_of_copies",
    ):  # fmt: skip
        pytest.skip("looked at in Python: rows of halves, views, flags, pushes, and what no step calls")
    for seed in range(20):
        call = make(np.random.default_rng(seed))
        if make.__name__ == "copy" and call.arguments["source_start"] is None:
            continue  # looked at in Python
        for name in ("ints", "floats", "vectors", "rows", "apart"):
            monkeypatch.setattr(checks, name, None)
        found = entered(call)
        monkeypatch.undo()
        assert sum(found.values()) <= (7 if make.__name__.startswith("beside") else 6), found


def longer(array: np.ndarray, axis: int) -> np.ndarray:
    return np.pad(array, [(0, int(i == axis)) for i in range(array.ndim)], "edge" if array.size else "constant")


def off_by_one(make: Any, seed: int) -> Iterator[tuple[str, Call, Call]]:
    """Calls of which one axis of one array is an element longer or shorter, each twice."""
    for name, value in make(np.random.default_rng(seed)).arguments.items():
        for axis in range(value.ndim if isinstance(value, np.ndarray) else 0):
            for what in ("longer", "shorter") if value.shape[axis] else ("longer",):
                first, second = make(np.random.default_rng(seed)), make(np.random.default_rng(seed))
                for call in (first, second):
                    a = call.arguments[name]
                    keep = (*[slice(None)] * axis, slice(-1))
                    call.arguments[name] = np.ascontiguousarray(longer(a, axis) if what == "longer" else a[keep])
                yield f"{make.__name__}: {name}, axis {axis} {what}, seed {seed}", first, second


@pytest.mark.parametrize("make", CALLS, ids=lambda make: make.__name__)
def test_every_size_is_looked_at(make):
    for seed in range(12):
        for where, first, second in off_by_one(make, seed):
            kernels.use("native")
            found = outcome(first, where)
            kernels.use("reference")
            wanted = outcome(second, where)
            assert isinstance(found, type) == isinstance(wanted, type), (where, found, wanted)
            assert isinstance(found, type) or promises_nothing(second) or agree(found, wanted), where
