"""Policy ``cached``: a run that was interrupted goes on on other ranks, with copies as a new run's.

Held to the one-process reference that changes its ranks at the same drain point. A world cannot change its size, so
runs are on the first ranks of the test's world.
"""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build import session as build
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.data.deal import cut, equal_parts
from hpcrec.training.session import Session
from tests.policy.cached_reference import CachedReference, bundles_of, first_columns
from tests.policy.test_cached import as_rows, cached
from tests.policy.test_hybrid import config_of, trained
from tests.together import on_every_rank
from tests.training.runs import gather_tables, global_batches, reference_for, write_data

COMM = MPI.COMM_WORLD
STOP_AT, STEPS = 5, 10  # drain points, both
FUSED, HALVES = {"mode": "fused"}, {"mode": "split"}
Shape = tuple[int, dict[str, Any]]  # ranks, and their roles
OTHER_OWNERS: tuple[tuple[Shape, Shape], ...] = (
    ((3, {"mode": "split", "owners": 1}), (4, HALVES)),
    ((4, HALVES), (3, {"mode": "split", "owners": 1})),
    ((4, HALVES), (2, FUSED)),
)
OTHER_DENSE: tuple[tuple[Shape, Shape], ...] = (
    ((4, FUSED), (3, FUSED)),
    ((2, HALVES), (4, {"mode": "split", "owners": 1})),
    ((4, HALVES), (1, FUSED)),
)


@dataclass
class Learned:
    """Of a run so far, on its first rank; on others what they have seen of it."""

    tables: dict[str, np.ndarray] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    expected: list[float] = field(default_factory=list)  # losses of the reference
    one: CachedReference | None = None


def on_first(ranks: int, config: Config, body: Callable[[Session, Config], None], patch: pytest.MonkeyPatch) -> None:
    """Runs a session on so many ranks; others wait. What one raises is raised on all."""
    some, said = COMM.Split(int(COMM.rank >= ranks)), ""
    if COMM.rank < ranks:
        patch.setattr(build, "World", lambda _, *args, **options: World(some, *args, **options))
        try:
            with build.open_session(config) as session:
                body(session, config)
        except Exception:  # of all ranks of the run together, mostly; those beside wait for it
            said = traceback.format_exc()
    every = COMM.allgather(said)
    with on_every_rank():
        assert not any(every), said
    some.Free()


def trains(session: Session, config: Config, so_far: Learned, *, resumes: bool) -> None:
    """To ``STOP_AT``, where it saves, or from there to the end; the reference does the same on the first rank."""
    main, ranks = session.parts.world.main, len(session.topology.dense)
    bundles, columns = bundles_of(session), first_columns(session)

    def cuts(samples: int) -> list[int]:
        return cut(equal_parts, samples, ranks).tolist()

    reference = reference_for(session, config)  # by all ranks, of first rows
    if resumes:
        state.load(session, find_checkpoint(Path(config.run.folder), "last", main), resume=True)
    if COMM.rank == 0 and so_far.one is not None:
        so_far.one.goes_on(bundles, ranks, cuts, columns)
    elif COMM.rank == 0:
        policy = config.policy
        how: dict[str, Any] = {"staleness": policy.staleness, "capacity": policy.capacity, "columns": columns}
        so_far.one = CachedReference(reference, bundles, ranks, cuts, drains=(STOP_AT, STEPS), **how)
    batches = global_batches(session, STEPS)
    for step in session.steps():
        so_far.losses.append(float(main.allreduce(np.array([step.run()]))[0]))
        if so_far.one is not None:
            so_far.expected.append(so_far.one.step(batches[step.number]))
        if session.step == STOP_AT and not resumes:
            state.save(session, Path(config.run.folder), {})
            break
    so_far.tables = gather_tables(session)
    for of in main.allgather(session.parts.exchange.figures()):
        so_far.counts.update({name: int(n) for name, n in of.items()})


def interrupted(config: Config, before: Shape, after: Shape, patch: pytest.MonkeyPatch) -> Learned:
    """A run on ranks of one shape that goes on on those of another, held to the reference that does the same."""
    found = Learned()
    for (ranks, roles), resumes in ((before, False), (after, True)):
        of = replace(config, topology=replace(config.topology, **{"owners": None, "dense": None, **roles}))
        on_first(ranks, of, partial(trains, so_far=found, resumes=resumes), patch)
    with on_every_rank():
        if found.one is not None:
            assert len(found.losses) == len(found.expected) == STEPS
            np.testing.assert_allclose(found.losses, found.expected, rtol=0, atol=1e-12, err_msg=f"{before} {after}")
            for name, rows in found.tables.items():
                np.testing.assert_allclose(rows, found.one._reference.rows(name), rtol=0, atol=1e-12, err_msg=name)
            for name, n in found.one.counts.items():
                assert found.counts[name] == n, (name, before, after)
    return found


def config_with(folder: Path, staleness: int, capacity: int, optimizer: str) -> Config:
    more: dict[str, Any] = {"checkpoint": {"every": STOP_AT}, "train": {"steps": STEPS}}
    return cached(config_of(folder, None, "rows", optimizer, **more), staleness, capacity)


@pytest.mark.parallel([4])
def test_on_another_number_of_owners(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside each other: where as many dense ranks have room for all rows, however many owners there are."""
    write_data(folder / "data.h5")
    found = []
    for (before, after), optimizer in zip(OTHER_OWNERS, ("sgd", "rowwise_adagrad", "sgd"), strict=True):
        interrupted(config_with(folder, 3, 9, optimizer), before, after, monkeypatch)
    for before, after in OTHER_OWNERS[::2]:
        found.append(interrupted(config_with(folder, 3, 1000, "sgd"), before, after, monkeypatch))
    with on_every_rank():
        for other in found[1:] if COMM.rank == 0 else ():
            np.testing.assert_allclose(other.losses, found[0].losses, rtol=0, atol=1e-12)
            for name, rows in found[0].tables.items():
                np.testing.assert_allclose(other.tables[name], rows, rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parallel([4])
def test_without_staleness_on_another_number_of_dense_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to a run of ``sync`` that was not interrupted, but for the order of sums."""
    write_data(folder / "data.h5")
    config = config_with(folder, 0, 9, "rowwise_adagrad")
    whole = trained(as_rows(replace(config, policy=replace(config.policy, name="sync"))))
    for before, after in OTHER_DENSE:
        found = interrupted(config, before, after, monkeypatch)
        with on_every_rank():
            for name, rows in found.tables.items() if COMM.rank == 0 else ():
                np.testing.assert_allclose(rows, whole[name], rtol=0, atol=1e-12, err_msg=f"{before} {after} {name}")


@pytest.mark.parallel([4])
def test_with_staleness_on_another_number_of_dense_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference holds every read to the bound of the ranks that there are, s of each."""
    write_data(folder / "data.h5")
    for (before, after), optimizer in zip(OTHER_DENSE, ("adagrad", "sgd", "rowwise_adagrad"), strict=True):
        found = interrupted(config_with(folder, 2, 9, optimizer), before, after, monkeypatch)
        with on_every_rank():
            if found.one is not None:
                n, counts = found.one.most_missing, found.counts
                assert 0 < n <= 2 * max(before[0], after[0]), (before, after)
                assert counts["reads"] == counts["copies_read"] + counts["misses"] + counts["too_old"] > 0
                assert counts["copies_read"] > 0 and counts["pushed_drain"] > 0, counts
