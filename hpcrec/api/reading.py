"""A run's session that predicts samples at hand, by way of a file: the bits of ``hpcrec predict`` for that file.

Knows sessions and data files; how values became ids is for ``loaded``.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from hpcrec.api.commands import measuring_nothing
from hpcrec.api.process import ranks, taking_part
from hpcrec.build.reading import open_for_reading
from hpcrec.config import Config
from hpcrec.data.layout import Columns
from hpcrec.data.order import GlobalOrder
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from hpcrec.preparation.writer import Writer
from hpcrec.training.parts import Split
from hpcrec.types import Floats


class Reading:
    """A run's best checkpoint (the last where none was marked), on one rank; its metrics are not run.

    Attributes
    ----------
    features : tuple of str
    dense_inputs : int

    Raises
    ------
    ConfigError
        There are several ranks, or the run cannot be read.
    CheckpointError
        It has no checkpoint.
    """

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        if ranks() > 1:
            raise ConfigError(
                f"load: {config.run.folder} is asked for on each of {ranks()} ranks. Load it in one process without "
                "mpirun, or use 'hpcrec predict', which runs on any number."
            )
        self._environment, self._config = environment, config
        with taking_part(environment):
            self._session = open_for_reading(measuring_nothing(config), None, "best")
            self._threads = torch.get_num_threads()
        self._trained_on = self._session.parts.splits["train"].dataset
        self.features = tuple(feature.name for feature in self._trained_on.features)
        self.dense_inputs = self._trained_on.n_dense

    def predict(self, columns: Columns) -> Floats:
        """Probabilities, float32 [B] or [B, L].

        Raises
        ------
        DataError
            The samples are not as those that the run was trained on.
        """
        of, n = self._trained_on, columns.samples
        shape = (n,) if of.n_labels == 1 else (n, of.n_labels)
        if not n:
            return np.zeros(shape, np.float32)
        unlabelled = Columns(np.zeros(shape, np.float32), columns.dense, columns.sparse)
        jagged = [name for name in self.features if columns.sparse[name].offsets is not None]
        with (
            taking_part(self._environment, self._threads),
            tempfile.TemporaryDirectory(prefix="hpcrec-") as folder,
        ):
            path = Path(folder) / "samples.h5"
            with Writer(path, of.features, n_dense=of.n_dense, n_labels=of.n_labels, jagged=jagged) as writer:
                writer.append(unlabelled)
            with DataSet(path) as dataset:
                return self._outputs(dataset)

    def _outputs(self, dataset: DataSet) -> Floats:
        read, splits = self._config.data, self._session.parts.splits
        order = GlobalOrder(
            dataset.samples,
            self._config.train.batch_size,
            seed=self._config.train.seed,
            chunk=read.chunk,
            window=read.window,
            shuffle=False,
        )
        before, splits["test"] = splits["test"], Split(dataset=dataset, order=order)
        try:
            return np.concatenate(
                [torch.sigmoid(logits).to(torch.float32).numpy() for _, _, logits in self._session.outputs("test")]
            )
        finally:
            splits["test"] = before

    def close(self) -> None:
        """Closes the session."""
        with taking_part(self._environment):
            self._session.close()
