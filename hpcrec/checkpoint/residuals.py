"""What thresholded dense gradients had left unsent, in a checkpoint: one file for each dense rank. See ``dense.dct``.

Knows files and arrays; who takes what is for ``residual_state``. The format is docs/checkpoint.md.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from hpcrec.checkpoint import files
from hpcrec.checkpoint.parts import read_hdf5
from hpcrec.data.hdf5_lookup import found_in, items_in
from hpcrec.dense.dct_choose import Counts
from hpcrec.dense.residuals import Piece, Residuals
from hpcrec.errors import CheckpointError

_NAME = re.compile(re.escape(files.RESIDUALS) + r"(\d+)\.h5")


@dataclass(frozen=True)
class Unsent:
    """Of one dense rank: its residuals, what it had counted, and the density of its thresholds; None: not known."""

    residuals: Residuals
    counts: Counts
    density: float | None = None


def file_name(part: int) -> str:
    """The file of dense rank ``part``."""
    return f"{files.RESIDUALS}{part}.h5"


def parts_in(names: Iterable[str]) -> list[int]:
    """The dense ranks whose files are among these names, rising."""
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


def write_unsent(file: h5py.File, unsent: Unsent, *, part: int, ranks: int) -> None:
    """Writes what dense rank ``part`` of ``ranks`` has."""
    file.attrs.update({"part": part, "ranks": ranks, "counts": unsent.counts.as_array()})
    if unsent.density is not None:
        file.attrs["density"] = unsent.density
    for kind, pieces in (("first", unsent.residuals.first), ("second", unsent.residuals.second)):
        group = file.create_group(kind)
        for name, piece in pieces.items():
            dataset = group.create_dataset(files.quoted(name), data=piece.left)
            dataset.attrs["start"] = piece.start
            if piece.tau is not None:
                dataset.attrs["threshold"] = piece.tau


def read_unsent(path: Path, *, part: int, ranks: int) -> Unsent:
    """What dense rank ``part`` of ``ranks`` had.

    Raises
    ------
    CheckpointError
        The file is not as it should be, or that of another rank.
    """

    def read(file: h5py.File) -> Unsent:
        found = int(file.attrs["part"]), int(file.attrs["ranks"])
        if found != (part, ranks):
            raise CheckpointError(
                f"{path}: is of dense rank {found[0]} of {found[1]}, in a checkpoint with files of {ranks} ranks. "
                "Each of them must be there once; see docs/checkpoint.md."
            )
        first, second = (
            {files.unquoted(name): _piece(dataset) for name, dataset in items_in(file, kind)}
            for kind in ("first", "second")
        )
        counts, density = (found_in(file.attrs, name) for name in ("counts", "density"))
        return Unsent(
            Residuals(first, second),
            Counts() if counts is None else Counts.of(counts),
            None if density is None else float(density),
        )

    return read_hdf5(path, read)


def _piece(dataset: h5py.Dataset) -> Piece:
    start, left = int(found_in(dataset.attrs, "start", 0)), np.asarray(dataset[()])
    threshold = found_in(dataset.attrs, "threshold")
    tau = None if threshold is None else float(threshold)
    if left.ndim != 1 or left.dtype.kind != "f" or not np.isfinite(left).all():
        raise ValueError(f"{dataset.name} is {left.dtype} {list(left.shape)}, not finite float [any]")
    if start < 0 or (tau is not None and not (tau > 0 and math.isfinite(tau))):
        raise ValueError(f"{dataset.name} has start {start} and threshold {tau}; allowed are 0 and more, and above 0")
    return Piece(start, left, tau)
