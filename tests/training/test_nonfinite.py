"""A loss or gradient that is not finite stops every rank with what it came from, or its batch changes nothing."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from mpi4py import MPI
from pytest_mpi import parallel_assert

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint, steps_in
from hpcrec.config import validate
from hpcrec.errors import ConfigError, NonFiniteError
from hpcrec.training import attempts
from hpcrec.training.nonfinite import nonfinite_gradients
from hpcrec.training.session import Losses, Session
from hpcrec.training.telemetry import read_metrics
from tests.training.learned import check_equal
from tests.training.runs import BATCH, config_for, gather_tables, global_batches, reference_for, write_data
from tests.training.test_equivalence import Roles, few_or_all_roles, roles_for

BAD_STEP = 2
SKIP = {"batch_size": BATCH, "dtype": "float64", "steps": 7, "nonfinite": "skip"}


def spoil(session: Session, step) -> int:
    """Makes a dense input of the last dense rank's first sample nan; returns that sample's place in the batch."""
    last = len(session.topology.dense) - 1
    if session.topology.is_dense and session.topology.dense_index == last:
        step.batch.dense[0, 1] = np.nan
    starts = session.parts.world.main.allgather(step.batch.start if step.batch is not None else -1)
    return max(starts)


def spoil_gradients(session: Session, feature: str | None, parameter: str | None, value: float) -> Losses | None:
    """A loss for a step on the last dense rank: the model's own, but numbers of its gradients are ``value``.

    One number of a feature's pooled vectors, and one of a dense parameter.
    """

    def put(place: tuple[int, ...]):
        def hook(grad: torch.Tensor) -> torch.Tensor:
            return grad.index_put(tuple(torch.tensor(i) for i in place), torch.tensor(value, dtype=grad.dtype))

        return hook

    def losses(inputs, samples):
        if feature is not None:
            place = [name for name, _ in inputs.vectors()].index(feature)
            inputs.leaves[0].register_hook(put((0, place, 0)))  # of this step alone
        if parameter is not None:
            handles.append(session.model.get_parameter(parameter).register_hook(put((0, 0))))
        return session.default_losses(inputs, samples)

    handles = session.spoilt = getattr(session, "spoilt", [])
    while handles:  # of an earlier step
        handles.pop().remove()
    last = session.topology.is_dense and session.topology.dense_index == len(session.topology.dense) - 1
    return losses if last and (feature or parameter) else None


def held(session: Session) -> dict[str, np.ndarray]:
    """Rows and their states, dense parameters and theirs, on this rank."""
    found, store = {}, session.parts.store
    for b, held in enumerate(store.held if store is not None else ()):
        found |= {f"{n} {b}": values.copy() for n, values in held.columns.items()}
    if session.parts.dense is not None:
        dense = session.parts.dense
        found |= {n: p.detach().numpy().copy() for n, p in dense.named_parameters}
        for n, p in dense.named_parameters:
            states = dense.optimizer.state[p].items()
            found |= {f"{n} {k}": torch.as_tensor(v).numpy().copy() for k, v in states if v is not None}
    return found


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@few_or_all_roles
@pytest.mark.parallel([1, 2, 3, 4])
def test_stop_names_the_batch_its_samples_and_its_inputs_on_every_rank(folder: Path, roles_of: Roles) -> None:
    write_data(folder / "data.h5")
    for roles in roles_of(MPI.COMM_WORLD.size):
        with open_session(config_for(folder, topology=roles)) as session:
            for step in session.steps():
                if step.number < BAD_STEP:
                    step.run()
                    continue
                before = held(session)
                start = spoil(session, step)
                with pytest.raises(NonFiniteError) as caught:
                    step.run()
                break
            unchanged = same(held(session), before)
            order = session.parts.splits["train"].order
        text, first = str(caught.value), BAD_STEP * BATCH + start
        parallel_assert(unchanged, msg=f"{roles}")
        told = MPI.COMM_WORLD.allgather(text)
        parallel_assert(told == [told[0]] * len(told), msg=str(told))
        says = f"step 2: the loss is not finite in global batch 2 of epoch 0, samples [{first}, {BATCH * 3})"
        parallel_assert(says in text, msg=text)
        sample = int(order.positions(0, first, first + 1)[0])
        parallel_assert(f"1 of them, first {first} (sample {sample} of {folder / 'data.h5'}) with loss nan" in text)
        columns = re.search(r"dense inputs: column 1 (.*), 1 not finite; column \d \S+ to \S+; column \d", text)
        parallel_assert(columns is not None, msg=text)
        parallel_assert(all(f"{name} " in text.partition("norms of")[2] for name in ("user", "history of item", "tag")))
        parallel_assert(re.search(r"logits: .*, 1 not finite\n", text) is not None, msg=text)


@pytest.mark.in_turn
@few_or_all_roles
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", ["adagrad", "rowwise_adagrad"])
def test_a_skipped_batch_changes_nothing_and_the_rest_is_as_without_it(
    folder: Path, optimizer: str, roles_of: Roles
) -> None:
    write_data(folder / "data.h5")
    for roles in roles_of(MPI.COMM_WORLD.size):
        tables = {"user": {"shard": "row"}, "item": {"shard": "column"}, "tag": {"shard": "replicate"}}
        embedding = {"optimizer": {"name": optimizer, "lr": 0.1}, "tables": tables}
        config = config_for(folder, topology=roles, train=SKIP, embedding=embedding)
        with open_session(config) as session:
            reference = reference_for(session, config)
            batches = global_batches(session, 5) + global_batches(session, 5)
            for step in session.steps():
                if step.number == BAD_STEP:
                    before = held(session)
                    spoil(session, step)
                    loss = step.run()
                    parallel_assert(same(held(session), before), msg=f"{roles}")
                    bad = MPI.COMM_WORLD.allgather(not math.isfinite(loss))
                    parallel_assert(bad.count(True) == 1 and bad[session.topology.dense[-1]])
                    parallel_assert(session.last_logits is None and session.guard.in_a_row == 1)
                elif step.number < 5:
                    loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                    expected, _ = reference.step(batches[step.number])
                    parallel_assert(abs(loss - expected) < 1e-12, msg=f"{roles} {step.number}")
                else:
                    break
            parallel_assert((session.guard.skipped, session.guard.in_a_row, session.step) == (1, 0, 5))
            for name, rows in gather_tables(session).items():
                np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)
            session.step = session.total_steps


FEATURE, PARAMETER = "history of item", "top.0.weight"
SPOILT = {  # which gradients are not finite, and what is said of them
    "feature": (FEATURE, None, r"feature history of item \(1 of \d+ samples\)\.\n"),
    "parameter": (None, PARAMETER, rf"parameter {PARAMETER}\.\n"),
    "both": (FEATURE, PARAMETER, rf"feature history of item \(1 of \d+ samples\), parameter {PARAMETER}\.\n"),
}


@pytest.mark.in_turn
@few_or_all_roles
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize(("feature", "parameter", "says"), SPOILT.values(), ids=SPOILT)
def test_gradients_that_are_not_finite_stop_every_rank_by_name(
    folder: Path,
    feature: str | None,
    parameter: str | None,
    says: str,
    roles_of: Roles,
) -> None:
    write_data(folder / "data.h5")
    for roles, value in zip(roles_of(MPI.COMM_WORLD.size), itertools.cycle((math.nan, -math.inf)), strict=False):
        with open_session(config_for(folder, topology=roles, dense={"bucket_bytes": 256})) as session:
            for step in session.steps():
                if step.number < BAD_STEP:
                    step.run()
                    continue
                before = held(session)
                with pytest.raises(NonFiniteError) as caught:
                    step.run(spoil_gradients(session, feature, parameter, value))
                break
            parallel_assert(same(held(session), before), msg=f"{roles}")
        text = str(caught.value)
        told = MPI.COMM_WORLD.allgather(text)
        parallel_assert(told == [told[0]] * len(told), msg=str(told))
        found = re.search(
            r"step 2: gradients are not finite, though the loss is, in global batch 2 of epoch 0, samples "
            rf"\[\d+, {BATCH * 3}\) of the epoch's order: {says}",
            text,
        )
        parallel_assert(found is not None and re.search(r"\d not finite", text) is None, msg=text)


@pytest.mark.in_turn
@few_or_all_roles
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize(("feature", "parameter", "says"), SPOILT.values(), ids=SPOILT)
def test_a_batch_with_gradients_that_are_not_finite_is_skipped_whole(
    folder: Path,
    feature: str | None,
    parameter: str | None,
    says: str,
    roles_of: Roles,
) -> None:
    write_data(folder / "data.h5")
    # Horovod serves one set of dense ranks a process: all of them; its sums are under way when the batch is left out
    every = [(roles, "mpi") for roles in roles_of(MPI.COMM_WORLD.size)] + [({"mode": "fused"}, "horovod")]
    for roles, reducer in every:
        config = config_for(folder, topology=roles, train=SKIP, dense={"reducer": reducer, "bucket_bytes": 256})
        with open_session(config) as session:
            dense = session.parts.dense
            parallel_assert(dense is None or len(dense.reducer.bucket_sizes_bytes) > 3)
            reference = reference_for(session, config)
            batches = global_batches(session, 5)
            for step in session.steps():
                bad = step.number in (BAD_STEP, BAD_STEP + 1)
                before = held(session)
                mine = step.run(spoil_gradients(session, *((feature, parameter) if bad else (None, None)), math.inf))
                loss = session.parts.world.main.allreduce(np.array([mine]))[0]
                if bad:
                    parallel_assert(same(held(session), before) and math.isfinite(loss), msg=f"{roles}")
                    parallel_assert(
                        session.last_logits is None and session.guard.in_a_row == step.number - BAD_STEP + 1
                    )
                else:
                    expected, _ = reference.step(batches[step.number])
                    parallel_assert(abs(loss - expected) < 1e-12, msg=f"{roles} {step.number}")
                if step.number == 4:
                    break
            parallel_assert((session.guard.skipped, session.guard.in_a_row, session.step) == (2, 0, 5))
            for name, rows in gather_tables(session).items():
                np.testing.assert_allclose(rows, reference.rows(name), rtol=0, atol=1e-11, err_msg=name)
            session.step = session.total_steps


@pytest.mark.parallel([1, 2])
def test_a_slope_of_the_users_own_loss_that_is_not_finite_is_found(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_for(folder)) as session:
        with pytest.raises(
            NonFiniteError, match=r"feature user \(\d+ of \d+ samples\), .*parameter .* and \d+ more"
        ) as c:
            # the root of 0 is finite, its slope is not
            next(session.steps()).run(lambda i, s: torch.sqrt(session.model(i, s.dense) * 0.0))
        parallel_assert("a root, norm or logarithm has no finite slope at 0" in str(c.value))


def without(session: Session, feature: str, value: float, *, whole: bool) -> Losses | None:
    """A loss for a step on the last dense rank: its gradient is ``value`` times in a feature's vectors, or a number."""

    def losses(inputs, samples):
        place = [name for name, _ in inputs.vectors()].index(feature)

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            changed = gradient.clone()
            changed[:, place] = changed[:, place] * value if whole else changed[:, place]
            changed[0, place, 0] = value
            return changed

        inputs.leaves[0].register_hook(hook)
        return session.default_losses(inputs, samples)

    last = session.topology.is_dense and session.topology.dense_index == len(session.topology.dense) - 1
    return losses if last else None


@few_or_all_roles
@pytest.mark.parallel([1, 2, 3, 4])
def test_gradients_of_a_feature_alone_are_left_out(folder: Path, roles_of: Roles) -> None:
    """As if they were zero, on that rank, whatever else the batch has; counted, also by a run that goes on."""
    write_data(folder / "data.h5")
    for roles in roles_of(MPI.COMM_WORLD.size):
        learned = []
        for spoilt in (True, False):
            run = {"folder": str(folder / f"run-{spoilt}")}
            config = config_for(folder, topology=roles, train={**SKIP, "nonfinite": "drop"}, run=run)
            with open_session(config) as session:
                for step in session.steps():
                    bad = step.number in (2, 5)
                    value = float("nan") if spoilt else 0.0
                    step.run(without(session, "item", value, whole=not spoilt) if bad else None)
                learned.append(held(session))
                dropped = session.parts.world.main.allreduce(np.array([session.guard.dropped]))[0]
                parallel_assert((dropped, session.guard.skipped) == (2 * spoilt, 0), msg=f"{roles}: {dropped}")
                if spoilt:
                    state.save(session, folder / "run-True", {})
            if spoilt:
                with open_session(config) as session:
                    state.load(session, find_checkpoint(folder / "run-True"), resume=True)
                    again = session.parts.world.main.allreduce(np.array([session.guard.dropped]))[0]
                    parallel_assert(again == 2)
        parallel_assert(same(*learned), msg=f"{roles}")


@pytest.mark.parallel([1, 3])
def test_what_is_not_a_features_gradient_leaves_the_batch_out_under_drop_too(folder: Path) -> None:
    write_data(folder / "data.h5")
    with open_session(config_for(folder, topology={"mode": "fused"}, train={**SKIP, "nonfinite": "drop"})) as session:
        for step in session.steps():
            parameter = next(name for name, _ in session.model.named_parameters())
            before = held(session)
            wrong = (None, parameter) if step.number == 1 else ("item", parameter) if step.number == 3 else (None, None)
            if step.number == 4:
                spoil(session, step)
            step.run(spoil_gradients(session, *wrong, float("inf")))
            parallel_assert(same(held(session), before) == (step.number in (1, 3, 4)), msg=f"{step.number}")
        parallel_assert((session.guard.skipped, session.guard.dropped) == (3, 0))


def test_only_gradients_that_are_not_finite_are_named() -> None:
    leaves = [torch.ones(3, 2, 4, requires_grad=True), torch.ones(3, 1, 2, requires_grad=True)]
    leaves.append(torch.ones(3, 1, 5, requires_grad=True))  # the loss does not depend on this one
    vectors = [("a", leaves[0][:, 0]), ("b", leaves[0][:, 1]), ("c", leaves[1][:, 0]), ("d", leaves[2][:, 0])]
    leaves[0].grad, leaves[1].grad = torch.full((3, 2, 4), 3e38), torch.ones(3, 1, 2)
    assert not math.isfinite(leaves[0].grad.sum())  # the sum overflows, the terms are finite
    assert nonfinite_gradients(leaves, vectors, [], []) == []
    leaves[0].grad[1, 1, 3] = -math.inf
    leaves[1].grad[::2] = math.nan
    said = ["feature b (1 of 3 samples)", "feature c (2 of 3 samples)", "parameter p"]
    assert nonfinite_gradients(leaves, vectors, [], ["p"]) == said


@pytest.mark.parallel([2, 3])
@pytest.mark.parametrize("reducer", ["mpi"])
def test_schedules_count_a_skipped_step_and_optimizers_do_not(folder: Path, reducer: str) -> None:
    write_data(folder / "data.h5")
    config = config_for(
        folder,
        train=SKIP,
        dense={"reducer": reducer, "optimizer": {"name": "Adam", "lr": 0.1}, "bucket_bytes": 256},
        schedule={"kind": "linear", "decay_steps": 7},
    )
    with open_session(config) as session:
        for step in session.steps():
            if step.number in (1, 2):
                spoil(session, step)
            step.run()
        dense = session.parts.dense
        assert dense is not None
        counts = {float(dense.optimizer.state[p]["step"]) for _, p in dense.named_parameters}
        parallel_assert(counts == {5.0})
        lr = dense.optimizer.param_groups[0]["lr"]
        parallel_assert(lr == pytest.approx(0.1 * session.parts.schedule.multiplier(6)), msg=str(lr))
        parallel_assert(session.guard.skipped == 2)


@pytest.mark.parallel([1, 3])
def test_more_in_a_row_than_the_limit_stop(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles in roles_for(MPI.COMM_WORLD.size)[:2]:
        with open_session(config_for(folder, topology=roles, train={**SKIP, "nonfinite_limit": 2})) as session:
            with pytest.raises(NonFiniteError, match=r"number 3 of such steps in a row, .*nonfinite_limit is 2"):
                for step in session.steps():
                    if step.number not in (0, 2):  # step 2 is finite, so 1 does not count with 3, 4 and 5
                        spoil(session, step)
                    step.run()
            parallel_assert((session.step, session.guard.skipped, session.guard.in_a_row) == (5, 4, 3))


@pytest.mark.parallel([2])
def test_a_resumed_run_knows_what_was_skipped(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_for(folder, train=SKIP)
    with open_session(config) as session:
        for step in session.steps():
            if step.number in (1, 3):
                spoil(session, step)
            step.run()
            if step.number == 3:
                state.save(session, Path(config.run.folder), {})
                break
    with open_session(config) as session:
        state.load(session, find_checkpoint(Path(config.run.folder), "last", session.parts.world.main), resume=True)
        parallel_assert((session.step, session.guard.skipped, session.guard.in_a_row) == (4, 2, 1))


@pytest.mark.parallel([2])
def test_a_run_reports_what_it_skipped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    original = Session.default_losses

    def spoilt(self, inputs, samples):
        losses = original(self, inputs, samples)
        return losses * torch.inf if self.step in (1, 4) and self.topology.dense_index == 0 else losses

    monkeypatch.setattr(Session, "default_losses", spoilt)
    for mode in ("fused", "split"):
        run = folder / mode
        config = config_for(
            folder, topology={"mode": mode}, train={**SKIP, "log_every": 3}, run={"folder": str(run), "progress": False}
        )
        assert commands.train(config) == 0
        summary = json.loads((run / "summary.json").read_text())
        parallel_assert((summary["status"], summary["steps"], summary["skipped_steps"]) == ("finished", 7, 2))
        lines = [(x["step"], x["skipped_steps"]) for x in read_metrics(run)]
        parallel_assert(lines == [(2, 1), (3, 1), (5, 2), (6, 2)], msg=str(lines))


def test_a_limit_without_skip_is_refused(tmp_path: Path) -> None:
    base = {"data": {"train": "x.h5"}, "run": {"folder": str(tmp_path)}}
    with pytest.raises(ConfigError, match=r"train.nonfinite_limit: is 3|train.nonfinite_limit is 3"):
        validate({**base, "train": {"nonfinite_limit": 3}}, "test")
    assert validate({**base, "train": {"nonfinite_limit": 3, "nonfinite": "skip"}}, "test").train.nonfinite_limit == 3


@pytest.mark.filterwarnings("ignore:.*not finite")
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_weights_that_overflow_push_out_no_good_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is infinite from step 10 on, every later batch is left out: a run from step 8 on is as if it had not."""
    write_data(folder / "data.h5")
    plain = {**SKIP, "steps": 14, "nonfinite_limit": 4}
    saving = {"every": 2, "keep": 2, "resume": "auto", "background": False}

    def config(name: str, steps: int):
        run = {"folder": str(folder / name), "progress": False, "tensorboard": False}
        return config_for(folder, train={**plain, "steps": steps}, checkpoint=saving, run=run)

    assert commands.train(config("whole", 14)) == 0
    run_step, run = Session.run_step, folder / "run"

    def overflowing(self, ticket, losses):
        loss = run_step(self, ticket, losses)
        if self.step == 10 and self.parts.store is not None:
            for table in self.parts.store.tables:
                part = self.parts.store.part(table)
                for ids, rows, states in list(self.parts.store.export(table, None)):
                    rows[:] = np.inf
                    self.parts.store.load(table, ids, rows, states, part.columns)
        return loss

    with monkeypatch.context() as patched, pytest.raises(NonFiniteError, match="number 5 of such steps in a row"):
        patched.setattr(Session, "run_step", overflowing)
        commands.train(config("run", 16))
    MPI.COMM_WORLD.Barrier()
    parallel_assert(steps_in(run) == [6, 8, 14])
    parallel_assert(bool(find_checkpoint(run).nonfinite))
    MPI.COMM_WORLD.Barrier()
    assert commands.train(config("run", 14)) == 0
    MPI.COMM_WORLD.Barrier()
    parallel_assert([event["step"] for event in attempts.read(run) if event["event"] == "begin"] == [0, 8])
    parallel_assert(steps_in(run) == [12, 14] and (run / "checkpoints/nonfinite-step-14").is_dir())
    check_equal(run / "checkpoints/step-14", folder / "whole/checkpoints/step-14")
