"""benchmarks/towers.py: its data, which runs are the same, paired intervals, and when a ratio holds."""

import itertools
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hpcrec.comm.ledger import TAGS
from hpcrec.data.gather import ends
from hpcrec.data.layout import Column
from hpcrec.data.reader import DataSet
from hpcrec.models.zoo import build_model
from hpcrec.types import Feature

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS)]
from levels_parts import arms  # noqa: E402 - of the benchmark, which is no package
from on_ranks import launch  # noqa: E402
from towers_parts import codecs_part, data, partition_part, quality_part, speed_part, trained  # noqa: E402

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
            yield {"auc": 0.5 + 0.1 * len(ran), "logloss": 0.6}

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
    assert len(ran) == 3 and ran[0]["ranks_a_host"] == 1
    known = (tmp_path / "towers_runs.jsonl").rename(tmp_path / "known.jsonl")
    assert trained.Kept(tmp_path / "other", known).auc(of, cases[1]) == kept.auc(of, cases[1]) and len(ran) == 3
    known.write_text(known.read_text().replace('"of": "', '"of": "not '))
    trained.Kept(tmp_path / "third", known).run(of, cases[:1])
    assert len(ran) == 4  # those of other data and models are not taken


def test_committed_figures_follow_from_committed_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of planted data, whatever data and models they were taken with, without another run."""
    monkeypatch.setattr(launch, "local", lambda *_, **__: pytest.fail("a run that is not there"))
    monkeypatch.setattr(data.Planted, "files", lambda *_: pytest.fail("a run that is not there"))
    known, of = tmp_path / "known.jsonl", trained.Kept(tmp_path)._of
    runs = map(json.loads, (BENCHMARKS / "results" / "towers_runs.jsonl").read_text().splitlines())
    known.write_text("".join(json.dumps({**run, "of": of}) + "\n" for run in runs))
    result = json.loads((BENCHMARKS / "results" / "towers_planted.json").read_text())
    found = quality_part.measure(trained.Kept(tmp_path, known), tmp_path, "planted", quick=False)
    assert found == (result["rows"], result["claims"])


def test_a_ratio_holds_by_both_intervals() -> None:
    row = {"low": -0.0004, "low_over_narrow": 0.001, "ratio": 4, "seeds": 8, "narrow_gap": -0.01, "flat_auc": 0.8}
    assert quality_part.holds(row, 0.0005) and not quality_part.holds({**row, "low": -0.0006}, 0.0005)
    assert not quality_part.holds({**row, "low_over_narrow": -0.001}, 0.0005)
    found = quality_part.claims_of([{**row, "ratio": 2}, row, {**row, "ratio": 8, "low": -0.1}], "planted", "dmt_dlrm")
    assert [one["holds"] for one in found[:2]] == [True, True] and found[2]["value"] == 4
    assert found[3]["id"] == "towers.half_width_gap.planted.dmt_dlrm" and found[3]["holds"] and len(found) == 4
    known = quality_part.claims_of([{**row, "attainable": 0.82, "ratio": r} for r in (2, 4)], "planted", "dmt_dlrm")
    assert known[4]["value"] == pytest.approx(0.02) and not known[4]["holds"]


def test_arms_of_a_ratio_send_no_more_than_narrow_rows() -> None:
    """Elements that cross, of towers and of the flat model with narrow rows."""
    towers = data.Planted(0.05, 1).groups
    for arm in quality_part.arms_of("dmt_dlrm", towers):
        settings = " ".join(arm.settings(10))
        assert ("model.width" in settings) == (arm.kind == "narrow")
        assert arm.kind != "narrow" or f"model.width={16 // int(arm.ratio)}" in settings
    features = [Feature(name=name, cardinality=40) for group in towers for name in group]
    for model, n_towers, r in itertools.product(("dmt_dlrm", "dmt_dcn"), (2, 4, 8), (2, 4, 8)):
        cut = quality_part.cut(towers, n_towers)
        made: Any = build_model(model, features, 1, width=16, options={"towers": cut, "ratio": float(r)})
        assert sum(tower.elements for tower in made.towers) <= len(features) * 16 // r
        assert all(tower.numbers > 0 for tower in made.towers), "else products of a tower's features are lost"
    assert set(speed_part.arms_of("dmt_dcn")) == {
        "flat",
        *(f"r{r}{at}" for r in (2, 4, 8) for at in ("", ", dense ranks")),
    }


def test_the_goal_is_of_the_largest_ratio_that_loses_nothing(tmp_path: Path) -> None:
    def said(data: str, value: int | None) -> None:
        claims = [{"id": f"towers.largest_ratio.{data}.dmt_dcn", "value": value}]
        (tmp_path / f"towers_{data}.json").write_text(json.dumps({"claims": claims}))

    assert speed_part.chosen("dmt_dcn", tmp_path)[0] == 2
    said("planted", 8)
    assert speed_part.chosen("dmt_dcn", tmp_path) == (8, "the largest that loses nothing on planted data alone")
    said("movielens", 4)
    assert speed_part.chosen("dmt_dcn", tmp_path)[0] == 4 and speed_part.chosen("dmt_dlrm", tmp_path)[0] == 2
    said("movielens", None)
    assert speed_part.chosen("dmt_dcn", tmp_path)[0] == 8


def test_a_host_that_sends_little_in_a_phase_ends_the_part() -> None:
    bytes_TRR = np.zeros((len(TAGS), 8, 8))
    for tag in ("values", "gradients"):
        bytes_TRR[TAGS.index(tag)] = 1e6
    speed_part.enough({"r2": {"bytes_TRR": bytes_TRR.tolist()}})
    bytes_TRR[TAGS.index("gradients"), 2:4] = 1e4  # of the second host: 12e4 to others
    with pytest.raises(SystemExit, match="r2: a host sends 120000 bytes of gradients"):
        speed_part.enough({"r2": {"bytes_TRR": bytes_TRR.tolist()}})


def test_a_line_has_the_bound_by_its_definition() -> None:
    def ran(step_s: float, far_bytes: float) -> list[dict[str, Any]]:
        bytes_TRR = np.zeros((len(TAGS), 8, 8))
        bytes_TRR[0, 0, 2] = far_bytes
        return [{"step_s": step_s, "bytes_TRR": bytes_TRR.tolist()}] * 3

    unshaped = {"flat": ran(1.0, 8e6), "r2": ran(0.7, 2e6), "r2, dense ranks": ran(0.8, 8e6)}
    shaped = {"flat": ran(4.0, 8e6), "r2": ran(1.25, 2e6), "r2, dense ranks": ran(3.0, 8e6)}
    row = speed_part.line("speed", "dmt_dlrm", 2, "1gbit", {"1gbit": shaped, arms.UNSHAPED: unshaped})
    assert (row["c"], row["k"], row["q"]) == (0.75, 0.8, 4.0)
    assert row["bound"] == pytest.approx(1 / (0.25 * 0.8 + 0.75 / 4)) and row["faster"] == pytest.approx(3.2)
    assert row["of_bound"] == pytest.approx(3.2 / row["bound"])


def test_rates_are_sought_until_no_next_ones_are_better() -> None:
    class Found:
        """AUC that are highest at rows' fifth rate and one of dense parameters, below which others are so much less."""

        def __init__(self, dense: int = 0, less: float = 0.1) -> None:
            self.runs, self.dense, self.less = list[tuple[int, int]](), dense, less

        def run(self, _: Any, cases: Any) -> None:
            self.runs += [self.place(case) for case in cases]

        def auc(self, _: Any, case: Any) -> float:
            rows, dense = self.place(case)
            more, fewer = max(0, dense - self.dense), max(0, self.dense - dense)
            return 1 - abs(rows - 4) / 10 - more / 10 - fewer * self.less

        def place(self, case: Any) -> tuple[int, int]:
            values = [float(text.partition("lr=")[2]) for text in case.settings if "lr=" in text]
            rows, dense = (of.index(value) for of, value in zip(quality_part.RATES, values, strict=True))
            return rows, dense

    found, pilot = Found(), data.Planted(0.05, 100)
    measured = quality_part.Measured(found, pilot, pilot.groups, 10, 10)  # type: ignore[arg-type]
    assert measured.rates(quality_part.FLAT) == ("embedding.optimizer.lr=0.01", "dense.optimizer.lr=0.0003")
    assert set(found.runs) < {(a, b) for a in range(6) for b in range(5)} and found.runs[0] == quality_part.FIRST[0]
    for less, rate in ((0.00015, "0.01"), (0.001, "0.03")):
        calm = quality_part.Measured(Found(4, less), pilot, pilot.groups, 10, 10)  # type: ignore[arg-type]
        assert calm.rates(quality_part.FLAT)[1] == f"dense.optimizer.lr={rate}"
    unsought = quality_part.Measured(found, pilot, pilot.groups, 10, 0)  # type: ignore[arg-type]
    assert unsought.rates(quality_part.FLAT) == ("embedding.optimizer.lr=0.005", "dense.optimizer.lr=0.001")


def test_what_is_timed_beside_codecs_are_towers_at_their_place() -> None:
    of = codecs_part.settings_of(data.Planted(0.05, 1).groups)
    assert [name for name, (_, more) in of.items() if "exchange.form=partial" in more] == ["r2", "r4", "r8"]
    assert [name for name, (_, more) in of.items() if not more] == ["fp32", "narrow 2", "narrow 4", "narrow 8"]
    assert len(of) == 11
