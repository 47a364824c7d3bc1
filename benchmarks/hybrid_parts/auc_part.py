"""AUC by staleness, beside that of ``sync`` from the same seed, with settings tuned for ``sync`` and left.

DeepFM on one rank: hpcrec's synthetic clicks (latent vectors of 8), MovieLens' pairs and the Criteo sample, which is
too small to decide, in batches of 128; and, as a bad case, synthetic clicks in few large steps, where the hottest rows
change in every step. The learning rate of rows is the one of ``RATES`` with the best AUC of ``sync`` from another seed.
A model that has diverged counts as one of AUC 0. An interval is the 95 % one of the mean difference over seeds
(Student's t). Runs two at a time: nothing is timed.
"""

import math
import shutil
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _report import claim, hpcrec
from des_parts import shapes
from hybrid_parts.runs import Row
from on_ranks import launch

from hpcrec.preparation.prepare_synthetic import prepare_synthetic
from hpcrec.preparation.synthetic import SyntheticSpec

CONFIG = Path(__file__).resolve().parent / "auc.toml"
SEEDS, TUNING_SEED = (1, 2, 3, 4, 5), 11
STALENESS = (1, 2, 5, 10)
RATES = {"sgd": (0.03, 0.1, 0.3, 1.0, 3.0), "rowwise_adagrad": (0.003, 0.01, 0.03, 0.1, 0.3)}
STEPS, QUICK_STEPS = 10_000, 200
SYNTHETIC_SAMPLES, RANK = 1_400_000, 8
GOAL, STUDENT = 1e-3, 2.776  # of 4 degrees of freedom
AT_ONCE = 2


@dataclass(frozen=True)
class Case:
    """A data set, how many steps, samples in each, and the optimizers of rows."""

    name: str
    data: str
    steps: int
    batch: int
    optimizers: tuple[str, ...]
    scale: float = 1.0  # of the learning rates that are tried: many features and few samples diverge at the highest


BOTH = ("sgd", "rowwise_adagrad")
CASES = (
    Case("synthetic", "synthetic", STEPS, 128, BOTH),
    Case("movielens", "movielens", STEPS, 128, BOTH),
    Case("criteo", "criteo", 200, 128, BOTH, scale=0.1),
    Case("hot", "synthetic", 1200, 1024, BOTH[:1], scale=0.3),
)
DECIDES = ("synthetic", "movielens")


def measure(cache: Path, files: Path, name: str, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, of the case of this name, and claims."""
    case = next(case for case in CASES if case.name == name)
    if case.data == "movielens":
        train = shapes.prepare(case.data, cache, files)
    else:
        train = synthetic(cache) if case.data == "synthetic" else criteo(cache, files)
    if train is None:
        return [], []
    rows = [row for optimizer in case.optimizers for row in of(case, train, optimizer, quick=quick)]
    return rows, claims(name, rows) if name in DECIDES and not quick else []


def criteo(cache: Path, files: Path) -> Path | None:
    """The training data of the sample, with vocabularies; a fifth for validation. None where the sample is not."""
    source, folder = files / shapes.FILES["criteo"], cache / "hybrid-criteo"
    if not source.exists():
        print(f"criteo: skipped, there is no {source}; --data names the folder that has it", flush=True)
        return None
    if not folder.exists():
        hidden = folder.with_suffix(".tmp")
        shutil.rmtree(hidden, ignore_errors=True)
        words = ["--ids", "vocabulary", "--min-count", "5", "--bin-integers", "--split", "hash:0.8,0.2,0"]
        hpcrec("prepare", "criteo", "--out", str(hidden), *words, str(source))
        hidden.rename(folder)
    return folder / "train.h5"


def synthetic(cache: Path) -> Path:
    """The training data: more of it than ``shapes`` has, and of a higher rank."""
    folder = cache / "hybrid-synthetic"
    if not folder.exists():
        hidden = folder.with_suffix(".tmp")
        shutil.rmtree(hidden, ignore_errors=True)
        prepare_synthetic(hidden, samples=SYNTHETIC_SAMPLES, spec=SyntheticSpec(rank=RANK))
        hidden.rename(folder)
    return folder / "train.h5"


def of(case: Case, train: Path, optimizer: str, *, quick: bool) -> list[Row]:
    """A row for each staleness."""
    steps = min(case.steps, QUICK_STEPS) if quick else case.steps
    seeds = SEEDS[:2] if quick else SEEDS
    job = partial(_job, case, train, optimizer, steps)
    rates = [round(rate * case.scale, 9) for rate in RATES[optimizer]]
    tried = _auc([job(rate, 0, TUNING_SEED) for rate in rates])
    rate = rates[max(range(len(rates)), key=lambda at: tried[at])]
    wanted = [(staleness, seed) for staleness in (0, *STALENESS) for seed in seeds]
    auc = dict(zip(wanted, _auc([job(rate, *one) for one in wanted]), strict=True))
    rows = []
    for staleness in STALENESS:
        gaps = [auc[staleness, seed] - auc[0, seed] for seed in seeds]
        mean, error = statistics.mean(gaps), STUDENT * statistics.stdev(gaps) / math.sqrt(len(gaps))
        sync = statistics.mean(auc[0, seed] for seed in seeds)
        about = {"part": "auc", "data": case.name, "optimizer": optimizer, "lr": rate, "steps": steps}
        rows.append({**about, "staleness": staleness, "sync_auc": sync, "gap": mean, "low": mean - error})
        rows[-1]["high"] = mean + error
    return rows


def _job(case: Case, train: Path, optimizer: str, steps: int, rate: float, staleness: int, seed: int) -> Row:
    policy = ["policy.name=sync"] if not staleness else ["policy.name=hybrid", f"policy.staleness={staleness}"]
    settings = [
        f"data.train={train}",
        f"data.validation={train.parent / 'validation.h5'}",
        f"train.batch_size={case.batch}",
        f"train.steps={steps}",
        f"train.seed={seed}",
        f"embedding.optimizer.name={optimizer}",
        f"embedding.optimizer.lr={rate}",
        *policy,
    ]
    return {"kind": "train", "config": str(CONFIG), "settings": settings, "evaluate": True}


def _auc(jobs: Sequence[Row]) -> list[float]:
    """Of each, in order."""
    lists = [jobs[first::AT_ONCE] for first in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(_in_turn, lists))
    return [found[at % AT_ONCE][at // AT_ONCE] for at in range(len(jobs))]


def _in_turn(jobs: Sequence[Row]) -> list[float]:
    return [row["auc"] for row in launch.local(jobs, ranks=1, bound=False)] if jobs else []


def claims(data: str, rows: Sequence[Row]) -> list[Row]:
    """The end of an interval that is farther from 0, the worse of both optimizers."""
    out = []
    for staleness in (2, 10):
        worst = max(max(abs(r["low"]), abs(r["high"])) for r in rows if r["staleness"] == staleness)
        name = f"persia.auc_interval.{data}.tau{staleness}"
        out.append(claim(name, worst, "of AUC, end of the 95 % interval", f"<= {GOAL:g}"))
    return out
