"""As many ranks as this machine's memory takes: train, save, stop by a signal, and go on with fewer of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrec.checkpoint.checkpoint import steps_in
from hpcrec.comm.failure import ExitCodes
from hpcrec.config import Config, to_toml
from hpcrec.training import attempts
from tests.counts import keep_counts
from tests.training.learned import check_learned, check_told
from tests.training.runs import config_for, write_data

RANKS, FEWER, FEWEST = 64, 48, 2
STEPS, EVERY, BATCH = 60, 5, 130  # two samples a rank, more for some
RANK_BYTES = 200 << 20  # that only the process has: measured 165 MB


def config(folder: Path, run: str) -> Config:
    return config_for(
        folder,
        data={name: str(folder / f"{name}.h5") for name in ("train", "validation")},
        topology={"mode": "fused", "owner_threads": 1, "dense_threads": 1},
        model={"name": "deepfm"},
        embedding={"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}, "tables": {"user": {"shard": "row"}}},
        dense={"reducer": "mpi", "optimizer": {"name": "Adam", "lr": 0.05}},
        train={"steps": STEPS, "eval_every": 30, "log_every": 5, "batch_size": BATCH},
        checkpoint={"every": EVERY, "keep": 1000},
        run={"folder": str(folder / run)},
    )


def started(ranks: int, file: Path) -> subprocess.Popen[str]:
    without_mpi = {k: v for k, v in os.environ.items() if not k.startswith(("PMIX_", "OMPI_COMM", "PRTE_MCA"))}
    line = [sys.executable, "-m", "hpcrec", "run", "-n", str(ranks), "--", "train", str(file)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=without_mpi)


def trained(ranks: int, file: Path) -> None:
    process = started(ranks, file)
    said, _ = process.communicate(timeout=900)
    assert process.returncode == ExitCodes.FINISHED, said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_ranks_train_and_stop_and_fewer_go_on_to_the_result_of_two(tmp_path: Path) -> None:
    free = int(next(x for x in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in x).split()[1]) << 10
    if free < RANKS * RANK_BYTES:
        pytest.skip(f"{RANKS} ranks take {RANKS * RANK_BYTES >> 20} MB, {free >> 20} are free")
    for name, samples in (("train", 2000), ("validation", 300)):
        write_data(tmp_path / f"{name}.h5", samples=samples, seed=len(name))
    files = {}
    for name in ("many", "two"):
        files[name] = tmp_path / f"{name}.toml"
        files[name].write_text(to_toml(config(tmp_path, name)))
    trained(FEWEST, files["two"])
    run = tmp_path / "many"
    process = started(RANKS, files["many"])
    try:
        until_s = time.monotonic() + 900
        while max(steps_in(run) if run.exists() else [], default=0) < 2 * EVERY:
            assert process.poll() is None and time.monotonic() < until_s, process.communicate(timeout=60)[0]
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == ExitCodes.STOPPED, said
    stopped = steps_in(run)[-1]
    assert 2 * EVERY <= stopped < STEPS
    check_learned(run, tmp_path / "two", steps_in(run)[-2])  # of 64 ranks
    trained(FEWER, files["many"])
    begins = [one for one in attempts.read(run) if one["event"] == "begin"]
    assert [one["ranks"] for one in begins] == [RANKS, FEWER] and begins[1]["step"] == stopped
    check_learned(run, tmp_path / "two", STEPS)
    check_told(*(json.loads((tmp_path / name / "summary.json").read_text()) for name in ("many", "two")))
    keep_counts("ranks", {"ranks": RANKS, "stopped_at": stopped, "went_on_with": FEWER})
