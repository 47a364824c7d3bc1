"""A site for checks to look at: a fake root folder, and judgements of answers that no rank has to give."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcrec.doctor.base import Check, Finding, Site

MEMINFO = "MemTotal:       {total} kB\nMemFree:        1 kB\nMemAvailable:   {available} kB\n"


def fake_root(folder: Path, *, total_bytes: int = 64 * 10**9, available_bytes: int = 60 * 10**9, cgroup=None) -> Path:
    """``proc``, ``sys`` and ``dev`` of a host, below ``folder``."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "dev/shm").mkdir(parents=True)
    text = MEMINFO.format(total=total_bytes // 1024, available=available_bytes // 1024)
    (folder / "proc/meminfo").write_text(text)
    (folder / "proc/self/cgroup").write_text("0::/job/step\n")
    (folder / "sys/fs/cgroup/job/step").mkdir(parents=True)
    (folder / "sys/fs/cgroup/job/step/memory.max").write_text("max\n")
    (folder / "sys/fs/cgroup/job/memory.max").write_text(f"{cgroup or 'max'}\n")
    return folder


def site_of(hosts: list[str], environment: dict[str, str] | None = None, **more: Any) -> Site:
    """A site of one rank for each name of a host, seen without MPI."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(hosts))}
    probe = SimpleNamespace(rank=0, size=len(hosts), host_of=tuple(numbers[h] for h in hosts), missing=frozenset())
    given = {"environment": environment or {}, "folder": Path(), **more}
    return Site(probe=probe, host=hosts[0], hosts=hosts, **given)  # type: ignore[arg-type]


def judged(check: Check, answers: list[Any], hosts: list[str], **more: Any) -> list[Finding]:
    """What a check finds in these answers."""
    return list(check.judge(answers, site_of(hosts, **more)))


def only(findings: list[Finding], level: str) -> Finding:
    """The one finding of this level."""
    (found,) = [f for f in findings if f.level == level]
    return found
