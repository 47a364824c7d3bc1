"""How a bundle of features is dealt: what each part is asked, and which of it answers each id."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.exchange.bags import Splitter
from hpcrec.exchange.columns import Column
from hpcrec.exchange.forms.pooled import Pooled
from hpcrec.exchange.forms.rows import Rows
from hpcrec.exchange.layout import Layout
from hpcrec.types import Bags, Feature, Lookup, TableSpec


def family_of(rows: int, kind: str, n_owners: int):
    specs = {"t": TableSpec(name="t", rows=rows, width=4)}
    features, lookups = [Feature(name="f", cardinality=rows)], [Lookup(feature="f", table="t")]
    (family,) = build_families(
        specs, features, lookups, {"t": Placement(kind=kind)}, owners=range(n_owners), dense=(n_owners,),
        replicate_rows=0,
    )  # fmt: skip
    return family, specs, lookups


@pytest.mark.parametrize("kind", ["row", "table", "column"])
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**12), st.integers(0, 300), st.integers(1, 4), st.integers(0, 99))
def test_distinct_rows_rise_at_every_part(kind, rows, n, n_owners, seed):
    family, *_ = family_of(rows, kind, n_owners)
    ids = np.random.default_rng(seed).integers(0, rows, n)
    dealt, index = Rows(family, ("f",)).ask({"f": Column(ids, np.ones(n, np.int64), None, None)})
    part = np.zeros(len(dealt.rows), np.int64) if dealt.part is None else dealt.part
    assert (np.diff(part) >= 0).all() and dealt.lengths.tolist() == [1] * len(np.unique(ids))
    for p in set(part.tolist()):
        assert (np.diff(dealt.rows[part == p]) > 0).all()
    wanted = family.deal(ids) if kind == "row" else (np.zeros(n, np.int64), ids)
    np.testing.assert_array_equal(part[index], wanted[0])
    np.testing.assert_array_equal(dealt.rows[index], wanted[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.integers(1, 5), st.integers(0, 99), st.booleans())
def test_every_bag_comes_to_its_owner_once(n_samples, n_owners, seed, some_empty):
    """Of a table dealt by rows: what owners are asked, together, is every id in its bag."""
    family, specs, lookups = family_of(1000, "row", n_owners)
    layout = Layout(specs, [family], lookups, forms={}, default_form="pooled", operators={})
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0 if some_empty else 1, 4, n_samples)
    ids = rng.integers(0, 1000, int(lengths.sum()))
    splitter = Splitter(layout, {"f"}, seed=0, weighted=set(), dtype=np.dtype("f4"))
    bags = Bags(("f",), ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    asked = splitter.requests(splitter.columns(bags, n_samples, slice(0, n_samples)))
    owner_V = np.repeat(asked.cells[:, 0], asked.cells[:, 3])
    found = sorted(zip(np.repeat(asked.bag, asked.lengths).tolist(), np.repeat(owner_V, asked.lengths).tolist(),
                       asked.ids.tolist(), strict=True))  # fmt: skip
    part, there = family.deal(ids)
    owners = np.array(family.holders)[part]
    wanted = sorted(
        zip(np.repeat(np.arange(n_samples), lengths).tolist(), owners.tolist(), there.tolist(), strict=True)
    )
    assert found == wanted
    assert (asked.lengths > 0).all() and asked.bags_E.sum() == len(asked.lengths)
    assert isinstance(splitter.forms[0], Pooled) and kernels.get_threads() >= 1
