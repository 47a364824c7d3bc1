"""Which path messages take, where towers are computed, and which forms features have with it, before the first step.

By ``exchange.path = "auto"`` flat messages are looked at, with tables dealt over all owners, and with tables dealt
within hosts as by levels; and levels. Of towers whose features have form ``auto`` it is looked at each of these ways
besides with towers at their place, that is their tables on a host and their modules at its owners. Of each way layouts
are looked at: what form ``auto`` chooses by bytes, and each form for all features that may be chosen for. A step's
phases, bytes between hosts and bytes inside them are counted (``exchange.measure``), and taken at prices that are
measured on these ranks (``comm.prices``). Prices are not the same twice: so a choice is saved with each checkpoint, and
a run that goes on has it. Knows what is to be built; the counts are ``auto``'s.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from hpcrec.exchange.measure import cross_host_bytes, step_bytes
from hpcrec.exchange.offers import Offers
from hpcrec.training.parts import Split
from hpcrec.training.ranks import on_root
from hpcrec.types import TableSpec


class Means(NamedTuple):
    """A path, whether tables are dealt within hosts as they are by levels, and whether towers are at their place."""

    path: str
    within: bool
    at_places: bool = False

    @property
    def said(self) -> str:
        """For records."""
        tables = ", tables within hosts" if self.within and self.path == "flat" else ""
        return f"{self.path}{tables}{', towers at their place' if self.at_places else ''}"


FLAT, FLAT_WITHIN, LEVELS = MEANS = Means("flat", False), Means("flat", True), Means("levels", True)
Offered = tuple[dict[str, TableSpec], tuple[Family, ...], Offers]
"""As of ``tables.make_offers``."""

WORTH = 0.03  # of a way's time: what another one is to save before it is taken in place of a simpler one
_PHASES = 2  # in which values and gradients cross; ids besides
_SUM_MEETINGS, _ROW_MEETINGS = 2, 3  # of a host's ranks: for values and gradients; and for ids besides


@dataclass(frozen=True)
class Settled:
    """A choice of both.

    Attributes
    ----------
    means : Means
    choice : Choice
    found : dict
        What records, and checkpoints, say of it.
    """

    means: Means
    choice: Choice
    found: dict[str, Any]


def offered(
    config: Config, world: World, offer: Callable[..., Offered], refuse: Callable[[Layout], None]
) -> dict[Means, Offered]:
    """What there is to choose from by each of the ways that may be taken, the simplest first.

    Parameters
    ----------
    config, world
    offer : callable
        ``tables.make_offers`` by its last keywords: ``levels``, ``within`` and ``at_places``.
    refuse : callable
        Raises ConfigError where a layout does not go with the configuration.
    """
    every = MEANS if config.exchange.path == "auto" and world.by_levels else (LEVELS if world.by_levels else FLAT,)
    may_place = config.exchange.at_place and config.exchange.chooses_forms and world.topology.n_hosts > 1
    found = dict[Means, Offered]()
    for means in (*every, *(of._replace(at_places=True) for of in every if may_place)):
        made = offer(levels=means.path == "levels", within=means.within, at_places=means.at_places)
        alike = means._replace(within=False)
        if alike in found and alike != means and found[alike][1] == made[1]:
            continue
        if means.at_places:
            layout = made[2].layout({})
            if layout.apart or layout.meetings == found[every[0]][2].layout({}).meetings:
                continue
            try:
                refuse(layout)
            except ConfigError:  # it was not asked for
                continue
        found[means] = made
    return found


def settle(
    config: Config, world: World, train: Split, offers_by: Mapping[Means, Offers], dense: DenseSide
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
    if kept is not None:
        return _taken(kept, offers_by)
    if len(offers_by) == 1:
        return None
    costs, found = prices.measure(world), list[tuple[float, Means, Choice, dict[str, Any]]]()
    for means, offers in offers_by.items():
        world.take_path(means.path)
        cost = costs[means.path]
        near = min(1.0, cost.near_byte_s / cost.far_byte_s) if cost.far_byte_s else 1.0
        maker = ChoiceMaker(config, world, train, offers, dense, near)
        made = [_candidate(config, world, maker, offers.layout(c.forms, c.replicated), cost, c)
                for c in _choices(maker, offers)]  # fmt: skip
        seconds, choice, told = min(made, key=lambda of: of[0])
        found.append((seconds, means, choice, told))
    least_s = min(seconds for seconds, *_ in found)
    _, means, choice, told = next(of for of in found if (1 - WORTH) * of[0] <= least_s)  # the simplest first
    told |= {
        "path": means.path,
        "tables_within_hosts": _within(means, offers_by),
        "towers_at_their_place": means.at_places,
        "copied_families": list(choice.replicated),
        "predicted_exchange_s": {of.said: seconds for seconds, of, _, _ in found},
        "predicted_bytes": {of.said: said.pop("bytes") for _, of, _, said in found},
        "prices": {of: cost.as_dict() for of, cost in costs.items()},
    }
    # sums of counts are the same on every rank by MPI's advice alone, and on this all have to agree
    return Settled(*world.main.bcast((means, choice, told)))


def _within(means: Means, offers_by: Mapping[Means, Offers]) -> bool:
    """Whether tables are dealt otherwise than over all owners."""
    over_all = offers_by.get(means._replace(path="flat", within=False))
    return means.within if over_all is None else offers_by[means].families != over_all.families


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
    if in_two_lanes(config, layout, reduction):  # gradients of a step cross beside the values of another one
        shorter = min(("values", "gradients"), key=lambda tag: far[tag])
        far, near = ({tag: n for tag, n in of.items() if tag != shorter} for of in (far, near))
    phases = _PHASES * (1 + bool(reduction.across)) + (config.exchange.ids == "routed")
    meetings = _SUM_MEETINGS * (
        bool(layout.added) + bool(reduction.inside) + bool(layout.meetings)
    ) + _ROW_MEETINGS * bool(layout.merged)
    hosts, ranks_H = world.topology.n_hosts, np.bincount(world.topology.host_of)
    pairs = (world.topology.size**2 - int((ranks_H**2).sum())) / hosts
    seconds = cost.step_s(phases, meetings, [n / hosts for n in far.values()], sum(near.values()) / hosts, pairs)
    return seconds, choice, told


def kept_in(config: Config) -> dict[str, Any] | None:
    """What the checkpoint that a run may go on from says of its path; None where there is none, or it says nothing."""
    which, folder = config.checkpoint.resume, Path(config.run.folder)
    if which == "never":
        return None
    steps = [files.step_folder(folder, step) for step in reversed(files.steps_in(folder))]
    for found in [Path(which)] if which != "auto" else steps:
        try:
            state = files.read_state(found)
        except CheckpointError:  # which one is whole is found out when the run goes on
            continue
        return (
            {**state[EXCHANGE], "from": str(found / files.STATE)} if isinstance(state.get(EXCHANGE), Mapping) else None
        )
    return None


def _taken(kept: Mapping[str, Any], offers_by: Mapping[Means, Offers]) -> Settled:
    """What a checkpoint says, held to what there is; by the only path, where hosts allow no other now."""
    path, forms, copied = str(kept.get("path")), kept.get("forms"), kept.get("copied_families")
    means = Means(path, path == "levels" or bool(kept.get("tables_within_hosts")))
    wrong = f"path {path!r}" if means not in MEANS else ""
    means = means._replace(at_places=bool(kept.get("towers_at_their_place")))
    if means not in offers_by:
        means = next((of for of in offers_by if of.at_places == means.at_places), next(iter(offers_by)))
    offers = offers_by[means]
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
    return Settled(means, choice, told)


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
