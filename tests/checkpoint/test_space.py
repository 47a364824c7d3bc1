"""How much of a disk kept checkpoints hold, and which go where that has a limit."""

import json
import os
from pathlib import Path

import pytest

from hpcrec.checkpoint import files
from hpcrec.checkpoint.files import prune, step_folder, steps_in
from hpcrec.checkpoint.space import Held


def checkpoint(run: Path, step: int, sizes: dict[str, int], *, base: int | None = None) -> None:
    """A whole one, with files of its own."""
    folder = step_folder(run, step)
    (folder / "rows-0.tier").mkdir(parents=True)
    for name, size in sizes.items():
        (folder / "rows-0.tier" / name).write_bytes(b"x" * size)
    said = {} if base is None else {"base": {"step": base, "path": f"../step-{base}"}}
    files.write_manifest(folder, step, [], said.get("base"))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests that say which checkpoint is needed, and no more."""
    monkeypatch.setattr(
        files,
        "write_manifest",
        lambda folder, step, _, base: (folder / "manifest").write_text(json.dumps({"step": step, "base": base})),
    )
    monkeypatch.setattr(files, "read_manifest", lambda folder: json.loads((folder / "manifest").read_text()))
    monkeypatch.setattr(files, "is_finite", lambda run, step: True)


@pytest.mark.usefixtures("plain")
def test_links_count_once(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1, {"a": 1000, "b": 200})
    checkpoint(tmp_path, 2, {"c": 30})
    one, two = (step_folder(tmp_path, step) / "rows-0.tier" for step in (1, 2))
    os.link(one / "a", two / "a")  # of both checkpoints
    (tmp_path / "store").mkdir()
    os.link(one / "b", tmp_path / "store" / "b")  # the rows have it still
    first, second = ((step_folder(tmp_path, step) / "manifest").stat().st_size for step in (1, 2))
    folders = {step: step_folder(tmp_path, step) for step in (1, 2)}
    held = Held(folders, {1: None, 2: None})
    assert held.n_bytes([1]) == 1200 + first and held.n_bytes([2]) == 1030 + second
    assert held.n_bytes([1, 2]) == 1230 + first + second
    assert Held(folders, {1: None, 2: 1}).n_bytes([2]) == 1230 + first + second, "the one that it needs counts"


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("most_bytes", "protect", "left"),
    [
        (None, [], [2, 3, 4]),
        (10_000, [], [2, 3, 4]),
        (2500, [], [3, 4]),
        (1500, [], [4]),
        (2500, [1], [1, 4]),
    ],
)
def test_older_ones_go_sooner(tmp_path: Path, most_bytes: int | None, protect: list[int], left: list[int]) -> None:
    for step in (1, 2, 3, 4):
        checkpoint(tmp_path, step, {"a": 1000})
    removed = prune(tmp_path, 3, protect, keep_bytes=most_bytes)
    assert sorted(steps_in(tmp_path)) == left and removed == [step for step in (1, 2, 3, 4) if step not in left]


@pytest.mark.usefixtures("plain")
def test_the_newest_stays_whatever_it_holds_and_that_is_said(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint(tmp_path, step, {"a": 1000})
    with pytest.warns(UserWarning, match=r"hold more than checkpoint.keep_bytes = 5\."):
        assert prune(tmp_path, 2, keep_bytes=5) == [1]
    assert steps_in(tmp_path) == [2]


@pytest.mark.usefixtures("plain")
def test_what_a_kept_one_needs_stays(tmp_path: Path) -> None:
    checkpoint(tmp_path, 1, {"a": 1000})
    checkpoint(tmp_path, 2, {"a": 10}, base=1)
    checkpoint(tmp_path, 3, {"a": 10}, base=1)
    assert prune(tmp_path, 3, keep_bytes=1500) == []
    with pytest.warns(UserWarning, match=r"hold more than checkpoint.keep_bytes"):
        assert prune(tmp_path, 3, keep_bytes=500) == [2]
    assert sorted(steps_in(tmp_path)) == [1, 3]
