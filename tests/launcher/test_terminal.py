"""What a user sees of ``hpcrec run -n 2 -- train``: a live bar on a terminal, whole lines in a log."""

import os
import pty
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from hpcrec.config import to_toml
from hpcrec.launcher.mpirun import Launch, mpirun_line
from tests.training.runs import config_for, write_data

STEPS = 40


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("terminal")
    write_data(folder / "data.h5")
    config = config_for(
        folder, train={"steps": STEPS, "log_every": 1}, checkpoint={"resume": "never"}, run={"progress": True}
    )
    (folder / "config.toml").write_text(to_toml(config))
    return [sys.executable, "-m", "hpcrec", "run", "-n", "2", "--", "train", str(folder / "config.toml")]


def read_all(descriptor: int, found: bytearray) -> None:
    """Until the other end is closed, which a pty tells by an error."""
    try:
        while data := os.read(descriptor, 65536):
            found += data
    except OSError:
        pass


def on_a_terminal(command: list[str], columns: int) -> str:
    """What a command writes to stderr, a terminal of so many columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    found = bytearray()
    reader = threading.Thread(target=read_all, args=(ours, found))
    reader.start()
    environment = {name: text for name, text in os.environ.items() if name != "HPCREC_TERMINAL"}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=environment, check=False)
    finally:
        os.close(theirs)
        reader.join()
        os.close(ours)
    assert done.returncode == 0, found.decode()
    return found.decode()


def test_a_terminal_has_a_bar_that_moves(command: list[str]) -> None:
    said = on_a_terminal(command, 100)
    drawn = [one for one in said.split("\r") if f"/{STEPS} [" in one]
    seen = {one.partition(f"/{STEPS} [")[0].split()[-1].rpartition("|")[2] for one in drawn}
    assert len(seen) > 2 and str(STEPS) in seen, said
    assert all(len(one.rstrip("\n")) <= 100 for one in drawn) and any("loss=" in one for one in drawn)


def test_a_log_has_whole_lines(command: list[str]) -> None:
    environment = {**os.environ, "HPCREC_TERMINAL": "80"}  # of a launcher around it, whose terminal is not this log
    done = subprocess.run(command, capture_output=True, env=environment, text=True, check=False)
    assert done.returncode == 0 and "\r" not in done.stderr, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("step ")]
    assert lines[0].startswith(f"step 1 of {STEPS}, ") and lines[-1].startswith(f"step {STEPS} of {STEPS}, loss ")
    for word in ("train_auc", "samples/s", "waiting", "memory", "left"):
        assert word in lines[-1]


def test_the_word_of_a_terminal_goes_to_other_hosts_too(tmp_path: Path) -> None:
    launch = Launch(mpirun="mpirun", flavour="openmpi", ranks=2, cores=2)
    line, _ = mpirun_line(launch, ["hpcrec"], {"HPCREC_TERMINAL": "80"})
    assert "-x HPCREC_TERMINAL" in " ".join(line)
    assert "HPCREC_TERMINAL" not in " ".join(mpirun_line(launch, ["hpcrec"], {})[0])
