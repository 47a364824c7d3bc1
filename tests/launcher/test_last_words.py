"""Boards outlive their ranks, and what is said of a job that could not say it names the rank that died first."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrec.comm import board
from hpcrec.comm.board import Board, Left, read_boards
from hpcrec.comm.failure import ExitCodes
from hpcrec.comm.progress import WORKING, Progress
from hpcrec.launcher import watch as rank_watch
from hpcrec.launcher.last_words import Remark, last_words, remark_in
from hpcrec.launcher.relay import Heard
from hpcrec.launcher.watch import Watch
from tests.comm.job import WATCHED, Job
from tests.cost import times_a_plain_block

NOW_S = 1_800_000_000.0
KILLED = b"prterun noticed that process rank 2 with PID 15144 on node vm exited on\nsignal 9 (Killed).\n"


# ---- boards ----------------------------------------------------------------------------------------------------------


def test_a_killed_process_leaves_where_it_was(tmp_path: Path) -> None:
    code = f"""
import os
from hpcrec.comm import board
from hpcrec.comm.progress import WORKING, Progress
board.open_board({str(tmp_path)!r}, 3, 8)
progress = Progress()
board.mine().set_role(board.describe_role(owner=True, dense=True))
main, dense = progress.lane("main", range(8)), progress.lane("dense", range(4))
progress.step = 41
with main.inside("ids"):
    pass
number = dense.started()
with main.inside("gradients"):
    dense.waits(number, "dense")
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (left,) = read_boards(tmp_path).values()
    assert (left.rank, left.ranks, left.role, left.step) == (3, 8, "owner and dense rank", 41)
    assert left.host == os.uname().nodename and left.pid > 1
    assert {name: lane[:3] for name, lane in left.lanes.items()} == {
        "main": (2, 2, "gradients"),
        "dense": (1, 1, "dense"),
    }
    assert 0 <= time.time() - left.noted_s < 60 and left.ended_s is None and left.error == ""


def test_a_process_that_leaves_says_so(tmp_path: Path) -> None:
    for how, error in [("pass", ""), ("board.mine().end('bad')", "bad")]:
        code = f"from hpcrec.comm import board\nboard.open_board({str(tmp_path / error)!r}, {len(how)}, 99)\n{how}\n"
        (tmp_path / error).mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-c", code], check=True)
        left = read_boards(tmp_path / error)[len(how)]
        assert left.ended_s is not None and abs(left.ended_s - time.time()) < 60
        assert (left.error, left.step, left.lanes) == (error, None, {})


def test_what_does_not_fit_is_left_out_and_nothing_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_mine", [Board(bytearray(board.SIZE_BYTES), 7, 9)])
    progress = Progress()
    for i in range(40):
        lane = progress.lane(f"lane {i} " + "x" * 60, (0,))
        for tag in range(5):
            with lane.inside(f"tag {i} {tag} " + "y" * 60):
                pass
        assert (lane.count, lane.waiting) == (5, 0)
    board.mine().end("an error " * 1000)
    (tmp_path / "rank-7").write_bytes(bytes(board.mine()._memory))
    (tmp_path / "rank-8").write_bytes(b"not yet")
    (left,) = read_boards(tmp_path).values()
    assert len(left.lanes) == 16 and len(left.error) == 512 and left.ranks == 9
    assert left.lanes["lane 15 " + "x" * 32][:3] == (5, 0, "")  # the tags are full by then
    assert left.lanes["lane 3 " + "x" * 33][2].startswith("tag 3 4 yyy")
    Progress()  # other communicators
    (tmp_path / "rank-7").write_bytes(bytes(board.mine()._memory))
    assert read_boards(tmp_path)[7].lanes == {}
    board.open_board(str(tmp_path / "nowhere"), 0, 1)  # another host's folder: the run goes on
    assert read_boards(tmp_path / "nowhere") == {}


def test_a_note_on_the_board_costs_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "_mine", [board.mine()])
    board.open_board(str(tmp_path), 0, 1)
    lane = Progress().lane("main", (0, 1))
    assert times_a_plain_block(lambda: lane.inside("ids")) < 15  # 3 on an idle core
    assert read_boards(tmp_path)[0].lanes["main"][:3] == (20_000, 0, "ids")


# ---- what is said ----------------------------------------------------------------------------------------------------


def left(rank: int, step: int | None = 5, number: int = 0, count: int = 9, ago_s: float = 1.0, **changes) -> Left:
    lanes = {"main": (count, number, "values", NOW_S - ago_s)}
    known = {"rank": rank, "ranks": 4, "pid": 100 + rank, "host": "node7", "role": "owner", "step": step}
    return Left(**{**known, "lanes": lanes, "ended_s": None, "error": "", **changes})


def waiting(but: int, **changes) -> dict[int, Left]:
    """Ranks 0 to 3, which wait in the ninth collective for ``but``, which has not come to it."""
    found = {rank: left(rank, number=9) for rank in range(4)}
    return {**found, but: left(but, count=8, ago_s=2.0, **changes)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (KILLED, Remark(2, signal=9)),
        (
            b"mpirun noticed that process rank 11 with PID 0 on node a-1 exited on signal 11 (Segm",
            Remark(11, signal=11),
        ),
        (b"   Process name: [prterun-vm-1@1,3]\n   Exit code:    3\n", Remark(3, status=3)),
        (b"srun: error: n2: task 3: Killed\nsrun: error: n1: task 0: Terminated\n", Remark(3, signal=9)),
        (b"srun: error: n2: tasks 2-3: Segmentation fault (core dumped)\n", Remark(2, signal=11)),
        (b"srun: error: n2: task 5: Out Of Memory\n", Remark(5, signal=9, no_memory=True)),
        (b"srun: error: n2: task 5: Exited with exit code 3\n", Remark(5, status=3)),
        (b"srun: error: n2: task 5: Exited with exit code 14\nsrun: error: n1: task 4: Killed\n", Remark(4, signal=9)),
        (b"srun: Job step aborted: Waiting up to 7 s\nsrun: error: n2: task 1: Killed\n", None),  # by srun, perhaps
        (b"srun: Job step aborted: W\nsrun: error: n2: task 5: Out Of Memory\n", Remark(5, signal=9, no_memory=True)),
        (b"   Process name: [prterun-vm-1@1,3]\n   Exit code:    14\n", None),
        (b"srun: error: n2: task 5: Something Else\nloss 0.5\n", None),
        (b"", None),
    ],
)
def test_remarks_of_launchers_are_understood(text: bytes, found: Remark | None) -> None:
    assert remark_in(text) == found


def test_the_rank_that_mpirun_names_is_told_with_its_place_and_the_others_positions() -> None:
    boards = waiting(2) | {3: left(3, step=4, count=8)}
    words = last_words(boards, [(NOW_S, {2}), (NOW_S + 0.1, {0, 1, 3})], Remark(2, signal=9), 137)
    assert words is not None
    assert words.line == (
        "rank 2 on node7 (owner, process 102) was killed by signal 9 (SIGKILL) at step 5, in no collective for 2 s, "
        "the last being 'values' on communicator 'main'; often a memory limit, the kernel's or Slurm's"
    )
    assert words.positions == (
        "step 5, collective 'values' on communicator 'main': ranks 0, 1 waited 1 s for ranks 2, 3",
        "step 4, in no collective: rank 3",
    )
    assert (words.step, words.brief) == (5, "rank 2 was killed by signal 9 (SIGKILL) at step 5")
    found = last_words(boards, [], Remark(2, signal=9), 137, "memory.events of node7")
    assert found is not None and found.line.endswith("; memory ran out meanwhile, says memory.events of node7")


def test_a_rank_that_dies_in_a_collective_is_told_so() -> None:
    boards = {rank: left(rank, number=9) for rank in range(3)}  # rank 3's host does not see the folder
    words = last_words(boards, [(NOW_S, {1})], Remark(1, signal=7), 135)
    assert words is not None
    assert "at step 5, in collective 'values' on communicator 'main' for 1 s; often a full disk" in words.line
    assert words.positions == (
        "step 5, collective 'values' on communicator 'main': ranks 0 to 2 waited 1 s, all ranks are there",
        "position not known, their hosts do not see the launcher's folder: rank 3",
    )
    before = last_words({0: left(0, step=None, lanes={}), 1: left(1, step=None, lanes={})}, [], Remark(0, status=3), 3)
    assert before is not None and before.step is None
    assert (
        before.line == "rank 0 on node7 (owner, process 100) left without a word (exit status 3) before its first step"
    )
    assert before.positions[0] == "before the first step, in no collective: rank 1"


def test_a_rank_that_dies_at_work_for_a_checkpoint_is_told_so_and_who_is_at_work_is_no_suspect() -> None:
    def lanes(number: int, aside: int, ago_s: float) -> dict[str, tuple[int, int, str, float]]:
        return {
            "main": (9, number, "values", NOW_S - 3.0),
            "aside": (2, aside, "checkpoint", NOW_S - ago_s),
        }

    boards = {0: replace(left(0), lanes=lanes(9, 3, 0.5)), 1: replace(left(1), lanes=lanes(0, WORKING, 0.25))}
    found = last_words(boards, [(NOW_S, {1})], Remark(1, signal=9), 137)
    assert found is not None
    assert (
        "step 5, in no collective for 3 s, the last being 'values' on communicator 'main' and at work for a "
        in found.line
    )
    assert any("collective 'checkpoint' on communicator 'aside': rank 0 waited" in line for line in found.positions)
    boards = {0: replace(left(0), lanes=lanes(0, 0, 0.5)), 1: replace(left(1), lanes=lanes(0, WORKING, 0.25))}
    found = last_words(boards, [], Remark(0, signal=9), 137)
    assert found is not None and found.positions[0] == "step 5, in no collective: rank 1"


def test_without_a_remark_the_order_of_ends_tells_and_else_who_was_waited_for() -> None:
    boards = waiting(1)
    words = last_words(boards, [(NOW_S, {3}), (NOW_S + 1, {0, 1, 2})], None, 9)
    assert words is not None and words.line.startswith("rank 3 on node7 (owner, process 103) was killed by signal 9")
    for deaths in ([], [(NOW_S, {0, 1, 2, 3})]):
        words = last_words(boards, deaths, None, 9)
        assert words is not None and words.line.startswith("rank 1 on ") and "by the positions" in words.line
    found = last_words({r: left(r, ago_s=3.0 if r == 2 else 1.0) for r in range(4)}, [], None, 1 + 128)
    assert found is not None and found.line.startswith("rank 2 on ")  # the last that was heard of it is the oldest
    alone = last_words({}, [], Remark(2, signal=9), 137)
    assert alone is not None and alone.line.startswith("rank 2 was killed by signal 9 (SIGKILL); often")


def test_of_ranks_that_end_at_once_the_one_that_was_waited_for_is_taken_for_the_first() -> None:
    boards, deaths = waiting(2), [(NOW_S, {0}), (NOW_S + 0.01, {1, 2, 3})]
    words = last_words(boards, deaths, None, 3, ending=[1, 2])
    assert words is not None and words.brief == "rank 2 vanished at step 5 (by the positions of the others)"
    for ending in ([], [1, 3]):  # they were not waited for either
        words = last_words(boards, deaths, None, 3, ending=ending)
        assert words is not None and words.brief == "rank 0 vanished at step 5"
    failed = boards | {1: left(1, ended_s=NOW_S + 1, error="KeyError: 1")}  # by the loss of rank 2
    words = last_words(failed, deaths, None, 1, ending=[2])
    assert words is not None and words.brief == "rank 2 vanished at step 5 (by the positions of the others)"
    words = last_words(boards, [(NOW_S, {2}), deaths[1]], None, 3, ending=[0, 1])
    assert words is not None and words.brief == "rank 2 vanished at step 5"
    boards[2] = left(2, ended_s=NOW_S)  # it left in order
    words = last_words(boards, deaths, None, 3, ending=[2])
    assert words is not None and words.brief == "rank 0 vanished at step 5"


def test_a_process_that_ends_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert not rank_watch._is_ending(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert rank_watch._is_ending(process.pid)  # its end is not yet taken note of
        process.wait()
        assert rank_watch._is_ending(process.pid)
    assert not rank_watch._is_ending(os.getpid())
    for flags, ending in [(0x400044, True), (0x400040, False)]:  # of one that lets go of its memory, or is forked
        monkeypatch.setattr(Path, "read_text", lambda _, flags=flags: f"9 (a (b) R) R 4 4 4 4 4 {flags} 4 4")
        assert rank_watch._is_ending(9) is ending


def test_ranks_of_other_hosts_may_have_died_before_those_whose_ends_were_seen() -> None:
    """Killed on node8; the launcher, on node7, sees only that its own rank was ended then."""
    boards = {0: left(0, number=9), 1: left(1, number=9, host="node8"), 2: left(2, count=8, ago_s=2.0, host="node8")}
    words = last_words(boards, [(NOW_S, {0})], None, 14)
    assert words is not None and words.line.startswith("rank 2 on node8 (owner, process 102) vanished at step 5")
    assert words.line.endswith("(by the positions of the others: the launcher does not say which rank was the first)")
    assert words.brief == "rank 2 vanished at step 5 (by the positions of the others)"
    here = {rank: replace(board, host="node7") for rank, board in boards.items()}
    words = last_words(here, [(NOW_S, {0})], None, 14)
    assert words is not None and words.brief == "rank 0 vanished at step 5"


def test_nothing_is_said_where_ranks_have_said_it() -> None:
    boards = waiting(2)
    assert all(last_words(boards, [], None, code) is None for code in (0, 2, 75, 1))
    failed = waiting(2) | {0: left(0, ended_s=NOW_S, error="KeyError: 1")}
    deaths = [(NOW_S + 0.5, {0}), (NOW_S + 0.6, {1, 2, 3})]
    assert last_words(failed, deaths, None, 1) is None  # the others were ended by its abort
    assert last_words(failed, deaths, None, 6) is None
    lost = last_words(failed, [(NOW_S - 0.1, {2}), *deaths], None, 1)  # rank 0 failed by the loss of rank 2
    assert lost is not None and lost.line.startswith("rank 2 on node7")
    assert "had left by an error: KeyError: 1: rank 0" in lost.positions
    assert last_words({r: left(r, ended_s=NOW_S) for r in range(4)}, [], None, 14) is None
    assert last_words({}, [], None, 137) is None


def test_many_positions_are_cut_short() -> None:
    boards = {rank: left(rank, step=rank, ranks=90) for rank in range(90)}
    words = last_words(boards, [], Remark(2, signal=9), 137)
    assert words is not None and len(words.positions) == 25 and words.positions[-1] == "and 65 more positions"


# ---- the watch -------------------------------------------------------------------------------------------------------


def test_the_watch_sees_the_order_of_ends_and_removes_its_folder(tmp_path: Path, monkeypatch) -> None:
    counts = {"memory.events": 3}
    monkeypatch.setattr(rank_watch, "_killed_for_memory", lambda: dict(counts))
    with Watch(tmp_path / "run") as watch:
        folder = Path(watch.environment[board.FOLDER])
        assert folder.parent == tmp_path / "run"
        code = "import sys, time; from hpcrec.comm import board; board.open_board(sys.argv[1], int(sys.argv[2]), 2); "
        ranks = [
            subprocess.Popen([sys.executable, "-c", code + "time.sleep(60)", str(folder), str(rank)]) for rank in (0, 1)
        ]
        until = time.monotonic() + 30
        while len(watch.boards()) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.5)  # the watch looks again
        for rank in (1, 0):
            ranks[rank].kill()
            ranks[rank].wait()
            time.sleep(0.2)
        counts["memory.events"] += 1
        words = watch.last_words(9, Heard())
        assert words is not None and re.match(r"rank 1 on \S+ \(process \d+\) was killed by signal 9", words.line)
        assert "memory ran out meanwhile, says memory.events of " in words.line
    assert list((tmp_path / "run").iterdir()) == []
    with Watch() as plain:
        assert plain.last_words(0, Heard()) is None
    assert not Path(plain.environment[board.FOLDER]).exists()
    (tmp_path / "file").write_text("")
    with Watch(tmp_path / "file") as blind:  # a folder that cannot be made: the run itself will say so
        assert blind.environment == {} and blind.last_words(137, Heard(bytearray(KILLED))) is not None


def test_kills_for_memory_are_counted_where_the_kernel_tells() -> None:
    found = rank_watch._killed_for_memory()
    assert all(count >= 0 for count in found.values())
    if Path("/proc/vmstat").exists() and "oom_kill " in Path("/proc/vmstat").read_text():
        assert "/proc/vmstat" in found


BODY = """
    import numpy as np
    from hpcrec.comm import board
    from hpcrec.comm.topology import assign_roles
    from hpcrec.comm.world import World
    board.open_board(os.environ.get(board.FOLDER), world.rank, world.size)
    parts = World(world, lambda host_of: assign_roles(host_of, mode="split", owners=1))
    parts.progress.step = 41
    parts.main.allreduce(np.ones(2), "gradients")
    ready()
    if world.rank == 2:
        time.sleep(0.5)
        {how}
    parts.main.allreduce(np.ones(2), "values")
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("os.kill(os.getpid(), 9)", r"was killed by signal 9 \(SIGKILL\) at step 41"),
        (
            "os._exit(3)",
            r"(left without a word \(exit status 3\)|was killed by signal 9 \(SIGKILL\)|vanished) at step 41",
        ),
        ("raise KeyError('mine')", ""),
    ],
)
def test_a_rank_that_vanishes_is_named_in_one_line(tmp_path: Path, how: str, said: str) -> None:
    ended = Job(tmp_path, BODY.format(how=how), launcher=WATCHED).end()
    lines = [line for line in ended.err.splitlines() if line.startswith("hpcrec: error: ")]
    if not said:
        assert (ended.code, lines) == (ExitCodes.ERROR, []) and ended.err.count("KeyError: 'mine'") == 1
        return
    assert ended.code not in (0, 1, 2, 75)
    (line,) = lines
    assert re.match(rf"hpcrec: error: rank 2 on \S+ \(dense rank, process \d+\) {said}, in no collective for 0\.", line)
    others = r"hpcrec:   step 41, collective 'values' on communicator 'main': ranks 0, 1 waited 0\.\d+ s for rank 2\n"
    assert re.search(others, ended.err), ended.err
