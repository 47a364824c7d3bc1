"""tools/docs.py: a site that would load anything over the network is refused, and so is one without a public name."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT, RUN, SHOWN, SITE, blocks, paths

CDN = "https://cdn.example/"
LOADED = {  # element, and what it loads
    f'<script src="{CDN}a.js"></script>': f"{CDN}a.js",
    '<script src="//cdn.example/a.js"></script>': "//cdn.example/a.js",
    f'<link rel="stylesheet" href="{CDN}a.css">': f"{CDN}a.css",
    f'<img src="{CDN}a.png" alt="">': f"{CDN}a.png",
    f"<style>@font-face {{ src: url('{CDN}a.woff2') }}</style>": f"{CDN}a.woff2",
    f'<p style="background: url({CDN}a.png)">a</p>': f"{CDN}a.png",
    f'<script>import("{CDN}a.js")</script>': f"{CDN}a.js",
    f'<svg><image href="{CDN}a.png"/></svg>': f"{CDN}a.png",
}
NOT_LOADED = (
    f'<a href="{CDN}">a link</a>',
    '<script src="_static/a.js"></script>',
    '<img src="data:image/png;base64,AA==" alt="">',
    '<svg xmlns="http://www.w3.org/2000/svg"></svg>',
    f"<code>url({CDN[:0]}a.png)</code>",
    f'<link rel="canonical" href="{CDN}">',
)


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_tool"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("element", LOADED)
def test_what_a_page_loads_over_the_network_is_found(docs: ModuleType, tmp_path: Path, element: str) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.html").write_text(f"<html><body>{element}</body></html>")
    assert list(docs.remote(tmp_path)) == [f"deep/a.html loads {LOADED[element]}"]


def test_what_styles_scripts_and_pictures_load_is_found(docs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text(f'@import "{CDN}b.css"; a {{ background: url( "{CDN}b.png" ) }}')
    (tmp_path / "b.js").write_text(f'/*! see {CDN}licence */ fetch("{CDN}b.json")')
    (tmp_path / "c.svg").write_text(f'<svg><style>text {{ src: url("{CDN}b.woff") }}</style></svg>')
    assert list(docs.remote(tmp_path)) == [
        f"a.css loads {CDN}b.css",
        f"a.css loads {CDN}b.png",
        f"b.js loads {CDN}b.json",
        f"c.svg loads {CDN}b.woff",
    ]


@pytest.mark.parametrize("element", NOT_LOADED)
def test_links_and_files_of_the_site_are_let_be(docs: ModuleType, tmp_path: Path, element: str) -> None:
    (tmp_path / "a.html").write_text(f"<html><body>{element}</body></html>")
    assert list(docs.remote(tmp_path)) == []


def test_a_public_name_without_an_entry_is_found(docs: ModuleType, tmp_path: Path) -> None:
    entries = [f'<dt id="hpcrec.{name}">' for name in docs.hpcrec.__all__ if name != "launch"]
    (tmp_path / "api.html").write_text("\n".join(entries))
    assert docs.left_out(tmp_path) == ["launch"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing(docs: ModuleType, tmp_path: Path) -> None:
    assert docs.build(tmp_path) == 0
    assert list(docs.remote(tmp_path / "html")) == [] == docs.left_out(tmp_path / "html")
    assert len(list((tmp_path / "html").glob("*.html"))) > 25


def test_every_block_says_what_it_is() -> None:
    """Code that is run, or what is shown: a block without a language would be neither."""
    found = [
        f"{block}: {block.language or 'no language'}"
        for page in paths()
        for block in blocks(page, (ROOT / page).read_text())
        if block.language not in (*RUN, *SHOWN, *SITE)
    ]
    assert not found
