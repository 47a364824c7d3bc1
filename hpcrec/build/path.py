"""``exchange.path = "auto"``: which path messages take, and which forms features have with it, before the first step.

Of both paths layouts are looked at: what form ``auto`` chooses by bytes, and each form for all features that may be
chosen for. A step's phases, bytes between hosts and bytes inside them are counted (``exchange.measure``), and taken at
prices that are measured on these ranks (``comm.prices``). Prices are not the same twice: so a choice is saved with each
checkpoint, and a run that goes on has it. Knows what is to be built; the counts are ``auto``'s.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrec.build.auto import ChoiceMaker, reduction_of
from hpcrec.build.dense import DenseSide
from hpcrec.checkpoint import files
from hpcrec.checkpoint.state import EXCHANGE
from hpcrec.comm import prices
from hpcrec.comm.prices import Prices
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.errors import CheckpointError
from hpcrec.exchange.choose import Choice
from hpcrec.exchange.layout import Layout
from hpcrec.exchange.measure import cross_host_bytes, step_bytes
from hpcrec.exchange.offers import Offers
from hpcrec.training.parts import Split
from hpcrec.training.ranks import on_root

WORTH = 0.03  # of the time of the flat path: what is to be saved before messages go by levels
_PHASES = 3  # with something in them besides ids: control, values, gradients


@dataclass(frozen=True)
class Settled:
    """A choice of both.

    Attributes
    ----------
    path : str
    choice : Choice
    found : dict
        What records, and checkpoints, say of it.
    """

    path: str
    choice: Choice
    found: dict[str, Any]


def settle(config: Config, world: World, train: Split, offers_by: Mapping[str, Offers], dense: DenseSide) -> Settled:
    """The path and the forms of fewest seconds, or those of the run's newest checkpoint; collective.

    Raises
    ------
    CheckpointError
        What a checkpoint has of it is none; on every rank. As of ``auto.choose`` too.
    """
    kept = on_root(world.main, lambda: kept_in(config))
    if kept is not None:
        return _taken(kept, offers_by)
    costs, best = prices.measure(world), None
    seconds, predicted = dict[str, float](), dict[str, dict[str, float]]()
    for path, offers in offers_by.items():
        world.take_path(path)
        maker = ChoiceMaker(config, world, train, offers, dense)
        for choice in _candidates(maker, offers):
            layout = offers.layout(choice.forms, choice.replicated)
            bytes_of = _bytes(config, world, maker, layout)
            took_s = _seconds(config, world, layout, costs[path], bytes_of)
            if took_s < seconds.get(path, float("inf")):
                seconds[path], predicted[path] = took_s, bytes_of
                if path == "flat" or best is None or took_s < (1 - WORTH) * seconds["flat"]:
                    best = path, choice, maker.found(choice)
    assert best is not None, "each path has a choice"
    path, choice, found = best
    told = {name: of.as_dict() for name, of in costs.items()}
    found |= {"path": path, "predicted_exchange_s": seconds, "prices": told, "predicted_bytes": predicted}
    return Settled(path, choice, {**found, "copied_families": list(choice.replicated)})


def _candidates(maker: ChoiceMaker, offers: Offers) -> Iterator[Choice]:
    yield maker.choice
    for form in offers.forms if offers.free and offers.kept is None else ():
        yield maker.chooser.single(form)


def _bytes(config: Config, world: World, maker: ChoiceMaker, layout: Layout) -> dict[str, float]:
    """Between hosts and inside them, of all hosts; without dense gradients, which every choice has about as many of."""
    reduction = reduction_of(config, layout, world.topology)
    far = sum(cross_host_bytes(layout, maker.asks, reduction, item_bytes=maker.item_bytes).values())
    every = step_bytes(
        layout, maker.asks, item_bytes=maker.item_bytes, dense_elements=0, dense_item_bytes=0.0, dense_ranks=1
    )
    return {"far": far, "near": sum(every.values()) - far}


def _seconds(config: Config, world: World, layout: Layout, cost: Prices, bytes_of: Mapping[str, float]) -> float:
    """Of a step's exchange, of hosts that are alike."""
    hosts, meetings = world.topology.n_hosts, 2 * bool(layout.added)
    meetings += (3 - (config.exchange.ids == "read")) * bool(layout.merged)
    phases = _PHASES + (config.exchange.ids == "routed")
    return cost.step_s(phases, meetings, bytes_of["far"] / hosts, bytes_of["near"] / hosts)


def kept_in(config: Config) -> dict[str, Any] | None:
    """What the checkpoint that a run may go on from says of its path; None where there is none, or it says nothing.

    Raises
    ------
    CheckpointError
        It cannot be read.
    """
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


def _taken(kept: Mapping[str, Any], offers_by: Mapping[str, Offers]) -> Settled:
    """What a checkpoint says, held to what there is."""
    path, forms, copied = str(kept.get("path")), kept.get("forms"), kept.get("copied_families")
    offers = offers_by.get(path)
    whole = isinstance(forms, Mapping) and isinstance(copied, list)
    if offers is None or not whole or not _fits(offers, forms, copied):  # type: ignore[arg-type]
        raise CheckpointError(
            f"{kept['from']}: {EXCHANGE!r} says which path and forms were chosen with exchange.path 'auto', and these "
            "are none of this model and configuration. Set exchange.path (flat or levels), or start anew with "
            "checkpoint.resume = 'never' in another run.folder."
        )
    chosen = {f: form for f, form in forms.items() if f in offers.free}  # type: ignore[union-attr]
    return Settled(path, Choice(chosen, tuple(copied or ()), {}, {}), {n: of for n, of in kept.items() if n != "from"})


def _fits(offers: Offers, forms: Mapping[str, Any], copied: list[Any]) -> bool:
    """Whether each feature that is free has one form of those that may be, or is of a family that may be copied."""
    names = {*offers.forms, *({offers.kept} if offers.kept else ())}
    if not set(map(str, copied)) <= set(offers.replicable):
        return False
    there = {f for family in offers.families if family.name in copied for f in family.features}
    return all(f in there or forms.get(f) in names for f in offers.free)
