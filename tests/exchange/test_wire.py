"""The ids message: pieces come back, each entry takes the fewest bytes, and what is read does not depend on codings."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels
from hpcrec.comm.collectives import padded_bytes
from hpcrec.exchange import wire
from hpcrec.exchange.serve import Holder
from hpcrec.exchange.wire import Coded, Piece, compact, entry_bytes, message_bytes, plain, read_header, write_message
from hpcrec.kernels import Coding
from tests.exchange.coded import as_table


def packed_bytes(numbers: np.ndarray) -> int:
    """By hand: a byte a block of 128, and as many bits a word as the block's largest takes, or 64."""
    words = np.asarray(numbers, np.int64).view(np.uint64)
    blocks = [words[i : i + 128].tolist() for i in range(0, len(words), 128)]
    widths = [max(block).bit_length() for block in blocks]
    return sum(
        1 + -(-len(block) * (bits if bits <= 56 else 64) // 8) for block, bits in zip(blocks, widths, strict=True)
    )


def near(piece: Piece) -> Coded:
    return compact(piece, far=False)


WAYS = (plain, near, as_table)


def piece(rng: np.random.Generator, n_bags: int, longest: int, rows: int, *, weighted: bool = False) -> Piece:
    """``longest`` 0: every bag is one id; -1: the ids rise too. ``rows`` 0: any 64-bit ids."""
    lengths = rng.integers(0, longest + 1, n_bags) if longest > 0 else None
    n = n_bags if lengths is None else lengths.sum()
    ids = rng.integers(0, rows, n) if rows else rng.integers(-(2**63), 2**63 - 1, n, endpoint=True)
    if not rows and n > 3:
        ids[rng.choice(n, 3, replace=False)] = -(2**63), 2**63 - 1, -1
    ids = np.unique(ids) if longest < 0 else ids
    return Piece(ids, lengths, rng.random(len(ids)).astype(np.float32) if weighted else None)


def message_of(coded: list[Coded]) -> np.ndarray:
    n_bytes = message_bytes(coded)
    out = np.full(-(-n_bytes // 64) * 64, 7, np.uint8)
    write_message(coded, out[:n_bytes])
    return out


PIECES = st.tuples(st.integers(0, 300), st.integers(-1, 4), st.sampled_from([0, 1, 3, 50, 10**6, 2**40]), st.booleans())


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 99))
def test_pieces_come_back(asked, tables, seed):
    rng = np.random.default_rng(seed)
    pieces = [piece(rng, *some[:3], weighted=some[3]) for some in asked]
    mixed = [(as_table if table else near)(p) for p, table in zip(pieces, tables, strict=False)]
    for coded in ([plain(p) for p in pieces], mixed):
        received = np.concatenate([np.zeros(64, np.uint8), message_of(coded)])  # behind another rank's message
        weighted_E = np.array([p.weights is not None for p in pieces])
        header = read_header(received, 64, len(received), weighted_E, 4)
        places_EX = header.places_EX
        asked_EX = np.hstack([places_EX[:, :4], np.zeros((len(pieces), 3), np.int64), places_EX[:, 4:]])
        joined = kernels.unpack(received, asked_EX, 1)
        np.testing.assert_array_equal(joined.index, np.concatenate([p.rows for p in pieces]))
        lengths = [np.ones(p.n_bags, np.int64) if p.lengths is None else p.lengths for p in pieces]
        np.testing.assert_array_equal(np.diff(joined.offsets), np.concatenate(lengths))
        assert header.n_bags.tolist() == [p.n_bags for p in pieces]
        for entry, p in enumerate(pieces):
            np.testing.assert_array_equal(header.lengths(received, entry), lengths[entry])
            wanted = np.ones(len(p.rows)) if p.weights is None else p.weights
            np.testing.assert_array_equal(header.weights(received, entry, np.dtype("f4")), wanted)
        with pytest.raises(AssertionError, match="shorter than its header"):
            read_header(received, 64, 63 + message_bytes(coded), weighted_E, 4)


@settings(max_examples=60, deadline=None)
@given(PIECES, st.integers(0, 99))
def test_entry_bytes_are_the_formula(some, seed):
    p = piece(np.random.default_rng(seed), *some[:3], weighted=some[3])
    fewest = min(packed_bytes(p.rows), packed_bytes(np.diff(p.rows, prepend=-1) - 1))
    rest = 24 + (0 if p.lengths is None else packed_bytes(p.lengths)) + (0 if p.weights is None else p.weights.nbytes)
    assert entry_bytes(p, far=False) == fewest + rest == message_bytes([near(p)])
    assert entry_bytes(p, far=True) <= fewest + rest
    lengths_bytes = 0 if p.lengths is None else 4 * p.n_bags
    weights_bytes = 4 * len(p.rows) if some[3] else 0
    assert message_bytes([plain(p)]) == 24 + 8 * len(p.rows) + lengths_bytes + weights_bytes


def test_a_table_goes_far_where_ids_repeat_enough():
    rng = np.random.default_rng(0)
    hot = rng.integers(0, 2**40, 500)[rng.integers(0, 500, 20_000)]
    found = compact(Piece(hot, None, None), far=True)
    assert found.coding == Coding.TABLE
    # 9 bits a place and a byte a block; of the table at most 40 bits a row
    assert 20_000 * 9 / 8 < found.ids_bytes <= 20_000 * 9 / 8 + 157 + 500 * 40 / 8 + 4
    assert entry_bytes(Piece(hot, None, None), far=True) == 24 + found.ids_bytes
    assert compact(Piece(hot, None, None), far=False).coding == Coding.PACKED
    for rows in (hot[:4000], rng.integers(0, 2**40, 20_000), hot % 256):  # few ids; few that repeat; few bits
        assert compact(Piece(rows, None, None), far=True).coding == Coding.PACKED
    assert compact(Piece(np.arange(0, 90_000, 3), None, None), far=True).coding == Coding.RISING


def test_a_promise_that_is_not_kept_costs_no_bytes(monkeypatch):
    monkeypatch.setattr(wire, "promises_a_table", lambda rows, packed: True)
    distinct = np.random.default_rng(0).permutation(5000)
    assert compact(Piece(distinct, None, None), far=True).coding == Coding.PACKED


def test_more_than_a_header_can_count_is_refused():
    class Long(np.ndarray):
        def __len__(self) -> int:
            return 2**32

    p = Piece(np.zeros(0, np.int64).view(Long), None, None)
    with pytest.raises(OverflowError):
        write_message([Coded(p, Coding.PACKED, 0, 0)], np.zeros(24, np.uint8))


def holder_of(n_entries: int) -> Holder:
    """One that holds a table of 10^6 rows, 4 wide, for each of the entries."""
    names = [f"f{e}" for e in range(n_entries)]
    parts = {name: SimpleNamespace(base=10**6 * e) for e, name in enumerate(names)}
    block = SimpleNamespace(width=4, total_width=4, spec=SimpleNamespace(name="sgd"))
    found = {"blocks": [block], "place": lambda table: (0, parts[table]), "dynamic": {}, "prefetch": lambda *_: None}
    store = SimpleNamespace(dtype=np.dtype("f4"), device=None, **found)
    streams = [SimpleNamespace(entry=e, table=name, width=4) for e, name in enumerate(names)]
    entries = [SimpleNamespace(form="rows", features=(name,)) for name in names]
    leg = SimpleNamespace(streams=streams, hidden=(), partials=(), n_value_streams=n_entries, entries=entries)
    return Holder(store, leg, {}, {}, weighted=[False] * n_entries, size=3, pad=padded_bytes)


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_read_does_not_depend_on_codings(threads):
    rng = np.random.default_rng(0)
    senders = [[piece(rng, 900, longest, 10**6) for longest in (0, 3, -1, 2)] for _ in range(2)]
    kernels.set_threads(threads)
    found = []
    for way in WAYS:
        messages = [message_of([way(p) for p in pieces]) for pieces in senders]
        bytes_R = np.array([len(messages[0]), 0, len(messages[1])])
        served = holder_of(4).read(np.concatenate(messages), bytes_R, train=True)
        work = served.works[0]
        assert work.grouping is not None
        arrays = (work.index, work.offsets, work.value_start, work.source_start, *work.grouping)
        found.append([a.tobytes() for a in arrays])
    kernels.set_threads(1)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 7
