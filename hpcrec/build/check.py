"""All of a configuration that can be known before ranks are started: what a run would refuse is refused here.

Opens its data sets, builds its model, layout and dense optimizer, and predicts its memory. Knows no communicator: what
only ranks on their hosts can tell (GPUs, threads of the MPI library, equal files everywhere) is not known here.
"""

from hpcrec.build.auto import refuse_stages, refuse_together
from hpcrec.build.datasets import open_datasets
from hpcrec.build.measures import make_measures
from hpcrec.build.memory import memory_report, ranks_or_fewest, topology_of
from hpcrec.build.tables import make_model, make_offers, trained_parameters
from hpcrec.config import Config
from hpcrec.dense.optimizer import build_optimizer


def check_run(config: Config, ranks: int | None) -> list[str]:
    """Lines on the memory of each rank, for so many ranks on one host; by default as many as ``[topology]`` counts.

    Raises
    ------
    ConfigError, DataError
        What a run would refuse.
    """
    datasets = open_datasets(config)
    model, operators = make_model(config, datasets["train"])
    make_measures(config, datasets, operators)
    wanted = config.dense.optimizer
    build_optimizer(wanted.name, trained_parameters(model), lr=wanted.lr, options=wanted.options)
    topology = topology_of(config, [0] * ranks_or_fewest(config, ranks))
    _, _, offers = make_offers(config, datasets["train"], operators, topology)
    refuse_stages(config, offers)
    if not offers.free:  # else forms are chosen by the batches
        refuse_together(config, offers.layout({}), topology, direct=False)
    for dataset in datasets.values():
        dataset.close()
    return memory_report(config, ranks)
