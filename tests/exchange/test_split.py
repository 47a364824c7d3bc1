"""What a holder is asked, made for it alone, is what a dense rank that asks all holders would send it."""

import numpy as np
import pytest

from hpcrec.embedding.shards import Placement, build_families
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.split import Splitter
from hpcrec.operators import FM2, Operator, WideSum
from tests.exchange.test_exchange import FEATURES, LOOKUPS, global_batch, part_of, tables

OPERATORS: dict[str, Operator] = {
    "fm2": FM2(lookups=LOOKUPS[:5], width=6),
    "wide": WideSum(lookups=LOOKUPS[5:]),
}


@pytest.mark.parametrize("kind", ["table", "row", "column", "replicate"])
@pytest.mark.parametrize("form", ["pooled", "rows", "partial"])
def test_one_holders_pieces_are_those_of_all(form, kind):
    specs = tables("sgd")
    places = {name: Placement(kind=kind) for name in specs}
    families = build_families(specs, FEATURES, LOOKUPS, places, owners=(0, 2, 3), dense=(0, 1), replicate_rows=0)
    layout = Layout(specs, families, LOOKUPS, forms={}, default_form=form, operators=OPERATORS, one_hot={"item"})
    splitter = Splitter(
        layout, {f.name for f in FEATURES}, seed=7, replicas=None, weighted={"tags"}, dtype=np.dtype(np.float64)
    )
    for step, samples in ((0, slice(0, 13)), (1, slice(4, 9)), (2, slice(5, 5))):
        bags = part_of(*global_batch(step, 13), 0, 13)
        every = {key: piece for part in splitter.split(bags, 13, samples) for key, piece in part.pieces.items()}
        assert {holder for holder, _ in every} == set(layout.legs)
        for holder, leg in layout.legs.items():
            mine = splitter.asked_of(holder, bags, 13, samples)
            assert sorted(mine) == [(holder, e) for e in range(len(leg.entries))]
            for key, piece in mine.items():
                for name, wanted in vars(every[key]).items():
                    np.testing.assert_array_equal(getattr(piece, name), wanted, err_msg=f"{key} {name}")
