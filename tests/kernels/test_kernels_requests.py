"""Requests: native = reference bit for bit, what is written comes back, in how many bytes, and what is refused."""

from dataclasses import dataclass

import numpy as np
import pytest
from all_backends import DEVICES, assert_same_bits, same_from_all
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcrec import kernels
from hpcrec.kernels.reference_requests import PACKED, RISING, TABLE

BACKENDS = ("native", "reference")
NOTHING = np.empty(0, np.int64)
EDGES = [0, 1, -1, 2**31, 2**55, 2**56 - 1, 2**56, 2**57, 2**63 - 1, -(2**63)]


@dataclass
class Asked:
    """Requests of one rank, and what is known at both ends."""

    ids: np.ndarray
    lengths: np.ndarray
    cells: np.ndarray
    far: np.ndarray
    weighted: np.ndarray
    item: int = 4

    @property
    def weights(self) -> np.ndarray:
        n = int(self.cells[self.weighted[self.cells[:, 1]], 2].sum())
        return (np.arange(n * self.item) * 7 % 256).astype(np.uint8)

    def plan(self) -> kernels.RequestPlan:
        return kernels.plan_requests(self.ids, self.lengths, self.cells, self.far, self.weighted, self.item)

    def write(self, plan: kernels.RequestPlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All messages with their padding, where each begins, and the bytes of each with its padding."""
        padded_R = -(-plan.bytes_R // 64) * 64
        at_R = np.cumsum(padded_R) - padded_R
        out = np.full(int(padded_R.sum()), 0xAA, np.uint8)
        kernels.write_requests(
            plan, self.ids, self.lengths, self.cells, self.weights, self.weighted, self.item, out, at_R
        )
        return out, at_R, padded_R


def asked_of(
    cells: list[tuple[int, int, list[list[int]]]],
    n_owners: int,
    n_entries: int,
    *,
    far: bool = False,
    weighted: tuple[int, ...] = (),
    item: int = 4,
) -> Asked:
    """Of (owner, entry, bags)."""
    flat = [len(bag) for _, _, bags in cells for bag in bags]
    table = [(o, e, sum(map(len, bags)), len(bags)) for o, e, bags in cells]
    ids = [np.asarray(bag, np.int64) for _, _, bags in cells for bag in bags]
    flags = np.zeros(n_entries, bool)
    flags[list(weighted)] = True
    return Asked(
        np.concatenate([NOTHING, *ids]), np.array(flat, np.int64), np.array(table, np.int64).reshape(-1, 4),
        np.full(n_owners, far), flags, item,
    )  # fmt: skip


def crossed(asked: Asked) -> kernels.RequestPlan:
    """Plan, bytes and what is read are the same from both backends, and what was asked comes back."""

    def run() -> tuple[tuple[np.ndarray, ...], ...]:
        plan = asked.plan()
        out, at_R, padded_R = asked.write(plan)
        read = kernels.read_requests(out, at_R, padded_R, asked.weighted, asked.item)
        exact = kernels.read_requests(out, at_R, plan.bytes_R, asked.weighted, asked.item)
        assert_same_bits(tuple(exact), tuple(read))
        return tuple(plan), (out,), tuple(read)

    plan, (out,), read = same_from_all(run, threads=(1, 2))
    ids, offsets, cells, weights = read
    assert_same_bits(ids, asked.ids)
    assert_same_bits(np.diff(offsets), asked.lengths)
    assert offsets[0] == 0
    assert_same_bits(cells, asked.cells)
    assert_same_bits(weights, asked.weights)
    padding = np.ones(len(out), bool)
    for at, n in zip(np.cumsum(-(-plan[0] // 64) * 64) - -(-plan[0] // 64) * 64, plan[0], strict=True):
        padding[at : at + n] = False
    assert (out[padding] == 0xAA).all()
    return kernels.RequestPlan(*plan)


# --- round trips -----------------------------------------------------------------------------------------------------


@st.composite
def any_asked(draw) -> Asked:
    """Few cells of few ids, and now and then many ids, of any width, rising or not."""
    n_owners, n_entries = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    places = [(o, e) for o in range(n_owners) for e in range(n_entries) if draw(st.booleans())]
    cells = []
    for owner, entry in places:
        n_bags = draw(st.sampled_from([1, 1, 2, 5, 127, 128, 129, 300]))
        longest = draw(st.sampled_from([0, 1, 1, 2, 3]))
        lengths = np.ones(n_bags, np.int64) if longest == 1 else rng.integers(0, longest + 1, n_bags)
        bits, n = draw(st.integers(0, 64)), int(lengths.sum())
        ids = rng.integers(-(2**63), 2**63 - 1, n) if bits == 64 else rng.integers(0, 2**bits, n)
        if n and draw(st.booleans()):
            ids[rng.integers(n)] = draw(st.sampled_from(EDGES))
        if draw(st.booleans()):
            ids = np.sort(ids)
        cells.append((owner, entry, [bag.tolist() for bag in np.split(ids, np.cumsum(lengths)[:-1])]))
    asked = asked_of(cells, n_owners, n_entries, item=draw(st.sampled_from([1, 4, 8])))
    asked.far[:] = draw(st.lists(st.booleans(), min_size=n_owners, max_size=n_owners))
    asked.weighted[:] = draw(st.lists(st.booleans(), min_size=n_entries, max_size=n_entries))
    return asked


@settings(max_examples=150, deadline=None)
@given(any_asked())
def test_any_requests_come_back(asked):
    crossed(asked)


HAND_PICKED = {
    "nothing": asked_of([], 3, 2),
    "no owners": asked_of([], 0, 0),
    "an empty bag": asked_of([(0, 0, [[]])], 1, 1),
    "empty bags": asked_of([(0, 1, [[]] * 300), (2, 0, [[]]), (2, 1, [[], []])], 3, 2, weighted=(0, 1)),
    "one id": asked_of([(0, 0, [[7]])], 1, 1),
    "some empty": asked_of([(0, 0, [[7], [], [8, 9]]), (0, 3, [[], [1]])], 1, 4, weighted=(3,)),
    "edges, alone": asked_of([(0, e, [[edge]]) for e, edge in enumerate(EDGES)], 1, 10),
    "edges, in a bag": asked_of([(1, 0, [EDGES]), (1, 1, [EDGES[::-1]])], 2, 2, weighted=(1,), item=8),
    "edges, many": asked_of([(0, 0, [EDGES * 20]), (0, 1, [[1]] * 127), (0, 2, [EDGES, *[[1]] * 127])], 1, 3),
    "many entries": asked_of([(0, e, [[e]]) for e in range(0, 900, 3)], 1, 900),
}


@pytest.mark.parametrize("name", HAND_PICKED)
def test_hand_picked_requests_come_back(name):
    crossed(HAND_PICKED[name])


@pytest.mark.parametrize("n", [1, 126, 127, 128, 129, 255, 256, 257, 1000])
@pytest.mark.parametrize("bits", [0, 1, 8, 20, 55, 56, 57, 63, 64])
def test_runs_of_every_size_and_width(n, bits):
    rng = np.random.default_rng(n + bits)
    ids = rng.integers(0, 2**bits, n, np.uint64) if bits < 64 else rng.integers(0, 2**64 - 1, n, np.uint64)
    ids[n // 2] = 2**bits - 1
    ids = ids.view(np.int64)
    crossed(asked_of([(0, 0, ids[:, None].tolist()), (0, 1, [np.sort(ids).tolist()]), (0, 2, [[1]])], 1, 3))


# --- codings and sizes -----------------------------------------------------------------------------------------------


def skewed(rng: np.random.Generator, n: int, rows: int) -> np.ndarray:
    """Ids that repeat: half of them are a few, anywhere in the table."""
    few = rng.integers(0, rows, 200)
    return few[rng.integers(0, 200, n)]


def test_large_cells_take_the_fewest_bytes_and_tables_are_for_other_hosts():
    rng = np.random.default_rng(0)
    scattered, repeated = rng.integers(0, 2**30, 5000), skewed(rng, 5000, 2**30)
    rising = np.unique(scattered)
    for far in (False, True):
        asked = asked_of(
            [(0, e, ids[:, None].tolist()) for e, ids in enumerate([scattered, rising, repeated])], 1, 3, far=far
        )
        plan = crossed(asked)
        assert plan.coding_N.tolist() == [PACKED, RISING, TABLE if far else PACKED]
        distinct, places = np.unique(repeated, return_inverse=True)
        assert plan.distinct_N.tolist() == [0, 0, len(distinct) if far else 0]
        packed = kernels.packed_bytes(scattered)[0] + kernels.packed_bytes(rising)[1]
        table = kernels.packed_bytes(distinct)[1] + kernels.packed_bytes(places)[0]
        packed += table if far else kernels.packed_bytes(repeated)[0]
        assert packed < plan.bytes_R[0] < packed + 20  # cells, bags and codings


def test_several_tables_of_several_owners():
    rng = np.random.default_rng(1)
    cells = [(o, e, [skewed(rng, 4096 + 500 * e, 2**40).tolist()]) for o in range(3) for e in range(2)]
    asked = asked_of(cells, 4, 3, weighted=(1,))
    asked.far[[0, 2]] = True
    plan = crossed(asked)
    assert plan.coding_N.tolist() == [TABLE, TABLE, PACKED, PACKED, TABLE, TABLE]
    assert len(plan.table_places) == 2 * (4096 + 4596)


def test_short_runs_rise_where_that_saves_a_byte():
    far_up = list(range(10**6, 10**6 + 60))
    close = crossed(asked_of([(0, 0, [[5, 6]]), (0, 1, [list(range(40))]), (0, 2, [far_up])], 1, 3))
    assert close.coding_N.tolist() == [PACKED, RISING, PACKED]  # 60 x 20 bits either way: the first id has them


def test_a_message_to_the_byte():
    """13 ids of 13 entries below 1024, as at one of 1,000 owners."""
    asked = asked_of([(0, 2 * e, [[1023 - e]]) for e in range(13)], 1, 26)
    plan = crossed(asked)
    # count; gaps of 1 bit; bags - 1 and ways, all 0; 13 widths in 4 bits; 13 ids in 10 bits
    assert plan.bytes_R[0] == 1 + (1 + 2) + 1 + 1 + (1 + 7) + 17
    out, _, _ = asked.write(plan)
    assert out[:6].tolist() == [13, 1, 0b11111110, 0b00011111, 0, 0]
    assert out[6:14].tolist() == [4, *[0xAA] * 6, 0x0A]


def many_owners(n_owners: int, n_samples: int = 512) -> Asked:
    """26 tables dealt by rows, one id a sample and table; most ids are rare."""
    rng = np.random.default_rng(n_owners)
    rows = np.array([3, 10, 100, 1000, 10_000, *[100_000] * 11, *[10**6] * 10])
    drawn_FB = (rows[:, None] ** rng.random((26, n_samples))).astype(np.int64)
    dealt_FB = np.stack([kernels.permute(ids - 1, int(n), 0) for ids, n in zip(drawn_FB, rows, strict=True)])
    owner, entry = (
        ((dealt_FB + 37 * np.arange(26)[:, None]) % n_owners).reshape(-1),
        np.repeat(np.arange(26), n_samples),
    )
    order = np.argsort(owner * 26 + entry, kind="stable")
    keys, counts = np.unique((owner * 26 + entry)[order], return_counts=True)
    cells = np.stack([keys // 26, keys % 26, counts, counts], axis=1)
    ids = (dealt_FB // n_owners).reshape(-1)[order]
    return Asked(ids, np.ones_like(ids), cells, np.zeros(n_owners, bool), np.zeros(26, bool))


@pytest.mark.parametrize(("n_owners", "most"), [(4, 2.6), (64, 3.2), (1000, 8.0)])
def test_bytes_an_id_with_padding(n_owners, most):
    asked = many_owners(n_owners)
    plan = crossed(asked)
    assert (-(-plan.bytes_R // 64) * 64).sum() / asked.ids.size < most
    if n_owners == 1000:
        assert np.median(plan.bytes_R[plan.bytes_R > 0]) <= 64


# --- what is refused -------------------------------------------------------------------------------------------------


def refused_alike(call, match: str) -> None:
    found = []
    for backend in BACKENDS:
        kernels.use(backend)
        with pytest.raises(ValueError, match=match) as error:
            call()
        found.append(str(error.value))
    assert found[0] == found[1]


FINE = [(0, 0, [[7], [8, 9]]), (0, 2, [[]]), (1, 1, [[5]])]


@pytest.mark.parametrize(
    ("row", "column", "value", "match"),
    [
        (0, 0, -1, r"cells\[0\]: its owner or entry is not one"), (2, 0, 3, r"cells\[2\]: its owner or entry"),
        (1, 1, 3, r"cells\[1\]: its owner or entry is not one"), (2, 0, 0, r"cells\[2\]: cells must ascend"),
        (1, 1, 0, r"cells\[1\]: cells must ascend by owner and entry"), (0, 2, 5, "not so many ids or bags"),
        (0, 2, -1, "not so many ids or bags"), (1, 3, 0, "or it has no bag"), (2, 3, 2**62, "not so many ids or bags"),
        (0, 2, 2, r"cells\[0\]: the lengths of its bags do not add up"), (2, 3, 2, "not so many ids or bags"),
    ],
)  # fmt: skip
def test_cells_that_are_refused(row, column, value, match):
    asked = asked_of(FINE, 3, 3)
    asked.cells[row, column] = value
    refused_alike(asked.plan, match)


def test_ids_and_lengths_that_are_refused():
    asked = asked_of(FINE, 3, 3)
    asked.ids = np.r_[asked.ids, 1]
    refused_alike(asked.plan, "cells have 4 ids in 4 bags; given are 5 in 4")
    asked = asked_of(FINE, 3, 3)
    asked.lengths[:2] = [-1, 4]
    refused_alike(asked.plan, r"cells\[0\]: the lengths of its bags")


def test_plans_that_are_refused():
    asked = asked_of(FINE, 3, 3, weighted=(1,))
    good = asked.plan()
    out, at_R = np.zeros(300, np.uint8), np.array([0, 64, 128])

    def write(plan: kernels.RequestPlan = good, weights: np.ndarray | None = asked.weights, at: np.ndarray = at_R):
        given = asked.ids, asked.lengths, asked.cells, weights, asked.weighted, asked.item
        return lambda: kernels.write_requests(plan, *given, out, at)

    write()()
    for r, n in ((0, good.bytes_R[0] - 1), (0, good.bytes_R[0] + 1), (1, 0), (1, -1), (2, 5)):
        bytes_R = good.bytes_R.copy()
        bytes_R[r] = n
        refused_alike(write(good._replace(bytes_R=bytes_R)), f"the message to owner {r} does not take {n} bytes")
    for coding, distinct in ((3, 0), (-1, 0), (TABLE, 1), (PACKED, 1)):
        changed = good._replace(coding_N=np.array([0, 0, coding]), distinct_N=np.array([0, 0, distinct]))
        refused_alike(write(changed), r"plan: cells\[2\] cannot be coded so")
    refused_alike(write(good._replace(table_ids=np.zeros(1, np.int64))), "its tables are not those of the cells")
    refused_alike(write(weights=None), "weights are 0 bytes, not those of 1 ids")
    for at in (-1, 300, 2**62):
        refused_alike(write(at=np.array([0, at, 0])), rf"at_R\[1\] is {at}; its message does not fit")
    refused_alike(write(good._replace(coding_N=good.coding_N[:2])), "plan is of 2 and 3 cells and 3 owners")
    refused_alike(write(at=at_R[:2]), "places of 2 messages")


def test_arrays_that_are_refused():
    asked = asked_of(FINE, 3, 3)
    given = [asked.ids, asked.lengths, asked.cells, asked.far, asked.weighted]
    for i, name in enumerate(("ids", "lengths", "cells", "far", "weighted")):
        for bad in (given[i].astype(np.float32), given[i][None], None):
            with pytest.raises(ValueError, match=f"{name} is .*; needed is an aligned C-contiguous array"):
                kernels.plan_requests(*given[:i], bad, *given[i + 1 :], 4)
    with pytest.raises(ValueError, match="item is 0"):
        kernels.plan_requests(*given, 0)
    plan, memory = asked.plan(), np.zeros(64, np.int64)
    memory[:4] = asked.ids
    out = memory.view(np.uint8)
    with pytest.raises(ValueError, match="out shares memory with ids"):
        kernels.write_requests(
            plan, memory[:4], asked.lengths, asked.cells, None, asked.weighted, 4, out, np.array([64, 128, 192])
        )
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        kernels.write_requests(plan, *given[:3], None, asked.weighted, 4, out, np.array([64, 128, 192]))


@pytest.mark.parametrize("device", DEVICES)
def test_arrays_of_a_device_are_refused(device):
    asked = asked_of(FINE, 3, 3)
    with pytest.raises(ValueError, match=r"ids is int64\[4\]; needed is an aligned"):
        kernels.plan_requests(
            kernels.device(device).array(asked.ids), asked.lengths, asked.cells, asked.far, asked.weighted, 4
        )


# --- hostile bytes ---------------------------------------------------------------------------------------------------


def read_alike(message: np.ndarray, at_P: np.ndarray, bytes_P: np.ndarray, weighted: np.ndarray, item: int) -> bool:
    """Whether bytes are requests: both backends agree, and in words where they are refused."""
    ended = []
    for backend in BACKENDS:
        kernels.use(backend)
        try:
            ended.append(tuple(kernels.read_requests(message, at_P, bytes_P, weighted, item)))
        except ValueError as error:
            assert str(error).startswith("sender ")
            ended.append(str(error))
    if isinstance(ended[0], str) or isinstance(ended[1], str):
        assert ended[0] == ended[1]
        return False
    assert_same_bits(*ended)
    ids, offsets, cells, _ = ended[0]
    assert offsets[0] == 0 and offsets[-1] == len(ids) and (np.diff(offsets) >= 0).all()
    assert cells[:, 2].sum() == len(ids) and cells[:, 3].sum() == len(offsets) - 1
    return True


@settings(max_examples=500, deadline=None)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=3), st.integers(0, 40), st.integers(0, 5))
def test_any_bytes_are_refused_or_requests(raw, n_entries, n_weighted):
    message = np.frombuffer(b"".join(raw), np.uint8)
    bytes_P = np.array([len(one) for one in raw])
    read_alike(message, np.cumsum(bytes_P) - bytes_P, bytes_P, np.arange(n_entries) < n_weighted, 4)


MUTATED = [
    asked_of(FINE, 2, 3, weighted=(1,)),
    asked_of([(0, e, [[e, 2 * e], [], [3]]) for e in range(9)], 1, 9, weighted=(2, 3)),
    asked_of([(0, 0, [[]] * 130), (0, 1, [list(range(200))]), (0, 2, [[e] for e in range(150, 0, -1)])], 1, 4),
    asked_of([(0, 0, [skewed(np.random.default_rng(0), 4200, 2**40).tolist()]), (0, 1, [[1, 2]])], 1, 2, far=True),
    many_owners(64, 32),
]


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(MUTATED), st.data())
def test_damaged_messages_are_refused_or_requests(asked, data):
    """A byte or two become others, mostly of the lists in front; or a message begins or ends elsewhere."""
    out, at_R, padded_R = asked.write(asked.plan())
    for _ in range(data.draw(st.integers(0, 2))):
        r = data.draw(st.integers(0, len(at_R) - 1))
        first = min(int(padded_R[r]), data.draw(st.sampled_from([8, 24, 2**20])))
        if first:
            out[at_R[r] + data.draw(st.integers(0, first - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        array = data.draw(st.sampled_from([at_R, padded_R]))
        r = data.draw(st.integers(0, len(at_R) - 1))
        near = int(array[r]) + data.draw(st.integers(-70, 70))
        array[r] = data.draw(st.sampled_from([near, 0, -1, 2**31, 2**62, -(2**63), 2**63 - 1]))
    read_alike(out, at_R, padded_R, asked.weighted, asked.item)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_damaged_messages(seed):
    rng = np.random.default_rng(seed)
    written = [(asked, *asked.write(asked.plan())) for asked in MUTATED]
    for trial in range(2000):
        asked, out, at_R, padded_R = written[trial % len(written)]
        out = out.copy()
        for _ in range(rng.integers(1, 4)):
            r = rng.integers(len(at_R))
            if padded_R[r]:
                out[at_R[r] + min(int(padded_R[r]) - 1, int(rng.exponential(20)))] = rng.integers(256)
        read_alike(out, at_R, padded_R, asked.weighted, asked.item)


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ([0], "its cells are damaged"),  # none
        ([5], "its cells are damaged"),  # more than there are entries
        ([128, 128, 128, 128, 128, 1], "its cells are damaged"),
        ([128], "its cells are damaged"),
        ([1, 2, 3], "its cells are damaged"),  # entry 3 + ... ends before
        ([1, 3, 4, 0, 0, 0, 0], "its cells are damaged"),  # entry 4
        ([2, 64, *[0] * 8, *[255] * 8, 0, 0], "its cells are damaged"),  # entries 0 and 0
        ([1, 0, 64, *[255] * 8, 0], "its cells are damaged"),  # 2^64 bags
        ([1, 0, 0, 3, 6], "its cells are damaged"),  # a coding that there is not
        ([1, 0, 0, 1, 1, 57, 0], "its lengths are damaged"),  # widths of 57 are not written
        ([1, 0, 0, 1, 1, 6, 57, *[0] * 9], "its lengths are damaged"),
        ([1, 0, 0, 1, 1, 7, 64, *[255] * 8], "its lengths are damaged"),  # 2^64 - 1 ids
        ([1, 0, 0, 3, 4, 4, 1, 0], "its ids are damaged"),  # a table of one id
        ([1, 0, 0, 0, 4, 8], "its ids are damaged"),  # ends before its id
        ([1, 0, 0, 0, 4, 8, 5], "its weights are damaged"),
        ([1, 0, 0, 0, 4, 8, 5, *[0] * 68], "64 bytes are left behind its message; allowed are fewer than 64"),
    ],
)
def test_damage_is_named(raw, found):
    fine = [1, 0, 0, 0, 4, 8, 5, 1, 2, 3, 4]
    message = np.array([*fine, *raw], np.uint8)
    bytes_P = np.array([len(fine), 0, len(raw)])
    at_P, weighted = np.array([0, 0, len(fine)]), np.ones(4, bool)
    read = kernels.read_requests(message, at_P[:2], bytes_P[:2], weighted, 4)
    assert read.ids.tolist() == [5] and read.cells.tolist() == [[0, 0, 1, 1]] and read.weights.tolist() == [1, 2, 3, 4]
    refused_alike(lambda: kernels.read_requests(message, at_P, bytes_P, weighted, 4), f"sender 2: {found}")


@pytest.mark.parametrize(("at", "n"), [(-1, 5), (8, 5), (0, 2**62), (2**62, 2**62), (0, -1), (2**63 - 1, 2**63 - 1)])
def test_messages_outside_are_refused(at, n):
    message = np.zeros(12, np.uint8)
    refused_alike(
        lambda: kernels.read_requests(message, np.array([at]), np.array([n]), np.zeros(3, bool), 4),
        "sender 0: its message is not inside the 12 bytes",
    )


def test_a_few_bytes_do_not_claim_many_ids():
    """128 numbers a byte at most: of 2^40 bags nothing is had before the message turns out to be short."""
    for backend in BACKENDS:
        kernels.use(backend)
        message = np.array([1, 0, 40, 255, 255, 255, 255, 255, 0, *[0] * 20], np.uint8)
        with pytest.raises(ValueError, match="sender 0: its cells are damaged"):
            kernels.read_requests(message, np.zeros(1, np.int64), np.array([29]), np.zeros(1, bool), 4)
