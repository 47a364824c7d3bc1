"""What a user sees of ``hpcrec run -n 2 -- train``: a live bar on a terminal, whole lines in a log, then one screen."""

from pathlib import Path

import pytest

from hpcrec.launcher.mpirun import Launch, mpirun_line
from tests.docs.pages import ROOT, blocks
from tests.launcher.screens import COLUMNS, LINES, STEPS, bars, page, record, shapes, stands

PAGE = "docs/screens.md"


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
