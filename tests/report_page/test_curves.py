"""Curves of a page: which quantities are in which chart, by step and time, and thinned without losing an extreme."""

import random
from pathlib import Path
from typing import Any

import pytest

from hpcrec.report_page.curves import (
    LEAST_POINTS,
    MOST_POINTS,
    PAGE_POINTS,
    Chart,
    Curve,
    charts_of,
    kept_points,
    most_points,
    running_s,
    thinned,
)
from hpcrec.report_page.folder import Ran


def ran(lines: list[dict[str, Any]], **more: Any) -> Ran:
    return Ran(name="run", folder=Path("run"), state="finished", lines=lines, **more)


def test_quantities_are_in_the_chart_of_their_metric() -> None:
    of_step: dict[str, Any] = {
        "loss": 0.5,
        "train_auc": 0.7,
        "wire_bytes_per_step": 9,
        "lr_scale": 1.0,
        "epoch": 0.5,
        "skipped_steps": 0,
        "read_age_mean": 1.5,
    }
    of_evaluation = {
        "validation_auc": 0.8,
        "validation_click_pr_auc": 0.3,
        "validation_click_ndcg@10": 0.4,
        "validation_my.metrics:lift": 2.0,
        "validation_logloss": [0.5, 0.25],
        "validation_rmse": None,
        "validation_samples": 100,
        "validation_gauc_left_out": 3,
        "validation_calibration_by_decile": [{"samples": 1}],
    }
    lines = [{"step": step, "time": 100.0 + step, **of} for step in (1, 2) for of in (of_step, of_evaluation)]
    found = {
        chart.name: [(curve.kind, curve.of, curve.steps, curve.values) for curve in chart.curves]
        for chart in charts_of([ran(lines)])
    }
    assert found == {
        "loss": [("training", "", [1, 2], [0.5, 0.5])],
        "auc": [("training", "", [1, 2], [0.7, 0.7]), ("validation", "", [1, 2], [0.8, 0.8])],
        "logloss": [
            ("validation", "group 0", [1, 2], [0.5, 0.5]),
            ("validation", "group 1", [1, 2], [0.25, 0.25]),
        ],
        "pr_auc": [("validation", "click", [1, 2], [0.3, 0.3])],
        "ndcg@10": [("validation", "click", [1, 2], [0.4, 0.4])],
        "my.metrics:lift": [("validation", "", [1, 2], [2.0, 2.0])],
        "bytes sent a step": [("training", "", [1, 2], [9.0, 9.0])],
        "updates that rows lacked, mean": [("training", "", [1, 2], [1.5, 1.5])],
    }
    assert list(found)[:3] == ["loss", "auc", "logloss"] and list(found)[-1] == "updates that rows lacked, mean"


def test_what_is_not_finite_or_known_once_has_no_curve() -> None:
    assert charts_of([ran([{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}])]) == []
    (chart,) = charts_of([ran([{"step": n, "loss": value} for n, value in enumerate((1.0, None, 3.0))])])
    assert (chart.curves[0].steps, chart.curves[0].values) == ([0, 2], [1.0, 3.0])


def test_the_attainable_value_is_each_runs_own() -> None:
    lines = [{"step": step, "validation_auc": 0.7} for step in (1, 2)]
    known = ran(lines, summary={"eval": {"auc": 0.7, "attainable_auc": 0.84}})
    (chart,) = charts_of([ran(lines), known])
    assert chart.attainable == {1: 0.84} and [curve.run for curve in chart.curves] == [0, 1]


def test_samples_a_second_are_between_logged_lines_of_steps() -> None:
    lines = [{"step": 10, "time": 5.0, "loss": 1.0}, {"step": 20, "time": 7.0, "validation_auc": 0.5}]
    lines += [{"step": 30, "time": 9.0, "loss": 1.0}, {"step": 35, "time": 9.0, "loss": 1.0}]
    lines += [{"step": 40, "time": 10.0, "loss": 1.0}]
    charts = {chart.name: chart for chart in charts_of([ran(lines, config={"train": {"batch_size": 8}})])}
    (rate,) = charts["samples/s"].curves
    assert (rate.steps, rate.values) == ([30, 40], [8 * 20 / 4.0, 8 * 5 / 1.0])
    assert "samples/s" not in {chart.name for chart in charts_of([ran(lines)])}  # without a batch size


def test_pauses_between_attempts_are_left_out() -> None:
    spans = [(100.0, 110.0), (500.0, 520.0)]
    assert running_s([100.0, 105.0, 300.0, 500.0, 515.0], spans) == [0.0, 5.0, 10.0, 10.0, 25.0]
    assert running_s([50.0, None, 60.0], spans) == [0.0, 0.0, 10.0]  # of attempts that are not known
    assert running_s([None, None], spans) == [0.0, 0.0]


def test_thinning_keeps_every_extreme() -> None:
    draw = random.Random(3)
    values = [draw.random() for _ in range(10_000)]
    values[4321], values[7654] = 50.0, -50.0
    kept = kept_points(values, 400)
    assert len(kept) <= 400 and kept == sorted(set(kept)) and {0, 4321, 7654, 9999} <= set(kept)
    for k in range(100):  # the stretches
        inside = range(k * 100, (k + 1) * 100)
        of = [values[i] for i in kept if i in inside]
        assert (min(of), max(of)) == (min(values[i] for i in inside), max(values[i] for i in inside))
        assert {inside[0], inside[-1]} <= set(kept)
    assert kept_points(values[:400], 400) == list(range(400))


@pytest.mark.parametrize("n_curves", [1, 20, 100, 10_000])
def test_all_curves_of_a_page_share_its_room(n_curves: int) -> None:
    most = most_points(n_curves)
    assert LEAST_POINTS <= most <= MOST_POINTS and (most * n_curves <= PAGE_POINTS or most == LEAST_POINTS)


def test_only_a_page_with_a_long_curve_is_thinned() -> None:
    def chart(n: int) -> Chart:
        return Chart("loss", [Curve(0, "training", "", list(range(n)), [0.5 * i for i in range(n)], [1.0 * n] * n)])

    assert thinned([chart(MOST_POINTS)]) == ([chart(MOST_POINTS)], 0)
    (thin,), most = thinned([chart(MOST_POINTS + 1)])
    (curve,) = thin.curves
    assert most == MOST_POINTS and len(curve.steps) == len(curve.seconds_s) == len(curve.values) <= most
    assert [0.5 * step for step in curve.steps] == curve.seconds_s and curve.steps[-1] == MOST_POINTS
