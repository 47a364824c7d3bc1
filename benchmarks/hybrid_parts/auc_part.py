"""AUC by staleness, beside that of ``sync`` from the same seed, with settings tuned for ``sync`` and left.

DeepFM: hpcrec's synthetic clicks (latent vectors of 8), MovieLens' pairs and the Criteo sample, which is
too small to decide, in batches of 128; and, as a bad case, synthetic clicks in few large steps, where the hottest rows
change in every step. The learning rate of rows is the one of ``RATES`` with the best AUC of ``sync`` from another seed.
A model that has diverged counts as one of AUC 0. An interval is the 95 % one of the mean difference over seeds
(Student's t). ``sync`` runs on one rank, which differs from several by the order of sums alone, two at a time: nothing
is timed.
"""

import math
import shutil
import statistics
from collections.abc import Callable, Sequence
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


@dataclass(frozen=True)
class Arms:
    """The policy that is held to ``sync``.

    ``settings`` are of each staleness, on so many ranks; of those that are ``claimed`` an interval is a claim, named by
    ``claim`` with the data and the staleness in it.
    """

    staleness: tuple[int, ...]
    settings: Callable[[int], list[str]]
    claimed: tuple[int, ...]
    claim: str
    ranks: int = 1


def measure(cache: Path, files: Path, name: str, arms: Arms, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, of the case of this name, and claims."""
    case = next(case for case in CASES if case.name == name)
    if case.data == "movielens":
        train = shapes.prepare(case.data, cache, files)
    else:
        train = synthetic(cache) if case.data == "synthetic" else criteo(cache, files)
    if train is None:
        return [], []
    rows = [row for optimizer in case.optimizers for row in of(case, train, optimizer, arms, quick=quick)]
    return rows, claims(name, rows, arms) if name in DECIDES and not quick else []


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


def of(case: Case, train: Path, optimizer: str, arms: Arms, *, quick: bool) -> list[Row]:
    """A row for each staleness."""
    steps = min(case.steps, QUICK_STEPS) if quick else case.steps
    seeds = SEEDS[:2] if quick else SEEDS
    job = partial(_job, case, train, optimizer, steps)
    rates = [round(rate * case.scale, 9) for rate in RATES[optimizer]]
    tried = _auc([job(rate, SYNC, TUNING_SEED) for rate in rates])
    rate = rates[max(range(len(rates)), key=lambda at: tried[at])]
    auc = {(0, seed): found for seed, found in zip(seeds, _auc([job(rate, SYNC, seed) for seed in seeds]), strict=True)}
    wanted = [(staleness, seed) for staleness in arms.staleness for seed in seeds]
    found = _auc([job(rate, arms.settings(staleness), seed) for staleness, seed in wanted], arms.ranks)
    auc |= dict(zip(wanted, found, strict=True))
    rows = []
    for staleness in arms.staleness:
        gaps = [auc[staleness, seed] - auc[0, seed] for seed in seeds]
        mean, error = statistics.mean(gaps), STUDENT * statistics.stdev(gaps) / math.sqrt(len(gaps))
        sync = statistics.mean(auc[0, seed] for seed in seeds)
        about = {"part": "auc", "data": case.name, "optimizer": optimizer, "lr": rate, "steps": steps}
        rows.append({**about, "staleness": staleness, "sync_auc": sync, "gap": mean, "low": mean - error})
        rows[-1]["high"] = mean + error
    return rows


SYNC = ["policy.name=sync"]


def _job(case: Case, train: Path, optimizer: str, steps: int, rate: float, policy: list[str], seed: int) -> Row:
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


def _auc(jobs: Sequence[Row], ranks: int = 1) -> list[float]:
    """Of each, in order."""
    at_once = AT_ONCE if ranks == 1 else 1
    lists = [jobs[first::at_once] for first in range(at_once)]
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(partial(_in_turn, ranks=ranks), lists))
    return [found[at % at_once][at // at_once] for at in range(len(jobs))]


def _in_turn(jobs: Sequence[Row], ranks: int) -> list[float]:
    return [row["auc"] for row in launch.local(jobs, ranks=ranks, bound=False)] if jobs else []


def claims(data: str, rows: Sequence[Row], arms: Arms) -> list[Row]:
    """The end of an interval that is farther from 0, the worse of the optimizers."""
    out = []
    for staleness in arms.claimed:
        worst = max(max(abs(r["low"]), abs(r["high"])) for r in rows if r["staleness"] == staleness)
        name = arms.claim.format(data=data, staleness=staleness)
        out.append(claim(name, worst, "of AUC, end of the 95 % interval", f"<= {GOAL:g}"))
    return out
