"""Dense ranks of a host ask for rows of other hosts together: the same run, a row once for each host."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm.ledger import TAGS
from hpcrec.exchange.host_rows import union_of
from hpcrec.training.session import Session
from tests.reference import GlobalBatch
from tests.together import on_every_rank
from tests.training.runs import finished, gather_tables, global_batches, write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_host_sums import (
    EVERY_RANK,
    HOSTS,
    ROWS,
    SGD,
    WITHIN,
    close,
    config_of,
    held_to_the_ledger,
    on_hosts,
    ran,
)
from tests.training.test_levels import limits_in_turn
from tests.training.test_nonfinite import spoil

COMM = MPI.COMM_WORLD
WHOLE = {"embedding": {"tables": {name: {"shard": "table"} for name in ("user", "item", "tag")}}}
CASES: dict[str, dict[str, Any]] = {
    "whole tables": WHOLE,
    "rows that are dealt": ROWS,
    "ids that owners read": {"exchange": {"ids": "read"}},
    "ids read, bags that are added": {"exchange": {"ids": "read", "forms": {"history": "pooled", "tag": "pooled"}}},
    "beside sums": {"exchange": {"forms": {"history": "pooled", "tag": "pooled"}}, "embedding": {"share": {}}},
    "beside partial results": {"model": {"name": "fm"}, "exchange": {"forms": {"user": "partial"}}},
    "wide tables": {"model": {"name": "wide_deep"}, **WHOLE},
    "columns": {"embedding": {"tables": {name: {"shard": "column"} for name in ("user", "item", "tag")}}},
    "max": {"model": {"pooling": {"history": "max"}}},
    "adam": {"embedding": {"optimizer": {"name": "adam", "lr": 0.01}}},
    "row-wise adagrad": {"embedding": {"optimizer": {"name": "rowwise_adagrad", "lr": 0.1}}},
    # an Adagrad divides by the size of what is left where gradients cancel, and that is rounding
    "bf16": {"exchange": {"codec": "bf16"}, "train": {"dtype": "float32"}, "embedding": SGD},
    "halves": {"exchange": {"codec": "fp16"}, "train": {"dtype": "float32"}, "embedding": SGD},
    "hybrid": {"policy": {"name": "hybrid", "staleness": 2}},
    "hybrid, ids that owners read": {"policy": {"name": "hybrid"}, "exchange": {"ids": "read"}},
    "one after the other": {"exchange": {"prefetch": 0}},
    "copies of rows beside": {
        "policy": {"name": "cached", "staleness": 2, "capacity": 1000},
        "exchange": {"forms": {"history": "rows", "tag": "rows"}},
        "embedding": {"share": {}},
    },
    "dynamic": {
        "embedding": {"share": {}, "tables": {"user": {"dynamic": {"capacity": 12, "evict": "lru"}, "shard": "row"}}},
    },
    "dynamic, by use": {
        "embedding": {
            "share": {},
            "tables": {"history": {"dynamic": {"capacity": 16, "evict": "lfu", "admit_from": 2}, "shard": "row"}},
        }
    },
}
MORE = ((0, 1, 0, 1), (0, 0, 0, 1))


def rows_of(name: str, sections: dict[str, Any]) -> dict[str, Any]:
    """The case with form ``rows`` for what it gives no other."""
    form = {} if "copies" in name else {"form": "rows"}
    return {**sections, "exchange": {**form, **sections.get("exchange", {})}}


@pytest.mark.parallel([3, 4])
def test_every_run_is_the_flat_one_but_for_the_order_of_sums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    roles, hosts, merged = itertools.cycle(roles_for(COMM.size)), itertools.cycle(HOSTS[COMM.size]), set[str]()
    for number, (name, sections) in enumerate(CASES.items()):
        on_hosts(monkeypatch, next(hosts))
        limits_in_turn(monkeypatch, number // len(HOSTS[COMM.size]))
        given = {"topology": next(roles), **rows_of(name, sections)}
        (wanted, none), (found, of) = (ran(config_of(folder, path, **given), name) for path in ("flat", "levels"))
        assert not none
        merged |= {name} if of else set()
        close(found, wanted, (name, given), WITHIN.get(name, 1e-12))
    with on_every_rank():  # of three ranks two hosts have few pairs of roles
        assert len(merged) >= len(CASES) // (4 if COMM.size == 3 else 2), merged


@pytest.mark.parallel([4])
@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), *(pytest.param(of, marks=pytest.mark.slow) for of in MORE)])
def test_every_rank_owns_and_asks(folder: Path, monkeypatch: pytest.MonkeyPatch, hosts: tuple[int, ...]) -> None:
    """Each case with ranks of both roles, so that rows are asked for together in all of them."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, hosts)
    for name, sections in CASES.items():
        given = {"topology": EVERY_RANK, **rows_of(name, sections)}
        (wanted, _), (found, of) = (ran(config_of(folder, path, **given), name) for path in ("flat", "levels"))
        close(found, wanted, (name, given), WITHIN.get(name, 1e-12))
        with on_every_rank():
            assert of or hosts.count(1) == 1, name  # else an owner of each host is asked by two of the other


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_owners_that_read_ids_make_of_them_what_runners_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows in the same order, so the same bits; of tables whose rows are given as ids come, too."""
    write_data(folder / "data.h5")
    dynamic = {"embedding": {"share": {}, "tables": {"user": {"dynamic": {"capacity": 12, "evict": "lru"}}}}}
    for hosts in HOSTS[COMM.size]:
        on_hosts(monkeypatch, hosts)
        for sections in (ROWS, dynamic, {"train": {"batch_size": 4}}):  # fewer samples than some batches' parts
            seen = []
            for ids in ("routed", "read"):
                given = {"exchange": {"form": "rows", "ids": ids}, "topology": EVERY_RANK, **sections}
                seen.append(ran(config_of(folder, "levels", **given), "dynamic" if sections is dynamic else "")[0])
            close(seen[1], seen[0], (hosts, sections), 0.0)


def test_distinct_ids_of_each_group():
    number, ids = np.array([1, 0, 1, 1, 0, 3]), np.array([-7, 2**62, -7, -9, 5, 5])
    union, n, slot = union_of(number, ids, 4)
    assert union.tolist() == [5, 2**62, -9, -7, 5] and n.tolist() == [2, 2, 0, 1]
    assert slot.tolist() == [1, 1, 1, 0, 0, 0]
    none = np.zeros(0, np.int64)
    assert [len(of) for of in union_of(none, none, 0)] == [0, 0, 0]


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_evaluations_and_steps_that_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
    data = {name: str(folder / "data.h5") for name in ("train", "validation")}
    for policy in ({}, {"policy": {"name": "hybrid", "staleness": 2}}):
        for ids in ("routed", "read"):
            seen = []
            for path in ("flat", "levels"):
                more = {"data": data, "train": {"nonfinite": "skip"}, "topology": EVERY_RANK, **policy}
                config = config_of(folder, path, exchange={"form": "rows", "ids": ids}, **more)
                with open_session(config) as session:
                    for step in session.steps():
                        if step.number == 2:
                            spoil(session, step)
                        step.run()
                    assert session.guard.skipped == 1
                    seen.append(([session.evaluate("validation")["logloss"]], gather_tables(session)))
            close(seen[1], seen[0], (policy, ids))


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
def test_goes_on_with_its_bits_and_on_other_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    keep: dict[str, Any] = {"checkpoint": {"every": 2}, "topology": EVERY_RANK, "exchange": {"form": "rows"}}
    keep["data"] = {"train": str(folder / "data.h5"), "chunk": 8, "window": 3}
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
    wanted = finished(config_of(folder / "whole", "levels", **keep), gather_tables)
    for name, hosts in (("the same", (0, 0, 1, 1)), ("others", (0, 1, 1, 0)), ("one", (0, 0, 0, 0))):
        on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
        config = config_of(folder / name, "levels", **keep)
        finished(config, gather_tables, stop_at=2)
        assert find_checkpoint(config.run.folder) is not None
        on_hosts(monkeypatch, hosts[: COMM.size])
        found = finished(config, gather_tables, resume=True)
        close(([], found), ([], wanted), name, 0.0 if name == "the same" else 1e-12)


def rows_across(session: Session, batch: GlobalBatch, hosts: tuple[int, ...], *, together: bool) -> Iterator[Any]:
    """Of a batch: owner, who is asked for (a host, or a rank), and row, counted one id at a time."""
    topology, layout = session.topology, session.parts.exchange.layout
    cuts = session.parts.splits["train"].order.deal(len(batch.label), len(topology.dense))
    for part, dense in enumerate(topology.dense):
        for feature, family in layout.family_of.items():
            offsets = batch.bags[feature].offsets
            ids = np.asarray(batch.bags[feature].ids[offsets[cuts[part]] : offsets[cuts[part + 1]]])
            of = family.deal(ids)[0] if family.row_parts > 1 else np.zeros(len(ids), int)
            for row, p in zip(ids.tolist(), of.tolist(), strict=True):
                holder = family.holders[int(p)]
                if hosts[holder] != hosts[dense]:
                    yield holder, hosts[dense] if together else dense, layout.tables_of[feature], row


@pytest.mark.parallel([3, 4])
def test_what_crosses_is_a_row_for_each_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    hosts = (0, 0, 1, 1)[: COMM.size]
    on_hosts(monkeypatch, hosts)
    crossed = {}
    for path in ("flat", "levels"):
        given = {"exchange": {"form": "rows"}, "topology": EVERY_RANK, **ROWS}
        with open_session(config_of(folder, path, **given)) as session:
            widths = {name: spec.width for name, spec in session.parts.tables.items()}
            expected = 0
            for batch in global_batches(session, session.total_steps):
                rows = set(rows_across(session, batch, hosts, together=path == "levels"))
                expected += sum(8 * sum(widths[t] for t in tables) for _, _, tables, _ in rows)
            for step in session.steps():
                step.run()
            session.parts.pipeline.settle()
            told = commands._topology(session)["merged"]
            crossed[path] = COMM.allreduce(session.parts.world.ledger.snapshot())[:, 1]
            padding = 64 * COMM.size**2 * session.total_steps
            with on_every_rank():
                assert told == ([] if path == "flat" else ["history", "item", "tag", "user"])
                assert expected <= crossed[path][TAGS.index("values")] <= expected + padding, path
    with on_every_rank():
        for tag in ("ids", "values", "gradients"):
            assert crossed["levels"][TAGS.index(tag)] <= crossed["flat"][TAGS.index(tag)], tag
        assert crossed["levels"][TAGS.index("values")] < 0.95 * crossed["flat"][TAGS.index("values")]


@pytest.mark.parallel([4])
@pytest.mark.parametrize("ids", ["routed", "read"])
def test_bytes_are_as_counted_before(folder: Path, monkeypatch: pytest.MonkeyPatch, ids: str) -> None:
    """Those that auto counts with, what dense ranks hand each other among them; but for padding, and heads."""
    write_data(folder / "data.h5", samples=800)
    on_hosts(monkeypatch, (0, 0, 1, 1))
    tables = {name: {"shard": "row"} for name in ("history", "tag")} | {"user": {"shard": "table"}}
    sections = {"embedding": {"share": {}, "tables": tables}, "model": {"width": 64}, "topology": EVERY_RANK}
    forms = {"history": "rows", "tag": "rows", "user": "rows"}
    wanted = {"exchange": {"form": "auto", "forms": forms, "auto_steps": 2, "ids": ids}}
    config = config_of(folder, "levels", **sections, **wanted, train={"batch_size": 400, "steps": 2})
    with open_session(config) as session:
        assert session.parts.exchange.layout.merged >= {"history", "tag", "user"}
        held_to_the_ledger(session)


@pytest.mark.parallel([4])
def test_runners_share_what_they_ask(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank of a host asks for about as much as the others, and for each bundle of an owner one does."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 0, 1))
    with open_session(config_of(folder, "levels", exchange={"form": "rows"}, topology=EVERY_RANK, **ROWS)) as session:
        side = session.parts.exchange._dense_side
        assert side is not None
        runs = [] if side.rows is None else [len(run) for run in side.rows.asks.run_by]
    every = COMM.allgather(runs)
    with on_every_rank():
        assert every[3] == []
        assert Counter(map(tuple, every[:3])) == {tuple(every[0]): 3}
        assert every[0] == [1, 1, 1], every
