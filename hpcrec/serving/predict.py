"""Predictions of an export for a whole data set, in its order: one process, a batch at a time."""

from collections.abc import Sequence
from pathlib import Path

from hpcrec.data.predictions import Beside, asked_columns, format_of, predictions
from hpcrec.data.reader import DataSet
from hpcrec.errors import DataError
from hpcrec.serving.exported import Exported

BATCH = 8192  # samples


def predict_data(
    folder: Path,
    data: Path,
    out: Path,
    *,
    columns: Sequence[str] = (),
    kind: str | None = None,
    beside: Beside | None = None,
) -> int:
    """Writes probabilities of a data set's samples and ``columns`` of it, as ``hpcrec predict`` does.

    ``kind`` is as of ``data.predictions.format_of``, ``beside`` as of ``data.predictions.predictions``.

    Returns
    -------
    int
        Samples written.

    Raises
    ------
    CheckpointError, DataError, OutputError
        The export, the data set or the file cannot be read or written, or the first two do not fit each other.
    ConfigError
        The file's name ends in another way than a format's, or the data set has no such column.
    """
    kind = format_of(out, kind)
    exported = Exported(folder)
    with DataSet(data) as dataset:
        _check(exported, dataset)
        asked, step = asked_columns(dataset, columns), exported.facts["step"]
        with predictions(out, kind, dataset, asked, step=step, beside=beside) as output:
            for start in range(0, dataset.samples, BATCH):
                stop = min(start + BATCH, dataset.samples)
                read = dataset.read_ranges([(start, stop)], exported.features, ())
                output.write(start, exported.predict(read.sparse, read.dense))
        return dataset.samples


def _check(exported: Exported, dataset: DataSet) -> None:
    """Refuses data that was prepared in another way than what the model was trained on."""
    for feature in exported.facts["features"]:
        found = dataset.feature(feature["name"])
        for what in ("cardinality", "weighted"):
            if getattr(found, what) != feature[what]:
                raise DataError(
                    f"{dataset.path}: feature {found.name!r} has {what} {getattr(found, what)}; {exported.folder} was "
                    f"trained with {feature[what]}. Prepare the data as the training data was."
                )
    if dataset.n_labels != exported.labels:
        raise DataError(
            f"{dataset.path}: has {dataset.n_labels} labels; {exported.folder} was trained with {exported.labels}. "
            "Prepare the data as the training data was."
        )
    if dataset.n_dense != exported.dense_inputs:
        raise DataError(
            f"{dataset.path}: has {dataset.n_dense} dense inputs; {exported.folder} was trained with "
            f"{exported.dense_inputs}. Prepare the data as the training data was."
        )
