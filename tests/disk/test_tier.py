"""A tier on disk holds what was written last, whatever is cleaned meanwhile; and what it takes of disk and memory."""

import fcntl
import hashlib
import os
import random

import numpy as np
import pytest

from hpcrec.disk import native, pages, reference, segment
from hpcrec.disk.tier import BlockRows, Settings, Tier, Wanted
from hpcrec.errors import ConfigError
from hpcrec.kernels.native_module import available
from tests.disk.schedules import BLOCKS, Model, columns_of, settings, writes

WAYS = ["io_uring", "threads", "mapped"]


def tier_of(folder, way="auto", **more):
    if way == "io_uring":
        try:
            pages.page_io("io_uring", 4096)[0].close()
        except ConfigError as error:
            pytest.skip(str(error))
    return Tier(folder, BLOCKS, settings(way), **more)


def some_rows(rng):
    return {b: rng.integers(0, block.rows, 300) for b, block in enumerate(BLOCKS)}


@pytest.mark.parametrize(("way", "seed"), [("io_uring", 0), ("threads", 0), ("mapped", 0), ("io_uring", 1)])
def test_random_schedules_give_what_memory_would(way, seed, tmp_path):
    schedule(way, seed, tmp_path, 60)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", range(10, 20))
def test_long_random_schedules(way, seed, tmp_path):
    schedule(way, seed, tmp_path, 1000)


def schedule(way, seed, folder, n):
    """Writes, reads that are under way while more is written, generations, tiers opened again."""
    model, choose = Model(seed), random.Random(seed)
    tier = tier_of(folder, way)
    assert tier.io_way == way
    cleaned = 0
    try:
        for _ in range(n):
            tier.write(model.draw())
            if choose.random() < 0.3:
                reading = []
                for _ in range(choose.randint(1, 3)):
                    picked = some_rows(model.rng)
                    into = {b: columns_of(BLOCKS[b], 300) for b in picked}
                    reading.append((picked, into, tier.read({b: Wanted(r, into[b]) for b, r in picked.items()})))
                before = [{name: a.copy() for name, a in of.items()} for of in model.rows]
                was = [a.copy() for a in model.written]
                tier.write(model.draw())  # what is read is what was there when it was asked for
                now, model.rows, there, model.written = model.rows, before, model.written, was
                for picked, into, asked in reading:
                    model.compare(picked, into, asked.wait())
                model.rows, model.written = now, there
            if choose.random() < 0.05:
                tier.flush()
            if choose.random() < 0.05:
                kept = tier.keep().number
                if choose.random() < 0.5:
                    cleaned += tier.counts.cleaned_segments
                    tier.close()
                    tier = tier_of(folder, way, generation=kept)
                model.check(tier)
                if choose.random() < 0.8:
                    tier.drop(kept)
        model.check(tier)
        tier.verify()
        assert cleaned + tier.counts.cleaned_segments > 10
    finally:
        tier.close()


def test_the_definition_does_the_same(tmp_path, monkeypatch):
    if not available():
        pytest.skip("no native module")
    for name, module in (("native", native), ("reference", reference)):
        model = Model(5)
        for where in (pages, segment):
            monkeypatch.setattr(where, "crc32c", module.crc32c)
        monkeypatch.setattr(pages, "_here", module)
        for function in ("pack_rows", "seal_pages", "check_pages", "unpack_rows"):
            monkeypatch.setattr(pages, function, getattr(module, function))
        with Tier(tmp_path / name, BLOCKS, settings("threads", segment_bytes=1 << 16)) as tier:
            for _ in writes(model, tier, 12):
                pass
            picked = {b: np.arange(40) for b in range(len(BLOCKS))}
            model.check(tier, picked)
            tier.keep()
    names = sorted(p.name for p in (tmp_path / "native").iterdir() if p.name != "lock")
    assert names == sorted(p.name for p in (tmp_path / "reference").iterdir() if p.name != "lock")
    for name in names:
        assert (tmp_path / "native" / name).read_bytes() == (tmp_path / "reference" / name).read_bytes(), name


def test_rows_that_were_never_written_are_neither_read_nor_written(tmp_path):
    with tier_of(tmp_path) as tier:
        Model(0).check(tier)
        assert (tier.disk_bytes, tier.counts.read_pages, tier.alive_bytes) == (0, 0, 0)
        rows = np.array([5, 8999])
        tier.write({0: Wanted(rows, columns_of(BLOCKS[0], 2))})
        tier.flush()
        assert tier.counts.written_bytes == 4096 and tier.alive_bytes == 2 * 68
        into = {name: np.full_like(a, 7) for name, a in columns_of(BLOCKS[0], 4).items()}
        found = tier.read({0: Wanted(np.array([4, 5, 6, 8999]), into)}).wait()
        assert found[0].tolist() == [False, True, False, True]
        assert into["accumulator"].tolist() == [7, 0, 7, 0]
        assert tier.counts.read_pages == 1


def test_rows_go_to_places_of_a_cache_and_come_from_there(tmp_path):
    cache = columns_of(BLOCKS[0], 50)
    cache[""][:] = np.arange(50)[:, None]
    with tier_of(tmp_path) as tier:
        rows, at = np.array([7, 3, 400]), np.array([20, 49, 0])
        tier.write({0: Wanted(rows, cache, at)})
        into = columns_of(BLOCKS[0], 10)
        tier.read({0: Wanted(rows[::-1].copy(), into, np.array([9, 1, 4]))}).wait()
        assert into[""][:, 3].tolist() == [0, 49, 0, 0, 20, 0, 0, 0, 0, 0]


def content(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_sealed_segments_never_change_and_those_that_are_held_stay(tmp_path):
    model = Model(1)
    with tier_of(tmp_path / "tier") as tier:
        for _ in writes(model, tier, 40):
            pass
        kept = tier.keep()
        before = {path: (content(path), path.stat().st_ino) for path in kept.files}
        (tmp_path / "checkpoint").mkdir()
        for path in kept.files:
            os.link(path, tmp_path / "checkpoint" / path.name)
        for _ in writes(Model(2), tier, 60):
            pass
        assert tier.counts.cleaned_segments > 0
        assert {path: (content(path), path.stat().st_ino) for path in kept.files} == before
        tier.drop(kept.number)
        for _ in writes(Model(3), tier, 150):
            pass
        gone = [path for path in kept.files if not path.exists()]
        assert len(gone) > len(kept.files) // 2  # their space is taken back now
        with pytest.raises(ValueError, match=r"generation 1 is not kept; those that are: \[\]"):
            tier.drop(kept.number)
    for path, (wanted, _) in before.items():
        assert content(tmp_path / "checkpoint" / path.name) == wanted
    with tier_of(tmp_path / "checkpoint", generation=kept.number) as tier:  # from the footers of the links alone
        model.check(tier)


def test_space_is_taken_back_and_bytes_written_are_few(tmp_path):
    """With small segments; ``benchmarks/tiers.py`` has the goals, of large ones."""
    rng, n = np.random.default_rng(0), 40_000
    block = BlockRows(n, {"": (np.dtype("f4"), (16,)), "accumulator": (np.dtype("f4"), ())})
    order = rng.permutation(n)
    ends = np.cumsum(np.arange(1, n + 1.0) ** -1.05)
    with Tier(tmp_path, [block], settings()) as tier:
        into = columns_of(block, 2000)
        for some in np.split(order, 20):
            tier.write({0: Wanted(some, into)})
        whole = tier.counts.handed_bytes
        assert whole == tier.alive_bytes == n * 68
        while tier.counts.handed_bytes < 5 * whole:
            rows = order[np.unique(np.searchsorted(ends, rng.random(2000) * ends[-1]))]
            tier.write({0: Wanted(rows, {k: v[: len(rows)] for k, v in into.items()})})
            assert tier.disk_bytes <= 1.7 * tier.alive_bytes
        assert tier.counts.written_bytes <= 2.8 * tier.counts.handed_bytes
        assert tier.disk_bytes == sum(p.stat().st_size for p in tmp_path.iterdir() if "segment" in p.name)
        assert tier.figures()["disk_written_of_handed"] == tier.counts.written_bytes / tier.counts.handed_bytes


def test_memory_beside_the_rows_is_little(tmp_path):
    block = BlockRows(5_600_000, {"": (np.dtype("f4"), (16,)), "accumulator": (np.dtype("f4"), ())})
    with Tier(tmp_path, [block]) as tier:
        for start in range(0, 200_000, 20_000):
            tier.write({0: Wanted(np.arange(start, start + 20_000), columns_of(block, 20_000))})
        assert 4.0 <= tier.n_bytes / block.rows <= 4.5


def test_a_folder_is_removed_by_who_holds_it_and_nothing_of_another_goes(tmp_path):
    folder = tmp_path / "rank-0"
    tier = tier_of(folder)
    tier.write({0: Wanted(np.array([3]), columns_of(BLOCKS[0], 1))})
    tier.keep()
    (folder / "mine").write_text("of the user")
    tier.remove()
    assert [path.name for path in folder.iterdir()] == ["mine"]
    (folder / "mine").unlink()
    tier_of(folder).remove()
    assert not folder.exists()


def test_a_lock_of_a_folder_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    """Another process opens the lock, and takes it only when the folder has gone and was made anew."""
    folder, flock, late = tmp_path / "rank-0", fcntl.flock, []
    first = tier_of(folder)

    def takes(lock, how):
        if not late:
            late.append(lock)
            first.remove()
        flock(lock, how)

    monkeypatch.setattr(fcntl, "flock", takes)
    with tier_of(folder) as second:
        monkeypatch.undo()
        assert late[0].closed
        with pytest.raises(ConfigError, match="another process"):
            tier_of(folder)
        second.write({0: Wanted(np.array([3]), columns_of(BLOCKS[0], 1))})
        second.keep()
        assert (folder / "lock").exists()


def refused(tier, match, call="read", **given):
    with pytest.raises(ValueError, match=match):
        getattr(tier, call)({given.pop("block", 0): Wanted(**given)})


def test_what_does_not_fit_is_refused(tmp_path):
    few = np.array([1, 2])
    with tier_of(tmp_path / "a") as tier:
        good = columns_of(BLOCKS[0], 2)
        refused(tier, "block 2 is not there; there are 2", rows=few, columns=good, block=2)
        refused(tier, "rows are 1 to 9000; allowed are 0 to 8999", rows=np.array([1, 9000]), columns=good)
        refused(tier, "rows are -1 to 1", rows=np.array([1, -1]), columns=good)
        refused(tier, r"column 'accumulator' is nothing; wanted is float32 \[N", rows=few, columns={"": good[""]})
        refused(tier, "column '' is float64", rows=few, columns={**good, "": good[""].astype("f8")})
        refused(tier, "column '' is float32 .*contiguous", rows=few, columns={**good, "": good[""][:, ::-1]})
        refused(tier, r"columns have \[2\] rows, for 1", rows=few[:1], columns=good)
        refused(tier, "1 places for 2 rows", rows=few, columns=good, at=few[:1])
        refused(tier, "places are 1 to 2; allowed are 0 to 1", rows=few, columns=good, at=few)
        refused(tier, "a row is written twice", "write", rows=np.array([3, 3]), columns=good)
        Model(0).check(tier)  # nothing of it was done
    with pytest.raises(ConfigError, match=r"spare is 1.0"):
        Tier(tmp_path / "b", BLOCKS, Settings(spare=1.0))
    with pytest.raises(ConfigError, match=r"piece_bytes is 100"):
        Tier(tmp_path / "b", BLOCKS, Settings(piece_bytes=100))
    with pytest.raises(ValueError, match=r"block 0 has 4294967296 rows; allowed are 1 to 2147483648"):
        Tier(tmp_path / "c", [BlockRows(1 << 32, BLOCKS[0].columns)])


def test_one_row_larger_than_a_page_and_segments_of_one_page(tmp_path):
    block = BlockRows(30, {"": (np.dtype("f4"), (3000,))})
    with Tier(tmp_path, [block], Settings(segment_bytes=4096, piece_bytes=4096)) as tier:
        wanted = np.zeros((30, 3000), np.float32)
        for seed in range(20):
            rng = np.random.default_rng(seed)
            rows = rng.permutation(30)[:20]
            wanted[rows] = rng.normal(size=(20, 3000))
            tier.write({0: Wanted(rows, {"": wanted[rows]})})
        into = {"": np.zeros((30, 3000), np.float32)}
        found = tier.read({0: Wanted(np.arange(30), into)}).wait()
        assert found[0].all()
        np.testing.assert_array_equal(into[""], wanted)
        assert tier.counts.cleaned_segments > 0
