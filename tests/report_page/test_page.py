"""The page: it stands alone, no name breaks out of it, it shows one run or several, and it stays small."""

import html.parser
import json
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hpcrec.errors import DataError
from hpcrec.report_page.compare import differences
from hpcrec.report_page.folder import Ran, read_run
from hpcrec.report_page.page import page, write_page, write_report
from hpcrec.report_page.sections import bars, ranges, sections_of
from hpcrec.training.timer import Times
from hpcrec.training.times import times_of
from tests.report_page.made import BEGAN_S, HOSTILE, lines_of, summary_of, write_run
from tests.training.test_telemetry import summary

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 2_000_000  # of a page with 10,000 steps and 64 ranks


class Page(html.parser.HTMLParser):
    """Tags that are opened and closed, what a page would load, its text, and what its scripts hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open, self.loads, self.tags, self.attributes = list[str](), list[Any](), list[str](), list[str]()
        self.scripts, self.texts = list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        self.loads += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "input"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.texts.append(data)

    @property
    def charts(self) -> dict[str, Any]:
        """What the script draws, by name."""
        return {chart["name"]: chart for chart in json.loads(self.scripts[0])["charts"]}

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def read(folder: Path) -> Ran:
    return read_run(folder, folder.name, lambda _: "running")


def test_the_page_stands_alone_and_shows_the_run(tmp_path: Path) -> None:
    lines = [{"step": step, "time": BEGAN_S, "loss": 1 / step, "train_auc": 0.5 + step / 100} for step in (10, 20, 30)]
    lines += [{"step": 30, "time": BEGAN_S, "validation_auc": 0.79}]
    write_run(tmp_path / "run", config='[model]\nname = "<dlrm>"\n', lines=lines)
    text = write_report(tmp_path / "run", summary(advice=[])).read_text()
    found = Page(text)
    assert found.open == [] and found.loads == [] and len(found.scripts) == 3
    assert text.count("http") == text.count("https://github.com/leeoniya/uPlot") + text.count("http-equiv") == 2
    assert {name: len(chart["curves"]) for name, chart in found.charts.items()} == {"loss": 1, "auc": 2}
    assert found.charts["auc"]["levels"] == [["attainable", 0.8]]
    loss = found.charts["loss"]["curves"][0]
    assert (loss["step"], loss["value"]) == ([10, 20, 30], [0.1, 0.05, 0.0333333])
    for shown in (
        "run finished Early stop: auc did not improve for 3 evaluations, after step 100 of 316.",
        "auc 0.7900 of 0.8000 attainable",
        "rank 1 on node<7> (owner): 2.0 times the median of its role for its work, 1,250 lines",
        "68.00 kB",
        "lookups 1.25, distinct 1.00",
        "<dlrm>",
        "a <b> & c",
        "seconds of each rank by what it did, at most 4 s",
        "rank (owner: rank 0; dense: rank 1)",
        "2.00 MB",
        "12,346",
        "2.50 s",
        "204,800",
        "900 of 1,000",
        "1 update 20.0% 200 rows",
    ):
        assert shown in found.text, shown
    assert "Advice" not in found.text


def test_tables_that_say_nothing_are_left_out() -> None:
    run = Ran(name="run", folder=Path("run"), state="finished", summary=summary())
    titles = [section.title for section in sections_of(run)]
    assert titles == [
        "Time by rank",
        "Time of rank 1 (dense)",
        "Threads beside the steps of dense ranks, in none of these times",
        "Time of rank 0 (owner)",
        "Threads beside the steps of owners, in none of these times",
        "Bytes sent, all ranks",
        "Staleness of rows when they were read",
        "Owners",
        "Most memory",
        "Thresholded",
        "Dynamic tables",
        "Topology",
        "Versions",
    ]
    keys = "wire_bytes owners read_age peak_rss_bytes dynamic_tables dense_compression exchange_thresholds topology"
    nothing: dict[str, Any] = {key: {} for key in (*keys.split(), "versions")}
    without = summary(**nothing, time={"ranks": {}, "roles": {}})
    assert sections_of(Ran(name="run", folder=Path("run"), state="finished", summary=without)) == []
    tiers = sections_of(Ran(name="r", folder=Path("r"), state="finished", summary=summary_of(8)))
    (table,) = next(section.items for section in tiers if section.title.startswith("Tiers"))
    assert table.rows == [  # type: ignore[union-attr]
        ("cache hits", "87.5%", "87.5%", "87.5%"),
        ("disk bytes", "5.00 GB", "5.00 GB", "5.00 GB"),
        ("rows waited s", "1.5 s", "1.5 s", "1.5 s"),
        ("disk reads a step", "1,234.5", "1,234.5", "1,234.5"),
    ]


def test_bars_are_of_the_highest() -> None:
    found = bars("rank: seconds", {"0": [1.0, 1.0], "1": [3.0, 1.0]}, ("a", "b"), "{:.1f} s".format)
    assert [column.heights for column in found.columns] == [[25.0, 25.0], [75.0, 25.0]]
    assert (found.most, found.columns[1].says, found.every) == ("4.0 s", "rank 1: a 3.0 s, b 1.0 s", 1)
    assert bars("rank: x", {str(i): [0.0] for i in range(64)}, ("",), str).every == 8
    assert ranges([7, 0, 1, 2, 3]) == "0 to 3, 7"


def test_no_name_breaks_out_of_the_page(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": 0.5, f"validation_{HOSTILE}_auc": 0.5} for step in (1, 2)]
    lines += [{"step": step, f"validation_a:{HOSTILE}": 0.5} for step in (1, 2)]
    config = f"[data]\nfeatures = [{json.dumps(HOSTILE)}]\n[model]\nname = {json.dumps(HOSTILE)}\n"
    told = summary_of(
        4,
        error=f"{HOSTILE}\n{HOSTILE}",
        advice=[HOSTILE],
        status="failed",
        versions={HOSTILE: HOSTILE},
        wire_bytes={HOSTILE: {"same_host": 1, "cross_host": 1}},
        dynamic_tables={HOSTILE: summary()["dynamic_tables"]["user"]},
    )
    runs = [read(write_run(tmp_path / name, config=config, lines=lines, summary=told)) for name in ("a", "b")]
    runs[1] = Ran(**{**vars(runs[1]), "name": HOSTILE, "state": HOSTILE})
    for of in (runs, runs[:1]):
        text = page(of)
        found = Page(text)
        assert found.open == [] and found.loads == [] and len(found.scripts) == 3
        assert not {"img", "onerror"} & {*found.tags, *found.attributes}
        assert found.tags.count("b") == sum(text.count(f"<b>{i}</b>") for i in range(4))  # numbers under bars
        said = {name: [curve["name"] for curve in chart["curves"]] for name, chart in found.charts.items()}
        assert f"a:{HOSTILE}" in said and any(HOSTILE in name for name in said["auc"])
        assert HOSTILE in "".join(found.texts)


def test_several_runs_lie_over_each_other(tmp_path: Path) -> None:
    lines = lines_of(20, eval_every=10)
    one = write_run(tmp_path / "one", lines=lines, summary=summary_of(4, versions={"torch": "2.1", "mpi": "5"}))
    two = write_run(
        tmp_path / "two",
        config='[train]\nbatch_size = 512\n[policy]\nname = "hybrid"\n[run]\nfolder = "two"\n',
        lines=lines[:12],
        summary=summary_of(4, status="stopped", versions={"torch": "2.2", "mpi": "5"}),
    )
    found = Page(page([read(one), read(two)]))
    curves = [(curve["name"], curve["run"], curve["thin"]) for curve in found.charts["auc"]["curves"]]
    assert curves == [
        ("one, training", 0, True),
        ("one, validation", 0, False),
        ("two, training", 1, True),
        ("two, validation", 1, False),
    ]
    assert found.charts["auc"]["levels"] == [["attainable", 0.8]]
    assert [curve["name"] for curve in found.charts["samples/s"]["curves"]] == ["one", "two"]
    for shown in (
        "one two status finished stopped",
        "Differences of configuration one two train.batch_size 256 512 policy.name not set hybrid",
        "Differences of versions one two torch 2.1 2.2",
        "No differences of topology. Curves by",
        "one: all that is known",
    ):
        assert shown in found.text, shown
    assert "run.folder" not in found.text.partition("Differences of versions")[0]


def test_what_a_run_under_way_has_not_written_is_no_difference(tmp_path: Path) -> None:
    ended = [read(write_run(tmp_path / name, summary=summary(versions={"torch": name}))) for name in ("a", "b")]
    open_run = read(write_run(tmp_path / "open", lines=lines_of(20)))
    text = Page(page([ended[0], open_run])).text
    assert "No differences of configuration." in text and "versions." not in text
    assert (
        "Differences of versions a b torch a b No differences of configuration and topology."
        in Page(page([*ended, open_run])).text
    )


def test_differences_are_of_values_and_of_their_types() -> None:
    a: dict[str, Any] = {"x": {"same": 1, "other": 1, "kind": 1, "list": [1, 2]}, "only": True}
    b: dict[str, Any] = {"x": {"same": 1, "other": 2, "kind": 1.0, "list": [1, 3]}, "long": "y" * 500}
    assert differences([a, b]) == [
        ("x.other", "1", "2"),
        ("x.kind", "1", "1.0"),
        ("x.list", "[1, 2]", "[1, 3]"),
        ("only", "true", "not set"),
        ("long", "not set", "y" * 400 + "... (500 characters)"),
    ]
    assert differences([a, a, a]) == []


def test_a_run_under_way_and_one_that_failed_say_so(tmp_path: Path) -> None:
    open_run = write_run(tmp_path / "open", lines=lines_of(30, eval_every=10))
    with (open_run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 31, "lo')  # is being written
    text = Page(page([read(open_run)])).text
    last = "Its last line is of 2023-11-14 22:13:50 UTC."
    assert f"open running It is running: this page shows what it has written so far. {last}" in text
    assert "step 30 so far" in text and "1 line of metrics.jsonl of open is not whole and left out." in text
    told = summary(
        status="failed", error="rank 1: the disk is full\nmore of it", ended={"by": "error", "total_steps": 9}
    )
    failed = write_run(tmp_path / "failed", summary=told)
    text = Page(page([read(failed)])).text
    assert "failed failed Error, after step 100 of 9. rank 1: the disk is full More of the error more of it" in text


def test_advice_stands_on_top(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", summary=summary(advice=["Take 3 owners: they are waited for."]))
    text = Page(page([read(run)])).text
    assert "Advice Take 3 owners: they are waited for. auc 0.7900" in text
    slow = "Slow rank 1 on node<7> (owner): 2.0 times the median of its role for its work Advice"
    assert slow in text
    assert "Slow" not in Page(page([read(write_run(tmp_path / "even", summary=summary(slow_ranks=[])))])).text


def test_copies_have_a_section_where_there_are_some() -> None:
    counted = {"reads": 1000, "copies_read": 930, "misses": 50, "too_old": 20, "pushed_age": 40}
    told = summary(copies={**counted, "missing": {"0": 750, "1": 250}, "missing_ticks": 250})
    sections = {
        of.title: of.items for of in sections_of(Ran(name="r", folder=Path("r"), state="finished", summary=told))
    }
    (table,) = sections["Copies of rows on dense ranks"]
    assert table.rows == [  # type: ignore[union-attr]
        ("copies", "93.0% of 1,000 reads"),
        ("copies: rows sent", "50 missed, 20 too old"),
        ("copies: rows pushed", "40 by age"),
        ("copies: reads", "75.0% lack 0, 25.0% lack 1 ticks"),
    ]


def test_steps_that_waited_are_told_by_what_for(tmp_path: Path) -> None:
    parts = {
        "forward": (5.5, 0.0, 0.0),
        "values": (0.0, 2.5, 0.0),
        "dense_reduce": (0.0, 1.5, 0.0),
        "load_wait": (0.0, 0.5, 0.0),
    }
    ran = summary_of(4, time=times_of({0: ("fused", Times(10.0, parts, 0.0, {}))}))
    text = Page(page([read(write_run(tmp_path / "run", summary=ran))])).text
    said = "What a step waited for rows 25.0 % dense sums 15.0 % data 5.0 % the rest is computing:"
    assert f"{said} 55.0% the model, 0.0% rows, 0.0% other" in text


def test_ten_thousand_steps_on_64_ranks_are_a_small_page(tmp_path: Path) -> None:
    labels = {f"validation_label{i}_auc": 0.5 + i / 100 for i in range(6)}
    lines = lines_of(10_000, eval_every=10, **labels)
    run = write_run(tmp_path / "run", lines=lines, summary=summary_of(64))
    began_s = time.process_time()
    path = write_page([read(run)], tmp_path / "page.html")
    assert time.process_time() - began_s < 5
    assert 100_000 < path.stat().st_size <= MOST_BYTES
    found = Page(path.read_text())
    (loss,) = found.charts["loss"]["curves"]
    values = [line["loss"] for line in lines if "loss" in line]
    assert len(loss["step"]) <= 2000 and loss["step"][-1] == 10_000
    assert (min(loss["value"]), max(loss["value"])) == pytest.approx((min(values), max(values)), rel=1e-5)
    assert "Curves are thinned: of each no more than 2,000 points are drawn" in found.text
    several = write_page([read(run)] * 4, tmp_path / "several.html")
    assert several.stat().st_size <= 2 * MOST_BYTES


@pytest.mark.parametrize(
    "wrong", [{"throughput": {"0": 7}}, {"time": {"0": 7}}, {"owners": {"0": 7}}, {"eval": {"auc": "x"}}], ids=str
)
def test_a_summary_of_another_shape_is_refused_by_the_folder(tmp_path: Path, wrong: dict[str, Any]) -> None:
    run = read(write_run(tmp_path / "run", summary=summary(**wrong)))
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'run'}: files hold something else than this release")):
        page([run])


@pytest.mark.slow
def test_a_wheel_has_what_the_page_is_made_of(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-Cwheel.cmake=false"]
    subprocess.run([*line, "-q", "-w", tmp_path], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("hpcrec/report_page/")}
    parts = (
        "base.html",
        "runs.html",
        "items.html",
        "towers.html",
        "page.css",
        "page.js",
        "uplot/uPlot.iife.min.js",
        "uplot/uPlot.min.css",
        "uplot/LICENSE",
    )
    assert {f"hpcrec/report_page/{part}" for part in parts} <= names
