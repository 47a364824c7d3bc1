"""Equivalences 1 and 2 of the design: a distributed run equals one process, whoever owns what and whatever crosses."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.build.session import open_session
from hpcrec.comm.ledger import describe
from hpcrec.errors import ConfigError
from hpcrec.models import MODELS
from tests.pairs import covering
from tests.together import on_every_rank
from tests.training.runs import config_for, gather_tables, global_batches, reference_for, train, write_data

SHARDS = ("auto", "table", "row", "column", "replicate")
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
FORMS = ("pooled", "rows", "partial", "auto")
IDS = ("routed", "read")
TABLES = ("user", "item", "tag")
# Under form partial towers whose tables are split in ways that no host has them whole are computed on dense ranks.
pytestmark = pytest.mark.filterwarnings("ignore:Of the operators that owners were to compute")


def roles_for(size: int) -> list[dict[str, Any]]:
    roles: list[dict[str, Any]] = [{"mode": "fused"}]
    if size > 1:
        roles += [{"mode": "split"}, {"mode": "split", "owners": size, "dense": 1}]
    if size > 2:
        roles += [{"mode": "split", "owners": 1}, {"mode": "split", "dense": 1}]
    return roles


def few_roles(size: int) -> list[dict[str, Any]]:
    """Of these roles those of two each, but with one rank: all of them on 1 to 4 ranks together."""
    every = roles_for(size)
    return [every[at] for at in {1: (0,), 2: (1, 2), 3: (0, 3), 4: (1, 4)}[size]]


Roles = Callable[[int], list[dict[str, Any]]]
few_or_all_roles = pytest.mark.parametrize(
    "roles_of", [few_roles, pytest.param(roles_for, marks=pytest.mark.slow)], ids=["few roles", "all roles"]
)


def sections(
    roles: dict[str, Any], model: str, shard: str, optimizer: str, form: str, ids: str = "routed"
) -> dict[str, dict[str, Any]]:
    chosen = {"auto_steps": 1} if form == "auto" and shard != "replicate" else {}
    return {
        "topology": roles,
        "model": {"name": model},
        "exchange": {"form": form if shard != "replicate" else "pooled", "ids": ids, **chosen},
        "embedding": {
            "init_scale": 0.3,
            "optimizer": {"name": optimizer, "lr": 0.1},
            "share": {"history": "item"},
            "tables": {t: {"shard": shard} for t in TABLES},
        },
    }


def shared_out(cases: Sequence[Any]) -> Sequence[Any]:
    """Those of this number of ranks: each case runs on one of 1 to 4, and each of them has one."""
    return cases[(MPI.COMM_WORLD.size - 1) % len(cases) :: 4]


Some = Callable[[Sequence[Any]], Sequence[Any]]
shared_out_or_all = pytest.mark.parametrize(
    "some", [shared_out, pytest.param(list, marks=pytest.mark.slow)], ids=["shared out", "all"]
)


def covering_roles(*axes: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """``covering`` of all roles there are and of axes; of its cases those of this number of ranks.

    Each case runs on one number of ranks that can have its roles; those with the same roles take turns.
    """
    mine, sizes = [], [[n for n in range(1, 5) if len(roles_for(n)) > at] for at in range(5)]
    turns = [itertools.cycle(those) for those in sizes]
    for at, *rest in covering(tuple(range(5)), *axes):
        if next(turns[at]) == MPI.COMM_WORLD.size:
            mine.append((roles_for(MPI.COMM_WORLD.size)[at], *rest))
    assert mine
    return mine


def covering_all_roles(*axes: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """``covering`` of the roles that this number of ranks can have and of axes."""
    return covering(tuple(roles_for(MPI.COMM_WORLD.size)), *axes)


Cases = Callable[..., list[tuple[Any, ...]]]
shared_out_or_all_cases = pytest.mark.parametrize(
    "cases_of", [covering_roles, pytest.param(covering_all_roles, marks=pytest.mark.slow)], ids=["shared out", "all"]
)


def check_against_reference(folder: Path, atol: float = 1e-12, **wanted: dict[str, Any]) -> None:
    """``atol`` is of losses and dense parameters; ten times that of logits and rows, which take part in larger sums."""
    config = config_for(folder, **wanted)
    with open_session(config) as session:
        reference = reference_for(session, config)
        initial = {name: rows.copy() for name, rows in gather_tables(session).items()}
        batches = global_batches(session, session.total_steps)
        for step in session.steps():
            loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
            expected, logits = reference.step(batches[step.number])
            np.testing.assert_allclose(loss, expected, rtol=0, atol=atol)
            with on_every_rank():
                if step.batch is not None:
                    here = slice(step.batch.start, step.batch.start + len(step.batch.label))
                    np.testing.assert_allclose(session.last_logits.numpy(), logits[here], rtol=0, atol=10 * atol)
        for name, rows in gather_tables(session).items():
            np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=10 * atol, err_msg=name)
            assert not np.array_equal(rows, initial[name]), f"{name} did not learn"
        model = session.gather_model()
        with on_every_rank():
            for name, p in () if model is None else model.named_parameters():
                mine, theirs = p.detach().numpy(), reference.module.get_parameter(name).detach().numpy()
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parallel([1, 2, 3, 4])
def test_every_pair_of_model_shard_optimizer_form_and_roles(folder: Path) -> None:
    """Each case on one number of ranks that can have its roles."""
    write_data(folder / "data.h5")
    for case in covering_roles(tuple(MODELS), SHARDS, OPTIMIZERS, FORMS, IDS):
        check_against_reference(folder, **sections(*case))


@pytest.mark.slow
@pytest.mark.parallel([1, 2, 3, 4])
def test_every_pair_on_every_number_of_ranks(folder: Path) -> None:
    write_data(folder / "data.h5")
    cases = covering(roles_for(MPI.COMM_WORLD.size), tuple(MODELS), SHARDS, OPTIMIZERS, FORMS, IDS)
    assert len(cases) >= len(MODELS) * len(SHARDS)
    for case in cases:
        check_against_reference(folder, **sections(*case))


@pytest.mark.parallel([3])
def test_single_precision(folder: Path) -> None:
    """Logits within 1e-5 of one process that adds in another order."""
    write_data(folder / "data.h5")
    roles = roles_for(MPI.COMM_WORLD.size)[:2]
    single = {"dtype": "float32", "steps": 5}
    for model, form, ids, role in covering(tuple(MODELS), FORMS, IDS, roles):
        wanted = sections(role, model, "auto", "rowwise_adagrad", form, ids)
        check_against_reference(folder, 1e-6, **wanted, train=single)


@pytest.mark.slow
@pytest.mark.parallel([2, 3, 4])
def test_every_model_form_way_of_ids_and_roles(folder: Path) -> None:
    """In double and in single precision."""
    write_data(folder / "data.h5")
    for model, form, ids, role in itertools.product(MODELS, FORMS, IDS, roles_for(MPI.COMM_WORLD.size)[:2]):
        wanted = sections(role, model, "auto", "rowwise_adagrad", form, ids)
        check_against_reference(folder, **wanted)
        check_against_reference(folder, 1e-6, **wanted, train={"dtype": "float32", "steps": 5})


@pytest.mark.slow
@pytest.mark.parallel([1, 2, 3, 4])
def test_every_combination(folder: Path) -> None:
    write_data(folder / "data.h5")
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))  # in turn; 480 combinations meet each of them often
    ids = itertools.cycle((*IDS, *IDS[::-1]))  # so that no form has one of them alone
    for case in itertools.product(MODELS, SHARDS, OPTIMIZERS, FORMS):
        check_against_reference(folder, **sections(next(roles), *case, next(ids)))


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMS)
def test_several_labels_and_routing_in_the_step(folder: Path, form: str) -> None:
    write_data(folder / "data.h5", labels=2, weighted=False)
    for model in MODELS:
        check_against_reference(folder, model={"name": model}, exchange={"form": form, "prefetch": 0})


def check_pooled_by_max(folder: Path, cases: Sequence[Any]) -> None:
    """history by max over a table that item's ids, which are added, share; roles in turn."""
    write_data(folder / "data.h5")
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    for model, shard, form, optimizer in cases:
        wanted = sections(next(roles), model, shard, optimizer, form)
        wanted["model"]["pooling"] = {"history": "max"}
        check_against_reference(folder, **wanted)


@pytest.mark.parallel([1, 2, 3, 4])
def test_pooled_by_max(folder: Path) -> None:
    check_pooled_by_max(folder, shared_out(covering(("fm", "deepfm"), SHARDS, FORMS, OPTIMIZERS)))


@pytest.mark.slow
@pytest.mark.parallel([1, 2, 3, 4])
def test_every_combination_pooled_by_max(folder: Path) -> None:
    check_pooled_by_max(folder, list(itertools.product(("fm", "deepfm"), SHARDS, FORMS, OPTIMIZERS)))


@pytest.mark.parallel([1])
def test_no_max_of_weighted_ids(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_for(folder, model={"pooling": {"tag": "max"}})
    with (
        pytest.raises(ConfigError, match=r"'tag' is pooled by 'max', but its ids carry weights in .*data\.h5"),
        open_session(config),
    ):
        pass


@pytest.mark.in_turn
@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize("form", ["pooled", "rows"])  # partial results of other owners add up in another order
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_any_number_of_owners_gives_the_same_bits(folder: Path, form: str, pooling: str) -> None:
    write_data(folder / "data.h5")
    size = MPI.COMM_WORLD.size
    found = []
    for owners in ([0, 1, 2, 3][: size - 2], list(range(size - 1)), list(range(size)), [0, *range(1, size)][::-1]):
        roles = {"mode": "split", "owners": owners, "dense": 2}
        wanted = sections(roles, "deepfm", "table", "rowwise_adagrad", form)
        wanted["model"]["pooling"] = {"history": pooling}
        found.append(train(config_for(folder, **wanted, train={"batch_size": 13, "dtype": "float32", "steps": 9})))
    losses, tables, dense = found[0]
    assert len(set(losses)) == 9
    for other_losses, other_tables, other_dense in found[1:]:
        assert other_losses == losses
        for name in tables:
            np.testing.assert_array_equal(tables[name], other_tables[name], err_msg=name)
        for name in dense:
            np.testing.assert_array_equal(dense[name], other_dense[name], err_msg=name)


@pytest.mark.parallel([1, 2, 3, 4])
def test_the_same_run_twice_gives_the_same_bits(folder: Path) -> None:
    write_data(folder / "data.h5")
    for number, roles in enumerate(roles_for(MPI.COMM_WORLD.size)[:2]):
        prefetch = 2 * ((number + MPI.COMM_WORLD.size) % 2)
        wanted = sections(roles, "dcn", "auto", "adam", "pooled")
        wanted["exchange"]["prefetch"] = prefetch
        config = config_for(folder, **wanted, train={"batch_size": 13, "dtype": "float32", "steps": 9})
        (losses, tables, dense), (again, tables_again, dense_again) = train(config), train(config)
        assert losses == again
        assert all(np.array_equal(tables[n], tables_again[n]) for n in tables)
        assert all(np.array_equal(dense[n], dense_again[n]) for n in dense)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("form", FORMS[:3])  # auto may choose others where ids cost nothing
def test_ids_that_are_read_change_no_bit_and_do_not_cross(folder: Path, form: str) -> None:
    """Shuffled and in file order, evaluations among the steps, shards of every kind."""
    write_data(folder / "data.h5")
    for roles, shuffle in zip(roles_for(MPI.COMM_WORLD.size), itertools.cycle((True, False)), strict=False):
        found = []
        for ids in IDS:
            wanted = sections(roles, "deepfm", "auto", "rowwise_adagrad", form, ids)
            wanted["embedding"]["tables"] = {
                "user": {"shard": "row"},
                "item": {"shard": "column"},
                "tag": {"rows": 7, "hashed": True},
            }
            wanted["data"] = {"shuffle": shuffle, "validation": str(folder / "data.h5")}
            config = config_for(folder, **wanted, train={"batch_size": 13, "dtype": "float32", "steps": 9})
            with open_session(config) as session:
                losses = []
                for step in session.steps():
                    losses.append(session.parts.world.main.allreduce(np.array([step.run()]))[0])
                    if step.number == 3:
                        losses.append(session.evaluate("validation")["logloss"])
                tables = {name: rows.tobytes() for name, rows in gather_tables(session).items()}
                counted = describe(session.parts.world.total_wire_bytes())
            found.append((losses, tables, counted["values"], counted["gradients"]))
            assert (sum(counted["ids"].values()) == 0) == (ids == "read" or MPI.COMM_WORLD.size == 1)
        assert found[0] == found[1], roles
