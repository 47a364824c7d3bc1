"""Which GPU a rank takes, and who may hand gradients to NCCL."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcrec.build import device as build_device
from hpcrec.build.dense import _sums_there
from hpcrec.build.memory import topology_of
from hpcrec.config import validate
from hpcrec.dense.host_sums import HostSums


def turns(devices: int, **sections: Any) -> list[int]:
    """Of eight ranks of one host: which device each would take."""
    given = {"data": {"train": "x.h5"}, "model": {"name": "lr"}, "run": {"folder": "r"}, **sections}
    config = validate(given, "test")
    return [build_device._turn(config, topology_of(config, [0] * 8, rank), devices) for rank in range(8)]


def test_ranks_that_use_gpus_take_them_in_turn() -> None:
    split = {"mode": "split", "owners": [0, 2, 4, 6], "dense": [1, 3, 5, 7]}
    assert turns(4, dense={"device": "cuda"}, topology=split)[1::2] == [0, 1, 2, 3]
    assert turns(4, store={"name": "gpu"}, topology=split)[::2] == [0, 1, 2, 3]
    assert turns(4, store={"name": "gpu"}, topology=split)[1::2] == [0, 1, 2, 3]  # for copies
    assert turns(4, dense={"device": "cuda"}) == [0, 1, 2, 3, 0, 1, 2, 3]
    both = {"store": {"name": "gpu"}, "dense": {"device": "cuda"}}
    assert turns(3, **both, topology=split) == [0, 1, 2, 0, 1, 2, 0, 1]
    places = {"places": 2}  # which share the GPUs of their host
    assert turns(4, dense={"device": "cuda"}, topology=places) == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("ranks", "there"),
    [
        ([(True, "a 0"), (True, "a 1"), (True, "b 0")], True),
        ([(True, "a 0"), (True, "a 0")], False),  # NCCL refuses two ranks on one
        ([(True, "a 0"), (False, "a 1")], False),
        ([(True, None)], False),  # no GPU
        ([(True, "a 0")], True),
    ],
)
def test_gradients_are_summed_on_gpus_where_each_rank_has_its_own(ranks: list[Any], there: bool) -> None:
    assert _sums_there(ranks) == there


def test_sums_of_the_host_reach_tensors_that_are_elsewhere() -> None:
    started: dict[str, torch.Tensor] = {}
    sums = SimpleNamespace(
        start=lambda flat, name: started.__setitem__(name, flat),
        wait=lambda _: started["a"].mul_(3),
        cancel=lambda _: None,
    )
    host, flat = HostSums(sums), torch.arange(4.0)  # type: ignore[arg-type]
    handle = host.start(flat, "a")
    assert started["a"].data_ptr() != flat.data_ptr()
    host.wait(handle)
    assert flat.tolist() == [0, 3, 6, 9]
    again = host.start(flat, "a")
    assert again[1] is handle[1], "one copy a bucket is kept"
    host.cancel(again)
    assert flat.tolist() == [0, 3, 6, 9]
