"""Writes a first configuration for a data set of so many rows: every line with its reason. Knows no tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrec.drafts.columnmap import line

_TRAINED = 0.8  # share of the rows that is trained on where one table is split


@dataclass(frozen=True)
class Facts:
    """What a configuration follows from.

    Attributes
    ----------
    data, folder : Path
        Of the data set and of the run.
    parts : dict of str to str
        Files of the data set, by part.
    rows : int
        Of the training tables, about.
    positive : float
        Share of rows with label 1.
    pooled : list of str
        Features with several ids.
    """

    data: Path
    folder: Path
    parts: Mapping[str, str]
    rows: int
    positive: float
    pooled: Sequence[str]


def lines(facts: Facts) -> Iterator[str]:
    """The lines of the file."""
    trained = int(_TRAINED * facts.rows)
    width, batch, epochs, hidden = _sizes(trained)
    yield "# A draft of hpcrec init. Read it, change it, then, on as many ranks as there are cores:"
    yield f"#   hpcrec run -n 2 -- train {facts.folder.parent.parent / 'run.toml'}"
    yield "[data]"
    yield line("train", str(facts.data / facts.parts["train"]), "what hpcrec prepare writes")
    for part, use in (
        ("validation", "says which checkpoint is the best"),
        ("test", "is evaluated once, after training"),
    ):
        if part in facts.parts:
            yield line(part, str(facts.data / facts.parts[part]), use)
    yield "\n[model]"
    yield line(
        "name", "dcn", "crosses of features beside a deep tower: the best of the zoo on clicks with little tuning"
    )
    yield line("width", width, f"columns of a row; about {trained:,} training rows can fill so many")
    if facts.pooled:
        pooling = dict.fromkeys(facts.pooled, "mean")
        yield line("pooling", pooling, "several ids a sample: their mean does not grow with their number")
    yield line(
        "options",
        {"hidden": hidden, "dropout": 0.2},
        "layers as large as the rows can train; dropout against overfitting",
    )
    yield "\n[embedding]"
    yield line("optimizer", {"name": "adagrad", "lr": 0.05}, "rare rows take as large steps as frequent ones")
    yield "\n[dense]"
    yield line("optimizer", {"name": "Adam", "lr": 0.001}, "its usual rate")
    yield "\n[train]"
    yield line(
        "batch_size",
        batch,
        f"some {max(trained // batch, 1):,} steps an epoch; {facts.positive * batch:.3g} rows of a batch have label 1",
    )
    yield line("epochs", epochs, "more rows need fewer passes; embeddings overfit soon")
    if "validation" in facts.parts:
        yield line("eval_every", max(trained // batch, 1), "about once an epoch")
    yield "\n[run]"
    yield line("folder", str(facts.folder), "metrics, report and checkpoints")


def _sizes(trained: int) -> tuple[int, int, int, list[int]]:
    """Width, samples of a batch, epochs and hidden layers for so many training rows."""
    if trained < 20_000:
        return 8, 256, 4, [64, 32]
    if trained < 1_000_000:
        return 8, 512, 2, [128, 64]
    if trained < 50_000_000:
        return 16, 2048, 2, [256, 128]
    return 32, 8192, 1, [512, 256]
