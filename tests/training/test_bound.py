"""``embedding.optimizer.bound``: no weight that has moved is past it, whoever holds it and whenever it learns."""

from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.config import Config
from hpcrec.errors import ConfigError
from tests.policy.test_hybrid import check_against_one_process, config_of, results
from tests.together import on_every_rank
from tests.training.runs import config_for, write_data
from tests.training.test_equivalence import check_against_reference, few_roles, sections

BOUND = 0.06  # of rows that begin within 0.3


def bounded(optimizer: str) -> dict[str, object]:
    return {"name": optimizer, "lr": 0.1, "bound": BOUND}


def config_with_bound(folder: Path, tau: int | None, way: str, optimizer: str, **more: dict[str, object]) -> Config:
    config = config_of(folder, tau, way, **more)
    embedding = {"optimizer": bounded(optimizer), "share": config.embedding.share, "init_scale": 0.3}
    return config_of(folder, tau, way, **more, embedding=embedding)


@pytest.mark.parallel([1, 2, 3, 4])
def test_equals_one_process_that_bounds_its_rows(folder: Path) -> None:
    write_data(folder / "data.h5")
    ways = [("table", "adagrad", "rows"), ("column", "rowwise_adagrad", "pooled"), ("row", "adam", "pooled")]
    ways.append(("replicate", "sgd", "pooled"))
    for number, (shard, optimizer, form) in enumerate(ways):
        roles = few_roles(MPI.COMM_WORLD.size)[number % len(few_roles(MPI.COMM_WORLD.size))]
        wanted = sections(roles, "fm", shard, optimizer, form)
        wanted["embedding"]["optimizer"] = bounded(optimizer)
        check_against_reference(folder, **wanted)
        check_against_one_process(config_with_bound(folder, 2, "pooled", optimizer, topology=roles), 2)


@pytest.mark.parallel([2])
def test_what_moved_is_within_it(folder: Path) -> None:
    write_data(folder / "data.h5")
    free, held = (config_of(folder, None, "rows"), config_with_bound(folder, None, "rows", "adagrad"))
    found = []
    for config in (free, held):
        with open_session(config) as session:
            before = results(session)
            for step in session.steps():
                step.run()
            found.append((before, results(session)))
    with on_every_rank():
        for name in ("user", "item", "tag"):
            past, (before, after) = found[0][1][name], (of[name] for of in found[1])
            moved = after != before
            assert moved.any() and np.abs(after[moved]).max() <= BOUND, name
            assert np.abs(past).max() > BOUND, name


def test_a_bound_is_above_nothing(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedding\.optimizer\.bound is 0"):
        config_for(folder, embedding={"optimizer": {"name": "sgd", "bound": 0.0}})
