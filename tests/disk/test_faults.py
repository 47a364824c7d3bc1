"""What goes wrong on a disk is a clear error, or the same bits: damaged files, a full disk, killed processes."""

import contextlib
import ctypes
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcrec.disk import pages
from hpcrec.disk.layout import Outcome, Wrong
from hpcrec.disk.segment import _TRAILER
from hpcrec.disk.tier import Tier, Wanted
from hpcrec.errors import ConfigError, OutputError, TierError
from hpcrec.kernels.native_module import available
from tests.disk.killed import PLACES, WRITES, WRITES_AND_CLEANS
from tests.disk.schedules import BLOCKS, Model, columns_of, settings, writes

ROOT = Path(__file__).resolve().parents[2]
WAYS = ["auto", "threads"]


@pytest.fixture
def kept(tmp_path):
    """A folder with a generation, its number, and the rows that it has."""
    model = Model(0)
    with Tier(tmp_path, BLOCKS, settings()) as tier:
        for _ in writes(model, tier, 20):
            pass
        number = tier.keep().number
    return tmp_path, number, model


def outcome(folder, number, model, rows=None):
    """The error of opening a generation and reading its rows; None where they are the same bits."""
    try:
        with Tier(folder, BLOCKS, settings(), generation=number) as tier:
            model.check(tier, rows)
    except TierError as error:
        return str(error)
    return None


def flip(path, byte, bit=0):
    with path.open("r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))


def test_a_flipped_bit_anywhere_is_an_error_or_changes_nothing(kept):
    folder, number, model = kept
    assert outcome(folder, number, model) is None
    files = sorted(path for path in folder.iterdir() if path.name != "lock")
    rng, said, harmless = random.Random(0), set(), 0
    for _ in range(40):
        path = rng.choice(files)
        byte, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
        flip(path, byte, bit)
        found = outcome(folder, number, model)
        flip(path, byte, bit)
        harmless += found is None
        if found is not None:
            assert path.name in found and "Go on from the last checkpoint" in found
            said.add(found.split(": ", 1)[1][:12])
    assert outcome(folder, number, model) is None
    assert harmless < 30  # pages that have no row any more, and what is behind a footer, are not read
    assert len(said) >= 2, said


def test_a_flipped_bit_of_each_part_is_named(kept):
    folder, number, model = kept
    path = sorted(folder.glob("segment-*"))[0]
    size = path.stat().st_size
    said = {}
    for name, byte in (("trailer", size - 1), ("footer", (1 << 17) + 3), ("magic", size - _TRAILER.itemsize)):
        flip(path, byte)
        said[name] = outcome(folder, number, model)
        flip(path, byte)
    assert f"{path}: its trailer is damaged, or of another segment" in said["trailer"]
    assert f"{path}: the checksum of its footer at byte" in said["footer"]
    assert f"{path}: has no trailer at its end" in said["magic"]
    manifest = folder / f"generation-{number:08d}"
    flip(manifest, 5)
    assert f"{manifest}: its checksum is wrong" in outcome(folder, number, model)


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_page_is_an_error_where_it_is_read_and_nowhere_else(kept, way):
    folder, number, model = kept
    with Tier(folder, BLOCKS, settings(way), generation=number) as tier:
        log = tier._logs[0]
        row = int(np.flatnonzero(log._index)[0])
        slot, of_segment = divmod(int(log._index[row]) // log.layout.per_page, log.segment_pages)
        path = log._segments[slot].path
        flip(path, of_segment * 4096 + 2000)
        with pytest.raises(TierError, match=rf"{path}: page {of_segment} has a wrong checksum. It has row [0-9]+ of"):
            model.check(tier, {0: np.array([row])})
        with pytest.raises(TierError, match=rf"{path}: page {of_segment} has a wrong checksum"):
            tier.verify()
        flip(path, of_segment * 4096 + 2000)
        model.check(tier)  # an error of reading leaves the tier whole


def test_an_index_that_points_elsewhere_is_found(kept):
    folder, number, model = kept
    with Tier(folder, BLOCKS, settings(), generation=number) as tier:
        index = tier._logs[0]._index
        rows = np.flatnonzero(index)
        index[rows[3]] ^= 1 << 1
        with pytest.raises(TierError, match=r"holds another row where the index points|names no segment"):
            model.check(tier, {0: rows[3:4]})


@pytest.mark.parametrize("cut", [1, 4096, 10_000, None])
def test_a_torn_segment_is_an_error(kept, cut):
    folder, number, model = kept
    path = sorted(folder.glob("segment-*"))[0]
    if cut is None:
        path.unlink()
    else:
        os.truncate(path, path.stat().st_size - cut)
    assert str(path) in outcome(folder, number, model)


def test_segments_in_each_others_place_are_an_error(kept):
    folder, number, model = kept
    one, other = sorted(folder.glob("segment-*"))[:2]
    one.rename(folder / "third")
    other.rename(one)
    (folder / "third").rename(other)
    assert "of another segment" in outcome(folder, number, model)


def test_a_generation_of_other_blocks_or_of_none_is_refused(kept):
    folder, number, model = kept
    with pytest.raises(TierError, match=r"generation-00000001: has blocks .*; wanted are"):
        Tier(folder, BLOCKS[:1], settings(), generation=number)
    with pytest.raises(TierError, match=r"generation-00000009: cannot be read"):
        Tier(folder, BLOCKS, settings(), generation=9)
    assert outcome(folder, number, model) is None  # both left it as it was


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("after", [0, 3, 17])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_write_that_fails_is_an_error_from_then_on(way, after, number, tmp_path):
    model = Model(0)
    with Tier(tmp_path, BLOCKS, settings(way)) as tier:
        for _ in writes(model, tier, 10):
            pass
        kept = tier.keep().number
        before = [{name: a.copy() for name, a in of.items()} for of in model.rows], [a.copy() for a in model.written]
        tier.fail(writes=True, after=after, error=number)
        advice = "Free space there" if number == errno.ENOSPC else "Mend that"
        with pytest.raises(OutputError, match=rf"segment-\d+: pages from \d+ on cannot be written .*{advice}") as error:
            for _ in writes(model, tier, 50):
                pass
        assert error.value.errno == number
        for call in (lambda: model.check(tier), lambda: tier.write(model.draw()), tier.flush, tier.keep, tier.verify):
            with pytest.raises(TierError, match=r"not known any more: OutputError.*Go on from the last checkpoint"):
                call()
    model.rows, model.written = before
    assert outcome(tmp_path, kept, model) is None  # what was kept is as it was


@pytest.mark.parametrize("way", WAYS)
def test_a_read_that_fails_is_an_error_and_the_next_one_is_not(way, tmp_path):
    model = Model(0)
    with Tier(tmp_path, BLOCKS, settings(way)) as tier:
        for _ in writes(model, tier, 10):
            pass
        for after in (0, 5):
            tier.fail(writes=False, after=after, error=errno.EIO)
            with pytest.raises(TierError, match=r"segment-\d+: page \d+ cannot be read \(EIO\). It has row"):
                model.check(tier)
        model.check(tier)
        cleaned = tier.counts.cleaned_segments
        tier.fail(writes=False, after=0, error=errno.EIO)
        with pytest.raises(TierError, match=r"page \d+ cannot be read \(EIO\). It is one of \d+ that were read"):
            for _ in writes(model, tier, 300):  # a read of cleaning
                pass
        assert tier.counts.cleaned_segments >= cleaned
        with pytest.raises(TierError, match=r"not known any more"):
            tier.flush()


@pytest.mark.skipif(not available(), reason="no native module")
def test_a_page_that_is_gone_where_it_is_mapped_is_named(tmp_path, monkeypatch):
    model = Model(0)
    with Tier(tmp_path, BLOCKS, settings("mapped")) as tier:
        for _ in writes(model, tier, 10):
            pass
        wait = tier._io.wait
        monkeypatch.setattr(tier._io, "wait", lambda ticket: (wait(ticket), Outcome(Wrong.GONE, 0, 0))[1])
        with pytest.raises(TierError, match=r"segment-\d+: page \d+ is gone where the file is mapped \(SIGBUS"):
            model.check(tier)
        monkeypatch.undo()
        model.check(tier)


@contextlib.contextmanager
def small_disk(folder, n_bytes):
    """A file system of so many bytes in a loop device."""
    if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root and mkfs.ext4, for a small file system in a loop device")
    image, where = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(n_bytes)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    where.mkdir()
    done = subprocess.run(["mount", "-o", "loop", str(image), str(where)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no loop device can be mounted: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


@pytest.mark.parametrize("way", [*WAYS, "mapped"])
def test_a_full_disk_is_an_error_that_says_so(way, tmp_path):
    model = Model(0)
    with small_disk(tmp_path, 8 << 20) as disk:
        with Tier(disk / "tier", BLOCKS, settings(way)) as tier:
            for _ in writes(model, tier, 3):
                pass
            kept = tier.keep().number
            before = [{k: a.copy() for k, a in of.items()} for of in model.rows], [a.copy() for a in model.written]
            (disk / "other").write_bytes(bytes((shutil.disk_usage(disk).free - (1 << 20)) // 4096 * 4096))
            with pytest.raises(OutputError, match=r"segment-\d+: .*No space left on device.*Free space") as error:
                for _ in writes(model, tier, 300):
                    pass
            assert error.value.errno == errno.ENOSPC
        model.rows, model.written = before
        assert outcome(disk / "tier", kept, model) is None


def test_a_file_system_without_direct_transfers_is_named(tmp_path, monkeypatch):
    opened = os.open

    def refusing(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        return opened(path, flags, *more)

    with Tier(tmp_path, BLOCKS, settings()) as tier:
        monkeypatch.setattr(os, "open", refusing)
        with pytest.raises(OutputError, match=r"O_DIRECT.: give store.path on another file system"):
            tier.write({0: Wanted(np.arange(2), columns_of(BLOCKS[0], 2))})


def test_two_runs_on_one_folder_are_refused(tmp_path):
    with Tier(tmp_path, BLOCKS, settings()) as tier:
        tier.write(Model(0).draw())
        with pytest.raises(ConfigError, match=rf"another process .pid {os.getpid()}. has its rows in this folder now"):
            Tier(tmp_path, BLOCKS, settings())
        tier.flush()
    with Tier(tmp_path, BLOCKS, settings()) as tier:  # and what was there is gone
        assert tier.disk_bytes == 0
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_folder_keeps_what_is_not_the_tiers(tmp_path):
    (tmp_path / "segment-00000001.txt").write_text("mine")
    (tmp_path / "segment-1").write_text("mine")
    (tmp_path / "segment-00000003").write_text("of a tier")
    (tmp_path / "generation-00000002.part").write_text("of one that was killed")
    with Tier(tmp_path, BLOCKS, settings()) as tier:
        tier.write(Model(0).draw())
        tier.flush()
        assert {"segment-00000001.txt", "segment-1", "segment-00000004"} <= {path.name for path in tmp_path.iterdir()}
        assert not (tmp_path / "segment-00000003").exists()
        assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(s, marks=pytest.mark.slow) for s in range(3, 50))])
def test_a_killed_process_leaves_its_last_generation(seed, tmp_path):
    way = WAYS[seed % 2]
    line = [sys.executable, "-m", "tests.disk.killed", str(tmp_path), str(seed), way]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    rng = random.Random(seed)
    try:
        for _ in range(rng.randint(1, 8)):
            assert process.stdout.readline()
        time.sleep(rng.random() * 0.2)
        process.kill()  # in the middle of writing, cleaning or keeping
        said = process.stdout.read()
        assert process.wait() == -signal.SIGKILL, said
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    goes_on_from_its_last_generation(tmp_path, seed, way)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 50))])
def test_a_process_that_is_killed_while_it_writes_or_cleans_does_too(seed, place, tmp_path):
    way = WAYS[seed % 2]
    line = [sys.executable, "-m", "tests.disk.killed", str(tmp_path), str(seed), way, place]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout.endswith(f"killed in {PLACES[place]}\n")
    goes_on_from_its_last_generation(tmp_path, seed, way, WRITES_AND_CLEANS if place == "clean" else WRITES)


def goes_on_from_its_last_generation(tmp_path, seed, way, every=WRITES):
    """A tier that is opened there has the rows of that moment, and writes on."""
    number = max(int(path.name.split("-")[1]) for path in tmp_path.glob("generation-????????"))
    model = Model(seed)
    for _ in range(every * number):
        model.draw()
    assert outcome(tmp_path, number, model) is None
    with Tier(tmp_path, BLOCKS, settings(way), generation=number) as tier:  # and goes on from there
        for _ in writes(model, tier, 30):
            pass
        model.check(tier)
        tier.verify()


def test_reads_and_writes_leave_nothing_in_the_page_cache(tmp_path):
    model = Model(0)
    with Tier(tmp_path, BLOCKS, settings()) as tier:
        for _ in writes(model, tier, 30):
            pass
        tier.keep()
        model.check(tier)
        if not available():
            pytest.skip("no native module")
        cached = sum(cached_pages(path) for path in tmp_path.glob("segment-*"))
    assert cached == 0


def cached_pages(path):
    """Of a file, pages that are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = path.stat().st_size
    file = os.open(path, os.O_RDONLY)
    try:
        memory = libc.mmap(None, size, 1, 1, file, 0)
        assert memory not in (None, ctypes.c_void_p(-1).value)
        found = (ctypes.c_ubyte * -(-size // 4096))()
        assert libc.mincore(ctypes.c_void_p(memory), ctypes.c_size_t(size), found) == 0
        libc.munmap(ctypes.c_void_p(memory), ctypes.c_size_t(size))
    finally:
        os.close(file)
    return sum(byte & 1 for byte in found)


def test_the_list_of_a_generation_is_json_that_says_what_it_has(kept):
    folder, number, _ = kept
    text, sum_ = (folder / f"generation-{number:08d}").read_text().split("\n")[:2]
    assert int(sum_, 16) == pages.crc32c(np.frombuffer(text.encode(), np.uint8))
    assert json.loads(text)["blocks"][0][:3] == [9000, 4096, 68]
