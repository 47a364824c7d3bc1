"""Models whose features are in towers: each tower's module makes fewer elements of them before the top reads any [DMT].

``dmt_dlrm`` is DLRM over what towers give, ``dmt_dcn`` is DCN v2. With towers of module ``identity`` they are the flat
models. Where a tower's module is computed is not known here.

Legend: ``B`` samples, ``D`` columns of vectors, ``N`` width of features' vectors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpcrec.errors import ConfigError
from hpcrec.models.base import Pooling, RecModel, block_operators
from hpcrec.models.dcn import DCNOptions
from hpcrec.models.dlrm import DLRMOptions
from hpcrec.models.layers import CrossNetV2, DotInteraction, affine, as_logits, mlp
from hpcrec.models.options import require_count
from hpcrec.models.tower_modules import TowerModule, make_module
from hpcrec.operators.base import Operator
from hpcrec.operators.tower import Tower
from hpcrec.types import Feature

OUTSIDE = "outside"  # the operator of features that are in no tower


@dataclass(frozen=True, kw_only=True)
class TowerOptions:
    """Which towers there are, and what they make of their features.

    Attributes
    ----------
    towers : tuple of tuple of str
        Features of each tower; those that none has enter the top as they are. Empty: ``n_towers`` of them take all
        features in their order, as evenly as their number allows.
    n_towers : int
        Number of towers where ``towers`` says nothing.
    module : str
        ``identity``, ``linear``, ``products``, ``cross``, or the import path of your own (``tower_modules``).
    ratio : float
        How many times fewer elements a tower gives than it is given, at least; everything counts that it gives.
    columns : int or None
        Width of the vectors that towers give; None: of those from a quarter to half of ``width`` by which the fewest of
        the elements that towers may give are left over, the largest; fewer where the smallest tower may not give a
        vector of so many; of ``identity`` all of ``width``, of a module of your own as many as may be.
    mixed : int
        Vectors that module ``linear`` makes of each feature's.
    module_layers : int
        Cross layers of module ``cross``.
    """

    towers: tuple[tuple[str, ...], ...] = ()
    n_towers: int = 2
    module: str = "products"
    ratio: float = 4.0
    columns: int | None = None
    mixed: int = 0
    module_layers: int = 1

    def __post_init__(self) -> None:
        for option, module in (("mixed", "linear"), ("module_layers", "cross")):
            plain = type(self).__dataclass_fields__[option].default
            if getattr(self, option) != plain and self.module != module and ":" not in self.module:
                raise ConfigError(
                    f"model dmt: {option} is of module {module!r}, and module is {self.module!r}; leave it out"
                )
        require_count("dmt", "n_towers", self.n_towers, at_least=1)
        require_count("dmt", "mixed", self.mixed, at_least=0)
        require_count("dmt", "module_layers", self.module_layers, at_least=1)
        if self.columns is not None:
            require_count("dmt", "columns", self.columns, at_least=1)
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, int | float) or not self.ratio >= 1:
            raise ConfigError(f"model dmt: ratio is {self.ratio!r}; it must be a number of at least 1")
        given = self.towers
        if not isinstance(given, list | tuple) or not all(
            isinstance(tower, list | tuple) and tower and all(isinstance(name, str) for name in tower)
            for tower in given
        ):
            raise ConfigError(f"model dmt: towers is {given!r}; it must be a list of lists of features")
        object.__setattr__(self, "towers", tuple(map(tuple, given)))


@dataclass(frozen=True, kw_only=True)
class DMTDLRMOptions(TowerOptions, DLRMOptions):
    """Options of ``DMTDLRM``: those of DLRM, ``bottom``, ``top`` and ``dropout``, and of towers.

    ``towers``, ``n_towers``, ``module``, ``ratio``, ``columns``, ``mixed`` and ``module_layers`` are as of
    ``TowerOptions``.
    """

    def __post_init__(self) -> None:
        DLRMOptions.__post_init__(self)
        TowerOptions.__post_init__(self)


@dataclass(frozen=True, kw_only=True)
class DMTDCNOptions(TowerOptions, DCNOptions):
    """Options of ``DMTDCN``: those of DCN, ``cross_layers``, ``low_rank``, ``hidden``, ``structure`` and ``dropout``.

    And of towers: ``towers``, ``n_towers``, ``module``, ``ratio``, ``columns``, ``mixed`` and ``module_layers`` are as
    of ``TowerOptions``.
    """

    def __post_init__(self) -> None:
        DCNOptions.__post_init__(self)
        TowerOptions.__post_init__(self)


class Towers(RecModel):
    """A model with towers: their modules, the operators that compute them, and what the top reads.

    Attributes
    ----------
    towers : nn.ModuleList
        A module each.
    features_of : tuple of tuple of str
        Of each tower.
    outside_of : tuple of str
        Features that none has.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        width: int,
        pooling: Pooling | None,
        options: TowerOptions,
        folder: Path | None,
    ) -> None:
        super().__init__()
        of = {feature.name: feature for feature in features}
        self.features_of = _dealt(options, list(of))
        inside = {name for tower in self.features_of for name in tower}
        self.outside_of = tuple(name for name in of if name not in inside)
        self.columns = options.columns or _columns(options, width, [len(tower) for tower in self.features_of])
        how: Any = {"mixed": options.mixed, "layers": options.module_layers, "folder": folder}
        self._each: list[TowerModule] = [
            make_module(options.module, len(tower), width, self.columns, options.ratio, **how)
            for tower in self.features_of
        ]
        self.towers = nn.ModuleList(self._each)
        self.operators: dict[str, Operator] = {}
        pooled = dict(pooling or {})
        block_operators(features, width, pooled)  # which says what pooling names no feature
        for number, (tower, module) in enumerate(zip(self.features_of, self._each, strict=True)):
            mine = {f: p for f, p in pooled.items() if f in tower}
            lookups = block_operators([of[name] for name in tower], width, mine)["block"].lookups
            self.operators[tower_name(number)] = Tower(
                lookups=lookups, width=width, module=module, elements=module.elements
            )
        if self.outside_of:
            there = [of[name] for name in self.outside_of]
            mine = {f: p for f, p in pooled.items() if f in self.outside_of}
            self.operators |= block_operators(there, width, mine, name=OUTSIDE)
        self.width = width

    @property
    def ratio(self) -> float:
        """Elements of all towers' features over those that towers give."""
        given = sum(self.width * len(tower) for tower in self.features_of)
        return given / sum(tower.elements for tower in self._each)

    def results(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Of each tower [B, elements], in the order of the model."""
        return [inputs[tower_name(number)] for number in range(len(self.towers))]


class DMTDLRM(Towers):
    """DLRM over ``x = MLP(dense)`` of D columns, the towers' vectors, and the vectors outside, mapped to D columns.

    ``MLP([x, <v_i, v_j> for j < i, the towers' numbers])``. Vectors outside of towers are mapped only where they have
    another width.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: DMTDLRMOptions | None = None,
        folder: Path | None = None,
    ) -> None:
        options = options or DMTDLRMOptions()
        super().__init__(features, width, pooling, options, folder)
        columns, n_outside = self.columns, len(self.outside_of)
        n_vectors = (n_dense > 0) + sum(tower.vectors for tower in self._each) + n_outside
        if n_vectors < 2:
            what = "take more towers, a smaller ratio, or fewer columns"
            raise ConfigError(f"model dmt_dlrm: one vector has no pairs to interact; {what}")
        self.bottom = mlp(n_dense, (*options.bottom, columns)) if n_dense > 0 else None
        self.map = nn.ModuleList(affine(width, columns) for _ in range(n_outside if columns != width else 0))
        self.interaction = DotInteraction(n_vectors)
        numbers = sum(tower.numbers for tower in self._each)
        n_top = n_vectors * (n_vectors - 1) // 2 + (columns if n_dense > 0 else 0) + numbers
        self.top = mlp(n_top, options.top, n_labels, dropout=options.dropout)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        vectors, numbers = [], []
        for tower, found_BE in zip(self._each, self.results(inputs), strict=True):
            n = tower.vectors * self.columns
            vectors.append(found_BE[:, :n].unflatten(1, (tower.vectors, self.columns)))
            numbers.append(found_BE[:, n:])
        if self.outside_of:
            outside_BFN = inputs[OUTSIDE]
            if self.map:
                outside_BFN = torch.stack([of(outside_BFN[:, f]) for f, of in enumerate(self.map)], 1)
            vectors.append(outside_BFN)
        x_BD = None if self.bottom is None else self.bottom(dense_BN)
        found = self.interaction(torch.cat(vectors, 1), x_BD)
        return as_logits(self.top(torch.cat([found, *numbers], 1)))


class DMTDCN(Towers):
    """DCN v2 over ``x_0 = [dense, what towers give, vectors outside]``, otherwise as ``DCN``."""

    def __init__(
        self,
        features: Sequence[Feature],
        n_dense: int,
        *,
        width: int,
        n_labels: int = 1,
        pooling: Pooling | None = None,
        options: DMTDCNOptions | None = None,
        folder: Path | None = None,
    ) -> None:
        options = options or DMTDCNOptions()
        super().__init__(features, width, pooling, options, folder)
        given = sum(tower.elements for tower in self._each)
        n_in = n_dense + given + len(self.outside_of) * width
        n_deep = options.hidden[-1] if options.hidden else n_in
        self.cross = CrossNetV2(n_in, options.cross_layers, options.low_rank)
        self.deep = mlp(n_in, options.hidden, dropout=options.dropout)
        self.parallel = options.structure == "parallel" and bool(options.hidden)
        self.head = affine(n_in + n_deep if self.parallel else n_deep, n_labels)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits [B] or [B, L]."""
        outside = [inputs[OUTSIDE].flatten(1)] if self.outside_of else []
        x0_BX = torch.cat([dense_BN, *self.results(inputs), *outside], 1)
        crossed_BX = self.cross(x0_BX)
        if self.parallel:
            return as_logits(self.head(torch.cat([crossed_BX, self.deep(x0_BX)], 1)))
        return as_logits(self.head(self.deep(crossed_BX)))


def _columns(options: TowerOptions, width: int, sizes: Sequence[int]) -> int:
    """Of the vectors of towers of so many features."""
    if options.module == "identity":
        return width
    mixed = options.mixed if options.module == "linear" else 0
    elements = [math.floor(size * width / options.ratio) for size in sizes]
    numbers = [
        min(size * (size - 1) // 2, given // 2) if options.module == "products" else 0
        for size, given in zip(sizes, elements, strict=True)
    ]
    vectors = [given - sent for given, sent in zip(elements, numbers, strict=True)]
    room = min(given // max(1, mixed * size) for given, size in zip(vectors, sizes, strict=True))
    most = max(1, min(width // 2, room))
    if ":" in options.module:
        return most
    least = max(1, min(most, width // 4))
    return min(range(most, least - 1, -1), key=lambda columns: sum(n % columns for n in vectors))


def tower_name(number: int) -> str:
    """Of a tower's operator."""
    return f"tower{number}"


def _dealt(options: TowerOptions, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Features of each tower."""
    if not options.towers:
        n, n_towers = len(names), options.n_towers
        if n_towers > n:
            raise ConfigError(
                f"model dmt: n_towers is {n_towers}; there are {n} features, and a tower has one at least"
            )
        cuts = [n * tower // n_towers for tower in range(n_towers + 1)]
        return tuple(tuple(names[a:b]) for a, b in pairwise(cuts))
    seen: set[str] = set()
    for number, tower in enumerate(options.towers):
        for name in tower:
            if name not in names:
                raise ConfigError(
                    f"model dmt: towers[{number}] has feature {name!r}; the data set has {', '.join(names)}"
                )
            if name in seen:
                raise ConfigError(f"model dmt: towers[{number}] has feature {name!r}, which is in a tower already")
            seen.add(name)
    return options.towers
