"""Checks of disks against what a run asks of them: of the run's folder, of node-local scratch, of the data set.

How speeds are measured is in ``disk``; what a run asks for, in ``build.needs``.
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hpcrec.build.needs import DiskNeeds, disk_needs
from hpcrec.config import CheckpointConfig
from hpcrec.data.index import open_files
from hpcrec.doctor.base import Finding, Site, fail, ok, warn
from hpcrec.doctor.disk import IN_MEMORY, Extent, Nothing, Read, Speed, Written, file_system, share_bytes, timed
from hpcrec.errors import HpcrecError
from hpcrec.units import MiB, format_bytes

RUN, SCRATCH, DATA = "disk of the run", "local scratch", "disk of data"
_SCRATCH_VARIABLES = ("SLURM_TMPDIR", "TMPDIR")
_LEAST_INODES = 1000
_CACHED = 0.1  # part of what was read that may be in the page cache without being told
_LEAST_TIMED = MiB  # of a data set


# ---- the run's folder ------------------------------------------------------------------------------------------------


def measure_run_disk(site: Site) -> dict[str, Any]:
    """Speeds of the folder for runs, its room, and on rank 0 what the run will write there."""
    return {**_write_and_read(site, site.folder, shared=True), **_needs(site)}


def _needs(site: Site) -> dict[str, Any]:
    """What the run asks of disks and how many samples a second it handles, on rank 0; or why that is not known."""
    if site.config is None or site.probe.rank != 0:
        return {"needs": None, "why": "", "samples_per_s": None}
    try:
        needs = disk_needs(site.config, site.probe.host_of)
    except (HpcrecError, OSError) as error:
        return {"needs": None, "why": str(error), "samples_per_s": None}
    return {"needs": needs, "why": "", "samples_per_s": site.samples_per_s or _earlier(Path(site.config.run.folder))}


def _earlier(folder: Path) -> float | None:
    """Samples a second of the run that is in the folder; None where there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((folder / "summary.json").read_text())["throughput"]["samples_per_s"]
        return float(found) or None
    return None


def _write_and_read(site: Site, folder: Path, *, shared: bool) -> dict[str, Any]:
    """Speeds of all ranks at once; ``shared``: each reads what a rank of another host wrote, if there is one."""
    probe, by_host = site.probe, site.by_host()
    mark = probe.share(uuid.uuid4().hex[:12])[0]
    place = folder / f".hpcrec-doctor-disk-{mark}"
    answer: dict[str, Any] = {"folder": str(folder), "kind": file_system(folder, site.root), "read": None}
    with contextlib.suppress(OSError):  # then writing fails, and says why
        place.mkdir(exist_ok=True)
    n_bytes = share_bytes(probe.size)
    answer["write"] = timed(probe, by_host, Written(place / str(probe.rank), probe.rank), n_bytes)
    written = answer["write"].bytes and not answer["write"].errors
    if written:
        others = [r for r, host in enumerate(probe.host_of) if shared and host != probe.host_of[probe.rank]]
        source = others[probe.rank % len(others)] if others else probe.rank
        size = min(probe.share(_size_of(place / str(probe.rank))))
        answer["read"] = timed(probe, by_host, Read(place / str(source)), size)
    with contextlib.suppress(OSError):
        room = os.statvfs(folder)
        answer |= {"free": room.f_bavail * room.f_frsize, "inodes": room.f_favail if room.f_files else None}
    probe.barrier()
    with contextlib.suppress(OSError):
        (place / str(probe.rank)).unlink(missing_ok=True)
    probe.barrier()
    shutil.rmtree(place, ignore_errors=True)
    return answer


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def judge_run_disk(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Checkpoints are written fast enough, and there is room for them."""
    first = answers[0]
    if (bad := _failed(RUN, first, site)) is not None:
        yield bad
        return
    yield from _speeds(RUN, first, site)
    inodes = [a["inodes"] for a in answers if a.get("inodes") is not None]
    if inodes and min(inodes) < _LEAST_INODES:
        do = "remove files, or give another folder (--folder DIR); a checkpoint has a file for each part of a table"
        yield warn("files", f"{first['folder']}: room for {min(inodes)} more files", do)
    if first["needs"] is not None:
        free = min((a["free"] for a in answers if "free" in a), default=None)
        yield from _checkpoint(first["needs"], first["samples_per_s"], first["write"], free, site)
    elif first["why"]:
        yield warn("checkpoint", f"its size is not known: {first['why']}", "mend what the message says")


def _checkpoint(
    needs: DiskNeeds, samples_per_s: float | None, write: Speed, free: int | None, site: Site
) -> Iterator[Finding]:
    """How long a checkpoint takes by the speed of each host's ranks, against the time that there is for it."""
    assert site.config is not None
    by_host = {h: sum(needs.checkpoint_bytes[r] for r in ranks) for h, ranks in site.by_host().items()}
    took_s = max(n / write.gbs_of_host[h] / 1e9 for h, n in by_host.items() if n or len(by_host) == 1)
    total, hosts = sum(by_host.values()), sum(n > 0 for n in by_host.values())
    site.found["checkpoint_s"] = took_s
    keys = site.config.checkpoint
    said = f"{format_bytes(total)} takes about {took_s:,.1f} s from {hosts} host{'s' * (hosts > 1)}"
    limit_s, why = site.checkpoint_s, f"{site.checkpoint_s:g} s are allowed (--checkpoint-s)"
    if keys.every and samples_per_s:
        every_s = keys.every * site.config.train.batch_size / samples_per_s
        site.found["every_s"] = every_s
        said += f", every {every_s:,.0f} s (checkpoint.every at {samples_per_s:,.0f} samples/s)"
        if every_s < limit_s:
            limit_s, why = every_s, "the next one is due before it is written"
    data = {"bytes_by_rank": list(needs.checkpoint_bytes), "seconds": took_s, **site.found}
    if took_s > limit_s:
        yield warn(
            "checkpoint",
            f"{said}: {why}",
            "write to a faster file system (--folder DIR, run.folder), raise checkpoint.every, or use more hosts",
            **data,
        )
    else:
        yield ok("checkpoint", said, **data)
    if free is not None:
        yield from _room(keys, total, free)


def _room(keys: CheckpointConfig, each: int, free: int) -> Iterator[Finding]:
    """Whether those that are kept have room, and the one that is being written."""
    best = bool(keys.keep_best)
    copies, stay = keys.keep + best, 1 + best  # the newest and the best stay, whatever they hold
    held, do = copies * each, "lower checkpoint.keep, or set checkpoint.keep_bytes"
    said = f"{copies + 1} checkpoints take {format_bytes(held + each)}"
    if keys.keep_bytes is not None and keys.keep_bytes < held:
        held, do = max(keys.keep_bytes, stay * each), "lower checkpoint.keep_bytes"
        if held > keys.keep_bytes:
            do = "save fewer bytes"
            said = f"the {'newest and the best checkpoint' if best else 'newest checkpoint'}"
            said += f", and the one that is being written, take {format_bytes(held + each)}"
        else:
            said = f"checkpoints take up to {format_bytes(held + each)} (checkpoint.keep_bytes, and one more)"
    if free < held + each:
        full = free < each
        yield (fail if full else warn)(
            "room", f"{format_bytes(free)} free; {said}", f"make room, write elsewhere (run.folder), or {do}"
        )


# ---- scratch ---------------------------------------------------------------------------------------------------------


def measure_scratch(site: Site) -> dict[str, Any]:
    """Speeds of this host's own disk, where the job has a folder there."""
    names = [site.environment[n] for n in _SCRATCH_VARIABLES if site.environment.get(n)]
    folder = site.scratch or (Path(names[0]) if names else None)
    everywhere = site.probe.share(folder is not None)
    if folder is None or not all(everywhere):
        return {
            "folder": None,
            "without": [r for r, has in enumerate(everywhere) if not has] if any(everywhere) else [],
        }
    return _write_and_read(site, folder, shared=False)


def judge_scratch(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """It can be written, and no host's is much slower."""
    if answers[0]["folder"] is None:
        if without := answers[0]["without"]:
            who, do = site.who(without), "give one that every host has: --scratch DIR"
            yield warn(SCRATCH, f"neither SLURM_TMPDIR nor TMPDIR is set for {who}, but for others", do)
        return
    bad = _failed(SCRATCH, answers[0], site)
    yield from _speeds(SCRATCH, answers[0], site) if bad is None else [bad]


# ---- data ------------------------------------------------------------------------------------------------------------


def measure_data_disk(site: Site) -> dict[str, Any]:
    """Speed of reading the training data's own files, each rank another part."""
    assert site.config is not None
    probe, path = site.probe, Path(site.config.data.train)
    files: list[tuple[Path, int]] = []
    with contextlib.suppress(HpcrecError, OSError):  # the check of the data says what is wrong with it
        files = [(f.path, f.path.stat().st_size) for f in open_files(path)[0]] if probe.rank == 0 else []
    files = probe.share(files)[0]
    total = sum(n for _, n in files)
    answer: dict[str, Any] = {"folder": str(path), "kind": file_system(path, site.root), "read": None, "bytes": total}
    if total >= _LEAST_TIMED:
        extent, n_bytes = _part_of(files, total * probe.rank // probe.size, -(-total // probe.size))
        most = max(probe.share(min(n_bytes, share_bytes(probe.size))))
        answer["read"] = timed(probe, site.by_host(), extent, most)
    return {**answer, **_needs(site)}


def _part_of(files: Sequence[tuple[Path, int]], at: int, n_bytes: int) -> tuple[Extent, int]:
    """Where byte ``at`` of all files in a row is, and how many of the next ``n_bytes`` are in that file."""
    for path, size in files:
        if at < size:
            return Read(path, at), min(n_bytes, size - at)
        at -= size
    return Nothing(), 0


def judge_data_disk(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """Samples come as fast as they are trained on."""
    first = answers[0]
    if first["read"] is None:
        if first["bytes"]:
            yield ok(DATA, f"{first['folder']}: {format_bytes(first['bytes'])}, too small to time; memory will hold it")
        return
    if (bad := _failed(DATA, first, site)) is not None:
        yield bad
        return
    yield from _speeds(DATA, first, site)
    needs: DiskNeeds | None = first["needs"]
    if needs is None:
        return
    hosts = len({site.probe.host_of[r] for r in needs.readers}) if needs.whole else 1
    a_sample = hosts * needs.sample_bytes
    feeds = 1e9 * first["read"].gbs / a_sample
    how = f"{format_bytes(needs.sample_bytes)} a sample" + (f", read on {hosts} hosts each" if hosts > 1 else "")
    data = {"samples_per_s": feeds, "sample_bytes": needs.sample_bytes, "wanted_samples_per_s": first["samples_per_s"]}
    if first["samples_per_s"] and feeds < first["samples_per_s"]:
        yield warn(
            "reading",
            f"enough for {feeds:,.0f} samples/s ({how}); the run handles {first['samples_per_s']:,.0f}",
            "put the data on a faster file system or local scratch; with data.shuffle = false ranks read only theirs",
            **data,
        )
    else:
        against = f"; the run handles {first['samples_per_s']:,.0f}" if first["samples_per_s"] else ""
        yield ok("reading", f"enough for {feeds:,.0f} samples/s ({how}){against}", **data)


# ---- all of them -----------------------------------------------------------------------------------------------------


def _failed(what: str, answer: dict[str, Any], site: Site) -> Finding | None:
    for speed, does in ((answer.get("write"), "write to"), (answer["read"], "read from")):
        if speed is not None and speed.errors:
            text = next(iter(speed.errors.values()))
            who = site.who(speed.errors)
            do = "mend what the message says, or give another folder (--folder, --scratch, data.train)"
            return fail(what, f"{answer['folder']}: {who} cannot {does} it: {text}", do)
    return None


def _speeds(what: str, answer: dict[str, Any], site: Site) -> Iterator[Finding]:
    """Hosts that are slower than others, and the line on all of them."""
    size, hosts = site.probe.size, len(site.by_host())
    write: Speed | None = answer.get("write")
    read: Speed | None = answer["read"]
    speeds = {does: speed for does, speed in (("write", write), ("read", read)) if speed is not None}
    for does, speed in speeds.items():
        for host in speed.slow_hosts:
            name = site.hosts[site.by_host()[host][0]]
            yield warn(
                "slow disk",
                f"{answer['folder']}: {name} {does}s {speed.gbs_of_host[host]:.3f} GB/s, all hosts together "
                f"{speed.gbs:.3f} GB/s",
                f"look at this host's disk, its link to the file servers and other jobs, or leave it out "
                f"(sbatch --exclude={name})",
            )
    parts = [f"write {write.gbs:.3f} GB/s (on disk, fsync)"] if write is not None else []
    if read is not None:
        parts.append(f"read {read.gbs:.3f} GB/s ({_from(read.cached, answer['kind'])})")
    together = f"{size} ranks on {hosts} host{'s' * (hosts > 1)} at once" if size > 1 else "one rank"
    found = f"{answer['folder']} ({answer['kind']}): {together} {', '.join(parts)}"
    data = {
        does: {"gbs": s.gbs, "gbs_by_host": list(s.gbs_of_host.values()), "bytes": s.bytes, "cached": s.cached}
        for does, s in speeds.items()
    }
    yield ok(what, found, kind=answer["kind"], **data)


def _from(cached: float | None, kind: str) -> str:
    if kind in IN_MEMORY:
        return "this is memory, not a disk"
    if cached is None:
        return "the page cache may have helped: this file system does not say"
    if cached > _CACHED:
        return f"{100 * cached:.0f} % of it stayed in the page cache"
    return "not from the page cache"
