"""Predictions of an export for a whole data set, in its order: one process, a batch at a time."""

from pathlib import Path

from hpcrec.data.predictions import predictions
from hpcrec.data.reader import DataSet
from hpcrec.errors import DataError
from hpcrec.serving.exported import Exported

BATCH = 8192  # samples


def predict_data(folder: Path, data: Path, out: Path) -> int:
    """Writes probabilities of a data set's samples as ``/prediction`` of an HDF5 file, as ``hpcrec predict`` does.

    Returns
    -------
    int
        Samples written.

    Raises
    ------
    CheckpointError, DataError, OutputError
        The export, the data set or the file cannot be read or written, or the first two do not fit each other.
    """
    exported = Exported(folder)
    with DataSet(data) as dataset:
        _check(exported, dataset)
        shape = (dataset.samples,) if exported.labels == 1 else (dataset.samples, exported.labels)
        with predictions(out, shape) as output:
            for start in range(0, dataset.samples, BATCH):
                stop = min(start + BATCH, dataset.samples)
                columns = dataset.read_ranges([(start, stop)], exported.features, ())
                output.file["prediction"][start:stop] = exported.predict(columns.sparse, columns.dense)
                output.check()
            output.file.attrs.update({"data": str(dataset.path), "step": exported.facts["step"]})
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
    if dataset.n_dense != exported.dense_inputs:
        raise DataError(
            f"{dataset.path}: has {dataset.n_dense} dense inputs; {exported.folder} was trained with "
            f"{exported.dense_inputs}. Prepare the data as the training data was."
        )
