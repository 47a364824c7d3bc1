"""Options of policy ``cached``: a capacity in bytes, and the owner's rule ``max``."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec import kernels
from hpcrec.build.memory import memory_report, predict_memory
from hpcrec.build.session import open_session
from hpcrec.embedding.shards import Family
from hpcrec.errors import ConfigError
from hpcrec.exchange.forms.cached import Cached, PooledCopies
from hpcrec.exchange.forms.conditional import NOBODY, Asked, Keeping
from hpcrec.exchange.forms.maxima import Maxima
from hpcrec.types import Floats, OptimizerSpec, TableSpec
from hpcrec.units import parse_bytes
from tests.policy.test_cached import cached
from tests.policy.test_hybrid import config_of, same_bits, trained
from tests.together import on_every_rank
from tests.training.runs import write_data
from tests.training.test_equivalence import roles_for

COMM = MPI.COMM_WORLD
_MAP_BYTES = 32  # of the numbers of a copy, what its place in the map takes


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("64 MiB", 64 << 20), ("2 GB", 2 * 10**9), ("1.5kB", 1500), ("0.5 KiB", 512), ("7 B", 7), ("1 GiB", 1 << 30)],
)
def test_bytes_with_a_unit(text: str, n_bytes: int) -> None:
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["64", "1 PB", "-1 B", "1e3 B", "MB", "1  MB", "1 mb", "", "1 MB\n"])
def test_other_texts_are_no_bytes(text: str) -> None:
    with pytest.raises(ValueError, match=r"bytes are .*kB, MB, GB, KiB, MiB, GiB"):
        parse_bytes(text)


_TABLES = {"a": (1000, 16, "sgd"), "b": (300, 16, "sgd"), "c": (50_000, 4, "rowwise_adagrad"), "d": (3, 64, "sgd")}


def copies_of(capacity: str, item: int = 4) -> tuple[PooledCopies, list[tuple[str, ...]], Keeping]:
    """Of ``_TABLES``, two of which are in one pool."""
    tables, bundles = {}, []
    for name, (rows, width, optimizer) in _TABLES.items():
        spec = OptimizerSpec(name=optimizer, lr=0.1)
        tables[name] = TableSpec(name=name, rows=rows, width=width, optimizer=spec)
        family = Family(
            name=name, rows=rows, hashed=False, tables=(name,), features=(name,), kind="table", holders=(0,)
        )  # fmt: skip
        bundles.append(Cached(family, (name,)))
    keeping = Keeping(staleness=4, capacity_bytes=parse_bytes(capacity), item=item, tables=tables)
    of = [(name,) for name in tables]
    return PooledCopies(bundles, of, keeping), of, keeping


def taken(copies: PooledCopies) -> int:
    """Bytes of what there is of copies once all tables have some."""
    total = 0
    for pool in copies._pools:
        total += pool._records.nbytes + pool._names.nbytes + _MAP_BYTES * pool.capacity
        for table in pool._copies:
            total += table.rows.nbytes + (0 if table.numbers is None else table.numbers.nbytes)
    return total


@pytest.mark.parametrize("item", [4, 8])
@pytest.mark.parametrize("capacity", ["1200 B", "5 kB", "100 kB", "0.7 MB", "2 MiB", "1 GB"])
def test_copies_take_the_bytes_that_they_may(capacity: str, item: int) -> None:
    if (capacity, item) == ("1200 B", 8):
        capacity = "1600 B"
    copies, of, keeping = copies_of(capacity, item)
    rows = [min(_TABLES[table][0], 20_000) for (table,) in of]
    asked = [Asked(np.arange(n), np.zeros(n, np.int64)) for n in rows]
    kept = copies.kept(asked)
    dtype = np.dtype(f"f{item}")
    came = [{t: np.zeros((n, _TABLES[t][1]), dtype)} for (t,), n in zip(of, rows, strict=True)]
    sums: list[dict[str, Floats]] = [
        {t: np.ones(n, dtype)} if keeping.accumulates(t) else {} for (t,), n in zip(of, rows, strict=True)
    ]
    copies.read(asked, [~k for k in kept], came, sums, [np.zeros(n, bool) for n in rows])
    room, most = [pool.capacity for pool in copies._pools], parse_bytes(capacity)
    total = [sum(_TABLES[of[b][0]][0] for b in pool.bundles) for pool in copies._pools]
    assert total == [1300, 50_000, 3], "tables of equal widths and optimizers are together"
    assert taken(copies) <= most
    if capacity == "1 GB":
        assert room == total
    else:
        largest = max(2 * item * (16 + 4 + 64 + 1) + 3 * 80, 1)
        assert taken(copies) > most - largest, "but for less than a copy of each pool"
        shares = [(n - 1) / (m - 1) for n, m in zip(room, total, strict=True)]
        assert all(abs(share - shares[1]) <= 1 / (m - 1) for share, m in zip(shares, total, strict=True)), shares


@pytest.mark.parametrize("evict", ["lru", "lfu", "lightlfu"])
def test_a_map_takes_no_more_than_is_counted(evict: kernels.Evict) -> None:
    """Beside what one of a single id does, most of which is address space that it reserves."""
    for n in (60_000, 300_000):
        full, single = kernels.IdMap(capacity=n, evict=evict), kernels.IdMap(capacity=n, evict=evict)
        full.admit(np.random.default_rng(0).integers(0, 1 << 40, n))
        single.admit(np.zeros(1, np.int64))
        assert full.n_bytes - single.n_bytes <= _MAP_BYTES * n


def test_too_little_for_a_row_of_each_pool_is_refused() -> None:
    least = 2 * 4 * (16 + 4 + 1 + 64) + 3 * 80
    with pytest.raises(ConfigError, match=rf"is {least - 1} bytes.* each of the 3 pools .* takes {least}\. Set it"):
        copies_of(f"{least - 1} B")
    copies, *_ = copies_of(f"{least} B")
    assert [pool.capacity for pool in copies._pools] == [1, 1, 1]


@pytest.mark.parallel([1, 3])
@pytest.mark.in_turn
def test_a_run_by_bytes(folder: Path) -> None:
    """It is that of as many rows, its memory is in the formula, and too little is refused on every rank."""
    write_data(folder / "data.h5")
    for roles in roles_for(COMM.size):
        config = config_of(folder, None, "rows", "rowwise_adagrad", topology=roles, train={"steps": 6})
        by_bytes = cached(config, 3, "4 kB")
        with open_session(by_bytes) as session:
            found = COMM.allgather(session.parts.exchange.figures().get("capacity"))
        rows = {int(n) for n in found if n is not None}
        with on_every_rank():
            assert len(rows) == 1 and rows.pop() > 3, found
            counted = [predict_memory(cached(config, 3, c), [0] * COMM.size)[-1] for c in ("4 kB", "8 kB", 1000)]
            few, more, most = (of.terms["kept rows"] for of in counted)
            assert 0 < few < more < most
            assert any("kept rows" in line for line in memory_report(by_bytes, COMM.size))
        same_bits(trained(cached(config, 0, "4 kB")), trained(replace(config)), roles)
        with on_every_rank(), pytest.raises(ConfigError, match=r"policy\.capacity is 5 bytes.* at least"):
            open_session(cached(config, 3, "5 B"))


def test_a_push_raises_the_clock_by_what_the_copy_was_not_behind() -> None:
    rule, row = Maxima(3, Keeping(staleness=2, rule="max", dense=(0, 1, 2))), np.zeros(3, np.int64)
    for order in ([0, 1], [1, 0]):  # of what is pushed in one step
        rule.sent(row, np.arange(3))
        rule.learned(row[:2], np.array([0, 1])[order], np.array([3, 2])[order])
        assert rule._lag[0].tolist() == [0, 1, 3], "the clock rose by 3, the largest"
    assert rule.answer(row, np.arange(3)).tolist() == [False, False, True]
    rule.learned(row[:1], np.array([1]), np.array([1]))
    assert rule._lag[0].tolist() == [0, 0, 3], "by nothing: that copy was behind"
    rule.learned(row[:1], np.array([NOBODY]), np.array([2]))
    assert rule._lag[0].tolist() == [2, 2, 5]
    rule.changed(row[:1])
    assert rule._lag[0].tolist() == [5, 5, 8] and not rule._lag[1:].any()


def test_a_row_of_another_id_has_no_valid_copy_before_it_is_sent() -> None:
    rule, row = Maxima(2, Keeping(staleness=4, rule="max", dense=(0, 1))), np.zeros(1, np.int64)
    rule.restarted(row)
    rule.sent(row, np.array([1]))
    rule.learned(row, np.array([0]), np.array([3]))  # of a copy of an earlier life, which is not made valid by it
    rule.changed(row)
    assert rule.answer(np.zeros(2, np.int64), np.arange(2)).tolist() == [True, True]
    assert rule._lag[0].tolist() == [-1, 5]


def test_the_memory_of_the_owners_rule_is_counted() -> None:
    for staleness in (3, 100, 1000):
        keeping = Keeping(staleness=staleness, rule="max", dense=(0, 3, 4))
        rule = Maxima(50, keeping)
        assert Cached.owner_memory(50, keeping) == rule._lag.nbytes + rule._ticks._ticks.nbytes


@pytest.mark.parametrize("ranks", [2, 3])
def test_what_a_copy_may_lack_by_maxima(ranks: int) -> None:
    """Of one row, of which ranks tick, push and evict as it comes: 3 s of each other rank, which is more than 2 s."""
    s, most, rng = 2, 0, np.random.default_rng(1)
    rule, row = Maxima(1, Keeping(staleness=s, rule="max", dense=tuple(range(ranks)))), np.zeros(1, np.int64)
    clock, made = 0, np.zeros(ranks, int)  # by definition; and each rank's ticks
    learned = np.zeros(ranks, int)
    known, held, base = [-1] * ranks, np.zeros(ranks, int), np.zeros((ranks, ranks), int)
    for _ in range(60_000):
        asks, goes = rng.random(ranks) < 0.5, rng.random(ranks) < 0.15
        for r in np.flatnonzero(asks):
            too_old = known[r] < 0 or clock - known[r] > s
            assert bool(known[r] < 0 or rule.answer(row, np.array([r]))[0]) == too_old
            if too_old:
                rule.sent(row, np.array([r]))
                known[r], base[r] = clock, learned
            lacks = np.delete(made - base[r], r)
            assert (lacks <= 3 * s).all(), (lacks, r)
            most = max(most, int(lacks.max()))
        held[asks] += 1
        made[asks] += 1
        due = np.flatnonzero((held > s) | (goes & ~asks & (held > 0)))
        if len(due):
            rule.learned(np.zeros(len(due), np.int64), due, held[due])
            clock = max(clock, *(known[r] + held[r] for r in due))
            learned[due] += held[due]
            held[due] = 0
        for r in {*due, *np.flatnonzero(goes & ~asks)}:
            known[r] = -1
    assert most > 2 * s
