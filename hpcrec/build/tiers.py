"""From a configuration with ``store.name = "disk"`` to what its owners will ask their disk for, before any is started.

Counts how often rows are asked for, or takes that from ``hpcrec data reuse``; how rows share memory is
``plan.placement``'s. Owners are taken to be on hosts as given, and those of a host to share one disk. Knows no
communicator, and measures nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hpcrec import kernels
from hpcrec.build.memory import topology_of
from hpcrec.build.tables import DTYPES, make_model, make_offers, make_policy, whole_tables
from hpcrec.config import Config
from hpcrec.data.reader import DataSet
from hpcrec.data.reuse import reuse
from hpcrec.disk.layout import Layout
from hpcrec.embedding.blocks import blocks_of
from hpcrec.embedding.room import bytes_of
from hpcrec.embedding.shards import Family, table_seed
from hpcrec.embedding.stores.disk import DiskStore, id_of
from hpcrec.errors import ConfigError
from hpcrec.plan.curves import Curve, summed
from hpcrec.plan.memory import MAP_BYTES_A_ROW, ORDER_BYTES_A_ROW
from hpcrec.plan.placement import FEW_SEGMENTS_BYTES, TierPart, expect

IDS_COUNTED = 4_000_000  # at most, of a data set that is counted at once: some seconds
FOOTER_BYTES = 3  # of a record on the disk, about
_FEW_HASHED = 0.1  # of its rows: so many ids share hardly any


@dataclass(frozen=True)
class Tiers:
    """What owners have on disks, or would have where tables are whole.

    Attributes
    ----------
    parts : dict of int to list of TierPart
        By world rank that owns any.
    whole : frozenset of str
        Tables that are whole as it is.
    map_bytes : dict of int to int
        By rank: memory beside the budget for maps of ids, of dynamic tables.
    """

    parts: Mapping[int, Sequence[TierPart]]
    whole: frozenset[str]
    map_bytes: Mapping[int, int]


def tiers_of(config: Config, host_of: Sequence[int], counted: Path | None = None) -> Tiers | str:
    """Parts of tables with their curves; or why these are not known.

    Parameters
    ----------
    config : Config
    host_of : sequence of int
        The host of each rank.
    counted : Path, optional
        What ``hpcrec data reuse --json`` has printed; default: counts now, where the data are few.

    Raises
    ------
    ConfigError, DataError
        What a run would refuse; counts of another batch size.
    """
    topology = topology_of(config, host_of)
    with DataSet(Path(config.data.train)) as dataset:
        _, operators = make_model(config, dataset)
        tables, families, _ = make_offers(config, dataset, operators, topology)
        ids = dataset.samples * sum(dataset.feature(f).mean_ids for family in families for f in family.features)
        samples = dataset.samples
    batch_size = config.train.batch_size
    steps = config.train.steps or config.train.epochs * -(-samples // batch_size)
    looked = min(samples, steps * batch_size)
    if counted is None and ids > IDS_COUNTED:
        few = f" --samples {looked}" if looked < samples else ""
        return (
            f"the training data have {ids:,.0f} ids, more than are counted here. Count them once, by hpcrec data reuse "
            f"{config.data.train} --batch-size {batch_size}{few} --json > reuse.json, and give --reuse reuse.json"
        )
    curves = _counted(config, families, looked) if counted is None else _read(config, families, counted, looked)
    dtype = DTYPES[config.train.dtype][0]
    later = max(1 - samples / max(config.train.batch_size * steps, 1), 0.0)  # share of steps after the first epoch
    ahead = config.exchange.first_ahead + make_policy(config).in_flight - 1
    parts: dict[int, list[TierPart]] = {}
    for rank in topology.owners:
        for block in blocks_of(tables, [f for f in families if rank in f.holders], rank):
            if block.kind == "replicate":
                continue
            row_bytes = bytes_of(1, block.width, block.spec, dtype)
            page_bytes = Layout.of(row_bytes).page_bytes
            for part in block.parts:
                parts.setdefault(rank, []).append(
                    TierPart(
                        table=part.table,
                        block=id_of(block),
                        rows=part.end - part.base,
                        row_bytes=row_bytes,
                        page_bytes=page_bytes,
                        curve=curves[part.family.name].part(1 / part.family.row_parts).later(later),
                        ahead=ahead,
                    )
                )
    maps = {rank: sum(_map_bytes(f, rank) for f in families if rank in f.holders) for rank in parts}
    return Tiers(parts, whole_tables(config, topology), maps)


def _map_bytes(family: Family, rank: int) -> int:
    if family.dynamic is None:
        return 0
    a_row = MAP_BYTES_A_ROW + ORDER_BYTES_A_ROW * (family.dynamic.evict is not None)
    return family.part_rows(family.holders.index(rank)) * a_row


def _counted(config: Config, families: Sequence[Family], samples: int) -> dict[str, Curve]:
    seed = config.train.seed
    hashed = {
        family.name: partial(kernels.hash_ids, rows=family.rows, seed=table_seed(seed, family.name))
        for family in families
        if family.hashed
    }
    features = {family.name: family.features for family in families}
    return reuse(Path(config.data.train), config.train.batch_size, features, samples=samples, rows_of=hashed)


def _read(config: Config, families: Sequence[Family], path: Path, samples: int) -> dict[str, Curve]:
    """Of features, each as if it had rows of its own. ``samples``: of which steps ask in the first epoch."""
    try:
        found = json.loads(path.read_text())
        batch_size, curves = found["batch_size"], found["features"]
        by_feature = {name: Curve.from_json(of) for name, of in curves.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: is not what `hpcrec data reuse --json` prints ({type(error).__name__}: {error}). Write it anew."
        ) from None
    if batch_size != config.train.batch_size:
        raise ConfigError(
            f"{path}: was counted with --batch-size {batch_size}, but train.batch_size is {config.train.batch_size}. "
            f"Count anew with --batch-size {config.train.batch_size}."
        )
    for family in families:
        for feature in family.features:
            if feature not in by_feature:
                raise ConfigError(f"{path}: has no feature {feature!r}. Count anew, without --feature.")
    steps = max(-(-samples // batch_size), 1)
    counted = max((of.steps for of in by_feature.values()), default=steps)
    if steps < counted:
        raise ConfigError(
            f"{path}: was counted over {counted} steps, but this run has {steps} before data repeat. Count anew with "
            f"--samples {samples}."
        )
    found = {family.name: summed([by_feature[f] for f in family.features]) for family in families}
    for family in families:
        ids = found[family.name].distinct
        if family.hashed and ids > _FEW_HASHED * family.rows:
            raise ConfigError(
                f"{path}: counts ids, of which table {family.name!r} has {ids:,.0f}, hashed to {family.rows:,} rows: "
                "so many share rows that ids do not say how often a row is asked for. Leave --reuse out: of data sets "
                f"with up to {IDS_COUNTED:,} ids rows are counted then."
            )
    return found


def reads_of(tiers: Tiers, ranks: Sequence[int], memory_bytes: int) -> dict[int, float] | None:
    """Pages that these owners together read a step, by their bytes; None where the memory is too little."""
    found: dict[int, float] = {}
    for rank in ranks:
        expected = expect(tiers.parts[rank], memory_bytes, tiers.whole)
        if expected is None:
            return None
        pages = {part.table: part.page_bytes for part in tiers.parts[rank]}
        for table, n in expected.pages.items():
            found[pages[table]] = found.get(pages[table], 0.0) + n
    return found


def disk_bytes(parts: Sequence[TierPart], whole: frozenset[str]) -> float:
    """Space that rows take at most, all of them written."""
    by_block: dict[object, float] = {}
    for part in parts:
        if part.table not in whole:
            of = Layout.of(part.row_bytes)
            n_bytes = part.rows * (of.page_bytes / of.per_page + FOOTER_BYTES)
            by_block[part.block] = by_block.get(part.block, 0.0) + n_bytes
    return sum(max(n * DiskStore.of_tier.spare, n + FEW_SEGMENTS_BYTES) for n in by_block.values())
