"""Generations in other folders: read without a tier, taken over by one, and told from those of other runs."""

import errno
import os
import shutil

import numpy as np
import pytest

from hpcrec import again
from hpcrec.checkpoint.files import segment_damage
from hpcrec.disk import snapshot
from hpcrec.disk.links import copied, linked
from hpcrec.disk.segment import seal_of
from hpcrec.disk.snapshot import Snapshot
from hpcrec.disk.tier import BlockRows, Tier
from hpcrec.errors import TierError
from tests.disk.schedules import BLOCKS, Model, settings, writes


@pytest.fixture
def kept(tmp_path):
    """A folder of links to a generation, its number, and the rows that it has."""
    model = Model(0)
    with Tier(tmp_path / "tier", BLOCKS, settings()) as tier:
        for _ in writes(model, tier, 60):
            pass
        assert tier.counts.cleaned_segments > 0
        generation = tier.keep(flush=False)
        tier.settle(generation.number)
        (tmp_path / "links").mkdir()
        for path in generation.files:
            os.link(path, tmp_path / "links" / path.name)
        tier.drop(generation.number)
    return tmp_path / "links", generation.number, model


@pytest.mark.parametrize("rows_at_once", [1 << 23, 1000])
def test_all_rows_are_read_once_without_a_tier(kept, rows_at_once, monkeypatch):
    folder, number, model = kept
    monkeypatch.setattr(snapshot, "_ROWS_AT_ONCE", rows_at_once)
    for b, block in enumerate(BLOCKS):
        of, seen = Snapshot(folder, number, b), np.zeros(block.rows, int)
        for span in ((0, 300), (300, block.rows)):
            for segment, n in enumerate(of.pages):
                for first in range(0, n, 3):
                    rows, records = of.read(segment, first, min(first + 3, n), span)
                    seen[rows] += 1
                    assert ((rows >= span[0]) & (rows < span[1])).all()
                    np.testing.assert_array_equal(of.rows_in(segment, first, min(first + 3, n), span), rows)
                    if not len(rows):
                        continue
                    columns = block.bytes_of(b, {name: a[rows] for name, a in model.rows[b].items()})
                    np.testing.assert_array_equal(records, np.concatenate(columns, axis=1))
        np.testing.assert_array_equal(seen, model.written[b])
        np.testing.assert_array_equal(of.unwritten(5, block.rows - 3), 5 + np.flatnonzero(~model.written[b][5:-3]))
        assert of.wrong() == []


def test_a_tier_takes_over_what_another_folder_has(kept, tmp_path):
    folder, number, model = kept
    with Tier(tmp_path / "other", BLOCKS, settings()) as tier:
        for _ in writes(Model(1), tier, 5):
            pass
        assert tier.fits(folder, number)
        assert tier.take(folder, number) == 0, "links were made"
        assert tier.counts.read_pages == 0
        model.check(tier)
        before = {path: path.read_bytes() for path in folder.iterdir()}
        for _ in writes(model, tier, 40):
            pass
        model.check(tier)
        tier.verify()
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
        tier.keep()
        with pytest.raises(ValueError, match=r"generations \[2\] are kept; drop them first"):
            tier.take(folder, number)
    with Tier(tmp_path / "less", [BlockRows(10, BLOCKS[0].columns)], settings()) as tier:
        assert not tier.fits(folder, number)
        with pytest.raises(TierError, match="Open it as it was written"):
            tier.take(folder, number)


def test_where_no_links_can_be_had_files_are_copied(kept, tmp_path, monkeypatch):
    folder, number, model = kept

    def far(*_):
        raise OSError(errno.EXDEV, "of another file system")

    monkeypatch.setattr(os, "link", far)
    with Tier(tmp_path / "other", BLOCKS, settings()) as tier:
        wanted = sum(path.stat().st_size for path in folder.glob("segment-*"))
        assert tier.take(folder, number) == wanted > 0
        model.check(tier)
    monkeypatch.undo()
    (folder / "a").write_text("x")
    assert linked(folder / "a", folder / "b") and (folder / "a").samefile(folder / "b")
    with pytest.raises(FileExistsError):
        copied(folder / "a", folder / "b")
    with pytest.raises(FileNotFoundError):
        linked(folder / "nowhere", folder / "c")


@pytest.mark.parametrize("n_bytes", [0, 3, 4096])
def test_a_link_that_is_shorter_than_it_was_is_damaged(kept, n_bytes, monkeypatch):
    """One without a seal too: else a run would wait for it, and not go back to an older checkpoint."""
    folder, _, _ = kept
    path = next(folder.glob("segment-*"))
    entry = {"bytes": path.stat().st_size, "seal": seal_of(path)}
    assert segment_damage(path, entry) is None
    os.truncate(path, n_bytes)
    monkeypatch.setattr(again, "PAUSES_S", ())
    assert segment_damage(path, entry) == f"{path} has {n_bytes} bytes, its manifest says {entry['bytes']}"


def test_a_segment_of_another_run_is_told_by_its_seal(kept, tmp_path):
    """It has the same number, size, rows and stamps, and other values."""
    folder, number, _ = kept
    other = Model(0)
    with Tier(tmp_path / "again", BLOCKS, settings()) as tier:
        for i, given in enumerate(other.draw() for _ in range(60)):
            if i == 59:
                given[0].columns[""][0] += 1
            tier.write(given)
        stranger = tier.keep()
    (path,) = (p for p in stranger.files[1:] if p.read_bytes() != (folder / p.name).read_bytes())
    assert path.stat().st_size == (folder / path.name).stat().st_size
    (folder / path.name).unlink()
    shutil.copy(path, folder / path.name)
    with Tier(tmp_path / "more", BLOCKS, settings()) as tier, pytest.raises(TierError, match="is another segment than"):
        tier.take(folder, number)
    with pytest.raises(TierError, match=f"{path.name}: is another segment than the one that its generation has"):
        Snapshot(folder, number, 0)


def test_pages_of_another_segment_are_found_by_the_seal(kept):
    """Each is whole, and has the right number."""
    folder, number, _ = kept
    of = Snapshot(folder, number, 0)
    (first, second, *_) = (s for s in of._segments if s.pages > 1)
    with second.path.open("r+b") as file:
        data = file.read(8192)
        file.seek(0)
        file.write(data[4096:] + data[:4096])
    assert [problem for problem in of.wrong() if "holds another page" in problem], "by its number in the segment"
    assert first.path.name not in str(of.wrong())


def test_a_pass_beside_finds_what_is_damaged(kept, tmp_path):
    folder, number, _ = kept
    with Tier(tmp_path / "other", BLOCKS, settings()) as tier:
        tier.take(folder, number)
        whole = tier.looked_at()
        whole.wait()
        assert whole.wrong is None
        path = max(folder.glob("segment-*"), key=lambda p: p.stat().st_size)
        data = path.read_bytes()
        path.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])  # of both names
        found = tier.looked_at()
        found.wait()
        assert found.wrong is not None and f"{path.name}: page 1 has a wrong checksum." in found.wrong
        (tier.folder / path.name).unlink()  # as cleaning does
        rest = tier.looked_at()
        rest.wait()
        assert rest.wrong is None
        tier.looked_at().stop()
