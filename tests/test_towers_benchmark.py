"""benchmarks/towers.py: its data, which runs are the same, paired intervals, and when a ratio holds."""

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hpcrec.data.gather import ends
from hpcrec.data.layout import Column
from hpcrec.data.reader import DataSet

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from on_ranks import launch  # noqa: E402 - of the benchmark, which is no package
from towers_parts import data, partition_part, quality_part, speed_part, trained  # noqa: E402

del sys.path[:1]


def test_planted_data_have_their_groups_and_are_removed(tmp_path: Path) -> None:
    planted = data.Planted(0.05, 3)
    assert sorted(map(len, planted.groups)) == [4] * 4 and len({f for group in planted.groups for f in group}) == 16
    names = {f for group in planted.groups for f in group}
    with (
        planted.files(tmp_path, blocks=(1, 1)) as folder,
        DataSet(folder / "train.h5") as train,
        DataSet(folder / "test.h5") as test,
    ):
        assert train.samples == test.samples == 65_536 and {feature.name for feature in train.features} == names
    assert not folder.exists()
    alone = data.Planted(0.0, 3, grouped=False)
    assert alone.how.groups == 1 and [len(tower) for tower in alone.groups] == [4] * 4
    assert alone.name != planted.name != data.Planted(0.1, 3).name


def test_towers_are_cut_in_parts_of_groups_or_several(tmp_path: Path) -> None:
    groups = (("a", "b"), ("c", "d"), ("e", "f"), ("g", "h"))
    assert quality_part.cut(groups, 2) == (("a", "b", "c", "d"), ("e", "f", "g", "h"))
    assert quality_part.cut(groups, 8) == tuple((name,) for name in "abcdefgh")
    assert partition_part.rand(quality_part.cut(groups, 4), groups) == 1.0
    assert partition_part.rand((tuple("aceg"), tuple("bdfh")), groups) < 0


def test_history_is_drawn_from_what_gives_no_samples() -> None:
    pairs_N2 = np.array([[0, 5], [2, 7], [0, 6], [2, 8], [0, 9]])
    found = data._history(pairs_N2, 3, np.random.default_rng(0))
    assert found.offsets is not None and found.offsets.tolist() == [0, 3, 3, 5]
    assert set(found.ids[:3].tolist()) == {5, 6, 9} and set(found.ids[3:].tolist()) == {7, 8}
    many = np.stack([np.zeros(100, np.int64), np.arange(100)], 1)
    assert len(data._history(many, 1, np.random.default_rng(0)).ids) == data.HISTORY
    taken = data._taken(Column(np.array([1, 2, 3]), ends(np.array([2, 0, 1]))), np.array([2, 0, 1]))
    assert taken.offsets is not None and taken.ids.tolist() == [3, 1, 2] and taken.offsets.tolist() == [0, 1, 3, 3]


def test_gap_is_the_paired_t_interval() -> None:
    own, other = np.random.default_rng(1).normal(0.8, 0.01, (2, 8))
    found = trained.gap(own.tolist(), other.tolist())
    said = stats.ttest_rel(own, other).confidence_interval(0.95)
    np.testing.assert_allclose([found["low"], found["high"]], [said.low, said.high], rtol=1e-12)


def test_what_is_known_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[dict[str, Any]] = []

    def local(jobs: list[dict[str, Any]], ranks: int, bound: bool) -> Any:
        for job in jobs:
            ran.append(job)
            yield {"auc": 0.5 + 0.1 * len(ran), "logloss": 0.6, "bytes_TRR": np.ones((9, 2, 2)).tolist()}

    monkeypatch.setattr(launch, "local", local)

    class Few(data.Planted):
        @contextmanager
        def files(self, cache: Path) -> Any:
            with super().files(cache, (1, 1)) as folder:
                yield folder

    of, cases = Few(0.05, 1), [trained.Case(("train.steps=1",), 1), trained.Case(("train.steps=2",), 1)]
    kept = trained.Kept(tmp_path)
    kept.run(of, cases)
    assert len(ran) == 2 and 0.5 < kept.row(of, cases[0])["attainable"] < 0.9
    again = trained.Kept(tmp_path)
    assert [again.auc(of, case) for case in cases] == [kept.auc(of, case) for case in cases] and len(ran) == 2
    again.run(of, [trained.Case(("train.steps=2",), 2)])
    assert len(ran) == 3 and again.row(of, cases[0])["bytes"] == 4.0  # two tags, between two ranks


def test_a_ratio_holds_by_both_intervals() -> None:
    row = {"low": -0.0004, "low_over_narrow": 0.001, "ratio": 4, "seeds": 8}
    assert quality_part.holds(row, 0.0005) and not quality_part.holds({**row, "low": -0.0006}, 0.0005)
    assert not quality_part.holds({**row, "low_over_narrow": -0.001}, 0.0005)
    found = quality_part.claims_of([{**row, "ratio": 2}, row, {**row, "ratio": 8, "low": -0.1}], "planted", "dmt_dlrm")
    assert [one["holds"] for one in found[:2]] == [True, True] and found[2]["value"] == 4


def test_arms_of_a_ratio_send_no_more_than_narrow_rows() -> None:
    """Elements that cross, of towers and of the flat model with narrow rows."""
    towers = data.Planted(0.05, 1).groups
    for arm in quality_part.arms_of("dmt_dlrm", towers):
        settings = " ".join(arm.settings(10))
        assert ("model.width" in settings) == (arm.kind == "narrow")
        assert arm.kind != "narrow" or f"model.width={16 // int(arm.ratio)}" in settings
    assert set(speed_part.arms_of("dmt_dcn")) == {
        "flat",
        *(f"r{r}{at}" for r in (2, 4, 8) for at in ("", ", dense ranks")),
    }
