"""The device's kernels beside what all backends are held to: order of threads, refusals, the emulator, the build."""

import importlib
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import hostile_calls as calls
import numpy as np
import pytest
import torch
from all_backends import DEVICES, WIDTHS, assert_same_bits
from test_kernels_hostile import agree, outcome, promises_nothing
from test_kernels_learn import OPTIMIZERS, SPECS, Occurrences, states_of

from hpcrec import kernels
from hpcrec.errors import MissingError
from hpcrec.kernels.device import Device
from hpcrec.kernels.device_calls import WRITTEN

ROOT = Path(__file__).resolve().parents[2]
ON_DEVICE = (
    calls.gather, calls.beside_gather, calls.maximum, calls.maximum_backward, calls.fm, calls.fm_backward, calls.copy,
    calls.merge, calls.update, calls.merge_update, calls.beside_merge_update, calls.squared_norm, calls.group,
    calls.dedup, calls.partition, calls.permute, calls.hash_ids, calls.init_rows, calls.write_halves, calls.read_halves,
    calls.threshold_of, calls.select_above, calls.select_largest, calls.select_with_feedback, calls.scatter,
    calls.gather_positions, calls.write_positions, calls.read_positions, calls.packed_bytes, calls.pack_numbers,
    calls.unpack_numbers, calls.half_gather, calls.half_maximum, calls.half_update, calls.half_merge_update,
    calls.to_half_rows, calls.from_half_rows,
)  # fmt: skip
TAKES_ANY = (
    calls.fm, calls.fm_backward, calls.squared_norm, calls.group, calls.dedup, calls.hash_ids, calls.init_rows,
    calls.write_halves, calls.read_halves, calls.threshold_of, calls.select_above, calls.select_largest,
    calls.select_with_feedback, calls.read_positions, calls.packed_bytes, calls.pack_numbers, calls.unpack_numbers,
    calls.to_half_rows, calls.from_half_rows,
)  # fmt: skip
WIDE = (130, 256, 260, 512, 1000)  # rows of several packs a lane, and of more than a lane holds


def test_the_emulator_is_there() -> None:
    assert "emulated" in DEVICES
    kernels.use("emulated")
    assert kernels.active() == "emulated"


def test_every_kernel_of_the_device_is_called() -> None:
    """Or the host's would be tested in its place."""
    bound = {name for name in dir(importlib.import_module("hpcrec._emulated")) if not name.startswith("_")}
    assert bound - {"run_wrong"} == set(WRITTEN)
    direct = {"take_largest", "mark_above", "mark_sum", "take_marked", "cut_marked"}  # parts of select_...
    direct |= {"find_slots", "admit_slots", "touch_slots", "remove_slots"}  # called by the slot map
    assert set(WRITTEN) - direct <= set(dir(Device))


def test_without_a_gpu_the_backend_says_so() -> None:
    if "cuda" in DEVICES:
        pytest.skip("there is a GPU here")
    with pytest.raises(MissingError, match=r"there is no GPU that torch .* can use|_cuda cannot be loaded .* nvcc"):
        kernels.use("cuda")


@pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU that torch can use")
def test_the_gpu_runs_the_kernels() -> None:
    kernels.use("cuda")
    out = np.zeros(4, np.float32)
    kernels.pooled_gather(np.ones((2, 4), np.float32), np.array([0, 1]), np.array([0, 2]), out)
    assert out.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_emulator_finds_barriers_that_not_all_come_to(which: int) -> None:
    module = importlib.import_module("hpcrec._emulated")
    said = "a lane is not in the mask" if which == 2 else "wait at a barrier that the others do not come to"
    with pytest.raises(RuntimeError, match=said):
        module.run_wrong(which)
    test_the_emulator_is_there()  # and goes on
    out = np.zeros(4, np.float32)
    kernels.pooled_gather(np.ones((2, 4), np.float32), np.array([0, 1]), np.array([0, 2]), out)
    assert out.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("width", [1, 7, 16, 64])
def test_bits_do_not_depend_on_which_thread_is_first(width: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    o, spec, found = Occurrences("hot", 3000, width, np.float32), SPECS[name], []
    for order in ("", "reversed"):
        monkeypatch.setenv("HPCREC_EMULATED_ORDER", order)
        for backend in ("native", "emulated"):
            kernels.use(backend)
            rows, states = o.rows.copy(), states_of(spec, o.rows)
            kernels.merge_update(spec, rows, states, o.grouping, o.gradients, o.starts, lr=0.1, step=3)
            found.append({"rows": rows, **states})
    for other in found[1:]:
        assert_same_bits(other, found[0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDE)
def test_wide_rows(width: int, dtype: type) -> None:
    o = Occurrences("hot", 700, width, dtype, n_rows=200)
    offsets = np.r_[0, 3, 3, 40, 700].astype(np.int64)
    for name, free in SPECS.items():
        found, spec = [], replace(free, bound=1.0)
        for backend in ("reference", *DEVICES):
            kernels.use(backend)
            rows, states, out = o.rows.copy(), states_of(spec, o.rows), np.zeros(4 * width, dtype)
            kernels.merge_update(
                spec, rows, states, o.grouping, o.gradients, o.starts, weights=o.weights, lr=0.1, step=2
            )
            merged = kernels.merge(o.grouping, o.gradients, o.starts, width)
            kernels.update(spec, rows, states, o.grouping.unique, merged, lr=0.1, step=3)
            kernels.pooled_gather(rows, o.index, offsets, out)
            found.append({"rows": rows, "out": out, "norm": kernels.squared_norm(merged), **states})
        for other in found[1:]:
            assert_same_bits(other, found[0])
        assert np.isfinite(found[0]["rows"]).all(), name


@pytest.mark.parametrize("make", ON_DEVICE)
def test_hostile_contents_are_refused_or_computed(make) -> None:
    """One value of an array of integers becomes one at an edge: nothing is read or written out of bounds."""
    refused = computed = 0
    for seed in range(120):
        ended = []
        for backend in ("reference", *DEVICES):
            rng = np.random.default_rng(seed)
            call = make(rng)
            arrays = [a for a in arrays_of(call) if a.dtype.kind == "i" and a.size and a.flags.writeable]
            if arrays and seed % 4:
                array = arrays[int(rng.integers(len(arrays)))]
                limits = np.iinfo(array.dtype)
                edges = (-1, limits.min, limits.max, 2**31 - 1, min(int(array.max()) + 1, limits.max))
                array.flat[int(rng.integers(array.size))] = edges[int(rng.integers(len(edges)))]
            kernels.use(backend)
            undefined = promises_nothing(call)
            ended.append(outcome(call, f"{make.__name__} {seed}"))
        if isinstance(ended[0], type):
            refused += 1
        elif undefined:
            continue
        else:
            computed += 1
        for other in ended[1:]:
            assert agree(other, ended[0]), (make.__name__, seed, other, ended[0])
    assert computed > 10 and (refused > 20 or make in TAKES_ANY), (refused, computed)


def arrays_of(call: calls.Call) -> list[np.ndarray]:
    values = itertools.chain.from_iterable(v if isinstance(v, tuple) else (v,) for v in call.arguments.values())
    return [value for value in values if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("segments", [[0, 300, 0, 300], [0, 200, 100, 300], [0, 300, 300, 299], [5, 200, 250, 300]])
def test_segments_that_overlap_are_refused(segments: list[int]) -> None:
    """Whose long rows would have more blocks than there is room for."""
    starts, gradients = np.arange(300) * 4, np.ones(1200, np.float32)
    grouping = kernels.Grouping(np.arange(3), np.array(segments), np.arange(300))
    for backend in ("reference", "native", *DEVICES):
        kernels.use(backend)
        with pytest.raises(ValueError, match="segments"):
            kernels.merge(grouping, gradients, starts, 4)


@pytest.mark.parametrize("n", [1, 31, 64, 100, 511, 4096, 4097, 9000])
@pytest.mark.parametrize("shift", [0, 1])
def test_values_that_begin_at_no_pack_are_marked_and_taken(n: int, shift: int) -> None:
    module, rng = importlib.import_module("hpcrec._emulated"), np.random.default_rng(n)
    faults, count = torch.zeros(1, dtype=torch.int32), -(-n // 64)
    for with_gradient in (False, True):
        values = torch.from_numpy(rng.standard_normal(n + shift).astype(np.float32))[shift:]
        gradient = torch.from_numpy(rng.standard_normal(n + shift).astype(np.float32))[shift:]
        marks = torch.full((count,), -1, dtype=torch.int64)
        wanted = values + gradient if with_gradient else values.clone()
        chosen = np.flatnonzero(np.abs(wanted.numpy()) >= np.float32(0.7))
        if with_gradient:
            k = module.mark_sum(gradient, values, 0.7, marks, 0, faults)
        else:
            k = module.mark_above(values, 0.7, marks, 0, faults)
        assert k == chosen.size
        bits = np.unpackbits(marks.numpy().view(np.uint8), bitorder="little")
        assert np.flatnonzero(bits).tolist() == chosen.tolist()
        positions, taken = torch.empty(k, dtype=torch.int64), torch.empty(k)
        take = module.cut_marked if with_gradient else module.take_marked
        take(values, marks, positions, taken, 0, faults)
        assert positions.tolist() == chosen.tolist()
        assert torch.equal(taken, wanted[chosen])
        if with_gradient:
            wanted[chosen] = 0
        assert torch.equal(values, wanted)
        assert not faults.any()
        if k:
            take(values, marks, positions[1:], taken[1:], 0, faults)
            assert faults.item() == 128
            faults.zero_()


@pytest.mark.parametrize("order", ["", "reversed"])
@pytest.mark.parametrize("starts", [[0, 8, 0, 3], [2, 2, 1], [0, 2, 4, 6, 2], [7, 8, 4, 0]])
def test_targets_that_overlap_in_part_are_refused(starts: list[int], order: str, monkeypatch) -> None:
    """Every element that is written has one group of lanes that writes it: so what overlaps in part has none."""
    monkeypatch.setenv("HPCREC_EMULATED_ORDER", order)
    for backend in DEVICES:
        kernels.use(backend)
        source, target = np.ones(4 * len(starts), np.float32), np.zeros(12, np.float32)
        with pytest.raises(ValueError, match="target_start: vectors that are added overlap, and do not begin at one"):
            kernels.copy_vectors(source, target, 4, target_start=np.array(starts), accumulate=True)


@pytest.mark.parametrize(("bad", "message"), [({"source_start": -1}, "a start"), ({"target_start": 9}, "a start")])
def test_bad_starts_of_what_is_added_are_refused(bad: dict[str, int], message: str) -> None:
    for backend in DEVICES:
        kernels.use(backend)
        starts = {name: np.array([0, 4, bad.get(name, 0), 4, 8]) for name in ("source_start", "target_start")}
        with pytest.raises(ValueError, match=message):
            kernels.copy_vectors(np.ones(12), np.zeros(12), 4, **starts, accumulate=True)


@pytest.mark.skipif(not torch.cuda.is_available() or shutil.which("nvcc") is None, reason="no GPU, or no nvcc")
def test_a_machine_with_both_tests_its_gpu() -> None:
    assert torch.cuda.get_device_capability() < (8, 0) or "cuda" in DEVICES


@pytest.mark.parametrize("offsets", [[1, 2, 5], [0, 3, 4], [0, 6, 5], [0, -1, 5]])
def test_bags_that_are_none_are_refused(offsets: list[int]) -> None:
    for backend in ("reference", "native", *DEVICES):
        kernels.use(backend)
        with pytest.raises(ValueError, match="offsets"):
            kernels.group(np.arange(5), np.array(offsets))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_bags_and_no_rows(width: int) -> None:
    for backend in ("reference", *DEVICES):
        kernels.use(backend)
        none, ids = np.zeros((0, width), np.float32), np.zeros(0, np.int64)
        out = np.full(2 * width, 7, np.float32)
        kernels.pooled_gather(none, ids, np.zeros(1, np.int64), out)
        assert (out == 7).all()
        kernels.pooled_gather(none, ids, np.zeros(3, np.int64), out)
        assert (out == 0).all()
        with pytest.raises(ValueError, match="offsets"):
            kernels.pooled_gather(none, ids, np.ones(1, np.int64), out)


@pytest.mark.skipif(importlib.util.find_spec("hpcrec._cuda") is None, reason="built without nvcc, or beside MPICH")
def test_the_module_imports_on_machines_without_a_driver() -> None:
    done = subprocess.run([sys.executable, "-c", "import hpcrec._cuda as m; print(m.pooled_gather.__name__)"],
                          capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "pooled_gather\n"), done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the path")
def test_compiles_without_warnings_spills_or_stacks() -> None:
    command = [sys.executable, str(ROOT / "tools/cuda_report.py"), "sm_90"]
    report = subprocess.run(command, capture_output=True, text=True)
    assert report.returncode == 0, report.stdout + report.stderr
    assert "pool_each<float, float, 4, Gather<float, float>" in report.stdout
