"""A run with dynamic tables as a user has it: four ranks, killed and gone on with, evaluated, its figures asserted."""

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from sklearn.metrics import log_loss

from hpcrec.build.memory import topology_of
from hpcrec.build.tables import make_model, make_offers
from hpcrec.checkpoint.checkpoint import steps_in
from hpcrec.config import Config
from hpcrec.data.loader import Loader
from hpcrec.data.order import GlobalOrder
from hpcrec.data.reader import DataSet
from hpcrec.kernels import reference_id_map
from tests.reference import join
from tests.training.dynamic_runs import dynamic_config, write_data
from tests.training.launched import Fault, launch
from tests.training.learned import check_equal
from tests.training.test_kills import KILLED

RANKS, STEPS, EVERY = 4, 21, 6
RULES = {
    "user": {"capacity": 14, "evict": "lru"},
    "item": {"capacity": 12, "evict": "lfu", "admit_from": 2},
    "tag": {"capacity": 100},
}


def config(folder: Path, run: str) -> Config:
    return dynamic_config(
        folder,
        data={"train": str(folder / "train.h5"), "validation": str(folder / "validation.h5")},
        topology={"mode": "split", "owners": 2, "dense": 2},
        model={"name": "deepfm", "options": {"dropout": 0.2}},
        embedding={"share": {"history": "item"}, "tables": {t: {"dynamic": rules} for t, rules in RULES.items()}},
        dense={"reducer": "mpi", "optimizer": {"name": "Adam", "lr": 0.05}},
        train={"dtype": "float32", "batch_size": 13, "steps": STEPS, "eval_every": 10, "log_every": 7},
        checkpoint={"every": EVERY, "keep": 100, "keep_best": False, "background": False},
        run={"folder": str(folder / run), "tensorboard": False, "progress": False},
    )


def finish(folder: Path, wanted: Config) -> None:
    assert launch(folder, wanted, ranks=RANKS).end(limit_s=90).code == 0


def expected_figures(wanted: Config) -> dict[str, dict[str, int]]:
    """What id maps in plain Python make of the batches of the run, an owner each."""
    topology = topology_of(wanted, [0] * RANKS)
    with DataSet(Path(wanted.data.train)) as dataset:
        _, operators = make_model(wanted, dataset)
        _, families, _ = make_offers(wanted, dataset, operators, topology)
        order = GlobalOrder(
            dataset.samples, 13, seed=wanted.train.seed, chunk=wanted.data.chunk, window=wanted.data.window
        )
        with Loader(dataset, order, part=0, parts=1, prefetch=0).batches(0, 0, STEPS) as stream:
            batches = [join([batch]) for batch in stream]
    out = {}
    for family in families:
        name, (refused, maps) = family.name.removesuffix(".wide"), (0, [])
        rules = RULES[name]
        for part in range(family.row_parts):
            rest = rules.get("admit_from", 1), family.dynamic.pending // family.row_parts, 1.0, family.dynamic.seed
            maps.append(reference_id_map.IdMap(family.part_rows(part), rules.get("evict"), *rest))
        for batch in batches:
            asked = np.unique(np.concatenate([batch.bags[f].ids for f in family.features]))
            for part, own in enumerate(maps):
                refused += int((own.admit(asked[family.deal(asked)[0] == part])[0] < 0).sum())
        rows, evicted = sum(m.size for m in maps), sum(m.evicted for m in maps)
        found = {"rows": rows, "capacity": rules["capacity"], "admitted": rows + evicted}
        out[name] = {**found, "evicted": evicted, "refused": refused, "dropped": 0}
    return out


@pytest.mark.slow
def test_killed_and_gone_on_with_and_evaluated(tmp_path: Path) -> None:
    write_data(tmp_path / "train.h5", samples=200, seed=3)
    write_data(tmp_path / "validation.h5", samples=90, seed=4)
    finish(tmp_path / "job", config(tmp_path, "whole"))
    wanted = config(tmp_path, "killed")
    fault = Fault(1, "hpcrec.training.session:Session.run_step", 9, "kill")  # an owner, after a checkpoint
    assert launch(tmp_path / "job", wanted, fault, ranks=RANKS).end(limit_s=5.0).code in KILLED
    assert steps_in(tmp_path / "killed") == [6]
    finish(tmp_path / "job", wanted)
    runs = [tmp_path / name for name in ("killed", "whole")]
    assert steps_in(runs[0]) == steps_in(runs[1]) == [6, 12, 18, 21]
    for step in (18, 21):
        check_equal(*(run / "checkpoints" / f"step-{step}" for run in runs))

    ends = [json.loads((run / "summary.json").read_text()) for run in runs]
    figures = [
        {t: {n: v for n, v in f.items() if n != "map_bytes"} for t, f in end["dynamic_tables"].items()} for end in ends
    ]
    assert figures[0] == figures[1] == expected_figures(wanted)
    assert min(figures[0][t]["evicted"] for t in ("user", "item")) > 0 < figures[0]["item"]["refused"]
    assert sum(o["rows"] for o in ends[0]["owners"].values()) == 2 * sum(f["rows"] for f in figures[0].values())
    lines = [json.loads(line) for line in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    assert [x["user.evicted"] for x in lines if "user.evicted" in x][-1] == figures[0]["user"]["evicted"]
    assert "Dynamic tables" in (runs[0] / "report.html").read_text()

    logloss = pytest.approx(ends[0]["eval"]["logloss"], abs=1e-6)
    assert json.loads(hpcrec("evaluate", str(runs[0])))["logloss"] == logloss
    data, out = tmp_path / "validation.h5", tmp_path / "predictions.h5"
    hpcrec("predict", str(runs[0]), "--data", str(data), "--out", str(out))
    with h5py.File(out) as file, DataSet(data) as dataset:
        columns = dataset.read(0, dataset.samples)
        assert log_loss(columns.label, file["prediction"][()], sample_weight=columns.weight) == logloss


def hpcrec(*arguments: str) -> str:
    """Standard output of the command."""
    done = subprocess.run([sys.executable, "-m", "hpcrec", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
