"""From a configuration to what a run asks of its disks: bytes of a checkpoint by rank, and bytes read for a sample.

Builds the model and the layout as a run does, but no rows. Knows no speeds and no communicator.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrec.build.memory import topology_of
from hpcrec.build.tables import DTYPES, make_model, make_offers
from hpcrec.config import Config
from hpcrec.data.index import open_files
from hpcrec.data.reader import DataSet
from hpcrec.plan.memory import DENSE_STATES, row_bytes

_ID_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class DiskNeeds:
    """What a run asks of its disks.

    Attributes
    ----------
    checkpoint_bytes : tuple of int
        That each rank writes into a checkpoint: rows, ids and optimizer state; the dense part on the first dense rank.
    sample_bytes : float
        Of the data set's files, all columns: at most what is read for a sample.
    readers : tuple of int
        Ranks that read training samples.
    whole : bool
        Whether each of them reads all samples, of which it then picks its own; else it reads its own alone.
    """

    checkpoint_bytes: tuple[int, ...]
    sample_bytes: float
    readers: tuple[int, ...]
    whole: bool


def disk_needs(config: Config, host_of: Sequence[int]) -> DiskNeeds:
    """What so many ranks on these hosts will ask for; reads the head of the training data.

    Raises
    ------
    ConfigError, DataError
        What a run would refuse.
    OSError
        A file of the data set is gone.
    """
    topology = topology_of(config, host_of)
    path = Path(config.data.train)
    with DataSet(path) as dataset:
        model, operators = make_model(config, dataset)
        tables, families, _ = make_offers(config, dataset, operators, topology)
        whole = config.data.shuffle or not dataset.plain([f.name for f in dataset.features], ("weight",))
        samples = dataset.samples
    item_bytes = DTYPES[config.train.dtype][0].itemsize
    written = [0] * topology.size
    for family in families:
        parts = 1 if family.kind == "replicate" else len(family.holders)  # of copies the first is written
        for part, rank in enumerate(family.holders[:parts]):
            for name in family.tables:
                start, stop = family.part_columns(tables[name].width, part)
                if start < stop:
                    a_row = row_bytes(stop - start, tables[name].optimizer.name, item_bytes) + _ID_BYTES
                    written[rank] += family.part_rows(part) * a_row
    states = DENSE_STATES.get(config.dense.optimizer.name, 2)
    elements = sum(p.numel() for p in model.parameters())
    written[topology.dense[0]] += topology.groups * elements * (1 + states) * item_bytes
    owners_read = topology.owners if config.exchange.ids == "read" else ()
    return DiskNeeds(
        checkpoint_bytes=tuple(written),
        sample_bytes=sum(file.path.stat().st_size for file in open_files(path)[0]) / max(samples, 1),
        readers=tuple(sorted({*topology.dense, *owners_read})),
        whole=whole,
    )
