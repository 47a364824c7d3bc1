"""A commit built beside this checkout, with an environment of its own, and the commands that run in either of them."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from _report import ROOT, commit_here
from speed_parts.launch import threads_of


@dataclass(frozen=True)
class Checkout:
    """A folder with the source of one commit, and the environment in which it is installed."""

    commit: str
    root: Path
    bin: Path

    def on_ranks(self, ranks: int, script: Path, *words: object) -> list[str]:
        """The command that runs a program on so many ranks.

        By the installed command, not by ``python -m hpcrec``, which would find the package of the current folder.
        """
        start = [str(self.bin / "hpcrec"), "run", "-n", str(ranks), "--threads", str(threads_of(ranks)), "--"]
        return [*start, str(script), *map(str, words)]

    def alone(self, script: Path, *words: object) -> list[str]:
        """The command that runs a program in one process, without MPI."""
        return [str(self.bin / "python"), str(script), *map(str, words)]

    def check(self, package: str) -> None:
        """Ends the benchmark where a program ran another checkout's package."""
        if not Path(package).is_relative_to(self.root):
            sys.exit(f"house: the runs of {self.commit} found hpcrec in {package}, which is not below {self.root}")


def this() -> Checkout:
    """The checkout that this file is in."""
    return Checkout(commit_here(), ROOT, Path(sys.executable).parent)


def folder_of(wanted: str) -> tuple[str, Path]:
    """The whole name of a commit, and where its checkout is kept."""
    found = git("rev-parse", "--verify", f"{wanted}^{{commit}}").strip()
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    return found, cache / "hpcrec" / "house" / found[:12]


def beside(wanted: str, *, build: bool) -> Checkout | None:
    """The commit's checkout: cloned and set up by its own ``make setup`` unless it is there; None if it may not be."""
    whole, root = folder_of(wanted)
    ready = root / ".venv" / ".house-ready"
    if not ready.exists():
        if not build:
            return None
        print(f"house: {wanted} is built in {root}, which takes some minutes the first time", flush=True)
        if not (root / ".git").exists():
            root.parent.mkdir(parents=True, exist_ok=True)
            git("clone", "--quiet", "--no-checkout", str(ROOT), str(root))
        git("-C", str(root), "checkout", "--quiet", "--detach", whole)
        kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "MAKEFLAGS")}
        done = subprocess.run(
            ["make", "-C", str(root), "setup"], capture_output=True, text=True, check=False, env=kept
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"house: make setup of {wanted} failed in {root}\n{(done.stdout + done.stderr)[-3000:]}")
        ready.touch()
    return Checkout(whole[:7], root, root / ".venv" / "bin")


def git(*words: str) -> str:
    """What git said; ends the benchmark where it fails."""
    done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"house: git {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout
