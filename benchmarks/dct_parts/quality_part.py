"""AUC and bytes of both compressions together beside the uncompressed run, over seeds, paired.

Synthetic clicks whose attainable AUC is known, 1,048,576 test samples, 2 ranks with both roles, DLRM of width 128 and
DeepFM of width 64, 3,000 steps of 2,048 samples, none twice, float32. Each vector has its own threshold, values are
fp16. Both runs of a pair have the same data, seed, kind of optimizer and schedule. How rows begin, and learning
rates, are what did best for each on other seeds: of rows at 1,500 steps or fewer, most of it at width 64; of DLRM's
dense parameters at 3,000 steps. DeepFM's learn at 0.002 in both, which was not searched for each: uncompressed, 0.004
did about as well. A thresholded run wants dense parameters to learn faster, and rows that begin in few columns, the
same in all tables (``embedding.init_decay``): what begins at random keeps columns at random, and products of vectors
that have no columns in common are zero. DeepFM does best with such rows uncompressed, too, DLRM with rows that begin
evenly. Besides, one seed each: ``whole, worse`` is uncompressed with what was not taken of the two, and ``narrow`` is
uncompressed, its vectors as wide as many elements cross of the others.

Both are of form ``pooled``; what ``rows`` or ``auto`` send of these data without a loss is in ``ranks_part``.

``dct.dense_ratio``, ``dct.exchange_ratio``: bytes of the uncompressed run over those of the thresholded one, by the
ledger, of the model where it is smaller; dense sums with their sizes; values, gradients and control messages, ids
beside. ``dct.auc_difference.synthetic.<model>``: mean over seeds of thresholded less uncompressed.
``dct.auc_interval.synthetic.<model>``: lower end of its 95 % interval, by Student's t over seeds. ``auc_unmasked``:
of the thresholded run, evaluated on whole vectors.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _report import claim
from dct_parts import clicks
from dct_parts.runs import MODELS, Row, train
from scipy import stats

RANKS, SEEDS, BLOCKS, STEPS = 2, (3, 4, 5, 6, 7), 96, 3000
QUICK_SEEDS, QUICK_BLOCKS, QUICK_TEST_BLOCKS, QUICK_STEPS = (1, 2), 4, 1, 60


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of a model.

    Attributes
    ----------
    whole, less, worse : tuple of str
        How parameters learn and rows begin: uncompressed, thresholded, and uncompressed where it did worse.
    width : int
        Of vectors.
    density : float
        Share of their elements that crosses.
    dense_density : float
        Share of the entries of dense gradients that reach a threshold when it is found; between, fewer do.
    narrow : int
        Width of vectors of as many elements.
    """

    whole: tuple[str, ...]
    less: tuple[str, ...]
    worse: tuple[str, ...]
    width: int
    density: float
    dense_density: float
    narrow: int

    def thresholded(self) -> tuple[str, ...]:
        """Settings of a run with both compressions."""
        vectors = (*VECTORS, f"exchange.dct.density={self.density}")
        return (*self.less, *vectors, *DENSE, f"dense.dct.density={self.dense_density}")


def learning(dense_lr: float, lr: float, scale: float, decay: float) -> tuple[str, ...]:
    """How dense parameters learn, and how rows learn and begin."""
    rows = (f"embedding.optimizer.lr={lr}", f"embedding.init_scale={scale}", f"embedding.init_decay={decay}")
    return (f"dense.optimizer.lr={dense_lr}", *rows)


EVEN = {"dlrm": learning(0.0045, 0.05, 0.1, 0.0), "deepfm": learning(0.002, 0.02, 0.1, 0.0)}
FALLING = {"dlrm": learning(0.007, 0.1, 0.5, 20.0), "deepfm": learning(0.002, 0.04, 0.1, 20.0)}
OF = {
    "dlrm": Settings(
        whole=EVEN["dlrm"],
        less=FALLING["dlrm"],
        worse=FALLING["dlrm"],
        width=128,
        density=0.08,
        dense_density=0.03,
        narrow=10,
    ),
    "deepfm": Settings(
        whole=FALLING["deepfm"],
        less=FALLING["deepfm"],
        worse=EVEN["deepfm"],
        width=64,
        density=0.0625,
        dense_density=0.015,
        narrow=4,
    ),
}
VECTORS = ("exchange.codec=dct", "exchange.dct.threshold=vector")
DENSE = ("dense.compression=dct", "dense.dct.every=500")
WHOLE, LESS = "whole", "thresholded"
GOALS = {"dense": ">= 100", "exchange": ">= 20", "auc": ">= -0.0005"}


def measure(cache: Path, *, quick: bool) -> Iterator[tuple[list[Row], list[Row]]]:
    """Rows of the table, and claims: of one seed more each time, from the second on, so that a run may be cut short."""
    seeds, blocks = (QUICK_SEEDS, QUICK_BLOCKS) if quick else (SEEDS, BLOCKS)
    data = clicks.prepare(blocks, cache, *((QUICK_TEST_BLOCKS,) if quick else ()))
    models = tuple(MODELS)[:1] if quick else tuple(MODELS)
    steps = f"train.steps={QUICK_STEPS if quick else STEPS}"
    rows: list[Row] = []
    for seed, model in itertools.product(seeds, models):
        for name, settings in runs_of(model, first=seed == seeds[0]):
            found = train(
                data,
                RANKS,
                [*MODELS[model], f"model.width={OF[model].width}", *settings, steps, f"train.seed={seed}"],
            )
            rows.append({"model": model, "seed": seed, "run": name, **found})
            show(rows[-1])
        if seed != seeds[0] and model == models[-1]:
            yield rows, claims(rows, models)


def runs_of(model: str, *, first: bool) -> Iterator[tuple[str, Sequence[str]]]:
    """Names and settings of the runs of a seed; those beside the pair of the first seed alone."""
    of_model = OF[model]
    yield WHOLE, of_model.whole
    yield LESS, of_model.thresholded()
    if first:
        yield "whole, worse", of_model.worse
        yield "narrow", (*of_model.whole, f"model.width={of_model.narrow}")


def claims(rows: Sequence[Row], models: Sequence[str]) -> list[Row]:
    """Of ratios the smaller one, of AUC by model."""
    ratios, aucs = {}, []
    for model in models:
        whole, less = (of(rows, model, run) for run in (WHOLE, LESS))
        for part in ("dense", "exchange"):
            found = sum(r[f"{part}_bytes"] for r in whole) / sum(r[f"{part}_bytes"] for r in less)
            ratios[part] = min(found, ratios.get(part, np.inf))
        differences = [b["auc"] - a["auc"] for a, b in zip(whole, less, strict=True)]
        mean, lower = interval(differences)
        aucs.append(claim(f"dct.auc_difference.synthetic.{model}", mean, f"of AUC, mean of {len(differences)} seeds"))
        aucs.append(claim(f"dct.auc_interval.synthetic.{model}", lower, "of AUC, lower end of 95 %", GOALS["auc"]))
    unit = "times fewer bytes, the smaller of the models"
    return [*(claim(f"dct.{part}_ratio", ratios[part], unit, GOALS[part]) for part in ratios), *aucs]


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """Mean, and the lower end of its 95 % interval."""
    mean, error = float(np.mean(differences)), float(stats.sem(differences))
    return mean, mean - float(stats.t.ppf(0.975, len(differences) - 1)) * error


def of(rows: Sequence[Row], model: str, run: str) -> list[Row]:
    """Rows of a model's runs of one kind, by seed."""
    return [r for r in rows if (r["model"], r["run"]) == (model, run)]


def show(row: Row) -> None:
    """A row on one line."""
    print("  ".join(f"{k} {v:.5g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
