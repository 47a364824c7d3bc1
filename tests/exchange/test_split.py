"""What an owner reads itself is what all dense ranks would send it, and what it decodes of their messages."""

from dataclasses import replace

import numpy as np
import pytest

from hpcrec.comm.sizes import padded_bytes
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.embedding.stores.memory import MemoryStore
from hpcrec.exchange.bags import Splitter, cumulative
from hpcrec.exchange.dense_side import DenseSide
from hpcrec.exchange.id_reader import IdReader
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.owner_side import OwnerSide
from hpcrec.operators import FM2, Operator, WideSum
from hpcrec.types import GlobalIds
from tests.exchange.test_exchange import FEATURES, LOOKUPS, global_batch, part_of, tables

OPERATORS: dict[str, Operator] = {
    "fm2": FM2(lookups=LOOKUPS[:5], width=6),
    "wide": WideSum(lookups=LOOKUPS[5:]),
}
DENSE, OWNERS, BATCH = (0, 1), (0, 2, 3), 13


@pytest.mark.parametrize("kind", ["table", "row", "column", "replicate"])
@pytest.mark.parametrize("form", ["pooled", "rows", "partial"])
def test_what_is_read_is_what_is_sent(form, kind):
    specs, size = tables("sgd"), 4
    places = {name: Placement(kind=kind) for name in specs}
    families = build_families(specs, FEATURES, LOOKUPS, places, owners=OWNERS, dense=DENSE, replicate_rows=0)
    layout = Layout(specs, families, LOOKUPS, forms={}, default_form=form, operators=OPERATORS, one_hot={"item"})
    dtype, how = np.dtype(np.float64), {"seed": 7, "weighted": {"tags"}, "dtype": np.dtype(np.float64)}
    names = {f.name for f in FEATURES}
    for step in range(2):
        whole = part_of(*global_batch(step, BATCH), 0, BATCH)
        first = [0, 6, BATCH]
        sent = {}
        for d, rank in enumerate(DENSE):
            held = [f for f in families if rank in f.holders and f.kind == "replicate"]
            replicas = MemoryStore(specs, held, rank=rank, seed=7, dtype=dtype) if held else None
            side = DenseSide(Splitter(layout, names, **how), layout, replicas=replicas, size=size, pad=padded_bytes)
            bags = part_of(*global_batch(step, BATCH), first[d], first[d + 1])
            n = first[d + 1] - first[d]
            sent[rank] = side.ask(bags, n, lambda n_R: np.zeros(int(n_R.sum()), np.uint8), train=True)
        for owner in layout.legs:
            held = [f for f in families if owner in f.holders]
            store = MemoryStore(specs, held, rank=owner, seed=7, dtype=dtype)
            side = OwnerSide(store, layout, owner, OPERATORS, weighted={"tags"}, size=size, pad=padded_bytes)
            bytes_R, messages = np.zeros(size, np.int64), []
            for rank, (asked, message) in sent.items():
                at = cumulative(asked.id_bytes_R)
                bytes_R[rank] = asked.id_bytes_R[owner]
                messages.append(message[at[owner] : at[owner + 1]])
            decoded = side.decoded(np.concatenate(messages), bytes_R)
            features = set(layout.held(owner))
            reader = IdReader(Splitter(layout, features, **how, only=owner), DENSE)
            read = reader.received(GlobalIds(whole, np.array(first)))
            for name, wanted in vars(decoded).items():
                np.testing.assert_array_equal(getattr(read, name), wanted, err_msg=f"{owner} {name}")
            served = [side.read(received, train=True) for received in (decoded, read)]
            for rank, (asked, _) in sent.items():
                assert served[0].value_bytes_R[rank] == asked.value_bytes_R[owner]
            for mine, theirs in zip(served[0].works, served[1].works, strict=True):
                np.testing.assert_array_equal(mine.index, theirs.index)


def test_a_damaged_message_is_refused():
    specs = tables("sgd")
    families = build_families(specs, FEATURES, LOOKUPS, {}, owners=(0,), dense=(1,), replicate_rows=0)
    layout = Layout(specs, families, LOOKUPS, forms={}, default_form="pooled", operators=OPERATORS)
    store = MemoryStore(specs, families, rank=0, seed=7, dtype=np.dtype(np.float32))
    side = OwnerSide(store, layout, 0, OPERATORS, weighted=set(), size=2, pad=padded_bytes)
    with pytest.raises(ValueError, match="sender 0"):
        side.decoded(np.full(64, 255, np.uint8), np.array([0, 64]))


def sides(owners, form):
    """Owner 0, what dense rank 1 asks of all owners for a batch, and the messages."""
    specs, size = tables("sgd"), 3
    families = build_families(specs, FEATURES, LOOKUPS, {}, owners=owners, dense=(1,), replicate_rows=0)
    layout = Layout(specs, families, LOOKUPS, forms={}, default_form=form, operators=OPERATORS)
    dtype = np.dtype(np.float64)
    store = MemoryStore(specs, [f for f in families if 0 in f.holders], rank=0, seed=7, dtype=dtype)
    owner = OwnerSide(store, layout, 0, OPERATORS, weighted={"tags"}, size=size, pad=padded_bytes)
    splitter = Splitter(layout, {f.name for f in FEATURES}, seed=7, weighted={"tags"}, dtype=dtype)
    side = DenseSide(splitter, layout, replicas=None, size=size, pad=padded_bytes)
    bags = part_of(*global_batch(0, BATCH), 0, BATCH)
    asked, message = side.ask(bags, BATCH, lambda n_R: np.zeros(int(n_R.sum()), np.uint8), train=True)
    return owner, asked.id_bytes_R, np.split(message, np.cumsum(asked.id_bytes_R)[:-1])


def test_what_an_owner_does_not_hold_is_refused():
    """A message for another owner is well formed: what is wrong is only that these features are not here."""
    owner, bytes_R, messages = sides((0, 2), "pooled")
    assert len(owner.decoded(messages[0], np.array([0, bytes_R[0], 0])).ids) > 0
    with pytest.raises(ValueError, match=r"rank 1 asks for the features of number \d+ of the layout, which this"):
        owner.decoded(messages[2], np.array([0, bytes_R[2], 0]))


def test_operators_are_given_as_many_bags_of_each_feature():
    owner, bytes_R, messages = sides((0,), "partial")
    received = owner.decoded(messages[0], np.array([0, bytes_R[0], 0]))
    assert owner.read(received, train=True).partials.elements > 0
    cells = received.cells.copy()
    cells[0, 3] -= 1
    with pytest.raises(ValueError, match=rf"rank 1 asks for \[.*{BATCH - 1}.*\] bags of the features that operators"):
        owner.read(replace(received, cells=cells), train=True)
