"""How a bundle of features is split by holder: what each is asked, and which of it answers each id."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.exchange.distinct import DistinctPart
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.split import Splitter
from hpcrec.types import Bags, Feature, Lookup, TableSpec


def split_rows(ids: np.ndarray, rows: int, kind: str, n_owners: int) -> DistinctPart:
    """Ids of one one-hot feature, split by form ``rows``."""
    specs = {"t": TableSpec(name="t", rows=rows, width=4)}
    features, lookups = [Feature(name="f", cardinality=rows)], [Lookup(feature="f", table="t")]
    owners = tuple(range(n_owners))
    families = build_families(
        specs, features, lookups, {"t": Placement(kind=kind)}, owners=owners, dense=(n_owners,), replicate_rows=0
    )
    layout = Layout(specs, families, lookups, forms={}, default_form="rows", operators={})
    splitter = Splitter(layout, {"f"}, seed=0, replicas=None, weighted=set(), dtype=np.dtype("f4"))
    bags = Bags(("f",), ids, np.arange(len(ids) + 1, dtype=np.int64))
    (part,) = splitter.split(bags, len(ids), slice(0, len(ids)))
    assert isinstance(part, DistinctPart)
    return part


@pytest.mark.parametrize("kind", ["row", "table", "column"])
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**12), st.integers(0, 300), st.integers(1, 4), st.integers(0, 99))
def test_distinct_rows_rise_at_every_holder(kind, rows, n, n_owners, seed):
    ids = np.random.default_rng(seed).integers(0, rows, n)
    part = split_rows(ids, rows, kind, n_owners)
    parts = n_owners if kind == "row" else 1
    row_of = np.full(len(part.unique), -1)
    part_of = np.full(len(part.unique), -1)
    for (holder, entry), piece in part.pieces.items():
        assert (entry, piece.lengths, piece.weights) == (0, None, None)
        assert (np.diff(piece.rows) > 0).all()
        first = part.firsts[holder, entry]
        row_of[first : first + len(piece.rows)] = piece.rows
        part_of[first : first + len(piece.rows)] = part.family.holders.index(holder) if kind == "row" else 0
    dealt = kernels.permute(ids, rows, 0) if kind == "row" else ids
    np.testing.assert_array_equal(row_of[part.index], dealt // parts)
    np.testing.assert_array_equal(part_of[part.index], dealt % parts)
    assert len(row_of) == len(np.unique(ids)) and (row_of >= 0).all()
