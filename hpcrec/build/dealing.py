"""By what training batches are dealt to dense ranks, from a configuration and where tables are placed.

Knows families of tables and ranks; how a batch is dealt is for ``data.affinity``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from hpcrec import kernels
from hpcrec.config import Config
from hpcrec.data.affinity import MOST_PARTS, Affinity, Looked
from hpcrec.embedding.shards import Family, table_seed
from hpcrec.errors import ConfigError
from hpcrec.types import Ints, TableSpec


@dataclass(frozen=True)
class Owners:
    """Which dense rank, counted among them, owns the row of an id; -1 where none does alone.

    Attributes
    ----------
    family : Family
    seed : int
        By which ids of a hashed family find their rows.
    dense_P : int64 [parts]
        By part of the family.
    """

    family: Family
    seed: int
    dense_P: Ints

    def __call__(self, ids_K: Ints) -> Ints:
        """Of each id; int64 [K]."""
        family = self.family
        if family.kind != "row":  # one part has whole rows, or none has
            return np.broadcast_to(self.dense_P[0], ids_K.shape)
        rows_K = kernels.hash_ids(ids_K, family.rows, self.seed) if family.hashed else ids_K
        return self.dense_P[family.deal(rows_K)[0]]


def make_affinity(
    config: Config, tables: Mapping[str, TableSpec], families: Sequence[Family], dense: Sequence[int]
) -> Affinity | None:
    """What ``data.deal = "affinity"`` looks at; None where the order of samples deals.

    Rows that every dense rank has are left out.

    Raises
    ------
    ConfigError
        There is nothing to look at, or there are too many dense ranks.
    """
    if config.data.deal == "order":
        return None
    if len(dense) > MOST_PARTS:
        raise ConfigError(
            f"data.deal is 'affinity' with {len(dense)} dense ranks. Allowed: up to {MOST_PARTS} of them. "
            "Set data.deal = 'order'."
        )
    number = {rank: d for d, rank in enumerate(dense)}
    looked = []
    for family in families:
        if family.kind == "replicate":
            continue
        whole = family.kind != "column"
        dense_P = np.array([number.get(rank, -1) if whole else -1 for rank in family.holders], np.int64)
        seed, columns = table_seed(config.train.seed, family.name), sum(tables[t].width for t in family.tables)
        looked += [Looked(f, seed, columns, Owners(family, seed, dense_P)) for f in family.features]
    if not looked:
        raise ConfigError(
            "data.deal is 'affinity', but every dense rank has all rows of all tables (shard 'replicate'), so that "
            "none cross, whichever samples it takes. Set data.deal = 'order'."
        )
    unit = gcd(*(one.columns for one in looked))
    return Affinity(tuple(Looked(o.feature, o.seed, o.columns // unit, o.owner) for o in looked), len(dense))
