"""AUC of runs on test data, kept in a file from one call to the next, and intervals of paired differences.

A run is known by its data, settings, seed and number of ranks: what is in the file is not run again, so that hours of
them can be interrupted. Its lines say of which data and models (``SOURCES``) they are, and those of others are left
out; where something else of the product changes what runs learn, another cache is to be given. A file of the same
lines may be given beside it: that of the committed figures has each seed's AUC, from which they follow without a run.
Knows no models.
"""

import hashlib
import json
import math
import statistics
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import h5py
from on_ranks import launch
from scipy import stats

from hpcrec import models
from hpcrec.data import layout

CONFIG = Path(__file__).resolve().parent / "quality.toml"
MODELS = Path(models.__file__).resolve().parent
SOURCES = (
    CONFIG,
    CONFIG.with_name("data.py"),
    *(MODELS / f"{name}.py" for name in ("dcn", "dlrm", "dmt", "layers", "tower_modules")),
)
AT_ONCE = 2  # runs on one rank: nothing is timed


class Data(Protocol):
    """Data of a name, and its files while they are wanted."""

    @property
    def name(self) -> str:
        """Of its runs."""

    def files(self, cache: Path) -> AbstractContextManager[Path]:
        """A folder of train.h5 and test.h5."""


@dataclass(frozen=True)
class Case:
    """A run: settings, as ``section.key=value``, seed, and ranks, each of which takes itself for a host."""

    settings: tuple[str, ...]
    seed: int
    ranks: int = 1

    def key(self, data: str) -> str:
        """What it is known by."""
        return json.dumps([data, *self.settings, self.seed, self.ranks])

    def job(self, folder: Path) -> dict[str, Any]:
        """Of ``on_ranks.rank.train``."""
        files = (f"data.train={folder / 'train.h5'}", f"data.validation={folder / 'test.h5'}")
        settings = [*files, f"train.seed={self.seed}", *self.settings]
        return {"kind": "train", "config": str(CONFIG), "settings": settings, "evaluate": True, "ranks_a_host": 1}


class Kept:
    """What runs found, by what they are known by."""

    def __init__(self, cache: Path, known: Path | None = None) -> None:
        self._of = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:12]
        self.cache, self._path, self._lock = cache, cache / "towers_runs.jsonl", threading.Lock()
        cache.mkdir(parents=True, exist_ok=True)
        files = [path for path in (known, self._path) if path is not None and (path == known or path.exists())]
        rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
        self._found: dict[str, dict[str, Any]] = {row["key"]: row for row in rows if row["of"] == self._of}

    def run(self, data: Data, cases: Iterable[Case]) -> None:
        """Runs those that are not there, two at once where they have one rank."""
        left = [case for case in dict.fromkeys(cases) if case.key(data.name) not in self._found]
        if not left:
            return
        with data.files(self.cache) as folder:
            for ranks in sorted({case.ranks for case in left}):
                some = [case for case in left if case.ranks == ranks]
                at_once = AT_ONCE if ranks == 1 else 1
                with ThreadPoolExecutor(at_once) as pool:
                    list(
                        pool.map(
                            lambda part: self._in_turn(data, folder, part), (some[i::at_once] for i in range(at_once))
                        )
                    )

    def row(self, data: Data, case: Case) -> dict[str, Any]:
        """``auc``, ``logloss``, and ``attainable`` AUC."""
        self.run(data, [case])
        return self._found[case.key(data.name)]

    def auc(self, data: Data, case: Case) -> float:
        """Of the test data; 0 of a model that has diverged."""
        return float(self.row(data, case)["auc"])

    def _in_turn(self, data: Data, folder: Path, cases: Sequence[Case]) -> None:
        if not cases:
            return
        jobs = [case.job(folder) for case in cases]
        with h5py.File(folder / "test.h5") as file:
            attainable = float(file.attrs.get(layout.ATTAINABLE_ATTRIBUTE, math.nan))
        for case, said in zip(cases, launch.local(jobs, ranks=cases[0].ranks, bound=False), strict=True):
            row = {"of": self._of, "key": case.key(data.name), "auc": said["auc"], "logloss": said["logloss"]}
            row["attainable"] = attainable
            with self._lock, self._path.open("a") as out:
                out.write(json.dumps(row) + "\n")
                self._found[row["key"]] = row
            print(f"{data.name} {' '.join(case.settings)} seed {case.seed}: {said['auc']:.5f}", flush=True)


def gap(own: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """The mean difference of pairs, and its 95 % interval, Student's t."""
    gaps = [a - b for a, b in zip(own, other, strict=True)]
    mean = statistics.mean(gaps)
    error = float(stats.t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / len(gaps) ** 0.5
    return {"gap": mean, "low": mean - error, "high": mean + error}
