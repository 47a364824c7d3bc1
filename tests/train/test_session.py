"""The session's contract with a user's own loop."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.build import open_session
from hpcrec.errors import ConfigError, DataError, HpcrecError
from tests.train.runs import FEATURES, SAMPLES, config_for, gather_tables, write_data
from tests.train.test_equivalence import folder, roles_for  # noqa: F401 - a fixture


def squared(session):
    return lambda inputs, samples: (session.model(inputs, samples.dense) - samples.label) ** 2


@pytest.mark.parallel([1, 3])
def test_own_loss_and_leaving_early(folder: Path) -> None:  # noqa: F811
    write_data(folder / "data.h5")
    found = []
    for roles in roles_for(MPI.COMM_WORLD.size):
        with open_session(config_for(folder, topology=roles)) as session:
            for step in session.steps():
                step.run(squared(session))
                assert session.last_logits is None
                if session.step == 3:
                    break
            assert session.step == 3
            found.append(gather_tables(session))
            # the loop goes on where it was left, with the fourth batch
            for step in session.steps():
                assert step.number == 3
                step.run(squared(session))
                break
    for other in found[1:]:
        for name, rows in found[0].items():
            np.testing.assert_allclose(other[name], rows, rtol=0, atol=1e-12)


@pytest.mark.parallel([2])
def test_misuse_is_refused(folder: Path) -> None:  # noqa: F811
    write_data(folder / "data.h5")
    with open_session(config_for(folder)) as session:
        with pytest.raises(HpcrecError, match="without run"):
            for _ in session.steps():
                pass
        with pytest.raises(ConfigError, match=r"data\.test is not set"):
            session.evaluate("test")
    with open_session(config_for(folder)) as session, pytest.raises(HpcrecError, match="one loss for each"):
        for step in session.steps():
            step.run(lambda inputs, samples: squared(session)(inputs, samples).mean())


@pytest.mark.parallel([1, 2, 3, 4])
def test_evaluation_is_exact_and_changes_nothing(folder: Path) -> None:  # noqa: F811
    write_data(folder / "data.h5")
    results = []
    for roles in roles_for(MPI.COMM_WORLD.size):
        data = {"train": str(folder / "data.h5"), "test": str(folder / "data.h5")}
        config = config_for(folder, topology=roles, data=data)
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            rows, counted = gather_tables(session), session.parts.world.ledger.snapshot()
            outputs = list(session.outputs("test"))
            results.append(session.evaluate("test"))
            np.testing.assert_array_equal(session.parts.world.ledger.snapshot()[:3], counted[:3])
            for name, values in gather_tables(session).items():
                np.testing.assert_array_equal(values, rows[name])
            if session.topology.is_dense:
                mine = sum(len(batch.label) for _, batch, _ in outputs)
                assert session.parts.world.dense.allreduce(np.array([mine]))[0] == SAMPLES
                logits = np.concatenate([out.numpy() for _, _, out in outputs])
                assert np.isfinite(logits).all() and len(logits) == mine
    for result in results:
        assert result["samples"] == SAMPLES
        for name in ("auc", "logloss", "normalized_entropy", "calibration"):
            assert result[name] == pytest.approx(results[0][name], abs=1e-9)


@pytest.mark.parallel([1, 2])
def test_ids_outside_a_table_and_unknown_features_are_refused(folder: Path) -> None:  # noqa: F811
    write_data(folder / "data.h5")
    small = {"tables": {"user": {"rows": 5}}}
    session = open_session(config_for(folder, embedding=small))
    with pytest.raises(DataError, match=r"feature 'user' has id \d+. Allowed: 0 to 4"):
        next(session.steps()).run()
    with pytest.raises(ConfigError, match=r"which .* does not have"):
        open_session(config_for(folder, exchange={"forms": {"nothing": "rows"}}))


@pytest.mark.parallel([1, 2, 3])
def test_hashed_tables_take_any_id(folder: Path) -> None:  # noqa: F811
    write_data(folder / "data.h5")
    hashed = {"tables": {"user": {"rows": 7, "hashed": True, "shard": "row"}}}
    with open_session(config_for(folder, embedding=hashed)) as session:
        before = gather_tables(session)
        assert before["user"].shape == (7, 6)
        losses = [session.parts.world.main.allreduce(np.array([step.run()]))[0] for step in session.steps()]
        assert np.isfinite(losses).all()
        assert (gather_tables(session)["user"] != before["user"]).all(axis=1).sum() == 7


@pytest.mark.parallel([2, 4])
def test_dense_ranks_hold_equal_parameters(folder: Path) -> None:  # noqa: F811
    write_data(folder / "data.h5")
    with open_session(config_for(folder, dense={"optimizer": {"name": "AdamW"}, "clip_norm": 0.1})) as session:
        for step in session.steps():
            step.run()
        flat = torch.cat([p.detach().flatten() for p in session.model.parameters()]).numpy()
        for other in session.parts.world.dense.allgather(flat):
            np.testing.assert_array_equal(other, flat)
    assert {f.name for f in FEATURES} == {"user", "item", "history", "tag"}
