"""A stranger's first hour with a CSV, from a clone to the AUC of the test part, in an empty home: commands and minutes.

Twice with the first block of docs/tutorial.md, on one rank, which finds nothing that was fetched or built before, and
then all of it; and once ``make train`` likewise, which builds Horovod too. What is typed is what the page says: its
lines that begin with a program are commands, and others would be written by hand.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _report import ROOT, claim, finish

ROWS, QUICK_ROWS = 200_000, 5_000
COLD_MINUTES, WARM_MINUTES, COMMANDS = 4, 1, 4
PROGRAMS = ("pip", "hpcrec", "make", "python", "mpirun")  # what a line of the page that is a command begins with
FROM_SOURCE = ("make train",)
SITE = ("PIP_", "HTTP", "http", "SSL", "REQUESTS", "CURL", "OMPI_ALLOW_RUN_AS_ROOT")
AUC = re.compile(r"^test auc +([0-9.]+)$", re.MULTILINE)


def run(path: Path | None, *, quick: bool, make_train: bool) -> None:
    """Goes all ways and writes what was found."""
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        csv = _clicks(folder / "clicks.csv", QUICK_ROWS if quick else ROWS)
        home = folder / "home"
        for way in ("cold", "warm"):
            rows.append(_way(f"pip install, {way}", tutorial(), folder / way, home, csv))
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        if make_train:
            fetched = _fetched_s(folder / "fetched", folder / "home of fetching")
            rows.append(_way("make train, cold", FROM_SOURCE, folder / "source", folder / "another home", csv))
            rows[-1]["download_s"] = round(fetched, 1)
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    cold, warm = rows[:2]
    claims = [
        claim("first_hour.minutes_cold", cold["minutes"], "to a test AUC, one rank", f"<= {COLD_MINUTES}"),
        claim("first_hour.minutes_warm", warm["minutes"], "the same with what was fetched", f"<= {WARM_MINUTES}"),
        claim(
            "first_hour.commands", cold["commands"], "in a clone and an environment, to a test AUC", f"<= {COMMANDS}"
        ),
        claim("first_hour.lines", cold["lines"], "written by hand", "<= 0"),
    ]
    finish("first_hour", rows, claims, path)


def tutorial() -> tuple[str, ...]:
    """Lines of the first block of docs/tutorial.md, less their comments."""
    page = (ROOT / "docs" / "tutorial.md").read_text()
    block = page.partition("```sh\n")[2].partition("```")[0]
    lines = (re.sub(r"\s+# .*", "", line).strip() for line in block.splitlines())
    return tuple(line for line in lines if line)


def _clicks(path: Path, rows: int) -> Path:
    """A click log as sites keep them: words, numbers, some missing; what is clicked follows from user, ad and hour."""
    rng = np.random.default_rng(7)
    user, ad = rng.zipf(1.2, rows) % 20_000, rng.zipf(1.3, rows) % 2_000
    hour, price = rng.integers(0, 24, rows), rng.lognormal(1.0, 0.5, rows)
    of_user, of_ad = rng.normal(0, 1, 20_000), rng.normal(0, 1, 2_000)
    logit = of_user[user] + of_ad[ad] + 0.5 * np.sin(hour / 24 * 2 * np.pi) - 1.5
    click = rng.random(rows) < 1 / (1 + np.exp(-logit))
    device = np.array(["phone", "tablet", "desktop", ""])[rng.integers(0, 4, rows)]
    with path.open("w") as file:
        file.write("click,user,ad,device,hour,price\n")
        columns = zip(click, user, ad, device, hour, price, strict=True)
        file.writelines(f"{int(c)},u{u},a{a},{d},{h},{p:.2f}\n" for c, u, a, d, h, p in columns)
    return path


def _way(name: str, commands: Sequence[str], folder: Path, home: Path, csv: Path) -> dict[str, Any]:
    """A row: all commands in a clone of its own and an environment that has nothing, until the AUC is printed."""
    home.mkdir(exist_ok=True)
    python = Path(sys.base_prefix) / "bin" / "python3"
    began_s, took = time.monotonic(), list[float]()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    shutil.copy(csv, folder / "clicks.csv")
    subprocess.run([str(python), "-m", "venv", str(folder / "own")], check=True)
    environment = {
        "HOME": str(home),
        "PATH": f"{folder}/own/bin:{python.parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        **_kept(),
    }
    said = ""
    for command in commands:
        at_s = time.monotonic()
        said = _typed(command, folder, environment)
        took.append(round(time.monotonic() - at_s, 1))
    found = AUC.search(said)
    if found is None:
        sys.exit(f"{commands[-1]} printed no AUC:\n{said[-2000:]}")
    whole_s = time.monotonic() - began_s
    auc = float(found[1])
    n_commands = sum(line.split()[0] in PROGRAMS for line in commands)
    counts = {"commands": n_commands, "lines": len(commands) - n_commands, "minutes": round(whole_s / 60, 3)}
    return {"way": name, **counts, "seconds": took, "auc": auc}


def _kept() -> dict[str, str]:
    """Variables of this process that the site sets, and a stranger has too: where packages come from."""
    return {key: value for key, value in os.environ.items() if key.startswith(SITE)}


def _typed(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def _fetched_s(folder: Path, home: Path) -> float:
    """Seconds that the packages of ``make train`` take to come, into an empty cache."""
    home.mkdir()
    needed = [str(ROOT / "tools" / f"requirements-{of}.txt") for of in ("build", "run", "mpi")]
    chosen = [argument for path in needed for argument in ("-r", path)]
    began_s = time.monotonic()
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "-d", str(folder)]
    environment = {**_kept(), "HOME": str(home)}
    done = subprocess.run([*line, *chosen], env=environment, capture_output=True, text=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)
    if done.returncode:
        sys.exit(f"packages cannot be fetched:\n{done.stderr[-2000:]}")
    return time.monotonic() - began_s
