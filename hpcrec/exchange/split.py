"""From bags to what each holder is asked for. Knows the layout, the forms and one batch; knows no MPI."""

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import table_seed
from hpcrec.embedding.store import Store
from hpcrec.errors import DataError
from hpcrec.exchange.distinct import DistinctForm
from hpcrec.exchange.forms import Column, Entry, Form, Part, PooledForm
from hpcrec.exchange.layout import FORMS, Layout
from hpcrec.exchange.wire import Piece
from hpcrec.types import Bags


class Splitter:
    """Splits bags by holder.

    Parameters
    ----------
    layout : Layout
    features : set of str
        Those that it is given.
    seed : int
        The run's seed, for hashed ids.
    replicas : Store or None
        The replicated tables on this rank.
    weighted : set of str
        Features whose ids carry weights.
    dtype : numpy float type
    """

    def __init__(
        self,
        layout: Layout,
        features: set[str],
        *,
        seed: int,
        replicas: Store | None,
        weighted: set[str],
        dtype: np.dtype,
    ) -> None:
        self._layout = layout
        self._seed = seed
        self._weighted = weighted
        self._dtype = np.dtype(dtype)
        self._features = [f for f in layout.form_of if f in features]
        self._forms: list[Form] = []
        for form in FORMS:
            for family, names in layout.bundles(form):
                if features.issuperset(names) and form in ("pooled", "partial"):
                    self._forms.append(PooledForm(layout, family, names))
                elif features.issuperset(names):
                    self._forms.append(DistinctForm(layout, family, names, replicas, self._dtype))

    def split(self, bags: Bags, n_samples: int, samples: slice) -> list[Part]:
        """The bags of some of ``n_samples`` samples.

        Raises
        ------
        DataError
            An id outside its table.
        """
        columns = self._columns(bags, n_samples, samples)
        return [form.split(columns) for form in self._forms]

    def asked_of(self, holder: int, bags: Bags, n_samples: int, samples: slice) -> dict[Entry, Piece]:
        """What one holder is asked of those bags, by entry: as ``split`` has it, without the work for the others.

        Raises
        ------
        DataError
            An id outside its table.
        """
        columns = self._columns(bags, n_samples, samples)
        return {entry: piece for form in self._forms for entry, piece in form.asked_of(holder, columns).items()}

    def _columns(self, bags: Bags, n_samples: int, samples: slice) -> dict[str, Column]:
        return {f: self._column(bags, f, n_samples, samples) for f in self._features}

    def _column(self, bags: Bags, feature: str, n_samples: int, samples: slice) -> Column:
        f = bags.features.index(feature)
        offsets = bags.offsets[f * n_samples + samples.start : f * n_samples + samples.stop + 1]
        here = slice(int(offsets[0]), int(offsets[-1]))
        ids, lengths = bags.ids[here], np.diff(offsets)
        family = self._layout.family_of[feature]
        if family.hashed:
            ids = kernels.hash_ids(ids, family.rows, table_seed(self._seed, family.name))
        elif family.dynamic is None and len(ids) and (ids.min() < 0 or ids.max() >= family.rows):
            bad = ids[(ids < 0) | (ids >= family.rows)][0]
            raise DataError(
                f"feature {feature!r} has id {bad}. Allowed: 0 to {family.rows - 1}, the rows of table "
                f"{family.name!r}. Set embedding.tables.{family.name}.hashed = true, or raise its rows."
            )
        weights = None
        if feature in self._weighted:
            weights = np.ones(len(ids), self._dtype) if bags.weights is None else bags.weights[here]
            weights = weights.astype(self._dtype, copy=False)
        scale = None
        if self._layout.pooling[feature] == "mean":
            scale = (1.0 / np.maximum(lengths, 1)).astype(self._dtype)
        return Column(ids, lengths, weights, scale)
