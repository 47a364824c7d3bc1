"""The dense parameters of a session: which are trained on dense ranks together, and which at holders.

Knows configuration, model and exchange; how either side is trained is for ``dense`` and ``training``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import torch
from torch import nn

from hpcrec.build.tables import DTYPES, trained_parameters
from hpcrec.comm.collectives import Collectives
from hpcrec.comm.failure import agree, say
from hpcrec.comm.world import World
from hpcrec.config import Config
from hpcrec.dense.allreduce import make_allreduce, reducer_at_hand
from hpcrec.dense.codistillation import Codistillation, CodistillationOptions, Other
from hpcrec.dense.dct import DctOptions, Thresholded
from hpcrec.dense.dct_bytes import item_bytes
from hpcrec.dense.host_sums import HostSums
from hpcrec.dense.optimizer import build_optimizer
from hpcrec.dense.place import Place
from hpcrec.dense.reducer import DenseReducer
from hpcrec.dense.slices import Slice, Slices
from hpcrec.dense.sparse import codec_for
from hpcrec.errors import ConfigError
from hpcrec.exchange import slices
from hpcrec.exchange.stages import STAGES
from hpcrec.operators.base import Operator, module_weights, weights_of
from hpcrec.training.parts import DensePart


class DenseSide:
    """Makes dense parameters alike on all ranks, then puts them where a layout says; collective, as ``part`` is.

    Ranks that are not dense keep those that may be away, and of the model nothing else.

    Parameters
    ----------
    config : Config
    model : nn.Module
    operators : mapping of str to Operator
    world : World
    place : Place
        Where this rank computes the model.
    others : mapping of int to Other
        Models of the other groups of dense ranks, by group, on dense ranks.

    Attributes
    ----------
    place_of : Place
        Of the model on this rank.
    elements : int
        Of all parameters that are trained.
    item_bytes : float
        Of an element of their gradients in a sum, by formula (``dense.dct_bytes``); of thresholded ones after the
        warm-up.
    """

    def __init__(
        self,
        config: Config,
        model: nn.Module,
        operators: Mapping[str, Operator],
        world: World,
        place: Place,
        others: Mapping[int, Other] | None = None,
    ) -> None:
        self.place_of = place
        named = trained_parameters(model)
        self.elements = sum(p.numel() for _, p in named)
        self.item_bytes = _item_bytes(config, [p.numel() for _, p in named], world)
        self._config, self._model, self._world, self._others = config, model, world, others or {}
        self._named = named
        name_of = {p: n for n, p in model.named_parameters()}
        wholes: dict[str, nn.Parameter] = {}
        for name, operator in operators.items():
            for lookup, weight in zip(operator.lookups, weights_of(operator, operator.lookups), strict=False):
                _check_weight(name, lookup.feature, name_of.get(weight), wholes)
                wholes[name_of[weight]] = weight
            for weight in module_weights(operator):
                _check_module_weight(name, name_of.get(weight))
                wholes[name_of[weight]] = weight
            for stage in STAGES.values():
                for weight in stage.weights(operator):
                    _check_weight(name, operator.lookups[0].feature, name_of.get(weight), wholes)
                    wholes[name_of[weight]] = weight
        if world.topology.groups > 1:
            wholes = {}  # of each group one: none could be trained for all dense ranks
        self._name_of = {weight: name for name, weight in wholes.items()}
        _same_everywhere(model, wholes, world)
        error = None
        try:
            for module in (model, *(other.model for other in self._others.values())):
                place.move(module)
        except Exception as caught:
            error = caught
        agree(world.main, error)  # what follows is collective
        self._wholes = wholes

    def _reducer_at_hand(self) -> str:
        """Horovod, or MPI, of which a line says why; on all dense ranks."""
        dense = self._world.dense
        assert dense is not None
        name, why = reducer_at_hand(dense, threads=self._world.threads_may_communicate)
        if why and dense.rank == 0:
            say(f"hpcrec: dense gradients are summed by MPI: {why}\n")
        return name

    def part(self, away: Sequence[nn.Parameter]) -> DensePart | None:
        """What dense ranks train, all parameters but those that are away; None elsewhere."""
        config, world = self._config, self._world
        if world.dense is None:
            return None
        assert world.group is not None
        plain = make_allreduce(config.dense.reducer or self._reducer_at_hand(), world.group)
        where = (plain.takes_gpu, self.place_of.identity)
        direct = config.dense.compression == "none" and _sums_there(world.group.allgather(where))
        staged = not (self.place_of.is_host or direct)
        dct = None
        if config.dense.compression == "dct":
            dct = Thresholded(plain, world.group, DctOptions(**asdict(config.dense.dct)))
        sums = HostSums(dct or plain) if staged else dct or plain
        names = {self._name_of[weight] for weight in away}
        trained = [(n, p) for n, p in self._named if n not in names]
        reducer = DenseReducer(trained, sums, bucket_bytes=config.dense.bucket_bytes)
        if dct is not None:
            contents = reducer.contents
            if isinstance(sums, HostSums):
                contents = {name: (sums.copy_of(flat, name), held) for name, (flat, held) in contents.items()}
            dct.arrange(contents)

        def close() -> None:
            reducer.close()
            plain.close()

        part = DensePart(
            model=self._model,
            reducer=reducer,
            dct=dct,
            optimizer=self._optimizer_for(trained),
            trained=trained,
            close=close,
            place=self.place_of,
        )
        if world.across is not None:
            wanted = config.dense.codistillation
            options = CodistillationOptions(
                weight=wanted.weight, burn_in_steps=wanted.burn_in_steps, every=wanted.every
            )
            part.codistillation = Codistillation(self._model, world.topology.group, self._others, world.across, options)
        return part

    def slices(self, own: Sequence[slices.Slice], away: Sequence[nn.Parameter]) -> Slices:
        """What holders train: these slices here, of parameters that are away."""
        mine = {self._name_of[s.whole]: Slice(s.start, s.stop, s.part, s.ranks) for s in own}
        error = None
        if len(mine) < len(own):
            names = [self._name_of[s.whole] for s in own]
            twice = next(name for name in names if names.count(name) > 1)
            error = ConfigError(
                f"dense parameter {twice!r}: a rank would train two slices of it, by an operator or stage each. "
                "Allowed: one a rank. Give each a parameter of its own."
            )
        agree(self._world.main, error)
        away_names = tuple(self._name_of[weight] for weight in away)
        return Slices(self._world.main, self._wholes, away_names, mine, self._optimizer_for, self._world.host_owners)

    def _optimizer_for(self, named: list[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        wanted = self._config.dense.optimizer
        return build_optimizer(wanted.name, named, lr=wanted.lr, options=wanted.options)


def _sums_there(ranks: Sequence[tuple[bool, str | None]]) -> bool:
    """Whether all these may hand their gradients to NCCL: all can, and each has a GPU of its own, which it asks for."""
    gpus = [gpu for takes, gpu in ranks if takes and gpu is not None]
    return len(set(gpus)) == len(ranks)


def _item_bytes(config: Config, sizes: Sequence[int], world: World) -> float:
    """See ``DenseSide``; parameters are of the type that rows have."""
    dtype, dct = DTYPES[config.train.dtype][0], config.dense.dct
    if config.dense.compression == "none":
        return float(dtype.itemsize)
    ranks = len(world.topology.dense) // world.topology.groups
    return item_bytes(sizes, ranks, dct.density, codec_for(dct.values, dtype), dct.collective)


def _check_weight(operator: str, feature: str, name: str | None, taken: Mapping[str, nn.Parameter]) -> None:
    """Refuses what could not be moved, or saved."""
    where = f"model: the weight of feature {feature!r} in operator {operator!r}"
    if name is None:
        raise ConfigError(f"{where} is no parameter of the model. Make it one: assign it to a module of the model.")
    if name in taken:
        raise ConfigError(f"{where}, {name}, is that of another lookup too. Give each lookup a parameter of its own.")


def _check_module_weight(operator: str, name: str | None) -> None:
    """Likewise, of the module of an operator that meets; where several have it, it stays on dense ranks."""
    if name is None:
        raise ConfigError(
            f"model: a parameter of the module of operator {operator!r} is no parameter of the model, so that it would "
            "be neither trained nor saved. Assign the module to one of the model's."
        )


def _same_everywhere(model: nn.Module, wholes: Mapping[str, nn.Parameter], world: World) -> None:
    """Equal parameters on all dense ranks of a group; on ranks that are not dense those that may be away."""

    def copy(tensor: torch.Tensor, ranks: Collectives, root: int) -> None:
        values = np.array(tensor.detach().numpy(), order="C")  # keeps a scalar one, unlike ascontiguousarray
        ranks.bcast_array(values, root=root)
        tensor.copy_(torch.from_numpy(values))

    with torch.no_grad():
        if world.group is not None:
            for tensor in (*model.parameters(), *model.buffers()):
                copy(tensor, world.group, 0)
        for whole in wholes.values():
            copy(whole, world.main, world.topology.dense[0])
