"""A dense parameter used on the way from owners to dense ranks: it learns as in one process, and is never old."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcrec.comm.world as world_module
import tests.stand_ins.relay_stage as stand_in
from hpcrec.build import session as build
from hpcrec.build.session import open_session
from hpcrec.build.tables import as_read
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config
from hpcrec.errors import ConfigError, HpcrecError, NonFiniteError
from hpcrec.operators.block import Block
from hpcrec.training.session import Session, Step
from tests.checkpoint.test_reshape import compare, finish
from tests.policy.reference import HybridReference, hybrid
from tests.policy.test_hybrid import same_bits, slowly
from tests.reference import Reference
from tests.stand_ins.relay_stage import HOSTS, MODEL, columns_at, put_relays, relayed
from tests.together import on_every_rank
from tests.training.runs import config_for, gather_tables, global_batches, write_data
from tests.training.test_equivalence import Some, covering, shared_out_or_all
from tests.training.test_folded import OPTIMIZERS, oracle_for
from tests.training.test_nonfinite import spoil

COMM = MPI.COMM_WORLD
FORM = "scaled_relay"
STEPS = 9
WIDTH = 6


def roles_for(size: int) -> list[dict[str, Any]]:
    split = {
        2: [((0,), (1,))],
        3: [((0, 2), (1,)), ((0, 1), (1, 2))],
        4: [((0, 2), (1, 3)), ((0, 1, 3), (2,)), ((0, 1), (2, 3))],
    }
    return [
        {"mode": "fused"},
        *({"mode": "split", "owners": list(o), "dense": list(d)} for o, d in split.get(size, ())),
    ]


def config_of(
    folder: Path,
    roles: dict[str, Any],
    optimizer: str = "Adam",
    clip: float | None = None,
    *,
    shard: str = "table",
    tag: str = "table",
    form: str = FORM,
    size: int = COMM.size,
    **more: dict[str, Any],
) -> Config:
    """``user`` at the first owner and ``item`` at the last, or ``user`` by columns at both, on their hosts."""
    owners = roles.get("owners", list(range(size)))
    first, last = owners[0], owners[-1]
    item = columns_at([HOSTS[size][last]], WIDTH)
    cut = [first, last] if shard == "column" and first != last else [first]
    options = {"hosts": {"user": columns_at([HOSTS[size][r] for r in cut], WIDTH), "item": item, "history": item}}
    tables = {
        "user": {"shard": "column" if len(cut) > 1 else "table", "owners": [owners.index(r) for r in cut]},
        "item": {"shard": "table", "owners": [owners.index(last)]},
        "tag": {"shard": tag},
    }
    wanted: dict[str, dict[str, Any]] = {
        "topology": roles,
        "model": {"name": MODEL, "width": WIDTH, "options": options},
        "embedding": {"init_scale": 0.5, "tables": tables},
        "dense": {"optimizer": OPTIMIZERS[optimizer], **({} if clip is None else {"clip_norm": clip})},
        "train": {"steps": STEPS},
    }
    return relayed(config_for(folder, **{s: {**wanted.get(s, {}), **more.get(s, {})} for s in {*wanted, *more}}), form)


def oracle(session: Session, config: Config) -> Reference:
    """One process, whose model scales vectors itself."""
    options = {**config.model.options, "inside": True}
    return oracle_for(session, replace(config, model=replace(config.model, options=options)))


def same_as(session: Session, reference: Reference, about: Any, atol: float = 1e-10) -> None:
    model, tables = session.gather_model(), gather_tables(session)
    with on_every_rank():
        for name, wanted in reference.module.named_parameters() if model is not None else ():
            found = model.get_parameter(name).detach().numpy()
            np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=0, atol=atol, err_msg=f"{about} {name}")
        for name, rows in tables.items():
            np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=atol, err_msg=f"{about} {name}")


def parts_are_alike(session: Session) -> None:
    own = session.parts.slices.own
    mine = {(n, s.start): s.part.detach().numpy().tobytes() for n, s in own.items()}
    everyone = session.parts.world.main.allgather(mine)
    with on_every_rank():
        assert len(mine) == 1 and all(theirs[at] == mine[at] for theirs in everyone for at in theirs if at in mine)


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all
def test_learns_as_in_one_process(some: Some, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the stage, and where dense ranks compute it."""
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    axes = (
        roles_for(COMM.size),
        (FORM, FORM, "pooled"),
        ("table", "column"),
        ("table", "row", "replicate"),
        tuple(OPTIMIZERS),
        (None, 0.05),
        ("routed", "read"),
    )
    for case in some(covering(*axes)):
        roles, form, shard, tag, optimizer, clip, ids = case
        exchange = {"ids": ids, "forms": {"tag": "rows"} if tag == "row" else {}}
        config = config_of(folder, roles, optimizer, clip, shard=shard, tag=tag, form=form, exchange=exchange)
        with open_session(config) as session:
            reference, batches = oracle(session, config), global_batches(session, STEPS)
            before = reference.module.scale.detach().clone()
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                assert abs(loss - reference.step(batches[step.number])[0]) < 1e-10, (case, step.number)
            assert session.parts.slices.away == (("scale",) if form == FORM else ())
            same_as(session, reference, case)
            assert not torch.equal(reference.module.scale, before)
            if form == FORM:
                parts_are_alike(session)


@pytest.mark.parallel([1, 2])
def test_a_run_is_read_on_any_hosts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of one host, by the whole parameter, are those that two hosts evaluate in training."""
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    config = config_of(folder, {"mode": "fused"}, data={"validation": str(folder / "data.h5")})
    with open_session(config) as session:
        for step in session.steps():
            step.run()
        state.save(session, Path(config.run.folder), {})
        found = session.evaluate("validation")
    monkeypatch.setattr(world_module, "hosts_of", lambda comm: (0,) * comm.size)
    with open_session(as_read(config), reading=True) as session:
        state.load(session, find_checkpoint(Path(config.run.folder), "last", session.parts.world.main), resume=False)
        assert not session.parts.slices.away
        assert found["logloss"] == pytest.approx(session.evaluate("validation")["logloss"], abs=1e-12)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_a_step_left_out_leaves_slices_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    for roles in roles_for(COMM.size):
        for policy in ({"name": "sync"}, hybrid(1)):
            train = {"nonfinite": "skip", "nonfinite_limit": 2}
            config = config_of(folder, roles, clip=0.05, train={**train, "steps": STEPS}, policy=policy)
            with open_session(config) as session:
                reference = HybridReference(oracle(session, config), policy.get("staleness", 0))
                batches = global_batches(session, STEPS)
                for step in session.steps():
                    left_out = step.number in (2, 3)
                    if left_out:
                        spoil(session, step)
                    step.run()
                    reference.step(batches[step.number], left_out=left_out)
                assert session.guard.skipped == 2
                same_as(session, reference._reference, (roles, policy))
                parts_are_alike(session)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_rows_are_a_step_old_and_the_parameter_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    for roles in roles_for(COMM.size):
        for ahead, optimizer, clip in ((0, "Adam", 0.05), (2, "SGD", None)):
            more = {"policy": hybrid(1), "exchange": {"prefetch": ahead}, "checkpoint": {"every": 5}}
            more["data"] = {"validation": str(folder / "data.h5")}
            config = config_of(folder, roles, optimizer, clip, shard="column", **more)
            with open_session(config) as session:
                reference = HybridReference(oracle(session, config), 1, drains=(5,))
                batches = global_batches(session, STEPS)
                for step in session.steps():
                    if step.number == 7:  # has no place in the order of steps, and changes nothing
                        session.evaluate("validation", 2)
                    loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                    assert abs(loss - reference.step(batches[step.number])) < 1e-10, (roles, step.number)
                same_as(session, reference._reference, roles)


def trained(config: Config, before: Callable[[Session, Step], None] = lambda session, step: None) -> dict[str, Any]:
    """As of ``test_hybrid``, with the whole parameter."""
    with open_session(config) as session:
        losses = []
        for step in session.steps():
            before(session, step)
            losses.append(step.run())
        model, found = session.gather_model(), gather_tables(session)
        dense = None if model is None else {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
        dense = COMM.bcast(dense, root=session.topology.dense[0])
        return {**found, **dense, "losses": np.array(COMM.allgather(losses))}


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_ranks_of_any_speed_give_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    for roles in roles_for(COMM.size):
        for codec in ("fp32", "fp16"):
            more = {"policy": hybrid(1), "exchange": {"codec": codec}}
            more["train"] = {"steps": STEPS, "dtype": "float64" if codec == "fp32" else "float32"}
            expected = trained(config_of(folder, roles, clip=0.05, **more))
            for _ in range(2):
                same_bits(trained(config_of(folder, roles, clip=0.05, **more), slowly(0.01)), expected, roles)
            plain = [trained(config_of(folder, roles, form=form, **more)) for form in ("pooled", "relay")]
            same_bits(plain[1], plain[0], (roles, codec))


@contextmanager
def on_ranks(n: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[MPI.Comm | None]:
    """A communicator of the first ranks, on which sessions are; None on the other ranks."""
    some = COMM.Split(int(COMM.rank >= n))
    world = build.World
    with monkeypatch.context() as patch:
        patch.setattr(build, "World", lambda _, *args, **options: world(some, *args, **options))
        yield some if COMM.rank < n else None
    some.Free()
    COMM.Barrier()


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_a_resumed_run_has_the_same_bits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    for number, roles in enumerate(roles_for(COMM.size)):
        config = config_of(folder, roles, clip=0.05, run={"folder": str(folder / f"run-{number}")})
        whole = finish(config)
        finish(config, stop_at=4)
        rest = finish(config, resume=True)
        with on_every_rank():
            assert whole["losses"][4:] == rest["losses"]
            for name in set(whole) - {"losses"}:
                assert np.array_equal(whole[name], rest[name]), name
            assert np.any(whole["scale.exp_avg"])


@pytest.mark.parallel([3, 4])
def test_goes_on_on_another_number_of_ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    ways = {3: ((3, 2), (2, 3)), 4: ((4, 3), (2, 4), (4, 2))}[COMM.size]
    for before, after in ways:
        roles = {n: roles_for(n)[0 if n == 2 else n % 2] for n in (before, after)}  # fused, or owners on both hosts
        configs = {n: config_of(folder, roles[n], clip=0.05, size=n, run={"folder": str(folder / f"{before}{after}")})
                   for n in (before, after)}  # fmt: skip
        found = {}
        for what, n, keys in (
            ("whole", before, {}),
            ("first", before, {"stop_at": 4}),
            ("rest", after, {"resume": True}),
        ):
            with on_ranks(n, monkeypatch) as some:
                if some is not None:
                    found[what] = finish(configs[n], **keys)
        with on_every_rank():
            if COMM.rank == 0:
                found["rest"]["losses"] = found["whole"]["losses"][:4] + found["rest"]["losses"]
                compare(found["rest"], found["whole"], (before, after))


@pytest.mark.parallel([3, 4])
def test_gradients_cross_once_to_each_rank_of_the_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one dense rank nothing else is counted as dense."""
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    roles = {"mode": "split", "owners": list(range(COMM.size)), "dense": [0]}
    with open_session(config_of(folder, roles)) as session:
        for step in session.steps():
            step.run()
        hosts = [HOSTS[COMM.size].count(h) for h in set(HOSTS[COMM.size])]
        counted = session.parts.world.total_wire_bytes()[TAGS.index("dense")].tolist()
        assert counted == [STEPS * sum(n * (n - 1) for n in hosts) * 64, 0]  # 6 columns in float64, rounded up


@pytest.mark.parallel([1, 3])
def test_a_gradient_that_overflows_on_the_way_ends_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    if COMM.size == 1:  # of several ranks the others would wait: an error of one ends the job
        with open_session(config_of(folder, {"mode": "fused"})) as session:
            steps = session.steps()
            next(steps).run()
            session.parts.slices.own["scale"].part.data.fill_(1e-200)
            real = stand_in.ScaledRelay.backward

            def overflowing(stage: Any, passing: Any, kept: Any) -> None:
                real(stage, passing, kept)
                passing[0].values_VD[:] *= np.inf

            monkeypatch.setattr(stand_in.ScaledRelay, "backward", overflowing)
            with np.errstate(all="ignore"), pytest.raises(NonFiniteError, match="left stage 'scaled_relay' are not"):
                next(steps).run()
            session.step += 1
            session.parts.pipeline.give_up()
    else:
        with open_session(config_of(folder, roles_for(3)[1])) as session:
            step = next(session.steps())
            real = stand_in.ScaledRelay.backward

            def large(stage: Any, passing: Any, kept: Any) -> None:
                real(stage, passing, kept)
                stage.slices[0].part.grad.fill_(1.5e308)

            monkeypatch.setattr(stand_in.ScaledRelay, "backward", large)
            held = session.parts.slices.own["scale"].ranks
            with np.errstate(over="ignore"):
                error = None
                try:
                    step.run()
                except HpcrecError as caught:
                    error = caught
            with on_every_rank():
                assert (error is not None) == (len(held) > 1)
                assert error is None or "summed over ranks (0, 1), is not finite" in str(error)


@pytest.mark.parallel([1, 2])
def test_what_cannot_be_computed_on_the_way_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    roles: dict[str, Any] = {"mode": "fused"}
    fits = config_of(folder, roles)

    def with_table(name: str, **keys: Any) -> Config:
        tables = {**fits.embedding.tables, name: replace(fits.embedding.tables[name], owners=None, **keys)}
        return replace(fits, embedding=replace(fits.embedding, tables=tables))

    outside = "'scaled' would be computed in stage scaled_relay, but vectors of its feature 'user' do not pass there"
    cases = [
        (replace(fits, exchange=replace(fits.exchange, forms={"user": "rows"})), outside),
        (with_table("user", shard="replicate"), outside),
        (with_table("user", shard="row"), r"bags of its feature 'user' are split over owners, which it does not allow"),
    ]
    for wrong, said in cases if COMM.size == 2 else cases[:1]:
        with pytest.raises(ConfigError, match=said):
            open_session(wrong)
    with monkeypatch.context() as patch:
        patch.setitem(stand_in.HOSTS, 2, (0, 0))
        options = {"hosts": {f: [2] * WIDTH for f in ("user", "item", "history")}}
        wrong = replace(fits, model=replace(fits.model, options=options))
        with pytest.raises(ConfigError, match=r"rows 1 to 2 of dense parameter 'scale' are used and trained by no"):
            open_session(wrong)

    real = stand_in.ScaledModel.__init__

    def sharing(model: Any, *args: Any, **keys: Any) -> None:
        real(model, *args, **keys)
        first = model.operators["scaled"].lookups[:1]
        model.operators["again"] = Block(lookups=first, width=WIDTH)

    with monkeypatch.context() as patch:
        patch.setattr(stand_in.ScaledModel, "__init__", sharing)
        with pytest.raises(ConfigError, match=r"operator 'again' reads a table of it by the same feature"):
            open_session(fits)
    if COMM.size == 2:
        groups = config_of(folder, roles, dense={"codistillation": {"groups": 2}}, train={"batch_size": 12})
        with pytest.raises(ConfigError, match="each group of dense ranks has one of its own"):
            open_session(groups)


@pytest.mark.parallel([1, 2])
def test_a_loss_that_depends_on_the_parameter_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    put_relays(monkeypatch)
    session = open_session(config_of(folder, {"mode": "fused"}))

    def losses(inputs: Any, samples: Any) -> torch.Tensor:
        assert session.model is not None
        return session.default_losses(inputs, samples) + session.model.get_parameter("scale").square().sum()

    for step in session.steps():
        with pytest.raises(HpcrecError, match="the loss depends on parameter 'scale' itself"):
            step.run(losses)
        break
    session.parts.world.abandon()


@pytest.mark.parallel([1, 2, 3])
def test_copies_are_as_old_as_rows_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs are taken in the step, rows of replicated tables as they were read, whatever is learned meanwhile."""
    put_relays(monkeypatch)
    write_data(folder / "data.h5")
    found, roles = [], roles_for(COMM.size)[0]
    for form, naps_s in (("pooled", 0.0), ("relay", 0.02)):
        config = config_of(folder, roles, tag="replicate", form=form, policy=hybrid(1))
        found.append(trained(config, lambda *_, naps_s=naps_s: time.sleep(naps_s)))
    same_bits(found[1], found[0])
