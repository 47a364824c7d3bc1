"""Parts of a thread's time exclude each other and add up to its wall clock; other threads are told of apart."""

import threading
import time

import pytest

from hpcrec.clock import IDLES, WAITS, WORKS, Idles, Waits, here
from hpcrec.comm.progress import Lane, Waiting
from hpcrec.training.timer import PhaseTimer, Times
from tests.cost import times_a_plain_block

SHORT_S, LONG_S = 0.02, 0.4
LATE_S = 0.5  # that a sleep may take longer on a busy machine


def adds_up(times: Times) -> None:
    parts = [second for seconds in times.parts.values() for second in seconds]
    assert min(parts) >= 0 and times.unaccounted_s >= 0
    assert sum(parts) + times.unaccounted_s == pytest.approx(times.whole_s, abs=1e-6)


def test_a_phase_within_another_stops_the_clock_of_the_outer_one():
    began_s, timer = time.monotonic(), PhaseTimer()
    with timer("evaluate"):
        time.sleep(SHORT_S)
        with timer("values"), Waits():
            time.sleep(LONG_S)
        with timer("values"):
            time.sleep(SHORT_S)
    time.sleep(SHORT_S)
    times, wall_s = timer.times(), time.monotonic() - began_s
    adds_up(times)
    assert set(times.parts) == {"evaluate", "evaluate/values"}
    outer, inner = times.parts["evaluate"], times.parts["evaluate/values"]
    assert SHORT_S <= outer[WORKS] < SHORT_S + LATE_S and outer[WAITS] == outer[IDLES] == 0
    assert LONG_S <= inner[WAITS] < LONG_S + LATE_S and SHORT_S <= inner[WORKS] < SHORT_S + LATE_S
    assert times.unaccounted_s >= SHORT_S
    assert times.whole_s == pytest.approx(wall_s, abs=LATE_S) and times.whole_s <= wall_s


@pytest.mark.parametrize("how", ["collective", "thread", "queue"])
def test_waits_of_every_kind_are_no_work(how):
    timer, lane = PhaseTimer(), Lane("main", (0, 1))
    with timer("gradients"):
        with {"collective": lambda: lane.inside("gradients"), "thread": Waiting, "queue": Waits}[how]():
            time.sleep(LONG_S)
        time.sleep(SHORT_S)
    times = timer.times()
    adds_up(times)
    worked, waited, idled = times.parts["gradients"]
    assert waited >= LONG_S and SHORT_S <= worked < LONG_S and idled == 0


def test_a_rank_that_works_for_a_collective_does_not_wait():
    timer, lane = PhaseTimer(), Lane("main", (0, 1))
    with timer("checkpoint"):
        lane.works("checkpoint")
        time.sleep(SHORT_S)
        with lane.inside("checkpoint"):
            time.sleep(SHORT_S)
        lane.works("checkpoint")
        time.sleep(SHORT_S)
        lane.rests()
    times = timer.times()
    adds_up(times)
    assert times.parts["checkpoint"][WORKS] >= 2 * SHORT_S and times.parts["checkpoint"][WAITS] >= SHORT_S


def test_waits_within_waits_count_once_and_pauses_are_idle():
    timer = PhaseTimer()
    with timer("checkpoint"):
        with Waiting():
            with Lane("main", (0, 1)).inside("control"):
                time.sleep(SHORT_S)
            with timer("route"):  # is done meanwhile
                time.sleep(SHORT_S)
        with Idles():
            time.sleep(SHORT_S)
    times = timer.times()
    adds_up(times)
    worked, waited, idled = times.parts["checkpoint"]
    assert SHORT_S <= waited < times.whole_s - 2 * SHORT_S + 1e-3 and idled >= SHORT_S and worked < SHORT_S
    assert times.parts["checkpoint/route"][WORKS] >= SHORT_S and times.parts["checkpoint/route"][WAITS] == 0


def test_an_error_ends_a_phase_and_what_it_waited_in():
    timer = PhaseTimer()
    with pytest.raises(KeyError), timer("values"), Waits():
        time.sleep(SHORT_S)
        raise KeyError
    assert (here().part, here().kind) == (here().root, WORKS)
    times = timer.times()
    adds_up(times)
    assert times.parts["values"][WAITS] >= SHORT_S


def test_what_is_under_way_is_told():
    timer = PhaseTimer()
    with timer("values"), Waits():
        time.sleep(SHORT_S)
        times = timer.times()
    adds_up(times)
    assert times.parts["values"][WAITS] >= SHORT_S and times.unaccounted_s < SHORT_S


def test_other_threads_are_told_of_by_name_and_never_added():
    timer = PhaseTimer()

    def work():
        for _ in range(200):
            with timer("route"):
                pass
        with timer("route"), Waits():
            time.sleep(LONG_S)

    threads = [threading.Thread(target=work, name=f"route_{number}") for number in range(4)]
    for thread in threads:
        thread.start()
    with timer("wait"), Waits():
        for thread in threads:
            thread.join()
    times = timer.times()
    adds_up(times)
    assert set(times.parts) == {"wait"} and times.whole_s < 4 * LONG_S
    route = times.beside["route"]["route"]
    assert route[WAITS] >= 4 * LONG_S and 0 < route[WORKS] < LONG_S
    again = threading.Thread(target=work, name="route_1")  # one that follows on another goes on with what that has
    again.start()
    again.join()
    assert timer.times().beside["route"]["route"][WAITS] >= 5 * LONG_S
    assert timer.seconds()["route"] >= 5 * LONG_S


def test_a_timer_tells_of_what_came_since_it_was_made():
    with PhaseTimer()("forward"):
        time.sleep(LONG_S)
    timer = PhaseTimer()
    with timer("forward"):
        time.sleep(SHORT_S)
    times = timer.times()
    adds_up(times)
    assert SHORT_S <= times.parts["forward"][WORKS] <= times.whole_s < LONG_S
    assert timer.times().whole_s > times.whole_s


def test_a_phase_costs_about_a_microsecond():
    timer = PhaseTimer()
    assert times_a_plain_block(lambda: timer("forward")) < 15  # 3 on an idle core
