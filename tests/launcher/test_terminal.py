"""What a user sees of ``hpcrec run -n 2 -- train``: a live bar on a terminal, whole lines in a log, then one screen."""

import sys
from pathlib import Path

import pytest

from hpcrec.launcher.found import flavour_of, version_text
from hpcrec.launcher.mpirun import Launch, mpirun_line
from tests.docs.pages import ROOT, blocks
from tests.launcher.screens import (
    COLUMNS,
    LINES,
    STEPS,
    bars,
    in_a_log,
    on_a_terminal,
    page,
    record,
    shapes,
    stands,
)

PAGE = "docs/screens.md"
FOUR_STEPS = """
import os, sys, time
from hpcrec.training.bar import BAR_EVERY_S, Bar, columns_above
bar = Bar(sys.stderr, columns=columns_above(os.getppid()), total_steps=4)
for _ in range(4):
    time.sleep(BAR_EVERY_S)
    bar.step()
bar.close()
"""


@pytest.fixture(scope="module")
def recorded() -> tuple[str, str]:
    return record()


def test_a_terminal_has_a_bar_that_moves(recorded: tuple[str, str]) -> None:
    drawn = bars(recorded[0])
    seen = {one.partition(f"/{STEPS}")[0].split()[-1].rpartition("|")[2] for one in drawn}
    assert len(seen) > 2 and str(STEPS) in seen, recorded[0]
    assert all(len(one) <= COLUMNS for one in drawn) and any("loss " in one for one in drawn)


def test_a_log_has_whole_lines(recorded: tuple[str, str]) -> None:
    assert "\r" not in recorded[1]
    lines = [line for line in recorded[1].splitlines() if line.startswith("step ")]
    lines = [line for line in lines if " of " in line]
    assert lines[0].startswith(f"step 1 of {STEPS}, ") and lines[-1].startswith(f"step {STEPS} of {STEPS}, loss ")
    for word in ("train_auc", "samples/s", "waiting", "memory", "left"):
        assert word in lines[-1]


def test_the_end_is_one_screen_as_the_page_has_it(recorded: tuple[str, str]) -> None:
    """On a terminal and in a log: the same rows of the same words, no line cut, labels by their names."""
    shown = [block.text.splitlines() for block in blocks(PAGE, (ROOT / PAGE).read_text())]
    for said, of_page in zip(recorded, shown[1:], strict=True):
        lines = stands(said)
        assert shapes(lines) == shapes(of_page)
        end = lines[lines.index(next(line for line in lines if line.startswith("status"))) :]
        assert len(end) < LINES and max(map(len, end[: end.index("")])) <= COLUMNS
        time = end[[line.startswith("time ") for line in end].index(True) :]
        assert {"steps", "set-up"} <= {line.split()[0] for line in time[1:] if line.startswith("  ")}
        assert end[end.index("") + 1], "a sentence on what held steps up, or that it cannot be told"


def test_the_page_is_of_a_run_as_these(recorded: tuple[str, str]) -> None:
    words = [block.text for block in blocks(PAGE, (ROOT / PAGE).read_text())]
    text, now = (ROOT / PAGE).read_text(), page(*recorded)
    for block in words:
        text = text.replace(block, "")
    for block in blocks(PAGE, now):
        now = now.replace(block.text, "")
    assert text == now, "python -m tests.launcher.screens > docs/screens.md"


def test_the_word_of_a_terminal_goes_to_other_hosts_too(tmp_path: Path) -> None:
    launch = Launch(mpirun="mpirun", flavour="openmpi", ranks=2, cores=2)
    line, _ = mpirun_line(launch, ["hpcrec"], {"HPCREC_TERMINAL": "80"})
    assert "-x HPCREC_TERMINAL" in " ".join(line)
    assert "HPCREC_TERMINAL" not in " ".join(mpirun_line(launch, ["hpcrec"], {})[0])


def test_under_a_plain_mpirun_too(tmp_path: Path) -> None:
    """The terminal is the launcher's, which says nothing of it; where it writes to none, or marks lines, lines."""

    def line(*options: str) -> list[str]:
        return ["mpirun", *options, "-n", "1", sys.executable, "-c", FOUR_STEPS]

    drawn = on_a_terminal(line(), tmp_path).split("\r")
    assert [one.split("/4")[0][-1] for one in drawn if "/4" in one][:5] == list("01234")
    assert max(len(one.rstrip("\n")) for one in drawn) == COLUMNS and drawn[-1].endswith("\n"), drawn
    for said in (in_a_log(line(), tmp_path), on_a_terminal(["sh", "-c", '"$@" 2>&1 | cat', "sh", *line()], tmp_path)):
        assert "\r" not in said and "step 1 of 4, " in said and "step 4 of 4, " in said
    tagged = ("--output", "tag") if flavour_of(version_text("mpirun")) == "openmpi" else ("-prepend-rank",)
    assert "%|" not in on_a_terminal(line(*tagged), tmp_path)
