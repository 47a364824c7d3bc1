"""What is shown of a run while it trains: a bar on a terminal, lines elsewhere, and what is known in either."""

import io
import os
import pty
import re
import termios
from collections.abc import Iterator

import pytest

from hpcrec.errors import ConfigError
from hpcrec.training.bar import BAR_EVERY_S, COLUMNS, LINE_EVERY_S, Bar, columns_at, columns_told

PARTS = {  # worked, waited and idle; checkpoints are between steps
    "forward": (1.5, 0.0, 0.0),
    "values": (0.5, 0.5, 0.0),
    "agree": (0.0, 0.75, 0.0),
    "load_wait": (0.0, 0.75, 0.0),
    "checkpoint": (3.0, 9.0, 0.0),
}


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_a_log_gets_whole_lines_now_and_then_with_all_that_is_known() -> None:
    stream, clock = io.StringIO(), Clock()
    bar = Bar(stream, first_step=10, total_steps=200, parts=lambda: PARTS, clock=clock)
    bar.show({"loss": 0.25, "validation_auc": 0.75, "note": "text", "wire_bytes_per_step": 1_540_000, "epoch": 1.5})
    bar.show({"samples_per_s": 12_345.6})
    for _ in range(70):
        clock.now_s += 1.0
        bar.step()
    bar.close()
    bar.close()
    said = stream.getvalue()
    assert said.endswith("\n") and "\r" not in said
    lines = said.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"step {n} of 200" for n in (11, 41, 71, 80)]
    first, *_, last = lines
    shown = "loss 0.2500, validation_auc 0.7500, samples/s 12,346, waiting 50%, memory "
    assert f"step 11 of 200, {shown}" in first and first.endswith("MB, sent 1.54 MB/step, 3 min left")
    assert last.endswith("2 min left"), "120 steps of a second each"


def test_a_line_says_nothing_of_what_is_not_known() -> None:
    stream = io.StringIO()
    bar = Bar(stream, clock=Clock())
    bar.step()
    bar.close()
    first, *rest = stream.getvalue().split(", ")
    assert first == "step 1" and [name.split()[0] for name in rest] == ["memory"]


def test_a_bar_moves_and_keeps_to_the_width_that_it_is_told() -> None:
    stream, clock = io.StringIO(), Clock()
    bar = Bar(stream, columns=60, total_steps=4, parts=lambda: PARTS, clock=clock)
    for _ in range(4):
        clock.now_s += 2 * BAR_EVERY_S
        bar.show({"loss": 0.25})
        bar.step()
    bar.close()
    drawn = stream.getvalue().replace("\n", "").split("\r")
    assert stream.getvalue().count("\n") == 1 and LINE_EVERY_S > 8 * BAR_EVERY_S
    assert all(any(f"{n}/4" in one for one in drawn) for n in (1, 2, 3, 4))
    assert max(map(len, drawn)) <= 60 and any("loss 0.25" in one for one in drawn)


def test_80_columns_show_what_a_run_is_looked_at_for() -> None:
    """However many qualities there are: these have what room is left."""
    stream, clock = io.StringIO(), Clock()
    bar = Bar(stream, columns=80, total_steps=4_000, parts=lambda: PARTS, clock=clock)
    auc = {f"{part}{label}auc": 0.75 for part in ("train_", "validation_") for label in ("", "click_", "buy_")}
    bar.show({"loss": 0.25, **auc, "samples_per_s": 12_345.6, "wire_bytes_per_step": 1_540_000})
    for _ in range(2):
        clock.now_s += 1.0
        bar.step()
    bar.close()
    last = stream.getvalue().split("\r")[-1].rstrip("\n")
    assert len(last) <= 80 and re.match(r"  0%\|.*\| 2/4000, .* left, loss 0\.2500, auc 0\.7500, 12,346/s, ", last), (
        last
    )
    fields = last.partition("| 2/4000, ")[2].split(", ")
    assert all(re.fullmatch(r".* left|loss .*|auc .{6}|.*/s|wait \d+%|[\d.]+ [MG]B", of) for of in fields), last
    assert "wait 50%" in fields, "whole fields alone, this one among them"


def test_a_console_without_a_descriptor_has_a_bar() -> None:
    class Console(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream, clock = Console(), Clock()
    bar = Bar(stream, total_steps=4, clock=clock)
    bar.show({"loss": 0.25})
    bar.step()
    bar.close()
    assert "loss 0.2500" in stream.getvalue()


def test_a_bar_of_a_run_whose_end_is_not_known() -> None:
    stream, clock = io.StringIO(), Clock()
    bar = Bar(stream, columns=80, clock=clock)
    bar.show({"loss": 0.25})
    bar.step()
    bar.close()
    assert "1 steps, loss 0.2500" in stream.getvalue()


def test_whether_a_descriptor_is_a_terminal_and_how_wide(terminal: tuple[int, int], tmp_path) -> None:
    _, ours = terminal
    assert columns_at(ours) == COLUMNS, "it does not say how wide it is"
    termios.tcsetwinsize(ours, (24, 132))
    assert columns_at(ours) == 132
    with (tmp_path / "log").open("w") as log:
        assert columns_at(log.fileno()) is None


def test_the_launchers_word_is_a_number_of_columns() -> None:
    assert columns_told({}) is None and columns_told({"HPCREC_TERMINAL": "120"}) == 120
    for wrong in ("", "0", "wide", "-3"):
        with pytest.raises(ConfigError, match=r"HPCREC_TERMINAL is .*Allowed: a number of columns"):
            columns_told({"HPCREC_TERMINAL": wrong})
