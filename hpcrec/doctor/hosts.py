"""Check of the network between hosts: how fast all ranks of a host send to all of another, for each pair of hosts.

A host is named where all that it sends, or all that it receives, is slow; a link where it alone is. Knows hosts and
numbers; single pairs of ranks are for ``network``.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcrec.comm.probe import Meeting, pair_rounds
from hpcrec.doctor.base import Finding, Site, ok, warn
from hpcrec.units import MiB

Matrix = list[list[float | None]]  # [sending host][receiving host]: GB/s; None: not measured

_SLOW = 2.0  # times slower than the others
_FIRST_BYTES = MiB  # from host to host, by which the size that takes long enough is found
_MOST_BYTES = 64 * MiB
_LEAST_MESSAGE, _MESSAGE_UNIT = 64, 64
_MOST_MESSAGE = 8 * MiB
_TAKES_S = 0.02  # a transfer that is timed, about
_TRIES = 3
_BUDGET_S = 10.0  # of all rounds; hosts that have not met by then are said
_AGAIN = 64  # links that are measured again, at most
_SHOWN_HOSTS = 16  # up to which the matrix is printed
_KEPT_HOSTS = 128  # up to which it is in the JSON
_SHOWN_WORST = 4
_NAME_WIDTH = 16


@dataclass(frozen=True)
class Slow:
    """What is slow against the rest.

    Attributes
    ----------
    hosts : dict of int to str
        Host -> ``sends``, ``receives`` or ``sends and receives``.
    links : tuple of (int, int)
        Sending and receiving host, of links that no host explains.
    usual_gbs : float
        Median of the links of other hosts.
    """

    hosts: dict[int, str] = field(default_factory=dict)
    links: tuple[tuple[int, int], ...] = ()
    usual_gbs: float = 0.0


def measure_hosts(site: Site) -> dict[str, Any]:
    """GB/s from this host to each other and back, as the hosts' matrix; rounds that there was no time for.

    In each round of a tournament every host meets one other at most, first the one sends, then the other. What is slow
    is measured once more with the network to itself, and the better of both counts: other work and other pairs make a
    link slow for a moment.
    """
    probe = site.probe
    hosts = len(site.by_host())
    own = probe.host_of[probe.rank]
    here: Matrix = [[None] * hosts for _ in range(hosts)]
    if hosts == 1:
        return {"gbs": here}
    began_s = time.monotonic()
    for number, peer in enumerate(pair_rounds(hosts, own)):
        late = probe.share(time.monotonic() - began_s > _BUDGET_S)[0]
        if late and number:
            break
        with probe.meeting(peer) as meeting:
            if meeting is not None and peer is not None:
                _meet(meeting, own, peer, here)
    done: set[tuple[int, int]] = set()
    while todo := [pair for pair in _again(_joined(probe.share(here))) if pair not in done][: _AGAIN - len(done)]:
        for one, other in todo:
            if probe.share(time.monotonic() - began_s > 2 * _BUDGET_S)[0]:
                return {"gbs": here}
            met = {one: other, other: one}.get(own)
            with probe.meeting(met) as meeting:
                if meeting is not None and met is not None:
                    _meet(meeting, own, met, here)
        done |= set(todo)  # a host that is not slow after all may leave single links that seem slow
    return {"gbs": here}


def _meet(meeting: Meeting, own: int, peer: int, gbs: Matrix) -> None:
    """Both directions between two hosts, into the matrix; the better of this and what is there."""
    for source, target in ((min(own, peer), max(own, peer)), (max(own, peer), min(own, peer))):
        links = meeting.links()
        to_each = _message_bytes(_FIRST_BYTES / links)
        for _ in range(2):  # the first one sets up connections
            took_s = meeting.send_s(source, to_each)
        to_each = _message_bytes(min(to_each * _TAKES_S / max(took_s, 1e-9), _MOST_BYTES / links))
        took_s = min(meeting.send_s(source, to_each) for _ in range(_TRIES))
        gbs[source][target] = max(gbs[source][target] or 0.0, links * to_each / took_s / 1e9)


def _message_bytes(wanted: float) -> int:
    return int(min(max(wanted, _LEAST_MESSAGE), _MOST_MESSAGE)) // _MESSAGE_UNIT * _MESSAGE_UNIT


def _joined(parts: Sequence[Matrix]) -> Matrix:
    """One matrix of what the ranks know: each knows its own host's links."""
    hosts = range(len(parts[0]))

    def known(a: int, b: int) -> list[float]:
        return [value for part in parts if (value := part[a][b]) is not None]

    return [[max(known(a, b), default=None) for b in hosts] for a in hosts]


def _again(gbs: Matrix) -> list[tuple[int, int]]:
    """Pairs of hosts to measure once more: single slow links first, then the best link of each slow host."""
    slow = find_slow(gbs)
    pairs = [(min(link), max(link)) for link in slow.links]
    for host in slow.hosts:
        others = [o for o in range(len(gbs)) if o != host]
        others.sort(key=lambda o: -((gbs[host][o] or 0.0) + (gbs[o][host] or 0.0)))
        pairs += [(min(host, o), max(host, o)) for o in others[:2]]
    return list(dict.fromkeys(pairs))


def find_slow(gbs: Matrix) -> Slow:
    """What is over twice as slow as the rest.

    A host is slow where even its best link is, against the median of all hosts' best links: so one slow host of three
    does not drag down what it is measured by. Links of the other hosts are held to their median. Two hosts have one
    link each way, and only these can be compared.
    """
    hosts = range(len(gbs))
    sent = {a: max((v for v in gbs[a] if v is not None), default=None) for a in hosts}
    received = {b: max((gbs[a][b] or 0.0 for a in hosts if gbs[a][b] is not None), default=None) for b in hosts}
    slow_hosts: dict[int, str] = {}
    if len(gbs) > 2:
        for best, does in ((sent, "sends"), (received, "receives")):
            known = {h: v for h, v in best.items() if v is not None}
            for host in _far_below(known):
                slow_hosts[host] = f"{slow_hosts[host]} and {does}" if host in slow_hosts else does
    links = {
        (a, b): v
        for a in hosts
        for b in hosts
        if (v := gbs[a][b]) is not None
        and "sends" not in slow_hosts.get(a, "")
        and "receives" not in slow_hosts.get(b, "")
    }
    usual = statistics.median_high(links.values()) if links else 0.0
    return Slow(dict(sorted(slow_hosts.items())), tuple(_far_below(links)), usual)


def _far_below(values: dict[Any, float]) -> list[Any]:
    """Keys of what is far below the median (the upper of two in the middle)."""
    if len(values) < 2:
        return []
    usual = statistics.median_high(values.values())
    return [key for key, value in values.items() if value < usual / _SLOW]


def judge_hosts(answers: Sequence[dict[str, Any]], site: Site) -> Iterator[Finding]:
    """No host and no link is much slower than the others."""
    gbs = _joined([a["gbs"] for a in answers])
    if len(gbs) == 1:
        return
    names = [site.hosts[ranks[0]] for ranks in site.by_host().values()]
    slow = find_slow(gbs)
    values = sorted(v for row in gbs for v in row if v is not None)
    for host, does in slow.hosts.items():
        best = max((v for v in _links_of(gbs, host, does) if v is not None), default=0.0)
        yield warn(
            "slow host",
            f"{names[host]} {does} at {best:.2f} GB/s at best, links between the other hosts {slow.usual_gbs:.2f} GB/s",
            "look at this host's network card, cable and other jobs, or leave it out (sbatch --exclude="
            f"{names[host]}): a step waits for the slowest",
        )
    for a, b in slow.links[:8]:
        yield warn(
            "slow link",
            f"{names[a]} to {names[b]}: {gbs[a][b]:.2f} GB/s, "
            + (f"other links {slow.usual_gbs:.2f} GB/s" if len(gbs) > 2 else f"back {gbs[b][a]:.2f} GB/s"),
            "look at the cables and switches between the two, and at which interface MPI uses "
            "(OMPI_MCA_btl_tcp_if_include, UCX_NET_DEVICES)",
        )
    met = f"{len(values) // 2} pairs of {len(gbs)} hosts"
    all_pairs = len(gbs) * (len(gbs) - 1) // 2
    left = (
        f", {all_pairs - len(values) // 2} more not measured for lack of time" if len(values) // 2 < all_pairs else ""
    )
    said = f"{met}{left}: all ranks of a host to all of another {statistics.median(values):.2f} GB/s"
    said += f" (median; least {values[0]:.2f}, most {values[-1]:.2f})"
    data = {
        "hosts": names,
        "gbs": gbs if len(gbs) <= _KEPT_HOSTS else None,
        "slow_hosts": {names[h]: does for h, does in slow.hosts.items()},
        "slow_links": [[names[a], names[b]] for a, b in slow.links],
    }
    what = "other hosts" if slow.hosts or slow.links else "hosts"
    yield ok(what, said + (_matrix(gbs, names) if len(gbs) <= _SHOWN_HOSTS else _worst(gbs, names)), **data)


def _links_of(gbs: Matrix, host: int, does: str) -> list[float | None]:
    sent = gbs[host] if "sends" in does else []
    return [*sent, *([row[host] for row in gbs] if "receives" in does else [])]


def _matrix(gbs: Matrix, names: Sequence[str]) -> str:
    """GB/s from the host of a line to the host of a column."""
    if len(gbs) == 2:
        return ""
    wide = min(max(map(len, names)), _NAME_WIDTH)
    lines = [f"      GB/s from the host of a line to that of a column\n      {'':>{wide + 4}}"]
    lines[0] += "".join(f"{b:>7}" for b in range(len(gbs)))
    for a, row in enumerate(gbs):
        cells = ["-" if a == b else "?" if v is None else f"{v:.2f}" for b, v in enumerate(row)]
        lines.append(f"      {a:>3} {names[a][:wide]:<{wide}}" + "".join(f"{c:>7}" for c in cells))
    return "\n" + "\n".join(lines)


def _worst(gbs: Matrix, names: Sequence[str]) -> str:
    """The hosts whose median link is the slowest."""
    of_host = {}
    for host in range(len(gbs)):
        known = [v for v in _links_of(gbs, host, "sends and receives") if v is not None]
        if known:
            of_host[host] = statistics.median(known)
    worst = sorted(of_host, key=lambda h: of_host[h])[:_SHOWN_WORST]
    return "; slowest hosts by the median of their links: " + ", ".join(f"{names[h]} {of_host[h]:.2f}" for h in worst)
