"""The page in a browser: nothing wider than the window, no word on the console, no request, in any size and theme."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from hpcrec.report_page.folder import Ran, read_run
from hpcrec.report_page.page import write_page
from hpcrec.report_page.towers import write_towers
from tests.counts import keep_counts
from tests.report_page.made import HOSTILE, lines_of, planned, summary_of, write_run
from tests.training.test_telemetry import summary

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, PROGRAMS)), None)
WIDTHS = (360, 800, 1400)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; tools/browser.sh install"),
]
WIDER = """() => [...document.querySelectorAll("body *")]
    .filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
    .filter((e) => /auto|scroll/.test(getComputedStyle(e).overflowX))
    .map((e) => e.tagName + "." + e.className)"""
BEYOND = """() => [...document.querySelectorAll("main *")]
    .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map((e) => e.tagName + "." + e.className + ": " + e.textContent.slice(0, 40))"""
OUT_PX = """() => Math.max(
    document.documentElement.scrollWidth - document.documentElement.clientWidth,
    ...[...document.querySelectorAll("main *")]
        .map((e) => e.getBoundingClientRect().right - document.documentElement.clientWidth),
)"""
PAINTED = """() => [...document.querySelectorAll(".chart canvas")].map((canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const colors = new Set();
    for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 200) colors.add(data.slice(i, i + 3).join());
    return colors.size;
})"""


LOOKS: list[dict[str, Any]] = []  # how far anything stood out of the window in each, for benchmarks/first_hour.py


@pytest.fixture(scope="module", autouse=True)
def kept_looks() -> Iterator[None]:
    yield
    keep_counts("pages", {"looks": LOOKS})


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of a large run, of several with hostile names, of one under way, and of one that failed."""
    folder = tmp_path_factory.mktemp("pages")
    wide = 'features = ["a_feature_of_a_name_without_a_break_' + "x" * 120 + '"]\n'
    config = f"[train]\nbatch_size = 256\n[data]\ntrain = '/a/long/path/{'to/' * 40}data.h5'\n{wide}"
    large = write_run(folder / "large", config=config, lines=lines_of(10_000), summary=summary_of(64))
    hostile = [{**line, f"validation_{HOSTILE}_auc": 0.5 + line["step"] / 1000} for line in lines_of(60, eval_every=20)]
    told = summary_of(8, versions={HOSTILE: HOSTILE}, advice=[HOSTILE])
    other = write_run(folder / "other", config='[policy]\nname = "hybrid"\n', lines=hostile, summary=told)
    open_run = write_run(folder / ("a_name_without_a_break_" * 5), lines=lines_of(40, eval_every=10))
    error = f"rank 3: {'x' * 200}\n{HOSTILE}"
    failed = write_run(folder / "failed", summary=summary(status="failed", error=error, advice=["Lower the rate."]))

    def read(run: Path) -> Ran:
        return read_run(run, HOSTILE if run == other else run.name, lambda _: "running")

    write_towers(folder / "towers.html", *planned(16, 4, HOSTILE + "_without_a_break" * 8))
    runs = {"large": [large], "several": [large, other, open_run], "open": [open_run], "failed": [failed]}
    runs["many"] = [large, other] * 4
    found = {name: write_page([read(run) for run in of], folder / f"{name}.html") for name, of in runs.items()}
    return {**found, "towers": folder / "towers.html"}


@pytest.fixture
def opened(browser: Browser) -> Iterator[Any]:
    """Opens a page; at the end it has said nothing on the console, and asked for no other file."""
    said, asked, contexts = list[str](), list[str](), list[Any]()

    def open_page(path: Path, width: int = 800, theme: str = "light") -> Page:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme))
        page: Page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_timeout(100)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert len(asked) == len(contexts) and all(url.startswith("file://") for url in asked), asked


def fits(page: Page, **about: Any) -> None:
    LOOKS.append({**about, "overflow_px": max(0.0, round(page.evaluate(OUT_PX), 2))})
    widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert widths[0] <= widths[1]
    assert page.evaluate(WIDER) == [] and page.evaluate(BEYOND) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["large", "several", "many", "open", "failed", "towers"])
def test_it_fits_says_nothing_and_asks_for_nothing(
    pages: dict[str, Path], opened: Any, name: str, width: int, theme: str
) -> None:
    page = opened(pages[name], width, theme)
    about = {"shown": name, "width": width, "theme": theme}
    fits(page, **about)
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true })")
    page.wait_for_timeout(100)
    fits(page, **about, unfolded=True)
    painted = page.evaluate(PAINTED)
    assert len(painted) == page.locator("[data-chart]").count() == (0 if name in ("failed", "towers") else 7)
    assert all(colors > 3 for colors in painted)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}[theme]


def test_curves_go_by_time_too_from_the_keyboard(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["open"])
    before = page.locator(".u-series:first-child .u-label").first.text_content()
    page.locator("input[value=step]").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("input[value=time]").is_checked()
    assert (before, page.locator(".u-series:first-child .u-label").first.text_content()) == ("step", "s")
    assert page.locator(".chart .uplot").count() == page.locator("[data-chart]").count()  # drawn anew, not beside


def test_a_pointer_is_told_the_values_of_every_curve(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["open"], 1400)
    chart = page.locator("[data-chart='1'] .u-over")  # auc: of every step, and of every tenth
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 20)
    page.wait_for_timeout(100)
    told = page.locator("[data-chart='1'] .u-value").all_text_contents()
    assert told[0] == "40" and len(told) == 3 and all(0.6 < float(value) < 0.8 for value in told[1:])


def test_no_name_becomes_a_part_of_the_page(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["several"])
    assert page.locator("img").count() == 0 and page.locator("script").count() == 3
    assert (
        HOSTILE in page.locator(".u-legend").all_text_contents()[1]
        and HOSTILE in page.locator("h1").nth(1).inner_text()
    )


def test_in_print_it_is_light_whole_and_fits(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["several"], 700, "dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.wait_for_timeout(100)
    fits(page, shown="several", width=700, print=True)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("details:not(.numbers):not([open])").count() == 0
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0
    assert len(page.pdf(format="A4")) > 50_000


def test_charts_have_words_for_who_does_not_see_them(pages: dict[str, Path], opened: Any) -> None:
    page = opened(pages["large"])
    unnamed = "[...document.querySelectorAll('[role=img]')].filter((e) => !e.getAttribute('aria-label')).length"
    assert page.evaluate(unnamed) == 0
    label = page.locator("[data-chart='0']").get_attribute("aria-label")
    assert label.startswith("loss. training: from 0.7")
    heads = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((e) => e.tagName)")
    assert heads[0] == "H1" and heads.count("H1") == 1
