"""From a configuration to a session: every choice of the configuration becomes an object here, and only here.

Knows every package; decides nothing that the configuration does not say. Set-up is collective: what one rank finds
wrong is raised on all of them together (``comm.failure.agree``), before any data crosses.
"""

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from hpcrec import kernels
from hpcrec.build.auto import choose, make_exchange, make_pipeline, refuse_together
from hpcrec.build.datasets import open_datasets
from hpcrec.build.dealing import make_affinity
from hpcrec.build.dense import DenseSide
from hpcrec.build.device import make_device, make_place
from hpcrec.build.measures import make_measures
from hpcrec.build.path import Offered, Way, offered, settle
from hpcrec.build.tables import (
    DTYPES,
    describe_policy,
    make_model,
    make_offers,
    make_policy,
    make_roles,
    store_class,
    whole_tables,
)
from hpcrec.comm.failure import agree, unwatch, watch
from hpcrec.comm.stall import StallLimits
from hpcrec.comm.topology import Topology
from hpcrec.comm.world import World
from hpcrec.config import Config, load_config
from hpcrec.data.deal import Deal, cut, equal_parts
from hpcrec.data.grouped import GroupedOrder, Order
from hpcrec.data.order import GlobalOrder
from hpcrec.data.reader import DataSet
from hpcrec.dense.codistillation import Other
from hpcrec.embedding.shards import Family
from hpcrec.embedding.store import Store
from hpcrec.errors import ConfigError, DataError
from hpcrec.exchange.choose import Choice
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.layout import Layout
from hpcrec.policy.flight import GRADIENTS, VALUES
from hpcrec.training.compression import advise
from hpcrec.training.look_ahead import LookAhead
from hpcrec.training.nonfinite import Guard
from hpcrec.training.parts import DensePart, Parts, Split
from hpcrec.training.schedule import Schedule
from hpcrec.training.session import Session
from hpcrec.training.timer import PhaseTimer
from hpcrec.types import TableSpec

T = TypeVar("T")


def open_session(
    config: Config | Path | str,
    overrides: Sequence[str] = (),
    *,
    reading: bool = False,
    deal: Deal = equal_parts,
) -> Session:
    """A session for a user's own loop, or for ``hpcrec train``; collective over all ranks.

    Parameters
    ----------
    config : Config or path of a TOML file
    overrides : sequence of "section.key=value", or ``config.Unset("section.key")``
    reading : bool
        Nothing will be trained: any number of owners has room for all rows of dynamic tables.
    deal : Deal
        Which samples of a batch each dense rank takes (``data.deal``), the same function on every rank. What memory a
        run is predicted to take is that of equal parts.

    Raises
    ------
    ConfigError, DataError
        On all ranks together.
    """
    config = config if isinstance(config, Config) else load_config(config, overrides)
    timer = PhaseTimer()
    try:
        with timer("set_up"):
            return _opened(config, deal, timer, reading=reading)
    except BaseException:
        unwatch()  # a program that goes on without a session is ended by signals, as before
        raise


def _opened(config: Config, deal: Deal, timer: PhaseTimer, *, reading: bool) -> Session:
    world = make_world(config)
    try:
        return _opened_on(world, config, deal, timer, reading=reading)
    except BaseException:
        if world.topology.size == 1:  # its process may go on; the others of several ranks are not waited for
            world.close()
        raise


def _opened_on(world: World, config: Config, deal: Deal, timer: PhaseTimer, *, reading: bool) -> Session:
    agreed = partial(_together, world)
    agreed(lambda: _say_less(config, world))  # where a warning is an error, on all ranks
    splits = agreed(lambda: _open_splits(config, deal))
    agreed(lambda: _check_same_data(splits, world))
    _check_same_deal(agreed(lambda: _dealt(splits, world.topology)), world)
    dataset = splits["train"].dataset
    model, operators = agreed(lambda: make_model(config, dataset, world.topology.group))
    datasets = {name: split.dataset for name, split in splits.items()}
    measures = agreed(lambda: make_measures(config, datasets, operators))
    offer = partial(make_offers, config, dataset, operators, world.topology, reading=reading)
    refuse = partial(refuse_together, config, topology=world.topology, direct=False)
    ways = agreed(lambda: offered(config, world, offer, refuse))
    agreed(lambda: [of.layout({}) for _, _, of in ways.values()])  # refuses what cannot be had, before all else
    agreed(lambda: _check_threads(config, world))
    place, others = agreed(lambda: make_place(config, world.topology)), _other_groups(config, dataset, world.topology)
    dense = agreed(lambda: DenseSide(config, model, operators, world, place, others))
    signal = watch()
    (tables, _, offers), settled = _settled(config, world, splits["train"], ways, dense, timer)
    layout, families, chosen = choose(config, world, splits["train"], offers, dense, timer, settled)
    if layout.apart:
        agreed(lambda: _say_apart(layout, world.topology))  # where a warning is an error, on all ranks
    part = agreed(lambda: dense.part(layout.away))
    affinity = None if reading else agreed(lambda: make_affinity(config, tables, families, world.topology.dense))
    store = agreed(lambda: _make_store(config, tables, families, world.topology))
    exchange = make_exchange(config, world, splits["train"], operators, layout, store, place, timer)
    what, limit = config.train.nonfinite, config.train.nonfinite_limit
    guard = Guard(world.main, world.dense, skips=what != "stop", drops=what == "drop", limit=limit)
    parts = Parts(
        world=world,
        exchange=exchange,
        pipeline=make_pipeline(config, exchange, timer),
        policy=describe_policy(config),
        chosen=chosen,
        tables=tables,
        dense=part,
        slices=dense.slices(exchange.slices, layout.away),
        clip_norm=config.dense.clip_norm,
        splits=splits,
        measures=measures,
        schedule=_schedule(config, config.train.steps or config.train.epochs * splits["train"].order.n_batches),
        scale_embeddings=config.schedule.apply_to_embeddings,
        epochs=config.train.epochs,
        steps=config.train.steps,
        seed=config.train.seed,
        dtype=DTYPES[config.train.dtype][1],
        prefetch=config.data.prefetch,
        look_ahead=_look_ahead(config, exchange, store),
        timer=timer,
        signal=signal,
        save_failed=threading.Event(),
        teaches_from=_teaches_from(config),
        affinity=affinity,
        links_rows=config.checkpoint.links_rows(config.store.name),
        close=partial(_close, part, splits, world),
    )
    if not reading:
        advise(parts)
    return Session(parts, guard)


def _settled(
    config: Config, world: World, train: Split, ways: Mapping[Way, Offered], dense: DenseSide, timer: PhaseTimer
) -> tuple[Offered, tuple[Choice, dict[str, Any]] | None]:
    """What is offered by the way that is taken, and what is chosen with it; collective."""
    if not config.exchange.chooses:
        return next(iter(ways.values())), None
    with timer("choose"):
        settled = settle(config, world, train, {way: offers for way, (_, _, offers) in ways.items()}, dense)
    if settled is None:
        return next(iter(ways.values())), None
    world.take_path(settled.way.path)
    return ways[settled.way], (settled.choice, settled.found)


def _look_ahead(config: Config, exchange: Exchange, store: Store | None) -> LookAhead:
    first, most, flying = config.exchange.first_ahead, config.exchange.most_ahead, make_policy(config).in_flight - 1
    return LookAhead(first, most, flying, lambda: 0.0 if store is None else store.waited_s, exchange.most_of_all)


def _close(dense: DensePart | None, splits: dict[str, Split], world: World) -> None:
    if dense is not None:
        dense.close()
    unwatch()
    for split in splits.values():
        split.dataset.close()
    world.close()


def make_world(config: Config) -> World:
    """The communicators that ``[topology]`` asks for; collective."""
    limits = StallLimits(config.run.stall_report_s, config.run.stall_abort_s)
    wanted = config.dense.codistillation
    return World(
        None,
        partial(make_roles, config),
        limits,
        windows=config.exchange.windows,
        groups=wanted.groups,
        own_tables=not wanted.share_embeddings,
        piece_bytes=config.exchange.piece_bytes,
        levels=config.exchange.may_level,
        places=config.topology.places,
        lanes=() if make_policy(config).in_flight == 1 else (VALUES, GRADIENTS),
    )


def _say_less(config: Config, world: World) -> None:
    if (why := _why_less(config, world)) and world.topology.rank == 0:
        warnings.warn(why, stacklevel=6)


def _why_less(config: Config, world: World) -> str:
    """Why hosts do less than levels would have them do, where that was asked for and they have several ranks."""
    if config.exchange.path != "levels" or not 1 < world.topology.n_hosts < world.topology.size:
        return ""
    if not world.by_levels:
        reason = world.without_windows
        return f"exchange.path is 'levels', but the ranks of a host cannot share memory ({reason}): the path is flat."
    if getattr(make_policy(config), "parts", False):
        return (
            f"exchange.path is 'levels', but policy.name is {config.policy.name!r}, by which steps cross in two parts: "
            "hosts neither add vectors nor ask for rows together, and tables are dealt over all owners; there are "
            "fewer messages, and that is all. Set policy.name = 'sync' or 'hybrid' for the rest."
        )
    return ""


def _say_apart(layout: Layout, topology: Topology) -> None:
    """Warns which operators dense ranks compute, though they were to be computed where their rows are."""
    if topology.rank == 0:
        reasons = "; ".join(f"{name}, because {why}" for name, why in layout.apart.items())
        told = f"Of the operators that owners were to compute by exchange.form, dense ranks compute {reasons}."
        warnings.warn(told, stacklevel=6)


def _teaches_from(config: Config) -> int | None:
    """The step from which on tables of other groups are read in training; None where they never are."""
    wanted = config.dense.codistillation
    return None if wanted.share_embeddings or not wanted.weight else wanted.burn_in_steps


def _other_groups(config: Config, dataset: DataSet, topology: Topology) -> dict[int, Other]:
    """Models of the other groups than this dense rank's."""
    if not topology.is_dense:
        return {}
    return {g: Other(*make_model(config, dataset, g)) for g in range(topology.groups) if g != topology.group}


def _together(world: World, make: Callable[[], T]) -> T:
    """``make()`` on every rank; if it fails on any rank, all ranks raise."""
    error, made = None, None
    try:
        made = make()
    except Exception as caught:
        error = caught
    agree(world.main, error)
    return made  # type: ignore[return-value]


def _open_splits(config: Config, deal: Deal) -> dict[str, Split]:
    """The data sets of the configuration; only the training data is shuffled."""
    splits: dict[str, Split] = {}
    for name, dataset in open_datasets(config).items():
        read = {"seed": config.train.seed, "chunk": config.data.chunk, "window": config.data.window}
        shuffle, batch = config.data.shuffle and name == "train", config.train.batch_size
        groups = config.dense.codistillation.groups if name == "train" else 1
        order: Order
        if groups > 1:
            order = GroupedOrder(dataset.samples, batch, groups, **read, shuffle=shuffle, deal=deal)
        else:
            order = GlobalOrder(dataset.samples, batch, **read, shuffle=shuffle, deal=deal)
        splits[name] = Split(dataset=dataset, order=order)
    return splits


def _check_same_data(splits: dict[str, Split], world: World) -> None:
    """Refuses ranks that read different files under one name, say copies on the disks of their hosts. Collective."""
    for name, split in splits.items():
        prints_R = world.main.allgather(split.dataset.fingerprint)
        others = [rank for rank, one in enumerate(prints_R) if one != prints_R[0]]
        if others:
            raise DataError(
                f"data.{name} ({split.dataset.path}): rank {others[0]} reads another data set there than rank 0. Give "
                "every host the same files."
            )


def _dealt(splits: dict[str, Split], topology: Topology) -> dict[tuple[int, int], list[int]]:
    """How batches are dealt, by their size and the number of parts: of all sizes that there are."""
    shares = [split.order.share(0, len(topology.dense)) for split in splits.values()]
    ranges = [(s, *s.order.batch_range(t)) for s in shares for t in (0, s.order.n_batches - 1)]
    return {(stop - start, s.parts): cut(s.order.deal, stop - start, s.parts).tolist() for s, start, stop in ranges}


def _check_same_deal(dealt: dict[tuple[int, int], list[int]], world: World) -> None:
    """Refuses ranks that would cut a batch differently, so that samples had several ranks or none. Collective."""
    dealt_R = world.main.allgather(dealt)
    for rank, theirs in enumerate(dealt_R):
        for (samples, parts), cuts in dealt_R[0].items():
            if theirs[samples, parts] != cuts:
                raise ConfigError(
                    f"the deal that was handed in cuts a batch of {samples} samples for {parts} dense ranks at {cuts} "
                    f"on rank 0, at {theirs[samples, parts]} on rank {rank}. Allowed: the same on all ranks. Hand in a "
                    "function of its two arguments alone, or none, for equal parts."
                )


def _make_store(
    config: Config, tables: dict[str, TableSpec], families: Sequence[Family], topology: Topology
) -> Store | None:
    held = [family for family in families if topology.rank in family.holders]
    if not held:
        return None
    store, said = store_class(config), config.store
    given = {
        "room_bytes": said.memory_bytes,
        "folder": None if said.path is None else Path(said.path) / f"rank-{topology.rank}",
        "whole": whole_tables(config, topology),
        "io": said.io,
        "window": said.window,
        "daily_bytes": said.daily_bytes,
        "gpu_bytes": said.gpu_bytes,
    }
    return store(
        tables,
        held,
        rank=topology.rank,
        seed=config.train.seed,
        dtype=DTYPES[config.train.dtype][0],
        device=make_device(config, topology),
        **{name: given[name] for name in store.keys},
    )


def _schedule(config: Config, total_steps: int) -> Schedule:
    s = config.schedule
    if s.kind == "constant":
        return Schedule(warmup_steps=s.warmup_steps)
    start = s.warmup_steps if s.decay_start is None else s.decay_start
    return Schedule(
        kind=s.kind,
        warmup_steps=s.warmup_steps,
        decay_start=s.decay_start,
        decay_steps=s.decay_steps or max(1, total_steps - start),
        final=s.final,
        power=s.power,
        factor=s.factor,
    )


def _check_threads(config: Config, world: World) -> None:
    """Threads of this rank's kernels and of torch; refuses what MPI's thread level does not allow. Collective."""
    if config.exchange.most_ahead and not world.threads_may_communicate:
        raise ConfigError(
            f"exchange.prefetch is {config.exchange.first_ahead}, but this MPI library does not let two threads "
            "communicate at once (MPI_THREAD_MULTIPLE). Set exchange.prefetch = 0, or use an MPI with thread support."
        )
    if make_policy(config).in_flight > 1 and not world.threads_may_communicate:
        raise ConfigError(
            f"policy.name is {config.policy.name!r}, under which a thread communicates beside the steps, but this MPI "
            "library does not let two threads communicate at once (MPI_THREAD_MULTIPLE). Set policy.name = 'sync', or "
            "use an MPI with thread support."
        )
    may, several = world.threads_may_communicate, len(world.topology.dense) > 1
    if config.dense.reducer == "horovod" and several and not may:
        raise ConfigError(
            "dense.reducer is 'horovod', whose thread sends while others do, but this MPI library does not let two "
            "threads communicate at once (MPI_THREAD_MULTIPLE). Set dense.reducer = 'mpi', or use an MPI with thread "
            "support."
        )
    if several and config.dense.device != "cpu" and config.dense.reducer != "horovod" and not may:
        raise ConfigError(
            "dense.device is not 'cpu', where gradients are sent from a thread of torch's, but this MPI library does "
            "not let two threads communicate (MPI_THREAD_MULTIPLE). Use an MPI with thread support."
        )
    topology = world.topology
    mine = frozenset(os.sched_getaffinity(0))
    cores_R = world.main.allgather(mine)
    sharing = sum(cores_R[rank] == mine for rank in topology.machine_ranks)  # a bound rank has its cores alone
    fair = max(1, len(mine) // sharing)
    kernels.set_threads((config.topology.owner_threads if topology.is_owner else config.topology.dense_threads) or fair)
    asked = config.topology.dense_threads if topology.is_dense else config.topology.owner_threads
    torch.set_num_threads(asked or fair)  # owners compute partial results by torch
