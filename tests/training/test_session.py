"""The session's contract with a user's own loop."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec import kernels
from hpcrec.api import commands
from hpcrec.build import session as build
from hpcrec.build.session import open_session
from hpcrec.errors import ConfigError, DataError, HpcrecError
from hpcrec.models import MODELS
from hpcrec.types import Bags, Batch
from tests.together import on_every_rank
from tests.training import runs
from tests.training.runs import FEATURES, SAMPLES, config_for, gather_tables, write_data
from tests.training.test_equivalence import check_against_reference, roles_for, sections


def squared(session):
    return lambda inputs, samples: (session.model(inputs, samples.dense) - samples.label) ** 2


@pytest.mark.parallel([1, 3])
def test_own_loss_and_leaving_early(folder: Path) -> None:
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
def test_misuse_is_refused(folder: Path) -> None:
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
def test_evaluation_is_exact_and_changes_nothing(folder: Path) -> None:
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
            mine = sum(len(batch.label) for _, batch, _ in outputs)
            assert session.parts.world.main.allreduce(np.array([mine]))[0] == SAMPLES
            with on_every_rank():
                logits = [out.numpy() for _, _, out in outputs]
                assert all(np.isfinite(one).all() for one in logits) and sum(map(len, logits)) == mine
    for result in results:
        assert result["samples"] == SAMPLES
        for name in ("auc", "logloss", "normalized_entropy", "calibration"):
            assert result[name] == pytest.approx(results[0][name], abs=1e-9)


@pytest.mark.parallel([1, 2])
def test_ids_outside_a_table_and_unknown_features_are_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    small = {"tables": {"user": {"rows": 5}}}
    with pytest.raises(ConfigError, match=r"table 'user' has 5 rows, but its features have ids up to 39"):
        open_session(config_for(folder, embedding=small))
    with open_session(config_for(folder)) as session:
        exchange = session.parts.pipeline.exchange
        n, one = len(exchange.features), np.ones(1, np.float32)
        bags = Bags(exchange.features, np.full(n, 40), np.arange(n + 1))  # one sample, id 40 everywhere
        batch = Batch(0, 0, 1, 0, np.zeros((1, 0), np.float32), one, None, bags)
        with pytest.raises(DataError, match=r"feature 'user' has id 40. Allowed: 0 to 39"):
            exchange.route(batch, None, train=True)
    with pytest.raises(ConfigError, match=r"which .* does not have"):
        open_session(config_for(folder, exchange={"forms": {"nothing": "rows"}}))


@pytest.mark.parallel([1, 2, 3])
def test_hashed_tables_take_any_id(folder: Path) -> None:
    write_data(folder / "data.h5")
    hashed = {"tables": {"user": {"rows": 7, "hashed": True, "shard": "row"}}}
    with open_session(config_for(folder, embedding=hashed)) as session:
        before = gather_tables(session)
        assert before["user"].shape == (7, 6)
        losses = [session.parts.world.main.allreduce(np.array([step.run()]))[0] for step in session.steps()]
        assert np.isfinite(losses).all()
        assert (gather_tables(session)["user"] != before["user"]).all(axis=1).sum() == 7


@pytest.mark.parallel([2, 4])
def test_dense_ranks_hold_equal_parameters(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_for(folder, dense={"optimizer": {"name": "AdamW"}, "clip_norm": 0.1})) as session:
        for step in session.steps():
            step.run()
        flat = torch.cat([p.detach().flatten() for p in session.model.parameters()]).numpy()
        for other in session.parts.world.dense.allgather(flat):
            np.testing.assert_array_equal(other, flat)
    assert {f.name for f in FEATURES} == {"user", "item", "history", "tag"}


@pytest.mark.parallel([2, 4])
@pytest.mark.in_turn
@pytest.mark.parametrize("form", ["pooled", "rows"])
def test_dense_ranks_without_samples(folder: Path, form: str) -> None:
    write_data(folder / "data.h5", weighted=False)
    size = MPI.COMM_WORLD.size
    few = {"batch_size": size - 1, "dtype": "float64", "steps": 3}
    for model, shard in zip(MODELS, itertools.cycle(("row", "column", "replicate", "table")), strict=False):
        wanted = sections({"mode": "fused"}, model, shard, "rowwise_adagrad", form)
        check_against_reference(folder, **wanted, train=few)


@pytest.mark.parallel([2, 3])
def test_features_of_one_table_in_different_forms(folder: Path) -> None:
    write_data(folder / "data.h5")
    for shard in ("table", "row", "column"):
        wanted = sections({"mode": "fused"}, "deepfm", shard, "adam", "rows")
        wanted["exchange"]["forms"] = {"history": "pooled"}
        check_against_reference(folder, **wanted)


@pytest.mark.parallel([2])
def test_a_form_for_a_replicated_table_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    with pytest.raises(ConfigError, match=r"exchange\.forms\.user is 'rows'"):
        open_session(config_for(folder, exchange={"forms": {"user": "rows"}, "replicate_rows": 1000}))


@pytest.mark.parallel([3])
def test_every_owner_takes_part_in_summing_norms(folder: Path) -> None:
    """Also one that holds nothing: the call is collective over all owners."""
    write_data(folder / "data.h5")
    config = config_for(
        folder,
        data={"train": str(folder / "data.h5"), "features": ["user"]},
        model={"name": "dlrm", "width": 6, "pooling": {}},
        embedding={
            "share": {},
            "optimizer": {"name": "rowwise_adagrad", "lr": 0.1},
            "tables": {"user": {"shard": "column", "parts": 2}},
        },
    )
    calls = []
    with open_session(config) as session:
        owners = session.parts.world.owners
        original = owners.alltoallv
        owners.alltoallv = lambda *given: (calls.append(1), original(*given))[1]
        holds = session.parts.store is not None
        for step in session.steps():
            step.run()
    assert MPI.COMM_WORLD.allgather(holds).count(True) == 2
    assert MPI.COMM_WORLD.allgather(len(calls)) == [7, 7, 7]


@pytest.mark.parallel([2])
def test_batches_that_weigh_nothing_change_no_dense_parameter_to_nan(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_for(folder)) as session:
        for step in session.steps():
            if step.number == 1:
                break
            step.batch.weight[:] = 0.0
            step._ticket.routed.result().__dict__["total_weight"] = 0.0
            assert step.run() == 0.0
        assert all(torch.isfinite(p).all() for p in session.model.parameters())


@pytest.mark.parallel([1, 2])
def test_models_with_scalar_parameters_and_buffers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    original = build.make_model

    def with_scalars(*given):
        model, operators = original(*given)
        model.register_parameter("temperature", torch.nn.Parameter(torch.tensor(float(MPI.COMM_WORLD.rank))))
        model.register_buffer("count", torch.tensor(MPI.COMM_WORLD.rank))
        return model, operators

    monkeypatch.setattr(build, "make_model", with_scalars)
    with open_session(config_for(folder, dense={"optimizer": {"name": "Adam"}})) as session:
        assert session.model.temperature.shape == () and session.model.temperature.item() == 0.0
        assert session.model.count.item() == 0
        next(iter(session.steps())).run()


@pytest.mark.parallel([1, 2])
def test_running_statistics_are_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    if MPI.COMM_WORLD.rank == 0:
        (folder / "normed.py").write_text(
            "from torch import nn\nfrom hpcrec.models import build_model\n"
            "def build(features, n_dense, *, width, n_labels=1, **options):\n"
            "    model = build_model('dlrm', features, n_dense, width=width)\n"
            "    model.norm = nn.BatchNorm1d(3)\n    return model\n"
        )
    MPI.COMM_WORLD.Barrier()
    own = {"name": "normed:build", "folder": str(folder), "pooling": {}}
    with pytest.raises(ConfigError, match="norm is a BatchNorm1d with running statistics"):
        open_session(config_for(folder, model=own))


@pytest.mark.parallel([1, 2])
def test_gradients_whose_norm_is_not_finite_are_not_clipped_but_said(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_for(folder, dense={"clip_norm": 1.0})) as session:
        step = next(session.steps())
        with pytest.raises(HpcrecError, match=r"norm of the dense gradients is (nan|inf)"):
            # every gradient is finite, the sum of their squares is not
            step.run(lambda inputs, samples: session.model(inputs, samples.dense) * 1e300)


@pytest.mark.parallel([1, 2])
def test_a_table_has_a_name_that_a_checkpoint_can_keep(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, length in (("u" * 255, 0), ("u" * 256, 256), ("ü" * 128, 256)):
        renamed = (replace(FEATURES[0], name=name), *FEATURES[1:])
        monkeypatch.setattr(runs, "FEATURES", renamed)
        write_data(folder / "data.h5")
        config = config_for(folder, train={"steps": 2}, checkpoint={"resume": "never"})
        if not length:
            assert commands.train(config) == 0
        else:
            with pytest.raises(ConfigError, match=f"has a name of {length} bytes, .*Allowed: 1 to 255 bytes"):
                commands.train(config)


@pytest.mark.parallel([1])
def test_the_thread_that_routes_has_the_threads_of_its_rank(folder: Path) -> None:
    write_data(folder / "data.h5")
    before = kernels.get_threads()
    with open_session(config_for(folder, topology={"owner_threads": 3, "dense_threads": 3})) as session:
        router = session.parts.pipeline._router
        assert router is not None and router.submit(kernels.get_threads).result() == kernels.get_threads() == 3
    kernels.set_threads(before)
