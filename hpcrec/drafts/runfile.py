"""Writes a first configuration for a data set of so many rows: every line with its reason. Knows no tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    recipe, system : dict, str
        Keys by section that a published system has, and its name.
    """

    data: Path
    folder: Path
    parts: Mapping[str, str]
    rows: int
    positive: float
    pooled: Sequence[str]
    recipe: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    system: str = ""


def lines(facts: Facts) -> Iterator[str]:
    """The lines of the file: the recipe's keys before ours."""
    where = facts.folder.parent.parent / "run.toml"
    yield "# A draft of hpcrec init. Read it, change it, then, on one rank or, with MPI, on as many as there are cores:"
    yield f"#   hpcrec train {where}"
    yield f"#   hpcrec run -n 2 -- train {where}"
    sections = {name: dict(keys) for name, keys in _sections(facts).items()}
    for name, keys in facts.recipe.items():
        told = f"as {facts.system} has it: hpcrec/systems/{facts.system}.py"
        sections.setdefault(name, {}).update({key: (value, told) for key, value in keys.items()})
    for name, keys in sections.items():
        yield f"\n[{name}]"
        for key, (value, reason) in keys.items():
            yield line(key, value, reason)


def _sections(facts: Facts) -> dict[str, dict[str, tuple[Any, str]]]:
    """Values and reasons of keys, by section."""
    trained = int(_TRAINED * facts.rows)
    width, batch, epochs, hidden = _sizes(trained)
    steps = max(trained // batch, 1)
    data = {"train": (str(facts.data / facts.parts["train"]), "what hpcrec prepare writes")}
    uses = {"validation": "says which checkpoint is the best", "test": "is evaluated once, after training"}
    data |= {part: (str(facts.data / facts.parts[part]), uses[part]) for part in uses if part in facts.parts}
    model: dict[str, tuple[Any, str]] = {
        "name": ("dcn", "crosses of features beside a deep tower: the best of the zoo on clicks with little tuning"),
        "width": (width, f"columns of a row; about {trained:,} training rows can fill so many"),
        "options": ({"hidden": hidden, "dropout": 0.2}, "as large as the rows can train; dropout against overfitting"),
    }
    if facts.pooled:
        pooling = dict.fromkeys(facts.pooled, "mean")
        model["pooling"] = (pooling, "several ids a sample: their mean does not grow with their number")
    train: dict[str, tuple[Any, str]] = {
        "batch_size": (batch, f"{steps:,} steps an epoch; {facts.positive * batch:.3g} rows of a batch have label 1"),
        "epochs": (epochs, "more rows need fewer passes; embeddings overfit soon"),
    }
    if "validation" in facts.parts:
        train["eval_every"] = (steps, "about once an epoch")
    rare = "rare rows take as large steps as frequent ones"
    return {
        "data": data,
        "model": model,
        "embedding": {"optimizer": ({"name": "adagrad", "lr": 0.05}, rare)},
        "dense": {"optimizer": ({"name": "Adam", "lr": 0.001}, "its usual rate")},
        "train": train,
        "run": {"folder": (str(facts.folder), "metrics, report and checkpoints")},
    }


def _sizes(trained: int) -> tuple[int, int, int, list[int]]:
    """Width, samples of a batch, epochs and hidden layers for so many training rows."""
    if trained < 20_000:
        return 8, 256, 4, [64, 32]
    if trained < 1_000_000:
        return 8, 512, 2, [128, 64]
    if trained < 50_000_000:
        return 16, 2048, 2, [256, 128]
    return 32, 8192, 1, [512, 256]
