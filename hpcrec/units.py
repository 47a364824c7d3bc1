"""Units: constants with their unit in the name, and how a quantity is written for a reader, or by one."""

import re

KB, MB, GB = 10**3, 10**6, 10**9
KiB, MiB, GiB = 2**10, 2**20, 2**30
BYTES_PATTERN = r"^[0-9]+(\.[0-9]+)? ?(B|kB|MB|GB|KiB|MiB|GiB)$"
_SIZES = {"B": 1, "kB": KB, "MB": MB, "GB": GB, "KiB": KiB, "MiB": MiB, "GiB": GiB}


def format_bytes(n_bytes: float) -> str:
    """``1536000`` -> ``'1.54 MB'``: decimal, as links and disks are sold."""
    for unit, size in (("GB", GB), ("MB", MB), ("kB", KB)):
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.2f} {unit}"
    return f"{n_bytes:.0f} B"


def format_duration(seconds_s: float) -> str:
    """``4000`` -> ``'1 h 7 min'``."""
    if seconds_s < 60:
        return f"{seconds_s:.3g} s"
    minutes = round(seconds_s / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def parse_bytes(text: str) -> int:
    """``'64 MiB'`` -> ``67108864``: a number and its unit, rounded down.

    Raises
    ------
    ValueError
        It does not match ``BYTES_PATTERN``.
    """
    if not re.fullmatch(BYTES_PATTERN, text):
        raise ValueError(f"bytes are {text!r}; allowed is a number with a unit, one of {', '.join(_SIZES)}: '64 MiB'")
    number, unit = re.split(r" ?(?=[A-Za-z])", text, maxsplit=1)
    return int(float(number) * _SIZES[unit])
