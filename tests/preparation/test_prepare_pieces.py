"""Pieces and the journal: the same bytes on any number of ranks, cut short anywhere or not; what is refused."""

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.cli.main import command_line
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.data import files
from hpcrec.errors import ConfigError, DataError
from hpcrec.preparation import pieces
from hpcrec.preparation.convert import Split, prepare_criteo
from hpcrec.preparation.journal import Journal
from hpcrec.preparation.schema import DataSet
from tests.comm.job import Job
from tests.preparation.sources import ALL, content, criteo_line, criteo_lines, write_text

N = 1500
KB = 1 << 10


def sources(folder: Path) -> list[Path]:
    lines = criteo_lines(N)
    return [write_text(folder / "a.txt", lines[:1000]), write_text(folder / "b.txt.gz", lines[1000:])]


@pytest.mark.parametrize("piece_bytes", [37, 64 * KB, 1 << 30])
def test_pieces_hold_each_line_once_and_in_order(tmp_path: Path, piece_bytes: int) -> None:
    n = 12 if piece_bytes < KB else N
    lines = criteo_lines(n)
    path = write_text(tmp_path / "a.txt", lines)
    path.write_bytes(path.read_bytes()[:-1])  # the last line ends with the file
    prepare_criteo([path], tmp_path / "one", split=ALL)
    plan = pieces.cut([path], piece_bytes)
    assert len(plan) == -(-path.stat().st_size // piece_bytes)
    prepare_criteo([path], tmp_path / "many", split=ALL, piece_bytes=piece_bytes)
    name = "train.h5" if len(plan) == 1 else "train.index.json"
    with DataSet(tmp_path / "one" / "train.h5") as one, DataSet(tmp_path / "many" / name) as many:
        assert one.samples == many.samples == n
        a, b = one.read(0, n), many.read(0, n)
    np.testing.assert_array_equal(a.label, b.label)
    np.testing.assert_array_equal(a.dense, b.dense)
    for feature in a.sparse:
        np.testing.assert_array_equal(a.sparse[feature].ids, b.sparse[feature].ids)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_compression_changes_the_size_alone(tmp_path: Path, compression: str) -> None:
    path = write_text(tmp_path / "a.txt", criteo_lines(20_000))
    prepare_criteo([path], tmp_path / "out", split=ALL, compression=compression)
    file = tmp_path / "out" / "train.h5"
    assert (file.stat().st_size < 0.5 * 20_000 * 40 * 4) == (compression == "gzip")
    with DataSet(file) as data:
        labels = data.read(0, 20_000).label
    assert labels.tolist() == [float(line[0]) for line in criteo_lines(20_000)]


def test_small_files_share_a_piece(tmp_path: Path) -> None:
    paths = [write_text(tmp_path / f"{i}.txt", criteo_lines(10, i)) for i in range(4)]
    size = paths[0].stat().st_size
    assert [len(piece.spans) for piece in pieces.cut(paths, 3 * size)] in ([2, 2], [3, 1])
    assert len(pieces.cut(paths, 1 << 20)) == 1


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("ids", ["hash", "vocabulary"])
def test_any_number_of_ranks_gives_the_same_bytes(tmp_path: Path, ids: str) -> None:
    comm = MPI.COMM_WORLD
    folder = Path(comm.bcast(str(tmp_path)))
    ranks = Collectives(comm.Dup(), tuple(range(comm.size)), Ledger(comm.rank, (0,) * comm.size))
    options = {"ids": ids, "piece_bytes": 40 * KB, "split": Split("hash", (0.7, 0.1, 0.2))}
    if comm.rank == 0:
        prepare_criteo(sources(folder), folder / "alone", **options)
    ranks.barrier()
    paths = [folder / "a.txt", folder / "b.txt.gz"]
    summary = prepare_criteo(paths, folder / "together", ranks=ranks, **options)
    again = prepare_criteo(paths, folder / "together", ranks=ranks, **options)
    ranks.barrier()
    parallel_assert(content(folder / "together") == content(folder / "alone"))
    parallel_assert(again == summary and sum(summary.samples.values()) == N)
    parallel_assert(len(list((folder / "together" / "pieces").glob("train-*"))) > 4)
    ranks.close()


ATTEMPTS = """
import os, random, signal, sys, time
from pathlib import Path
from hpcrec.preparation.convert import Split, prepare_criteo
folder, ids, seed, kills = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
paths = [folder / "a.txt", folder / "b.txt.gz"]
def convert(out):
    prepare_criteo(paths, out, ids=ids, piece_bytes=40 << 10, split=Split("hash", (0.7, 0.1, 0.2)))
def attempt(out, after_s):
    child = os.fork()
    if child == 0:
        try:
            convert(out)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
start = time.monotonic()
assert attempt(folder / "whole", None) == 0
whole_s = time.monotonic() - start
rng = random.Random(seed)
killed = 0
for number in range(100):
    # later attempts begin where earlier ones were killed, so that all of the way is covered
    code = attempt(folder / "cut", rng.random() * whole_s * 0.6)
    assert code in (0, -9), code
    killed += code == -9
    if killed == kills:
        break
    if code == 0:
        attempt_again = folder / "cut"
        os.rename(attempt_again, folder / f"cut-{number}")
assert attempt(folder / "cut", None) == 0
print(killed)
"""


def kill(folder: Path, ids: str, seed: int, kills: int) -> None:
    sources(folder)
    command = [sys.executable, "-c", ATTEMPTS, str(folder), ids, str(seed), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == kills
    wanted = content(folder / "whole")
    assert "prepare.json" in wanted and len(wanted) > 10
    for finished in folder.glob("cut*"):
        assert content(finished) == wanted, finished


@pytest.mark.parametrize("ids", ["hash", "vocabulary"])
def test_killed_and_started_again_gives_the_same_bytes(tmp_path: Path, ids: str) -> None:
    kill(tmp_path, ids, seed=1, kills=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_often_and_started_again_gives_the_same_bytes(tmp_path: Path, seed: int) -> None:
    kill(tmp_path, "vocabulary", seed, kills=20)


ON_RANKS = """
from pathlib import Path
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.ledger import Ledger
from hpcrec.preparation.convert import Split, prepare_criteo
folder = Path(sys.argv[1]).parent
ranks = Collectives(world.Dup(), tuple(range(world.size)), Ledger(world.rank, (0,) * world.size))
(folder / f"pid-{world.rank}").write_text(str(os.getpid()))
ready()
paths, split = [folder / "a.txt", folder / "b.txt.gz"], Split("hash", (0.7, 0.1, 0.2))
prepare_criteo(paths, folder / "cut", ids="vocabulary", piece_bytes=400 << 10, split=split, ranks=ranks)
"""


@pytest.mark.slow
def test_a_killed_rank_of_several_loses_nothing(tmp_path: Path) -> None:
    """Either rank, at any instant; whoever is left is ended by the launcher."""
    lines = criteo_lines(60_000)
    paths = [write_text(tmp_path / "a.txt", lines[:40_000]), write_text(tmp_path / "b.txt.gz", lines[40_000:])]
    split = Split("hash", (0.7, 0.1, 0.2))
    prepare_criteo(paths, tmp_path / "alone", ids="vocabulary", piece_bytes=400 * KB, split=split)
    rng, killed, whole_s = random.Random(5), 0, 1.0
    for number in range(40):
        job = Job(tmp_path, ON_RANKS, ranks=2)
        job.wait_ready()
        began_s = time.monotonic()
        if number:  # the first one tells how long it takes
            time.sleep(rng.random() * 0.5 * whole_s)
            with contextlib.suppress(ProcessLookupError):
                os.kill(int((tmp_path / f"pid-{rng.randrange(2)}").read_text()), signal.SIGKILL)
        job.process.communicate(timeout=60)
        job.clean()
        code = job.process.returncode
        killed += code != 0
        if code == 0:
            whole_s = whole_s if number else time.monotonic() - began_s
            assert content(tmp_path / "cut") == content(tmp_path / "alone"), number
            (tmp_path / "cut").rename(tmp_path / f"cut-{number}")
        if killed >= 20 and code == 0:
            break
        (tmp_path / "ready").unlink()
    assert killed >= 20, (killed, whole_s)


def test_another_command_or_source_is_refused(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", [*criteo_lines(300), criteo_line("x")])
    out = tmp_path / "out"

    def convert(**options: object) -> None:
        prepare_criteo([path], out, split=ALL, **{"piece_bytes": 20 * KB, **options})

    with pytest.raises(DataError, match="line 301, column label"):
        convert()
    kept = {piece: piece.stat().st_mtime_ns for piece in (out / "pieces").iterdir()}
    assert len(kept) == 3 and not (out / "train.index.json").exists()
    with pytest.raises(ConfigError, match=r"sparse\.C1\.rows was None, is 500; .*and 21 more.*--restart"):
        convert(rows_per_feature=500)
    with pytest.raises(ConfigError, match="piece_bytes was 20480, is 30720"):
        convert(piece_bytes=30 * KB)
    convert(max_bad=0.01)  # this goes on
    assert all(piece.stat().st_mtime_ns == time for piece, time in kept.items())
    assert DataSet(out / "train.index.json").samples == 300
    with pytest.raises(ConfigError, match=r"split was order:.*, is hash"):
        prepare_criteo([path], out, split=Split("hash", (1.0, 0.0, 0.0)), piece_bytes=20 * KB)
    write_text(path, criteo_lines(200))
    with pytest.raises(ConfigError, match=r"sources\.0\.bytes was \d+, is \d+"):
        convert(max_bad=0.01)
    convert(restart=True, piece_bytes=1 << 20)
    assert sorted(content(out)) == ["prepare.json", "train.h5"]
    (out / "train.h5").write_bytes(b"")
    with pytest.raises(DataError, match=r"train\.h5: prepare\.json says that it was finished"):
        convert(piece_bytes=1 << 20)


def test_a_work_folder_that_cannot_be_listed_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    journal = Journal(tmp_path, {})
    assert journal.open(restart=False) is None
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fails)
        with pytest.raises(OSError, match=f"{tmp_path}/prepare.work"):
            journal.close()
    again = Journal(tmp_path, {})
    assert again.open(restart=False) is None
    again.close()


@pytest.mark.parametrize("call", ["stat", "fstat"])
def test_a_lock_that_cannot_be_asked_for_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """As of a file server that fails once: the next attempt of this process is not told that another one is at work."""

    def fails(path: object, **_: object) -> os.stat_result:
        if call == "fstat" or str(path).endswith("lock"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return before(path)  # type: ignore[call-overload, no-any-return]

    before = getattr(os, call)
    journal, again = Journal(tmp_path, {}), Journal(tmp_path, {})
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="Input/output error"):
        journal.open(restart=False)
    monkeypatch.undo()
    assert again.open(restart=False) is None
    again.close()


def test_a_work_folder_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process ends, and removes it, right after this one was told that it is there."""
    work = tmp_path / "prepare.work"
    work.mkdir()

    def ends(path: Path, *more: object) -> None:
        try:
            before(path, *more)  # type: ignore[arg-type]
        except FileExistsError:
            if Path(path) == work:
                work.rmdir()
            raise

    before = os.mkdir
    monkeypatch.setattr(os, "mkdir", ends)
    journal = Journal(tmp_path, {})
    assert journal.open(restart=False) is None
    journal.close()
    assert (work / "job.json").exists()


@pytest.mark.parametrize(
    ("name", "other", "found"),
    [
        ("prepare.work", "file", NotADirectoryError),
        ("prepare.work", "link", DataError),
        ("prepare.work/lock", "link", FileNotFoundError),
    ],
)
@pytest.mark.timeout(60)  # not made again for ever
def test_what_stands_where_the_lock_belongs_is_said(
    tmp_path: Path, name: str, other: str, found: type[OSError]
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("nowhere/at/all") if other == "link" else path.write_text("")
    with pytest.raises(found, match=r"prepare\.work/lock" if found is not DataError else r"prepare\.work: is a link"):
        Journal(tmp_path, {}).open(restart=False)


def test_what_a_rank_of_a_killed_job_names_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first rank is gone, and the lock with it; another one ends the write that it was in."""
    temporary, final = (
        tmp_path / "prepare.work/.counted-00001.json.7.part",
        tmp_path / "prepare.work/counted-00001.json",
    )
    temporary.parent.mkdir()
    temporary.write_text("{}")

    def unlink(path: Path) -> None:
        if Path(path) == temporary:
            temporary.rename(final)
        before(path)

    before = os.unlink
    monkeypatch.setattr(os, "unlink", unlink)
    journal = Journal(tmp_path, {})
    assert journal.open(restart=False) is None
    assert final.exists()
    journal.close()


def test_what_a_rank_of_a_killed_job_left_beside_a_finished_data_set_is_removed(tmp_path: Path) -> None:
    """It wrote when another job had finished the data set; the same command removes that, and does nothing else."""
    path = write_text(tmp_path / "a.txt", criteo_lines(200))
    prepare_criteo([path], tmp_path / "out", split=ALL, piece_bytes=4 * KB)
    right = content(tmp_path / "out")
    left = tmp_path / "out/pieces/.train-00001.h5.1001.part"
    left.write_text("cut short")
    prepare_criteo([path], tmp_path / "out", split=ALL, piece_bytes=4 * KB)
    assert not left.exists()
    assert content(tmp_path / "out") == right


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", criteo_lines(10))
    (tmp_path / "out" / "prepare.work").mkdir(parents=True)
    holder = (
        "import fcntl,sys,time; f=open(sys.argv[1],'w'); fcntl.flock(f,fcntl.LOCK_EX); print(1,flush=True); input()"
    )
    lock = tmp_path / "out" / "prepare.work" / "lock"
    command = [sys.executable, "-c", holder, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline()
        with pytest.raises(ConfigError, match="another process prepares data in this folder"):
            prepare_criteo([path], tmp_path / "out", split=ALL)
        other.communicate(b"\n")
    prepare_criteo([path], tmp_path / "out", split=ALL)
    assert sorted(content(tmp_path / "out")) == ["prepare.json", "train.h5"]


def test_command_line(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.txt", [*criteo_lines(50), "x"])
    command = ["prepare", "criteo", "--out", str(tmp_path / "out"), "--split", "order:1,0,0", str(path)]
    runner = CliRunner()
    refused = runner.invoke(command_line, command)
    assert isinstance(refused.exception, DataError) and "line 51: found 1 columns" in str(refused.exception)
    done = runner.invoke(command_line, [*command, "--max-bad", "0.02"])
    assert done.exit_code == 0 and "train.h5: 50 samples" in done.output, done.output
    assert "rejected lines: 1, in rejects.tsv" in done.output
    for arguments, message in (
        (["prepare", "synthetic", "--out", "x"], "criteo or table on several ranks, not 'synthetic'"),
        (["prepare", "criteo", "--out", "x"], "Missing argument 'FILES...'"),
        (["prepare", "criteo", "--out", "x", "--rows", "2", str(path)], "Invalid value for '--rows'"),
    ):
        assert message in runner.invoke(command_line, ["run", "-n", "2", "--", *arguments]).output


def test_names_of_what_a_note_is_of_are_on_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else power that goes may leave the note of vocabularies that are not there, and no start goes on from that."""
    journal, seen = Journal(tmp_path, {}), []
    journal.open(restart=False)
    sync, replace = files.sync, Path.replace

    def synced(folder: Path) -> None:
        seen.append(("sync", folder.name))
        sync(folder)

    def replaced(path: Path, target: Path) -> Path:
        seen.append(("replace", target.name))
        return replace(path, target)

    monkeypatch.setattr(files, "sync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    journal.record("numbered", "0", {})
    assert seen == [("sync", "prepare.work"), ("replace", "numbered-0.json"), ("sync", "prepare.work")]
    journal.close()
