"""What ranks of a host do in memory that they share: meeting, and copies of messages; here by threads of a process."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hpcrec.comm import sizes
from hpcrec.kernels.native_module import loaded

UNIT = sizes.UNIT_BYTES
SOON_NS, LONG_NS = 1_000_000, 10_000_000_000
RELAY = 2


def phase(words: Any, parties: int, place: int, looks_ns: int = 0) -> Any:
    return loaded.Phase(loaded.HostMessages(parties, list(range(parties)), place), words, looks_ns)


@pytest.mark.parametrize("looks_ns", [0, 20_000])
@pytest.mark.parametrize("parties", [1, 2, 5])
def test_nobody_is_a_meeting_ahead(parties: int, looks_ns: int) -> None:
    words, times, wrong = np.zeros(4, np.uint32), np.zeros(parties, np.int64), list[str]()

    def meets(number: int) -> None:
        meeting = phase(words, parties, number, looks_ns)
        for turn in range(1, 301):
            times[number] = turn
            if not meeting.arrive():
                while not meeting.wait(SOON_NS):
                    pass
            if times.min() < turn or times.max() > turn + 1:
                wrong.append(f"{number} at {turn}: {times.tolist()}")

    in_threads(meets, parties)
    assert not wrong and words.tolist() == [0, 300, 0, 0]


def in_threads(what: Callable[[int], None], parties: int) -> None:
    """Calls it in as many threads, with the number of each; an error of any of them is raised."""
    with ThreadPoolExecutor(parties) as pool:
        for called in [pool.submit(what, number) for number in range(parties)]:
            called.result()


def test_who_waits_is_told_when_the_time_is_over() -> None:
    words = np.zeros(4, np.uint32)
    first, second = (phase(words, 2, place) for place in range(2))
    assert not first.arrive()
    began_s = time.monotonic()
    assert not first.wait(20_000_000)
    assert 0.01 < time.monotonic() - began_s < 5.0
    assert second.arrive() and first.wait(LONG_NS)


def test_who_sleeps_is_woken_by_the_last() -> None:
    """Long before the time is over."""
    words = np.zeros(4, np.uint32)
    first, second = (phase(words, 2, place) for place in range(2))
    assert not first.arrive()
    last = threading.Timer(0.1, second.arrive)
    last.start()
    began_s = time.monotonic()
    assert first.wait(LONG_NS)
    assert time.monotonic() - began_s < 5.0
    last.join()


DONE, MEETS, CROSSES, TAKEN, GROWN = range(5)
SIDES = (  # ranks of this host, of each of the others, places of its gates, and of who receives from each rank there
    ((1, 3, 4, 7, 8), ([0, 2], [5], [6, 9]), [1, 3, 1], [0, 1, 4, 2, 3]),
    ((0, 9), ([1, 2, 3, 4], [5, 6, 7, 8]), [0, 1], [0, 1, 0, 1, 1, 0, 1, 0]),  # all are gates
    ((6,), ([0, 1, 2], [3, 4, 5, 7, 8, 9]), [0, 0], [0] * 9),  # a rank by itself
    ((0, 2, 4, 6), ([1, 3, 5, 7, 8, 9],), [2], [0, 1, 2, 3, 0, 1]),
)


class Host:
    """Ranks of a host in threads, with what comes to it from others made up by who receives it."""

    def __init__(self, seed: int, n_phases: int) -> None:
        self.here, self.there, self.gates, self.takers = SIDES[seed % len(SIDES)]
        self.seed, self.words, here = seed, np.zeros(4, np.uint32), len(self.here)
        self.numbers = np.zeros((2, here, 30), np.int64)
        self.room = np.zeros((2, here, 4096), np.uint8)
        self.noted, self.relay = np.zeros((here, 10), np.int64), np.zeros((here, 16384), np.uint8)
        # Of a phase: whether by levels; bytes a rank has for each [L, 10] and gets from it, some of them large or 0.
        rng = np.random.default_rng(seed)
        self.levels = rng.random(n_phases) < 0.7
        most = rng.choice([1, 3, 8, 20, 40], (n_phases, 1, 1))
        hosts = np.zeros(10, np.int64)
        for host, ranks in enumerate(self.there):
            hosts[ranks] = host + 1
        asked = rng.random((2, n_phases, 4)) < 0.7  # whether anything crosses to each host and from it
        self.sent, self.got = (
            rng.integers(0, most, (n_phases, here, 10)) * asked[way][:, hosts][:, None] for way in range(2)
        )
        self.got[:, :, self.here] = self.sent[:, :, self.here].transpose(0, 2, 1)
        self.naps = rng.random((n_phases, here)) < 0.1

    def content(self, n: int, sender: int, receiver: int, n_bytes: int) -> np.ndarray:
        return np.random.default_rng([self.seed, n, sender, receiver]).integers(0, 256, n_bytes).astype(np.uint8)

    def messages(self, place: int) -> Any:
        messages = loaded.HostMessages(10, list(self.here), place)
        for at in range(len(self.here)):
            for side in range(2):
                messages.show(at, side, self.numbers[side, at], self.room[side, at])
            messages.show(at, RELAY, self.noted[at], self.relay[at])
        begins = np.cumsum([0] + [len(ranks) for ranks in self.there]).tolist()
        peers = [host != 2 for host in range(len(self.there))]
        messages.set_others(np.concatenate(self.there).tolist(), begins, self.gates, self.takers, peers, 4, 16)
        return messages

    def receive(self, place: int, n: int, receives: list[Any]) -> None:
        """Lays down what others send to this rank for the host, as their gates or peers write it."""
        at, there = 0, np.concatenate(self.there).tolist()
        for host, way, _ in receives:
            first = sum(len(ranks) for ranks in self.there[:host])
            every = range(first, first + len(self.there[host]))
            senders = [m for m in every if way == TOGETHER or self.takers[m] == place]
            if way == ALONE:
                continue
            for number, m in enumerate(senders):
                if way == PEERS or number == 0:
                    self.noted[place, there[m]] = at
                for to, rank in enumerate(self.here):
                    of = self.content(n, there[m], rank, int(self.got[n, to, there[m]]))
                    self.relay[place, at : at + len(of)] = of
                    at += len(of)

    def openings(self, n: int) -> int:
        """How often those who wait for what is through are let go: at once where not all goes by gates, and then."""
        if not self.levels[n]:
            return 0
        ways = list[tuple[int, bool]]()
        for host, ranks in enumerate(self.there):
            for bytes_LR, comes in ((self.sent[n], False), (self.got[n], True)):
                each, any_ = bytes_LR[:, ranks].sum() // (len(ranks) * len(self.here)), bool(bytes_LR[:, ranks].any())
                way = TOGETHER if each < 4 else PEERS if each < 16 and host != 2 else ALONE
                ways += [(way, comes)] * any_
        relayed = any(comes and way != ALONE for way, comes in ways)
        by_gates = relayed and all(way == TOGETHER for way, _ in ways)
        return 1 if by_gates or not relayed else 2


def phases_of(host: Host, place: int, halts: set[tuple[bool, tuple[int, ...]]]) -> None:
    """Goes through all phases as the rank at a place, and looks at what has come."""
    gone, me = loaded.Phase(host.messages(place), host.words, 0), host.here[place]
    for n in range(len(host.levels)):
        side, levels, sent_R, got_R = n % 2, bool(host.levels[n]), host.sent[n, place], host.got[n, place]
        parts = [host.content(n, me, to, int(sent_R[to])) for to in range(10)]
        host.room[side, place, : int(sent_R.sum())] = np.concatenate(parts)
        if host.naps[n, place]:
            time.sleep(0.002)
        assert gone.begin(side, host.numbers[side, place], sent_R, got_R, 1, levels) == (sent_R.sum(), got_R.sum())
        # Where there is much room the threads go at the same time: only then is Python's lock left.
        recv, came, halt = np.zeros(65536 if host.seed % 3 else int(got_R.sum()), np.uint8), list[int](), MEETS
        began_s = time.monotonic()
        while halt != DONE:
            assert time.monotonic() - began_s < 20.0, (n, place, came)
            if (halt := gone.go(recv, SOON_NS)) == CROSSES:
                host.receive(place, n, gone.plan()[1])
            came += [halt] * (halt != MEETS)
        halts.add((levels, tuple(came)))
        at_R = np.cumsum(got_R) - got_R
        alone = {rank for other, way, _ in gone.plan()[1] if way == ALONE for rank in host.there[other]}
        for sender in range(10):
            if sender in host.here or (levels and sender not in alone):
                wanted = host.content(n, sender, me, int(got_R[sender]))
                found = recv[at_R[sender] : at_R[sender] + len(wanted)]
                assert np.array_equal(found, wanted), (n, place, sender)
    assert gone.all_are_there()


@pytest.mark.parametrize("seed", range(12))
def test_phases_give_each_rank_what_it_was_sent(seed: int) -> None:
    """In any order of phases by levels and without, small and large, one way and both, with ranks that come late."""
    host, halts = Host(seed, 60), set[tuple[bool, tuple[int, ...]]]()
    in_threads(lambda place: phases_of(host, place, halts), len(host.here))
    assert halts >= {(False, (DONE,)), (True, (DONE,)), (True, (CROSSES, TAKEN, DONE))}
    openings = [host.openings(n) for n in range(60)]
    assert set(openings) == {0, 1, 2}, "phases by gates and others"
    assert host.words.tolist() == [0, 60, 0, sum(openings)]


def test_who_is_no_gate_sleeps_until_all_is_through() -> None:
    host = Host(3, 1)
    host.levels[:], host.sent[:], host.got[:] = True, 1, 1
    gone = [loaded.Phase(host.messages(place), host.words, 0) for place in range(4)]
    for place in range(4):
        gone[place].begin(0, host.numbers[0, place], host.sent[0, place], host.got[0, place], 1, True)
    recv = [np.zeros(10, np.uint8) for _ in range(4)]
    assert [gone[place].go(recv[place], 0) for place in (0, 1, 3)] == [MEETS] * 3
    assert gone[2].go(recv[2], 0) == CROSSES  # the gate, who comes last
    assert [gone[place].go(recv[place], 0) for place in (0, 1, 3)] == [MEETS] * 3
    assert gone[0].all_are_there(), "and waits for what is through all the same"
    host.receive(2, 0, gone[2].plan()[1])
    assert [gone[2].go(recv[2], 0) for _ in range(2)] == [TAKEN, DONE]
    assert [gone[place].go(recv[place], 0) for place in (0, 1, 3)] == [DONE] * 3
    for place in range(4):
        wanted = [host.content(0, sender, host.here[place], 1) for sender in range(10) if sender not in host.here]
        assert np.array_equal(recv[place][[1, 3, 5, 7, 8, 9]], np.concatenate(wanted))


@pytest.mark.parametrize("value", [-1, 2**62, -(2**62)])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_phase_with_numbers_that_lead_outside_ends(which: int, value: int) -> None:
    """Whatever a neighbour has written: by an error, or with what is there, within what was shown."""
    host = Host(3, 1)
    host.levels[:], host.sent[:], host.got[:] = True, 1, 1
    gone = [loaded.Phase(host.messages(place), host.words, 0) for place in range(4)]
    for place in range(4):
        gone[place].begin(0, host.numbers[0, place], host.sent[0, place], host.got[0, place], 1, True)
    host.numbers[0, 1, which * 10 : which * 10 + 10] = value
    recv, ended = np.zeros(10, np.uint8), set[int]()
    for _ in range(20):
        for place in range(4):
            try:
                if place not in ended and gone[place].go(recv, 0) in (DONE, GROWN):
                    ended.add(place)
            except (ValueError, RuntimeError) as error:
                assert str(error)
                ended.add(place)
    assert 1 in ended or 2 in ended


def test_what_has_not_begun_does_not_go_on() -> None:
    gone = phase(np.zeros(4, np.uint32), 1, 0)
    with pytest.raises(RuntimeError, match="has not begun"):
        gone.go(np.zeros(1, np.uint8), 0)
    one = np.ones(1, np.int64)
    assert min(gone.begin(0, np.zeros(3, np.int64), one, one, 64, False)) == -1
    with pytest.raises(RuntimeError, match="has not begun"):
        gone.go(np.zeros(1, np.uint8), 0)
    assert gone.begin(0, np.zeros(3, np.int64), 64 * one, 0 * one, 64, False) == (64, 0)


def shown(seed: int = 0, ranks: int = 6, local: tuple[int, ...] = (1, 4, 5), place: int = 1) -> tuple[Any, Any, Any]:
    """A host's messages: what is shown, its numbers [L, 3, R] and its bytes by place."""
    rng = np.random.default_rng(seed)
    messages = loaded.HostMessages(ranks, list(local), place)
    numbers_L3R, bytes_L = np.zeros((len(local), 3, ranks), np.int64), []
    for at in range(len(local)):
        sizes_R, gaps_R = rng.integers(0, 9, ranks), rng.integers(0, 3, ranks)
        numbers_L3R[at, 0] = np.cumsum(sizes_R + gaps_R) - sizes_R
        numbers_L3R[at, 1], numbers_L3R[at, 2] = sizes_R, rng.integers(0, 9, ranks)
        bytes_L.append(rng.integers(0, 256, int((sizes_R + gaps_R).sum())).astype(np.uint8))
        messages.show(at, 0, numbers_L3R[at].reshape(-1), bytes_L[at])
    return messages, numbers_L3R, bytes_L


def message(numbers_L3R: Any, bytes_L: Any, place: int, rank: int) -> np.ndarray:
    begin, n_bytes, _ = numbers_L3R[place, :, rank].tolist()
    return bytes_L[place][begin : begin + n_bytes]


@pytest.mark.parametrize("seed", range(5))
def test_copies_are_those_of_the_definition(seed: int) -> None:
    messages, numbers_L3R, bytes_L = shown(seed)
    there = np.array([0, 2, 3])
    for places, asked in ((range(3), -1), ([2], 2)):
        wanted = np.concatenate([message(numbers_L3R, bytes_L, at, rank) for at in places for rank in there])
        out = np.zeros(len(wanted), np.uint8)
        assert messages.pack(0, asked, there, out) == -1
        assert np.array_equal(out, wanted)
    wanted = np.concatenate([message(numbers_L3R, bytes_L, at, 4) for at in range(3)])
    sizes_R, at_R = np.zeros(6, np.int64), np.zeros(6, np.int64)
    sizes_R[[1, 4, 5]] = numbers_L3R[:, 1, 4]
    at_R[[1, 4, 5]] = np.cumsum(sizes_R[[1, 4, 5]]) - sizes_R[[1, 4, 5]]
    recv = np.zeros(len(wanted), np.uint8)
    assert messages.take(0, recv, at_R, sizes_R) == -1
    assert np.array_equal(recv, wanted)


def others(messages: Any, *, peer_bytes: int, alone_bytes: int, peers: bool = True) -> None:
    """Ranks 0, 2 and 3 on two hosts; the gates are the last rank here and the one at place 1."""
    messages.set_others([0, 2, 3], [0, 1, 3], [2, 1], [0, 1, 2], [peers, peers], peer_bytes, alone_bytes)


HOSTS = ([0], [2, 3])
TOGETHER, PEERS, ALONE = 1, 2, 3
LIMITS = {TOGETHER: (1 << 40, 1 << 41), PEERS: (0, 1 << 40), ALONE: (0, 0)}


@pytest.mark.parametrize("way", LIMITS)
@pytest.mark.parametrize("seed", range(5))
def test_a_plan_is_that_of_the_definition(seed: int, way: int) -> None:
    messages, numbers_L3R, _ = shown(seed)
    peer_bytes, alone_bytes = LIMITS[way]
    others(messages, peer_bytes=peer_bytes, alone_bytes=alone_bytes)
    sends, receives, relayed = messages.plan(0)
    wanted: tuple[list[Any], list[Any]] = ([], [])
    for host, ranks in enumerate(HOSTS):
        for which, tasks in ((1, wanted[0]), (2, wanted[1])):
            own, all_here = int(numbers_L3R[1, which, ranks].sum()), int(numbers_L3R[:, which, ranks].sum())
            if way == TOGETHER:
                tasks += [(host, way, all_here)] * (host == 1 and all_here > 0)
            elif way == PEERS and which == 2:
                tasks += [(host, way, own)] * (host == 1 and all_here > 0)  # what comes from rank 2
            else:
                tasks += [(host, way, own)] * (own > 0)
    assert (sends, receives) == wanted
    assert relayed == (way != ALONE and numbers_L3R[:, 2, [0, 2, 3]].sum() > 0)
    assert [messages.due(m) for m in range(3)] == numbers_L3R[:, 2, [0, 2, 3]].sum(axis=0).tolist()


def test_bytes_from_rank_to_rank_say_how_they_cross() -> None:
    messages, numbers_L3R, bytes_L = shown()
    numbers_L3R[:, 1], numbers_L3R[:, 2] = 8, 7
    for at in range(3):
        messages.show(at, 0, numbers_L3R[at].reshape(-1), bytes_L[at])
    for peer_bytes, alone_bytes, peers, out, in_ in (
        (9, 10, True, TOGETHER, TOGETHER),
        (8, 9, True, PEERS, TOGETHER),
        (7, 8, True, ALONE, PEERS),
        (8, 9, False, ALONE, TOGETHER),
    ):
        others(messages, peer_bytes=peer_bytes, alone_bytes=alone_bytes, peers=peers)
        sends, receives, _ = messages.plan(0)
        assert ({way for _, way, _ in sends}, {way for _, way, _ in receives}) == ({out}, {in_})


@pytest.mark.parametrize("way", [TOGETHER, PEERS])
@pytest.mark.parametrize("seed", range(5))
def test_relayed_copies_are_those_of_the_definition(seed: int, way: int) -> None:
    messages, numbers_L3R, _ = shown(seed)
    peer_bytes, alone_bytes = LIMITS[way]
    others(messages, peer_bytes=peer_bytes, alone_bytes=alone_bytes)
    messages.plan(0)
    there, rng = np.array([0, 2, 3]), np.random.default_rng(seed)
    due_LM = numbers_L3R[:, 2, there]
    by = [2, 1, 1] if way == TOGETHER else [0, 1, 2]
    cells = {(m, at): rng.integers(0, 256, due_LM[at, m]).astype(np.uint8) for m in range(3) for at in range(3)}
    for relay in range(3):
        noted, parts, end = np.zeros(6, np.int64), [np.zeros(5, np.uint8)], 5
        for m in range(3):
            if by[m] != relay:
                continue
            if way == PEERS or m < 2:  # the first of its host
                noted[there[m]] = end
            parts += [cells[m, at] for at in range(3)]
            end += int(due_LM[:, m].sum())
        messages.show(relay, RELAY, noted, np.concatenate(parts))
    sizes_R, at_R = np.zeros(6, np.int64), np.zeros(6, np.int64)
    sizes_R[there] = due_LM[1]
    at_R[there] = np.cumsum(due_LM[1]) - due_LM[1]
    recv = np.zeros(int(sizes_R.sum()), np.uint8)
    assert messages.take_relayed(0, recv, at_R, sizes_R) == -1
    assert np.array_equal(recv, np.concatenate([cells[m, 1] for m in range(3)]))


def test_a_side_that_has_grown_is_named() -> None:
    messages, numbers_L3R, bytes_L = shown()
    there, n_bytes = np.array([0, 2, 3]), int(numbers_L3R[:, 1, [0, 2, 3]].sum())
    messages.show(2, 0, numbers_L3R[2].reshape(-1), bytes_L[2][:1])
    out = np.zeros(n_bytes, np.uint8)
    assert messages.pack(0, -1, there, out) == 2
    messages.show(2, 0, numbers_L3R[2].reshape(-1), bytes_L[2])
    assert messages.pack(0, -1, there, out) == -1


@pytest.mark.parametrize("value", [-1, 2**62, -(2**62)])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_numbers_that_lead_outside_are_refused(which: int, value: int) -> None:
    """Whatever another process has written: nothing is read or written outside what was shown."""
    messages, numbers_L3R, bytes_L = shown()
    numbers_L3R[2, which, :] = value
    messages.show(2, 0, numbers_L3R[2].reshape(-1), bytes_L[2])
    others(messages, peer_bytes=1 << 40, alone_bytes=1 << 41)
    messages.show(0, RELAY, np.full(6, value), bytes_L[0])
    messages.show(1, RELAY, np.zeros(6, np.int64), bytes_L[1])
    messages.show(2, RELAY, np.full(6, 3), bytes_L[2])
    messages.plan(0)
    there, recv, sizes_R = np.array([0, 2, 3]), np.zeros(64, np.uint8), np.full(6, 4)
    calls = [
        lambda: messages.pack(0, -1, there, recv),
        lambda: messages.take(0, recv, np.arange(6) * 4, sizes_R),
        lambda: messages.take_relayed(0, recv, np.arange(6) * 4, sizes_R),
        lambda: messages.take(0, recv, np.full(6, value), sizes_R),
        lambda: messages.take(0, recv, np.arange(6), np.full(6, value)),
    ]
    for call in calls:
        try:
            assert call() in (-1, 0, 1, 2)
        except ValueError as error:
            assert str(error)


def test_what_cannot_be_is_refused() -> None:
    messages, _, _ = shown()
    others(messages, peer_bytes=1, alone_bytes=2)
    there, recv, of_ranks = np.array([0]), np.zeros(64, np.uint8), np.zeros(6, np.int64)
    begun = loaded.Phase(messages, np.zeros(4, np.uint32), 0)
    calls = [
        lambda: loaded.HostMessages(6, [1, 4, 6], 0),
        lambda: loaded.HostMessages(6, [1, 4], 2),
        lambda: loaded.HostMessages(6, [], 0),
        lambda: messages.show(3, 0, np.zeros(18, np.int64), recv),
        lambda: messages.show(0, 3, np.zeros(18, np.int64), recv),
        lambda: messages.show(0, 0, np.zeros(17, np.int64), recv),
        lambda: messages.plan(2),
        lambda: messages.plan(1),  # not shown
        lambda: messages.due(-1),
        lambda: messages.due(3),
        lambda: messages.set_others([6], [0, 1], [0], [0], [True], 1, 2),
        lambda: messages.set_others([0], [0, 1], [3], [0], [True], 1, 2),
        lambda: messages.set_others([0], [0, 1], [0], [3], [True], 1, 2),
        lambda: messages.set_others([0], [0, 2], [0], [0], [True], 1, 2),
        lambda: messages.set_others([0, 2], [0, 2, 2], [0, 0], [0, 0], [True, True], 1, 2),
        lambda: messages.set_others([0], [0, 1], [0, 0], [0], [True], 1, 2),
        lambda: messages.pack(0, 3, there, recv),
        lambda: messages.pack(0, 0, np.array([-1]), recv),
        lambda: messages.pack(0, 0, there, recv),  # longer than the message
        lambda: messages.take(0, recv, of_ranks[:5], of_ranks),
        lambda: messages.take_relayed(0, recv, of_ranks, of_ranks[:5]),
        lambda: messages.take_relayed(2, recv, of_ranks, of_ranks),
        lambda: loaded.Phase(messages, np.zeros(3, np.uint32), 0),
        lambda: begun.begin(2, np.zeros(18, np.int64), of_ranks, of_ranks, 1, False),
        lambda: begun.begin(0, np.zeros(17, np.int64), of_ranks, of_ranks, 1, False),
        lambda: begun.begin(0, np.zeros(18, np.int64), of_ranks[:5], of_ranks, 1, False),
        lambda: begun.begin(0, np.zeros(18, np.int64), of_ranks, of_ranks[:5], 1, False),
        lambda: begun.begin(0, np.zeros(18, np.int64), of_ranks, of_ranks, 0, False),
    ]
    for number, call in enumerate(calls):
        try:
            call()
        except ValueError as error:
            assert str(error), number
        else:
            raise AssertionError(f"call {number} is not refused")


@pytest.mark.parametrize("seed", range(10))
def test_sizes_and_counts_are_those_of_the_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    bytes_R = UNIT * rng.integers(0, 4, 7)
    if seed % 3 == 2:
        bytes_R[seed % 7] += 1 if seed % 2 else 8
    room, to, crosses_R = rng.integers(0, 256, int(bytes_R.sum()) + 32), rng.permutation(9)[:7], rng.integers(0, 2, 9)
    messages = None if seed % 2 else rng.integers(0, 3, 7)

    def found() -> list[Any]:
        at_R, end = sizes.places(bytes_R)
        cleared = room.astype(np.uint8)
        if end >= 0:
            assert sizes.clear_padding(cleared, bytes_R) == end
        if end > 0:
            short = cleared[: end - 1].copy()
            assert sizes.clear_padding(short, bytes_R) == end and np.array_equal(short, cleared[: end - 1])
        counts = np.arange(4)
        counted = sizes.count_messages(bytes_R, messages, seed % 4 - 1, to, crosses_R, int(to[3]), counts)
        return [at_R.tolist() if end >= 0 else [], end, cleared.tolist(), counts.tolist(), counted]

    assert sizes._NATIVE is loaded
    native = found()
    monkeypatch.setattr(sizes, "_NATIVE", None)
    assert native == found() and (native[1] < 0) == (seed % 3 == 2)


def test_sizes_that_cannot_be_are_refused() -> None:
    two, counts = np.array([UNIT, UNIT]), np.zeros(4, np.int64)
    calls = [
        lambda: loaded.places(two, UNIT, np.zeros(1, np.int64)),
        lambda: loaded.places(two, 0, np.zeros(2, np.int64)),
        lambda: loaded.clear_padding(np.zeros(2 * UNIT, np.uint8), -two, UNIT),
        lambda: loaded.clear_padding(np.zeros(2 * UNIT, np.uint8), two // 2, UNIT),
        lambda: loaded.count_messages(two, None, -1, np.array([0, 2]), np.zeros(2, np.int64), 0, counts),
        lambda: loaded.count_messages(two, two[:1], -1, np.array([0, 1]), np.zeros(2, np.int64), 0, counts),
        lambda: loaded.count_messages(two, None, -1, np.array([0, 1]), np.zeros(2, np.int64), 0, counts[:3]),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(ValueError, match=r"\w+(\[|: )"):
            call()
            raise AssertionError(number)
    assert loaded.places(np.array([-UNIT]), UNIT, np.zeros(1, np.int64)) == -1
    assert loaded.places(np.array([2**62, 2**62]), UNIT, np.zeros(2, np.int64)) == -1
