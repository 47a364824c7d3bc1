"""What says how a data set's values became ids, taken along by a run and by an export: both then predict raw values.

The column map, with bins, is in ``prepare.json``, and what vocabularies have is in ``vocabulary.h5``. Knows names of
files; what is in them is for ``preparation.sourced``.
"""

import contextlib
import os
import shutil
from pathlib import Path

from hpcrec.again import is_there
from hpcrec.data.files import sync

FOLDER = "source"  # of a run, or of an export
MAP, VOCABULARY = "prepare.json", "vocabulary.h5"


def carry(data: Path, into: Path) -> None:
    """Has ``into`` these files of the data set in ``data``, in place of those of another one; none where it has none.

    They have another name there where file systems let them, for nobody writes into them; else they are copied.

    Raises
    ------
    OSError
    """
    names = [name for name in (VOCABULARY, MAP) if is_there(data / name)]
    for old in (MAP, VOCABULARY):
        if old not in names or MAP not in names:
            (into / old).unlink(missing_ok=True)  # of a data set that it was trained with before
    if MAP not in names:
        return
    into.mkdir(parents=True, exist_ok=True)
    for name in names:  # the map last: whoever finds it finds the other one too
        hidden = into / f".{name}.tmp"
        hidden.unlink(missing_ok=True)
        try:
            os.link(data / name, hidden)
        except OSError:  # another file system, or one without links
            with contextlib.suppress(FileNotFoundError):
                hidden.unlink()
            shutil.copyfile(data / name, hidden)
            with hidden.open("rb") as file:
                os.fsync(file.fileno())
        hidden.replace(into / name)
        hidden.unlink(missing_ok=True)  # it stays where both were names of one file
    sync(into)


def carried(folder: Path) -> Path | None:
    """The folder in a run's, or an export's, that has them; None where it has none."""
    return folder / FOLDER if is_there(folder / FOLDER / MAP) else None
