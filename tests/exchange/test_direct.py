"""Messages that cross from devices' memory: the same bits and bytes as through the host's, whichever ranks have one."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.comm.gpu import takes_gpu_memory
from tests.training.runs import config_for, gather_tables, write_data
from tests.training.test_equivalence import roles_for

GPU = {"store": {"name": "gpu", "device": "emulated"}}
CASES: dict[str, dict[str, Any]] = {
    "rows": {**GPU, "exchange": {"form": "rows"}},
    "rows and model": {**GPU, "dense": {"device": "emulated"}},
    "model": {"dense": {"device": "emulated"}, "exchange": {"form": "rows"}},
    "partial": {**GPU, "model": {"name": "deepfm"}, "exchange": {"form": "partial"}},
    "fp16": {**GPU, "exchange": {"codec": "fp16"}, "train": {"dtype": "float32"}},
    "bf16": {**GPU, "exchange": {"codec": "bf16"}, "train": {"dtype": "float32"}},
    "max": {**GPU, "model": {"pooling": {"history": "max"}}},
}


def run(folder: Path, messages: str, **sections: Any) -> tuple[list[float], dict[str, bytes], list[Any]]:
    wanted = {**sections, "train": {"steps": 3, **sections.get("train", {})}}
    wanted["exchange"] = {**wanted.get("exchange", {}), "gpu_messages": messages}
    with open_session(config_for(folder, **wanted)) as session:
        losses = [step.run() for step in session.steps()]
        tables = {name: rows.tobytes() for name, rows in gather_tables(session).items()}
        return losses, tables, session.parts.world.total_wire_bytes().tolist()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_direct_messages_change_no_bit_and_no_byte(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    from hpcrec.comm.collectives import Collectives

    crossed: list[type] = []
    cross = Collectives.alltoallv_between

    def spy(self: Collectives, send: Any, sent_R: Any, recv: Any, due_R: Any, tag: str) -> None:
        crossed.extend((type(send), type(recv)))
        cross(self, send, sent_R, recv, due_R, tag)

    monkeypatch.setattr(Collectives, "alltoallv_between", spy)
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    for (name, sections), topology in zip(CASES.items(), roles, strict=False):
        found = [run(folder, messages, topology=topology, **sections) for messages in ("off", "on")]
        assert found[0] == found[1], name
    assert {np.ndarray} < set(crossed), crossed  # from memory of both kinds
    assert "torch.Tensor" in {f"{kind.__module__}.{kind.__name__}" for kind in crossed}


def test_the_library_is_asked() -> None:
    version = MPI.Get_library_version().lower()
    assert not takes_gpu_memory() or "open mpi" in version or "mpich" in version
