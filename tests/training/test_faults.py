"""An error anywhere in a run ends every rank within 5 s: exit status 1, one traceback, of the rank that failed.

Either way, and after a stall, the summary says that the run failed and why.
"""

import json
import re
from pathlib import Path

import pytest

from tests.training.launched import Fault, launch
from tests.training.runs import config_for, write_data

PLACES = {
    "route": ("hpcrec.exchange.exchange:Exchange.route", 4),
    "gather": ("hpcrec.exchange.exchange:Exchange.read", 4),
    "answer": ("hpcrec.exchange.owner_side:OwnerSide.answer", 4),
    "forward": ("hpcrec.training.session:Session.default_losses", 4),
    "backward": ("hpcrec.dense.reducer:DenseReducer._start", 4),
    "scatter": ("hpcrec.exchange.exchange:Exchange.learn", 4),
    "apply": ("hpcrec.exchange.owner_side:OwnerSide.apply", 4),
    "dense reduce": ("hpcrec.dense.reducer:DenseReducer.reduce", 4),
    "optimizer": ("torch.optim:Adam.step", 4),
    "evaluation": ("hpcrec.training.session:Session._evaluate", 1),
    "metrics": ("hpcrec.training.metrics:evaluate", 1),
    "checkpoint rows": ("hpcrec.checkpoint.checkpoint:CheckpointWriter.write_table_part", 1),
    "checkpoint dense": ("hpcrec.checkpoint.checkpoint:CheckpointWriter.write_dense", 1),
    "checkpoint commit": ("hpcrec.checkpoint.checkpoint:CheckpointWriter.commit", 1),
    "loading": ("hpcrec.data.gather:take", 4),
}
OWNER = ("route", "gather", "answer", "scatter", "apply", "evaluation", "checkpoint rows", "checkpoint commit")
DENSE = tuple(name for name in PLACES if name not in ("answer", "apply", "checkpoint rows"))
AGREED = ("checkpoint rows", "checkpoint dense")  # in the thread that writes: the others fail with it, in one line
FIRST_DENSE = ("checkpoint dense",)  # on the others it is not called
FAST = (("split", "route", 0), ("fused", "backward", 1))


def cases():
    everything = [("split", name, 0) for name in OWNER]
    everything += [("split", name, 1 if name in FIRST_DENSE else 2) for name in DENSE]
    everything += [("fused", name, 0 if name in FIRST_DENSE else 1) for name in PLACES]
    return [pytest.param(*case, marks=[] if case in FAST else [pytest.mark.slow]) for case in everything]


@pytest.mark.parametrize(("mode", "name", "rank"), cases())
def test_an_error_ends_every_rank_and_is_told_once(tmp_path: Path, mode: str, name: str, rank: int) -> None:
    write_data(tmp_path / "data.h5", samples=400)
    data = {"train": str(tmp_path / "data.h5"), "validation": str(tmp_path / "data.h5"), "chunk": 32, "prefetch": 2}
    tables = {table: {"shard": "row"} for table in ("user", "item", "tag")}
    config = config_for(
        tmp_path,
        data=data,
        topology={"mode": mode, **({"owners": 1} if mode == "split" else {})},
        embedding={"tables": tables},
        dense={"reducer": "horovod", "optimizer": {"name": "Adam", "lr": 0.01}},
        train={"epochs": 40, "steps": None, "eval_every": 10},
        checkpoint={"every": 10},
    )
    place, call = PLACES[name]
    ended = launch(tmp_path / "job", config, Fault(rank, place, call)).end(limit_s=5.0)
    assert ended.code == 1, ended.err
    line = f"hpcrec: error: rank {rank}: KeyError: 'injected into {place}'"
    assert ended.err.count(line) == (name in AGREED), ended.err
    assert ended.err.count(f"KeyError: 'injected into {place}'") == 1 + (name in AGREED), ended.err
    assert f"[rank {rank} on " in ended.err and "MPI_ABORT" not in ended.err, ended.err
    assert ended.err.count("Traceback (most recent call last)") == 1, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    said = summary["error"].removeprefix(f"rank {rank}: " if name in AGREED else "")
    assert summary["status"] == "failed" and said == f"KeyError: 'injected into {place}'"
    page = (tmp_path / "run/report.html").read_text()
    assert "<title>run: failed</title>" in page and f"KeyError: &#39;injected into {place}&#39;" in page


WRITES = {  # steps that a run has left when it hangs, and what hangs
    "a write beside steps": (400, "os:pwrite"),
    "a write, all else being done": (11, "os:pwrite"),
    "the end of a file": (11, "hpcrec.checkpoint.checkpoint:sync"),
}


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("case", WRITES)
def test_a_rank_that_hangs_in_a_write_beside_steps_is_a_stall(tmp_path: Path, case: str, rank: int) -> None:
    write_data(tmp_path / "data.h5", samples=400)
    steps, place = WRITES[case]
    run = {"folder": str(tmp_path / "run"), "stall_report_s": 0.7, "stall_abort_s": 2.5}
    tables = {table: {"shard": "row"} for table in ("user", "item", "tag")}
    config = config_for(
        tmp_path, run=run, train={"steps": steps}, checkpoint={"every": 10}, embedding={"tables": tables}
    )
    call = 2 if rank == 0 and place == "os:pwrite" else 1  # rank 0 first writes that the run is its own
    ended = launch(tmp_path / "job", config, Fault(rank, place, call, "sleep")).end(limit_s=8.0)
    assert ended.code == 1 and ended.err.count("hpcrec: error: stalled past") == 1, ended.err
    lines = [line for line in ended.err.splitlines() if "collective 'checkpoint' on communicator 'aside'" in line]
    assert [line.startswith("hpcrec: stall: ") for line in lines] == [True, False], (
        ended.err
    )  # a late start is told too
    assert ended.err.count(f"Waiting for rank {rank}.") >= 2, ended.err
    place = (
        rf"rank {rank} on \S+ \(owner and dense rank\): step \d+, its checkpoint thread came on [\d.]+ s ago and is at "
    )
    assert len(re.findall(place, ended.err)) == 2, ended.err
    assert "thread checkpoint:" in ended.err, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["status"] == "failed" and f"Waiting for rank {rank}." in summary["error"]
    assert not list((tmp_path / "run/checkpoints").glob("step-*"))


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_stall_ends_in_a_summary_that_says_why(tmp_path: Path, rank: int) -> None:
    write_data(tmp_path / "data.h5", samples=400)
    run = {"folder": str(tmp_path / "run"), "stall_report_s": 0.5, "stall_abort_s": 1.5}
    config = config_for(tmp_path, run=run, train={"steps": 20})
    ended = launch(tmp_path / "job", config, Fault(rank, *PLACES["forward"], "sleep")).end(limit_s=8.0)
    assert ended.code == 1 and ended.err.count("hpcrec: error: stalled past") == 1, ended.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("failed", 3)
    assert summary["error"].startswith("stalled past run.stall_abort_s = 1.5, the job is ended: no progress for ")
    assert f"Waiting for rank {rank}." in summary["error"]
