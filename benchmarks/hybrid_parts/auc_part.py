"""AUC by staleness, beside that of ``sync`` from the same seed, with settings tuned for ``sync`` and left.

DeepFM: hpcrec's synthetic clicks (latent vectors of 8), MovieLens' pairs and the Criteo sample, which is
too small to decide, in batches of 128; and, as a bad case, synthetic clicks in few large steps, where the hottest rows
change in every step. The learning rate of rows is the one of ``RATES`` with the best AUC of ``sync`` from another seed.
A model that has diverged counts as one of AUC 0. An interval is the 95 % one of the mean difference over seeds
(Student's t). ``sync`` runs on one rank, which differs from several by the order of sums alone, two at a time: nothing
is timed. Where the largest staleness is sought, one holds where the lower end of its interval is no more than ``GOAL``
below: next is always the middle one of those between the largest that holds and the smallest above it that does not.
"""

import math
import shutil
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from _report import claim, hpcrec
from des_parts import shapes
from des_parts.cells import show
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
LONG = Case("movielens_long", "movielens", 5 * STEPS, 128, BOTH)  # what is left where a row has as many ticks more
DECIDES = ("synthetic", "movielens")


@dataclass(frozen=True)
class Arms:
    """The policy that is held to ``sync``.

    ``settings`` are of each staleness, on so many ranks, or ``by_one`` that computes what these would, under ``cached``
    with room for all rows (``on_ranks.one_process``); of those that are ``claimed`` an interval is a claim, named by
    ``claim`` with the data, the staleness and, where it asks for it, the optimizer in it. ``ladder``: those among which
    the largest that holds is sought besides. ``optimizers``: of these alone. ``schedule`` of learning rates, with
    ``sync`` too: with rates that stay, where a run happens to end is worth more AUC than what is looked for.
    """

    staleness: tuple[int, ...]
    settings: Callable[[int], list[str]]
    claimed: tuple[int, ...]
    claim: str
    ranks: int = 1
    by_one: bool = False
    ladder: tuple[int, ...] = ()
    optimizers: tuple[str, ...] = BOTH
    schedule: str = "constant"


def measure(cache: Path, files: Path, name: str, arms: Arms, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, of the case of this name, and claims."""
    case = _case(name)
    train = _train(case, cache, files)
    if train is None:
        return [], []
    wanted = [optimizer for optimizer in case.optimizers if optimizer in arms.optimizers]
    rows = [row for optimizer in wanted for row in of(case, train, optimizer, arms, quick=quick)]
    return rows, claims(name, rows, arms) if name in DECIDES and not quick else []


def again(cache: Path, files: Path, tuned: Row, policies: Sequence[list[str]], ranks: int) -> list[Row]:
    """Runs with the first seed and the settings of a row, by policies: what each says."""
    case = _case(tuned["data"])
    train = _train(case, cache, files)
    assert train is not None, "the row is of these data"
    job = partial(_job, case, train, tuned["optimizer"], tuned["steps"], tuned["schedule"], tuned["lr"])
    return _found([job(policy, SEEDS[0]) for policy in policies], ranks)


def _case(name: str) -> Case:
    return next(case for case in (*CASES, LONG) if case.name == name)


def _train(case: Case, cache: Path, files: Path) -> Path | None:
    if case.data == "movielens":
        return shapes.prepare(case.data, cache, files)
    return synthetic(cache) if case.data == "synthetic" else criteo(cache, files)


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
    job = partial(_job, case, train, optimizer, steps, arms.schedule)
    rates = [round(rate * case.scale, 9) for rate in RATES[optimizer]]
    tried = [row["auc"] for row in _found([job(rate, SYNC, TUNING_SEED) for rate in rates])]
    rate = rates[max(range(len(rates)), key=lambda at: tried[at])]
    about = {
        "part": "auc",
        "data": case.name,
        "optimizer": optimizer,
        "lr": rate,
        "steps": steps,
        "schedule": arms.schedule,
    }
    sync = [row["auc"] for row in _found([job(rate, SYNC, seed) for seed in seeds])]
    rows, waiting = list[Row](), list(arms.staleness)
    while waiting:
        staleness = waiting.pop(0)
        found = _found(
            [_of_arm(job(rate, arms.settings(staleness), seed), arms, staleness) for seed in seeds],
            1 if arms.by_one else arms.ranks,
        )
        row = {**about, "staleness": staleness, "sync_auc": statistics.mean(sync)}
        rows.append({**row, **_gap([of["auc"] for of in found], sync)})
        show(rows[-1])
        if not waiting and (more := _next(arms.ladder, rows)) is not None:
            waiting.append(more)
    return rows


def _of_arm(job: Row, arms: Arms, staleness: int) -> Row:
    if not arms.by_one:
        return job
    settings = [setting for setting in job["settings"] if not setting.startswith("policy.")]
    return {
        "kind": "one process",
        "config": job["config"],
        "settings": settings,
        "ranks": arms.ranks,
        "staleness": staleness,
    }


def _gap(auc: Sequence[float], sync: Sequence[float]) -> Row:
    """The mean difference, its interval, and what it is of, seed by seed."""
    gaps = [own - other for own, other in zip(auc, sync, strict=True)]
    mean, error = statistics.mean(gaps), STUDENT * statistics.stdev(gaps) / math.sqrt(len(gaps))
    each = {"auc": [round(of, 5) for of in auc], "sync_each": [round(of, 5) for of in sync]}
    return {"gap": mean, "low": mean - error, "high": mean + error, **each}


def held(rows: Sequence[Row]) -> int | None:
    """The largest staleness of these rows that holds and is below all that do not; None: there is none."""
    good, bad = ({row["staleness"] for row in rows if (row["low"] >= -GOAL) == holds} for holds in (True, False))
    return max((s for s in good if s < min(bad, default=math.inf)), default=None)


def _next(ladder: Sequence[int], rows: Sequence[Row]) -> int | None:
    """The staleness to try next; None: the largest of the ladder that holds is known."""
    most, known = held(rows) or 0, {row["staleness"] for row in rows}
    above = min((s for s in known if s > most), default=math.inf)
    left = [s for s in ladder if most < s < above]
    return left[len(left) // 2] if left else None


SYNC = ["policy.name=sync"]


def _job(
    case: Case, train: Path, optimizer: str, steps: int, schedule: str, rate: float, policy: list[str], seed: int
) -> Row:
    settings = [
        f"data.train={train}",
        f"data.validation={train.parent / 'validation.h5'}",
        f"train.batch_size={case.batch}",
        f"train.steps={steps}",
        f"train.seed={seed}",
        f"embedding.optimizer.name={optimizer}",
        f"embedding.optimizer.lr={rate}",
        f"schedule.kind={schedule}",
        *policy,
    ]
    return {"kind": "train", "config": str(CONFIG), "settings": settings, "evaluate": True}


def _found(jobs: Sequence[Row], ranks: int = 1) -> list[Row]:
    """What each of them says, in order."""
    at_once = AT_ONCE if ranks == 1 else 1
    lists = [jobs[first::at_once] for first in range(at_once)]
    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(partial(_in_turn, ranks=ranks), lists))
    return [found[at % at_once][at // at_once] for at in range(len(jobs))]


def _in_turn(jobs: Sequence[Row], ranks: int) -> list[Row]:
    return list(launch.local(jobs, ranks=ranks, bound=False)) if jobs else []


def claims(data: str, rows: Sequence[Row], arms: Arms) -> list[Row]:
    """The end of an interval that is farther from 0, the worse of the optimizers where a claim is of several."""
    worst: dict[str, float] = defaultdict(float)
    for row in rows:
        if row["staleness"] in arms.claimed:
            name = arms.claim.format(data=data, staleness=row["staleness"], optimizer=row["optimizer"])
            worst[name] = max(worst[name], abs(row["low"]), abs(row["high"]))
    return [claim(name, of, "of AUC, end of the 95 % interval", f"<= {GOAL:g}") for name, of in worst.items()]
