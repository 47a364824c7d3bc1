"""Rows in pages, natively and by their definition; and batches of reads by each way to make them."""

import errno
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from hpcrec.disk import native, pages, reference
from hpcrec.disk.layout import MOST_RECORD_BYTES, Layout, Wrong, aligned
from hpcrec.disk.segment import Footer
from hpcrec.errors import ConfigError
from hpcrec.kernels.native_module import available

BACKENDS = [reference, pytest.param(native, marks=pytest.mark.skipif(not available(), reason="no native module"))]
LAYOUTS = [Layout.of(n) for n in (1, 4, 68, 260, 4000, 9000)]
WAYS = [
    pytest.param(native, "io_uring", id="io_uring"),
    pytest.param(native, "threads", id="threads"),
    pytest.param(native, "mapped", id="mapped"),
    pytest.param(reference, "threads", id="reference"),
]


def io_of(module, way, depth=8):
    if module is native and not available():
        pytest.skip("no native module")
    try:
        return module.PageIo(way, depth, max(of.page_bytes for of in LAYOUTS))
    except OSError as error:
        pytest.skip(f"no io_uring here: {error.strerror}")


def filled(module, of, n, seed=0):
    """Pages with n records, whose they are, and their columns: two where a record is long enough."""
    rng = np.random.default_rng(seed)
    widths = [of.record_bytes] if of.record_bytes < 5 else [of.record_bytes - 4, 4]
    columns = [rng.integers(0, 256, (n, width), np.uint8) for width in widths]
    rows = rng.permutation(4 * n)[:n]
    memory = aligned(-(-n // of.per_page) * of.page_bytes)
    memory[:] = 0xAB  # what was there before is not written to a disk
    half = n // 2
    at = rng.permutation(n)
    order = np.argsort(at)  # row i of the shuffled columns goes to place order[i]
    module.pack_rows(of, [c[:half].copy() for c in columns], None, rows[:half], memory, 0)
    shuffled = [c[at] for c in columns]
    module.pack_rows(of, shuffled, order[half:].copy(), rows[half:].copy(), memory, half)
    return memory, rows, columns


@pytest.mark.parametrize("module", BACKENDS)
def test_the_checksum_is_crc32c(module):
    assert module.crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    assert module.crc32c(np.zeros(32, np.uint8)) == 0x8A9136AA


def test_checksums_agree():
    data = np.random.default_rng(0).integers(0, 256, 20_000, np.uint8)
    for n in (0, 1, 7, 8, 9, 63, 4031, 4032, 4033, 4092, 8063, 20_000):
        for start in (0, 3):
            some = data[start:n]
            wanted = reference.crc32c(some)
            assert native.crc32c(some) == native.crc32c(some, by_table=True) == wanted
            assert native.crc32c(some[n // 3 :], native.crc32c(some[: n // 3])) == wanted


@pytest.mark.parametrize("of", LAYOUTS, ids=lambda of: str(of.record_bytes))
def test_pages_are_the_same_bytes_and_come_back(of):
    n = 3 * of.per_page + max(of.per_page // 2, 1)
    made = {}
    for module in (reference, native):
        memory, rows, columns = filled(module, of, n)
        module.seal_pages(of, memory, n, 7, 100, 55)
        made[module] = memory
        assert module.check_pages(of, memory, len(memory) // of.page_bytes, 7, 100) == (0, -1)
        into = [np.zeros_like(c) for c in columns]
        at = np.random.default_rng(1).permutation(n)
        assert module.unpack_rows(of, memory, np.arange(n), rows, at, into) == -1
        for column, found in zip(columns, into, strict=True):
            np.testing.assert_array_equal(found[at], column)
    np.testing.assert_array_equal(made[reference], made[native])


@pytest.mark.parametrize("module", BACKENDS)
def test_what_is_wrong_with_a_page_is_found(module):
    of, n = Layout.of(68), 200
    memory, rows, columns = filled(module, of, n)
    module.seal_pages(of, memory, n, 7, 3, 1)
    n_pages = len(memory) // of.page_bytes
    rng = np.random.default_rng(2)
    for _ in range(30):
        byte, bit = int(rng.integers(of.page_bytes, 2 * of.page_bytes)), int(rng.integers(8))
        memory[byte] ^= 1 << bit
        assert module.check_pages(of, memory, n_pages, 7, 3) == (Wrong.CHECKSUM, 1)
        memory[byte] ^= 1 << bit
    assert module.check_pages(of, memory, n_pages, 8, 3) == (Wrong.ANOTHER_PAGE, 0)
    assert module.check_pages(of, memory, n_pages, 7, 4) == (Wrong.ANOTHER_PAGE, 0)
    rows[150], rows[151] = rows[151], rows[150]
    into = [np.zeros_like(c) for c in columns]
    assert module.unpack_rows(of, memory, np.arange(n), rows, np.arange(n), into) == 150


def test_a_page_holds_records_of_any_size_without_much_waste():
    for n in (*range(1, 6000, 37), 8192, 20_000, MOST_RECORD_BYTES):
        of = Layout.of(n)
        assert of.page_bytes % 4096 == 0 and of.records_from + of.per_page * n <= of.page_bytes
        assert of.per_page * n >= 0.85 * of.page_bytes or n < 60 or n > 8192
    for n in (0, -1, MOST_RECORD_BYTES + 1):
        with pytest.raises(ValueError, match="allowed are 1 to"):
            Layout.of(n)


@pytest.fixture
def stored(tmp_path):
    """A file of pages past the page cache, and what is in it."""
    of = LAYOUTS[2]
    n = 40 * of.per_page
    memory, rows, columns = filled(reference, of, n)
    reference.seal_pages(of, memory, n, 9, 0, 1)
    file = os.open(tmp_path / "pages", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    yield of, file, memory, rows, columns
    os.close(file)


def one(*values):
    return tuple(np.array([value], np.int64) for value in values)


def asked(of, rows, numbers, file, segment=9):
    """Arguments of ``read_rows`` for these places of a file's pages, in their order."""
    numbers = np.sort(numbers)
    page, place = np.divmod(numbers, of.per_page)
    start = np.flatnonzero(np.diff(page, prepend=-1))
    n = len(start)
    files, segments = np.full(n, file), np.full(n, segment)
    return (of, files, page[start], segments, np.append(start, len(page)), place, rows[numbers], np.arange(len(page)))


@pytest.mark.parametrize(("module", "way"), WAYS)
def test_rows_are_written_and_read_in_batches(module, way, stored):
    of, file, memory, rows, columns = stored
    io, rng = io_of(module, way), np.random.default_rng(0)
    half = len(memory) // 2
    ends = (np.array([file] * 2), np.array([0, half]), np.array([0, half]), np.array([half, half]))
    assert io.wait(io.transfer(True, *ends, memory)).wrong == Wrong.NOTHING
    batches = []
    for n in (0, 1, 5, 300, 2000):  # all under way at once
        numbers = rng.integers(0, len(rows), n)
        into = [np.zeros((n, c.shape[1]), np.uint8) for c in columns]
        batches.append((io.read_rows(*asked(of, rows, numbers, file), into), np.sort(numbers), into))
    for ticket, numbers, into in reversed(batches):
        assert io.wait(ticket).wrong == Wrong.NOTHING
        for column, found in zip(columns, into, strict=True):
            np.testing.assert_array_equal(found, column[numbers])
    io.close()


@pytest.mark.parametrize(("module", "way"), WAYS)
def test_the_first_request_that_fails_is_told(module, way, stored):
    of, file, memory, rows, columns = stored
    io = io_of(module, way)
    ends = one(file, 0, 0, len(memory))
    assert io.wait(io.transfer(True, *ends, memory)).wrong == Wrong.NOTHING
    into = [np.zeros((len(rows), c.shape[1]), np.uint8) for c in columns]

    def outcome(**other):
        found = io.wait(io.read_rows(*asked(of, rows, np.arange(len(rows)), **{"file": file, **other}), into))
        return found.wrong, found.error, found.place

    assert outcome() == (Wrong.NOTHING, 0, 0)
    io.fail(False, 0, errno.EIO)
    assert outcome()[:2] == (Wrong.SYSTEM, errno.EIO)
    assert outcome() == (Wrong.NOTHING, 0, 0)
    assert outcome(segment=8) == (Wrong.ANOTHER_PAGE, 0, 0)
    assert outcome(file=-1) == (Wrong.SYSTEM, errno.EBADF, 0)
    io.fail(True, 0, errno.ENOSPC)
    assert io.wait(io.transfer(True, *ends, memory)).error == errno.ENOSPC
    os.ftruncate(file, 30 * of.page_bytes)
    assert outcome() == (Wrong.SHORT_FILE, 0, 30)
    os.pwrite(file, memory[of.page_bytes :][: of.page_bytes].data, 20 * of.page_bytes)  # page 1 in place of page 20
    assert outcome() == (Wrong.ANOTHER_PAGE, 0, 20)
    memory[12 * of.page_bytes + 100] ^= 4
    os.pwrite(file, memory[12 * of.page_bytes :][: of.page_bytes].data, 12 * of.page_bytes)
    assert outcome() == (Wrong.CHECKSUM, 0, 12)
    rows[5 * of.per_page] += 1
    assert outcome() == (Wrong.ANOTHER_ROW, 0, 5)
    io.close()


CUT = """
import os, sys, threading, time
import numpy as np
from hpcrec.disk.layout import Layout, Wrong, aligned
from hpcrec.disk.pages import page_io
of, path, n = Layout.of(260), sys.argv[1], 64
file = os.open(path, os.O_RDWR | os.O_CREAT)
io, ends = page_io("mapped", of.page_bytes)[0], [np.array([v]) for v in (file, 0, 0, n * of.page_bytes)]
memory, over, seen = aligned(n * of.page_bytes), threading.Event(), set()


def cut():
    while not over.is_set():
        for pages in (0, n):
            os.ftruncate(file, pages * of.page_bytes)


cutting = threading.Thread(target=cut)
cutting.start()
until_s = time.monotonic() + 20
while Wrong.GONE not in seen and time.monotonic() < until_s:
    seen.add(io.wait(io.transfer(False, *ends, memory)).wrong)
over.set()
cutting.join()
os.ftruncate(file, n * of.page_bytes)
assert io.wait(io.transfer(False, *ends, memory)).wrong == Wrong.NOTHING, "the next read is as ever"
print(sorted(wrong.name for wrong in seen), flush=True)
import signal
signal.raise_signal(signal.SIGBUS)  # which no mapped memory is behind
"""


@pytest.mark.skipif(not available(), reason="no native module")
def test_a_file_that_is_cut_off_where_it_is_mapped_ends_no_process(tmp_path):
    """In a process of its own, which such a read would end; a signal of another cause ends it still."""
    command = [sys.executable, "-c", CUT, str(tmp_path / "pages")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "'GONE'" in done.stdout, done.stderr
    assert done.returncode == -signal.SIGBUS


@pytest.mark.parametrize(("module", "way"), WAYS[:3])
def test_threads_read_and_write_side_by_side(module, way, stored):
    of, file, memory, rows, columns = stored
    io = io_of(module, way, depth=4)
    ends = one(file, 0, 0, len(memory))
    io.wait(io.transfer(True, *ends, memory))
    wrong = []

    def reads(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            numbers = rng.integers(0, len(rows), 50)
            into = [np.zeros((50, c.shape[1]), np.uint8) for c in columns]
            found = io.wait(io.read_rows(*asked(of, rows, numbers, file), into))
            same = all((a == b[np.sort(numbers)]).all() for a, b in zip(into, columns, strict=True))
            wrong.extend([] if found.wrong == Wrong.NOTHING and same else [found])

    threads = [threading.Thread(target=reads, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        assert io.wait(io.transfer(True, *ends, memory)).wrong == Wrong.NOTHING  # the same bytes
    for thread in threads:
        thread.join()
    assert not wrong
    io.close()


def test_what_is_under_way_is_done_before_the_end(stored):
    _, file, memory, *_ = stored
    for way in ("io_uring", "threads", "mapped"):
        io = io_of(native, way)
        memory[:] = 0
        io.transfer(True, *one(file, 0, 0, len(memory)), memory)
        io.close()
        assert os.fstat(file).st_size == len(memory)


@pytest.mark.parametrize(("way", "depth"), [("fast", None), ("auto", 0), ("threads", 5000)])
def test_a_way_that_is_none_is_refused(way, depth):
    with pytest.raises(ConfigError, match="allowed are"):
        pages.page_io(way, 4096, depth)


# Denies io_uring to this process, as containers do, by a filter of system calls; the architecture's numbers are alike.
FORBIDDEN = """
import ctypes, struct, sys
import numpy as np
from hpcrec.disk import pages
from hpcrec.disk.segment import Footer
from hpcrec.errors import ConfigError
refused, allowed = 0x00050000 | int(sys.argv[1]), 0x7FFF0000
instructions = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, refused), (0x06, 0, 0, allowed)]
code = b"".join(struct.pack("HBBI", *one) for one in instructions)
memory = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(memory)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
io, way = pages.page_io("auto", 4096)
io.close()
print(way)
try:
    pages.page_io("io_uring", 4096)
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_where_io_uring_is_forbidden_threads_read(error):
    if not available():
        pytest.skip("no native module")
    done = subprocess.run([sys.executable, "-c", FORBIDDEN, str(error)], capture_output=True, text=True, check=True)
    way, said = done.stdout.splitlines()
    assert way == "threads"
    assert "cannot be had here" in said and os.strerror(error) in said and "'auto' or 'threads'" in said


@pytest.mark.parametrize("limit", [1, 300, 1 << 16, 1 << 31])
def test_a_footer_comes_back(limit):
    rng = np.random.default_rng(limit)
    pages_, per_page = 23, 7
    footer = Footer.empty(pages_, per_page)
    footer.stamps[:] = rng.integers(0, 1 << 60, pages_, np.uint64)
    footer.records[:] = rng.integers(1, per_page + 1, pages_)
    footer.rows[:] = rng.integers(0, limit, (pages_, per_page), np.uint32)  # in no order
    footer.rows[::2].sort(axis=1)
    data = footer.written()
    assert len(data) <= Footer.bytes_of(pages_, per_page)
    found = Footer.read(data, pages_, per_page)
    here = np.arange(per_page) < footer.records[:, None]
    np.testing.assert_array_equal(found.rows[here], footer.rows[here])
    np.testing.assert_array_equal(found.stamps, footer.stamps)
    np.testing.assert_array_equal(found.records, footer.records)


@pytest.mark.parametrize("module", BACKENDS)
def test_the_newest_version_of_each_row_is_taken(module):
    """Whatever order segments come in; of a row that a segment has twice its later one."""
    rng, n_rows, per_page, pages_a_segment, slots = np.random.default_rng(4), 150, 7, 5, 40
    stamps = 1 + rng.permutation((slots - 1) * 40)[: (slots - 1) * pages_a_segment].reshape(slots - 1, -1)
    known = np.zeros((slots, pages_a_segment), np.uint64)
    index, newest = np.zeros(n_rows, np.uint32), {}
    for slot in range(1, slots):
        n_pages = int(rng.integers(1, pages_a_segment + 1))
        of = np.sort(stamps[slot - 1])[:n_pages].astype(np.uint64)
        known[slot, :n_pages] = of
        rows = rng.integers(0, n_rows, (n_pages, per_page), np.uint32)
        records = rng.integers(0, per_page + 1, n_pages).astype(np.uint32)
        for page, record in np.argwhere(np.arange(per_page) < records[:, None]).tolist():
            version = (int(of[page]), slot, page, record)
            row = int(rows[page, record])
            newest[row] = max(newest.get(row, (0, 0, 0, 0)), version)
        module.take_newest(index, rows, records, of, known, slot)
    wanted = np.zeros(n_rows, np.uint32)
    for row, (_, slot, page, record) in newest.items():
        wanted[row] = (slot * pages_a_segment + page) * per_page + record
    assert len(newest) > 120
    np.testing.assert_array_equal(index, wanted)
