"""docs/mistakes.md, of the list of mistakes and of what is really said: ``python -m tests.first_hour.table``.

Paths of the folder that the mistakes are made in become those of a user's; what depends on an installed version is left
out.
"""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.first_hour.caught import Tried, try_all
from tests.first_hour.mistakes import MISTAKES, Mistake

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mistakes.md"
_HEAD = """\
# Mistakes of a first hour

What hpcrec says to {of} mistakes that users make, those of other libraries of the kind among them. What can be known
before ranks start is told before any is started: `hpcrec run` looks at the configuration, the data sets, the model and
the checkpoint to go on from, where the ranks will be on this host, and `hpcrec config check` says the same anywhere,
but of GPUs.
Each message names the key, option or column, what was found there, and what to write.

`tests/first_hour/test_mistakes.py` makes each mistake and holds the message to that; this page is written by
`python -m tests.first_hour.table > docs/mistakes.md`. [bad_input.md](bad_input.md) has input of every wrong kind.

| what was done | told | exit status | what is said |
|---|---|---|---|
"""
_SAID = re.compile(r"^(?:hpcrec: error: |Error: |hpcrec\.errors\.(?=\w+: ))(.*)$", re.MULTILINE)


def page(found: Mapping[str, Tried], folder: Path) -> str:
    """The page, of how every mistake was met in ``folder``."""
    rows = [_row(mistake, found[name].said, folder) for name, mistake in MISTAKES.items()]
    return _HEAD.format(of=len(MISTAKES)) + "".join(rows)


def _row(mistake: Mistake, said: str, folder: Path) -> str:
    line = next(iter(_SAID.findall(said)), said.strip())
    line = line.replace(str(folder), "/data/me").replace(str(Path.home()), "/home/me")
    line = re.sub(r"\btorch \d[\w.+]*", "torch", line)
    told = f"later: {mistake.later}" if mistake.later else "before ranks start"
    status = "an error is raised" if mistake.script else str(mistake.status)
    cells = (mistake.did, told, status, line)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hpcrec-mistakes-") as place:
        print(page(try_all(Path(place)), Path(place)), end="")
