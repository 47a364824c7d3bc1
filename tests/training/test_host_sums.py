"""Parts of bags are added among the owners of a host before they cross: the same sums, in fewer bytes."""

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
from hpcrec.comm import world as world_module
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.disk.common import Settings
from hpcrec.embedding.stores.disk import DiskStore
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.roots import Roots
from hpcrec.training.session import Session
from tests.reference import GlobalBatch
from tests.together import on_every_rank
from tests.training import runs
from tests.training.runs import config_for, finished, gather_tables, global_batches, write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_levels import AHEAD, limits_in_turn
from tests.training.test_levels import CASES as LEVELS
from tests.training.test_nonfinite import spoil

pytestmark = AHEAD

COMM = MPI.COMM_WORLD
EVERY_RANK = {"mode": "fused"}
ROWS = {"embedding": {"tables": {name: {"shard": "row"} for name in ("user", "item", "tag")}}}
HOSTS = {
    2: ((0, 0), (0, 1)),
    3: ((0, 0, 1), (0, 1, 0), (0, 1, 1)),
    4: ((0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1), (0, 1, 2, 2)),
}
CASES: dict[str, dict[str, Any]] = {
    **LEVELS,
    "rows and sums": {"exchange": {"forms": {"item": "rows", "user": "rows"}}},
    "bf16": {"exchange": {"codec": "bf16"}, "train": {"dtype": "float32"}},
    "bf16 beside copies": {  # which gather_tables holds to each other
        "exchange": {"codec": "bf16"},
        "train": {"dtype": "float32"},
        "embedding": {"share": {}, "tables": {"user": {"shard": "replicate"}, "history": {"shard": "row"}}},
    },
    **{
        f"partial results added by {way}": {
            "model": {"name": "fm"},
            "exchange": {"form": "partial", "reduce": way},
            "topology": EVERY_RANK,
        }
        for way in ("host", "owners")
    },
    "dynamic bags": {
        "embedding": {"share": {}, "tables": {"history": {"dynamic": {"capacity": 64}, "shard": "row"}}},
    },
    "dynamic bags, evicted": {
        "embedding": {
            "share": {},
            "tables": {"history": {"dynamic": {"capacity": 16, "evict": "lru"}, "shard": "row"}},
        },
    },
    "within hosts": {"embedding": {"tables": {name: {"shard": "host"} for name in ("user", "item", "tag")}}},
    "within hosts, bf16": {
        "exchange": {"codec": "bf16"},
        "train": {"dtype": "float32"},
        "embedding": {"tables": {name: {"shard": "host"} for name in ("user", "item", "tag")}},
    },
    "within hosts, ids that owners read": {
        "exchange": {"ids": "read"},
        "embedding": {"tables": {name: {"shard": "host"} for name in ("user", "item", "tag")}},
    },
    "dynamic within hosts, evicted": {
        "embedding": {
            "share": {},
            "tables": {"history": {"dynamic": {"capacity": 16, "evict": "lru"}, "shard": "host"}},
        },
    },
    "tables of each group": {
        "dense": {
            "codistillation": {"groups": 2, "weight": 0.5, "burn_in_steps": 1, "share_embeddings": False},
        },
        "topology": EVERY_RANK,
        "train": {"batch_size": 14},
        "embedding": {"tables": ROWS["embedding"]["tables"]},
    },
    "wide tables beside": {"model": {"name": "wide_deep"}},
    # copies of all rows: which of those used alike goes first depends on where rows are
    "hybrid, copies, sums": {
        "policy": {"name": "cached", "staleness": 2, "lookahead": 1, "capacity": 1000},
        "exchange": {"forms": {"history": "pooled", "tag": "pooled"}},
        "embedding": {"share": {}},
    },
}
NOTHING_ADDED = {"ahead", "cached", "cached ahead"}
# An Adagrad divides by the size of what is left where gradients cancel, and that is rounding.
SGD = {"optimizer": {"name": "sgd", "lr": 0.1}}
ROUNDED = ("bf16", "bf16 beside copies", "within hosts, bf16", "halves")
WITHIN = {"adam": 1e-9, "halves": 1e-3, "bf16": 5e-3, "bf16 beside copies": 5e-3, "within hosts, bf16": 5e-3}
OTHER_ELEMENTS = {"thresholds"}  # are chosen of sums than of their parts: tests/exchange/test_thresholds_of_sums.py


def config_of(folder: Path, path: str, **sections: dict[str, Any]) -> Config:
    wanted = {**sections, "exchange": {**sections.get("exchange", {}), "path": path}}
    return config_for(folder, **{**wanted, "train": {"steps": 5, **sections.get("train", {})}})


def on_hosts(monkeypatch: pytest.MonkeyPatch, hosts: tuple[int, ...]) -> None:
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: hosts)


def close(found: Any, wanted: Any, about: object, most: float = 1e-12) -> None:
    """Losses, rows and dense parameters, but for the order of sums."""
    with on_every_rank():
        np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=most, err_msg=f"{about}")
        for of, those in zip(found[1:], wanted[1:], strict=True):
            assert of.keys() == those.keys()
            for name, rows in those.items():
                np.testing.assert_allclose(of[name], rows, rtol=0, atol=most, err_msg=f"{name}: {about}")


def dynamic_of(session: Session) -> dict[str, np.ndarray]:
    """Ids of dynamic tables, rising, with their rows: of all ranks, whoever has them."""
    store, found = session.parts.store, dict[str, np.ndarray]()
    mine = {} if store is None else {t: [np.column_stack([i, r]) for i, r, _ in store.export(t)] for t in store.tables}
    every = COMM.allgather(mine)
    for table in sorted({name for of in every for name in of}):
        rows = np.concatenate([block for of in every for block in of.get(table, ())])
        found[table] = rows[np.argsort(rows[:, 0], kind="stable")]
    return found


def ran(config: Config, name: str) -> tuple[Any, frozenset[str]]:
    with open_session(config) as session:
        main, layout = session.parts.world.main, session.parts.exchange.layout
        added = layout.added | layout.merged
        losses = [float(main.allreduce(np.array([step.run()]))[0]) for step in session.steps()]
        session.parts.pipeline.settle()
        return (losses, dynamic_of(session) if name.startswith("dynamic") else gather_tables(session)), added


@pytest.mark.parallel([3, 4])
def test_every_run_is_the_flat_one_but_for_the_order_of_sums(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    roles, hosts, added = itertools.cycle(roles_for(COMM.size)), itertools.cycle(HOSTS[COMM.size]), set[str]()
    for number, (name, sections) in enumerate(CASES.items()):
        if "group" in name and COMM.size % 2:
            continue
        on_hosts(monkeypatch, next(hosts))
        limits_in_turn(monkeypatch, number // len(HOSTS[COMM.size]))
        rows = {} if "embedding" in sections else ROWS
        if name in ROUNDED:
            rows = {"embedding": {**ROWS["embedding"], **sections.get("embedding", {}), **SGD}}
        given = {"topology": next(roles), **sections, **rows}
        if name in OTHER_ELEMENTS:
            continue
        (wanted, none), (found, of) = (ran(config_of(folder, path, **given), name) for path in ("flat", "levels"))
        assert not none
        added |= {name} if of else set()
        # a difference in the last bit is rounded to another half, or grows where a gradient is divided by its own size
        close(found, wanted, (name, given), WITHIN.get(name, 1e-12))
    with on_every_rank():
        assert not added & NOTHING_ADDED, added
        assert len(added) >= len(CASES) // 3, added


@pytest.mark.parallel([3, 4])
def test_evaluations_and_steps_that_are_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
    data = {name: str(folder / "data.h5") for name in ("train", "validation")}
    copies = {"policy": {"name": "cached", "staleness": 1, "capacity": 1000}}
    copies["exchange"] = {"forms": {"history": "pooled", "tag": "pooled"}}
    copies["embedding"] = {**ROWS["embedding"], "share": {}}
    roles = itertools.cycle(roles_for(COMM.size))
    for policy in ({}, {"policy": {"name": "hybrid", "staleness": 2}}, {}, copies):
        seen, topology = [], next(roles)
        for path in ("flat", "levels"):
            more = {"data": data, "train": {"nonfinite": "skip"}, "topology": topology, **ROWS, **policy}
            with open_session(config_of(folder, path, **more)) as session:
                for step in session.steps():
                    if step.number == 2:
                        spoil(session, step)
                    step.run()
                assert session.guard.skipped == 1
                seen.append(([session.evaluate("validation")["logloss"]], gather_tables(session)))
        close(seen[1], seen[0], policy)


@pytest.mark.parallel([4])
def test_tables_within_hosts_are_where_levels_would_have_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bags of several ids, without being told; runs are the flat ones but for the order of sums."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1, 1))
    tables = {name: {"dynamic": {"capacity": 400}} for name in ("history", "tag", "user")}  # of bags one a host
    given = {"topology": EVERY_RANK, "embedding": {"share": {}, "tables": tables}}
    (wanted, _), (found, added) = (ran(config_of(folder, path, **given), "dynamic") for path in ("flat", "levels"))
    close(found, wanted, "placement")
    with open_session(config_of(folder, "levels", **given)) as session:
        family_of, hosts = session.parts.exchange.layout.family_of, session.topology.host_of
        holding = {name: {hosts[rank] for rank in family_of[name].holders} for name in tables}
    with on_every_rank():
        assert "history" in added
        assert (len(holding["history"]), len(holding["user"])) == (1, 2), "of bags of one id nothing is saved"


@pytest.mark.parallel([3, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("store", ["disk", "gpu"])
def test_any_store_gives_the_bits_of_memory(store: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By levels, with bags that hosts add and rows that they ask for together; on the disk, rows come and go."""
    write_data(folder / "data.h5")
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
    monkeypatch.setattr(DiskStore, "of_tier", Settings(piece_bytes=4096, segment_bytes=16384))
    monkeypatch.setattr(DiskStore, "_left_for_rows", lambda self, own: 6000)
    for name in ("dynamic bags, evicted", "rows and sums", "hybrid", "dynamic within hosts, evicted"):
        given = {"topology": EVERY_RANK, **ROWS, **CASES[name]}
        disk = {"path": str(folder / f"rows of {name}"), "memory_bytes": 20_000_000}
        more = {"name": store, **(disk if store == "disk" else {"device": "emulated"})}
        wanted, added = ran(config_of(folder, "levels", **given), name)
        found, _ = ran(config_of(folder, "levels", **given, store=more), name)
        assert added, name
        close(found, wanted, (name, store), 0.0)


GO_ON: dict[str, tuple[dict[str, Any], float]] = {
    "sums": ({}, 1e-12),
    "hybrid": ({"policy": {"name": "hybrid", "staleness": 2}}, 1e-12),
    "bf16": (
        {
            "exchange": {"codec": "bf16"},
            "train": {"dtype": "float32"},
            "embedding": {**ROWS["embedding"], **SGD},
        },
        5e-3,
    ),
    "dynamic": (CASES["dynamic bags, evicted"], 1e-12),
    "within hosts": (CASES["within hosts"], 1e-12),
    "dynamic within hosts": (
        {
            "embedding": {
                "share": {},
                "tables": {name: {"dynamic": {"capacity": 400}, "shard": "host"} for name in ("history", "tag")},
            },
        },
        1e-12,
    ),
}


@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("case", GO_ON)
def test_goes_on_with_its_bits_and_on_other_hosts(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    sections, most = GO_ON[case]
    keep: dict[str, Any] = {"checkpoint": {"every": 2}, "topology": EVERY_RANK, **ROWS, **sections}
    keep["data"] = {"train": str(folder / "data.h5"), "chunk": 8, "window": 3}
    gather_tables = dynamic_of if case.startswith("dynamic") else runs.gather_tables
    on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
    wanted = finished(config_of(folder / "whole", "levels", **keep), gather_tables)
    for name, hosts in (("the same", (0, 0, 1, 1)), ("others", (0, 1, 1, 0)), ("one", (0, 0, 0, 0))):
        on_hosts(monkeypatch, (0, 0, 1, 1)[: COMM.size])
        config = config_of(folder / name, "levels", **keep)
        finished(config, gather_tables, stop_at=2)
        assert find_checkpoint(config.run.folder) is not None
        on_hosts(monkeypatch, hosts[: COMM.size])
        found = finished(config, gather_tables, resume=True)
        close(([], found), ([], wanted), (case, name), 0.0 if name == "the same" else most)


def vectors(layout: Layout, roots: Roots, session: Session, batch: GlobalBatch) -> Iterator[tuple[int, int, int]]:
    """Of a batch: elements of pooled vectors by who sends them and to whom, counted one bag at a time."""
    topology, widths = session.topology, {name: spec.width for name, spec in session.parts.tables.items()}
    cuts = session.parts.splits["train"].order.deal(len(batch.label), len(topology.dense))
    for part, dense in enumerate(topology.dense):
        for feature, family in layout.family_of.items():
            ids, offsets = batch.bags[feature].ids, batch.bags[feature].offsets
            sent = set()
            for sample in range(int(cuts[part]), int(cuts[part + 1])):
                mine = np.asarray(ids[offsets[sample] : offsets[sample + 1]])
                for of in family.deal(mine)[0] if len(mine) else ():
                    holder = family.holders[int(of)]
                    sent.add((roots.of((feature,), holder, dense) if feature in layout.added else holder, sample))
            for sender, _ in sent:
                yield sender, dense, sum(widths[t] for t in layout.tables_of[feature])


@pytest.mark.parallel([3, 4])
def test_what_crosses_is_a_vector_for_each_bag_and_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    hosts = (0, 0, 1, 1)[: COMM.size]
    on_hosts(monkeypatch, hosts)
    shard = {"embedding": {"share": {}, "tables": {f: {"shard": "row"} for f in ("user", "item", "history", "tag")}}}
    crossed = {}
    for path in ("flat", "levels"):
        with open_session(config_of(folder, path, topology=EVERY_RANK, **shard)) as session:
            layout, topology = session.parts.exchange.layout, session.topology
            roots, expected = Roots(layout, topology.dense, topology.host_of), 0
            for batch in global_batches(session, session.total_steps):
                elements = Counter[tuple[int, int]]()
                for sender, dense, n in vectors(layout, roots, session, batch):
                    elements[sender, dense] += n
                messages = [8 * n for (a, b), n in elements.items() if hosts[a] != hosts[b]]
                expected += sum(-(-n // 64) * 64 for n in messages)
            for step in session.steps():
                step.run()
            session.parts.pipeline.settle()
            told = commands._topology(session)["added"]
            crossed[path] = COMM.allreduce(session.parts.world.ledger.snapshot())[:, 1]
            with on_every_rank():
                assert layout.added == (frozenset() if path == "flat" else {"history", "tag"})
                assert told == sorted(layout.added)
                assert crossed[path][TAGS.index("values")] == expected, path
    with on_every_rank():
        for tag in ("values", "gradients"):
            assert crossed["levels"][TAGS.index(tag)] < crossed["flat"][TAGS.index(tag)], tag


@pytest.mark.parallel([4])
def test_bytes_are_as_counted_before(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that auto counts with, what owners give each other to add among them; but for padding, and heads."""
    write_data(folder / "data.h5", samples=800)
    on_hosts(monkeypatch, (0, 0, 1, 1))
    tables = {name: {"shard": "row"} for name in ("history", "tag")} | {"user": {"shard": "table"}}
    sections = {"embedding": {"share": {}, "tables": tables}, "model": {"width": 64}, "topology": EVERY_RANK}
    wanted = {"exchange": {"form": "auto", "forms": {"history": "pooled", "tag": "pooled"}, "auto_steps": 2}}
    with open_session(
        config_of(folder, "levels", **sections, **wanted, train={"batch_size": 400, "steps": 2})
    ) as session:
        assert session.parts.exchange.layout.added == {"history", "tag"}
        held_to_the_ledger(session)


def held_to_the_ledger(session: Session) -> None:
    """Bytes of values and gradients of a run of two steps, in all and across hosts, are those that were predicted."""
    assert session.parts.chosen is not None
    told = session.parts.chosen.found
    for step in session.steps():
        step.run()
    session.parts.pipeline.settle()
    ledger = COMM.allreduce(session.parts.world.ledger.snapshot()) / 2
    with on_every_rank():
        for tag in ("values", "gradients"):
            both = ledger[TAGS.index(tag)].sum(), told["predicted_bytes_per_step"][tag]
            assert abs(both[0] / both[1] - 1) < 0.03, (tag, both)
            far = ledger[TAGS.index(tag), 1], told["predicted_cross_host_bytes_per_step"][tag]
            assert abs(far[0] / far[1] - 1) < 0.03, (tag, far)
