"""What a model is: a torch module with named operators. Also, which tables the operators read.

Embedding rows are never parameters of a model. Knows nothing of ranks, optimizers or data.

Names: feature ``f`` reads its vectors from table ``f`` and its first-order weights from table ``f.wide``.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from hpcrec.errors import ConfigError
from hpcrec.operators.base import Operator
from hpcrec.operators.block import Block
from hpcrec.operators.fm2 import FM2
from hpcrec.operators.wide import WideSum
from hpcrec.types import Feature, Lookup

Pooling = Mapping[str, str]
"""Feature -> ``sum`` or ``mean``; ``sum`` for features that it leaves out."""


class RecModel(nn.Module):
    """A model: a torch module with an attribute ``operators`` and a forward that reads their results by name.

    Deriving from this class is a convenience: any ``nn.Module`` with the two will do.

    Attributes
    ----------
    operators : dict of str to Operator
        What the model needs from embeddings.
    """

    operators: dict[str, Operator]

    @property
    def tables(self) -> dict[str, int]:
        """Table -> width, of the tables that the operators read."""
        return tables_of(self.operators)

    def forward(self, inputs: Mapping[str, Tensor], dense_BN: Tensor) -> Tensor:
        """Logits.

        Parameters
        ----------
        inputs : mapping of str to Tensor
            Operator name -> its result over this batch; the first dimension is B, which may be 0.
        dense_BN : Tensor [B, n_dense]

        Returns
        -------
        Tensor [B], or [B, L] with L > 1 labels
        """
        raise NotImplementedError


def tables_of(operators: Mapping[str, Operator]) -> dict[str, int]:
    """Table -> width, in the order in which the operators first read them.

    Raises
    ------
    ConfigError
        Two operators take one table for different widths, or pool one feature's vectors of one table differently.
    """
    tables: dict[str, int] = {}
    poolings: dict[tuple[str, str], str] = {}
    for name, operator in operators.items():
        for lookup in operator.lookups:
            width = tables.setdefault(lookup.table, operator.width)
            if width != operator.width:
                raise ConfigError(
                    f"model: operator {name!r} reads table {lookup.table!r} with width {operator.width}, another "
                    f"operator with width {width}; a table has one width: use two tables"
                )
            pooling = poolings.setdefault((lookup.feature, lookup.table), lookup.pooling)
            if pooling != lookup.pooling:
                raise ConfigError(
                    f"model: operator {name!r} pools feature {lookup.feature!r} of table {lookup.table!r} by "
                    f"{lookup.pooling!r}, another operator by {pooling!r}; use one pooling, or two tables"
                )
    return tables


def block_operators(
    features: Sequence[Feature], width: int, pooling: Pooling | None = None, name: str = "block"
) -> dict[str, Operator]:
    """One ``Block`` over all features, in their order: ``{"block": Block(...)}``.

    Parameters
    ----------
    features : sequence of Feature
    width : int
    pooling : mapping of str to str, optional
        Feature -> ``sum``, ``mean`` or ``max``; ``sum`` where it says nothing.
    name : str
        What the model calls it.
    """
    return {name: Block(lookups=_lookups(features, pooling, ""), width=width)}


def fm2_operators(
    features: Sequence[Feature], width: int, pooling: Pooling | None = None, name: str = "fm2"
) -> dict[str, Operator]:
    """One ``FM2`` over all features; it reads the same lookups as ``block_operators``, so vectors cross once."""
    return {name: FM2(lookups=_lookups(features, pooling, ""), width=width)}


def wide_operators(
    features: Sequence[Feature], n_labels: int = 1, pooling: Pooling | None = None, name: str = "wide"
) -> dict[str, Operator]:
    """One ``WideSum`` over all features, of tables ``<feature>.wide`` with a weight for each label."""
    return {name: WideSum(lookups=_lookups(features, pooling, ".wide"), width=n_labels)}


def _lookups(features: Sequence[Feature], pooling: Pooling | None, suffix: str) -> tuple[Lookup, ...]:
    """One lookup a feature, from the table ``<feature><suffix>``."""
    pooling = pooling or {}
    names = [feature.name for feature in features]
    for name in pooling:
        if name not in names:
            raise ConfigError(f"model: pooling names feature {name!r}; the features are {', '.join(names) or 'none'}")
    return tuple(Lookup(feature=f, table=f + suffix, pooling=pooling.get(f, "sum")) for f in names)
