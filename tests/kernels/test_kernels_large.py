"""Kernels of devices on arrays past 2^31 elements, on as many rows as it takes for a group of lanes to have several,
and at every width that the project promises, beside the host's."""

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


def many_rows(name: str, width: int) -> tuple[Any, Any, Any]:
    """So many distinct rows that a group of lanes takes several, three of them in more than one block: ids, gradients,
    and where each id's begins. A GPU has some hundred multiprocessors, the emulator two."""
    n_rows = 3000 if name == "emulated" else 150_000
    rng = np.random.default_rng(width)
    hot = rng.choice(n_rows, 3, replace=False)
    ids = rng.permutation(np.r_[rng.permutation(n_rows), np.repeat(hot, 200)]).astype(np.int64)
    return ids, rng.normal(size=ids.size * width).astype(np.float32), rng.permutation(ids.size) * width


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("width", [1, 4, 16, 64, 128, 260])
def test_a_group_of_lanes_takes_several_rows(name: str, width: int) -> None:
    ids, gradients, starts = many_rows(name, width)
    before = np.random.default_rng(1).normal(size=(ids.max() + 1, width)).astype(np.float32)
    found: dict[str, list[Any]] = {}
    for backend in ("native", name):
        kernels.use(backend)  # type: ignore[arg-type]
        grouping = kernels.group(ids)
        found[backend] = [kernels.merge(grouping, gradients, starts, width)]
        for optimizer in ("rowwise_adagrad", "adagrad"):
            spec, rows = OptimizerSpec(name=optimizer, eps=1e-6), before.copy()
            states = kernels.initial_states(spec, *rows.shape, rows.dtype)
            kernels.merge_update(spec, rows, states, grouping, gradients, starts, lr=0.1, step=1)
            found[backend] += [rows, *states.values()]
    kernels.use("native")
    assert_same_bits(tuple(found[name]), tuple(found["native"]))


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize(("what", "message"), [("segments", "segments"), ("order", "source that is not there"),
                                               ("unique", "outside the table")])  # fmt: skip
def test_what_is_wrong_with_one_of_a_group_s_rows_is_refused(name: str, what: str, message: str) -> None:
    ids, gradients, starts = many_rows(name, 16)
    device = kernels.device(name)  # type: ignore[arg-type]
    grouping = {field: array.copy() for field, array in kernels.group(ids)._asdict().items()}
    middle = grouping[what].size // 2 + 3
    grouping[what][middle] = {"segments": 0, "order": ids.size, "unique": ids.size}[what]
    rows, states = device.zeros((ids.size, 16), np.float32), {"accumulator": device.zeros(ids.size, np.float32)}
    given = kernels.Grouping(**{field: device.array(array) for field, array in grouping.items()})
    with pytest.raises(ValueError, match=message):
        kernels.merge_update(SPEC, rows, states, given, device.array(gradients), device.array(starts), lr=0.1, step=1)
