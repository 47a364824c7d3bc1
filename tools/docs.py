#!/usr/bin/env python
"""Builds the pages of docs/ as a site, in build/docs/html, and fails on any warning of Sphinx.

It also fails where a page of the site would load something over the network (a script, a style, a font, an image), or
where its interface to Python lacks a public name. Links to other sites are links, and load nothing.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import hpcrec

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "build" / "docs"
REMOTE = re.compile(r"\s*(?:[a-z]+:)?//", re.IGNORECASE)
# What a style sheet loads; names of XML are addresses that nothing is loaded from.
IN_STYLES = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:[a-z]+:)?//[^"')]+)""", re.IGNORECASE)
IN_SCRIPTS = re.compile(r"""(?:import\s*\(?|fetch\(|importScripts\(|\.src\s*=)\s*["'`]((?:[a-z]+:)?//[^"'`]+)""")


class Loads(HTMLParser):
    """What a page of HTML loads from elsewhere: addresses of the elements that load one, and of styles in it."""

    def __init__(self) -> None:
        super().__init__()
        self.remote: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """All that an element loads: its src and the like, and the href of what is no link for a reader."""
        named = dict(attrs)
        for name in ("src", "srcset", "poster", "data", *(["href"] if tag not in ("a", "area") else [])):
            value = named.get(name) or ""
            if REMOTE.match(value) and not (tag == "link" and named.get("rel") == "canonical"):
                self.remote.append(value)
        self.handle_data(named.get("style") or "")

    def handle_data(self, data: str) -> None:
        """Styles and scripts that stand in the page; of its text nothing is loaded."""
        if self.cdata_elem in ("style", "script") or "url(" in data:
            self.remote += IN_STYLES.findall(data) + IN_SCRIPTS.findall(data)


def loads(path: Path) -> list[str]:
    """Addresses that a file of the site loads something from."""
    text = path.read_text(errors="replace")
    if path.suffix in (".html", ".svg"):
        page = Loads()
        page.feed(text)
        return page.remote
    return IN_STYLES.findall(text) if path.suffix == ".css" else IN_SCRIPTS.findall(text)


def remote(folder: Path) -> Iterator[str]:
    """Each file of a built site that loads something over the network, with what."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".html", ".css", ".js", ".svg"):
            yield from (f"{path.relative_to(folder)} loads {address}" for address in loads(path))


def left_out(folder: Path) -> list[str]:
    """Public names that the built page of the Python interface has no entry of."""
    text = (folder / "api.html").read_text()
    return [name for name in hpcrec.__all__ if f'id="hpcrec.{name}"' not in text]


def build(folder: Path) -> int:
    """Builds the site; the status of Sphinx, which is not 0 where it warned."""
    sphinx = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-n", "-W", "--keep-going"]
    # All pages anew: those that are up to date would not warn again.
    folders = ["-d", folder / "doctrees", ROOT / "docs", folder / "html"]
    return subprocess.run([*sphinx, "-E", *folders], check=False).returncode


def main() -> None:
    """Builds the site and checks it."""
    status = build(BUILT)
    if status:
        sys.exit(status)
    site = BUILT / "html"
    wrong = [*remote(site), *(f"api.html lacks hpcrec.{name}: add it to docs/api.md" for name in left_out(site))]
    if wrong:
        sys.exit("\n".join(f"docs: {line}" for line in wrong))
    print(f"docs: {len(list(site.glob('*.html')))} pages: {(site / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
