"""Units: constants with their unit in the name, and how a quantity is written for a reader."""

KB, MB, GB = 10**3, 10**6, 10**9
KiB, MiB, GiB = 2**10, 2**20, 2**30


def format_bytes(n_bytes: float) -> str:
    """``1536000`` -> ``'1.54 MB'``: decimal, as links and disks are sold."""
    for unit, size in (("GB", GB), ("MB", MB), ("kB", KB)):
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.2f} {unit}"
    return f"{n_bytes:.0f} B"
