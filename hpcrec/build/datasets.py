"""The data sets that a configuration names, opened and held to each other. Knows no order, ranks or communicator."""

from hpcrec.config import Config
from hpcrec.data import layout
from hpcrec.data.agreement import difference
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError, DataError


def open_datasets(config: Config) -> dict[str, DataSet]:
    """Those of ``[data]``, by ``train``, ``validation`` and ``test``.

    Raises
    ------
    ConfigError
        Two of them have not the same columns.
    DataError
        One is not there, cannot be understood, or has no samples.
    UnreadableError
        One cannot be read just now.
    """
    found: dict[str, DataSet] = {}
    for name in ("train", "validation", "test"):
        path = getattr(config.data, name)
        if path is None:
            continue
        found[name] = dataset = DataSet(path)
        if not dataset.samples:
            raise DataError(f"{path}: has no samples. Set data.{name} to a file that has some, or leave it out.")
        differs = difference(dataset, found["train"]) or _names(dataset, found["train"])
        if differs is not None:
            raise ConfigError(
                f"data.{name} ({path}) has {differs[0]}, but data.train ({config.data.train}) has {differs[1]}. "
                "Prepare both in one go, so that they have the same ids."
            )
    return found


def _names(dataset: DataSet, train: DataSet) -> tuple[str, str] | None:
    """Names of labels that differ, where both have some: metrics and predictions would be told by the wrong ones."""
    if not all(layout.LABELS_ATTRIBUTE in data.attributes for data in (dataset, train)):
        return None
    told = tuple(f"labels {', '.join(data.label_names)}" for data in (dataset, train))
    return None if told[0] == told[1] else (told[0], told[1])
