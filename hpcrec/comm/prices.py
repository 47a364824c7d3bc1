"""What messages of all ranks to all cost by either path: seconds of a phase, and of a byte, measured on these ranks.

Between hosts messages go flat or by levels (``Collectives.by_levels``), inside a host the same way by both. Messages
with next to nothing in them, and some of each size that crosses in a way of its own by levels (of one rank for all, of
each rank to a peer, of each rank to each) are sent a few times, and times of the slowest rank are taken: every rank has
the same prices. Where ranks are so many that messages of a size would be more than ``MOST_BYTES`` of each, a byte of
them costs what one of the next smaller size does. Knows bytes, not what they mean.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hpcrec.comm.collectives import Collectives
from hpcrec.comm.levels import ALONE_BYTES, PEER_BYTES
from hpcrec.comm.sizes import UNIT_BYTES
from hpcrec.comm.world import World
from hpcrec.types import Ints

PATHS = ("flat", "levels")
REPEATS, WARMUP = 5, 1
MOST_BYTES = 4 << 20  # that a rank sends
FEWEST_UNITS = 16  # of a message, however many ranks there are: else a byte would have no price
WORDS = 4  # of numbers, to each rank
_SIZES = (PEER_BYTES // 2, 3 * PEER_BYTES, 2 * ALONE_BYTES)  # of a message that crosses in each of the three ways


@dataclass(frozen=True)
class Prices:
    """Of one path.

    Attributes
    ----------
    control_s : float
        Of numbers that all ranks tell each other.
    phase_s : float
        Of a phase, whatever crosses in it.
    far_byte_s : float
        Of a byte to another host, of those that a host sends, where ranks have much for each other.
    near_byte_s : float
        Of a byte inside a host, of those that its ranks send each other.
    meeting_s : float
        Of a phase in which ranks of a host alone send something, whatever it is.
    small_far_byte_s, peer_far_byte_s : float or None
        Of a byte to another host where ranks have less than ``levels.PEER_BYTES`` for each other, and where they have
        less than ``levels.ALONE_BYTES``; None: as of others.
    """

    control_s: float
    phase_s: float
    far_byte_s: float
    near_byte_s: float
    meeting_s: float
    small_far_byte_s: float | None = None
    peer_far_byte_s: float | None = None

    def step_s(self, phases: int, meetings: int, far_bytes: Sequence[float], near_bytes: float, pairs: float) -> float:
        """Of so many phases, and meetings of hosts; a host sends so many bytes, and its ranks so many to each other.

        ``far_bytes`` are those of each phase, ``pairs`` how many there are of a rank of the host and one of another.
        """
        fixed_s = self.control_s + phases * self.phase_s + meetings * self.meeting_s
        far_s = sum(n_bytes * self._far_byte_s(n_bytes / pairs) for n_bytes in far_bytes)
        return fixed_s + far_s + near_bytes * self.near_byte_s

    def _far_byte_s(self, pair_bytes: float) -> float:
        own = self.small_far_byte_s if pair_bytes < PEER_BYTES else self.peer_far_byte_s
        return self.far_byte_s if own is None or pair_bytes >= ALONE_BYTES else own

    def as_dict(self) -> dict[str, float]:
        """For records."""
        return asdict(self)


def measure(world: World) -> dict[str, Prices]:
    """Those of each path, where messages go by levels, else of the flat one; collective, on the main thread.

    To be called before there are steps. Leaves the path as it was.

    What it sends is in no ledger.
    """
    with world.ledger.paused():
        return _measured(world)


def _measured(world: World) -> dict[str, Prices]:
    topology, before = world.topology, world.by_levels
    meeting_s = _meeting_s(world)
    host_R = np.array(topology.host_of)
    far_R = host_R != host_R[topology.rank]
    most = max(FEWEST_UNITS * UNIT_BYTES, MOST_BYTES // topology.size // UNIT_BYTES * UNIT_BYTES)
    sizes = [size for size in _SIZES if size <= most] or [min(most, _SIZES[0])]
    found = dict[str, Prices]()
    for path in PATHS if before else PATHS[:1]:  # else there is one
        world.take_path(path)
        small_s = _seconds(world, np.full(topology.size, UNIT_BYTES))
        near_s = _seconds(world, np.where(far_R, UNIT_BYTES, sizes[-1]))
        hosts = [int((host_R == host).sum()) for host in sorted(set(topology.host_of))]
        pairs = max(n * (topology.size - n) for n in hosts)
        near_byte_s = _slope(near_s - small_s, max(n * (n - 1) for n in hosts) * (sizes[-1] - UNIT_BYTES))
        far_s = [
            _slope(_seconds(world, np.where(far_R, size, UNIT_BYTES)) - small_s, pairs * (size - UNIT_BYTES))
            for size in sizes
        ]
        # Of few bytes the slope may be noise: no smaller message's byte is cheaper than a larger one's.
        far_s = [max(far_s[i:]) for i in range(len(far_s))]
        small, peers, large = (far_s[min(i, len(far_s) - 1)] for i in range(len(_SIZES)))
        control_s = _slowest_s(
            world, lambda: world.main.alltoall(np.zeros((topology.size, WORDS), np.int64), "control")
        )
        found[path] = Prices(control_s, small_s, large, near_byte_s, meeting_s, small, peers)
    world.take_path(PATHS[before])
    return found


def _slope(more_s: float, n_bytes: int) -> float:
    return max(more_s, 0.0) / n_bytes if n_bytes else 0.0


def _meeting_s(world: World) -> float:
    took = np.zeros(REPEATS)
    for ranks in (world.host_dense, world.host_owners):
        if ranks is not None:
            took = np.maximum(took, _timed(ranks, _sends(ranks, np.full(ranks.size, UNIT_BYTES))))
    return float(np.median(world.main.allreduce(took, op="max")))


def _seconds(world: World, bytes_R: Ints) -> float:
    return _slowest_s(world, _sends(world.main, bytes_R))


def _sends(ranks: Collectives, bytes_R: Ints) -> Callable[[], object]:
    """As many bytes come as go, for ranks are alike to each other."""

    def send() -> object:
        message = ranks.message(bytes_R, np.uint8)
        return ranks.alltoallv(message, bytes_R.copy(), bytes_R.copy(), "control")

    return send


def _slowest_s(world: World, call: Callable[[], object]) -> float:
    """Of the slowest rank, the median of repeats."""
    return float(np.median(world.main.allreduce(np.array(_timed(world.main, call)), op="max")))


def _timed(ranks: Collectives, call: Callable[[], object]) -> list[float]:
    took = list[float]()
    for repeat in range(WARMUP + REPEATS):
        ranks.barrier()
        began_s = time.perf_counter()
        call()
        if repeat >= WARMUP:
            took.append(time.perf_counter() - began_s)
    return took
