"""AUC against density, of vectors and of dense gradients apart; and dense thresholds without what makes them work.

DLRM of width 128 on the synthetic clicks as in ``quality_part``, one seed, 1,000 steps, 262,144 test samples. A row
compresses one of the two alone, vectors by thresholds of their own or, as ``thresholds of features``, by those of their
features, found anew every 100 steps; ``bytes_ratio`` is of what it compresses, by the ledger, to the uncompressed run
of the same rows. Rows whose vectors are thresholded begin as thresholded runs do there; others begin evenly.

Beside the dense threshold, which is found anew every 500 steps, at one density: thresholds found in every step (top-k
of each step), the same at the density that gives about as many bytes, as many entries at random (random-k), and
thresholds without error feedback. No claims: what counts is how the rows lie to each other, and one seed's AUC is
good to about 0.0002.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from dct_parts import clicks
from dct_parts.quality_part import BLOCKS, OF, VECTORS, show
from dct_parts.runs import MODELS, Row, train

MODEL, RANKS, SEED, STEPS, EVAL_BATCHES = "dlrm", 2, 1, 1000, 128
VECTOR_DENSITIES = (0.008, 0.02, 0.04, 0.08, 0.16, 0.32)
FEATURE_DENSITIES, FEATURE_EVERY = (0.04, 0.08, 0.16), 100
DENSE_DENSITIES = (0.001, 0.005, 0.015, 0.045, 0.15)
AT, AS_MANY_BYTES, EVERY = 0.045, 0.01, 500  # of the dense rows without something
QUICK_STEPS, QUICK_BLOCKS, QUICK_TEST_BLOCKS = 60, 4, 1


def measure(cache: Path, *, quick: bool) -> tuple[list[Row], list[Row]]:
    """Rows of the table, and no claims."""
    data = clicks.prepare(QUICK_BLOCKS, cache, QUICK_TEST_BLOCKS) if quick else clicks.prepare(BLOCKS, cache)
    steps = QUICK_STEPS if quick else STEPS
    every = (f"model.width={OF[MODEL].width}", f"train.steps={steps}", f"train.seed={SEED}")
    rows: list[Row] = []
    for part, density, name, settings, without in runs(quick=quick):
        found = train(data, RANKS, [*MODELS[MODEL], *every, *settings], without=without, eval_batches=EVAL_BATCHES)
        whole = next((r for r in rows if r["part"] == part), found)
        kind = "exchange_bytes" if part == "vectors" else "dense_bytes"
        ratio = whole.get("bytes", found[kind]) / found[kind]
        rows.append({
            "part": part, "run": name, "density": density, "auc": found["auc"], "logloss": found["logloss"],
            "bytes": found[kind], "bytes_ratio": ratio,
        })  # fmt: skip
        show(rows[-1])
    return rows, []


def runs(*, quick: bool) -> Iterator[tuple[str, float, str, Sequence[str], str | None]]:
    """Part, density, name, settings and what is taken out of each row; of a part the uncompressed run comes first."""
    less, whole = OF[MODEL].less, OF[MODEL].whole
    yield "vectors", 1.0, "whole", less, None
    for density in VECTOR_DENSITIES[:1] if quick else VECTOR_DENSITIES:
        yield "vectors", density, "thresholds", (*less, *VECTORS, f"exchange.dct.density={density}"), None
    for density in FEATURE_DENSITIES[:1] if quick else FEATURE_DENSITIES:
        of_features = ("exchange.dct.threshold=feature", f"exchange.dct.every={FEATURE_EVERY}")
        settings = (*less, *VECTORS, *of_features, f"exchange.dct.density={density}")
        yield "vectors", density, "thresholds of features", settings, None
    yield "dense", 1.0, "whole", whole, None
    for density in DENSE_DENSITIES[:1] if quick else DENSE_DENSITIES:
        yield "dense", density, "thresholds", (*whole, *dense(density)), None
    yield "dense", AT, "top-k of each step", (*whole, *dense(AT, every=1)), None
    yield "dense", AS_MANY_BYTES, "top-k of each step", (*whole, *dense(AS_MANY_BYTES, every=1)), None
    yield "dense", AT, "random-k", (*whole, *dense(AT)), "magnitude"
    yield "dense", AT, "no error feedback", (*whole, *dense(AT)), "feedback"


def dense(density: float, every: int = EVERY) -> tuple[str, ...]:
    """Settings of thresholded dense sums."""
    return ("dense.compression=dct", f"dense.dct.density={density}", f"dense.dct.every={every}")
