"""All of a configuration that can be known before ranks are started: what a run would refuse is refused here.

Opens its data sets, builds its model, layout and dense optimizer, looks at the checkpoint that it would go on from, and
predicts its memory. What does not follow from each other is told in one go. Knows no communicator: what only ranks on
their hosts can tell (GPUs of other hosts, threads of the MPI library, equal files everywhere) is not known here.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from hpcrec.build.auto import refuse_stages, refuse_together
from hpcrec.build.datasets import try_datasets
from hpcrec.build.measures import make_measures
from hpcrec.build.memory import memory_report, ranks_or_fewest, topology_of
from hpcrec.build.tables import make_model, make_offers, store_class, trained_parameters
from hpcrec.checkpoint.files import candidates
from hpcrec.checkpoint.reader import Checkpoint
from hpcrec.comm.topology import Topology
from hpcrec.config import Config
from hpcrec.data.reader import DataSet
from hpcrec.dense.horovod import import_horovod
from hpcrec.dense.optimizer import build_optimizer
from hpcrec.embedding.store import row_states
from hpcrec.errors import CheckpointError, CombinedError, HpcrecError, MissingError, UnreadableError
from hpcrec.operators.base import Operator
from hpcrec.types import TableSpec

T = TypeVar("T")


def check_run(config: Config, ranks: int | None, *, here: bool = False) -> list[str]:
    """Lines on the memory of each rank, for so many ranks on one host; by default as many as ``[topology]`` counts.

    Parameters
    ----------
    here : bool
        Whether this host is the one that the ranks will be on, so that its GPUs are theirs.

    Raises
    ------
    HpcrecError
        What a run would refuse; a ``CombinedError`` where there is more than one such thing.
    """
    wrong: list[HpcrecError] = []

    def tried(part: Callable[[], T]) -> T | None:
        try:
            return part()
        except UnreadableError:  # which says nothing of the configuration
            raise
        except HpcrecError as error:
            wrong.append(error)
            return None

    datasets, of_data = try_datasets(config)
    wrong += of_data
    topology = tried(lambda: topology_of(config, [0] * ranks_or_fewest(config, ranks)))
    if topology is not None:
        tried(partial(_refuse_missing, config, topology, here=here))
    train = datasets.get("train")
    made = None if train is None else tried(partial(make_model, config, train))
    if made is not None:
        model, operators = made
        tried(lambda: make_measures(config, datasets, operators))
        wanted = config.dense.optimizer
        tried(lambda: build_optimizer(wanted.name, trained_parameters(model), lr=wanted.lr, options=wanted.options))
        if train is not None and topology is not None:
            tried(partial(_refuse_layout, config, train, operators, topology))
    for dataset in datasets.values():
        dataset.close()
    if wrong:
        raise wrong[0] if len(wrong) == 1 else CombinedError(str(wrong[0]), wrong)
    return [] if here else memory_report(config, ranks)


def _refuse_missing(config: Config, topology: Topology, *, here: bool) -> None:
    """Refuses what takes a package or a device that is not there."""
    if config.dense.reducer == "horovod" and len(topology.dense) > 1:
        try:
            import_horovod()
        except MissingError as error:
            raise MissingError(f"dense.reducer is 'horovod', but {error}") from error
    if not here or torch.cuda.is_available():
        return
    none = (
        f"is 'cuda', but there is no GPU that torch {torch.__version__} can use on this host. See `hpcrec doctor`, or"
    )
    if config.dense.device == "cuda":
        raise MissingError(f"dense.device {none} set dense.device = 'cpu'.")
    if store_class(config).on_device and config.store.device == "cuda":
        raise MissingError(f"store.device {none} set store.name = 'dram', and remove store.gpu_bytes.")


def _refuse_layout(config: Config, train: DataSet, operators: dict[str, Operator], topology: Topology) -> None:
    """Refuses tables, forms and stages that cannot be had, and a checkpoint of other tables."""
    tables, _, offers = make_offers(config, train, operators, topology)
    refuse_stages(config, offers)
    if not offers.free:  # else forms are chosen by the batches
        refuse_together(config, offers.layout({}), topology, direct=False)
    _refuse_checkpoint(config, tables)


def _refuse_checkpoint(config: Config, tables: dict[str, TableSpec]) -> None:
    """Refuses to go on from a checkpoint of tables of other shapes. Whether it is whole, ranks find out together."""
    resume = config.checkpoint.resume
    if resume == "never":
        return
    try:
        found = Checkpoint(candidates(Path(config.run.folder), "last" if resume == "auto" else resume)[0])
    except (CheckpointError, OSError):  # none, or one that is damaged, which ranks may pass over
        return
    for name in sorted(set(tables) & set(found.tables)):
        table = tables[name]
        found.check_table(
            name,
            rows=table.rows,
            width=table.width,
            states=row_states(table.optimizer),
            dynamic=table.dynamic is not None,
            hashed=table.hashed,
        )
