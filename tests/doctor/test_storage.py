"""What a run asks of disks, how speeds are judged by it, and what is known of a file: on numbers and files at hand."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcrec.build.needs import DiskNeeds, disk_needs
from hpcrec.doctor import disk, storage
from hpcrec.doctor.disk import Read, Speed, Written, cached_part, file_system, joined, nearest, share_bytes, timed
from tests.doctor.site import only, site_of
from tests.training.runs import config_for, write_data

FOUR = ["h1", "h2", "h3", "h4"]


class Alone:
    """A probe of one rank."""

    rank, size, host_of = 0, 1, (0,)

    def share(self, thing):
        return [thing]

    def barrier(self):
        pass


def speed(gbs_of_host, **more):
    n = len(gbs_of_host)
    given = {"bytes": n * 10**8, "slowest_s": 0.1 / min(gbs_of_host), "cached": 0.0, "errors": {}}
    return Speed(gbs_of_host=dict(enumerate(gbs_of_host)), **{**given, **more})


def run_disk(tmp_path, needs, gbs_of_host, *, free=10**15, samples_per_s=None, checkpoint=None, limit_s=120.0):
    """Findings of four hosts, and what later checks are left."""
    data = (
        {"train": "data.h5", "validation": "data.h5"} if (checkpoint or {}).get("keep_best") else {"train": "data.h5"}
    )
    config = config_for(tmp_path, checkpoint=checkpoint or {}, data=data)
    answer = {"folder": "/runs", "kind": "lustre", "write": speed(gbs_of_host), "read": speed(gbs_of_host)}
    answer |= {"free": free, "inodes": None, "needs": needs, "why": "", "samples_per_s": samples_per_s}
    site = site_of(FOUR, config=config, checkpoint_s=limit_s)
    return list(storage.judge_run_disk([answer] * 4, site)), site.found


def needs_of(*gigabytes, sample_bytes=1000.0, whole=True):
    written = tuple(int(n * 10**9) for n in gigabytes)
    return DiskNeeds(checkpoint_bytes=written, sample_bytes=sample_bytes, readers=(0, 1, 2, 3), whole=whole)


def test_a_checkpoint_takes_as_long_as_its_slowest_host(tmp_path):
    findings, found = run_disk(tmp_path, needs_of(3, 3, 3, 3), [0.075] * 4)
    line = next(f for f in findings if f.what == "checkpoint")
    assert (line.level, line.found) == ("ok", "12.00 GB takes about 40.0 s from 4 hosts")
    assert found == {"checkpoint_s": pytest.approx(40.0)}
    findings, found = run_disk(tmp_path, needs_of(8, 0, 0, 0), [0.05, 0.05, 0.05, 0.05])
    assert found["checkpoint_s"] == pytest.approx(160.0)
    late = only(findings, "warn")
    assert late.found == "8.00 GB takes about 160.0 s from 1 host: 120 s are allowed (--checkpoint-s)"


def test_a_checkpoint_against_the_next_one(tmp_path):
    # 100 steps of 13 samples at 26 a second: 50 s
    every = {"checkpoint": {"every": 100}, "samples_per_s": 26.0}
    findings, found = run_disk(tmp_path, needs_of(3, 3, 3, 3), [0.05] * 4, **every)
    late = only(findings, "warn")
    assert late.what == "checkpoint" and late.found.endswith("(checkpoint.every at 26 samples/s): the next one is due "
                                                             "before it is written")  # fmt: skip
    assert found == {"checkpoint_s": pytest.approx(60.0), "every_s": pytest.approx(50.0)}
    findings, _ = run_disk(tmp_path, needs_of(3, 3, 3, 3), [0.1] * 4, **every)
    assert all(f.level == "ok" for f in findings)


def test_room_for_checkpoints(tmp_path):
    config = {"keep": 2}  # and the one being written: three of 12 GB
    tight = only(run_disk(tmp_path, needs_of(3, 3, 3, 3), [1.0] * 4, free=30 * 10**9, checkpoint=config)[0], "warn")
    assert (tight.what, tight.found) == ("room", "30.00 GB free; 3 checkpoints take 36.00 GB")
    full = only(run_disk(tmp_path, needs_of(3, 3, 3, 3), [1.0] * 4, free=10**9, checkpoint=config)[0], "FAIL")
    assert full.what == "room"


@pytest.mark.parametrize(
    ("keys", "free_gb", "said"),
    [  # checkpoints of 12 GB
        ({"keep": 20, "keep_bytes": 30 * 10**9}, 42, None),
        (
            {"keep": 20, "keep_bytes": 30 * 10**9},
            41,
            "41.00 GB free; checkpoints take up to 42.00 GB (checkpoint.keep_bytes, and one more)",
        ),
        (
            {"keep": 20, "keep_bytes": 10**9},
            23,
            "23.00 GB free; the newest checkpoint, and the one that is being written, take 24.00 GB",
        ),
        ({"keep": 20, "keep_bytes": 10**9}, 24, None),
        (
            {"keep": 20, "keep_best": True, "keep_bytes": 10**9},
            35,
            "35.00 GB free; the newest and the best checkpoint, and the one that is being written, take 36.00 GB",
        ),
        ({"keep": 2, "keep_bytes": 10**12}, 35, "35.00 GB free; 3 checkpoints take 36.00 GB"),
    ],
)
def test_room_for_checkpoints_that_may_hold_so_many_bytes(tmp_path, keys, free_gb, said):
    needs = needs_of(3, 3, 3, 3)
    findings, _ = run_disk(tmp_path, needs, [1.0] * 4, free=free_gb * 10**9, checkpoint=keys)
    assert [f.found for f in findings if f.what == "room"] == ([] if said is None else [said])
    if said is not None:
        assert only(findings, "warn").found == said


def test_a_host_with_a_slow_disk_is_named(tmp_path):
    findings, _ = run_disk(tmp_path, None, [1.0, 1.0, 0.1, 1.0])
    slow = [f for f in findings if f.level == "warn"]
    assert [f.what for f in slow] == ["slow disk"] * 2 and "h3 writes 0.100 GB/s" in slow[0].found
    assert speed([1.0, 0.1]).slow_hosts == []  # of two nobody is the usual one


def data_disk(tmp_path, samples_per_s, *, whole=True, gbs=0.1, cached=0.0, kind="nfs4"):
    needs = needs_of(1, 1, 1, 1, whole=whole)
    answer = {"folder": "/d.h5", "kind": kind, "bytes": 10**10, "needs": needs, "samples_per_s": samples_per_s}
    answer["read"] = Speed(bytes=10**8, slowest_s=0.1 / gbs, gbs_of_host={0: gbs}, cached=cached, errors={})
    return list(storage.judge_data_disk([answer] * 4, site_of(FOUR, config=config_for(tmp_path))))


def test_reading_against_samples_a_second(tmp_path):
    # 0.1 GB/s of 1000 bytes a sample, which all four hosts read: 25,000 a second
    slow = only(data_disk(tmp_path, 30_000.0), "warn")
    assert slow.what == "reading" and slow.found == (
        "enough for 25,000 samples/s (1.00 kB a sample, read on 4 hosts each); the run handles 30,000"
    )
    fine = data_disk(tmp_path, 20_000.0)[-1]
    assert fine.level == "ok" and fine.data["samples_per_s"] == pytest.approx(25_000.0)
    alone = data_disk(tmp_path, None, whole=False)[-1]
    assert alone.found == "enough for 100,000 samples/s (1.00 kB a sample)"


@pytest.mark.parametrize(
    ("cached", "kind", "words"),
    [
        (0.0, "nfs4", "not from the page cache"),
        (0.5, "ext4", "50 % of it stayed in the page cache"),
        (None, "fuse", "the page cache may have helped: this file system does not say"),
        (1.0, "tmpfs", "this is memory, not a disk"),
    ],
)
def test_where_reads_came_from_is_said(tmp_path, cached, kind, words):
    assert words in data_disk(tmp_path, None, cached=cached, kind=kind)[0].found


def test_little_data_is_not_timed(tmp_path):
    answer = {"folder": "/d.h5", "kind": "ext4", "read": None, "bytes": 1000}
    (found,) = storage.judge_data_disk([answer], site_of(["a"]))
    assert "1.00 kB, too small to time" in found.found
    assert list(storage.judge_data_disk([{**answer, "bytes": 0}], site_of(["a"]))) == []


@pytest.mark.parametrize("hosts", [(0,), (0, 0), (0, 1, 1)])
def test_what_a_run_asks_of_disks(tmp_path, hosts):
    write_data(tmp_path / "data.h5")
    config = config_for(tmp_path, topology={"mode": "fused"})
    needs = disk_needs(config, hosts)
    # rows of 6 float64 with adagrad's 6, and an id: user 40, item 25 (history shares it), tag 9
    rows = (40 + 25 + 9) * (12 * 8 + 8)
    dense = sum(needs.checkpoint_bytes) - rows
    assert dense > 0 and dense % 8 == 0 and len(needs.checkpoint_bytes) == len(hosts)
    assert needs.sample_bytes == (tmp_path / "data.h5").stat().st_size / 70
    assert needs.readers == tuple(range(len(hosts))) and needs.whole
    copies = config_for(tmp_path, topology={"mode": "fused"}, embedding={"tables": {"user": {"shard": "replicate"}}})
    assert sum(disk_needs(copies, hosts).checkpoint_bytes) == rows + dense


def test_an_earlier_run_says_how_fast_it_was(tmp_path):
    assert storage._earlier(tmp_path) is None
    (tmp_path / "summary.json").write_text(json.dumps({"throughput": {"samples_per_s": 123.0}}))
    assert storage._earlier(tmp_path) == 123.0
    (tmp_path / "summary.json").write_text("{}")
    assert storage._earlier(tmp_path) is None


# ---- files -----------------------------------------------------------------------------------------------------------


def test_files_are_written_and_read_in_rounds(tmp_path):
    path = tmp_path / "file"
    wrote = timed(Alone(), {0: [0]}, Written(path, 3), 100_000)
    assert wrote.errors == {} and 1000 < path.stat().st_size <= 100_000 and wrote.gbs > 0
    assert len(set(path.read_bytes()[:1000])) > 200  # nothing that can be packed
    read = timed(Alone(), {0: [0]}, Read(path), path.stat().st_size)
    assert read.errors == {} and read.bytes > 0
    short = timed(Alone(), {0: [0]}, Read(path, path.stat().st_size - 10), 64)
    assert short.bytes <= 10
    missing = timed(Alone(), {0: [0]}, Read(tmp_path / "none"), 1000)
    assert "No such file" in missing.errors[0]


def test_a_slow_round_is_the_last(tmp_path, monkeypatch):
    rounds = []
    extent = SimpleNamespace(cached=None, prepare=lambda *_: None, work=lambda start, n: rounds.append((start, n)) or n)
    timed(Alone(), {0: [0]}, extent, 6400)
    assert rounds == [(0, 100), (100, 400), (500, 1600), (2100, 4300)]
    rounds.clear()
    monkeypatch.setattr(disk, "_ROUNDS_S", 0.0)
    timed(Alone(), {0: [0]}, extent, 6400)
    assert rounds == [(0, 100)]


def test_a_round_of_several_hosts():
    found = joined([(100, 0.1, 0.0, None), (100, 0.2, 0.5, None), (300, 0.1, 0.1, None)], {0: [0, 1], 1: [2]})
    assert (found.bytes, found.slowest_s, found.cached) == (500, 0.2, pytest.approx(0.2))
    assert found.gbs_of_host == {0: pytest.approx(1e-6), 1: pytest.approx(3e-6)}
    found = joined([(100, 0.1, None, None), (0, 0.0, None, "gone")], {0: [0], 1: [1]})
    assert found.errors == {1: "gone"} and found.gbs_of_host == {0: pytest.approx(1e-6)} and found.cached is None


def test_pages_that_are_in_memory_are_seen(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    with path.open("rb") as file:
        file.read()
        found = cached_part(file.fileno(), 0, 1 << 20)
        assert found in (None, 1.0)  # None: a file system that does not say
        os.fsync(os.open(path, os.O_RDONLY))
        os.posix_fadvise(file.fileno(), 0, 1 << 20, os.POSIX_FADV_DONTNEED)
        kind = file_system(tmp_path)
        if found == 1.0 and kind in ("ext4", "xfs"):
            assert cached_part(file.fileno(), 0, 1 << 20) < 0.5


def test_kinds_of_file_systems(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "2 1 0:40 / /scratch\\040two rw shared:1 - lustre a@tcp:/x rw",
        "3 1 0:41 / /home rw - nfs4 server:/home rw",
        "4 3 0:42 / /home rw - tmpfs none rw",
    ]
    (tmp_path / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")
    kinds = [file_system(Path(p), tmp_path) for p in ("/scratch two/me", "/home/me/run", "/var/x", "/scratch")]
    assert kinds == ["lustre", "tmpfs", "ext4", "ext4"]
    assert file_system(Path("/x"), tmp_path / "none") == "unknown"


def test_sizes_and_folders(tmp_path):
    assert [share_bytes(n) // 2**20 for n in (1, 4, 64, 1000)] == [64, 64, 4, 1]
    assert nearest(tmp_path / "a/b/c") == tmp_path and nearest(tmp_path) == tmp_path
