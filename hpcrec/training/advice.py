"""What the steps of a run were held up by, and what to change: one sentence at its end, from what its summary says.

Six causes are looked for: a slow rank, slow links between hosts, a slow disk under rows, an owner with more work than
the others, threads that leave cores idle, and a reader that cannot keep up. Each costs a share of the time of steps,
and one below ``LEAST`` is not told. Knows summary.json; measures nothing.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrec.units import format_bytes

LEAST = 0.1  # of the time of steps: what a cause has to cost
MUCH = 0.5  # of the time of steps: a wait that is told though no cause of it is known
SHARED = 0.3  # of a rank's time without a core, where there are enough: its own other threads take some of it
SHORTEST_S = 2.0  # of steps, of which anything can be told
_SLOW, _LINK, _DISK = "slow rank", "slow link", "slow disk"
_OWNER, _THREADS, _READER = "skewed owner", "few threads", "reader"
CAUSES = (_SLOW, _LINK, _DISK, _OWNER, _THREADS, _READER)


@dataclass(frozen=True)
class Cause:
    """What held steps up.

    Attributes
    ----------
    name : str
        One of ``CAUSES``.
    share : float
        Of the time of steps that it cost.
    sentence : str
        What was seen, and what to change.
    """

    name: str
    share: float
    sentence: str


@dataclass(frozen=True)
class _Rank:
    """Seconds of a rank in steps, as ``times.times_of`` groups them."""

    rank: int
    role: str
    worked: Mapping[str, float]
    waited: Mapping[str, float]
    disk_s: float
    delayed: float | None  # share of its whole time for which it was ready and had no core

    @property
    def steps_s(self) -> float:
        return sum(self.worked.values()) + sum(self.waited.values())

    @property
    def computed_s(self) -> float:
        """For the model and for rows; disks, which it waits for, are in none of this."""
        return self.worked["model"] + self.worked["rows"]

    @property
    def for_others_s(self) -> float:
        """Waited for rows and sums, but not for its own disk."""
        return max(self.waited["rows"] + self.waited["sums"] - self.disk_s, 0.0)


class _Run:
    """A summary, with what several causes ask of it."""

    def __init__(self, summary: Mapping[str, Any]) -> None:
        self.summary = summary
        self.ranks = [_rank(int(rank), of) for rank, of in summary["time"]["ranks"].items() if "steps" in of]
        self.dense = [rank for rank in self.ranks if rank.role != "owner"]
        self.steps_s = statistics.median(rank.steps_s for rank in self.dense) if self.dense else 0.0
        self.owners = {int(rank): of for rank, of in summary["owners"].items()}
        self.apart = any(rank.role != "fused" for rank in self.ranks)

    def host(self, rank: int) -> int:
        """Number of its host."""
        return int(self.summary["topology"]["host_of_rank"][rank])

    def owner_s(self, rank: int) -> float:
        """What an owner has computed for rows in all steps, of its cores' time."""
        of = self.owners.get(rank)
        if of is None:
            return 0.0
        work_ms = sum(of[f"{work}_ms"] for work in ("read", "find", "gather", "update"))
        return float(of.get("steps", 0) * work_ms / 1e3)

    def extra_s(self, rank: int) -> float:
        """How much less an owner would compute for rows with as many lookups as the median of the others has."""
        most = max((self._times_others(rank, key) for key in ("lookups_per_step", "distinct_per_step")), default=1.0)
        return self.owner_s(rank) * (1 - 1 / most)

    def times_others(self, rank: int) -> float:
        """How many times as many lookups an owner has as the median of the others."""
        return self._times_others(rank, "lookups_per_step")

    def _times_others(self, rank: int, key: str) -> float:
        others = [of[key] for other, of in self.owners.items() if other != rank]
        middle = statistics.median(others) if others else 0.0
        return max(self.owners[rank][key] / middle, 1.0) if rank in self.owners and middle else 1.0

    def waits_for_owners(self) -> float:
        """Seconds that dense ranks wait for rows, in the median: no more can be had by making an owner faster."""
        return statistics.median(rank.waited["rows"] for rank in self.dense)

    def took(self) -> int:
        """Steps that these times are of: those of this attempt, where others went before."""
        return int(max((of.get("steps", 0) for of in self.owners.values()), default=0))


def _rank(rank: int, of: Mapping[str, Any]) -> _Rank:
    delayed = None if of["delayed_s"] is None or not of["whole_s"] else of["delayed_s"] / of["whole_s"]
    worked = {group: seconds["worked_s"] for group, seconds in of["steps"].items()}
    waited = {group: seconds["waited_s"] for group, seconds in of["steps"].items()}
    return _Rank(rank, of["role"], worked, waited, of["disk_s"], delayed)


def causes(summary: Mapping[str, Any]) -> list[Cause]:
    """What held the steps of a run up, what cost most first; nothing where they were too few to tell."""
    run = _Run(summary)
    if run.steps_s < SHORTEST_S:
        return []
    looks = (_slow_rank, _slow_link, _slow_disk, _skewed_owner, _few_threads, _reader)
    found = [cause for look in looks for cause in look(run) if cause.share >= LEAST]
    return sorted(found, key=lambda cause: -cause.share)


def advice(summary: Mapping[str, Any]) -> str:
    """The sentence: of what cost most, or where nothing stands out what steps were made of; empty without steps."""
    run = _Run(summary)
    if run.steps_s < SHORTEST_S:
        return f"Steps took {run.steps_s:.2g} s: too short to tell what held them up." if run.steps_s else ""
    if found := causes(summary):
        return found[0].sentence

    def share(seconds: Sequence[float]) -> str:
        return f"{statistics.median(seconds) / run.steps_s:.0%}"

    model = share([rank.worked["model"] for rank in run.dense])
    rows = share([rank.waited["rows"] for rank in run.dense])
    sums = share([rank.waited["sums"] for rank in run.dense])
    if run.waits_for_owners() >= MUCH * run.steps_s:
        return _waits_for_rows(run, rows, model) + _shared_cores(run)
    said = f"Nothing stands out: of the time of steps {model} compute the model, {rows} wait for rows, {sums} for sums."
    return said + _shared_cores(run)


def _waits_for_rows(run: _Run, rows: str, model: str) -> str:
    """What a run mostly waits for, where no rank is to blame for it: all owners alike, or messages within a host."""
    said = f"Dense ranks wait for rows for {rows} of the time of steps, and compute the model for {model}"
    owners = [rank for rank in run.ranks if rank.role == "owner"]
    busy = statistics.median(rank.computed_s for rank in owners) / run.steps_s if owners else 0.0
    if busy >= MUCH / 2:
        return f"{said}; owners compute for {busy:.0%} of it: raise topology.owners, or topology.owner_threads."
    return (
        f"{said}: let rows cross while models compute (policy.name = 'hybrid' or 'ahead'), or raise train.batch_size."
    )


def _shared_cores(run: _Run) -> str:
    """That ranks had no core for much of the time, where the run itself has no more ranks than cores."""
    told = run.summary.get("threads", {})
    delayed = [rank.delayed for rank in run.ranks if rank.delayed is not None and str(rank.rank) in told]
    roomy = all(
        len({core for other in told if run.host(int(other)) == host for core in told[other]["cores"]})
        >= sum(run.host(int(other)) == host for other in told)
        for host in set(run.summary["topology"]["host_of_rank"])
    )
    if not delayed or not roomy or statistics.median(delayed) < SHARED:
        return ""
    return f" Ranks had no core for {statistics.median(delayed):.0%} of their time: something else runs on their hosts."


def _slow_rank(run: _Run) -> Iterator[Cause]:
    """It computes for longer than the others of its role, and has no more lookups; they wait for it."""
    for role in dict.fromkeys(rank.role for rank in run.ranks):
        peers = [rank for rank in run.ranks if rank.role == role]
        if len(peers) < 2:
            continue
        slow = max(peers, key=lambda rank: rank.computed_s - run.extra_s(rank.rank))
        others = [rank for rank in peers if rank is not slow]
        usual_s = statistics.median(rank.computed_s - run.extra_s(rank.rank) for rank in others)
        own_s = slow.computed_s - run.extra_s(slow.rank)
        waited_s = run.waits_for_owners() if role == "owner" else statistics.median(of.for_others_s for of in others)
        share = min(own_s - usual_s, waited_s) / run.steps_s
        if share < LEAST or usual_s <= 0:
            continue
        kind = {"fused": "", "dense": " of the other dense ranks", "owner": " of the other owners"}[role]
        said = (
            f"Rank {slow.rank} computes for {own_s / usual_s:.2g} times as long as the median{kind or ' of the others'}"
        )
        usual = statistics.median(rank.delayed or 0.0 for rank in others)
        if slow.delayed is not None and slow.delayed > usual + 0.05:
            why = f"it had no core for {slow.delayed:.0%} of its time, so look what else runs on its host"
        else:
            why = "look at its host, or run without it"
        yield Cause(_SLOW, share, f"{said}, and they wait for it ({share:.0%} of the time of steps): {why}.")


def _slow_link(run: _Run) -> Iterator[Cause]:
    """Dense ranks wait for messages between hosts, and not for what others compute."""
    crossed = sum(of["cross_host"] for of in run.summary["wire_bytes"].values())
    if not crossed:
        return
    aside = run.apart or _beside(run)
    owners_s = max((run.owner_s(rank.rank) + rank.disk_s for rank in run.ranks), default=0.0) if aside else 0.0
    rows_s = min(max(rank.waited["rows"] - (0.0 if aside else rank.disk_s), 0.0) for rank in run.dense)
    messages_s = max(rows_s - owners_s, 0.0) + min(rank.waited["sums"] for rank in run.dense)
    share = messages_s / run.steps_s
    hosts = len(set(run.summary["topology"]["host_of_rank"]))
    if share < LEAST:
        return
    each = crossed / hosts / max(run.summary["steps"], 1)
    yield Cause(
        _LINK,
        share,
        f"Messages between hosts take {share:.0%} of the time of steps, {format_bytes(each)} a step of each host, at "
        f"{format_bytes(each * run.took() / messages_s)} a second: send fewer (exchange.codec, dense.compression, "
        "policy.name = 'cached'), let them cross while models compute (policy.name = 'hybrid'), or use faster links.",
    )


def _beside(run: _Run) -> bool:
    """Whether rows are moved by threads beside the steps."""
    return any({"values", "gradients"} & of["beside"].keys() for of in run.summary["time"]["roles"].values())


def _slow_disk(run: _Run) -> Iterator[Cause]:
    """Owners wait for rows on their disk, and steps for them."""
    slow = max(run.ranks, key=lambda rank: rank.disk_s)
    aside = slow.role == "owner" or _beside(run)
    lost_s = min(slow.disk_s, statistics.median(rank.waited["rows"] for rank in run.dense)) if aside else slow.disk_s
    share = lost_s / run.steps_s
    if share >= LEAST:
        yield Cause(
            _DISK,
            share,
            f"Rank {slow.rank} waits for rows on its disk for {slow.disk_s / run.steps_s:.0%} of the time of steps: "
            "raise store.memory_bytes, read rows of more steps to come (store.window, exchange.prefetch), or give "
            "store.path on a faster disk.",
        )


def _skewed_owner(run: _Run) -> Iterator[Cause]:
    """An owner has more lookups than the others, and they wait for it."""
    if len(run.owners) < 2:
        return
    busiest = max(run.owners, key=run.extra_s)
    others = [rank for rank in run.dense if rank.rank != busiest]
    if not others:
        return
    share = min(run.extra_s(busiest), statistics.median(rank.for_others_s for rank in others)) / run.steps_s
    if share >= LEAST:
        yield Cause(
            _OWNER,
            share,
            f"Rank {busiest} owns rows with {run.times_others(busiest):.2g} times as many lookups as the median of the "
            f"other owners, and steps wait for it ({share:.0%} of their time): deal its largest tables to all owners "
            "(embedding.tables.NAME.shard = 'row', or leave shard and owners out).",
        )


def _few_threads(run: _Run) -> Iterator[Cause]:
    """Dense ranks compute with fewer threads than there are cores for. Those whose model is on a GPU say none."""
    told = {int(rank): of for rank, of in run.summary.get("threads", {}).items()}
    found = []
    for rank in run.dense:
        if (of := told.get(rank.rank)) is None:
            continue
        on_host = [other for other in told if run.host(other) == run.host(rank.rank)]
        allowed = {core for other in on_host for core in told[other]["cores"]}
        all_threads = sum(told[other]["threads"] for other in on_host)
        n_dense = sum(other.rank in on_host for other in run.dense)
        fair = min(of["threads"] + max(len(allowed) - all_threads, 0) // n_dense, len(of["cores"]))
        share = rank.worked["model"] / run.steps_s
        if of["threads"] < fair:
            key = f"set topology.dense_threads = {fair}, or leave it and OMP_NUM_THREADS out"
            said = (
                f"models compute with {of['threads']} thread{'s' * (of['threads'] != 1)} a rank where {fair} have cores"
            )
            found.append(Cause(_THREADS, share * (1 - of["threads"] / fair), f"{said}: {key}"))
        wanted = min(all_threads, of["of_host"])
        if len(allowed) < wanted:
            n = f"{len(on_host)} rank{'s' * (len(on_host) != 1)}"
            said = (
                f"{n} of a host may use {len(allowed)} of its {of['of_host']} cores, and have {wanted} threads or more"
            )
            key = "ask the job for more cores (--cpus-per-task), or bind ranks to more of them"
            found.append(Cause(_THREADS, share * (1 - len(allowed) / wanted), f"{said}: {key}"))
    if found:
        worst = max(found, key=lambda cause: cause.share)
        said = worst.sentence[0].upper() + worst.sentence[1:]
        yield Cause(_THREADS, worst.share, f"{said} (up to {worst.share:.0%} of the time of steps).")


def _reader(run: _Run) -> Iterator[Cause]:
    """Steps wait for batches that are not read yet."""
    slow = max(run.dense, key=lambda rank: rank.worked["data"] + rank.waited["data"])
    share = (slow.worked["data"] + slow.waited["data"]) / run.steps_s
    if share >= LEAST:
        yield Cause(
            _READER,
            share,
            f"Rank {slow.rank} waits for {share:.0%} of the time of steps until its next batch is read: put the "
            "data on a faster disk, as one of the node's own (docs/slurm.md), give the thread that reads a core of its "
            "own, or read ahead where data.prefetch is 0.",
        )
