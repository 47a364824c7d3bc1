"""Dynamic tables: with room for all ids a run equals one process with a row for each; any 64-bit ids, any form."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build import open_session
from tests.train.dynamic_runs import dynamic_config, ids_of_table, learned, reference_for, write_data
from tests.train.runs import global_batches
from tests.train.test_equivalence import FORMS, IDS, OPTIMIZERS, covering, roles_for


SHORT = {"batch_size": 13, "dtype": "float64"}


def sections(roles: dict[str, Any], model: str, optimizer: str, form: str, ids: str, pooling: str) -> dict[str, Any]:
    chosen = {"auto_steps": 1, "auto_every": 3} if form == "auto" else {}
    return {
        "topology": roles,
        "model": {"name": model, "pooling": {"history": pooling}},
        "exchange": {"form": form, "ids": ids, **chosen},
    }


def check_against_reference(folder: Path, shard: str, optimizer: str, wanted: dict[str, Any]) -> None:
    tables = {t: {"dynamic": {"capacity": 4000}, "shard": shard} for t in ("user", "item", "tag")}
    optimized = {"name": optimizer, "lr": 0.1, **({"initial_accumulator": 0.05} if "adagrad" in optimizer else {})}
    embedding = {"init_scale": 0.3, "optimizer": optimized, "share": {"history": "item"}, "tables": tables}
    config = dynamic_config(folder, **wanted, embedding=embedding, train={**SHORT, "steps": 5})
    with open_session(config) as session:
        reference = reference_for(session, config)
        batches = global_batches(session, session.total_steps)
        seen: dict[str, set[int]] = {name: set() for name in session.parts.tables}
        for step in session.steps():
            loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
            batch = batches[step.number]
            np.testing.assert_allclose(loss, reference.step(batch)[0], rtol=0, atol=1e-12)
            for name in seen:
                for feature in ("item", "history") if name.startswith("item") else (name.partition(".")[0],):
                    seen[name] |= set(batch.bags[feature].ids.tolist())
        for name, rows in learned(session).items():
            assert rows.keys() == seen[name], "ids that were asked for have rows, and no others"
            ids, expected = ids_of_table(name), reference.rows(name)
            for i, row in rows.items():
                np.testing.assert_allclose(row, expected[np.searchsorted(ids, i)], rtol=0, atol=1e-11)


@pytest.mark.parallel([1, 2, 3, 4])
def test_with_room_for_all_equals_one_process(folder: Path) -> None:
    write_data(folder / "data.h5")
    optimizers = itertools.cycle(OPTIMIZERS)
    rest = (("fm", "deepfm"), ("auto", "table"), IDS, ("sum", "mean", "max"))
    for roles, form, model, shard, ids, pooling in covering(roles_for(MPI.COMM_WORLD.size), FORMS, *rest):
        optimizer = next(optimizers)
        check_against_reference(folder, shard, optimizer, sections(roles, model, optimizer, form, ids, pooling))
