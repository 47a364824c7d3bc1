"""Check of the folder that runs are written to: every rank writes there, and every rank sees what the others wrote."""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrec.comm.probe import random_bytes
from hpcrec.doctor.base import Finding, Site, fail, ok, warn
from hpcrec.units import GB, KiB, MiB, format_bytes

_ALL_BYTES = 256 * MiB  # written by all ranks together, at most
_LEAST_BYTES, _MOST_BYTES = 256 * KiB, 8 * MiB  # by each
_VISIBLE_S = 3.0  # a network file system may show a new file a little later
_FREE_BYTES = GB
_READ_OTHERS = 16


def measure_folder(site: Site) -> dict[str, Any]:
    """Writes a file, reads other ranks', makes one that none has; tells what went wrong instead of raising."""
    probe = site.probe
    mark = probe.share(uuid.uuid4().hex[:12])[0]
    place = site.folder / f".hpcrec-doctor-{mark}"
    n_bytes = min(max(_ALL_BYTES // probe.size, _LEAST_BYTES), _MOST_BYTES)
    answer: dict[str, Any] = {
        "error": None,
        "unseen": [],
        "bytes": n_bytes,
        "made": False,
        "unmade": "",
        "free": None,
        "write_s": 0.0,
        "renamed": True,
    }

    def attempt(step: Callable[[], Any]) -> None:
        if answer["error"] is None:
            try:
                step()
            except OSError as error:
                answer["error"] = str(error)

    if probe.rank == 0:
        attempt(place.mkdir)
    probe.barrier()
    began_s = time.perf_counter()
    attempt(lambda: _write(place, probe.rank, n_bytes))
    answer["write_s"] = time.perf_counter() - began_s
    wrote = [e is None for e in probe.share(answer["error"])]
    others = [(probe.rank + i) % probe.size for i in range(1, min(probe.size, _READ_OTHERS + 1))]
    first_of_host = [ranks[0] for ranks in site.by_host().values() if ranks[0] != probe.rank]
    for other in dict.fromkeys([*others, *first_of_host]):
        if wrote[other] and not _seen(place, other, n_bytes):
            answer["unseen"].append(other)
    if probe.rank == 0:
        attempt(lambda: _rename(place))
    probe.barrier()
    answer["renamed"] = _within(lambda: _new_name_holds(place)) if all(wrote) else None
    answer["made"], answer["unmade"] = _make_alone(place / "alone")
    probe.barrier()
    attempt(lambda: answer.update(free=_free_bytes(place)))
    with contextlib.suppress(OSError):  # what is left is named in the finding, if it cannot be written either
        (place / str(probe.rank)).unlink(missing_ok=True)
    probe.barrier()
    shutil.rmtree(place, ignore_errors=True)
    return answer


def _write(place: Path, rank: int, n_bytes: int) -> None:
    place.mkdir(exist_ok=True)  # a folder that is not shared: its rank sees no other file, which says more
    with (place / str(rank)).open("wb") as file:
        file.write(random_bytes(n_bytes, rank).tobytes())
        file.flush()
        os.fsync(file.fileno())


def _seen(place: Path, rank: int, n_bytes: int) -> bool:
    expected = random_bytes(n_bytes, rank).tobytes()

    def read() -> bool:
        list(place.iterdir())  # makes a network file system look again
        return (place / str(rank)).read_bytes() == expected

    return _within(read)


def _within(holds: Callable[[], bool]) -> bool:
    """Whether something comes to hold in a little while; an error is not yet."""
    until_s = time.monotonic() + _VISIBLE_S
    while True:
        with contextlib.suppress(OSError):
            if holds():
                return True
        if time.monotonic() > until_s:
            return False
        time.sleep(0.1)


def _rename(place: Path) -> None:
    """As a checkpoint gets its name: a folder under a hidden name, its file over an older one, then renamed."""
    hidden = place / ".hidden"
    hidden.mkdir()
    for name, text in (("file", "old"), ("new", "new")):
        (hidden / name).write_text(text)
        _sync(hidden / name)
    (hidden / "new").replace(hidden / "file")
    _sync(hidden)
    hidden.rename(place / "named")
    _sync(place)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new_name_holds(place: Path) -> bool:
    names = {path.name for path in place.iterdir()}
    return ".hidden" not in names and (place / "named" / "file").read_text() == "new"


def _make_alone(path: Path) -> tuple[bool, str]:
    """Whether this rank made a file that no other has made, as a run's claim is; and why it cannot make one at all."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return False, ""
    except OSError as error:
        return False, error.strerror or str(error)
    return True, ""


def _free_bytes(place: Path) -> int:
    room = os.statvfs(place)
    return room.f_bavail * room.f_frsize


def judge_folder(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Written, seen by all, with room."""
    bad = [rank for rank, a in enumerate(answers) if a["error"]]
    if bad:
        yield fail(
            "folder",
            f"{site.folder}: {site.who(bad)} cannot write there: {answers[bad[0]]['error']}",
            "give a folder that every rank may write to (--folder DIR), on a shared file system",
        )
    blind = {rank: a["unseen"] for rank, a in enumerate(answers) if a["unseen"]}
    if blind:
        rank, unseen = next(iter(blind.items()))
        yield fail(
            "folder",
            f"{site.folder}: {site.who([rank])} does not see what {site.who(unseen)} wrote"
            + (f"; so do {len(blind) - 1} more" if len(blind) > 1 else ""),
            "give a folder on a file system that all hosts share (--folder DIR); checkpoints are written by all ranks",
        )
    unnamed = [rank for rank, a in enumerate(answers) if a["renamed"] is False]
    if unnamed and not blind and not bad:
        yield fail(
            "folder",
            f"{site.folder}: {site.who(unnamed)} does not see a folder under the new name that rank 0 gave it",
            "give a folder where renaming is seen everywhere (--folder DIR): whole checkpoints are renamed",
        )
    if bad or blind or unnamed:
        return
    free = min(a["free"] for a in answers)
    if free < _FREE_BYTES:
        do = "make room, or give another folder (--folder DIR); a checkpoint takes rows and optimizer state once"
        yield warn("folder", f"{site.folder}: {format_bytes(free)} free", do)
    claims = list(_judge_claims(answers, site))
    yield from claims
    rate = sum(a["bytes"] for a in answers) / max(a["write_s"] for a in answers)
    seen = "written and seen by every rank" if len(answers) > 1 else "written"
    if free >= _FREE_BYTES:
        room = format_bytes(free)
        works = "" if claims else ", files are made exclusively"
        yield ok(
            "folder",
            f"{site.folder}: {seen}, {format_bytes(rate)}/s to disk, {room} free; renaming and "
            f"fsync of folders work{works}",
        )


def _judge_claims(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Of all ranks that would make one file, one does: so two jobs cannot both claim a run's folder."""
    unable = [rank for rank, a in enumerate(answers) if a["unmade"]]
    if unable:
        yield warn(
            "claims",
            f"{site.folder}: {site.who(unable)} cannot make a file exclusively there: {answers[unable[0]]['unmade']}",
            "give a folder on another file system (--folder DIR): runs cannot claim theirs there",
        )
    made = [rank for rank, a in enumerate(answers) if a["made"]]
    if len(made) > 1:
        yield warn(
            "claims",
            f"{site.folder}: {site.who(made)} all made one file, exclusively",
            "see yourself that one job at a time writes a run folder there, or give a folder on another file system "
            "(--folder DIR)",
        )
