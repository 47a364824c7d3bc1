"""``hpcrec.load``: a run folder or an export that predicts. Knows samples, by source values or ids, and who computes.

A run computes by a session, as ``hpcrec predict`` does: its samples go by way of a file. An export needs no MPI.

Legend: ``B`` samples, ``K`` ids, ``N`` dense inputs, ``L`` labels.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from hpcrec.api.configured import run_config
from hpcrec.data.carried import carried
from hpcrec.data.gather import cut
from hpcrec.data.layout import Column, Columns
from hpcrec.errors import CheckpointError, ConfigError, DataError
from hpcrec.models.own import hand_over
from hpcrec.preparation import frames
from hpcrec.preparation.sourced import Source
from hpcrec.serving.exported import Exported
from hpcrec.serving.folder import EXPORT
from hpcrec.serving.predict import BATCH
from hpcrec.types import Floats

Compute = Callable[[Columns], Floats]


class Loaded:
    """A trained model; a context manager, for what it holds until ``close``.

    Attributes
    ----------
    features : tuple of str
        What ``predict`` needs ids of, where it is not given a frame.
    dense_inputs : int
    """

    def __init__(
        self,
        compute: Compute,
        close: Callable[[], None],
        features: tuple[str, ...],
        dense_inputs: int,
        data: Path | None,
    ) -> None:
        self._compute, self._close, self._data = compute, close, data
        self.features, self.dense_inputs = features, dense_inputs
        self._source: Source | None = None
        self._closed = False

    def predict(self, frame: Any, dense: Any = None) -> Floats:
        """Probabilities of samples, in their order: those that ``hpcrec predict`` gives, to the bit.

        Parameters
        ----------
        frame : pandas, polars or pyarrow table; or mapping of str to array or tuple
            A frame has values as they stood in the table that the data set was prepared from; columns that are no
            inputs are not read. A mapping has of each feature: ids [B], one a sample; or (ids [K], offsets [B + 1]),
            bag i being ``ids[offsets[i]:offsets[i + 1]]``; or (ids, offsets, weights [K]).
        dense : float [B, N], optional
            With a mapping, where the model has dense inputs.

        Returns
        -------
        float32 [B], or [B, L] of several labels

        Raises
        ------
        ConfigError
            A frame lacks a column.
        DataError
            A value is not allowed, a feature is missing or of another length, or how a frame's values became ids is not
            known.
        """
        if self._closed:
            raise CheckpointError("the model is closed. Load it again.")
        if not frames.is_frame(frame):
            return self._compute(self._given(frame, dense))
        if dense is not None:
            raise DataError("dense: is given beside a frame, which has dense inputs among its columns. Leave it out.")
        return self._compute(self._sourced().inputs(frame))

    def close(self) -> None:
        """Lets go of rows, files and threads; again does nothing."""
        if not self._closed:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _sourced(self) -> Source:
        if self._data is None:
            raise DataError(
                "the frame: this export does not say how values became ids, for its run's data set did not. Give "
                "hpcrec.load(..., data=FOLDER), the folder that 'hpcrec prepare' wrote, or ids by feature."
            )
        if self._source is None:
            self._source = Source(self._data)
            if absent := [name for name in self.features if name not in {f.name for f in self._source.features}]:
                raise DataError(f"{self._data}: makes no feature {', '.join(absent)}, which the model reads.")
        return self._source

    def _given(self, sparse: Any, dense: Any) -> Columns:
        if not isinstance(sparse, Mapping):
            raise DataError(f"predict: is given a {type(sparse).__name__}. Allowed: a frame, or ids by feature.")
        if set(sparse) != set(self.features):
            raise DataError(
                f"predict: is given {', '.join(map(str, sparse)) or 'no feature'}. Needed: {', '.join(self.features)}."
            )
        columns = {name: _column(sparse[name]) for name in self.features}
        samples = {name: len(c.ids) if c.offsets is None else len(c.offsets) - 1 for name, c in columns.items()}
        n = next(iter(samples.values()), 0 if dense is None else len(dense))
        dense_BN = np.zeros((n, 0), np.float32) if dense is None else np.asarray(dense, np.float32)
        if len({n, *samples.values(), len(dense_BN)}) > 1 or dense_BN.shape != (n, self.dense_inputs):
            raise DataError(
                f"predict: samples by feature are {samples}, dense is {list(dense_BN.shape)}. Needed: the same number "
                f"of each, and dense [{n}, {self.dense_inputs}]."
            )
        return Columns(np.zeros(n, np.float32), dense_BN, columns)


def load(
    folder: os.PathLike[str] | str,
    *,
    data: os.PathLike[str] | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Loaded:
    """A model to predict with.

    Parameters
    ----------
    folder : path or Run
        A run, or its folder, whose best checkpoint is taken (the last where none was marked), or an export.
    data : path, optional
        Folder of a prepared data set that says how a frame's values become ids, in place of what the run, or the
        export, has of its training data.
    model : class or function, optional
        The model that the run was trained with, where it was made in a notebook or a script.
    trust : bool
        Whether a model that is code of the run's own may be run: as you would run a program by whom it is from.

    Raises
    ------
    CheckpointError, ConfigError
        It is neither, or cannot be read; its model is code, and neither trusted nor handed over.
    """
    folder, place = Path(folder), None if data is None else Path(data)
    if not (folder / EXPORT).is_file():
        return _run(folder, place, model, trust=trust)
    if model is not None:
        raise ConfigError(f"model: is given, but {folder} is an export, which has its model. Leave it out.")
    exported = Exported(folder)

    def compute(columns: Columns) -> Floats:
        parts = [cut(columns, at, min(at + BATCH, columns.samples)) for at in range(0, columns.samples, BATCH)]
        used = [{name: part.sparse[name] for name in exported.features} for part in parts or [columns]]
        return np.concatenate([exported.predict(s, p.dense) for s, p in zip(used, parts or [columns], strict=True)])

    return Loaded(compute, lambda: None, exported.features, exported.dense_inputs, place or carried(folder))


def _run(folder: Path, data: Path | None, model: Any, *, trust: bool) -> Loaded:
    config = run_config(folder)
    handed = None if model is None else hand_over(model)
    if handed not in (None, config.model.name):
        raise ConfigError(f"model: {handed} is given, but {folder} was trained with {config.model.name}.")
    if (code := [path for path in config.model.code if path != handed]) and not trust:
        raise ConfigError(
            f"{folder}: is a run, no export, and its model is code, {', '.join(map(repr, code))}, which would be run "
            "here. Hand it over by model=, or give trust=True where you would run a program by whom it is from."
        )
    from hpcrec.api.reading import Reading

    reading = Reading(config, os.environ)
    place = data or carried(folder) or Path(config.data.train).parent
    return Loaded(reading.predict, reading.close, reading.features, reading.dense_inputs, place)


def _column(given: Any) -> Column:
    if isinstance(given, Column):
        return given
    ids, offsets, weights = (*given, None, None)[:3] if isinstance(given, tuple) else (given, None, None)
    of = (None if offsets is None else np.asarray(offsets), None if weights is None else np.asarray(weights))
    return Column(np.asarray(ids), *of)
