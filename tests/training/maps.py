"""Whole runs on maps of hosts, by levels and flat, on more ranks than the tests' own: what ``test_maps.py`` starts.

Called on every rank of a job, which says the hosts; collective throughout. The cases are those of the tests on 3 and 4
ranks. Knows nothing of jobs.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.comm import levels
from hpcrec.comm.ledger import TAGS
from hpcrec.comm.levels import pairs_of
from hpcrec.comm.topology import Topology
from hpcrec.exchange.roots import Roots
from hpcrec.training.session import Session
from tests.together import on_every_rank
from tests.training import runs, test_host_rows, test_host_sums
from tests.training.runs import global_batches, train, write_data
from tests.training.test_at_place import cases_of, learns_as_in_one_process
from tests.training.test_folded import rows_alike
from tests.training.test_host_rows import rows_across, rows_of
from tests.training.test_host_sums import (
    EVERY_RANK,
    ROUNDED,
    ROWS,
    SGD,
    WITHIN,
    close,
    config_of,
    on_hosts,
    ran,
    vectors,
)
from tests.training.test_levels import CASES as LEVELS
from tests.training.test_levels import limits_in_turn, uncoded_inside
from tests.training.test_store_gpu import same, tables_of

COMM = MPI.COMM_WORLD
MAPS = {
    "1x2": (0, 0),
    "2x1": (0, 1),
    "2x2": (0, 0, 1, 1),
    "4x1": (0, 1, 2, 3),
    "1+2+3": (0, 1, 1, 2, 2, 2),
    "4x2": (0, 0, 1, 1, 2, 2, 3, 3),
    "4x8": tuple(host for host in range(4) for _ in range(8)),
    "8x8": tuple(host for host in range(8) for _ in range(8)),
}
MANY = 8  # ranks, beyond which all have both roles
LOOSE = {"adam": 1e-9, **WITHIN}  # whatever rounding grows by; as in the tests on 3 and 4 ranks
STEPS, COUNTED_STEPS, BATCH = 4, 2, 300


def roles_of(hosts: tuple[int, ...]) -> list[dict[str, Any]]:
    """By split ranks owners are on the first hosts alone, then on all that have several ranks, as dense ranks are."""
    split: list[dict[str, Any]] = [{"mode": "split"}]
    if len(hosts) > 2 and len(set(hosts)) < len(hosts):  # a host of one rank then has the one role, or the other
        split += [{"mode": "split", "owners_per_host": 1}, {"mode": "split", "dense_per_host": 1}]
    return [EVERY_RANK, *split]


def turns(hosts: tuple[int, ...], first: int) -> Iterator[dict[str, Any]]:
    """Roles of one case after the other: of each second one all ranks have both; ``first``: 0 or 1, the first one's."""
    fused, *split = roles_of(hosts)
    return itertools.islice(itertools.cycle([roles for others in split for roles in (fused, others)]), first, None)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Of sums, and of rows. Dynamic tables are dealt to all owners: to others there is room for other ids.

    Rows learn by SGD where values are rounded: an Adagrad divides by the size of what is left where gradients cancel.
    """
    for name, sections in test_host_sums.CASES.items():
        if name in test_host_sums.OTHER_ELEMENTS:
            continue
        embedding = {**ROWS["embedding"], **sections.get("embedding", {}), **(SGD if name in ROUNDED else {})}
        tables = {t: {"shard": "row", **of} if "dynamic" in of else of for t, of in embedding["tables"].items()}
        yield name, {**sections, "embedding": {**embedding, "tables": tables}}
    for name, sections in test_host_rows.CASES.items():
        yield f"rows, {name}", rows_of(name, sections)


def said(about: object) -> None:
    """Rank 0 says what has passed, in a line: so that what did not, or hangs, is known."""
    if COMM.rank == 0:
        print(f"passed: {about}", flush=True)


def check_cases(folder: Path, hosts: tuple[int, ...], first: int = 0) -> Counter[str]:
    """Each case by levels is the flat run but for the order of sums; ``first`` as of ``turns``."""
    write_data(folder / "data.h5")
    roles, seen, patch = turns(hosts, first), Counter[str](), pytest.MonkeyPatch()
    for number, (name, sections) in enumerate(cases()):
        limits_in_turn(patch, number // 2)  # each of two sizes in a row: of ranks of both roles, and apart
        given = {"topology": next(roles), **sections, "train": {"steps": STEPS, **sections.get("train", {})}}
        bare = name.removeprefix("rows, ")
        (wanted, none), (found, added) = (ran(config_of(folder, path, **given), bare) for path in ("flat", "levels"))
        with on_every_rank():
            assert not none
        close(found, wanted, (name, hosts, given), LOOSE.get(bare, 1e-12))
        seen += Counter({"cases": 1, "added": bool(added), "split": given["topology"] != EVERY_RANK})
        said(name)
    patch.undo()
    return seen


def check_bits(folder: Path, hosts: tuple[int, ...], first: int = 0) -> Counter[str]:
    """Each case where nothing is added on the way has the bits of the flat run; ``first`` as of ``turns``."""
    write_data(folder / "data.h5")
    with pytest.MonkeyPatch.context() as patch:
        uncoded_inside(patch)
        return _check_bits(folder, hosts, first)


def _check_bits(folder: Path, hosts: tuple[int, ...], first: int) -> Counter[str]:
    roles, seen = turns(hosts, first), Counter[str]()
    for name, sections in LEVELS.items():
        given = {"topology": next(roles), **sections, "train": {"steps": STEPS, **sections.get("train", {})}}
        given["exchange"] = {"reduce": "dense", **sections.get("exchange", {})}
        run = tables_of if name == "dynamic" else train
        wanted, found = (run(config_of(folder, path, **given)) for path in ("flat", "levels"))
        with on_every_rank():
            if name == "dynamic":
                assert found == wanted, name
            else:
                same(found, wanted)
        seen += Counter({"cases": 1, "split": given["topology"] != EVERY_RANK})
        said(name)
    return seen


def formula(topology: Topology, path: str, form: str, added: bool) -> dict[str, np.ndarray]:
    """Messages of a step [R, 2] by tag, to the own host and to others, from roles and hosts alone.

    Flat: one to each rank of the other role. By levels: one from host to host, by the gate of the pair, if any rank
    here has something to say to one there; within a host as ever, and once more between its owners, of sums, or its
    dense ranks, of rows, if there are such of the other role elsewhere.
    """
    hosts, owners, dense = topology.host_of, topology.owners, topology.dense
    helpers, beyond = (dense, owners) if form == "rows" else (owners, dense)
    told = {}
    for tag, senders, receivers in (("ids", dense, owners), ("values", owners, dense), ("gradients", dense, owners)):
        of = told[tag] = np.zeros((topology.size, 2), np.int64)
        for rank, here in enumerate(hosts):
            if rank in senders:
                of[rank] += np.bincount([hosts[other] != here for other in receivers if other != rank], minlength=2)
            if path == "levels":
                pairs = [pair for pair in pairs_of(hosts, rank) if pair.gate == rank]
                sends = any(hosts[other] == here for other in senders)
                of[rank, 1] = sends * sum(bool(set(pair.there.tolist()) & set(receivers)) for pair in pairs)
            if added and rank in helpers and any(hosts[other] != here for other in beyond):
                of[rank, 0] += (form == "rows" or tag != "ids") * (sum(hosts[r] == here for r in helpers) - 1)
    return told


def bytes_across(session: Session, *, by_rows: bool) -> int:
    """Of values, and of gradients, of all batches: counted one bag at a time, or one id, in float64."""
    layout, topology, elements = session.parts.exchange.layout, session.topology, 0
    roots = Roots(layout, topology.dense, topology.host_of)
    widths = {name: spec.width for name, spec in session.parts.tables.items()}
    for batch in global_batches(session, session.total_steps):
        if by_rows:
            asked = set(rows_across(session, batch, topology.host_of, together=bool(layout.merged)))
            elements += sum(widths[t] for _, _, tables, _ in asked for t in tables)
        else:
            sent = vectors(layout, roots, session, batch)
            elements += sum(n for a, b, n in sent if topology.host_of[a] != topology.host_of[b])
    return 8 * elements


def check_counts(folder: Path, hosts: tuple[int, ...], _: int = 0) -> Counter[str]:
    """Messages by level are those of the formula; values and gradients across hosts those counted by hand.

    With all roles that the map has, of up to ``MANY`` ranks; on more tables and batches are larger, so that each owner
    has something to say to each rank.
    """
    levels.PEER_BYTES = levels.ALONE_BYTES = 1 << 40  # what is told of each pair is one message, however much it is
    batch, times = (BATCH, 1) if len(hosts) <= MANY else (150 * len(hosts), 100)
    larger = [replace(feature, cardinality=times * feature.cardinality) for feature in runs.FEATURES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "FEATURES", larger)
        write_data(folder / "data.h5", samples=COUNTED_STEPS * batch)
    tables, seen = {name: {"shard": "row"} for name in ("user", "item", "history", "tag")}, Counter[str]()
    wanted = [(form, roles, "levels") for form in ("pooled", "rows") for roles in roles_of(hosts)]
    wanted += [("pooled", EVERY_RANK, "flat"), ("rows", EVERY_RANK, "flat")]
    if len(hosts) > MANY:
        wanted = [run for run in wanted if run[1] == EVERY_RANK]
    for form, roles, path in wanted:
        sections = {"embedding": {"share": {}, "tables": tables}, "model": {"width": 24}, "topology": roles}
        train = {"steps": COUNTED_STEPS, "batch_size": batch}
        with open_session(config_of(folder, path, exchange={"form": form}, train=train, **sections)) as session:
            layout = session.parts.exchange.layout
            expected = COMM.bcast(bytes_across(session, by_rows=form == "rows") if COMM.rank == 0 else None)
            for step in session.steps():
                step.run()
            session.parts.pipeline.settle()
            ledger, topology = session.parts.world.ledger, session.topology
            n_bytes, messages_R = COMM.allreduce(ledger.snapshot()), COMM.allgather(ledger.messages())
        added = bool(layout.added | layout.merged)
        by_formula, about = formula(topology, path, form, added), (form, roles, path)
        with on_every_rank():
            for tag, of in by_formula.items():
                found = np.array([messages[TAGS.index(tag)] for messages in messages_R])
                np.testing.assert_array_equal(found, COUNTED_STEPS * of, err_msg=f"{tag}: {about}")
                pairs = {(hosts[a], hosts[b]) for a in topology.owners for b in topology.dense if hosts[a] != hosts[b]}
                assert path == "flat" or found[:, 1].sum() == COUNTED_STEPS * len(pairs), (tag, about)
            for tag in ("values", "gradients"):
                assert 1 <= n_bytes[TAGS.index(tag), 1] / expected < 1.03, (tag, about, n_bytes, expected)
        seen += Counter({"runs": 1, "added": added})
        said(about)
    return seen


def check_towers(folder: Path, hosts: tuple[int, ...], _: int = 0) -> Counter[str]:
    """Towers at their place learn as in one process, on this map by every role."""
    write_data(folder / "data.h5")
    seen = Counter[str]()
    with pytest.MonkeyPatch.context() as patch:
        rows_alike(patch)
        for case in cases_of([hosts], roles_of(hosts)):
            several = learns_as_in_one_process(folder, case)
            seen += Counter({"cases": 1, "several": several, "split": case[1] != EVERY_RANK})
            said(case)
    return seen


def main(folder: Path, name: str, check: str, first: int = 0) -> None:
    """Of a job: the map, what is checked on it, and the place of the first case's roles; rank 0 says what was seen."""
    hosts = MAPS[name]
    checks = {"cases": check_cases, "bits": check_bits, "counts": check_counts, "towers": check_towers}
    assert COMM.size == len(hosts), f"{COMM.size} ranks for map {name}"
    on_hosts(pytest.MonkeyPatch(), hosts)
    seen = checks[check](folder, hosts, first)
    if COMM.rank == 0:
        print(json.dumps(seen))
