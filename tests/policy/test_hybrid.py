"""Policy ``hybrid``: it reads what it says, whatever the ranks' speed, and drains."""

import json
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.exchange.exchange import Exchange
from hpcrec.exchange.route import Route
from hpcrec.training.session import Session, Step
from hpcrec.training.telemetry import read_metrics
from tests.pairs import covering
from tests.policy.reference import HybridReference, hybrid
from tests.together import on_every_rank
from tests.training.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.training.test_equivalence import Cases, roles_for, shared_out_or_all_cases
from tests.training.test_nonfinite import SKIP, spoil

COMM = MPI.COMM_WORLD
WAYS = {  # form, model, how tables are placed
    "pooled": ("pooled", "dlrm", {"user": {"shard": "row"}, "item": {"shard": "table"}}),
    "pooled, by columns": ("pooled", "deepfm", {"user": {"shard": "column"}, "item": {"shard": "column"}}),
    "rows": ("rows", "dlrm", {"user": {"shard": "row"}, "item": {"shard": "table"}}),
    "partial": ("partial", "fm", {"user": {"shard": "table"}, "item": {"shard": "column"}}),
    "copies": ("pooled", "dcn", {t: {"shard": "replicate"} for t in ("user", "item", "tag")}),
    "some copies": ("rows", "fm", {"user": {"shard": "replicate"}, "item": {"shard": "row"}}),
}
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "sgd")


def config_of(folder: Path, tau: int | None, way: str, optimizer: str = "adagrad", **more: dict[str, Any]) -> Config:
    """``tau`` None is policy ``sync``."""
    form, model, tables = WAYS[way]
    wanted: dict[str, dict[str, Any]] = {
        "policy": {"name": "sync"} if tau is None else hybrid(tau),
        "model": {"name": model},
        "exchange": {"form": form},
        "embedding": {"optimizer": {"name": optimizer, "lr": 0.1}, "share": {"history": "item"}, "tables": tables},
    }
    return config_for(folder, **{s: {**wanted.get(s, {}), **more.get(s, {})} for s in {*wanted, *more}})


def results(session: Session) -> dict[str, np.ndarray]:
    """Rows, and dense parameters of the first dense rank."""
    found, model = gather_tables(session), session.model
    dense = None if model is None else {n: p.detach().cpu().numpy().copy() for n, p in model.named_parameters()}
    return {**found, **COMM.bcast(dense, root=session.topology.dense[0])}


def trained(config: Config, before: Callable[[Session, Step], None] = lambda session, step: None) -> dict[str, Any]:
    with open_session(config) as session:
        losses = []
        for step in session.steps():
            before(session, step)
            losses.append(step.run())
        return {**results(session), "losses": np.array(COMM.allgather(losses))}


def gone_on(config: Config, found: Callable[[Session], dict[str, Any]] = results) -> dict[str, Any]:
    """What a run has learned that goes on from its last checkpoint."""
    with open_session(config) as session:
        last = find_checkpoint(Path(config.run.folder), "last", session.parts.world.main)
        state.load(session, last, resume=True)
        for step in session.steps():
            step.run()
        return found(session)


def save_and_leave(session: Session, config: Config, saved: int, left: int) -> None:
    """Trains up to ``left`` steps, and leaves the loop; saves after ``saved``."""
    for step in session.steps():
        step.run()
        if session.step == saved:
            state.save(session, Path(config.run.folder), {})
        if session.step == left:
            break


def same_bits(found: dict[str, Any], expected: dict[str, Any], about: Any = "") -> None:
    with on_every_rank():
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert np.array_equal(found[name], values, equal_nan=True), (about, name)


def check_against_one_process(
    config: Config,
    tau: int,
    drains: Sequence[int] = (),
    left_out: Sequence[int] = (),
    nap: Callable[[Session, Step], None] = lambda session, step: None,
) -> None:
    """Losses, rows and dense parameters; where steps are ``left_out``, and ranks ``nap``, too."""
    n, about = config.train.steps, (config.topology, config.exchange.form, config.policy, drains, left_out)
    assert n is not None
    with open_session(config) as session:
        reference = reference_for(session, config)
        one, batches = HybridReference(reference, tau, drains), global_batches(session, n)
        for step in session.steps():
            nap(session, step)
            if step.number in left_out:
                spoil(session, step)
            loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
            expected = one.step(batches[step.number], left_out=step.number in left_out)
            with on_every_rank():
                assert math.isnan(loss) if step.number in left_out else abs(loss - expected) < 1e-12, (step, *about)
                assert session.guard.skipped == sum(number <= step.number for number in left_out)
        found = results(session)
    with on_every_rank():
        for name in reference.tables:
            np.testing.assert_allclose(found[name], reference.rows(name), rtol=0, atol=1e-12, err_msg=f"{name} {about}")
        for name, p in reference.module.named_parameters():
            np.testing.assert_allclose(found[name], p.detach().numpy(), rtol=0, atol=1e-12, err_msg=f"{name} {about}")


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("tau", [1, 2, 5, 10])
def test_equals_one_process_that_does_the_same(tau: int, folder: Path) -> None:
    write_data(folder / "data.h5")
    cases = covering(roles_for(COMM.size), tuple(WAYS), OPTIMIZERS)
    every, steps = (5, 9) if tau < 5 else (0, 15)
    for roles, way, optimizer in cases if tau == 1 else cases[tau % 2 :: 2 * COMM.size]:
        about = {"topology": roles, "checkpoint": {"every": every}, "train": {"steps": steps}}
        check_against_one_process(config_of(folder, tau, way, optimizer, **about), tau, (5,) if every else ())


def napping(seed: int) -> Callable[[Session, Step], None]:
    """Waits now and then between what a thread does with rows and what it does with messages, before and after each."""
    chance, nap_s = random.Random(seed), 0.004

    def then(call: Callable[..., Any]) -> Callable[..., Any]:
        def napped(*given: Any, **named: Any) -> Any:
            time.sleep(nap_s * chance.randint(0, 1))
            found = call(*given, **named)
            time.sleep(nap_s * chance.randint(0, 1))
            return found

        return napped

    def before(session: Session, step: Step) -> None:
        if step.number == 0:
            exchange = session.parts.pipeline.exchange
            places = [(exchange._codec, ("values",)), (exchange._back, ("gradients",))]
            places += [(exchange._owner_side, ("answer", "apply"))] if exchange._owner_side is not None else []
            for place, names in places:
                for name in names:
                    setattr(place, name, then(getattr(place, name)))

    return before


@pytest.mark.parallel([1, 2, 3, 4])
def test_rows_are_read_and_learned_in_order_whoever_naps(folder: Path) -> None:
    """By two threads of each rank."""
    write_data(folder / "data.h5")
    for number, (roles, way) in enumerate(covering(roles_for(COMM.size)[:3], ("pooled", "rows", "copies"))):
        tau = 1 + number % 3
        config = config_of(folder, tau, way, OPTIMIZERS[number % 4], topology=roles, train={"steps": 12})
        check_against_one_process(config, tau, nap=napping(COMM.size * number + COMM.rank))


def check_drawn(folder: Path, seeds: Iterable[int]) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        tau, every, steps = chance.randint(0, 6), chance.choice((0, 2, 3, 7)), chance.randint(5, 16)
        left_out = [step for step in range(steps) if chance.random() < 0.15]
        way, optimizer = chance.choice(list(WAYS)), chance.choice(OPTIMIZERS)
        more = {"topology": chance.choice(roles_for(COMM.size)), "checkpoint": {"every": every}}
        more |= {"train": {**SKIP, "nonfinite_limit": steps, "steps": steps}, "exchange": {"prefetch": seed % 3}}
        config = config_of(folder, tau, way, optimizer, **more)
        drains = range(every, steps, every) if every else ()
        check_against_one_process(config, tau, drains, left_out, slowly(chance.choice((0.0, 0.003))))


@pytest.mark.parallel([1, 2, 3, 4])
def test_any_staleness_drains_naps_and_steps_left_out(folder: Path) -> None:
    write_data(folder / "data.h5")
    check_drawn(folder, range(COMM.size, 16, 4))


@pytest.mark.slow
@pytest.mark.parallel([1, 2, 3, 4])
def test_any_staleness_drains_naps_and_steps_left_out_often(folder: Path) -> None:
    write_data(folder / "data.h5")
    check_drawn(folder, range(100, 150))


@pytest.mark.parallel([1, 2, 3, 4])
def test_staleness_0_is_sync_and_1_is_not(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles, way in zip(roles_for(COMM.size), ("pooled", "rows", "partial", "copies", "some copies"), strict=False):
        expected = trained(config_of(folder, None, way, topology=roles))
        same_bits(trained(config_of(folder, 0, way, topology=roles)), expected, roles)
        hybrid_ = trained(config_of(folder, 1, way, topology=roles))
        assert not np.array_equal(hybrid_["user"], expected["user"])


def slowly(most_s: float) -> Callable[[Session, Step], None]:
    """Waits before each step, read and update, as long as chance has it on this rank."""
    chance = random.Random()

    def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*given: Any, **named: Any) -> Any:
            time.sleep(chance.uniform(0, most_s))
            return call(*given, **named)

        return wait

    def before(session: Session, step: Step) -> None:
        exchange = session.parts.pipeline.exchange
        if step.number == 0:
            for name in ("read", "learn", "route"):
                monkeypatched = waiting(getattr(exchange, name))
                setattr(exchange, name, monkeypatched)
        time.sleep(chance.uniform(0, most_s))

    return before


CODECS: dict[str, dict[str, Any]] = {
    "float64": {},
    "fp16": {"exchange": {"codec": "fp16"}, "train": {"dtype": "float32"}},
    "dct": {
        "exchange": {"codec": "dct", "dct": {"density": 0.4, "threshold": "feature", "every": 2}},
        "train": {"dtype": "float32"},
    },
}


def check_speeds(folder: Path, repeats: int, most_s: float) -> None:
    for number, (codec, more) in enumerate(CODECS.items()):
        for roles in roles_for(COMM.size)[:2]:
            way = ("pooled", "partial")[number % 2]
            config = config_of(folder, 1, way, topology=roles, **more)
            expected = trained(config)
            for _ in range(repeats):
                same_bits(trained(config, slowly(most_s)), expected, (codec, roles))


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_ranks_of_any_speed_give_the_same_bits(folder: Path) -> None:
    write_data(folder / "data.h5")
    check_speeds(folder, 2, 0.01)


@pytest.mark.slow
@pytest.mark.parallel([2, 4])
def test_ranks_of_any_speed_give_the_same_bits_often(folder: Path) -> None:
    write_data(folder / "data.h5")
    check_speeds(folder, 20, 0.05)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_interrupted_at_a_drain_point_is_uninterrupted(folder: Path) -> None:
    write_data(folder / "data.h5")
    ways = (("rows", {}), ("pooled", CODECS["dct"]), ("partial", {}), ("copies", {}))
    for roles, (way, more) in zip(roles_for(COMM.size), ways, strict=False):
        more = {**more, "topology": roles, "checkpoint": {"every": 4}, "train": {**more.get("train", {}), "steps": 9}}
        config = config_of(folder, 2, way, run={"folder": str(folder / way)}, **more)
        expected = trained(config)
        expected.pop("losses")
        with open_session(config) as session:
            save_and_leave(session, config, saved=4, left=4)
        same_bits(gone_on(config), expected, roles)


@pytest.mark.parallel([1, 2, 3])
def test_no_checkpoint_comes_between_a_read_and_its_update(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles in roles_for(COMM.size):
        config = config_of(folder, 1, "pooled", topology=roles, train={"steps": 6})
        with open_session(config) as session:
            for step in session.steps():
                step.run()
                if session.step == 3:
                    assert not session.parts.pipeline.rested()
                    break
            with on_every_rank(), pytest.raises(HpcrecError, match="would have parts of later ones"):
                state.save(session, Path(config.run.folder), {})
        with open_session(config) as session:
            for step in session.steps():
                step.run()
            assert session.parts.pipeline.rested()


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_a_signal_drains_where_it_comes(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles in roles_for(COMM.size):
        config = config_of(folder, 1, "pooled", topology=roles, train={"steps": 11})
        with open_session(config) as session:
            for step in session.steps():
                if step.number == 3 and session.topology.rank == COMM.size - 1:
                    session.parts.signal.requested = True
                step.run()
            stopped = session.step
            assert session.stopped and 5 <= stopped <= 7
            found = results(session)
            session.parts.signal.requested = False
            session.stopped = False
            for step in session.steps():
                step.run()
            resumed = results(session)
        config = config_of(folder, 1, "pooled", topology=roles, train={"steps": 11}, checkpoint={"every": stopped})
        with open_session(config) as session:
            for step in session.steps():
                step.run()
                if session.step == stopped:
                    same_bits(results(session), found, roles)
            same_bits(results(session), resumed, roles)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("tau", [1, 2])
def test_a_checkpoint_that_failed_is_a_drain_where_it_is_tried_again(tau: int, folder: Path) -> None:
    """All ranks learn of it after the same step, and drain at a later one, as if that had been known before."""
    write_data(folder / "data.h5")
    again = 12
    for roles in roles_for(COMM.size):
        learned = []
        with open_session(config_of(folder, tau, "pooled", topology=roles, train={"steps": 17})) as session:
            for step in session.steps():
                if step.number == 3 and session.topology.rank == COMM.size - 1:
                    session.parts.save_failed.set()
                step.run()
                if session.save_failed and not learned:
                    learned.append(session.step)
                    session.parts.save_failed.clear()
                    session.parts.pipeline.drain_after(again)
                rested = session.parts.pipeline.rested()
                assert rested == (session.step in (again, 17)), (session.step, roles)
                if session.step == again:
                    found = results(session)
            end = results(session)
        parallel_assert(COMM.allgather(learned) == [learned] * COMM.size and 4 <= learned[0] < again, msg=str(learned))
        planned = config_of(folder, tau, "pooled", topology=roles, train={"steps": 17}, checkpoint={"every": again})
        with open_session(planned) as session:
            for step in session.steps():
                step.run()
                if session.step == again:
                    same_bits(results(session), found, roles)
            same_bits(results(session), end, roles)


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_evaluations_change_no_bit(folder: Path) -> None:
    """Those that the configuration has, which have their place, and those of a user's own loop."""
    write_data(folder / "data.h5")
    for roles, way in zip(roles_for(COMM.size), ("pooled", "copies", "partial", "rows", "some copies"), strict=False):
        more = {"topology": roles, "train": {"steps": 23}, "data": {"validation": str(folder / "data.h5")}}
        more["checkpoint"] = {"keep_best": False}
        expected = trained(config_of(folder, 1, way, **more))
        for every, at in ((10, 10), (0, 7)):
            seen = []

            def evaluate(session: Session, step: Step, at: int = at, seen: list[Any] = seen) -> None:
                if step.number and step.number % at == 0:
                    tables = gather_tables(session)
                    seen.append((step.number, session.evaluate("validation")["logloss"], tables["user"].sum()))

            more["train"] = {"steps": 23, "eval_every": every}
            same_bits(trained(config_of(folder, 1, way, **more), evaluate), expected, (roles, way, every))
            assert len(seen) == 22 // at


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_whole_runs_with_and_without_evaluations(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    asked = []
    for name in ("evaluate", "evaluate_unless_stopped"):
        real = getattr(Session, name)

        def noted(session: Session, *args: Any, name: str = name, real: Any = real) -> Any:
            asked.append((name, session.step))
            return real(session, *args)

        monkeypatch.setattr(Session, name, noted)
    for roles in roles_for(COMM.size)[:2]:
        found = []
        for name, every, best in (("never", 0, False), ("often", 5, False), ("best", 5, True)):
            run = str(folder / f"{roles['mode']}-{name}")
            more: dict[str, Any] = {"topology": roles, "run": {"folder": run}, "checkpoint": {"keep_best": best}}
            more["train"] = {"steps": 18, "eval_every": every, "log_every": 4}
            more["data"] = {"validation": str(folder / "data.h5")}
            config = config_of(folder, 1, "pooled", **more)
            assert commands.train(config) == 0
            with open_session(config) as session:
                state.load(session, find_checkpoint(Path(run), "last", session.parts.world.main), resume=True)
                assert session.step == 18
                found.append(results(session))
        same_bits(found[1], found[0], roles)
        assert not np.array_equal(found[2]["user"], found[0]["user"])  # its evaluations are drain points
    # A signal ends an evaluation only where no step is read that is not learned: what is saved then has all of them.
    assert {step for name, step in asked if name == "evaluate"} == {5, 10, 15}
    assert asked.count(("evaluate", 5)) == len(roles_for(COMM.size)[:2])
    assert {step for name, step in asked if name == "evaluate_unless_stopped"} == {5, 10, 15, 18}


@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.in_turn
def test_a_step_left_out_changes_nothing_and_counts(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles in roles_for(COMM.size):
        for way in ("pooled", "partial", "copies"):
            config = config_of(folder, 1, way, "adagrad", topology=roles, train={**SKIP, "steps": 7})
            check_against_one_process(config, 1, left_out=(2, 3))


@pytest.mark.parallel([1])  # of several ranks another may wait for one that has failed, as ever
def test_an_error_on_the_thread_is_raised_before_rows_that_wait_for_it(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_of(folder, 1, "pooled")) as session:
        exchange = session.parts.pipeline.exchange
        learn = exchange.learn

        def failing(route: Any, found: Any, *, step: int, **named: Any) -> bool:
            if step == 3:
                raise torch.OutOfMemoryError("no room")
            return bool(learn(route, found, step=step, **named))

        exchange.learn = failing
        with pytest.raises(torch.OutOfMemoryError, match="no room"):
            for step in session.steps():
                step.run()
        # The third update fails. That step and the one after it may be over by then; rows of the next wait for it.
        assert 2 <= session.step <= 4
        session.parts.pipeline._flight = None  # so that it can be closed


@pytest.mark.parallel([1, 2])
def test_what_does_not_go_with_steps_in_flight_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    sections = {
        "model": {"name": "wide_deep", "options": {"hidden": [2, 3]}},
        "exchange": {"form": "partial"},
        "embedding": {"tables": {t: {"shard": "table"} for t in ("user", "item", "tag")}},
    }
    with pytest.raises(ConfigError, match=r"policy.name is 'hybrid'.*dense parameters are always current"):
        open_session(config_for(folder, policy=hybrid(1), **sections))
    open_session(config_for(folder, policy={"name": "sync"}, **sections)).close()


def expected_ages(config: Config, session: Session, tau: int, drains: Sequence[int]) -> dict[int, list[int]]:
    """By step that is logged: of the distinct rows that it reads, how many 0, 1, ... steps in flight have, too."""
    steps, every = session.total_steps, config.train.log_every
    table_of = {f: config.embedding.share.get(f, f) for f in ("user", "item", "history", "tag")}
    rows = [
        {(t, i) for f, t in table_of.items() for i in b.bags[f].ids.tolist()} for b in global_batches(session, steps)
    ]
    found = {}
    for step in range(every - 1, steps, every):
        since = max([0, *(d for d in drains if d <= step)])
        before = rows[max(since, step - tau) : step]
        ages = [sum(row in other for other in before) for row in rows[step]]
        found[step] = [ages.count(age) for age in range(tau + 1)]
    return found


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_rows_that_lack_updates_are_counted(cases_of: Cases, folder: Path) -> None:
    write_data(folder / "data.h5")
    for number, (roles, way) in enumerate(cases_of(tuple(WAYS))):
        tau, run = 1 + number % 3, str(folder / f"run-{number}")
        more: dict[str, Any] = {"topology": roles, "checkpoint": {"every": 7}, "run": {"folder": run}}
        more["train"] = {"steps": 20, "log_every": 3}
        config = config_of(folder, tau, way, **more)
        with open_session(config) as session:
            expected = expected_ages(config, session, tau, (7, 14))
        assert commands.train(config) == 0
        with on_every_rank():
            lines = [line for line in read_metrics(Path(run)) if "read_age" in line]
            found = {line["step"] - 1: list(line["read_age"].values()) for line in lines}
            assert found == expected, (roles, way)
            total = np.sum(list(expected.values()), axis=0)
            assert total[1:].sum() > 0 and lines[-1]["read_age"].keys() == {str(age) for age in range(tau + 1)}
            last = expected[max(expected)]
            assert lines[-1]["read_age_mean"] == pytest.approx(np.dot(last, np.arange(tau + 1)) / sum(last))
            summary = json.loads((Path(run) / "summary.json").read_text())
            assert list(summary["read_age"].values()) == total.tolist()
            assert summary["drains"]["number"] == 2 and 0 <= summary["drains"]["s"] < summary["phase_s"]["step"]


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_a_checkpoint_that_is_loaded_after_a_loop_was_left(folder: Path) -> None:
    """What that had under way is not learned over it; and the loop that was left goes on no more."""
    write_data(folder / "data.h5")
    for number, (roles, left_at) in enumerate(zip(roles_for(COMM.size), (7, 2, 5, 6), strict=False)):
        more = {"topology": roles, "checkpoint": {"every": 4}, "run": {"folder": str(folder / f"run-{number}")}}
        config = config_of(folder, 1 + number % 2, "pooled", train={"steps": 10}, **more)
        with open_session(config) as session:
            for step in session.steps():
                step.run()
                if session.step == 4:
                    state.save(session, Path(config.run.folder), {})
            expected = results(session)
            last = find_checkpoint(Path(config.run.folder), "last", session.parts.world.main)
        with open_session(config) as session:
            slow = slowly(0.03)
            for step in session.steps():
                slow(session, step)
                step.run()
                if session.step == left_at:
                    break
            state.load(session, last, resume=True)
            steps = session.steps()
            for step in steps:
                step.run()
            same_bits(results(session), expected, (roles, left_at))
        session = open_session(config)
        steps = session.steps()
        next(steps).run()
        state.load(session, last, resume=False)
        with on_every_rank(), pytest.raises(HpcrecError, match="were given up, by a checkpoint that was loaded"):
            for step in steps:
                step.run()
        session.parts.world.abandon()


@pytest.mark.parallel([1, 2])
def test_rows_that_lack_more_updates_than_they_may_end_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which no policy can bring about: a fault of the order would."""
    write_data(folder / "data.h5")
    read = Exchange.read

    def late(exchange: Exchange, route: Route, *given: Any, **named: Any) -> None:
        read(exchange, route, *given, **named)
        route.version -= route.version == 3

    monkeypatch.setattr(Exchange, "read", late)
    for tau, more in ((None, 1), (2, 3)):
        config = config_of(folder, tau, "pooled", topology=roles_for(COMM.size)[0], train={"steps": 9})
        session = open_session(config)
        said = rf"step {2 + more} has read rows of step 2, {more} updates early, and the policy allows {more - 1}"
        with on_every_rank(), pytest.raises(HpcrecError, match=said):
            for step in session.steps():
                step.run()
        session.parts.world.abandon()
