"""Models on another device than the host's memory, and products in bfloat16: whole runs beside those without."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.config import Config
from hpcrec.errors import MissingError
from tests.devices import device_or_skip
from tests.training.runs import config_for, finished, gather_tables, train, write_data
from tests.training.test_equivalence import roles_for

STEPS = 3
CASES: dict[str, dict[str, Any]] = {
    "dlrm": {"model": {"name": "dlrm"}},
    "dcn": {"model": {"name": "dcn"}},
    "deepfm": {"model": {"name": "deepfm"}, "exchange": {"form": "partial"}},
    "wide and deep": {"model": {"name": "wide_deep"}, "exchange": {"form": "rows"}},
    "fm": {"model": {"name": "fm"}, "exchange": {"form": "partial"}},
    "lr": {"model": {"name": "lr"}},
    "clipped": {"dense": {"clip_norm": 0.1, "optimizer": {"name": "Adam", "lr": 0.01}}},
    "thresholds": {"dense": {"compression": "dct", "dct": {"density": 0.2, "values": "fp32", "warmup_steps": 1}}},
    "rows there too": {"store": {"name": "gpu", "device": "emulated"}},
}


def config_of(folder: Path, device: str, **sections: dict[str, Any]) -> Config:
    wanted = {**sections, "train": {"steps": STEPS, **sections.get("train", {})}}
    wanted["dense"] = {**wanted.get("dense", {}), "device": device}
    return config_for(folder, **wanted)


def close(found: Any, wanted: Any, atol: float = 1e-10) -> None:
    np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=atol)
    for some, others in zip(found[1:], wanted[1:], strict=True):
        assert some.keys() == others.keys()
        for name, values in some.items():
            np.testing.assert_allclose(values, others[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
@pytest.mark.parametrize("device", ["emulated", "cuda"])
def test_a_model_elsewhere_learns_the_same(folder: Path, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its inputs are assembled, and their gradients taken apart, by that device's kernels."""
    there, called = device_or_skip(device), set()
    run = there.call
    monkeypatch.setattr(there, "call", lambda name, *args: (called.add(name), run(name, *args))[1])
    write_data(folder / "data.h5")
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    for (name, sections), topology in zip(CASES.items(), roles, strict=False):
        wanted, found = (train(config_of(folder, d, topology=topology, **sections)) for d in ("cpu", device))
        close(found, wanted)
        assert wanted[2], name
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:  # always dense
        assert "copy_vectors" in called, called


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
@pytest.mark.parametrize("device", ["emulated", "cuda"])
def test_saved_there_goes_on_here_and_is_evaluated_alike(folder: Path, device: str) -> None:
    device_or_skip(device)
    write_data(folder / "data.h5")
    data = {"train": str(folder / "data.h5"), "test": str(folder / "data.h5"), "chunk": 8, "window": 3}

    def gather(session: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return session.evaluate("test"), gather_tables(session)

    adam = {"optimizer": {"name": "Adam", "lr": 0.01}}
    metrics, tables = finished(config_of(folder / "whole", "cpu", data=data, dense=adam), gather)
    for name, first, second in (("there", device, "cpu"), ("back", "cpu", device)):
        finished(config_of(folder / name, first, data=data, dense=adam), gather, stop_at=2)
        seen, held = finished(config_of(folder / name, second, data=data, dense=adam), gather, resume=True)
        assert seen["auc"] == pytest.approx(metrics["auc"], abs=1e-12), name
        assert seen["logloss"] == pytest.approx(metrics["logloss"], abs=1e-12), name
        for table, rows in held.items():
            np.testing.assert_allclose(rows, tables[table], rtol=0, atol=1e-10, err_msg=table)


@pytest.mark.parallel([2, 4])
def test_groups_learn_from_each_other_there(folder: Path) -> None:
    write_data(folder / "data.h5")
    codistillation = {"groups": 2, "weight": 0.5, "burn_in_steps": 1, "every": 2}
    for share in (True, False):
        other = {
            "dense": {"codistillation": {**codistillation, "share_embeddings": share}},
            "train": {"batch_size": 12},
        }
        wanted, found = (train(config_of(folder, device, **other)) for device in ("cpu", "emulated"))
        close(found, wanted)


@pytest.mark.parallel([1, 2])
@pytest.mark.in_turn
def test_products_in_bfloat16_are_near_and_parameters_are_not_in_it(folder: Path) -> None:
    write_data(folder / "data.h5")
    float32 = {"dtype": "float32", "steps": 6}
    for name in ("dlrm", "dcn", "deepfm", "wide_deep"):
        model = {"name": name, "width": 6}
        wanted, found = (
            train(config_of(folder, "cpu", model=model, train=float32, dense={"autocast": autocast}))
            for autocast in ("none", "bf16")
        )
        apart = np.abs(np.subtract(found[0], wanted[0]))
        assert 1e-6 < apart.max() < 0.03, (name, apart)  # 2^-9 of a logit is far more than float32 rounds
        for key, values in found[2].items():
            assert values.dtype == np.float32, key
            assert (values.view(np.uint32) & 0xFFFF).any(), f"{name}: {key} was rounded to bfloat16"
            np.testing.assert_allclose(values, wanted[2][key], rtol=0, atol=0.02, err_msg=key)


@pytest.mark.parallel([1])
def test_logits_of_bfloat16_are_evaluated(folder: Path) -> None:
    write_data(folder / "data.h5")
    data = {"train": str(folder / "data.h5"), "test": str(folder / "data.h5"), "chunk": 8, "window": 3}
    losses = []
    for autocast in ("none", "bf16"):
        config = config_of(folder, "cpu", data=data, train={"dtype": "float32"}, dense={"autocast": autocast})
        with open_session(config) as session:
            logits = torch.cat([out for _, _, out in session.outputs("test")])
            assert logits.dtype == torch.float32
            losses.append(session.evaluate("test")["logloss"])
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], abs=2e-3)


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    write_data(tmp_path / "data.h5")
    with pytest.raises(MissingError, match=r"dense\.device is 'cuda', but there is no GPU that torch .* can use"):
        open_session(config_of(tmp_path, "cuda"))
