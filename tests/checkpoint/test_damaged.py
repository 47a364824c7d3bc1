"""Notes of damage in rows that are linked: when one is made, what is said with it, and what it has looked at again."""

import errno
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest

from hpcrec import again
from hpcrec.checkpoint import damaged, files
from hpcrec.checkpoint.find import problem_of
from hpcrec.comm.ranks import Alone
from hpcrec.data import checksum
from hpcrec.disk import segment as segments
from hpcrec.disk.layout import Outcome, Wrong
from hpcrec.disk.segment import AGAIN, Segment, seal_of, unreadable
from hpcrec.disk.tier import Tier
from hpcrec.errors import (
    CheckpointError,
    DataError,
    HpcrecError,
    LastCheckpointError,
    OutputError,
    TierError,
    UnreadableError,
)
from tests.disk.schedules import BLOCKS, Model, settings, writes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose checkpoints after 100, 200 and 300 steps link a store's files; of the last two some are the same."""
    model = Model(0)
    with Tier(tmp_path / "tier", BLOCKS, settings()) as tier:
        for step in (100, 200, 300):
            for _ in writes(model, tier, 40 if step == 200 else 3):
                pass
            kept = tier.keep(flush=False)
            tier.settle(kept.number)
            folder = files.step_folder(tmp_path / "run", step)
            (folder / "rows-0.tier").mkdir(parents=True)
            found, links = {}, {}
            for path in kept.files:
                name = f"rows-0.tier/{path.name}"
                os.link(path, folder / name)
                if path.name.startswith("segment-"):
                    links[name] = {"bytes": path.stat().st_size, "seal": seal_of(path)}
                else:
                    found[name] = files.entry_of(path.stat().st_size, checksum.of_file(path))
            (folder / files.STATE).write_text("{}")
            found[files.STATE] = files.entry_of(2, checksum.crc32(b"{}"))
            files.write_manifest(folder, step, found, None, links)
            tier.drop(kept.number)
        shutil.copytree(tmp_path / "tier", tmp_path / "store")
    return tmp_path / "run"


def links(run: Path, step: int) -> dict[str, int]:
    """Names of segments, and their seals."""
    said = files.read_manifest(files.step_folder(run, step))["segments"]
    return {Path(name).name: entry["seal"] for name, entry in said.items()}


def path_of(run: Path, step: int, name: str) -> Path:
    return files.step_folder(run, step) / "rows-0.tier" / name


def one_of(run: Path, steps: tuple[int, ...]) -> Path:
    """A segment that these checkpoints have and no other, as the newest of them has it."""
    others = [step for step in (100, 200, 300) if step not in steps]
    have = set.intersection(*(set(links(run, step).items()) for step in steps))
    name, _ = min(have.difference(*(links(run, step).items() for step in others)))
    return path_of(run, steps[-1], name)


def damage(path: Path, place: int = 1000) -> TierError:
    """Changes a bit of a file with all its names; the error of who reads the page."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    return unreadable(path, place // 4096, Outcome(Wrong.CHECKSUM), "")


def problems(run: Path) -> dict[int, str | None]:
    return {step: problem_of(files.step_folder(run, step), Alone()) for step in files.steps_in(run)}


def notes(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("damaged-*"))


def test_the_newest_checkpoint_without_it_is_named_and_the_others_are_passed_over(run: Path) -> None:
    assert problems(run) == {100: None, 200: None, 300: None}
    path = one_of(run, (200, 300))
    error = damage(path)
    assert problems(run) == {100: None, 200: None, 300: None}, "pages are not read"
    assert damaged.noted(run, error) == (
        "Checkpoints step-300 and step-200 link the same file; step-100 does not, and the run goes on from there when "
        "it is started again."
    )
    seal = seal_of(path)
    assert notes(run) == [f"damaged-{seal:08x}.json"]
    assert json.loads((run / "checkpoints" / notes(run)[0]).read_text()) == {
        "segment": path.name,
        "seal": seal,
        "said": f"{path}: page 0 has a wrong checksum.",
    }
    found = problems(run)
    for step in (200, 300):
        assert found.pop(step) == (
            f"{path_of(run, step, path.name)}: page 0 has a wrong checksum, as damaged-{seal:08x}.json notes"
        )
    assert found == {100: None}
    assert files.steps_in(run) == [100, 200, 300]
    assert files.prune(run, 1) == [100, 200] and notes(run), "it is no checkpoint"
    (run / "checkpoints" / f".{notes(run)[0]}.4711.part").touch()
    files.remove_leftovers(run)
    assert notes(run) and not list((run / "checkpoints").glob(".*"))
    files.clear(run)
    assert not (run / "checkpoints").exists()


def test_of_one_checkpoint_and_of_all(run: Path) -> None:
    assert damaged.noted(run, damage(one_of(run, (300,)))).startswith(
        "Checkpoint step-300 links the same file; step-200 does not, and the run goes on from there"
    )
    error = damage(one_of(run, (100,)))
    assert damaged.noted(run, error).startswith("Checkpoint step-100 links the same file; step-300 does not")
    shutil.rmtree(files.step_folder(run, 200))
    shutil.rmtree(files.step_folder(run, 300))
    assert damaged.noted(run, error) == (
        "Every checkpoint of the run (step-100) links the same file: train anew (checkpoint.resume = 'never'), or go "
        "on from a checkpoint elsewhere, by checkpoint.resume."
    )
    shutil.rmtree(files.step_folder(run, 100))
    assert damaged.noted(run, error) == "The run has no checkpoint of its own to go on from."


def test_a_copy_is_damaged_only_where_the_damage_was_copied(run: Path) -> None:
    path, last = one_of(run, (200, 300)), "No checkpoint of the run has this damage: it goes on from step-300"
    store = run.parent / "store" / path.name
    assert not store.samefile(path)
    assert damaged.noted(run, damage(store)).startswith(last)
    os.truncate(store, 0)  # has no seal any more
    assert damaged.noted(run, TierError(f"{store}: is cut off.", segment=store)).startswith(last)
    store.unlink()
    assert damaged.noted(run, TierError(f"{store}: is cut off.", segment=store)).startswith(last)
    assert not notes(run)
    damage(path)
    shutil.copy(path, store)
    error = unreadable(store, 0, Outcome(Wrong.CHECKSUM), "")
    assert damaged.noted(run, error).startswith("Checkpoints step-300 and step-200 link the same file; step-100")
    assert notes(run)


def test_what_cannot_be_told_by_its_seal_is_told_by_its_file(run: Path) -> None:
    """A seal that is damaged itself; the note is of the one that manifests have."""
    path = one_of(run, (200, 300))
    seal = seal_of(path)
    damage(path, path.stat().st_size - 1)
    error = TierError(f"{path}: its trailer is damaged.", segment=path)
    assert damaged.noted(run, error).startswith("Checkpoints step-300 and step-200 link")
    assert notes(run) == [f"damaged-{seal:08x}.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"segment": 1, "seal": "x"}', "whole"])
def test_a_note_alone_damages_nothing(run: Path, text: str) -> None:
    """A run that goes on from an older checkpoint may write the same segment again, bit for bit."""
    path = one_of(run, (200, 300))
    if text == "whole":
        text = json.dumps({"segment": path.name, "seal": seal_of(path), "said": "it was damaged"})
    damaged.note_of(run, seal_of(path)).write_text(text)
    assert problems(run) == {100: None, 200: None, 300: None}


def test_a_note_that_cannot_be_written_is_no_second_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = damage(one_of(run, (200, 300)))

    def full(path: Path, text: str) -> None:
        raise OutputError(f"{path}: cannot be written (No space left on device).")

    monkeypatch.setattr(damaged, "write_text", full)
    said = damaged.noted(run, error)
    assert "step-100 does not" in said and "But that cannot be noted" in said and "No space left on device" in said
    assert not notes(run)


def test_checkpoints_that_cannot_be_looked_at_are_no_second_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = damage(one_of(run, (200, 300)))
    damaged.noted(run, error)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(again, "PAUSES_S", ())
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", fails)
        said = damaged.noted(run, error)
        assert said.startswith("Which checkpoints have the same damage cannot be found out just now: "), said
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", fails)
        with pytest.raises(UnreadableError, match="Stale file handle"):
            problem_of(files.step_folder(run, 300), Alone())
    monkeypatch.setattr(segments, "_opened", fails)
    with pytest.raises(UnreadableError, match="Stale file handle"):
        problem_of(files.step_folder(run, 300), Alone())


def test_past_the_page_cache_where_the_file_system_lets_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked, sealed = one_of(run, (200, 300)), list[bool](), Segment.sealed

    def refusing(*given: object, direct: bool = True) -> Segment:
        asked.append(direct)
        if direct:
            raise TierError(f"{given[0]}: cannot be read.") from OSError(errno.EINVAL, "Invalid argument")
        return sealed(*given, direct=direct)  # type: ignore[arg-type]

    monkeypatch.setattr(Segment, "sealed", refusing)
    assert damaged.wrong_pages(path) is None
    damage(path)
    assert damaged.wrong_pages(path) == f"{path}: page 0 has a wrong checksum."
    assert asked == [True, False] * 2
    stray = path.with_name("segment-00009999")
    shutil.copy(path, stray)
    assert damaged.wrong_pages(stray) == f"{stray}: no list in its folder names it."
    stray.unlink()
    monkeypatch.undo()
    path.unlink()
    assert "cannot be read (No such file or directory)" in (damaged.wrong_pages(path) or "")


def raised(run: Path, error: BaseException, cause: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error) if cause is None else HpcrecError) as found, damaged.told(run):
        raise error from cause
    return found.value


def test_who_is_told(run: Path) -> None:
    for other in (TierError(f"no file. {AGAIN}"), DataError("of data"), RuntimeError("of nobody")):
        assert raised(run, other) is other
    other = HpcrecError("of another rank")
    assert raised(run, other, TierError("no file")) is other
    path = one_of(run, (200, 300))
    error = damage(path)
    ends = raised(run, UnreadableError("just now"), error)
    assert type(ends) is UnreadableError and not notes(run)
    ends = raised(run, LastCheckpointError("with 75"), error)
    assert type(ends) is LastCheckpointError and str(ends) == "with 75" and notes(run)
    wanted = f"{path}: page 0 has a wrong checksum. Checkpoints step-300 and step-200 link the same file; step-100 does"
    for told in (
        raised(run, error),
        raised(run, HpcrecError(f"rows could not be brought ({error})"), error),
        raised(run, CheckpointError(f"{error} 'hpcrec checkpoint verify' lists all that is wrong."), error),
    ):
        assert isinstance(told, TierError) and told.segment == path
        assert str(told).startswith(wanted) and str(told).endswith("started again. Look after this disk."), told
    agreed = raised(run, TierError(f"rank 3: {error}"), error)
    assert str(agreed).startswith(f"rank 3: {wanted}"), agreed


def test_errors_name_a_segment_where_it_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "segment-00000001"
    again_ = pickle.loads(pickle.dumps(TierError("said", segment=path)))
    assert type(again_) is TierError and str(again_) == "said" and again_.segment == path
    assert pickle.loads(pickle.dumps(TierError("said"))).segment is None
    for wrong in set(Wrong) - {Wrong.NOTHING, Wrong.SYSTEM}:
        assert unreadable(path, 0, Outcome(wrong), "").segment == path
    for number, is_damage in ((errno.EIO, True), (errno.ENODATA, True), (errno.EMFILE, False), (errno.ESTALE, False)):
        found = unreadable(path, 0, Outcome(Wrong.SYSTEM, number), "").segment
        assert found == (path if is_damage else None)
