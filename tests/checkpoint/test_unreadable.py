"""What cannot be read just now is not damaged: it is read again, and nothing is removed or renamed meanwhile."""

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcrec import again
from hpcrec.checkpoint import files
from hpcrec.checkpoint.checkpoint import Checkpoint, CheckpointWriter, find_checkpoint, prune, steps_in
from hpcrec.checkpoint.dense import read_dense
from hpcrec.checkpoint.parts import part_facts, read_admission, read_hdf5
from hpcrec.checkpoint.residuals import read_unsent
from hpcrec.checkpoint.resume import resumed_from
from hpcrec.checkpoint.tools.look import look
from hpcrec.checkpoint.tools.tables import table_facts
from hpcrec.checkpoint.tools.verify import verify
from hpcrec.comm.ranks import Alone
from hpcrec.data import checksum
from hpcrec.errors import CheckpointError, UnreadableError
from tests.checkpoint.tools import made
from tests.lookups import Lookups

ERRORS = (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ETIMEDOUT)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that were made, none of which takes time."""
    made: list[float] = []
    monkeypatch.setattr(again.time, "sleep", made.append)
    return made


def rows_of(step: int) -> np.ndarray:
    return np.full((4, 2), step, np.float32)


def save(run: Path, step: int, base: int | None = None) -> None:
    writer = CheckpointWriter(run, step, base=base)
    writer.begin()
    ids = np.arange(4) if base is None else np.arange(2)
    block = (ids, rows_of(step)[: len(ids)], {"momentum": np.ones((len(ids), 2), np.float32)})
    writer.write_table_part("t", 0, [block], n_ids=len(ids), rows=4, width=2, columns=(0, 2))
    writer.write_state({})
    writer.commit()


class Failing:
    """Reads of one file that fail, the first so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, number: int, times: float) -> None:
        self.left, self.failed = times, 0
        for owner, name in ((Path, "read_bytes"), (checksum, "of_file")):
            monkeypatch.setattr(owner, name, self._failing(getattr(owner, name), path, number))

    def _failing(self, read: Callable[..., Any], path: Path, number: int) -> Callable[..., Any]:
        def reading(which: Path, *rest: Any) -> Any:
            if which == path and self.left > 0:
                self.left, self.failed = self.left - 1, self.failed + 1
                raise OSError(number, os.strerror(number))
            return read(which, *rest)

        return reading


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_manifest_that_fails_once_costs_a_pause_and_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float], number: int
) -> None:
    for step, base in ((1, None), (2, 1), (3, 1)):
        save(tmp_path, step, base)
    failing = Failing(monkeypatch, tmp_path / "checkpoints" / "step-3" / "manifest.json", number, 1)
    assert prune(tmp_path, 1) == [2] and failing.failed == 1 and pauses == [again.PAUSES_S[0]]
    assert steps_in(tmp_path) == [1, 3]
    assert find_checkpoint(tmp_path).step == 3


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_what_stays_unreadable_is_no_reason_to_remove_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for step, base in ((1, None), (2, 1), (3, 1)):
        save(tmp_path, step, base)
    failing = Failing(monkeypatch, tmp_path / "checkpoints" / "step-3" / "manifest.json", number, float("inf"))
    with pytest.warns(UserWarning, match=r"no more old checkpoints are removed this time: .*step-3/manifest\.json"):
        assert prune(tmp_path, 1) == []
    assert failing.failed == len(again.PAUSES_S) + 1
    assert steps_in(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("name", ["manifest.json", "t/part-0.h5", "state.json"])
@pytest.mark.parametrize("times", [1, 4, float("inf")])
def test_a_resume_reads_again_or_ends_and_touches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, times: float
) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / "checkpoints" / "step-2" / name
    failing = Failing(monkeypatch, path, errno.EIO, times)
    if times < 5:
        found = resumed_from(tmp_path, "auto", Alone())
        assert found is not None and found.step == 2
    else:
        with pytest.raises(UnreadableError, match=rf"{path}: cannot be read just now .*to a name that does not begin"):
            resumed_from(tmp_path, "auto", Alone())
    assert failing.failed == min(times, 5)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step-1", "step-2"]


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    scandir, refused = os.scandir, [errno.ESTALE] * 2

    def failing(path: Any) -> Iterator[os.DirEntry[str]]:
        if refused and Path(path) == tmp_path / "checkpoints":
            raise OSError(refused.pop(), "stale")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing)
    assert steps_in(tmp_path) == [1]
    refused += [errno.ESTALE] * 100
    with pytest.raises(UnreadableError):
        resumed_from(tmp_path, "auto", Alone())


def test_rows_are_read_again_through_another_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    preadv, failed = os.preadv, []

    def once(descriptor: int, *rest: Any) -> int:
        if not failed:
            failed.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, *rest)

    monkeypatch.setattr(os, "preadv", once)
    (block,) = Checkpoint(files.step_folder(tmp_path, 1)).table_parts("t")
    assert failed and np.array_equal(block.rows, rows_of(1))


def test_what_is_not_there_is_damage_and_not_waited_for(tmp_path: Path, pauses: list[float]) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    (tmp_path / "checkpoints" / "step-2" / "t" / "part-0.h5").unlink()
    with pytest.warns(UserWarning, match="damaged checkpoint"):
        found = resumed_from(tmp_path, "auto", Alone())
    assert found is not None and found.step == 1 and pauses == []
    assert (tmp_path / "checkpoints" / "damaged-step-2").is_dir()


def test_a_file_that_its_folder_lists_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    failing = Failing(monkeypatch, tmp_path / "checkpoints" / "step-1" / "manifest.json", errno.ENOENT, 2)
    assert find_checkpoint(tmp_path).step == 1 and failing.failed == 2


def test_a_manifest_that_is_none_is_damage(tmp_path: Path, pauses: list[float]) -> None:
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / "step-1" / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="is not the manifest of a checkpoint"):
        find_checkpoint(tmp_path)
    assert pauses == []


def test_a_checkpoint_that_cannot_be_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    unlink = os.unlink

    def failing(path: Any, *args: Any, **kwargs: Any) -> None:
        if str(path).endswith("state.json"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.warns(UserWarning, match="no more old checkpoints are removed this time"):
        prune(tmp_path, 1)
    monkeypatch.undo()
    assert find_checkpoint(tmp_path).step == 3
    prune(tmp_path, 1)
    assert steps_in(tmp_path) == [3]


def test_what_is_noted_as_best_is_kept_by_whom_knows_nothing_of_it(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    files.mark_best(tmp_path, 1, "auc", 0.5)
    assert prune(tmp_path, 1) == [2] and steps_in(tmp_path) == [1, 3]


def test_a_leftover_that_cannot_be_removed_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    left = tmp_path / "checkpoints" / ".step-9.0123abcd.tmp"
    left.mkdir()
    (left / "busy").touch()
    unlink = Path.unlink

    def busy(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.name == "busy":
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", busy)
    with pytest.warns(UserWarning, match="what an earlier attempt left is not removed this time"):
        save(tmp_path, 2)
    assert steps_in(tmp_path) == [1, 2] and left.is_dir()


READERS: dict[str, Callable[[Path], Any]] = {
    "part": lambda at: [part_facts(at / name / "part-0.h5") for name in ("user", "any", "tag%2Fwide")],
    "rows": lambda at: list(Checkpoint(at).table_parts("any")),
    "admission": lambda at: read_hdf5(at / "any" / "part-0.h5", read_admission),
    "dense": lambda at: read_dense(at / "dense.h5"),
    "unsent": lambda at: read_unsent(at / "residuals-0.h5", part=0, ranks=1),
}
TOOLS: dict[str, Callable[[Path], Any]] = {
    "look": look,
    "facts": lambda at: [table_facts(Checkpoint(at), name) for name in ("user", "any")],
    "verify": verify,
}


@pytest.mark.parametrize("name", [*READERS, *TOOLS])
def test_any_look_into_a_file_that_fails_once_gives_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    at, read = made.write(tmp_path, parts=1), (READERS | TOOLS)[name]
    with monkeypatch.context() as patched:
        wanted, before = repr(read(at)), Lookups(patched, n=0, times=0)
        read(at)
    assert before.count >= 3
    unreadable = 0
    for n in range(1, before.count + 1, 1 if name in READERS else 1 + before.count // 20):  # tools read all of it
        with monkeypatch.context() as patched:
            Lookups(patched, n, times=1)
            try:
                assert repr(read(at)) == wanted, f"look {n}"
            except UnreadableError as error:  # of a file that is open while blocks of it are handed on
                assert re.match(rf"{at}/\S+\.h5: cannot be read just now", str(error)), str(error)
                unreadable += 1
    assert unreadable == 0 or name in TOOLS


@pytest.mark.parametrize("name", ["/etc/hostname", "../other", "t/../../x", "t//x", "", "t/\0"])
def test_a_manifest_that_names_files_elsewhere_is_none(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1)
    path = tmp_path / "checkpoints" / "step-1" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"][name] = {"bytes": 0, "crc32": 0}
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="which is not one of its folder"):
        files.read_manifest(path.parent)
