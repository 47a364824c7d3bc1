"""Where the rows of a model's tables are, and which of them batches ask for: without ranks, in one process.

Rows of all tables are numbered from 0 in the order in which a dense rank asks for them: table after table, of a table
part after part, of a part rising as its owner calls them. Knows the product's shard map and how requests are packed,
both by the product's own code; knows nothing of copies.

Legend: ``T`` tables, ``P`` parts of tables, ``R`` ranks, each of which is owner and dense, ``N`` rows.
"""

from collections.abc import Collection, Sequence

import numpy as np

from hpcrec import kernels
from hpcrec.embedding.shards import Placement, build_families
from hpcrec.types import Feature, Ints, Lookup, OptimizerSpec, TableSpec


class Placed:
    """The rows of tables, as the product deals them to ranks.

    Parameters
    ----------
    rows : sequence of int
        Of each table.
    ranks : int
    width : int
    split : collection of int
        Tables whose rows are to be dealt to all ranks (``embedding.tables.<table>.shard = "row"``); the others are
        placed as the product does by itself.

    Attributes
    ----------
    rows, ranks
        As given.
    total : int
        Rows of all tables.
    kinds : tuple of str
        How each table is placed, ``table`` or ``row``.
    owner : uint8 [N]
    entries : int
        The most tables of which one rank has rows.
    """

    def __init__(self, rows: Sequence[int], ranks: int, width: int, split: Collection[int] = ()) -> None:
        self.rows, self.ranks, self.total = tuple(rows), ranks, sum(rows)
        names = [f"f{t}" for t in range(len(rows))]
        spec = OptimizerSpec(name="sgd")
        families = build_families(
            {n: TableSpec(name=n, rows=r, width=width, optimizer=spec) for n, r in zip(names, rows, strict=True)},
            [Feature(name=n, cardinality=r) for n, r in zip(names, rows, strict=True)],
            [Lookup(feature=n, table=n) for n in names],
            {names[t]: Placement(kind="row") for t in split},
            owners=range(ranks),
            dense=range(ranks),
            replicate_rows=0,
        )
        self.kinds = tuple(family.kind for family in families)
        assert set(self.kinds) <= {"table", "row"}, "a row has one owner"
        assert [family.name for family in families] == names, "bundles are numbered as tables"
        self._families = families
        parts = [(t, p) for t, family in enumerate(families) for p in range(len(family.holders))]
        self._table_P, part_P = np.array(parts, np.int64).T
        self._owner_P = np.array([families[t].holders[p] for t, p in parts], np.int64)
        self._size_P = np.array([families[t].part_rows(p) for t, p in parts], np.int64)
        self._first_P = np.cumsum(self._size_P) - self._size_P
        self.owner = np.repeat(self._owner_P, self._size_P).astype(np.uint8)
        self.entries = int(np.bincount(self._owner_P).max())
        self._first_part_T = np.flatnonzero(part_P == 0)
        self._in_order = np.lexsort((self._table_P, self._owner_P))  # cells of requests: owner by owner, tables rising
        self._no_weights, self._near = np.zeros(len(rows), bool), np.zeros(ranks, bool)

    def numbers(self, table: int, rows: Ints) -> Ints:
        """Of rows of a table, by what the data set calls them."""
        first, family = self._first_part_T[table], self._families[table]
        if family.kind != "row":
            return self._first_P[first] + rows
        part, there = family.deal(rows)
        return self._first_P[first + part] + there

    def request_bytes(self, rows: Ints) -> Ints:
        """Bytes of the requests for some distinct rows that rise, by owner [R]; as the wire packs them, not padded."""
        cuts = np.append(np.searchsorted(rows, self._first_P), len(rows))
        n_P = np.diff(cuts)
        there = rows - np.repeat(self._first_P, n_P)
        ids = [there[cuts[p] : cuts[p] + n_P[p]] for p in self._in_order.tolist()]
        return self._planned(np.concatenate(ids), n_P)

    def each_id_bytes(self, rows: Ints) -> tuple[Ints, Ints]:
        """Of requests for rows in the order of samples, repeated ones too: bytes, and how many rows, by owner [R]."""
        part = np.searchsorted(self._first_P, rows, side="right") - 1
        rank_P = np.empty_like(self._in_order)
        rank_P[self._in_order] = np.arange(len(rank_P))
        order = np.argsort(rank_P[part], kind="stable")
        n_P = np.bincount(part, minlength=len(rank_P))
        n_R = np.bincount(self._owner_P[part], minlength=self.ranks)
        return self._planned((rows - self._first_P[part])[order], n_P, far=True), n_R

    def _planned(self, ids: Ints, n_P: Ints, *, far: bool = False) -> Ints:
        """``far``: written in the fewest bytes that the wire has, whatever time that takes."""
        some = self._in_order[n_P[self._in_order] > 0]
        cells = np.stack([self._owner_P[some], self._table_P[some], n_P[some], n_P[some]], axis=1)
        plan = kernels.plan_requests(
            ids, np.ones(len(ids), np.int64), cells, self._near | far, self._no_weights, 4
        )  # fmt: skip
        return plan.bytes_R


class Popularity:
    """Which rows batches ask for: of each table one id a sample, that of rank k with P ~ (k + 1)^-exponent.

    Parameters
    ----------
    placed : Placed
    exponent : float
    seed : int
        Of which row has which rank.

    Attributes
    ----------
    chance : float64 [N]
        Of a sample to ask for each row.
    """

    def __init__(self, placed: Placed, exponent: float, seed: int) -> None:
        self._tables = len(placed.rows)
        ends, number, self.chance = [], [], np.zeros(placed.total)
        for t, n in enumerate(placed.rows):
            weights = np.arange(1.0, n + 1) ** -exponent
            sums = np.cumsum(weights)
            mine = placed.numbers(t, np.random.default_rng((seed, t)).permutation(n))
            self.chance[mine] = weights / sums[-1]
            ends.append(t + sums / sums[-1])
            number.append(mine)
        self._ends, self._number = np.concatenate(ends), np.concatenate(number)

    def samples(self, batch: int, rng: np.random.Generator) -> Ints:
        """Rows of all samples of a batch, table after table; those of a table by rank, not in the order of samples."""
        # Numbers in [0, 1) in rising order: sums of exponential gaps, as a share of the last.
        sums = np.cumsum(rng.standard_exponential((self._tables, batch + 1)), axis=1)
        drawn = np.arange(self._tables)[:, None] + sums[:, :-1] / sums[:, -1:]
        return self._number[np.searchsorted(self._ends, drawn.reshape(-1))]

    def distinct(self, batch: int, rng: np.random.Generator) -> Ints:
        """The distinct rows of a batch, rising."""
        rows = self.samples(batch, rng)
        rows = rows[np.append(True, rows[1:] != rows[:-1])]  # equal ones are neighbours
        rows.sort()
        return rows

    def asked(self, batch: int) -> np.ndarray:
        """The chance of a batch to ask for each row, as ``-log(1 - chance)`` [N], which small chances keep exact."""
        with np.errstate(divide="ignore"):
            return -batch * np.log1p(-self.chance)
