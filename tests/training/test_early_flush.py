"""Rows that are written beside the steps before a checkpoint: it has the same bits, and few rows are left for it."""

import time
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.checkpoint import files
from hpcrec.checkpoint.tools.diff import diff
from hpcrec.checkpoint.tools.verify import verify
from hpcrec.embedding.stores import cache, early_flush
from hpcrec.embedding.stores.cache import Cache
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.embedding.stores.early_flush import EarlyFlush
from tests.together import on_every_rank
from tests.training.runs import write_data
from tests.training.test_links import config_of, stored

COMM = MPI.COMM_WORLD


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Rows are written early from the second step after a checkpoint on, few at once: pieces, and rows left for it."""
    counts = {"pieces": 0, "rounds": 0, "left": 0}
    monkeypatch.setattr(early_flush, "_FIRST_BYTES_PER_S", 1.0)
    monkeypatch.setattr(early_flush, "_SHARE", 1.0)
    monkeypatch.setattr(cache, "_EARLY_ROWS", 5)
    flush_idle, keep, end = Cache.flush_idle, DiskStore.keep, EarlyFlush.end

    def counted(self: Cache) -> Any:
        for n_rows in flush_idle(self):
            counts["pieces"] += 1
            yield n_rows
        counts["rounds"] += 1

    def ended(self: EarlyFlush) -> None:
        """After a whole round, where there is to be one."""
        before, until_s = counts["rounds"], time.monotonic() + 30
        while self._thread is not None and self._thread.is_alive() and counts["rounds"] == before:
            assert time.monotonic() < until_s
            self._stepped.set()
            time.sleep(0.001)
        end(self)

    def kept(self: DiskStore) -> Any:
        self._early.end()
        counts["left"] += sum(len(plan.changed()) for plan in self._ahead.lowest.cache._plans.values())
        return keep(self)

    monkeypatch.setattr(Cache, "flush_idle", counted)
    monkeypatch.setattr(EarlyFlush, "end", ended)
    monkeypatch.setattr(DiskStore, "keep", kept)
    return counts


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
@pytest.mark.parametrize("policy", ["sync", "hybrid"])
def test_checkpoints_have_the_same_bits_and_few_rows_are_left(
    folder: Path, policy: str, early: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5")
    sections: dict[str, Any] = {"policy": {"name": policy, "staleness": 2}} if policy == "hybrid" else {}
    left = {}
    for run in ("early", "late", "hdf5"):
        if run == "late":
            monkeypatch.setattr(EarlyFlush, "due_in", lambda self, steps: None)
        early["left"] = 0
        config = config_of(
            folder,
            run,
            train={"steps": 12},
            store=stored(folder),
            checkpoint={"every": 6, "keep": 9, "keep_best": False, "rows": "hdf5" if run == "hdf5" else "links"},
            **sections,
        )
        assert commands.train(config) == 0
        left[run] = COMM.allreduce(early["left"])
    pieces = COMM.allreduce(early["pieces"])
    with on_every_rank():
        assert files.steps_in(folder / "early") == files.steps_in(folder / "late") == [6, 12]
        for step in (6, 12):
            of = files.step_folder(folder / "early", step)
            assert verify(of).problems == []
            assert diff(of, files.step_folder(folder / "hdf5", step))["equal"], step
        assert pieces > 3 and 0 < left["early"] < left["late"], (pieces, left)
