"""What a user sees of ``hpcrec run -n 2 -- train``, on a terminal and in a log: records it, and writes docs/screens.md.

    python -m tests.launcher.screens > docs/screens.md

Knows the command line and terminals; the test beside it knows what has to be there.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcrec.data.layout import LABELS_ATTRIBUTE, Column, Columns
from hpcrec.preparation.writer import Writer
from hpcrec.types import Feature

LINES, COLUMNS = 40, 80
STEPS = 40
CONFIG = """
[data]
train = "train.h5"
validation = "validation.h5"
[model]
name = "fm"
[train]
batch_size = 256
steps = {steps}
log_every = 1
eval_every = 20
[run]
folder = "runs/first"
"""
PAGE = """# Screens

What two ranks show of a run that trains two labels, on a terminal and in a log. Recorded by
`python -m tests.launcher.screens > docs/screens.md`. `make test` records them again and compares: rows and their words
have to be the same, numbers and what is said of time may differ. [time.md](time.md) says what the times are, and
[report.md](report.md) is about the page with all the rest.

## On a terminal

While it runs, the first line is a bar that moves, under a plain `mpirun` too if rank 0 is on the same host:

```text
{bar}
```

At the end, on {columns} columns:

```text
{terminal}
```

## In a log

A line for the first step, one every 30 seconds, and one for the last, with what is known by then; then the same end.
What came every `train.log_every` steps and with each evaluation is in `metrics.jsonl`.

```text
{log}
```
"""
NUMBER = re.compile(r"[-+]?\d[\d.,:]*(?:e[-+]?\d+)?")  # its digits differ from run to run
FURTHER = " " * 20  # what begins so goes on with the line before


def write_run(folder: Path) -> None:
    """Two labels of which each follows from an id, and how to train them."""
    rng = np.random.default_rng(3)
    features = [Feature(name="user", cardinality=500), Feature(name="item", cardinality=200)]
    for name, n in (("train", 256 * STEPS), ("validation", 2_000)):
        ids = {"user": rng.integers(0, 500, n), "item": rng.integers(0, 200, n)}
        label = np.stack([rng.random(n) < 0.2 + 0.6 * (ids[key] % 2) for key in ids], axis=1).astype(np.float32)
        columns = {key: Column(of) for key, of in ids.items()}
        names = {LABELS_ATTRIBUTE: ["click", "buy"]}
        with Writer(folder / f"{name}.h5", features, n_dense=0, n_labels=2, attributes=names) as writer:
            writer.append(Columns(label=label, dense=np.zeros((n, 0), np.float32), sparse=columns))
    (folder / "run.toml").write_text(CONFIG.format(steps=STEPS))


def command() -> list[str]:
    """Of the run, in its folder."""
    train = ["train", "run.toml", "--set=checkpoint.resume=never"]
    return [sys.executable, "-m", "hpcrec", "run", "-n", "2", "--", *train]


def on_a_terminal(line: Sequence[str], folder: Path, columns: int = COLUMNS) -> str:
    """All that a command writes to a terminal of so many columns, as it comes."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (LINES, columns))
    found = bytearray()
    reader = threading.Thread(target=_read_all, args=(ours, found))
    reader.start()
    environment = {name: text for name, text in os.environ.items() if name != "HPCREC_TERMINAL"}
    try:
        done = subprocess.run(
            line, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, check=False
        )
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    assert done.returncode == 0, found.decode()
    return found.decode().replace("\r\n", "\n")


def in_a_log(line: Sequence[str], folder: Path) -> str:
    """All that it writes to a file, as job scripts have it."""
    environment = {**os.environ, "HPCREC_TERMINAL": "80"}  # of a launcher around it, whose terminal is not this log
    with (folder / "log").open("w+") as log:
        done = subprocess.run(line, cwd=folder, stdout=log, stderr=log, env=environment, check=False)
        log.seek(0)
        said = log.read()
    assert done.returncode == 0, said
    return said


def stands(said: str) -> list[str]:
    """What is left to be read of it: of a line that was written over, its last."""
    assert "\x1b" not in said, "no cursor is moved: what stands could not be told by lines"
    return [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in said.rstrip("\n").split("\n")]


def shapes(lines: Sequence[str]) -> list[str]:
    """The end of a run without what differs from run to run: digits, where lines are folded, times, advice on them."""
    found, of_time = list[str](), False
    for line in lines[lines.index(next(line for line in lines if line.startswith("status"))) :]:
        if line.startswith(FURTHER) and not of_time:
            found[-1] += f" {shape(line)}"
        elif not (of_time := line.startswith((" ", "time "))):
            found.append(shape(line))
    last = found.index("")
    return [*found[:last], *(line for line in found[last:] if line.startswith("run folder"))]


def shape(line: str) -> str:
    """A line without its digits, and with columns one blank apart."""
    return " ".join(NUMBER.sub("#", line).split())


def record() -> tuple[str, str]:
    """Of a run on a terminal and of another with a log, all that was written."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_run(folder)
        said = on_a_terminal(command(), folder), in_a_log(command(), folder)
        return said[0].replace(f"{folder}/", ""), said[1].replace(f"{folder}/", "")


def page(terminal: str, log: str) -> str:
    """The page with both; of the launcher's line the beginning."""
    moving = bars(terminal)
    shown = {"bar": moving[len(moving) // 2]}
    for name, said in (("terminal", terminal), ("log", log)):
        shown[name] = "\n".join(f"{line[:30]}..." if line.startswith("hpcrec: ") else line for line in stands(said))
    return PAGE.format(columns=COLUMNS, **shown)


def _read_all(descriptor: int, found: bytearray) -> None:
    """Until the other end is closed, which a pty tells by an error."""
    try:
        while data := os.read(descriptor, 65536):
            found += data
    except OSError:
        pass


def bars(said: str) -> list[str]:
    """The states of the bar."""
    return [one for one in re.split(r"[\r\n]", said) if "%|" in one and f"/{STEPS}" in one]


if __name__ == "__main__":
    print(page(*record()), end="")
