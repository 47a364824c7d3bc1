"""Which path messages take, where towers are computed, and which forms features have with it, before the first step.

A way is a path, how tables are dealt, and whether towers are at their place. By ``exchange.path = "auto"`` there are
three: flat messages with tables dealt over all owners, the same with tables dealt within hosts as by levels, and
levels. Where towers have form ``auto`` each of them is looked at with towers at their place too: their tables are on
one host then, whose owners compute them. Of each way layouts are looked at: what form ``auto`` chooses by bytes, and
each form for all features that may be chosen for. A step's phases, bytes between hosts and bytes inside them are
counted (``exchange.measure``), and taken at prices that are measured on these ranks (``comm.prices``). Prices are not
the same twice: so a choice is saved with each checkpoint, and a run that goes on has it. Knows what is to be built; the
counts are ``auto``'s.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcrec.build.auto import ChoiceMaker, in_two_lanes, reduction_of, refuse_stages
from hpcrec.build.dense import DenseSide
from hpcrec.checkpoint import files
from hpcrec.checkpoint.state import EXCHANGE
from hpcrec.comm import prices
from hpcrec.comm.prices import Prices
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.embedding.shards import Family
from hpcrec.errors import CheckpointError, ConfigError
from hpcrec.exchange.choose import Choice
from hpcrec.exchange.forms import FORMS
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import busiest_host, cross_host_bytes, owner_flops, step_bytes
from hpcrec.exchange.offers import Offers
from hpcrec.operators.base import meets
from hpcrec.training.parts import Split
from hpcrec.training.ranks import on_root
from hpcrec.types import TableSpec


class Way(NamedTuple):
    """A path, whether tables are dealt within hosts as they are by levels, and whether towers are at their place."""

    path: str
    within: bool
    at_place: bool = False

    @property
    def said(self) -> str:
        """For records."""
        tables = ", tables within hosts" if self.within and self.path == "flat" else ""
        return f"{self.path}{tables}{', towers at their place' if self.at_place else ''}"


FLAT, FLAT_WITHIN, LEVELS = WAYS = Way("flat", False), Way("flat", True), Way("levels", True)
Offered = tuple[dict[str, TableSpec], tuple[Family, ...], Offers]
"""As of ``tables.make_offers``."""

WORTH = 0.03  # of a way's time: what another one is to save before it is taken in place of a simpler one
TOWERS = "towers_at_their_place"  # said of a choice where there was one
FULLER = 2.0  # times as much memory for rows as the fullest host has otherwise: what towers at their place may take
FLOPS_A_S = 5e10  # of a core, in products of matrices
_PHASES = 2  # in which values and gradients cross; ids besides
_SUM_MEETINGS, _ROW_MEETINGS = 2, 3  # of a host's ranks: for values and gradients; and for ids besides
_TOWER_MEETINGS = 3  # for vectors, their gradients, and those of modules


@dataclass(frozen=True)
class Settled:
    """A choice of both.

    Attributes
    ----------
    way : Way
    choice : Choice
    found : dict
        What records, and checkpoints, say of it.
    """

    way: Way
    choice: Choice
    found: dict[str, Any]


def offered(
    config: Config, world: World, offer: Callable[..., Offered], refuse: Callable[[Layout], None]
) -> dict[Way, Offered]:
    """What there is to choose from by each of the ways that may be taken, the simplest first.

    Of towers whose features have form ``auto`` those are at their place that can be, if no host has more than
    ``FULLER`` times as many elements of rows by it as the fullest host has otherwise. Pure: alike on every rank.

    Parameters
    ----------
    config, world
    offer : callable
        ``tables.make_offers`` by its last keywords: ``levels``, ``within`` and ``at_place``.
    refuse : callable
        Raises ConfigError where a layout does not go with the configuration.
    """
    every = WAYS if config.exchange.path == "auto" and world.by_levels else (LEVELS if world.by_levels else FLAT,)
    found, host_of = dict[Way, Offered](), world.topology.host_of
    for way in every:
        made = offer(levels=way.path == "levels", within=way.within)
        if way.within and FLAT in found and way.path == "flat" and found[FLAT][1] == made[1]:
            continue
        found[way] = made
    if config.exchange.at_place and config.exchange.chooses_forms and world.topology.n_hosts > 1:
        for way, plain in list(found.items()):
            there = _at_place(partial(offer, levels=way.path == "levels", within=way.within), refuse, plain)
            if there is not None and _fullest(there, host_of) <= FULLER * _fullest(plain, host_of):
                found[way._replace(at_place=True)] = there
    return found


def _at_place(offer: Callable[..., Offered], refuse: Callable[[Layout], None], plain: Offered) -> Offered | None:
    """The same with as many towers at their place as can be; None where there is no other than there are anyway.

    What cannot be had was not asked for, so that it is no error.
    """

    def tried(towers: Sequence[str]) -> Offered | None:
        with contextlib.suppress(ConfigError):
            made = offer(at_place=towers)
            layout = made[2].layout({})
            refuse(layout)
            return None if layout.apart else made
        return None

    free = set(plain[2].free)
    may = [
        name
        for name, operator in plain[2].operators.items()
        if meets(operator) and free.issuperset(k.feature for k in operator.lookups)
    ]
    made = tried(may) if may else None
    if may and made is None:
        some = [name for name in may if tried([name]) is not None]
        made = tried(some) if some else None
    return None if made is None or len(made[2].free) == len(free) else made


def _fullest(made: Offered, host_of: Sequence[int]) -> int:
    """Elements of rows of the host that has most."""
    tables, families, _ = made
    has = dict.fromkeys(host_of, 0)
    for family in families:
        for part, holder in enumerate(family.holders):
            for name in family.tables:
                start, stop = family.part_columns(tables[name].width, part)
                has[host_of[holder]] += (stop - start) * family.part_rows(part)
    return max(has.values())


def settle(
    config: Config, world: World, train: Split, offers_by: Mapping[Way, Offers], dense: DenseSide
) -> Settled | None:
    """The way and the forms of fewest seconds, or those of the run's newest checkpoint; collective.

    None where there is one way, and no checkpoint says what forms there are with it.

    Raises
    ------
    CheckpointError
        What a checkpoint has of it is none; on every rank.
    ConfigError, DataError
        As of ``auto.choose``.
    """
    for offers in offers_by.values():
        refuse_stages(config, offers)
    kept = on_root(world.main, lambda: kept_in(config))
    if kept and (config.exchange.path == "auto" or TOWERS in kept):
        return _taken(kept, offers_by)
    if kept is not None:  # it goes on, from before there was anything to say of towers
        offers_by = {way: offers for way, offers in offers_by.items() if not way.at_place}
    if len(offers_by) == 1:
        return None
    costs, found = prices.measure(world), list[tuple[float, Way, Choice, dict[str, Any]]]()
    for way, offers in offers_by.items():
        world.take_path(way.path)
        cost = costs[way.path]
        near = min(1.0, cost.near_byte_s / cost.far_byte_s) if cost.far_byte_s else 1.0
        maker = ChoiceMaker(config, world, train, offers, dense, near)
        made = [_candidate(config, world, maker, offers.layout(c.forms, c.replicated), cost, c)
                for c in _choices(maker, offers)]  # fmt: skip
        seconds, choice, told = min(made, key=lambda of: of[0])
        found.append((seconds, way, choice, told))
    least_s = min(seconds for seconds, *_ in found)
    _, way, choice, told = next(of for of in found if (1 - WORTH) * of[0] <= least_s)  # the simplest first
    told |= {
        "path": way.path,
        "tables_within_hosts": _within(way, offers_by),
        **({TOWERS: way.at_place} if any(of.at_place for of in offers_by) else {}),
        "copied_families": list(choice.replicated),
        "predicted_exchange_s": {of.said: seconds for seconds, of, _, _ in found},
        "predicted_bytes": {of.said: said.pop("bytes") for _, of, _, said in found},
        "prices": {of: cost.as_dict() for of, cost in costs.items()},
    }
    # sums of counts are the same on every rank by MPI's advice alone, and on this all have to agree
    return Settled(*world.main.bcast((way, choice, told)))


def _within(way: Way, offers_by: Mapping[Way, Offers]) -> bool:
    """Whether tables are dealt otherwise than over all owners."""
    over_all = offers_by.get(way._replace(path="flat", within=False))
    return way.within if over_all is None else offers_by[way].families != over_all.families


def _choices(maker: ChoiceMaker, offers: Offers) -> Iterator[Choice]:
    """That of fewest bytes, and each form for all by which owners compute no more: their seconds are not counted."""
    yield maker.choice
    for form in offers.forms if offers.free and offers.kept is None else ():
        if (single := maker.chooser.single(form)).flops <= maker.choice.flops:
            yield single


def _candidate(
    config: Config, world: World, maker: ChoiceMaker, layout: Layout, cost: Prices, choice: Choice
) -> tuple[float, Choice, dict[str, Any]]:
    """Seconds of a step's exchange, of hosts that are alike, without dense gradients; and what records say of it."""
    reduction = reduction_of(config, layout, world.topology)
    far = cross_host_bytes(layout, maker.asks, reduction, item_bytes=maker.item_bytes)
    levels = (lambda _: reduction) if world.by_levels else None
    none = {"dense_elements": 0, "dense_item_bytes": 0.0, "dense_ranks": 1}
    every = step_bytes(layout, maker.asks, item_bytes=maker.item_bytes, levels=levels, **none)  # type: ignore[arg-type]
    near = {tag: n - far.get(tag, 0.0) for tag, n in every.items()}
    told = {**maker.found(choice), "bytes": {"far": sum(far.values()), "near": sum(near.values())}}
    if layout.meetings:  # hosts with towers send what others do not
        more = busiest_host(layout, maker.asks, reduction, world.topology.host_of, item_bytes=maker.item_bytes)
        far = {tag: n * more for tag, n in far.items()}
    if in_two_lanes(config, layout, reduction):  # gradients of a step cross beside the values of another one
        shorter = min(("values", "gradients"), key=lambda tag: far[tag])
        far, near = ({tag: n for tag, n in of.items() if tag != shorter} for of in (far, near))
    phases = _PHASES * (1 + bool(reduction.across)) + (config.exchange.ids == "routed")
    meetings = _SUM_MEETINGS * (bool(layout.added) + bool(reduction.inside)) + _ROW_MEETINGS * bool(layout.merged)
    meetings += _TOWER_MEETINGS * bool(layout.meetings)
    hosts, ranks_H = world.topology.n_hosts, np.bincount(world.topology.host_of)
    pairs = (world.topology.size**2 - int((ranks_H**2).sum())) / hosts
    seconds = cost.step_s(phases, meetings, [n / hosts for n in far.values()], sum(near.values()) / hosts, pairs)
    return seconds + _longer_s(config, world, layout), choice, told


def _longer_s(config: Config, world: World, layout: Layout) -> float:
    """How much longer the busiest owner computes towers than each dense rank would."""
    if not layout.meetings:
        return 0.0
    flops = owner_flops(layout, config.train.batch_size).values()
    return max(0.0, max(flops) - sum(flops) / len(world.topology.dense)) / FLOPS_A_S


def kept_in(config: Config) -> dict[str, Any] | None:
    """What the checkpoint that a run may go on from says of its way: empty where it says nothing, None without one."""
    which, folder = config.checkpoint.resume, Path(config.run.folder)
    if which == "never":
        return None
    steps = [files.step_folder(folder, step) for step in reversed(files.steps_in(folder))]
    for found in [Path(which)] if which != "auto" else steps:
        try:
            state = files.read_state(found)
        except CheckpointError:  # which one is whole is found out when the run goes on
            continue
        said = state.get(EXCHANGE)
        return {**said, "from": str(found / files.STATE)} if isinstance(said, Mapping) else {}
    return None


def _taken(kept: Mapping[str, Any], offers_by: Mapping[Way, Offers]) -> Settled:
    """What a checkpoint says, held to what there is; by the only path, where hosts allow no other now."""
    path, forms, copied = str(kept.get("path")), kept.get("forms"), kept.get("copied_families")
    way = Way(path, path == "levels" or bool(kept.get("tables_within_hosts")))
    wrong = f"path {path!r}" if way not in WAYS else ""
    way = way._replace(at_place=bool(kept.get(TOWERS)))
    if way not in offers_by:
        way = next((of for of in offers_by if of.at_place == way.at_place), next(iter(offers_by)))
    offers = offers_by[way]
    if not isinstance(forms, Mapping) or not isinstance(copied, list):
        wrong = wrong or "no forms"
    wrong = wrong or _misfit(offers, forms, copied)  # type: ignore[arg-type]
    if wrong:
        raise CheckpointError(
            f"{kept['from']}: {EXCHANGE!r} says what was chosen with exchange.path or form 'auto', but {wrong} is none "
            "of this model and configuration. Set exchange.path (flat or levels) and exchange.form, or start anew with "
            "checkpoint.resume = 'never' in another run.folder."
        )
    chosen = {f: form for f, form in forms.items() if f in offers.free}  # type: ignore[union-attr]
    choice = Choice(chosen, tuple(copied or ()), {}, {})
    form_of = offers.layout(choice.forms, choice.replicated).form_of
    told = {name: of for name, of in kept.items() if name != "from"}
    told["forms"] = {f: form for f, form in form_of.items() if not FORMS[form].local}
    return Settled(way, choice, told)


def _misfit(offers: Offers, forms: Mapping[str, Any], copied: list[Any]) -> str:
    """What of a choice cannot be had: a family that is not to be copied, or a feature's form; empty where all can."""
    for name in copied:
        if name not in offers.replicable:
            return f"a copy of the tables of {name!r} on every dense rank"
    names = {*offers.forms, *({offers.kept} if offers.kept else ())}
    there = {f for family in offers.families if family.name in copied for f in family.features}
    return next(
        (f"form {forms.get(f)!r} of {f!r}" for f in offers.free if f not in there and forms.get(f) not in names), ""
    )
