"""What benchmarks/first_hour.py, metrics.py and times.py plant, type, measure and claim: each part that is theirs."""

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from hpcrec.types import Feature

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
import metrics  # noqa: E402 - of the benchmarks, no package
import times  # noqa: E402
from first_hour_parts import causes_part, newcomer_part, planted  # noqa: E402

del sys.path[:1]
FEATURES = [Feature(name="user", cardinality=10)]


def row(cause: str, ranks: int, cost: float = 0.2, **said: Any) -> dict[str, Any]:
    """Of a run that named what was planted."""
    first = causes_part.PLANTED[cause].cause if cause in causes_part.PLANTED else ""
    return {
        "cause": cause,
        "ranks": ranks,
        "cost": cost,
        "first": first,
        "on_page": True,
        "found": [],
        "slow": 0,
    } | said


def claimed(rows: list[dict[str, Any]], missing: dict[str, str] | None = None) -> dict[str, Any]:
    return {one["id"].partition(".")[2]: one["value"] for one in causes_part._claims(rows, missing or {})}


def test_a_cause_is_named_where_every_run_of_it_is_and_costs_a_fifth() -> None:
    every = [row(cause, n) for cause in causes_part.PLANTED for n in (2, 4) for _ in range(3)]
    assert claimed(every) == {"causes_named": 6, "false_blame": 0}
    for one in (row("reader", 4, first="slow rank"), row("reader", 2, on_page=False), row("reader", 2, first="")):
        assert claimed([*every, one])["causes_named"] == 5
    cheap = [row("slow_disk", 4, cost=0.05) for _ in range(4)]  # the median of those on 4 ranks is of no fifth
    assert claimed([*every, *cheap])["causes_named"] == 5
    dear = [row("few_threads", 4, cost=0.6) for _ in range(4)]  # which has no strength
    assert claimed([*every, *dear])["causes_named"] == 6
    unlinked = [one for one in every if one["cause"] != "slow_link"]
    assert claimed(unlinked, {"slow_link": "no hosts"})["causes_named"] == 5


def test_a_healthy_run_is_blamed_by_a_cause_or_a_slow_rank() -> None:
    runs = [row("healthy", 2), row("healthy", 4, slow=1), row("healthy", 4, found=[{"name": "reader"}])]
    assert claimed(runs)["false_blame"] == 2


def test_strength_0_plants_nothing_and_others_what_they_say() -> None:
    folder = Path("/nowhere")
    assert causes_part.slow_link(0.5).rate == "20000kbit"
    assert causes_part.slow_link(0.0).rate == causes_part.UNSHAPED
    tables = causes_part.skewed_owner(0.3).settings[0]
    of = tomllib.loads(tables.partition("=")[0].replace(".", "_") + "=" + tables.partition("=")[2])["embedding_tables"]
    assert list(of) == list(causes_part.TABLES)
    assert [name for name, how in of.items() if how.get("owners") == [0]] == list(causes_part.TABLES[:3])
    assert "owners" not in causes_part.skewed_owner(0.0).settings[0]
    assert causes_part.few_threads(0.0).before == ()
    assert causes_part.slow_rank(12.5, folder, 4).options == ", slow_rank = 3, slow_ms = 12.5000"


def test_reads_of_a_folder_take_longer_and_others_do_not(tmp_path: Path) -> None:
    for name in ("slow", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 64)
    environment = {**os.environ, **causes_part.reader(20_000, tmp_path, 2).environment}
    environment["SLOW_READS_UNDER"] = str(tmp_path / "slow")
    script = (
        "import os, sys, time\nfile, began = os.open(sys.argv[1], os.O_RDONLY), time.monotonic()\n"
        "assert [os.pread(file, 8, 0), os.read(file, 8)] == [b'x' * 8] * 2\nprint(time.monotonic() - began)"
    )

    def took_s(name: str, us: str) -> float:
        line = [sys.executable, "-c", script, str(tmp_path / name / "file")]
        env = {**environment, "SLOW_READS_US": us}
        return float(subprocess.run(line, env=env, capture_output=True, text=True, check=True).stdout)

    assert took_s("slow", "20000") >= 0.04
    assert min(took_s("slow", "0") for _ in range(3)) < 0.02
    assert min(took_s("other", "20000") for _ in range(3)) < 0.02


def test_the_rank_that_is_slow_computes_for_longer_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, took_s = [], []
    for rank in ("0", "1"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        torch.manual_seed(3)
        model = planted.build(FEATURES, 2, width=4, slow_rank=1, slow_ms=200.0, bottom=[8], top=[8])
        began_s = time.thread_time()
        logits.append(model({"block": torch.ones(5, 1, 4)}, torch.ones(5, 2)))
        took_s.append(time.thread_time() - began_s)
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)
    assert took_s[1] >= 0.2 > took_s[0]


def test_a_newcomer_types_what_the_tutorial_says(tmp_path: Path) -> None:
    lines = newcomer_part.tutorial()
    assert len(lines) <= newcomer_part.COMMANDS
    assert all(line.split()[0] in newcomer_part.PROGRAMS for line in lines), lines
    csv = newcomer_part._clicks(tmp_path / "clicks.csv", 500)
    header, *rest = csv.read_text().splitlines()
    assert header == "click,user,ad,device,hour,price"
    assert len(rest) == 500
    assert 0.1 < sum(line[0] == "1" for line in rest) / 500 < 0.5
    assert newcomer_part.AUC.search("loss 0.3\ntest auc      0.7312\n")[1] == "0.7312"  # type: ignore[index]
    environment = {"PATH": os.environ["PATH"]}
    assert newcomer_part._typed("echo $PWD", tmp_path, environment).strip() == str(tmp_path)
    with pytest.raises(SystemExit, match=r"false ended with 1"):
        newcomer_part._typed("false", tmp_path, environment)


def test_gauc_is_timed_of_what_it_is() -> None:
    """On 2 ranks; the claim is of the size of the goal alone."""
    rows = metrics.measure(2, 4000, 50, 2)
    labels, logits, groups = [], [], []
    for rank in range(2):
        rng = np.random.default_rng(rank)
        logits.append(rng.standard_normal(2000, np.float32))
        labels.append(rng.random(2000, np.float32) < 0.2)
        rng.uniform(0.5, 2.0, 2000)
        groups.append(rng.integers(0, 50, 2000))
    label, logit, group = (np.concatenate(parts) for parts in (labels, logits, groups))
    of = [roc_auc_score(label[group == g], logit[group == g]) for g in range(50)]
    assert rows[0]["metric"] == "gauc"
    assert rows[0]["value"] == pytest.approx(np.average(of, weights=np.bincount(group)), rel=1e-12)
    assert [row["metric"] for row in rows[1:]] == ["gauc, with weights", "ndcg@10", "recall@20", "mrr"]
    assert all(0 < row["min"] <= row["median"] <= row["max"] for row in rows)
    assert metrics.claims_of(rows, 2, quick=True)[0]["value"] is None
    assert metrics.claims_of(rows, 2, quick=False)[0]["value"] == rows[0]["median"]


def test_the_cost_of_counting_is_of_pairs() -> None:
    with tempfile.TemporaryDirectory() as name:
        times.hpcrec("prepare", "synthetic", "--out", f"{name}/data", "--samples", "20000")
        found = times.measured(Path(name), "fused", 3, 2)
    assert found["cost_least"] <= found["cost"] <= found["cost_most"] < 1
    assert found["calls"] > 0
    assert 0 < found["share"] < 0.2
