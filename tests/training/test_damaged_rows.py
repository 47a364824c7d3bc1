"""A damaged file of rows that several checkpoints link: a run ends, says what it goes back to, and goes back to it."""

import contextlib
import errno
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import damaged, files
from hpcrec.checkpoint.find import find_checkpoint
from hpcrec.checkpoint.tools.diff import diff
from hpcrec.checkpoint.tools.verify import verify
from hpcrec.config import Config
from hpcrec.disk.common import Settings
from hpcrec.disk.tier import Tier
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.errors import CheckpointError, TierError
from hpcrec.training.claim import UNCLAIMED, Claim
from hpcrec.training.loop import Loop
from tests.together import on_every_rank
from tests.training.runs import config_for, write_data

COMM = MPI.COMM_WORLD
PAGE = 4096  # bytes


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for some rows of each block, in turn; short pieces and files."""
    room = itertools.cycle((1, 6000))
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: next(room))


def config_of(folder: Path, run: str, steps: int = 12) -> Config:
    return config_for(
        folder,
        train={"steps": steps, "dtype": "float32", "log_every": 1},
        data={"train": str(folder / "data.h5"), "validation": str(folder / "data.h5")},
        store={"name": "disk", "path": str(folder / "rows"), "memory_bytes": 20_000_000},
        checkpoint={"every": 3, "keep": 99, "keep_best": False},
        run={"folder": str(folder / run)},
    )


def losses(run: Path) -> dict[int, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def linked(run: Path, step: int) -> dict[tuple[str, int], Path]:
    folder = files.step_folder(run, step)
    segments = files.read_manifest(folder)["segments"]
    return {(name, entry["seal"]): folder / name for name, entry in segments.items()}


def shared(run: Path, steps: list[int], without: list[int]) -> Path:
    """The longest segment that some checkpoints link, by the newest of them, and others do not."""
    have, have_not = ([set(linked(run, step)) for step in some] for some in (steps, without))
    found = set.intersection(*have).difference(*have_not)
    assert found, "there is such a segment"
    return max((linked(run, steps[0])[key] for key in found), key=lambda path: path.stat().st_size)


def flip(path: Path, at: Callable[[int], Iterator[int]]) -> None:
    """Changes a bit at each place, in the file with all of its names."""
    data = bytearray(path.read_bytes())
    for place in at(len(data)):
        data[place] ^= 1
    path.write_bytes(data)


def pages(n_bytes: int) -> Iterator[int]:
    """A place in each page that has rows; the footer is behind them."""
    return iter(range(1000, n_bytes - PAGE, PAGE))


def footer(n_bytes: int) -> Iterator[int]:
    return iter([n_bytes - PAGE])


@pytest.fixture
def whole(folder: Path, few_places: None) -> Path:
    """A run of 12 steps that nothing happened to, and its data."""
    write_data(folder / "data.h5")
    assert commands.train(config_of(folder, "whole")) == 0
    return folder / "whole"


def begun(whole: Path) -> Config:
    """The same run up to step 9, with checkpoints after 3, 6 and 9."""
    assert commands.train(config_of(whole.parent, "run", steps=9)) == 0
    return config_of(whole.parent, "run")


def started_again(config: Config) -> list[str]:
    """Runs to the end; the warnings on the way."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert commands.train(config) == 0
    return [str(one.message) for one in warned]


def goes_on_as_if_nothing_had_been(config: Config, whole: Path, taken: int, damage: str) -> None:
    """Started again, the run takes the checkpoint of this step, with a warning, and ends as the whole one does."""
    run = Path(config.run.folder)
    said = started_again(config)
    passed = [text for text in said if "damaged checkpoint passed over" in text]
    assert len(passed) == 1 and f"passed over, step-{taken} used" in passed[0] and damage in passed[0], said
    aside = sorted(path.name for path in (run / "checkpoints").glob("damaged-step-*"))
    assert aside == [f"damaged-step-{step}" for step in (6, 9) if step > taken]
    assert losses(run) == losses(whole)
    assert set(losses(run)) == set(range(1, 13))
    found = diff(run / "checkpoints/step-12", whole / "checkpoints/step-12")
    assert found["equal"], found


@pytest.mark.parallel([1])
@pytest.mark.parametrize("who", ["a step", "the pass"])
def test_a_run_that_meets_it_ends_and_goes_on_from_the_newest_checkpoint_without(
    whole: Path, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = begun(whole), whole.parent / "run"
    path = shared(run, [9, 6], [3])
    note = damaged.note_of(run, files.read_manifest(path.parents[1])["segments"][f"rows-0.tier/{path.name}"]["seal"])
    flip(path, pages)
    wanted = "Checkpoints step-9 and step-6 link the same file; step-3 does not, and the run goes on from there when it"
    with monkeypatch.context() as patched:
        if who == "a step":
            patched.setattr(Tier, "looked_at", lambda self: None)
        else:
            gather = DiskStore.gather

            def after_the_pass(self: DiskStore, *given: Any) -> None:
                if self._looking is not None:
                    self._looking.wait()
                gather(self, *given)

            patched.setattr(DiskStore, "gather", after_the_pass)
        with pytest.raises(TierError, match=rf"page \d has a wrong checksum.* {wanted} is started again\.") as raised:
            commands.train(config)
    assert raised.value.segment is not None and raised.value.segment.name == path.name
    assert "Go on from the last checkpoint" not in str(raised.value)
    assert json.loads((run / "summary.json").read_text())["ended"]["by"] == "error"
    said = json.loads(note.read_text())
    assert said["segment"] == path.name and f"{said['seal']:08x}" in note.name, said
    assert "has a wrong checksum" in said["said"] and "Go on" not in said["said"]
    for step, is_whole in ((3, True), (6, False), (9, False)):
        where = files.step_folder(run, step)
        assert (verify(where).problems == []) == is_whole, "the note is no file of a checkpoint"
        with contextlib.nullcontext() if is_whole else pytest.raises(CheckpointError, match=f"as {note.name} notes"):
            assert find_checkpoint(run, str(where)).step == step
    assert files.steps_in(run) == [3, 6, 9]
    goes_on_as_if_nothing_had_been(config, whole, 3, f"as {note.name} notes")
    # What was written anew may be the same segment, bit for bit: it is whole.
    assert find_checkpoint(run, "last").step == 12
    assert commands.train(replace(config, checkpoint=replace(config.checkpoint, resume="never"))) == 0
    assert not list((run / "checkpoints").glob("damaged-*")), "notes go with the checkpoints"


@pytest.mark.parallel([1, 2])
def test_a_footer_that_is_damaged_is_found_as_a_run_goes_on(whole: Path) -> None:
    """On every rank alike; the one that has found it notes it, and says where the run goes on from."""
    config, run, last = begun(whole), whole.parent / "run", COMM.size - 1
    with on_every_rank():
        older = {key for step in (3, 6) for key in linked(run, step)}
        new = {key: path for key, path in linked(run, 9).items() if key not in older and f"rows-{last}." in key[0]}
    (name, seal), path = next(iter(new.items()))
    COMM.Barrier()
    if COMM.rank == 0:
        flip(path, footer)
    COMM.Barrier()
    session = open_session(config)
    loop = Loop(session, run, config.train, config.checkpoint, {}, cast("Claim", UNCLAIMED))
    with pytest.raises(TierError, match="the checksum of its footer at byte") as raised:
        loop.resume()
    session.close()  # of several ranks a run leaves that to the end of their processes
    said = "Checkpoint step-9 links the same file; step-6 does not, and the run goes on from there when it is started"
    with on_every_rank():
        assert (said in str(raised.value)) == (COMM.rank == last), str(raised.value)
        note = damaged.note_of(run, seal)
        assert json.loads(note.read_text())["segment"] == Path(name).name
    warned = started_again(config)
    with on_every_rank():
        found = [text for text in warned if "passed over, step-6 used" in text and f"as {note.name} notes" in text]
        assert len(found) == (COMM.rank == 0), warned
        assert losses(run) == losses(whole)
        assert diff(run / "checkpoints/step-12", whole / "checkpoints/step-12")["equal"]


@pytest.mark.parallel([1])
def test_damage_that_no_checkpoint_has_is_not_noted(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store has copies of its own, as on another disk than that of the run: it goes on from the last checkpoint."""
    link, take = os.link, DiskStore.take

    def far(source: Path, target: Path) -> None:
        if ("checkpoints" in Path(source).parts) != ("checkpoints" in Path(target).parts):
            raise OSError(errno.EXDEV, "of another file system")
        link(source, target)

    def damages(self: DiskStore, *given: Any) -> None:
        take(self, *given)
        for path in self._tier.folder.glob("segment-*"):
            flip(path, pages)

    monkeypatch.setattr(os, "link", far)
    config, run = begun(whole), whole.parent / "run"
    wanted = "No checkpoint of the run has this damage: it goes on from step-9, the last one, when it is started again."
    with monkeypatch.context() as patched, pytest.raises(TierError, match=rf"has a wrong checksum.* {wanted}"):
        patched.setattr(DiskStore, "take", damages)
        commands.train(config)
    assert not list((run / "checkpoints").glob("damaged-*"))
    assert not [text for text in started_again(config) if "damaged" in text]
    assert losses(run) == losses(whole)
    assert diff(run / "checkpoints/step-12", whole / "checkpoints/step-12")["equal"]
