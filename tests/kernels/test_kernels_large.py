"""Kernels of devices on arrays past 2^31 elements, and at every width that the project promises, beside the host's."""

from typing import Any

import numpy as np
import pytest
import torch
from all_backends import DEVICES, assert_same_bits

from hpcrec import kernels
from hpcrec.types import OptimizerSpec

PROMISED = (4, 8, 16, 32, 64, 100, 128, 256, 512)
SPEC = OptimizerSpec(name="rowwise_adagrad", lr=0.1)
PAST = 2**31 + 1000  # elements: 8.6 GB of float32, of which the host has the pages alone that are touched


def room(name: str, shape: tuple[int, ...]) -> Any:
    """Zeros in a device's memory; the emulator's take no memory before they are written."""
    device = kernels.device(name)  # type: ignore[arg-type]
    if name == "emulated":
        return kernels.DeviceArray(device, torch.from_numpy(kernels.reserved_zeros(shape, np.float32)))
    free, _ = torch.cuda.mem_get_info()
    if free < 4.2 * PAST * 2:
        pytest.skip(f"the GPU has {free} bytes free")
    return device.zeros(shape, np.float32)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("width", [4, 100])
def test_rows_past_two_to_the_31_elements_are_read_and_moved(name: str, width: int) -> None:
    n_rows = PAST // width + 1
    rng, rows = np.random.default_rng(0), room(name, (n_rows, width))
    device, far = rows.device, np.array([0, 1, n_rows // 2, n_rows - 3, n_rows - 1])
    some = rng.normal(size=(5, width)).astype(np.float32)
    rows[far] = some
    index, offsets = far[rng.integers(0, 5, 40)], np.arange(0, 41, 4)
    out = np.zeros(10 * width, np.float32)
    kernels.pooled_gather(rows, device.array(index), offsets, out)
    places = np.searchsorted(far, index)
    wanted = np.zeros_like(out)
    kernels.pooled_gather(some, places, offsets, wanted)
    assert_same_bits(out, wanted)
    states, small = device.zeros(n_rows, np.float32), np.zeros(5, np.float32)
    gradients, starts = rng.normal(size=40 * width).astype(np.float32), np.arange(40) * width
    grouping = kernels.group(device.array(index))
    kernels.merge_update(SPEC, rows, {"accumulator": states}, grouping, gradients, starts, lr=0.1, step=1)
    kernels.merge_update(SPEC, some, {"accumulator": small}, kernels.group(places), gradients, starts, lr=0.1, step=1)
    assert_same_bits(np.asarray(rows[far]), some)
    assert_same_bits(np.asarray(states[far]), small)


@pytest.mark.parametrize("name", DEVICES)
def test_messages_past_two_to_the_31_elements_are_written_and_read(name: str) -> None:
    width = 12
    rng, message = np.random.default_rng(1), room(name, (PAST,))
    device, at = message.device, np.array([PAST - 12, 24, 2**31 - 6, 2**31 + 96, 0])
    rows = rng.normal(size=(5, width)).astype(np.float32)
    kernels.pooled_gather(device.array(rows), np.arange(5), np.arange(6), message, out_start=at)
    back = np.zeros(5 * width, np.float32)
    kernels.copy_vectors(message, back, width, source_start=at)
    assert_same_bits(back.reshape(5, width), rows)
    moved, wanted = device.array(rows), rows.copy()
    grouping = kernels.group(np.array([4, 0, 4, 2, 1]))
    kernels.merge_update(OptimizerSpec(name="sgd", lr=0.5), moved, {}, grouping, message, at, lr=0.5, step=1)
    kernels.merge_update(
        OptimizerSpec(name="sgd", lr=0.5), wanted, {}, grouping, back, np.arange(5) * width, lr=0.5, step=1
    )
    assert_same_bits(np.asarray(moved), wanted)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("width", PROMISED)
@pytest.mark.parametrize("ids", ["duplicates", "unique"])
def test_every_promised_width_has_the_bits_of_the_host(name: str, width: int, ids: str) -> None:
    rng, n_rows, n = np.random.default_rng(width), 300, 240
    index = rng.permutation(n_rows)[:n] if ids == "unique" else rng.zipf(1.2, n) % 40
    lengths = rng.multinomial(n, np.ones(60) / 60)
    lengths[[0, 30]], lengths[1] = 0, lengths[1] + lengths[0] + lengths[30]  # empty bags
    offsets = np.r_[0, np.cumsum(lengths)].astype(np.int64)
    rows = rng.normal(size=(n_rows, width)).astype(np.float32)
    weights, scale = rng.normal(size=n).astype(np.float32), rng.normal(size=60).astype(np.float32)
    gradients, starts = rng.normal(size=60 * width).astype(np.float32), np.arange(60) * width
    found = []
    for device in (None, kernels.device(name)):  # type: ignore[arg-type]
        put = np.copy if device is None else device.array
        there, state, out = put(rows), put(np.ones(n_rows, np.float32)), put(np.zeros(60 * width, np.float32))
        kernels.pooled_gather(there, put(index), put(offsets), out, weights=put(weights), scale=put(scale))
        grouping = kernels.group(put(index), put(offsets))
        kernels.merge_update(SPEC, there, {"accumulator": state}, grouping, put(gradients), put(starts), lr=0.1, step=1)
        found.append(tuple(np.asarray(a) for a in (there, state, out, *grouping)))
    assert_same_bits(found[1], found[0])
