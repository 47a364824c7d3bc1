"""Check of the folder that runs are written to: every rank writes there, and every rank sees what the others wrote."""

import contextlib
import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrec.comm.probe import Probe, random_bytes
from hpcrec.doctor.base import Finding, Site, fail, ok, warn
from hpcrec.units import GB, KiB, MiB, format_bytes

_ALL_BYTES = 256 * MiB  # written by all ranks together, at most
_LEAST_BYTES, _MOST_BYTES = 256 * KiB, 8 * MiB  # by each
_VISIBLE_S = 3.0  # a network file system may show a new file a little later
_FREE_BYTES = GB
_READ_OTHERS = 16
_TAKEN = (errno.EACCES, errno.EAGAIN)


def measure_folder(site: Site) -> dict[str, Any]:
    """Writes a file, reads other ranks', tries locks; says what went wrong instead of raising, as others wait."""
    probe = site.probe
    mark = probe.share(uuid.uuid4().hex[:12])[0]
    place = site.folder / f".hpcrec-doctor-{mark}"
    n_bytes = min(max(_ALL_BYTES // probe.size, _LEAST_BYTES), _MOST_BYTES)
    answer: dict[str, Any] = {
        "error": None,
        "unseen": [],
        "bytes": n_bytes,
        "unlocked": "",
        "lock_unseen": False,
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
    answer["unlocked"], answer["lock_unseen"] = _try_locks(probe, place / "lock")
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


def _try_locks(probe: Probe, path: Path) -> tuple[str, bool]:
    """Why this rank cannot lock a file as a run's claim does, and whether it can while rank 0 does; collective."""
    lock = _lock(path, ()) if probe.rank == 0 else ""
    held = probe.share(isinstance(lock, int))[0]
    if probe.rank != 0:
        lock = _lock(path, _TAKEN)
    probe.barrier()
    if isinstance(lock, str):
        return lock, False
    os.close(lock)
    return "", held and probe.rank != 0


def _lock(path: Path, taken: Sequence[int]) -> int | str:
    """The descriptor of the file, locked; or why it cannot be, which is empty where these errors say it is taken."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if error.errno in taken:
                return ""
            raise
    except OSError as error:
        return error.strerror or str(error)
    return lock


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
    locks = list(_judge_locks(answers, site))
    yield from locks
    rate = sum(a["bytes"] for a in answers) / max(a["write_s"] for a in answers)
    seen = "written and seen by every rank" if len(answers) > 1 else "written"
    if free >= _FREE_BYTES:
        room = format_bytes(free)
        works = "" if locks else f", locking {'works' if len(site.by_host()) > 1 else 'works on this host'}"
        yield ok(
            "folder",
            f"{site.folder}: {seen}, {format_bytes(rate)}/s to disk, {room} free; renaming and "
            f"fsync of folders work{works}",
        )


def _judge_locks(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """A run's claim of its folder holds for every host."""
    without = [rank for rank, a in enumerate(answers) if a["unlocked"]]
    if without:
        yield warn(
            "locks",
            f"{site.folder}: {site.who(without)} cannot lock a file there: {answers[without[0]]['unlocked']}",
            "see yourself that one job at a time writes a run folder there, or give a folder with locks (--folder DIR)",
        )
    blind = [rank for rank, a in enumerate(answers) if a["lock_unseen"]]
    if blind:
        yield warn(
            "locks",
            f"{site.folder}: {site.who(blind)} could lock a file that rank 0 on {site.hosts[0]} had locked",
            "see yourself that one job at a time writes a run folder there: locks hold on one host only, as on NFS "
            "mounted with local_lock or nolock and Lustre with localflock",
        )
