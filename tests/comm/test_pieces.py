"""Messages in pieces bring what whole ones bring."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.comm import pieces
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
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
    whole, cut = (Collectives(COMM.Dup(), range(COMM.size), ledger, piece_bytes=n) for n in (0, piece))
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
