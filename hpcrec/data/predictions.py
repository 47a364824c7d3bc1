"""The file of predictions: ``/prediction`` of an HDF5 file, whole or absent. Knows no model."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcrec.data.files import publish, temporary_beside, writing
from hpcrec.data.hdf5_out import Output


@contextlib.contextmanager
def predictions(out: Path, shape: tuple[int, ...]) -> Iterator[Output]:
    """The file for predictions of that shape, to be filled; nothing is at ``out`` until then.

    Raises
    ------
    OutputError
        The disk cannot be written.
    """
    hidden = temporary_beside(out)
    try:
        with Output(hidden, out) as output:
            output.file.create_dataset("prediction", shape, np.float32)
            yield output
        with writing(out):
            publish(hidden, out)
    finally:
        hidden.unlink(missing_ok=True)
