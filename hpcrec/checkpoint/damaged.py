"""Damage in rows that are linked: what a run that meets it notes, says, and has looked at when it is started again.

All checkpoints that link a segment have its damage, and of a segment only size and seal are looked at when a checkpoint
is chosen: a run would go back to the same page again and again. So a run that ends by it leaves a note beside its
checkpoints, ``damaged-<seal>.json``, and of what is noted every page is read before a checkpoint is taken. A note
decides nothing by itself: a copy of the file may be whole, and a run that goes on from an older checkpoint may write
the same segment again, bit for bit. Knows links and notes; how a page is checked is for ``disk``.
"""

import contextlib
import errno
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcrec.again import names_in, read_again
from hpcrec.checkpoint import files
from hpcrec.comm.failure import agree
from hpcrec.comm.ranks import Ranks
from hpcrec.data.files import write_text
from hpcrec.disk.layout import Layout
from hpcrec.disk.lists import NAME, read_list
from hpcrec.disk.segment import AGAIN, Segment, seal_of
from hpcrec.disk.snapshot import check_segment
from hpcrec.errors import CheckpointError, HpcrecError, LastCheckpointError, TierError, UnreadableError
from hpcrec.training.ranks import on_root

_NOTE = re.compile(rf"{files.DAMAGED}[0-9a-f]{{8}}\.json")


def note_of(run: Path, seal: int) -> Path:
    """The note of a segment with this seal."""
    return files.checkpoints_in(run) / f"{files.DAMAGED}{seal:08x}.json"


# ---- a run that meets it ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def told(run: Path) -> Iterator[None]:
    """Damage that ends what is done inside is noted, and said with the checkpoint to go back to. No collective.

    Raises
    ------
    TierError
        In place of an error that came of a segment that is damaged: what was found, which checkpoints have the same
        file, and which one has not. What ends with an exit status of its own, or says that nothing is known to be
        damaged, is raised as it is.
    """
    try:
        yield
    except HpcrecError as error:
        found = damage_in(error)
        if found is None or isinstance(error, UnreadableError):
            raise
        advice = noted(run, found)
        if isinstance(error, LastCheckpointError):
            raise
        said = str(error if isinstance(error, TierError) else found).removesuffix(AGAIN).rstrip()
        raise TierError(f"{said} {advice} Look after this disk.", segment=found.segment) from error


def damage_in(error: BaseException) -> TierError | None:
    """The first error that names a damaged segment, of one and those that it came from."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop(0)
        if one is None or any(one is other for other in seen):
            continue
        if isinstance(one, TierError) and one.segment is not None:
            return one
        seen.append(one)
        left += [one.__cause__, one.__context__]
    return None


def noted(run: Path, error: TierError) -> str:
    """Notes the damage that an error names, where a checkpoint of the run has it; no error of that leaves here.

    Returns
    -------
    str
        Which checkpoints have it, and which is the newest without, in a sentence or two.
    """
    try:
        with_it, without, seals = _having(run, error)
    except (OSError, HpcrecError) as unread:
        return f"Which checkpoints have the same damage cannot be found out just now: {unread}"
    sentence = _sentence(with_it, without)
    for seal, segment in seals.items():
        text = json.dumps({"segment": segment, "seal": seal, "said": str(error).removesuffix(AGAIN).rstrip()})
        try:
            write_text(note_of(run, seal), text + "\n")
        except (OSError, HpcrecError) as refused:
            return (
                f"{sentence} But that cannot be noted, and the newest would be taken for a whole one: rename those "
                f"that have the file to names that do not begin with step-. ({refused})"
            )
    return sentence


def _having(run: Path, error: TierError) -> tuple[list[int], list[int], dict[int, str]]:
    """Steps of checkpoints that have the damage, and of those that have not, newest first; seals to note, with names.

    A checkpoint whose manifest cannot be understood is neither: it is passed over in any case.
    """
    assert error.segment is not None, "it names a segment"
    segment = error.segment
    seal, of_file = None, dict[tuple[int, int], str | None]()  # what is wrong with each file, whatever its names
    with contextlib.suppress(OSError):  # then only links to this very file are known to be of it
        seal = seal_of(segment)
    with_it, without, seals = list[int](), list[int](), dict[int, str]()
    for step in reversed(files.steps_in(run)):
        folder = files.step_folder(run, step)
        try:
            manifest = files.read_manifest(folder)
        except CheckpointError:
            continue
        without.append(step)
        for name, entry in manifest.get("segments", {}).items():
            path = folder / name
            if path.name != segment.name or not (entry["seal"] == seal or _is_same(path, segment)):
                continue
            file = _identity(path)
            if file not in of_file:
                of_file[file] = wrong_pages(path)
            if of_file[file] is not None:
                seals[int(entry["seal"])] = path.name
                if without[-1:] == [step]:
                    with_it.append(without.pop())
    return with_it, without, seals


def _is_same(a: Path, b: Path) -> bool:
    with contextlib.suppress(OSError):  # one is not there
        return a.samefile(b)
    return False


def _identity(path: Path) -> tuple[int, int]:
    of = read_again(path, path.stat)
    return of.st_dev, of.st_ino


def _sentence(with_it: list[int], without: list[int]) -> str:
    """What to do, by steps of checkpoints with and without the damage, newest first."""
    if not with_it and not without:
        return "The run has no checkpoint of its own to go on from."
    if not with_it:
        return (
            f"No checkpoint of the run has this damage: it goes on from step-{without[0]}, the last one, when it is "
            "started again."
        )
    names = [f"step-{step}" for step in with_it]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    if not without:
        return (
            f"Every checkpoint of the run ({listed}) links the same file: train anew (checkpoint.resume = 'never'), or "
            "go on from a checkpoint elsewhere, by checkpoint.resume."
        )
    link = "Checkpoints {} link" if len(names) > 1 else "Checkpoint {} links"
    return (
        f"{link.format(listed)} the same file; step-{without[0]} does not, and the run goes on from there when it is "
        "started again."
    )


# ---- when a checkpoint is chosen -------------------------------------------------------------------------------------


def noted_damage(folder: Path, manifest: Mapping[str, Any], ranks: Ranks) -> str | None:
    """What is wrong with segments of a checkpoint that notes beside it name, or None; collective.

    Where nothing is noted this lists one folder, on rank 0. Of what is noted each rank reads its share.

    Raises
    ------
    UnreadableError
        A note, or a segment, cannot be read just now; on every rank.
    """
    segments: Mapping[str, Any] = manifest.get("segments", {})
    if not segments:
        return None
    notes: dict[tuple[str, int], str] = on_root(ranks, lambda: _notes(folder.parent))
    suspects = [
        (folder / name, notes[key])
        for name, entry in segments.items()
        if (key := (Path(name).name, int(entry["seal"]))) in notes
    ]
    if not suspects:
        return None
    found, unread = None, None
    try:
        for path, note in suspects[ranks.rank :: ranks.size]:
            if found is None and (wrong := wrong_pages(path, ranks.comes_on)) is not None:
                found = f"{wrong.rstrip('.')}, as {note} notes"
    except UnreadableError as error:
        unread = error
    agree(ranks, unread)
    return next((text for text in ranks.allgather(found) if text), None)


def _notes(checkpoints: Path) -> dict[tuple[str, int], str]:
    """Names of segments and their seals, each with the name of its note."""
    found = {}
    for name in names_in(checkpoints):
        if _NOTE.fullmatch(name) is None:
            continue
        path = checkpoints / name
        # One that says nothing, or has gone meanwhile, is none: where the damage is met again it is noted again.
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
            said = json.loads(read_again(path, path.read_bytes))
            found[str(said["segment"]), int(said["seal"])] = name
    return found


def wrong_pages(path: Path, comes_on: Callable[[], None] = lambda: None) -> str | None:
    """What is wrong with a segment that a checkpoint links, or None; all of it is read, from the disk where it can be.

    Parameters
    ----------
    path : Path
        In a checkpoint, beside the list that names it.
    comes_on : callable
        Called after some of its pages.

    Raises
    ------
    UnreadableError
        It cannot be read just now.
    """

    def read() -> str | None:
        try:
            segment = _opened(path)
            try:
                segment.read_footer()
                check_segment(segment, comes_on)
            finally:
                segment.close()
        except TierError as error:
            if error.segment is None and isinstance(error.__cause__, OSError):
                raise  # it is tried again
            return str(error).removesuffix(AGAIN).rstrip()
        return None

    try:
        return read_again(path, read)
    except TierError as error:  # it is not there
        return str(error).removesuffix(AGAIN).rstrip()


def _opened(path: Path) -> Segment:
    named = NAME.fullmatch(path.name)
    number = -1 if named is None else int(named[2])
    for name in names_in(path.parent):
        if not name.startswith("generation-"):
            continue
        said = read_list(path.parent / name)
        for block, (numbers, of) in enumerate(zip(said["segments"], said["blocks"], strict=True)):
            if number in numbers:
                return _sealed(path, number, block, Layout(*of[1:4]))
    raise TierError(f"{path}: no list in its folder names it.", segment=path)


def _sealed(path: Path, number: int, block: int, layout: Layout) -> Segment:
    """Past the page cache, which may have what the disk has lost; through it where the file system has no other way."""
    try:
        return Segment.sealed(path, number, block, layout)
    except TierError as error:
        if getattr(error.__cause__, "errno", None) != errno.EINVAL:
            raise
        return Segment.sealed(path, number, block, layout, direct=False)
