"""The page of planned towers: the picture has every pair once, in the order of towers, and no name breaks out of it."""

import re
from pathlib import Path

import numpy as np
import pytest

from hpcrec.report_page.towers import NAMED, shown, write_towers
from tests.report_page.made import HOSTILE, planned
from tests.report_page.test_page import Page

CELLS = re.compile(r"M(\d+) (\d+)h(\d+)")


def drawn(path: str, n: int) -> list[list[int]]:
    """How often each cell is drawn over."""
    times = np.zeros((n, n), int)
    assert CELLS.sub("", path) == ""
    for first, row, width in (map(int, found) for found in CELLS.findall(path)):
        times[row, first : first + width] += 1
    return times.tolist()


def test_pairs_of_a_tower_are_beside_each_other_and_drawn_as_dark_as_they_are_near() -> None:
    given = planned(6, 2)
    picture = shown(*given)["picture"]
    assert [row.name for row in picture.rows] == ["f0", "f2", "f4", "f1", "f3", "f5"]
    assert picture.towers == [(0, 3), (3, 3)]
    inside = [[int(a != b and a // 3 == b // 3) for b in range(6)] for a in range(6)]
    between = [[int(a // 3 != b // 3) for b in range(6)] for a in range(6)]
    assert [(shade, drawn(path, 6)) for shade, path in picture.shades] == [(0.5, between), (1.0, inside)]
    assert picture.rows[1].says == "f2, tower 0: nearest f0, f4, f1" and "from 0 to 1;" in picture.label
    assert shown(*given)["about"] == [("signal", "interactions")]
    rows = shown(*given)["table_of"].rows
    assert rows[1] == ("1: f1, f3, f5", "3", "90 %", "110 %", "1", "0.25")


def test_uneven_towers_of_one_feature_and_of_all() -> None:
    names, near_FF, _, loads_TL, about = planned(4, 2)
    shown_now = shown(names, near_FF, [["f3"], ["f1", "f0", "f2"]], loads_TL, about)
    assert shown_now["picture"].towers == [(0, 1), (1, 3)]
    assert [row[4:] for row in shown_now["table_of"].rows] == [("", "0.5"), ("0.5", "0.5")]
    (only,) = shown(names, near_FF, [names], loads_TL[:1], about)["table_of"].rows
    assert only[4:] == ("0.5", "")
    nothing = shown(names, np.zeros((4, 4)), [names], loads_TL[:1], about)["picture"]
    assert nothing.shades == [] and nothing.rows[0].says == "f0, tower 0"


@pytest.mark.parametrize(("n", "name", "texts"), [(NAMED, "f", NAMED), (NAMED + 1, "f", 0), (8, "f" * 80, 0)])
def test_names_stand_beside_the_picture_where_they_have_room(tmp_path: Path, n: int, name: str, texts: int) -> None:
    page = write_towers(tmp_path / "towers.html", *planned(n, 2, name)).read_text()
    tags = Page(page).tags
    assert tags.count("text") == texts and tags.count("title") == 1 + n and "script" not in tags


def test_no_name_breaks_out_of_the_page(tmp_path: Path) -> None:
    page = write_towers(tmp_path / "towers.html", *planned(4, 2, HOSTILE))
    read = Page(page.read_text())
    assert not {"img", "b", "script"} & set(read.tags) and read.open == [] and read.loads == []
    assert any(HOSTILE in text for text in read.texts)


def test_the_picture_of_three_hundred_features_is_small(tmp_path: Path) -> None:
    names, near_FF, *rest = planned(300, 8)
    noise = np.random.default_rng(3).random(near_FF.shape)
    assert write_towers(tmp_path / "towers.html", names, near_FF * noise, *rest).stat().st_size < 1_000_000
