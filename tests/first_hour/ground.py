"""What mistakes are made on: tables, a column map, data sets, a configuration, a run, an mpirun that only notes.

All in one folder, by hpcrec's own commands, in some seconds. Knows no mistakes.
"""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from tests.forked import Done, Forked

COLUMNS = ("click", "user", "item", "price", "hour", "rating")
ROWS = 400
MAP = """\
labels = ["click"]
split = "hash:0.6,0.2,0.2"
[dense.price]
transform = "log1p"
[sparse.user]
ids = "vocabulary"
[sparse.item]
rows = 50
[sparse.hour]
ids = "integer"
rows = 24
"""
RUN = """\
[data]
train = "{folder}/data/train.h5"
validation = "{folder}/data/validation.h5"
test = "{folder}/data/test.h5"
[model]
name = "deepfm"
width = 4
options = { hidden = [8] }
[dense]
reducer = "mpi"
optimizer = { name = "Adam", lr = 0.01 }
[train]
batch_size = 64
steps = 4
[run]
folder = "{folder}/runs/mine"
tensorboard = false
progress = false
"""
_PROGRAM = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0.0"; exit 0; fi
echo "$@" >> {started}
exit 99
"""


@dataclass(frozen=True)
class Ground:
    """The folder, and how ``hpcrec`` is run in it."""

    folder: Path
    hpcrec: Forked

    @property
    def python(self) -> Path:
        """What a process takes for its Python, so that it finds the mpirun that only notes that it was started."""
        return self.folder / "programs" / "python"

    @property
    def started(self) -> Path:
        """Where that mpirun notes it."""
        return self.folder / "started"

    def text(self, template: str) -> str:
        """A template with the folder and the home folder put in."""
        return template.replace("{folder}", str(self.folder)).replace("{home}", str(Path.home()))


def make(folder: Path, hpcrec: Forked) -> Ground:
    """Writes all of it into ``folder``."""
    ground = Ground(folder, hpcrec)
    (folder / "elsewhere").mkdir()
    _programs(ground)
    _tables(folder)
    whole = folder / "clicks.csv"
    _convert(ground, MAP, whole, "data")
    _convert(ground, MAP.replace('"vocabulary"', '"vocabulary"\nrows = 20'), whole, "other")
    _convert(ground, MAP.replace('"vocabulary"', '"raw"'), whole, "raw")
    _convert(ground, MAP.replace("[sparse.item]\nrows = 50\n", ""), whole, "fewer")
    _own_files(folder)
    (folder / "run.toml").write_text(ground.text(RUN))
    _done(hpcrec("train", folder / "run.toml", "--set", "train.steps=2"))
    return ground


def _programs(ground: Ground) -> None:
    ground.python.parent.mkdir()
    for name in ("mpirun", "srun", "sbatch", "squeue"):
        program = ground.python.parent / name
        program.write_text(_PROGRAM.format(started=ground.started))
        program.chmod(0o755)


def _tables(folder: Path) -> None:
    rng = random.Random(7)
    rows = []
    for _ in range(ROWS):
        user, item = f"u{rng.randint(0, 40)}", f"i{rng.randint(0, 60)}"
        values = (rng.randint(0, 1), user, item, f"{rng.uniform(1, 90):.2f}", rng.randint(0, 23), rng.randint(2, 5))
        rows.append([str(value) for value in values])
    rows[0][5] = "5"
    gaps = [[*row] for row in rows]
    gaps[5][3] = ""
    quoted = [[*row] for row in rows]
    quoted[1][2] = '"Hammer, large"'
    for name, table, delimiter in (
        ("clicks", [COLUMNS, *rows], ","),
        ("semicolons", [COLUMNS, *rows], ";"),
        ("no_header", rows, ","),
        ("gaps", [COLUMNS, *gaps], ","),
        ("quoted", [COLUMNS, *quoted], ","),
    ):
        (folder / f"{name}.csv").write_text("".join(delimiter.join(row) + "\n" for row in table))


def _convert(ground: Ground, text: str, table: Path, name: str) -> None:
    path = ground.folder / "map.toml"
    path.write_text(text)
    _done(ground.hpcrec("prepare", "table", "--map", path, "--out", ground.folder / name, table))


def _own_files(folder: Path) -> None:
    """As a program of one's own may write them: without checksums."""
    for name in ("negative", "signs"):
        path = folder / f"{name}.h5"
        shutil.copy(folder / "data" / "train.h5", path)
        with h5py.File(path, "r+") as file:
            if name == "negative":
                file["sparse/hour/ids"][5] = -1
            else:
                file["label"][:] = 2 * np.asarray(file["label"]) - 1


def _done(done: Done) -> None:
    assert done.code == 0, done.err
