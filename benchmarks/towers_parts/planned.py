"""Towers that ``hpcrec towers plan`` finds in data. Knows its command line alone."""

import tomllib
from pathlib import Path

from _report import hpcrec
from towers_parts.data import Towers
from towers_parts.trained import CONFIG


def planned(
    folder: Path, n_towers: int, steps: int, seed: int, uneven: float, *settings: str, signal: str = "interactions"
) -> Towers:
    """Of ``folder``'s train.h5, by so many steps."""
    out = folder / "towers.toml"
    out.unlink(missing_ok=True)
    words = ["--towers", str(n_towers), "--steps", str(steps), "--signal", signal, "--uneven", str(uneven)]
    every = (f"data.train={folder / 'train.h5'}", f"train.seed={seed}", *settings)
    hpcrec("towers", "plan", str(CONFIG), *words, "--out", str(out), *(f"--set={setting}" for setting in every))
    return tuple(map(tuple, tomllib.loads(out.read_text())["model"]["options"]["towers"]))
