"""The data sets that a configuration names, opened and held to each other. Knows no order, ranks or communicator."""

import difflib
from dataclasses import replace
from pathlib import Path

from hpcrec.config import Config
from hpcrec.data import layout
from hpcrec.data.agreement import difference
from hpcrec.data.carried import carried
from hpcrec.data.origin import other_origin
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError, DataError, HpcrecError


def open_datasets(config: Config) -> dict[str, DataSet]:
    """Those of ``[data]``, by ``train``, ``validation`` and ``test``.

    Raises
    ------
    ConfigError
        Two of them have not the same columns, or values became ids in other ways.
    DataError
        One is not there, cannot be understood, or has no samples.
    UnreadableError
        One cannot be read just now.
    """
    found, wrong = try_datasets(config)
    if wrong:
        raise wrong[0]
    return found


def try_datasets(config: Config) -> tuple[dict[str, DataSet], list[HpcrecError]]:
    """The same, those that can be had, and what is wrong with the others.

    Raises
    ------
    UnreadableError
        One cannot be read just now.
    """
    found: dict[str, DataSet] = {}
    wrong: list[HpcrecError] = []
    for name in ("train", "validation", "test"):
        path = getattr(config.data, name)
        if path is None:
            continue
        try:
            dataset = _open(config, name, path)
        except DataError as error:
            wrong.append(error)
            continue
        train = found.get("train")
        differs = None
        if train is not None:
            folders = Path(path).parent, Path(config.data.train).parent
            differs = difference(dataset, train) or _names(dataset, train) or other_origin(*folders)
        if differs is None:
            found[name] = dataset
        else:
            dataset.close()
            wrong.append(
                ConfigError(
                    f"data.{name} ({path}) has {differs[0]}, but data.train ({config.data.train}) has {differs[1]}. "
                    "Prepare both in one go, so that they have the same ids."
                )
            )
    return found, wrong


def refuse_other_columns(config: Config, data: str) -> None:
    """Holds a data set that a run is to predict or evaluate, as ``--data`` names it, to the one it was trained on.

    Raises
    ------
    ConfigError
        It has not the same columns, or values became ids in another way.
    DataError, UnreadableError
        As of ``open_datasets``.
    """
    trained = replace(config, data=replace(config.data, validation=None, test=None))
    with open_datasets(trained)["train"] as train, DataSet(data) as dataset:
        known = carried(Path(config.run.folder)) or Path(config.data.train).parent
        differs = difference(dataset, train) or other_origin(Path(data).parent, known)
    if differs is not None:
        raise ConfigError(
            f"--data ({data}) has {differs[0]}, but the run was trained on {config.data.train}, which has "
            f"{differs[1]}. Make it by 'hpcrec prepare' in one go with the training data, so that it has the same "
            "columns and ids."
        )


def _open(config: Config, name: str, path: str) -> DataSet:
    """The data set of a key; its errors name the key, and what may have been meant by a path that leads nowhere."""
    try:
        dataset = DataSet(path)
    except DataError as error:
        meant = "" if Path(path).exists() else _meant(Path(path), config.model.folder)
        said = f"{path}: no such file{meant}" if meant else str(error)
        raise DataError(f"data.{name}: {said}") from error
    if not dataset.samples:
        raise DataError(f"{path}: has no samples. Set data.{name} to a file that has some, or leave it out.")
    return dataset


def _meant(path: Path, beside: str | None) -> str:
    """What a path that leads nowhere may have been meant to be, as the end of a sentence; empty where nothing is found.

    ``beside`` is the folder of the configuration, to which users expect relative paths to be.
    """
    if "~" in path.parts:
        home = Path(*path.parts[path.parts.index("~") :]).expanduser()
        return f"; ~ stands for the home folder only in a shell. Write {home}."
    here = Path.cwd()
    within = path.absolute().relative_to(here) if path.absolute().is_relative_to(here) else None
    folder = None if beside is None else Path(beside).absolute()
    if within is not None and folder is not None and (folder / within).exists():
        return f" in {here}, where hpcrec was started; {folder / within} is one. Write that, or start it in {folder}."
    names = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f". Did you mean {path.parent / near[0]}?" if near else ""


def _names(dataset: DataSet, train: DataSet) -> tuple[str, str] | None:
    """Names of labels that differ, where both have some: metrics and predictions would be told by the wrong ones."""
    if not all(layout.LABELS_ATTRIBUTE in data.attributes for data in (dataset, train)):
        return None
    told = tuple(f"labels {', '.join(data.label_names)}" for data in (dataset, train))
    return None if told[0] == told[1] else (told[0], told[1])
