"""Runs over dynamic tables: data of any 64-bit ids, and what was learned, by id."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpi4py import MPI

from hpcrec import kernels
from hpcrec.build.tables import make_model
from hpcrec.config import Config
from hpcrec.data.layout import Column, Columns
from hpcrec.embedding.shards import table_seed
from hpcrec.kernels import reference_id_map
from hpcrec.preparation.writer import Writer
from hpcrec.training.session import Session
from hpcrec.types import Feature
from tests.reference import Reference, RowOptimizer, describe
from tests.training.runs import config_for

# user, item and history (which reads item's table) have any ids; tag has declared ones, and weights
FEATURES = (
    Feature(name="user", cardinality=0),
    Feature(name="item", cardinality=0),
    Feature(name="history", cardinality=0, mean_ids=3.0),
    Feature(name="tag", cardinality=9, mean_ids=2.0, weighted=True),
)
EXTREMES = np.array([-(2**63), 2**63 - 1, -1, 0, 2**56, -(2**56), 2**31], np.int64)
TABLES = ("user", "item", "tag")
N_IDS = {"user": 40, "item": 25, "history": 25, "tag": 9}


def id_of(feature: str) -> np.ndarray:
    """The ids that a feature has: a few of the whole of 64 bits; of tag 0 to 8."""
    if feature == "tag":
        return np.arange(9)
    rng = np.random.default_rng(3 if feature == "user" else 4)
    drawn = rng.integers(-(2**63), 2**63 - 1, N_IDS[feature] - len(EXTREMES))
    return np.concatenate([drawn, EXTREMES])


def write_data(path: Path, *, samples: int = 70, seed: int = 5, exponent: float = 1.0) -> None:
    """One-hot, multi-hot, empty and weighted bags, on rank 0 only; ``exponent`` above 1 prefers some ids."""
    if MPI.COMM_WORLD.rank == 0:
        rng = np.random.default_rng(seed)
        columns = {}
        for feature in FEATURES:
            one = feature.mean_ids == 1.0
            lengths = np.ones(samples, int) if one else rng.integers(0, 6, samples)
            known = id_of(feature.name)
            ids = known[(len(known) * rng.random(lengths.sum()) ** exponent).astype(int)]
            offsets = None if one else np.concatenate([[0], np.cumsum(lengths)])
            weights = rng.uniform(0.5, 2, len(ids)).astype(np.float32) if feature.weighted else None
            columns[feature.name] = Column(ids, offsets, weights)
        label = rng.integers(0, 2, samples).astype(np.float32)
        dense = rng.standard_normal((samples, 3)).astype(np.float32)
        with Writer(path, FEATURES, n_dense=3, jagged=("history", "tag")) as writer:
            writer.append(Columns(label=label, dense=dense, sparse=columns))
    MPI.COMM_WORLD.Barrier()


def dynamic_config(folder: Path, rules: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    """A configuration with all tables dynamic; ``rules`` by default have room for all ids on any owner."""
    rules = {"capacity": 4000} if rules is None else rules
    embedding = {"tables": {t: {"dynamic": rules} for t in TABLES}, **sections.pop("embedding", {})}
    return config_for(folder, embedding=embedding, **sections)


def learned(session: Session) -> dict[str, dict[int, np.ndarray]]:
    """Rows of every table by id, on every rank; none is at two owners."""
    store, mine = session.parts.store, {}
    for table in () if store is None else store.tables:
        blocks = list(store.export(table))
        mine[table] = {i: row.copy() for ids, rows, _ in blocks for i, row in zip(ids.tolist(), rows, strict=True)}
    out: dict[str, dict[int, np.ndarray]] = {name: {} for name in session.parts.tables}
    for theirs in session.parts.world.main.allgather(mine):
        for table, rows in theirs.items():
            assert not out[table].keys() & rows.keys(), "an id has rows at two owners"
            out[table] |= rows
    return out


def initial_rows(session: Session, table: str, ids: np.ndarray) -> np.ndarray:
    spec = session.parts.tables[table]
    seed = table_seed(session.parts.seed, table)
    dtype = torch.zeros(0, dtype=session.parts.dtype).numpy().dtype
    return kernels.init_rows(seed, ids, spec.width, scale=spec.init_scale, dtype=dtype)


def ids_of_table(table: str) -> np.ndarray:
    return np.unique(id_of(table.partition(".")[0]))


def reference_for(session: Session, config: Config) -> Reference:
    """One process whose tables have a row for every id there is."""
    model, operators = make_model(config, session.parts.splits["train"].dataset)
    optimizers, tables, row_of = {}, {}, {}
    for name, spec in session.parts.tables.items():
        o, ids = spec.optimizer, ids_of_table(name)
        optimizers[name] = RowOptimizer(o.name, o.lr, o.eps, o.beta1, o.beta2, o.initial_accumulator, o.bound)
        tables[name] = initial_rows(session, name, ids)
        row_of[name] = lambda wanted, ids=ids: np.searchsorted(ids, wanted)
    dense = torch.optim.SGD(model.parameters(), lr=config.dense.optimizer.lr)
    return Reference(model, describe(operators), tables, optimizers, dense, dtype=session.parts.dtype, row_of=row_of)


class Rules:
    """Who has a row, in one process: for each owner of each family an id map in plain Python, one batch a step.

    The reference's tables have a row for each id that there is, and a spare one of zeros behind them.
    """

    def __init__(self, session: Session, reference: Reference, rules: dict[str, Any]) -> None:
        self.reference = reference
        self.session = session
        families = {f.name: f for table in session.parts.tables for f in self._families(table)}
        self.families = list(families.values())
        self.maps = {f.name: [self._map(f, part, rules) for part in range(f.row_parts)] for f in self.families}
        self.rows: dict[str, set[int]] = {f.name: set() for f in self.families}
        self.refused = dict.fromkeys(self.rows, 0)
        self.started: Callable[[str, int], None] = lambda family, i: None  # told of each id that is given a row
        for name, table in reference.tables.items():
            ids = ids_of_table(name)
            table.bags.weight.data = torch.cat([table.bags.weight.data, torch.zeros_like(table.bags.weight[:1])])
            table.states.update({key: torch.cat([x, x[:1]]) for key, x in table.states.items()})
            reference._row_of[name] = self._row_of(name, ids)
        self.initial = {n: (reference.rows(n), reference.states(n)) for n in reference.tables}

    def _families(self, table: str) -> list[Any]:
        found = None if self.session.parts.store is None else self.session.parts.store.place(table)
        everyone = self.session.parts.world.main.allgather(None if found is None else found[1].family)
        return [next(family for family in everyone if family is not None)]

    @staticmethod
    def _map(family: Any, part: int, rules: dict[str, Any]) -> reference_id_map.IdMap:
        rest = rules.get("admit_from", 1), max(1, rules.get("pending", 1 << 20) // family.row_parts)
        chance = rules.get("admit_probability", 1.0)
        return reference_id_map.IdMap(family.part_rows(part), rules.get("evict"), *rest, chance, family.dynamic.seed)

    def _row_of(self, table: str, ids: np.ndarray) -> Any:
        family = next(f.name for f in self.families if table in f.tables)
        return lambda wanted: np.array(
            [np.searchsorted(ids, i) if i in self.rows[family] else len(ids) for i in wanted.tolist()], np.int64
        )

    def admit(self, bags: dict[str, Any]) -> None:
        """One step, before its rows are read."""
        for family in self.families:
            asked = np.unique(np.concatenate([bags[f].ids for f in family.features]))
            part_of = family.deal(asked)[0] if family.kind == "row" else np.zeros(len(asked), int)
            known = set()
            for part, own in enumerate(self.maps[family.name]):
                ids = asked[part_of == part]
                rows, fresh = own.admit(ids)
                self.refused[family.name] += int((rows < 0).sum())
                for i in ids[fresh]:
                    self._start(family, int(i))
                known |= own._row_of.keys()
            self.rows[family.name] = known

    def _start(self, family: Any, i: int) -> None:
        self.started(family.name, i)
        for name in family.tables:
            table, row = self.reference.tables[name], int(np.searchsorted(ids_of_table(name), i))
            rows, states = self.initial[name]
            table.bags.weight.data[row] = torch.from_numpy(rows[row])
            for key, state in table.states.items():
                state[row] = torch.from_numpy(states[key])[row]

    def forget(self) -> None:
        """What ids without a row have learned; after a step."""
        for table in self.reference.tables.values():
            table.bags.weight.data[-1] = 0
