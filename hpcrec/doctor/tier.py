"""A check of the disk that rows are on (``store.name = "disk"``): random reads of all owners of a host at once.

Held against what steps will read, as ``hpcrec config check`` predicts it. Reading is ``disk.rate``'s, the prediction
``build.tiers``'s.
"""

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrec.build.memory import topology_of
from hpcrec.build.tier_lines import nearest, step_in_memory
from hpcrec.build.tiers import disk_bytes, reads_of, tiers_of
from hpcrec.disk.layout import SECTOR_BYTES
from hpcrec.disk.rate import FILE_BYTES, RandomReads
from hpcrec.doctor.base import Finding, Site, fail, ok, warn
from hpcrec.doctor.disk import IN_MEMORY, file_system
from hpcrec.errors import HpcrecError
from hpcrec.units import MiB, format_bytes

ROWS = "disk of rows"
_SECONDS = 1.0
_SLOW = 3.0
_LEAST_COMPARED = 3  # hosts


def measure_rows_disk(site: Site) -> dict[str, Any] | None:
    """Pages a second of this rank while all owners read, and on rank 0 what a step will read; None: no rows there."""
    assert site.config is not None, "this check is only made with a configuration"
    if site.config.store.name != "disk":
        return None
    assert site.config.store.path is not None and site.config.store.memory_bytes is not None, (
        "config.keys asks for both"
    )
    probe, folder = site.probe, nearest(Path(site.config.store.path))
    needs = _needs(site) if probe.rank == 0 else {"page_bytes": SECTOR_BYTES, "owners": ()}
    shared = probe.share((needs["page_bytes"], needs["owners"]))[0]
    page_bytes, owners = shared
    answer: dict[str, Any] = {**needs, "folder": str(folder), "kind": file_system(folder, site.root), "error": None}
    here = [rank for rank in owners if probe.host_of[rank] == probe.host_of[probe.rank]]
    reads, pages, seconds = None, 0, 0.0
    try:
        if probe.rank in owners:
            n_bytes = max(FILE_BYTES // len(here), 16 * MiB)
            reads = RandomReads(folder, page_bytes, n_bytes=n_bytes, seed=probe.rank)
    except (HpcrecError, OSError) as error:
        answer["error"] = str(error)
    try:
        everywhere = not any(probe.share(answer["error"]))
        probe.barrier()
        if reads is not None and everywhere:
            pages, seconds, _ = reads.run(_SECONDS)
            answer["way"] = reads.way
    except (HpcrecError, OSError) as error:
        answer["error"] = str(error)
    finally:
        if reads is not None:
            reads.close()
    answer["reads_per_s"] = pages / seconds if seconds else 0.0
    room = os.statvfs(folder)
    return {**answer, "free": room.f_bavail * room.f_frsize}


def _needs(site: Site) -> dict[str, Any]:
    """What a step reads on each host, by bytes of a page, and what rows take there; or why that is not known."""
    assert site.config is not None and site.config.store.memory_bytes is not None, "see its caller"
    config, probe, memory_bytes = site.config, site.probe, site.config.store.memory_bytes
    found: dict[str, Any] = {
        "page_bytes": SECTOR_BYTES,
        "owners": (),
        "reads": None,
        "space": {},
        "why": "",
        "many": False,
    }
    step_s, said = step_in_memory(config, site.samples_per_s)
    found |= {"step_s": step_s, "step_said": said}
    try:
        found["owners"] = topology_of(config, probe.host_of).owners
        tiers = tiers_of(config, probe.host_of)
    except (HpcrecError, OSError) as error:
        return {**found, "why": str(error)}
    if isinstance(tiers, str):
        return {**found, "why": tiers, "many": True}
    by_host: dict[int, list[int]] = {}
    for rank in tiers.parts:
        by_host.setdefault(probe.host_of[rank], []).append(rank)
    reads = {host: reads_of(tiers, ranks, memory_bytes) for host, ranks in by_host.items()}
    if any(of is None for of in reads.values()):
        found["why"] = "store.memory_bytes is too little: see hpcrec config check"
    else:
        found["reads"] = {host: of for host, of in reads.items() if of is not None}
    return {
        **found,
        "page_bytes": max((part.page_bytes for parts in tiers.parts.values() for part in parts), default=SECTOR_BYTES),
        "space": {host: sum(disk_bytes(tiers.parts[r], tiers.whole) for r in ranks) for host, ranks in by_host.items()},
    }


def judge_rows_disk(answers: Sequence[dict[str, Any] | None], site: Site) -> Iterator[Finding]:
    """It can be read past the page cache, has room, and reads take no longer than steps."""
    first = answers[0]
    given = [answer for answer in answers if answer is not None]
    if first is None:
        return
    if bad := [rank for rank, answer in enumerate(given) if answer["error"]]:
        text = given[bad[0]]["error"]
        yield fail(ROWS, f"{site.who(bad)}: {text}", "mend what the message says, or give another store.path")
        return
    owners = set(first["owners"])
    rates = {
        host: sum(given[rank]["reads_per_s"] for rank in ranks if rank in owners)
        for host, ranks in site.by_host().items()
        if owners & set(ranks)
    }
    yield from _slow_hosts(rates, first, site)
    size, kind = first["page_bytes"] // 1024, first["kind"]
    least = min(rates.values(), default=0.0)
    plural = "s" * (len(owners) > 1)
    memory = ", which is memory, not a disk" if kind in IN_MEMORY else ""
    where, together = f"{first['folder']} ({kind}{memory})", f"{len(owners)} owner{plural} at once"
    found = f"{where}: {together}, {least:,.0f} random reads/s of {size} KiB"
    data = {"reads_per_s_by_host": list(rates.values()), "page_bytes": first["page_bytes"], "kind": kind}
    yield ok(ROWS, found + (" on the slowest host" if len(rates) > 1 else ""), **data)
    for host, n_bytes in first["space"].items():
        free = given[site.by_host()[host][0]]["free"]
        if free < n_bytes:
            name = site.hosts[site.by_host()[host][0]]
            said = f"{name}: rows take up to {format_bytes(n_bytes)}, {format_bytes(free)} are free"
            yield warn("room for rows", said, "make room, or give store.path on a larger disk")
    yield from _reading(rates, first)


def _slow_hosts(rates: Mapping[int, float], first: Mapping[str, Any], site: Site) -> Iterator[Finding]:
    if len(rates) < _LEAST_COMPARED:
        return
    usual = statistics.median(rates.values())
    for host, rate in rates.items():
        if rate < usual / _SLOW:
            name = site.hosts[site.by_host()[host][0]]
            yield warn(
                "slow disk",
                f"{first['folder']}: {name} reads {rate:,.0f} pages/s, the median of hosts {usual:,.0f}",
                f"look at this host's disk and other jobs on it, or leave it out (sbatch --exclude={name})",
            )


def _reading(rates: Mapping[int, float], first: Mapping[str, Any]) -> Iterator[Finding]:
    """Reads of a step by these rates, against a step in memory."""
    if first["many"]:
        yield ok("reads of rows", f"are predicted by hpcrec config check: {first['why']}")
        return
    if first["reads"] is None:
        yield warn("reads of rows", f"are not predicted: {first['why']}", "see hpcrec config check")
        return
    reads = {host: sum(of.values()) for host, of in first["reads"].items()}
    took_s = {host: n / max(rates.get(host, 0.0), 1e-9) for host, n in reads.items()}
    host = max(took_s, key=lambda of: took_s[of])
    data = {"reads_a_step": reads[host], "seconds": took_s[host], "step_s": first["step_s"]}
    found = f"{reads[host]:,.1f} a step and host, {1e3 * took_s[host]:,.1f} ms"
    if first["step_s"] is None:
        yield ok("reads of rows", f"{found}; against what step is not known (--samples-per-s)", **data)
        return
    found += f"; a step in memory takes {1e3 * first['step_s']:,.1f} ms ({first['step_said']})"
    if took_s[host] <= first["step_s"]:
        yield ok("reads of rows", found, **data)
    else:
        speed = first["step_s"] / took_s[host]
        do = "hpcrec config check says which memory, and which store.whole, would do; or take a faster disk"
        yield warn("reads of rows", f"{found}, so {speed:.2f} of that speed", do, **data)
