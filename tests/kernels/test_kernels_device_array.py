"""Arrays in a device's memory: kernels work on them where they are, with the bits of the host's; copies to and from."""

from typing import Any

import hostile_calls as calls
import numpy as np
import pytest
import torch
from all_backends import DEVICES, assert_same_bits
from test_kernels_device import ON_DEVICE
from test_kernels_hostile import agree, outcome, promises_nothing

from hpcrec import kernels
from hpcrec.kernels.backend import BACKENDS
from hpcrec.kernels.device_array import DeviceArray
from hpcrec.kernels.staging import Staging
from hpcrec.types import OptimizerSpec

on_devices = pytest.mark.parametrize("name", DEVICES)


def moved(given: Any, device: Any, some: np.random.Generator | None) -> Any:
    """The same with arrays on the device: all of them, or some."""
    if isinstance(given, np.ndarray):
        stays = given.dtype == object or (some is not None and some.random() < 0.5)
        return given if stays else device.array(given)
    if isinstance(given, dict):
        return {key: moved(value, device, some) for key, value in given.items()}
    if isinstance(given, tuple):
        parts = [moved(value, device, some) for value in given]
        return type(given)(*parts) if hasattr(given, "_fields") else tuple(parts)
    return given


def fetched(given: Any) -> Any:
    """The same with arrays on the host."""
    if isinstance(given, DeviceArray):
        return np.asarray(given)
    if isinstance(given, dict):
        return {key: fetched(value) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [fetched(value) for value in given]
    return given


@on_devices
@pytest.mark.parametrize("make", ON_DEVICE)
@pytest.mark.parametrize("mixed", [False, True])
def test_kernels_work_on_arrays_where_they_are(make: Any, name: str, *, mixed: bool) -> None:
    device, computed = BACKENDS[name], 0
    for seed in range(30):
        kernels.use("native")
        call = make(np.random.default_rng(seed))
        if promises_nothing(call):
            continue
        again = make(np.random.default_rng(seed))
        arguments = moved(again.arguments, device, np.random.default_rng(seed) if mixed else None)
        there = calls.Call(again.function, arguments, again.written)
        wanted = outcome(call, make.__name__)
        assert not isinstance(wanted, type), wanted
        computed += 1
        assert agree(fetched(there.run()), fetched(wanted)), (make.__name__, seed)
    assert computed > 5


@on_devices
def test_results_stay_where_the_arguments_are(name: str) -> None:
    device = BACKENDS[name]
    grouping = kernels.group(device.array(np.array([5, 3, 5])))
    assert all(isinstance(a, DeviceArray) for a in grouping)
    assert_same_bits(tuple(fetched(grouping)), tuple(kernels.group(np.array([5, 3, 5]))))
    assert isinstance(kernels.group(np.array([5, 3, 5])).order, np.ndarray)


@on_devices
def test_what_kernels_refuse_is_told_once_at_the_end(name: str) -> None:
    device = BACKENDS[name]
    rows, offsets = device.zeros((4, 2), np.float32), np.array([0, 1])
    out = device.zeros(2, np.float32)
    said = r"^pooled_gather, copy_vectors: an index is outside the rows; a start leaves"
    with pytest.raises(ValueError, match=said):  # noqa: SIM117
        with device.together():
            kernels.pooled_gather(rows, np.array([4]), offsets, out)
            kernels.copy_vectors(device.zeros(2, np.float32), out, 2, target_start=np.array([1]))
    with device.together():  # what is told is forgotten
        kernels.pooled_gather(rows, np.array([3]), offsets, out)
    with pytest.raises(KeyError), device.together():  # an error of the caller's own comes first
        kernels.pooled_gather(rows, np.array([4]), offsets, out)
        raise KeyError
    kernels.pooled_gather(rows, np.array([3]), offsets, out)


@on_devices
def test_rows_are_read_and_set_by_slice_and_number(name: str) -> None:
    device, rng = BACKENDS[name], np.random.default_rng(1)
    wanted = rng.normal(size=(6, 4))
    rows = device.array(wanted)
    assert (rows.shape, rows.dtype, rows.ndim, rows.size, rows.nbytes, len(rows)) == ((6, 4), np.float64, 2, 24, 192, 6)
    some = np.array([4, 0])
    assert_same_bits(np.asarray(rows[some]), wanted[some])
    assert_same_bits(np.asarray(rows[1:3]), wanted[1:3])
    wanted[some, 1:3], wanted[2:4], wanted[5:] = 7.0, rng.normal(size=(2, 4)), wanted[:1]
    rows[some, slice(1, 3)] = np.full((2, 2), 7.0)
    rows[2:4] = wanted[2:4]
    rows[5:] = rows[:1]
    assert_same_bits(np.asarray(rows), wanted)
    rows[1:2].fill(3.0)  # a slice shares memory
    wanted[1] = 3.0
    assert_same_bits(np.asarray(rows.reshape(-1)), wanted.reshape(-1))
    assert_same_bits(np.asarray(rows.view(np.uint8)), wanted.view(np.uint8))
    assert np.asarray(rows, np.float32).dtype == np.float32
    out = np.zeros(24)
    rows.copy_to(out)
    assert_same_bits(out, wanted.reshape(-1))


@on_devices
def test_unsigned_elements_of_16_bits_are_kept(name: str) -> None:
    device = BACKENDS[name]
    wanted = np.array([[0, 1], [2**15, 2**16 - 1], [7, 40000]], np.uint16)
    bits = device.array(wanted)
    assert (bits.dtype, bits.nbytes) == (np.uint16, 12)
    assert bits.reshape(-1).dtype == bits[1:].dtype == bits[np.array([2])].dtype == np.uint16
    assert_same_bits(np.asarray(bits), wanted)
    assert_same_bits(np.asarray(bits.view(np.uint8).view(np.uint16)), wanted)
    assert_same_bits(np.asarray(device.where(bits.reshape(-1), 40000, equal=True)), np.array([5]))
    bits[:1], bits[np.array([1]), slice(1, 2)] = 65000, np.array([[50000]], np.uint16)
    wanted[:1], wanted[1, 1] = 65000, 50000
    assert_same_bits(np.asarray(bits), wanted)
    bits.fill(2**16 - 2)
    assert (np.asarray(bits) == 2**16 - 2).all()
    out = np.zeros((3, 4), np.uint16)
    bits.copy_to(out[:, :2].reshape(-1))
    device.copy_to_host(bits.tensor, out[:, ::2])  # gaps between
    assert out.tolist() == [[2**16 - 2, 0, 2**16 - 2, 0]] * 3


@on_devices
@pytest.mark.parametrize("kind", kernels.ROW_KINDS)
def test_half_rows_are_on_the_device(name: str, kind: Any) -> None:
    device, rng = BACKENDS[name], np.random.default_rng(2)
    floats = rng.normal(size=(9, 12)).astype(np.float32)
    index, offsets = rng.integers(0, 9, 20), np.array([0, 3, 3, 20])
    here = kernels.to_half_rows(floats, kind, seed=3)
    there = kernels.to_half_rows(device.array(floats), kind, seed=3)
    assert isinstance(there.bits, DeviceArray)
    assert (there.shape, there.nbytes, len(there), there[2:4].shape) == ((9, 12), 216, 9, (2, 12))
    spec = OptimizerSpec(name="adagrad")
    grouping, starts = kernels.group(index), np.arange(20) * 12
    gradients = rng.normal(size=240).astype(np.float32)
    found = []
    for rows in (here, there):
        state = np.ones((9, 12), np.float32)
        states = {"accumulator": state if rows is here else device.array(state)}
        kernels.merge_update(spec, rows, states, grouping, gradients, starts, lr=0.1, step=5)
        sums, largest, winners = np.zeros(36, np.float32), np.zeros(36, np.float32), np.zeros((3, 12), np.int32)
        kernels.pooled_gather(rows, index, offsets, sums)
        kernels.pooled_max(rows, index, offsets, largest, winners=winners)
        some = kernels.from_half_rows(rows[2:4])
        assert isinstance(some, DeviceArray) == (rows is there)
        found.append((np.asarray(rows.bits), np.asarray(states["accumulator"]), sums, largest, winners,
                      np.asarray(some), np.asarray(rows[index].bits)))  # fmt: skip
    for a, b in zip(*found, strict=True):
        assert_same_bits(b, a)
    assert not np.array_equal(found[0][0], np.asarray(kernels.to_half_rows(floats, kind, seed=3).bits))


@on_devices
def test_wrong_arrays_are_refused(name: str) -> None:
    device = BACKENDS[name]
    rows, offsets = device.zeros((4, 2), np.float32), np.array([0, 1])
    with pytest.raises(ValueError, match=r"out is float64\[2\]; needed is .* float32\[any\]"):
        kernels.pooled_gather(rows, np.array([0]), offsets, device.zeros(2, np.float64))
    with pytest.raises(ValueError, match="out shares memory with rows"):
        kernels.pooled_gather(rows, np.array([0]), offsets, rows.reshape(-1)[2:4])
    with pytest.raises(TypeError, match="not read element by element"):
        list(rows)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(rows, copy=False) if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else rows.__array__(copy=False)
    shifted = device.array(np.zeros(9, np.uint8))[1:].view(np.uint8)
    with pytest.raises((ValueError, RuntimeError)):  # torch itself refuses other types at odd addresses
        shifted.view(np.float64)


@pytest.mark.parametrize("n", [0, 1, 99, 100, 101, 200, 201, 1003])
@on_devices
def test_copies_are_whole_whatever_their_size(name: str, n: int) -> None:
    place = "cpu" if name == "emulated" else "cuda"
    staging, host = Staging(place, buffer_bytes=100), np.random.default_rng(n).integers(0, 256, n).astype(np.uint8)
    there, back = torch.zeros(n, dtype=torch.uint8, device=place), np.zeros_like(host)
    staging.to_device(host, there)
    wanted = host.copy()
    host[:] = 0  # it may change
    staging.to_host(there, back)
    assert_same_bits(back, wanted)
    fixed = wanted.copy()
    fixed.flags.writeable = False
    there.zero_()
    staging.to_device(fixed, there)
    assert_same_bits(there.cpu().numpy(), wanted)
    if n:
        with pytest.raises(ValueError, match="read-only"):
            staging.to_host(there, fixed)


@on_devices
def test_tensors_that_a_kernel_may_not_have_are_refused(name: str) -> None:
    device = kernels.device(name)  # type: ignore[arg-type]
    rows = DeviceArray(device, device.zeros((2, 3), np.float32).tensor.requires_grad_())
    elsewhere = DeviceArray(device, torch.zeros((2, 3), device="meta"))
    for given, message in ((rows, "requires_grad"), (elsewhere, "on meta; the kernel runs on")):
        with pytest.raises(ValueError, match=message):
            device.call("to_half_rows", given, 0, device.zeros((2, 3), np.uint16), 0, False, 0)
