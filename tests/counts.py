"""Counts that tests leave for ``make soak``; knows none of what is counted."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def keep_counts(name: str, result: Mapping[str, Any]) -> None:
    """Writes counts as ``<name>.json`` to the folder that ``HPCREC_COUNTS`` names, where there is one."""
    if folder := os.environ.get("HPCREC_COUNTS"):
        (Path(folder) / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
