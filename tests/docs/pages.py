"""Blocks of code of the pages: what they are, and running those of one page in their order, in one folder.

Of a block's fence the language says what is done with it: ``python`` is run, and has to print what a ``text`` block
right behind it shows; of ``console`` lines that begin with ``$`` are run, and have to print what stands below them;
``sh`` is run. What is shown may leave out parts as ``...``, by the rules of ``doctest``. All else is not run. Knows
nothing of what the pages say.
"""

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FENCE = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = ("console", "python", "sh")
SHOWN = ("json", "text", "toml")
SITE = ("{eval-rst}", "{include} ../README.md", "{toctree}")  # directives of the site's own pages
MARK = "--- end of a block"
# Reads the code of a block as its repr, a line each, and runs it among the names of those before it.
INTERPRETER = f"""
def _blocks():
    import ast, sys, traceback
    for line in sys.stdin:
        status = 0
        try:
            exec(compile(ast.literal_eval(line), "<block>", "exec"), globals())
        except BaseException:
            traceback.print_exc()
            status = 1
        print("\\n{MARK}", status, flush=True)
_blocks()
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: ``line`` is that of its first fence, ``shown`` what is said to be printed by a Python block."""

    page: str
    line: int
    language: str
    text: str
    shown: str | None

    @property
    def key(self) -> tuple[str, str]:
        """Page and first line, less its comment: they name it in lists."""
        return self.page, re.sub(r"\s+#.*", "", self.text.partition("\n")[0])

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def paths() -> list[str]:
    """Every page, from the root of the checkout."""
    patterns = ("README.md", "CONTRIBUTING.md", "docs/*.md", "examples/*/README.md", "datasets/*/README.md")
    return [str(path.relative_to(ROOT)) for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def blocks(page: str, text: str) -> Iterator[Block]:
    """Those of a page."""
    found = list(FENCE.finditer(text))
    for one, after in zip_longest(found, found[1:]):
        behind = after is not None and after["language"] == "text" and not text[one.end() : after.start()].strip()
        shown = after["text"] if after is not None and behind and one["language"] == "python" else None
        yield Block(page, text.count("\n", 0, one.start()) + 1, one["language"], one["text"], shown)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands of a ``console`` block, each with what is shown below it."""
    command, shown = "", ""
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        elif not command:
            raise ValueError(f"a console block begins with a command ($ ...), not with {line!r}")
        elif command.endswith("\\\n"):
            command += line
        else:
            shown += line
    yield command, shown


def check(shown: str, printed: str) -> None:
    """Fails where something else was printed than is shown; columns may be set further apart."""
    shown, printed = ("".join(" ".join(line.split()) + "\n" for line in text.splitlines()) for text in (shown, printed))
    if not doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS):
        raise AssertionError(f"the page shows\n{shown}\nand this was printed:\n{printed}")


@dataclass
class Reading:
    """Somebody who reads a page and does what it says, in a folder."""

    folder: Path
    done: int = 0  # blocks
    failed: str = ""
    _python: subprocess.Popen[str] | None = None

    def up_to(self, blocks: Sequence[Block], last: Block) -> None:
        """Runs what has not been run, up to a block. Where one has failed, those after it do."""
        for block in blocks[self.done : blocks.index(last) + 1]:
            if self.failed:
                raise AssertionError(f"{self.failed} comes before, and has failed")
            self.failed = str(block)
            self.run(block)
            self.done, self.failed = self.done + 1, ""

    def run(self, block: Block) -> None:
        """One block, held to what the page shows of it."""
        if block.language == "python":
            printed = self.python(block.text)
            if block.shown is not None:
                check(block.shown, printed)
        elif block.language == "sh":
            self.command(block.text)
        else:
            for command, shown in commands(block.text):
                printed = self.command(command)
                if shown:
                    check(shown, printed)

    def command(self, text: str) -> str:
        """What a command prints, errors too; its status has to be 0."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, f"{text} ended with status {done.returncode}:\n{done.stdout}"
        return done.stdout

    def python(self, code: str) -> str:
        """What a block prints, in the process of those before it."""
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-u", "-c", INTERPRETER],
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(repr(code) + "\n")
        self._python.stdin.flush()
        printed = ""
        for line in self._python.stdout:
            if line.startswith(MARK):
                assert line == f"{MARK} 0\n", f"the block has raised an error; it printed\n{printed}"
                return printed.removesuffix("\n")
            printed += line
        raise AssertionError(f"the process of the page's blocks has ended; the last one printed\n{printed}")

    def close(self) -> None:
        """Ends its Python."""
        if self._python is not None:
            self._python.communicate()
