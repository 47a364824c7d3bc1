"""Source files for the tests of converters, and what a folder holds, byte for byte."""

import gzip
import hashlib
from pathlib import Path

import numpy as np

from hpcrec.preparation.split import Split

ALL = Split("order", (1.0, 0.0, 0.0))


def criteo_line(label: object = 1, integers: object = "5", category: str = "0000000a") -> str:
    return "\t".join([str(label), *[str(integers)] * 13, *[category] * 26])


def criteo_lines(n: int, seed: int = 0) -> list[str]:
    """Lines with missing and negative integers, missing categories and values that repeat."""
    rng = np.random.default_rng(seed)
    integers = rng.integers(-2, 60, (n, 13)).astype(str)
    integers[rng.random((n, 13)) < 0.2] = ""
    words = np.array(["", *(f"{value:08x}" for value in rng.integers(0, 1 << 32, 300))])
    categories = words[np.minimum(rng.zipf(1.3, (n, 26)) - 1, 300)]
    labels = rng.integers(0, 2, (n, 1)).astype(str)
    return ["\t".join(row) for row in np.concatenate([labels, integers, categories], axis=1)]


def write_text(path: Path, lines: list[str]) -> Path:
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def content(folder: Path) -> dict[str, str]:
    """Checksum of each file, by its path in the folder; the journal's result included."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
