"""Cores of this host: two hardware threads of a core count once. Knows Linux's files; elsewhere every CPU is a core."""

import os
from collections.abc import Iterable
from pathlib import Path


def cores_of(cpus: Iterable[int]) -> list[str]:
    """The cores that some CPUs are of, each by package and number."""
    found = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            found.add(":".join((topology / name).read_text().strip() for name in ("physical_package_id", "core_id")))
        except OSError:
            found.add(f"cpu {cpu}")
    return sorted(found)


def cores_here() -> list[str]:
    """Those that this process may use."""
    return cores_of(os.sched_getaffinity(0))


def cores_of_host() -> int:
    """How many there are in all."""
    return len(cores_of(range(os.cpu_count() or 1)))
