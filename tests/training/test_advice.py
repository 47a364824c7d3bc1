"""What a run's end says held its steps up: each cause where it is planted in a summary, and none in a healthy one."""

import copy
from typing import Any

import pytest

from hpcrec.training.advice import CAUSES, advice, causes

STEPS, STEP_S = 1000, 100.0


def rank(role: str = "fused", **seconds: float) -> dict[str, Any]:
    """Of ``times_of``: ``group`` seconds worked, ``group_wait`` waited."""
    healthy = {"model": 50.0, "rows": 10.0, "rows_wait": 20.0, "sums_wait": 16.0, "data": 1.0, "data_wait": 3.0}
    found = {**healthy, **seconds}
    steps = {
        group: {"worked_s": found.get(group, 0.0), "waited_s": found.get(f"{group}_wait", 0.0)}
        for group in ("model", "rows", "sums", "data")
    }
    own = {"disk_s": found.get("disk", 0.0), "delayed_s": found.get("delayed", 1.0)}
    return {"role": role, "whole_s": 120.0, "steps": steps, **own}


def owner(lookups: float = 1000.0, ms: float = 8.0) -> dict[str, float]:
    work = {"read_ms": ms / 4, "find_ms": 0.0, "gather_ms": ms / 4, "update_ms": ms / 2}
    return {
        "rows": 10,
        "bytes": 10,
        "steps": STEPS,
        "lookups_per_step": lookups,
        "distinct_per_step": lookups / 2,
        **work,
    }


def summary(*ranks: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Of a run over two hosts whose messages are few."""
    found = ranks or (rank(), rank(), rank(), rank())
    size = len(found)
    owners = {str(i): owner() for i, of in enumerate(found) if of["role"] != "dense"}
    whole = {
        "steps": STEPS,
        "time": {"ranks": {str(i): of for i, of in enumerate(found)}, "roles": {"fused": {"beside": {}}}},
        "owners": owners,
        "wire_bytes": {"values": {"same_host": 10**9, "cross_host": 0}},
        "threads": {str(i): {"threads": 1, "cores": [i], "of_host": size} for i in range(size)},
        "topology": {"host_of_rank": [0] * size},
    }
    return {**whole, **changes}


def test_a_healthy_run_is_blamed_for_nothing() -> None:
    assert causes(summary()) == []
    assert advice(summary()) == (
        "Nothing stands out: of the time of steps 50% compute the model, 20% wait for rows, 16% for sums."
    )


def test_cores_that_others_use_are_told_where_the_run_has_enough() -> None:
    crowded = [rank(delayed=60.0), rank(delayed=61.0)]
    assert advice(summary(*crowded)).endswith(
        "Ranks had no core for 50% of their time: something else runs on their hosts."
    )
    of_two = {str(i): {"threads": 1, "cores": [0], "of_host": 1} for i in range(2)}
    assert advice(summary(*crowded, threads=of_two)).endswith("16% for sums.")  # its own ranks share a core


def test_much_waiting_for_rows_is_told_though_no_rank_is_to_blame() -> None:
    owners = [rank("owner", model=0.0, rows=60.0, rows_wait=36.0) for _ in range(2)]
    dense = [rank("dense", model=18.0, rows=2.0, rows_wait=70.0, sums_wait=6.0) for _ in range(2)]
    told = summary(*owners, *dense)
    assert causes(told) == [] and advice(told) == (
        "Dense ranks wait for rows for 70% of the time of steps, and compute the model for 18%; owners compute for 60% "
        "of it: raise topology.owners, or topology.owner_threads."
    )
    fused = summary(*(rank(model=18.0, rows=2.0, rows_wait=70.0, sums_wait=6.0) for _ in range(2)))
    assert causes(fused) == [] and "let rows cross while models compute" in advice(fused)


def test_nothing_is_said_of_a_run_of_a_second() -> None:
    short = dict.fromkeys(("model", "rows", "rows_wait", "sums_wait", "data", "data_wait"), 0.01)
    told = summary(rank(**short), rank(**short))
    assert (causes(told), advice(told)) == ([], "Steps took 0.06 s: too short to tell what held them up.")
    none = summary(rank(**dict.fromkeys(short, 0.0)))
    assert (causes(none), advice(none)) == ([], "")


def test_a_slow_rank_is_named_by_what_the_others_wait() -> None:
    slow = rank(model=78.0, rows=14.0, rows_wait=2.0, sums_wait=2.0)
    (cause,) = causes(summary(rank(), slow, rank(), rank()))
    assert (cause.name, cause.share) == ("slow rank", pytest.approx(0.32))
    assert cause.sentence == (
        "Rank 1 computes for 1.5 times as long as the median of the others, and they wait for it (32% of the time of "
        "steps): look at its host, or run without it."
    )
    crowded = copy.deepcopy(slow) | {"delayed_s": 36.0}
    assert "it had no core for 30% of its time, so look what else runs on its host" in advice(summary(rank(), crowded))


def test_a_rank_that_computes_longer_is_not_slow_where_nobody_waits_for_it() -> None:
    busy = {"rows_wait": 3.0, "sums_wait": 4.0, "data_wait": 0.0}
    long = rank(**busy, model=80.0)
    others = [rank(**busy, model=60.0) for _ in range(3)]
    assert causes(summary(long, *others)) == []


def test_a_slow_rank_is_looked_for_among_those_of_its_role() -> None:
    owners = [rank("owner", model=0.0, rows=30.0, rows_wait=66.0), rank("owner", model=0.0, rows=62.0, rows_wait=34.0)]
    dense = [rank("dense", rows=2.0, rows_wait=40.0, sums_wait=4.0) for _ in range(2)]
    (cause,) = causes(summary(*owners, *dense))
    assert cause.name == "slow rank" and cause.sentence.startswith(
        "Rank 1 computes for 2.1 times as long as the median"
    )
    assert "of the other owners" in cause.sentence


def test_steps_of_attempts_before_count_for_nothing() -> None:
    """Times and work are of this attempt; steps and bytes that were sent, of the whole run."""
    uneven = {str(i): owner(lookups=1150.0 if i == 1 else 1000.0) for i in range(4)}
    assert causes(summary(owners=uneven, steps=20 * STEPS)) == []
    wire = {"values": {"same_host": 0, "cross_host": 20 * 8 * 10**8}}
    told = summary(steps=20 * STEPS, wire_bytes=wire, topology={"host_of_rank": [0, 0, 1, 1]})
    assert "400.00 kB a step of each host, at 11.11 MB a second" in advice(told)


def test_an_owner_is_slow_only_as_far_as_dense_ranks_wait_for_rows() -> None:
    owners = [rank("owner", model=0.0, rows=5.0, rows_wait=91.0), rank("owner", model=0.0, rows=25.0, rows_wait=71.0)]
    dense = [rank("dense", model=90.0, rows=2.0, rows_wait=2.0, sums_wait=2.0) for _ in range(2)]
    assert causes(summary(*owners, *dense)) == []


def test_links_between_hosts_are_named_with_their_rate() -> None:
    wire = {"values": {"same_host": 10**9, "cross_host": 8 * 10**8}}
    (cause,) = causes(summary(wire_bytes=wire, topology={"host_of_rank": [0, 0, 1, 1]}))
    assert (cause.name, cause.share) == ("slow link", pytest.approx(0.36))
    assert cause.sentence.startswith(
        "Messages between hosts take 36% of the time of steps, 400.00 kB a step of each host, at 11.11 MB a second: "
        "send fewer"
    )


def test_what_owners_compute_is_no_message_where_owners_are_apart() -> None:
    owners = [rank("owner", model=0.0, rows=30.0, rows_wait=66.0) for _ in range(2)]
    dense = [rank("dense", rows=2.0, rows_wait=36.0, sums_wait=4.0, model=54.0) for _ in range(2)]
    wire = {"values": {"same_host": 0, "cross_host": 8 * 10**8}}
    told = summary(*owners, *dense, wire_bytes=wire, topology={"host_of_rank": [0, 1, 0, 1]})
    told["owners"] = {str(i): owner(ms=33.0) for i in range(2)}
    assert causes(told) == []  # 36 s of waiting, of which 33 are the owners' work, and 4 for sums: 7 %
    told["owners"] = {str(i): owner(ms=3.0) for i in range(2)}
    (cause,) = causes(told)
    assert (cause.name, cause.share) == ("slow link", pytest.approx(0.37, abs=0.01))


def test_a_disk_under_rows_is_named() -> None:
    slow = rank(rows_wait=30.0, disk=25.0, sums_wait=6.0)
    (cause,) = causes(summary(rank(), slow))
    assert (cause.name, cause.share) == ("slow disk", pytest.approx(0.25))
    assert cause.sentence.startswith("Rank 1 waits for rows on its disk for 25% of the time of steps: raise")


def test_an_owner_with_more_lookups_is_named_and_is_no_slow_rank() -> None:
    skewed = rank(rows=45.0, rows_wait=0.0, sums_wait=1.0)
    told = summary(rank(), rank(), skewed, rank())
    told["owners"]["2"] = owner(lookups=4000.0, ms=40.0)
    (cause,) = causes(told)
    assert (cause.name, cause.share) == ("skewed owner", pytest.approx(0.3))
    assert cause.sentence.startswith("Rank 2 owns rows with 4 times as many lookups as the median of the other owners")


@pytest.mark.parametrize(
    ("threads", "said"),
    [
        (
            {"threads": 1, "cores": [0, 1, 2, 3, 4, 5, 6, 7], "of_host": 8},
            (
                "Models compute with 1 thread a rank where 2 have cores: set topology.dense_threads = 2, or leave it "
                "and OMP_NUM_THREADS out (up to 25% of the time of steps)."
            ),
        ),
        (
            {"threads": 1, "cores": [0, 1], "of_host": 8},
            (
                "4 ranks of a host may use 2 of its 8 cores, and have 4 threads or more: ask the job for more cores "
                "(--cpus-per-task), or bind ranks to more of them (up to 25% of the time of steps)."
            ),
        ),
    ],
)
def test_cores_that_are_left_idle_are_named(threads: dict[str, Any], said: str) -> None:
    (cause,) = causes(summary(threads={str(i): threads for i in range(4)}))
    assert (cause.name, cause.sentence) == ("few threads", said)


def test_cores_that_owners_beside_have_threads_for_are_not_idle() -> None:
    ranks = [rank("owner", model=0.0), rank("dense")]
    cores = [0, 1, 2, 3, 4, 5, 6, 7]
    threads = {str(i): {"threads": n, "cores": cores, "of_host": 8} for i, n in enumerate((6, 2))}
    assert causes(summary(*ranks, threads=threads)) == []


def test_more_ranks_than_cores_is_no_want_of_threads() -> None:
    crowded = {"threads": 1, "cores": [0, 1], "of_host": 2}
    assert causes(summary(threads={str(i): crowded for i in range(4)})) == []


def test_a_reader_that_cannot_keep_up_is_named() -> None:
    slow = rank(data_wait=22.0, rows_wait=8.0, sums_wait=9.0)
    (cause,) = causes(summary(rank(), rank(), rank(), slow))
    assert cause.name == "reader" and cause.sentence.startswith("Rank 3 waits for 23% of the time of steps until its")


def test_what_costs_most_is_said() -> None:
    slow = rank(data_wait=22.0, rows_wait=9.0, sums_wait=9.0)
    told = summary(rank(), slow, threads={"0": {"threads": 1, "cores": [0, 1, 2, 3, 4, 5, 6, 7], "of_host": 8}})
    assert [cause.name for cause in causes(told)] == ["few threads", "reader"]
    assert advice(told) == causes(told)[0].sentence
    assert {cause.name for cause in causes(told)} < set(CAUSES)
