"""``benchmarks/on_ranks/one_process.py`` is policy ``cached`` over ranks, up to the order of sums."""

import sys
from pathlib import Path

import pytest

from hpcrec.preparation.prepare_synthetic import prepare_synthetic

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from hybrid_parts import auc_part  # noqa: E402 - of the benchmark, no package
from on_ranks import launch  # noqa: E402

del sys.path[:1]
STEPS = 50


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks") / "data"
    prepare_synthetic(folder, samples=6000)
    return folder / "train.h5"


@pytest.mark.parametrize(("ranks", "optimizer", "staleness"), [
    pytest.param(4, "rowwise_adagrad", [0, 3], marks=pytest.mark.slow),
    pytest.param(3, "sgd", [2, 100], marks=pytest.mark.slow), (2, "rowwise_adagrad", [10]),
])  # fmt: skip
def test_it_is_the_run_over_ranks(train: Path, ranks: int, optimizer: str, staleness: list[int]) -> None:
    """Rates fall, bags have several ids, the last batch is not whole parts; in float64, to 1e-10 of the log-loss."""
    rate = {"sgd": 0.3, "rowwise_adagrad": 0.03}[optimizer]
    settings = [
        f"data.train={train}", f"data.validation={train.parent / 'validation.h5'}", "train.batch_size=62",
        f"train.steps={STEPS}", "train.seed=3", f"embedding.optimizer.name={optimizer}",
        f"embedding.optimizer.lr={rate}", "schedule.kind=linear", "train.dtype=float64",
    ]  # fmt: skip
    config = str(auc_part.CONFIG)
    cached = ["policy.name=cached", "policy.capacity=1.0", "policy.cache=lfu"]
    over_ranks = [
        {"kind": "train", "config": config, "settings": [*settings, *cached, f"policy.staleness={s}"], "evaluate": True}
        for s in staleness
    ]
    alone = [
        {"kind": "one process", "config": config, "settings": settings, "ranks": ranks, "staleness": s}
        for s in staleness
    ]
    wanted = list(launch.local(over_ranks, ranks=ranks, bound=False))
    found = list(launch.local(alone, ranks=1, bound=False))
    for want, have in zip(wanted, found, strict=True):
        assert have["left_out"] == 0
        assert have["logloss"] == pytest.approx(want["logloss"], abs=1e-10) and 0.1 < have["logloss"] < 2
        assert have["auc"] == pytest.approx(want["auc"], abs=1e-9)
    assert len({round(have["logloss"], 7) for have in found}) == len(found), "staleness is seen"
