"""Counts of ``make soak``: how much of them is asked for, and what tests leave; knows none of what is counted."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHARE = float(os.environ.get("HPCREC_SOAK_SHARE", "1"))  # of the long counts; tools/soak.py sets it


def share_of(count: int) -> int:
    """So much of a long count as this soak was asked for, at least 1."""
    return max(1, round(count * SHARE))


def keep_counts(name: str, result: Mapping[str, Any]) -> None:
    """Writes counts as ``<name>.json`` to the folder that ``HPCREC_COUNTS`` names, where there is one."""
    if folder := os.environ.get("HPCREC_COUNTS"):
        (Path(folder) / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
