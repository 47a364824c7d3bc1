"""Two codistilling groups beside a single group of the same total batch: steps to a log-loss, churn between seeds.

DLRM of width 16 on the synthetic clicks, 65,536 test samples, 2 ranks with both roles. A run with two groups has one
rank in each, with half of each batch; its settings are else those of the single group, constant learning rates
included, so that a curve does not depend on where it ends. No sample is seen twice. Batches of 32,768 are past where
more samples make as many fewer steps: to a log-loss of 0.4558 a single group takes some 55 of them, 100 of 8,192. Those
are beside them, as ``codistill.batch_8192...``.

``codistill.steps_ratio``: steps until a single group first has the test log-loss that it has after ``Regime.steps``,
over those of the first group's model, whose run goes on for longer; interpolated between evaluations, mean over seeds.
Where it is not reached, the end of the run is counted, which makes the ratio too large: how often is said.
``codistill.churn_ratio``: mean |p_a - p_b| over test samples of the first group's models of seeds a and b after
``Regime.steps``, over that of single groups of the same two seeds, mean over disjoint pairs; the files are the same,
initial rows, dense parameters and the order of samples are of the seed. ``..._interval``: the end of the 95 % interval
by Student's t that lies towards 1. ``...weight_0``: two groups that do not learn from each other, beside the single
one. ``...to_weight_0``: codistilling groups beside those, which is what distillation does without what splitting ranks
into groups does. ``...second``: of the second group. With ``--tables shared,own`` groups that share no tables are
beside those that do, as ``codistill.own_tables...``.

Learning rates and how rows begin were tuned for the single group, for about as many steps as are reported, on seeds
101 and 104 at batches of 8,192 and 16,384, and on 113 at 32,768. ``WEIGHT``, ``BURN_IN`` and ``EXCHANGE`` were then
chosen for codistilling groups on seeds 101 to 112 at the smaller batches: weights of 0.25 to 4, burn-ins of 0 to 40
steps, exchanges every 1 to 10. None of these seeds is reported. Batches of 8,192 were measured first, and fell short;
those of 32,768 were then taken by what seeds 113 to 118 said, where a weight of 1 did as well, and measured on others.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _report import claim
from dct_parts import clicks
from dct_parts.quality_part import interval, show
from dct_parts.runs import CONFIG, MODELS, Row
from on_ranks import launch

from hpcrec.types import Floats


@dataclass(frozen=True, kw_only=True)
class Regime:
    """What runs are compared at.

    Attributes
    ----------
    batch : int
        Samples of a step, of all groups.
    steps, longer : int
        Of single groups, and of two groups.
    every : int
        Steps between evaluations.
    seeds : sequence of int
        Two at a time make a pair.
    """

    batch: int
    steps: int
    longer: int
    every: int
    seeds: Sequence[int]


REGIMES = {
    "": Regime(batch=32768, steps=60, longer=90, every=5, seeds=range(11, 27)),
    ".batch_8192": Regime(batch=8192, steps=100, longer=140, every=10, seeds=range(1, 11)),
}
"""By what is in the names of their claims."""
QUICK = {"": Regime(batch=1024, steps=8, longer=12, every=4, seeds=range(1, 5))}
RANKS, BLOCKS, QUICK_BLOCKS, TEST_BLOCKS = 2, 48, 1, 1
WEIGHT, BURN_IN, EXCHANGE = 0.5, 0, 1
SINGLE, TAUGHT, UNTAUGHT = "single", "codistilled", "weight_0"
Key = tuple[int, str | None, str]
"""Seed, whose tables, run."""
NAMES = {"shared": "codistill", "own": "codistill.own_tables"}
"""Of claims, by whose tables they are."""
GOALS = {"steps": "> 1", "churn": "< 1"}
TUNED = (
    "model.width=16",
    "embedding.optimizer.lr=0.1",
    "embedding.init_scale=0.3",
    "dense.optimizer.lr=0.005",
    "schedule.kind=constant",
    "schedule.final=0.0",
)


def measure(cache: Path, tables: Sequence[str], *, quick: bool) -> Iterator[tuple[list[Row], list[Row]]]:
    """Rows of the table, and claims: of a pair of seeds more each time, from the second on, so as to be cut short."""
    data = clicks.prepare(QUICK_BLOCKS if quick else BLOCKS, cache, TEST_BLOCKS)
    before: tuple[list[Row], list[Row]] = [], []
    for at, regime in (QUICK if quick else REGIMES).items():
        now = before
        for told in compared(data, tables, regime):
            now = before[0] + told, before[1] + claims(told, tables, at)
            yield now
        before = now


def compared(data: Path, tables: Sequence[str], regime: Regime) -> Iterator[list[Row]]:
    """Rows of the table for one regime, of more pairs of seeds each time."""
    kinds = [(None, SINGLE), *((of, run) for of in tables for run in (TAUGHT, UNTAUGHT))]
    rows: list[Row] = []
    predicted: dict[Key, Floats] = {}
    with tempfile.TemporaryDirectory() as name:
        wanted = [(seed, *kind) for seed in regime.seeds for kind in kinds]
        jobs = [job(data, Path(name) / f"{n}.npy", regime, *one) for n, one in enumerate(wanted)]
        for (seed, of, run), found, one in zip(wanted, launch.local(jobs, RANKS), jobs, strict=True):
            predicted[seed, of, run] = np.load(one["predictions"])
            rows.append({"tables": of, "run": run, "seed": seed, **found})
            done, left = divmod(len(rows), len(kinds))  # seeds
            if left == 0:
                told = table(rows, predicted, regime)
                for row in told[-len(kinds) :]:
                    show(row)
                if done >= 4 and done % 2 == 0:
                    yield told


def job(data: Path, predictions: Path, regime: Regime, seed: int, of: str | None, run: str) -> Row:
    """A run of ``curves.curve``."""
    return {
        "kind": "curve",
        "config": str(CONFIG),
        "settings": [
            *MODELS["dlrm"],
            *TUNED,
            *([] if of is None else groups(of, run)),
            f"data.train={data}/train.h5",
            f"data.test={data}/test.h5",
            f"train.batch_size={regime.batch}",
            f"train.steps={regime.steps if of is None else regime.longer}",
            f"train.seed={seed}",
            "run.folder=unused",
        ],
        "every": regime.every,
        "predict_at": regime.steps,
        "predictions": str(predictions),
    }


def groups(of: str, run: str) -> list[str]:
    """Settings of two groups."""
    settings = {"groups": 2, "weight": 0.0 if run == UNTAUGHT else WEIGHT}
    if run != UNTAUGHT:
        settings |= {"burn_in_steps": BURN_IN, "every": EXCHANGE}
    own = ["dense.codistillation.share_embeddings=false"] if of == "own" else []
    return [*(f"dense.codistillation.{name}={value}" for name, value in settings.items()), *own]


def table(rows: Sequence[Row], predicted: Mapping[Key, Floats], regime: Regime) -> list[Row]:
    """Of each run what it reaches, by group, and of each run of the first seed of a pair its churn."""
    singles = {row["seed"]: row for row in rows if row["run"] == SINGLE}
    partner = dict(zip(regime.seeds[::2], regime.seeds[1::2], strict=True))
    out = []
    for row in rows:
        seed, of, run = key = row["seed"], row["tables"], row["run"]
        single, at = singles[seed], row["steps"].index(regime.steps)
        target = single["logloss"][single["steps"].index(regime.steps)][0]
        reaches = [reached(row["steps"], list(losses), target) for losses in zip(*row["logloss"], strict=True)]
        churn = None
        if (partner.get(seed), of, run) in predicted:
            churn = float(np.abs(predicted[key].astype(np.float64) - predicted[partner[seed], of, run]).mean())
        last = len(row["steps"]) - 1
        out.append({
            "batch": regime.batch, "tables": of, "run": run, "seed": seed, "target": target, "steps": reaches[0],
            "second_steps": None if of is None else reaches[1], "end": row["steps"][-1],
            **{f"{ahead}logloss_{row['steps'][n]}": None if group and of is None else row["logloss"][n][group]
               for n in sorted({at, last}) for group, ahead in enumerate(("", "second_"))},
            "churn": churn,
        })  # fmt: skip
    return out


def reached(steps: Sequence[int], losses: Sequence[float], target: float) -> float | None:
    """Steps until a curve first is at a log-loss or below it, along a line between evaluations; None: it never is."""
    for n, loss in enumerate(losses):
        if loss <= target:
            if n == 0:
                return float(steps[0])
            share = (losses[n - 1] - target) / (losses[n - 1] - loss)
            return steps[n - 1] + share * (steps[n] - steps[n - 1])
    return None


def claims(rows: Sequence[Row], tables: Sequence[str], at: str = "") -> list[Row]:
    """Of a regime's runs whose groups share tables, and of those whose groups do not."""
    out = []
    for of in tables:
        single, taught, untaught = (
            {row["seed"]: row for row in rows if (row["tables"], row["run"]) == kind}
            for kind in ((None, SINGLE), (of, TAUGHT), (of, UNTAUGHT))
        )
        for end, base, found in (
            ("", single, taught),
            (f".{UNTAUGHT}", single, untaught),
            (f".to_{UNTAUGHT}", untaught, taught),
        ):
            out += steps_claims(f"{NAMES[of]}{at}.steps_ratio", end, base, found)
            out += churn_claims(f"{NAMES[of]}{at}.churn_ratio", end, base, found)
    return out


def steps_claims(name: str, end: str, base: Mapping[int, Row], found: Mapping[int, Row]) -> Iterator[Row]:
    """Steps of the base over those found, of its first group and of its second; the goal is of what has no ``end``."""
    for which, of in (("steps", ""), ("second_steps", ".second")):
        goal = None if end or of else GOALS["steps"]
        missed = sum(row[which] is None for row in found.values())
        ratios = [taken(base[seed], "steps") / taken(row, which) for seed, row in found.items()]
        mean, lower = interval(ratios)
        unit = f"of steps, mean of {len(ratios)} seeds, {missed} not reached"
        yield claim(f"{name}{of}{end}", mean, unit, goal)
        unit = f"of steps, lower end of 95 %, upper {2 * mean - lower:.4g}"
        yield claim(f"{name}_interval{of}{end}", lower, unit, goal)


def taken(row: Row, which: str) -> float:
    """Steps to the target, or of the whole run where it is not reached."""
    return float(row["end"] if row[which] is None else row[which])


def churn_claims(name: str, end: str, base: Mapping[int, Row], found: Mapping[int, Row]) -> Iterator[Row]:
    """By pairs of seeds; the goal is of what has no ``end``."""
    goal = None if end else GOALS["churn"]
    ratios = [row["churn"] / base[seed]["churn"] for seed, row in found.items() if row["churn"] is not None]
    mean, lower = interval(ratios)
    yield claim(f"{name}{end}", mean, f"of mean difference, mean of {len(ratios)} pairs of seeds", goal)
    unit = f"of mean difference, upper end of 95 %, lower {lower:.4g}"
    yield claim(f"{name}_interval{end}", 2 * mean - lower, unit, goal)
