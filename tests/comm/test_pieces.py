"""Messages in pieces bring what whole ones bring."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.comm import pieces
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.comm.pieces import Pieces
from hpcrec.comm.sizes import UNIT_BYTES
from hpcrec.errors import ConfigError
from tests.policy.reference import hybrid
from tests.policy.test_hybrid import config_of, same_bits, trained
from tests.together import on_every_rank
from tests.training.runs import config_for, write_data

COMM = MPI.COMM_WORLD


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize(("piece", "under_way"), [(64, 1), (100, 3), (4096, 2), (128 << 10, 6)])
def test_brings_what_whole_messages_bring(piece: int, under_way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all sizes, none and more than is buffered among them."""
    monkeypatch.setattr(pieces, "UNDER_WAY", under_way)
    rng = np.random.default_rng(piece)
    ledger = Ledger(COMM.rank, [0] * COMM.size)
    whole, cut = (Collectives(COMM.Dup(), range(COMM.size), ledger, pieces=Pieces(n)) for n in (0, piece))
    for most in (0, 5, 3000 if piece < 4096 else 40_000):
        units_RR = rng.integers(0, most + 1, (COMM.size, COMM.size))
        sent_R, due_R = UNIT_BYTES * units_RR[COMM.rank], UNIT_BYTES * units_RR[:, COMM.rank].copy()
        message = rng.integers(0, 255, int(UNIT_BYTES * units_RR.sum()), np.uint8)[: int(sent_R.sum())]
        found = cut.alltoallv(message.view(np.float32), sent_R.copy(), due_R.copy(), "values")
        wanted = whole.alltoallv(message.view(np.float32), sent_R.copy(), due_R.copy(), "values")
        with on_every_rank():
            assert found.dtype == np.float32 and found.tobytes() == wanted.tobytes()
    for each in (whole, cut):
        each.close()


@pytest.mark.parallel([2, 3, 4])
def test_held_pieces_come_behind_what_is_waited_for() -> None:
    """None of rank 0 begins while it holds them, whatever crosses meanwhile; all that is to come comes afterwards."""
    held, bytes_R = Pieces(64), np.full(COMM.size, 1 << 20, np.int64)
    lane = Collectives(COMM.Dup(), range(COMM.size), Ledger(COMM.rank, [0] * COMM.size), pieces=held)
    sent = np.random.default_rng(COMM.rank).integers(0, 255, int(bytes_R.sum()), np.uint8)
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append(lane.alltoallv(sent, bytes_R.copy(), bytes_R.copy(), "values"))
    )
    total = np.zeros(1)
    with held.held() if COMM.rank == 0 else nullcontext():
        thread.start()
        time.sleep(0.2)
        COMM.Allreduce(np.ones(1), total)
        early = bool(found)
    thread.join(60)
    with on_every_rank():
        assert total[0] == COMM.size and not early, "a rank that waits for rank 0's pieces has them already"
        others = [
            np.random.default_rng(rank).integers(0, 255, int(bytes_R.sum()), np.uint8) for rank in range(COMM.size)
        ]
        wanted = [other.reshape(COMM.size, -1)[COMM.rank] for other in others]
        assert len(found) == 1 and found[0].tobytes() == np.concatenate(wanted).tobytes()
    lane.close()


@pytest.mark.parallel([2, 3, 4])
def test_dense_sums_hold_pieces_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each step of a dense rank, for as long as it waits for them, and no longer."""
    write_data(folder / "data.h5")
    held, seen = Pieces.held, list[bool]()

    @contextmanager
    def noted(self: Pieces) -> Iterator[None]:
        with held(self):
            seen.append(not self._free.is_set())
            yield
        seen.append(self._free.is_set())

    monkeypatch.setattr(Pieces, "held", noted)
    exchange = {"windows": False, "piece_bytes": 100}
    config = config_of(folder, None, "pooled", policy=hybrid(2), exchange=exchange)
    trained(config)
    with on_every_rank():
        assert all(seen) and len(seen) == 2 * config.train.steps, seen


@pytest.mark.parallel([1, 2, 3, 4])
def test_a_run_has_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With steps in flight, without shared memory; and its messages are in pieces where they are to be."""
    write_data(folder / "data.h5")
    cut, n_cut = pieces.alltoallv_in_pieces, []

    def counted(*given: Any) -> None:
        n_cut.append(1)
        cut(*given)

    monkeypatch.setattr("hpcrec.comm.collectives.alltoallv_in_pieces", counted)
    for policy, form in ((hybrid(2), "pooled"), (hybrid(1), "rows"), ({"name": "ahead"}, "rows")):
        found = []
        for n_bytes in (0, 100):
            exchange = {"form": form, "windows": False, "piece_bytes": n_bytes}
            n_cut.clear()
            found.append(trained(config_of(folder, None, form, policy=policy, exchange=exchange)))
            with on_every_rank():
                assert bool(n_cut) == (n_bytes > 0 and COMM.size > 1), n_bytes
        same_bits(found[1], found[0], (policy, form))


def test_pieces_without_steps_in_flight_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"exchange\.piece_bytes is 64, but policy\.name is 'sync'"):
        config_for(folder, exchange={"piece_bytes": 64})
