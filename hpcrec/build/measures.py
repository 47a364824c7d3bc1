"""What evaluations of a configuration measure, held to its data sets and its model. Knows no ranks."""

from collections.abc import Mapping
from pathlib import Path

from hpcrec.config import Config
from hpcrec.data.reader import DataSet
from hpcrec.operators.base import Operator
from hpcrec.training.measures import Measures, load_own


def make_measures(config: Config, datasets: Mapping[str, DataSet], operators: Mapping[str, Operator]) -> Measures:
    """Metrics of ``evaluation.metrics``, and the one that the best checkpoint is best in.

    Raises
    ------
    ConfigError
        Of one's own that cannot be imported, of a feature that the model does not read, or by groups that a data set
        that is evaluated does not have.
    """
    best = config.train.early_stop is not None or config.checkpoint.keep_best
    names = tuple(dict.fromkeys((*config.evaluation.metrics, *([config.train.best_metric] if best else []))))
    folder = None if config.model.folder is None else Path(config.model.folder)
    measures = Measures(metrics=names, own=load_own(names, folder), by=config.evaluation.by)
    measures.check_by(sorted({lookup.feature for operator in operators.values() for lookup in operator.lookups}))
    for name, dataset in datasets.items():
        if name != "train":
            measures.columns(dataset)
    return measures
