"""Messages in pieces bring what whole ones bring."""

import threading
import time
from contextlib import nullcontext
from functools import partial
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
from hpcrec.dense.reducer import DenseReducer
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
def test_held_pieces_come_behind_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of rank 0 begins while it holds them, whatever crosses meanwhile; all that is to come comes afterwards."""
    monkeypatch.setattr(pieces, "MOST_HELD_S", 60.0)
    held, bytes_R = Pieces(64), np.full(COMM.size, 1 << 10, np.int64)
    lane = Collectives(COMM.Dup(), range(COMM.size), Ledger(COMM.rank, [0] * COMM.size), pieces=held)

    def messages(rank: int) -> np.ndarray:
        return np.random.default_rng(rank).integers(0, 255, int(bytes_R.sum()), np.uint8)

    found: list[Any] = []
    send = partial(lane.alltoallv, messages(COMM.rank), bytes_R.copy(), bytes_R.copy(), "values")
    thread = threading.Thread(target=lambda: found.append(send()))
    total = np.zeros(1)
    with held.held() if COMM.rank == 0 else nullcontext():
        thread.start()
        time.sleep(0.5)  # far longer than so few pieces take
        COMM.Allreduce(np.ones(1), total)
        early = bool(found)
        COMM.Barrier()  # all have looked before rank 0's may begin
    thread.join(60)
    with on_every_rank():
        assert total[0] == COMM.size and not early, "rank 0's pieces have come while it held them"
        wanted = np.concatenate([messages(rank).reshape(COMM.size, -1)[COMM.rank] for rank in range(COMM.size)])
        assert len(found) == 1 and found[0].tobytes() == wanted.tobytes()
    lane.close()


@pytest.mark.parallel([2])
def test_pieces_are_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is to go first never comes."""
    monkeypatch.setattr(pieces, "MOST_HELD_S", 0.2)
    held, bytes_R = Pieces(64), np.full(COMM.size, 1 << 10, np.int64)
    lane = Collectives(COMM.Dup(), range(COMM.size), Ledger(COMM.rank, [0] * COMM.size), pieces=held)
    began_s = time.monotonic()
    with held.held():
        lane.alltoallv(np.zeros(int(bytes_R.sum()), np.uint8), bytes_R.copy(), bytes_R.copy(), "values")
        took_s = time.monotonic() - began_s
    with on_every_rank():
        assert 0.2 <= took_s < 20
    lane.close()


@pytest.mark.parallel([2, 3, 4])
def test_dense_sums_hold_pieces_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of dense ranks, for as long as they wait for them, fused and split: of ``hybrid``, not of ``ahead``, where
    ids of the next step wait for the first part of them."""
    write_data(folder / "data.h5")
    reduce, made, seen = DenseReducer.reduce, list[Pieces](), list[bool]()
    init = Pieces.__init__

    def kept(self: Pieces, n_bytes: int) -> None:
        init(self, n_bytes)
        if n_bytes:
            made.append(self)

    def looked(self: DenseReducer) -> None:
        seen.append(not made[-1]._free.is_set())
        reduce(self)
        seen.append(not made[-1]._free.is_set())

    monkeypatch.setattr(Pieces, "__init__", kept)
    monkeypatch.setattr(DenseReducer, "reduce", looked)
    for topology in ({"mode": "fused"}, {"mode": "split", "owners": 1, "dense": COMM.size - 1}):
        for policy, form, hold in ((hybrid(2), "pooled", True), ({"name": "ahead"}, "rows", False)):
            exchange = {"form": form, "windows": False, "piece_bytes": 100}
            config = config_of(folder, None, form, policy=policy, exchange=exchange, topology=topology)
            seen.clear()
            trained(config)
            dense = topology["mode"] == "fused" or COMM.rank > 0
            with on_every_rank():
                assert seen == [hold] * (2 * config.train.steps * dense), (topology, policy, seen)
                assert made[-1]._free.is_set()


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
