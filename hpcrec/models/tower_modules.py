"""Modules of towers: what is made of the vectors of a tower's features before it leaves the place that holds them.

A module gives ``vectors`` vectors of some columns, and ``numbers`` further numbers, side by side: of fewer elements
together than it was given, by the ratio that it is made for. Everything counts that it gives. Sources: [DMT] for the
linear one, [DLRM] for products, [DCNv2] for crosses. Knows no features and no ranks.

Legend: ``B`` samples, ``F`` vectors of a tower, ``N`` their width, ``D`` columns of the vectors that it gives.
"""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hpcrec.errors import ConfigError
from hpcrec.models.layers import CrossNetV2, DotInteraction, affine
from hpcrec.models.own import find


class TowerModule(nn.Module):
    """Takes [B, F, N], gives [B, vectors * columns + numbers].

    Attributes
    ----------
    vectors, columns, numbers : int
        What it gives: vectors, how wide they are, and numbers behind them.
    """

    def __init__(self, vectors: int, columns: int, numbers: int = 0) -> None:
        super().__init__()
        self.vectors, self.columns, self.numbers = vectors, columns, numbers

    @property
    def elements(self) -> int:
        """Of a sample's result."""
        return self.vectors * self.columns + self.numbers


class Identity(TowerModule):
    """The vectors themselves: a tower that changes nothing, so that a model with it is the flat one."""

    def forward(self, block_BFN: Tensor) -> Tensor:
        """[B, F N]."""
        return block_BFN.flatten(1)


class Linear(TowerModule):
    """Each vector mixed to ``mixed`` of D columns, and all of them together projected to ``projections``.

    With ``mixed`` = 1 and no projection a flat model with rows of D columns has the same outputs; a projection has no
    products of the tower's features in it.
    """

    def __init__(self, n_vectors: int, width: int, columns: int, mixed: int, projections: int) -> None:
        super().__init__(n_vectors * mixed + projections, columns)
        self.mix = nn.ModuleList(affine(width, mixed * columns) for _ in range(n_vectors if mixed else 0))
        self.project = affine(n_vectors * width, projections * columns) if projections else None

    def forward(self, block_BFN: Tensor) -> Tensor:
        """Vectors of each feature, in their order, then the projections."""
        parts = [mix(block_BFN[:, f]) for f, mix in enumerate(self.mix)]
        if self.project is not None:
            parts.append(self.project(block_BFN.flatten(1)))
        return torch.cat(parts, 1)


class Products(TowerModule):
    """Projections of all vectors together, and beside them the dot products of all pairs at full width.

    Products are sent as numbers, at most half of the elements; where there are more than are to be sent, an affine map
    makes so many of them.
    """

    def __init__(self, n_vectors: int, width: int, columns: int, projections: int, numbers: int) -> None:
        super().__init__(projections, columns, numbers)
        n_pairs = n_vectors * (n_vectors - 1) // 2
        self.project = affine(n_vectors * width, projections * columns)
        self.interaction = DotInteraction(n_vectors) if numbers else None
        self.mix = affine(n_pairs, numbers) if 0 < numbers < n_pairs else None

    def forward(self, block_BFN: Tensor) -> Tensor:
        """Projections, then products."""
        projected_BX = self.project(block_BFN.flatten(1))
        if self.interaction is None:
            return projected_BX
        products_BP = self.interaction(block_BFN)
        return torch.cat([projected_BX, products_BP if self.mix is None else self.mix(products_BP)], 1)


class Cross(TowerModule):
    """Explicit crosses of all vectors side by side, projected."""

    def __init__(self, n_vectors: int, width: int, columns: int, projections: int, n_layers: int) -> None:
        super().__init__(projections, columns)
        self.cross = CrossNetV2(n_vectors * width, n_layers)
        self.project = affine(n_vectors * width, projections * columns)

    def forward(self, block_BFN: Tensor) -> Tensor:
        """Projections of the crosses."""
        return self.project(self.cross(block_BFN.flatten(1)))


NAMES = ("identity", "linear", "products", "cross")


def make_module(
    name: str,
    n_vectors: int,
    width: int,
    columns: int,
    ratio: float,
    *,
    mixed: int,
    layers: int,
    folder: Path | None = None,
) -> TowerModule:
    """A tower's module.

    Parameters
    ----------
    name : str
        One of ``NAMES``, or the import path of a user's builder, as ``package.module:build``, which is called with
        ``n_vectors, width, columns, elements`` and returns a ``TowerModule`` of at most so many elements.
    n_vectors, width : int
        F and N: what it is given.
    columns : int
        D.
    ratio : float
        At least so many times fewer elements than it is given.
    mixed : int
        Vectors that each feature's becomes, of ``linear``.
    layers : int
        Of crosses, of ``cross``.
    folder : Path, optional
        Where a user's own module is looked for first.

    Raises
    ------
    ConfigError
        Its result would have no element, or more than the ratio allows.
    """
    elements = math.floor(n_vectors * width / ratio)
    where = f"a tower of {n_vectors} features of width {width} at ratio {ratio:g}"
    if name == "identity":
        if columns != width or ratio != 1:
            raise ConfigError(
                "model.options.module 'identity' gives vectors as they are, so that columns has to be the width, "
                f"{width}, and ratio 1; they are {columns} and {ratio:g}"
            )
        return Identity(n_vectors, width)
    if ":" in name:
        return _own(find(name, folder), name, n_vectors, width, columns, elements)
    kept = mixed * n_vectors if name == "linear" else 0
    n_pairs = n_vectors * (n_vectors - 1) // 2
    numbers = max(0, min(n_pairs, elements // 2, elements - columns)) if name == "products" else 0
    projections = (elements - numbers) // columns - kept
    if projections < 0 or projections + kept == 0:
        raise ConfigError(
            f"{where} may give {elements} elements, and module {name!r} needs {columns * max(1, kept)}: take a smaller "
            "ratio, fewer columns, or more features in a tower"
        )
    if name == "linear":
        return Linear(n_vectors, width, columns, mixed, projections)
    if name == "products":
        return Products(n_vectors, width, columns, projections, numbers)
    if name == "cross":
        return Cross(n_vectors, width, columns, projections, layers)
    raise ConfigError(
        f"model.options.module is {name!r}; allowed are {', '.join(NAMES)}, or the import path of your own, as "
        "'package.module:build'"
    )


def _own(build: Callable[..., Any], path: str, n_vectors: int, width: int, columns: int, elements: int) -> TowerModule:
    try:
        inspect.signature(build).bind(n_vectors, width, columns, elements)
    except TypeError as error:
        raise ConfigError(
            f"model.options.module {path}: it cannot be called with (n_vectors, width, columns, elements): {error}"
        ) from error
    module = build(n_vectors, width, columns, elements)
    if not isinstance(module, TowerModule):
        raise ConfigError(
            f"model.options.module {path}: it returned a {type(module).__name__}; it has to be a "
            "hpcrec.models.TowerModule, which says how many vectors it gives, of how many columns, and how many numbers"
        )
    if module.columns != columns or not 0 < module.elements <= elements:
        raise ConfigError(
            f"model.options.module {path}: it gives {module.vectors} vectors of {module.columns} columns and "
            f"{module.numbers} numbers; asked for are vectors of {columns} columns, and {elements} elements at most"
        )
    return module
