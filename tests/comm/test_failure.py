"""A job that fails ends as a whole, within seconds, and says why once; a job that is stopped says 75."""

import signal
import subprocess
import sys
import time

import pytest
from job import Job, needs_horovod

from hpcrec.comm.failure import ExitCodes, StopSignal, agree, exit_code
from hpcrec.errors import CheckpointError, ConfigError, DataError, HpcrecError, LastCheckpointError


def test_an_error_of_one_rank_ends_all_with_its_traceback_once(tmp_path):
    body = """
    ready()
    if world.rank == 1:
        raise KeyError("no such thing")
    world.Barrier()
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.ERROR
    assert ended.err.count("Traceback (most recent call last)") == 1
    assert ended.err.count("KeyError: 'no such thing'") == 1
    assert "[rank 1 on " in ended.err
    assert "MPI_ABORT" not in ended.err
    assert "prterun" not in ended.err


def test_an_error_of_a_thread_ends_all(tmp_path):
    body = """
    ready()
    def work():
        time.sleep(0.1)
        raise RuntimeError("lost the plot")
    if world.rank == 2:
        threading.Thread(target=work).start()
    world.Barrier() if world.rank != 2 else time.sleep(60)
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.ERROR
    assert ended.err.count("Traceback (most recent call last)") == 1
    assert ended.err.count("RuntimeError: lost the plot") == 1
    assert "[rank 2 on " in ended.err


def test_long_last_words_arrive_whole(tmp_path):
    """MPICH's mpirun kills at an abort, and drops what it has not read: without a pause in 4 of 30 such jobs."""
    body = """
    ready()
    if world.rank == 1:
        failure.end_job(world, "".join(f"word {i} of a stack, with some more behind it\\n" for i in range(2000)), 1)
    world.Barrier()
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.ERROR
    assert [line.split()[1] for line in ended.err.splitlines() if line.startswith("word ")] == list(
        map(str, range(2000))
    )


# Of a rank that is killed: 128 + 9 from Open MPI, 9 from MPICH, which also puts in the 9 of those that it kills then.
@pytest.mark.parametrize(("how", "codes"), [("os._exit(3)", {3, 3 | 9, 9}), ("os.kill(os.getpid(), 9)", {128 + 9, 9})])
def test_a_rank_that_vanishes_ends_all(tmp_path, how, codes):
    body = f"""
    ready()
    if world.rank == 1:
        {how}
    world.Barrier()
    """
    ended = Job(tmp_path, body).end()
    assert ended.code in codes
    # nobody else can say what happened; MPICH says it of a signal only
    assert "prterun" in ended.err or "BAD TERMINATION" in ended.out or ended.code == 3


def test_an_error_of_all_ranks_is_one_line(tmp_path):
    body = """
    ready()
    raise errors.ConfigError("train.batch_size is 0. Allowed: 1 and more.")
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.CONFIGURATION
    lines = ended.err.strip().splitlines()
    assert lines[1:] == ["hpcrec: error: train.batch_size is 0. Allowed: 1 and more."]
    assert lines[0].startswith("hpcrec: OMP_NUM_THREADS=1")


def test_an_unforeseen_error_of_all_ranks_has_one_traceback(tmp_path):
    body = """
    ready()
    raise KeyError("the same everywhere")
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.ERROR
    assert ended.err.count("KeyError: 'the same everywhere'") == 1
    assert "[rank 0 on " in ended.err


def test_an_agreed_error_is_one_line_that_names_the_rank(tmp_path):
    body = """
    ready()
    failure.agree(Everyone, None)
    failure.agree(Everyone, errors.DataError("file x is short") if world.rank == 2 else None)
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.ERROR
    assert ended.err.strip().splitlines()[1:] == ["hpcrec: error: rank 2: file x is short"]


def test_an_unforeseen_agreed_error_keeps_its_traceback(tmp_path):
    body = """
    ready()
    failure.agree(Everyone, ZeroDivisionError("oops") if world.rank else None)
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.ERROR
    assert ended.err.count("Traceback (most recent call last)") == 1
    assert "[rank 1 on " in ended.err
    assert ended.err.count("hpcrec: error: ") == ended.err.count("hpcrec: error: rank 1: ZeroDivisionError: oops") == 1


HOROVOD = """
    import torch
    from hpcrec.comm.topology import assign_roles
    from hpcrec.comm.world import World
    from hpcrec.dense.horovod import HorovodAllreduce
    parts = World(world, lambda host_of: assign_roles(host_of, mode="fused"))
    allreduce = HorovodAllreduce(parts.dense)
    flat = torch.ones(10)
    allreduce.wait(allreduce.start(flat, "x"))
    assert flat[0] == world.size
    ready()
"""


@needs_horovod
@pytest.mark.parametrize(
    ("who", "code", "tracebacks"),
    [("raise errors.ConfigError('no')", 2, 0), ("if world.rank == 1: raise KeyError('no')", 1, 1)],
)
def test_horovod_in_flight_does_not_hold_up_the_end(tmp_path, who, code, tracebacks):
    body = f"""{HOROVOD}
    {who}
    allreduce.wait(allreduce.start(flat, "x"))
    """
    ended = Job(tmp_path, body, ranks=2).end()
    assert ended.code == code
    assert ended.err.count("Traceback (most recent call last)") == tracebacks
    assert ended.err.count("no") >= 1
    if not tracebacks:
        assert ended.err.strip().splitlines()[1:] == ["hpcrec: error: no"]


def test_a_last_checkpoint_that_fails_ahead_of_the_time_limit_ends_all_with_the_code_that_requeues(tmp_path):
    body = """
    ready()
    raise errors.LastCheckpointError("no space left; it goes on from step 4")
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.STOPPED
    assert ended.err.splitlines()[1:] == ["hpcrec: error: no space left; it goes on from step 4"]


def test_a_foreseen_error_of_one_rank_does_not_wait_for_the_others(tmp_path):
    body = """
    ready()
    if world.rank == 0:
        raise errors.DataError("line 7 has no label")
    world.Barrier()
    """
    ended = Job(tmp_path, body).end()
    assert ended.code == ExitCodes.ERROR
    assert "Traceback" not in ended.err
    assert ended.err.count("hpcrec: error: [rank 0 on ") == 1
    assert "line 7 has no label" in ended.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_launcher_stops_every_rank_with_75(tmp_path, number):
    body = """
    with failure.StopSignal() as stop:
        ready()
        while not stop.requested:
            time.sleep(0.01)
        say(f"rank {world.rank} saw {stop.name}")
        world.Barrier()
    sys.exit(failure.ExitCodes.STOPPED)
    """
    job = Job(tmp_path, body)
    job.wait_ready()
    job.process.send_signal(number)
    ended = job.end()
    assert ended.code == ExitCodes.STOPPED == 75
    assert sorted(ended.out.splitlines()) == [f"rank {r} saw SIGUSR1" for r in range(3)]
    assert "non-zero status" not in ended.err
    assert ended.err.count("write a checkpoint") == 1


def test_a_second_interrupt_kills_ranks_that_will_not_stop(tmp_path):
    body = """
    stop = failure.StopSignal()
    ready()
    time.sleep(60)
    """
    job = Job(tmp_path, body)
    job.wait_ready()
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert job.process.poll() is None
    job.process.send_signal(signal.SIGINT)
    ended = job.end(limit_s=8)
    assert ended.code not in (0, 75)
    assert "killing the ranks" in ended.err


def test_a_job_that_finishes_says_nothing(tmp_path):
    ended = Job(tmp_path, "ready()\nsay(f'done {world.size}')", ranks=2).end()
    assert (ended.code, ended.out.splitlines()) == (ExitCodes.FINISHED, ["done 2"] * 2)
    assert len(ended.err.splitlines()) == 1


class Ranks:
    """What each rank would hand to ``agree``, gathered beforehand."""

    def __init__(self, rank, told):
        self.rank, self.told = rank, told

    def allgather(self, mine):
        told = list(self.told)
        told[self.rank] = mine
        return told


def test_agree_raises_the_lowest_failing_ranks_error_everywhere():
    told = [None, ("ConfigError", "bad key"), ("HpcrecError", "KeyError: 1")]
    agree(Ranks(0, [None, None]), None)
    with pytest.raises(ConfigError, match=r"^rank 1: bad key$"):
        agree(Ranks(0, told), None)
    mine = ConfigError("bad key")
    with pytest.raises(ConfigError, match=r"^rank 1: bad key$") as caught:
        agree(Ranks(1, told), mine)
    assert caught.value.__cause__ is mine
    with pytest.raises(HpcrecError, match=r"^rank 1: bad key$"):
        agree(Ranks(2, told), KeyError(1))
    with pytest.raises(CheckpointError, match=r"^gone$"):
        agree(Ranks(0, [None, ("CheckpointError", "gone")]), CheckpointError("gone"))
    unforeseen = OSError("disk")
    with pytest.raises(OSError, match="disk") as plain:
        agree(Ranks(0, [None, None]), unforeseen)
    assert plain.value is unforeseen

    class OwnError(DataError):
        pass

    with pytest.raises(DataError, match=r"^rank 1: mine$"):
        agree(Ranks(1, [None, None]), OwnError("mine"))


def test_exit_codes_are_the_documented_ones():
    assert [int(code) for code in ExitCodes] == [0, 1, 2, 75]
    assert exit_code(ConfigError("x")) == 2
    assert exit_code(DataError("x")) == 1
    assert exit_code(CheckpointError("x")) == 1
    assert exit_code(LastCheckpointError("x")) == 75
    assert exit_code(KeyError("x")) == 1


@pytest.mark.parametrize("early", [True, False])
def test_where_nothing_is_trained_a_signal_ends_a_rank_also_one_that_came_before(early):
    code = f"""
import os, signal, time
from hpcrec.comm import failure
failure.watch()
if {early}:
    os.kill(os.getpid(), signal.SIGUSR1)
failure.end_by_signals()
print("lives", flush=True)
os.kill(os.getpid(), signal.SIGUSR1)
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -(signal.SIGTERM if early else signal.SIGUSR1)
    assert done.stdout == ("" if early else "lives\n")


def test_stop_signal_sets_a_flag_and_the_second_interrupt_is_the_default():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)
    with StopSignal() as stop:
        assert not stop.requested
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert stop.requested
        assert stop.name == "SIGUSR1"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)) == before
