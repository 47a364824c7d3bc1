"""Checks of what crosses between ranks: contents of an all-to-all, speed of every pair, dense sums, clocks."""

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from hpcrec.comm.probe import pair_rounds, random_bytes
from hpcrec.comm.sizes import UNIT_BYTES
from hpcrec.dense.allreduce import make_allreduce
from hpcrec.doctor.base import Finding, Site, fail, ok, warn
from hpcrec.errors import MissingError
from hpcrec.units import KiB, MiB, format_bytes

SIZES_BYTES = (KiB, 64 * KiB, 4 * MiB)  # to each rank
_BY_MPI, _BY_MEMORY = "MPI", "shared memory"
_ROUND_BYTES = 256 * MiB  # most that a rank sends in one all-to-all, so that many ranks do not need much memory
_REPEATS = {KiB: 20, 64 * KiB: 10, 4 * MiB: 3}
_SLOW = 3.0  # times slower than the median of pairs of the same kind
_SHOWN_RANKS = 8  # up to which every pair is shown
_KEPT_RANKS = 64  # up to which every pair is in the JSON
_SUM_BYTES = MiB
_SKEW_S = 0.5


# ---- contents --------------------------------------------------------------------------------------------------------


def measure_contents(site: Site) -> dict[str, Any]:
    """Ranks from which an all-to-all brought something else than they sent, and how long it took, by size."""
    probe, wrong = site.probe, []
    took_s: dict[str, dict[int, float]] = {_BY_MPI: {}}
    if len(set(probe.host_of)) < probe.size and not probe.without_windows:
        took_s[_BY_MEMORY] = {}
    for (way, times_s), size_bytes in itertools.product(took_s.items(), SIZES_BYTES):
        n_bytes = max(min(size_bytes, _ROUND_BYTES // probe.size) // UNIT_BYTES, 1) * UNIT_BYTES
        send = np.concatenate([random_bytes(n_bytes, _seed(probe.rank, to, n_bytes)) for to in range(probe.size)])
        sizes_R = np.full(probe.size, n_bytes, np.int64)
        for _ in range(2):  # the first one sets up connections
            probe.barrier()
            began_s = time.perf_counter()
            recv = probe.alltoallv(send, sizes_R, sizes_R, windows=way == _BY_MEMORY)
            times_s[n_bytes] = time.perf_counter() - began_s
        for source in range(probe.size):
            expected = random_bytes(n_bytes, _seed(source, probe.rank, n_bytes))
            if not np.array_equal(recv[source * n_bytes : (source + 1) * n_bytes], expected):
                wrong.append((source, n_bytes, way))
    return {"wrong": wrong, "took_s": took_s, "without_windows": probe.without_windows}


def _seed(source: int, to: int, n_bytes: int) -> int:
    return (source << 40) + (to << 20) + n_bytes


def judge_contents(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """What arrives is what was sent."""
    wrong = [(source, to, n, way) for to, a in enumerate(answers) for source, n, way in a["wrong"]]
    if wrong:
        shown = "; ".join(
            f"{site.who([s])} to {site.who([t])}, {format_bytes(n)} by {way}" for s, t, n, way in wrong[:4]
        )
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        yield fail(
            "alltoallv",
            f"contents differ from what was sent: {shown}{more}",
            "this MPI or network corrupts data: try another transport (OMPI_MCA_pml, UCX_TLS), and tell the site"
            if any(way == _BY_MPI for *_, way in wrong)
            else "memory of these hosts is at fault; exchange.windows = false may avoid it; tell the site",
        )
        return
    said = []
    for way, times in answers[0]["took_s"].items():
        took = {n: max(a["took_s"][way][n] for a in answers) for n in times}
        said.append(f"by {way} " + ", ".join(f"{format_bytes(n)} in {1e3 * t:.2f} ms" for n, t in took.items()))
    if without := answers[0]["without_windows"]:
        said.append(f"not by {_BY_MEMORY}: {without}")
    yield ok("alltoallv", "contents right; to each rank " + "; ".join(said))


# ---- pairs -----------------------------------------------------------------------------------------------------------


def measure_pairs(site: Site) -> dict[int, list[float]]:
    """Seconds to swap with each other rank, by size: all pairs, then those that seem slow once more, alone.

    In each round of a tournament every rank is in one pair at most. Other work on a host makes a pair slow for a
    moment, so the least of some tries counts, and a slow pair must be slow twice.
    """
    probe = site.probe
    buffers = {n: (np.zeros(n, np.uint8), np.zeros(n, np.uint8)) for n in SIZES_BYTES}
    best_s = {n: [0.0] * probe.size for n in SIZES_BYTES}
    for peer in pair_rounds(probe.size, probe.rank):
        probe.barrier()
        if peer is None:
            continue
        for n_bytes in SIZES_BYTES:
            best_s[n_bytes][peer] = _swap_s(site, peer, *buffers[n_bytes])
    everyone = probe.share(best_s)
    for n_bytes, one, other in slow_pairs(everyone, probe.host_of):
        probe.barrier()
        if probe.rank in (one, other):
            peer = other if probe.rank == one else one
            best_s[n_bytes][peer] = min(best_s[n_bytes][peer], _swap_s(site, peer, *buffers[n_bytes]))
    return best_s


def _swap_s(site: Site, peer: int, send: Any, recv: Any) -> float:
    tries = []
    for _ in range(_REPEATS[len(send)] + 1):  # the first one sets up the connection
        began_s = time.perf_counter()
        site.probe.swap(peer, send, recv)
        tries.append(time.perf_counter() - began_s)
    return min(tries[1:])


def slow_pairs(best_s: Sequence[dict[int, list[float]]], host_of: Sequence[int]) -> list[tuple[int, int, int]]:
    """(bytes, rank, rank) of pairs much slower than the median of pairs of their kind: same host, or across hosts."""
    slow = []
    for n_bytes in SIZES_BYTES:
        for across in (False, True):
            pairs = _pairs(host_of, across)
            times = {(a, b): max(best_s[a][n_bytes][b], best_s[b][n_bytes][a]) for a, b in pairs}
            usual_s = statistics.median(times.values()) if len(times) > 1 else 0.0
            slow += [(n_bytes, a, b) for (a, b), t in times.items() if usual_s and t > _SLOW * usual_s]
    return slow


def _pairs(host_of: Sequence[int], across: bool) -> list[tuple[int, int]]:
    size = len(host_of)
    return [(a, b) for a in range(size) for b in range(a + 1, size) if (host_of[a] != host_of[b]) == across]


def judge_pairs(answers: Sequence[dict[int, list[float]]], site: Site) -> Iterator[Finding]:
    """No pair is much slower than others of its kind."""
    small, large = SIZES_BYTES[0], SIZES_BYTES[-1]
    if len(answers) == 1:
        return
    host_of = site.probe.host_of
    worst: dict[tuple[int, int], tuple[int, float]] = {}
    for n_bytes, one, other in slow_pairs(answers, host_of):
        took_s = max(answers[one][n_bytes][other], answers[other][n_bytes][one])
        worst[one, other] = (n_bytes, took_s)
    for (one, other), (n_bytes, took_s) in list(worst.items())[:8]:
        kind = "across hosts" if host_of[one] != host_of[other] else "on one host"
        usual_s = statistics.median(
            max(answers[a][n_bytes][b], answers[b][n_bytes][a]) for a, b in _pairs(host_of, kind == "across hosts")
        )
        yield warn(
            "slow pair",
            f"{site.who([one])} and {site.who([other])}: {format_bytes(n_bytes)} in {1e6 * took_s:,.0f} us, other "
            f"pairs {kind} {1e6 * usual_s:,.0f} us",
            "look at the link or the host that the slow pairs share (cable, other jobs, which interface MPI uses: "
            "OMPI_MCA_btl_tcp_if_include, UCX_NET_DEVICES)",
        )
    parts = []
    for across, kind in ((False, "on one host"), (True, "across hosts")):
        pairs = _pairs(host_of, across)
        if pairs:
            us = [1e6 * answers[a][small][b] for a, b in pairs]
            gbs = [2 * large / answers[a][large][b] / 1e9 for a, b in pairs]
            parts.append(
                f"{kind} {statistics.median(us):,.1f} us (most {max(us):,.1f}) for 1 KiB, "
                f"{statistics.median(gbs):.2f} GB/s (least {min(gbs):.2f}) both ways"
            )
    kept = {str(n): [a[n] for a in answers] for n in SIZES_BYTES} if len(answers) <= _KEPT_RANKS else {}
    if not worst:
        yield ok("pairs", "; ".join(parts) + _matrix(answers), seconds=kept)
    else:
        yield ok("other pairs", "; ".join(parts) + _matrix(answers), seconds=kept)


def _matrix(answers: Sequence[dict[int, list[float]]]) -> str:
    """Latency (lower left, us) and bandwidth (upper right, GB/s) of every pair."""
    size = len(answers)
    if not 2 < size <= _SHOWN_RANKS:
        return ""
    lines = [
        "      below the diagonal us for 1 KiB, above GB/s",
        "      rank " + "".join(f"{r:>9}" for r in range(size)),
    ]
    for a in range(size):
        cells = []
        for b in range(size):
            if a > b:
                cells.append(f"{1e6 * answers[a][SIZES_BYTES[0]][b]:.1f}")
            else:
                cells.append("-" if a == b else f"{2 * SIZES_BYTES[-1] / answers[a][SIZES_BYTES[-1]][b] / 1e9:.2f}")
        lines.append(f"      {a:>4} " + "".join(f"{c:>9}" for c in cells))
    return "\n" + "\n".join(lines)


# ---- dense sums ------------------------------------------------------------------------------------------------------


def measure_sums(site: Site) -> dict[str, Any]:
    """The dense reducer on all ranks: set up, a sum checked and timed. Horovod first, unless another is configured."""
    wanted = _configured(site) or "horovod"
    levels = site.probe.share(site.probe.mpi["mpi_threads"])
    if wanted == "horovod" and set(levels) != {"multiple"}:
        why = "not tried: its thread sends while others do, which takes MPI_THREAD_MULTIPLE"
        return {"reducer": "mpi", "missing": why, **_summed(site, "mpi")}
    try:
        return {"reducer": wanted, **_summed(site, wanted)}
    except MissingError as error:  # on every rank alike: it is agreed on
        return {"reducer": "mpi", "missing": str(error), **_summed(site, "mpi")}


def _configured(site: Site) -> str | None:
    """The reducer that the configuration names, if it does."""
    return None if site.config is None else site.config.dense.reducer


def _summed(site: Site, name: str) -> dict[str, Any]:
    part = site.probe.everyone()
    began_s = time.perf_counter()
    allreduce = make_allreduce(name, part)
    set_up_s = time.perf_counter() - began_s
    took_s, right = [], True
    for number in range(3):
        flat = torch.full((_SUM_BYTES // 4,), float(part.rank + 1))
        part.barrier()
        began_s = time.perf_counter()
        allreduce.wait(allreduce.start(flat, f"doctor.{number}"))
        took_s.append(time.perf_counter() - began_s)
        right &= bool((flat == part.size * (part.size + 1) / 2).all())
    allreduce.close()
    facts = allreduce.facts()
    part.close()
    return {"set_up_s": set_up_s, "took_s": min(took_s), "right": right, "facts": facts}


def judge_sums(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """The reducer is there and sums right."""
    first = answers[0]
    configured = _configured(site) is not None
    if "missing" in first:
        do = 'run tools/horovod.sh (make setup does), or set dense.reducer = "mpi"'
        yield (fail if configured else warn)("horovod", first["missing"], do)
    name = first["reducer"]
    without = [r for r, a in enumerate(answers) if a["facts"].get("mpi_built") is False]
    if without:
        yield fail(
            "horovod",
            f"built without MPI on {site.who(without)}, so it cannot use the ranks' communicator",
            'build it with HOROVOD_WITH_MPI=1 (tools/horovod.sh), or set dense.reducer = "mpi"',
        )
    wrong = [r for r, a in enumerate(answers) if not a["right"]]
    if wrong:
        yield fail(
            "allreduce",
            f"{name} sums wrongly on {site.who(wrong)}",
            "this MPI or Horovod cannot be trusted: rebuild Horovod with this MPI and torch (tools/horovod.sh)",
        )
        return
    slowest_s = max(a["took_s"] for a in answers)
    set_up_s = max(a["set_up_s"] for a in answers)
    yield ok("allreduce", f"{name}: {format_bytes(_SUM_BYTES)} in {1e3 * slowest_s:.2f} ms, set up in {set_up_s:.1f} s")


# ---- clocks ----------------------------------------------------------------------------------------------------------


def measure_clocks(site: Site) -> list[float]:
    """Seconds that each rank's clock is ahead of rank 0's."""
    return site.probe.clock_offsets_s()


def judge_clocks(answers: Sequence[list[float]], site: Site) -> Iterator[Finding]:
    """Hosts agree on the time: times of files and logs of several hosts are compared."""
    offsets = answers[0]
    if len(offsets) == 1:
        return
    middle = statistics.median(offsets)
    off = [r for r, o in enumerate(offsets) if abs(o - middle) > _SKEW_S]
    if off:
        yield warn(
            "clocks",
            f"{offsets[off[0]] - middle:+.1f} s against the others on {site.who(off)}",
            "let these hosts' clocks be set (chrony, ntp); times in logs and of files cannot be compared",
        )
    else:
        yield ok("clocks", f"within {1e3 * (max(offsets) - min(offsets)):.2f} ms of each other")
