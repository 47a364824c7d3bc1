"""Thresholded dense gradients in whole runs: as their definition has them, left out, saved and gone on with."""

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config
from hpcrec.data.loader import Loader
from hpcrec.dense.dct_choose import Counts
from hpcrec.errors import CheckpointError
from hpcrec.exchange.choose import Choice, Chooser
from hpcrec.training.compression import compression
from hpcrec.training.session import Session
from hpcrec.training.telemetry import read_metrics
from tests.together import on_every_rank
from tests.training.runs import config_for, finished, gather_tables, reference_for, train, write_data
from tests.training.test_equivalence import Roles, few_or_all_roles, roles_for
from tests.training.thresholding import ThresholdedReference

STEPS = 10
DCT = {"density": 0.1, "every": 4, "warmup_steps": 2, "values": "fp32", "collective": "allgather"}
COLLECTIVES = ("allgather", "reduce_scatter")


def config_of(folder: Path, dct: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    dense = {"reducer": "mpi", "optimizer": {"name": "SGD", "lr": 0.1}, **sections.pop("dense", {})}
    wanted = {"train": {"steps": STEPS}, **sections}
    return config_for(folder, dense={**dense, "compression": "dct", "dct": {**DCT, **(dct or {})}}, **wanted)


def parts_of(session: Session, n: int) -> list[list[Any]]:
    """Each dense rank's part of the first ``n`` training batches."""
    split, ranks, parts = session.parts.splits["train"], len(session.topology.dense), []
    for part in range(ranks):
        loader = Loader(split.dataset, split.order, part=part, parts=ranks, prefetch=0)
        with loader.batches(0, 0, n) as stream:
            parts.append(list(stream))
    return [list(one) for one in zip(*parts, strict=True)]


def oracle_for(session: Session, config: Config) -> ThresholdedReference:
    """The definition, with the session's buckets and the forms that were chosen for them."""
    plain = reference_for(session, config)
    optimizers = {name: table.optimizer for name, table in plain.tables.items()}
    rows = {name: plain.rows(name) for name in plain.tables}
    oracle = ThresholdedReference(
        plain.module, plain.operators, rows, optimizers, plain.dense_optimizer, dtype=plain.dtype
    )
    buckets = None
    if session.parts.dense is not None and session.topology.dense_index == 0:
        layouts = session.parts.dense.dct._layouts.values()
        buckets = [(layout.form, [s.name for s in layout.whole.segments]) for layout in layouts]
    buckets = session.parts.world.main.bcast(buckets, root=session.topology.dense[0])
    dct = config.dense.dct
    rules = {"density": dct.density, "every": dct.every, "warmup_steps": dct.warmup_steps}
    oracle.thresholds(len(session.topology.dense), buckets, **rules)
    return oracle


def same_parameters(session: Session, oracle: ThresholdedReference, atol: float = 1e-11) -> None:
    with on_every_rank():
        for name, found in () if session.model is None else session.model.named_parameters():
            wanted = oracle.named[name].detach().numpy()
            np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=0, atol=atol / 10, err_msg=name)
    for name, rows in gather_tables(session).items():
        np.testing.assert_allclose(rows, oracle.rows(name), rtol=0, atol=atol, err_msg=name)


def residuals_of(session: Session) -> dict[str, tuple[np.ndarray, float | None]]:
    """What this rank has unsent, copied, and its thresholds."""
    if session.parts.dense is None:
        return {}
    held = session.parts.dense.dct.residuals
    return {
        f"{kind} {name} {piece.start}": (piece.left.copy(), piece.tau)
        for kind, pieces in (("first", held.first), ("second", held.second))
        for name, piece in pieces.items()
    }


def same_residuals(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(
        np.array_equal(found[n][0], wanted[n][0]) and found[n][1] == wanted[n][1] for n in wanted
    )


def owed(session: Session) -> dict[str, np.ndarray]:
    """What all ranks together have unsent, by parameter."""
    mine: dict[str, np.ndarray] = {}
    if session.parts.dense is not None:
        for name, p in session.parts.dense.named_parameters:
            mine[name] = np.zeros(p.numel())
            for start, left in session.parts.dense.dct.residuals.owed(name):
                mine[name][start : start + len(left)] += left
    everyone = [found for found in session.parts.world.main.allgather(mine) if found]
    return {name: sum(found[name] for found in everyone) for name in everyone[0]}


@few_or_all_roles
@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_learns_as_the_definition_does(folder: Path, collective: str, roles_of: Roles) -> None:
    """Roles, bucket sizes, clipping and batches that leave ranks without samples; what is sent is counted the same."""
    write_data(folder / "data.h5")
    rules = itertools.cycle(({}, {"density": 0.03, "every": 3, "warmup_steps": 0}, {"density": 0.3, "every": 100}))
    seen = set()
    cases = [
        (roles, size, batch) for roles in roles_of(MPI.COMM_WORLD.size) for size, batch in ((1 << 20, 13), (800, 3))
    ]
    for (roles, bucket_bytes, batch), rule in zip(cases, rules, strict=False):
        max_norm = 0.05 if batch == 3 else None
        dense = {"bucket_bytes": bucket_bytes} | ({} if max_norm is None else {"clip_norm": max_norm})
        config = config_of(
            folder,
            {"collective": collective, **rule},
            topology=roles,
            dense=dense,
            train={"steps": STEPS, "batch_size": batch},
        )
        with open_session(config) as session:
            oracle, parts = oracle_for(session, config), parts_of(session, STEPS)
            assert bucket_bytes == 800 or [form for form, _ in oracle.buckets] == [collective]
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                expected = oracle.train(parts[step.number], step.number, max_norm)
                np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-12)
            same_parameters(session, oracle)
            found = compression(session)
        assert found["density"] == oracle.counts["kept"] / oracle.counts["entries"]
        assert found["thresholds"] == {"scheduled": oracle.counts["scheduled"], "drift": oracle.counts["drifted"]}
        seen |= {why for why in ("scheduled", "drifted") if oracle.counts[why]}
    assert seen == {"scheduled", "drifted"}


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("reducer", ["mpi", "horovod"])
def test_density_1_is_the_plain_sum_bit_for_bit(folder: Path, reducer: str) -> None:
    write_data(folder / "data.h5")
    for dtype, values in (("float32", "fp16"), ("float64", "fp32")):
        common = {"reducer": reducer, "bucket_bytes": 800, "clip_norm": 0.5}
        run = {"steps": 7, "dtype": dtype}
        plain = train(config_for(folder, dense={**common, "optimizer": {"name": "Adam", "lr": 0.01}}, train=run))
        whole = {"density": 1.0, "values": values, "warmup_steps": 0}
        dense = {**common, "optimizer": {"name": "Adam", "lr": 0.01}}
        found = train(config_of(folder, whole, dense=dense, train=run))
        assert found[0] == plain[0]
        for one, other in zip(found[1:], plain[1:], strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in other) and one.keys() == other.keys()


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("reducer", ["mpi", "horovod"])
def test_first_steps_are_whole(folder: Path, reducer: str) -> None:
    """Bit for bit until the warm-up ends, and no longer."""
    write_data(folder / "data.h5")
    common = {"reducer": reducer, "optimizer": {"name": "SGD", "lr": 0.1}}
    run = {"steps": 6, "dtype": "float32"}
    plain = train(config_for(folder, dense=common, train=run))
    found = train(config_of(folder, {"warmup_steps": 4, "values": "bf16"}, dense=common, train=run))
    assert found[0][:5] == plain[0][:5]
    assert found[0][5] != plain[0][5]


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_step_that_is_left_out_changes_nothing(folder: Path, collective: str) -> None:
    """Not even the threshold that it was to find: steps 2 and 4 are due to, 3 is not."""
    write_data(folder / "data.h5")
    for roles, bucket_bytes in itertools.product(roles_for(MPI.COMM_WORLD.size)[:2], (1 << 20, 800)):
        run = {"steps": STEPS, "nonfinite": "skip", "nonfinite_limit": 5}
        config = config_of(
            folder, {"collective": collective}, topology=roles, train=run, dense={"bucket_bytes": bucket_bytes}
        )
        left_out = (2, 4, 6)
        with open_session(config) as session:
            oracle, parts = oracle_for(session, config), parts_of(session, STEPS)
            for step in session.steps():
                before = residuals_of(session)
                if step.number in left_out and session.topology.is_dense and session.topology.dense_index == 0:
                    step.batch.dense[0] = np.nan
                step.run()
                if step.number in left_out:
                    after = residuals_of(session)
                    made = {n: found for n, found in after.items() if n not in before}
                    assert not any(left.any() or tau for left, tau in made.values())
                    assert same_residuals({n: after[n] for n in before}, before)
                else:
                    oracle.train(parts[step.number], step.number)
            assert session.guard.skipped == len(left_out)
            same_parameters(session, oracle)


def finish(config: Config, stop_at: int | None = None, resume: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs to the end or to ``stop_at``, where it saves; parameters and residuals of this rank."""
    return finished(config, _learned_and_unsent, stop_at, resume=resume)


def _learned_and_unsent(session: Session) -> tuple[dict[str, Any], dict[str, Any]]:
    learned = dict(gather_tables(session))
    if session.model is not None:
        learned |= {n: p.detach().numpy().copy() for n, p in session.model.named_parameters()}
    return learned, {**residuals_of(session), "counts": (np.array(list(_counts(session))), None)}


def _counts(session: Session) -> list[int]:
    return [] if session.parts.dense is None else session.parts.dense.dct.counts.as_array().tolist()


@few_or_all_roles
@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_resumed_equals_uninterrupted_bit_for_bit(folder: Path, collective: str, roles_of: Roles) -> None:
    write_data(folder / "data.h5")
    for number, (roles, values) in enumerate(zip(roles_of(MPI.COMM_WORLD.size), itertools.cycle(("fp16", "bf16")))):
        config = config_of(
            folder,
            {"collective": collective, "values": values},
            topology=roles,
            train={"steps": STEPS, "dtype": "float32"},
            dense={"optimizer": {"name": "Adam", "lr": 0.02}, "bucket_bytes": 1600},
            run={"folder": str(folder / f"run-{number}")},
        )
        learned, unsent = finish(config)
        finish(config, stop_at=5)
        again, unsent_again = finish(config, resume=True)
        assert learned.keys() == again.keys()
        assert all(np.array_equal(learned[n], again[n]) for n in learned)
        assert same_residuals(unsent_again, unsent)


@pytest.mark.in_turn
@pytest.mark.parallel([2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_another_number_of_dense_ranks_owes_the_same(folder: Path, collective: str) -> None:
    write_data(folder / "data.h5")
    size = MPI.COMM_WORLD.size
    few, many = {"mode": "split", "dense": size - 1}, {"mode": "fused"}
    for number, (before, after) in enumerate(((many, few), (few, many))):
        run = {"folder": str(folder / f"run-{number}")}
        configs = [
            config_of(
                folder,
                {"collective": collective, "values": "fp16"},
                topology=roles,
                run=run,
                train={"steps": STEPS, "dtype": "float32"},
            )
            for roles in (before, after)
        ]
        with open_session(configs[0]) as session:
            for step in session.steps():
                step.run()
                if session.step == 6:
                    break
            state.save(session, Path(run["folder"]), {})
            wanted, counted = owed(session), compression(session)
        with open_session(configs[1]) as session:
            found = find_checkpoint(Path(run["folder"]), "last", session.parts.world.main)
            state.load(session, found, resume=True)
            shared = owed(session)
            assert compression(session) == counted
            assert all(wanted[n].any() for n in wanted if wanted[n].size > 20)
            for name, total in wanted.items():
                np.testing.assert_allclose(
                    shared[name], total, rtol=1e-6, atol=1e-6 * np.abs(total).max(), err_msg=name
                )
            first = session.parts.world.main.allgather(residuals_of(session))
            shares = [r for r in first if r]
            assert len(shares) == len(session.topology.dense)
            assert all(same_residuals(share, shares[0]) for share in shares)
            assert all(tau is None for _, tau in shares[0].values())
            for step in session.steps():
                step.run()


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_resumed_with_another_density_finds_its_thresholds_at_once(folder: Path, collective: str) -> None:
    write_data(folder / "data.h5")
    finish(config_of(folder, {"collective": collective, "every": 1000}), stop_at=5)
    for density in (0.1, 0.4):  # that of before, and more
        with open_session(config_of(folder, {"collective": collective, "every": 1000, "density": density})) as session:
            found = find_checkpoint(folder / "run", "last", session.parts.world.main)
            state.load(session, found, resume=True)
            taus = [tau for _, tau in residuals_of(session).values()]
            assert any(tau is not None for tau in taus) == (density == 0.1)
            before, step = _counts(session), next(iter(session.steps()))
            step.run()
            counts = Counts.of(np.array(_counts(session)) - before)
            if density == 0.4:
                assert counts.scheduled + counts.drifted > 0 and counts.kept >= 0.39 * counts.entries
            else:
                assert counts.scheduled == 0


@pytest.mark.parallel([2])
def test_what_is_unsent_is_sent_by_whole_sums_or_dropped_with_a_warning(folder: Path) -> None:
    write_data(folder / "data.h5")
    saved = config_of(folder, {"collective": "reduce_scatter"})
    with open_session(saved) as session:
        for step in session.steps():
            step.run()
            if session.step == 6:
                break
        state.save(session, folder / "run", {})
        wanted = owed(session)
    with open_session(config_of(folder, {"density": 1.0})) as session:
        checkpoint = find_checkpoint(folder / "run", "last", session.parts.world.main)
        state.load(session, checkpoint, resume=True)
        before = {n: p.detach().clone() for n, p in session.model.named_parameters()}
        session.parts.dense.reducer.zero_grad()
        session.parts.dense.dct.begin(session.step)
        session.parts.dense.reducer.reduce()  # of gradients that are zero
        for name, p in session.model.named_parameters():
            np.testing.assert_allclose(p.grad.numpy().ravel(), wanted[name], rtol=0, atol=1e-15)
            assert torch.equal(p, before[name])
        assert not any(found.any() for found in owed(session).values())
        session.step = session.total_steps
    plain = config_for(folder, train={"steps": STEPS})
    with open_session(plain) as session, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state.load(session, checkpoint, resume=True)
        said = [str(w.message) for w in caught]
        told = session.parts.world.main.allgather(said)
    assert [len(one) for one in told] == [1, 0]
    assert "its 2 dense ranks had not sent are dropped" in told[0][0]


@pytest.mark.parallel([2])
def test_a_checkpoint_without_residuals_starts_with_none_and_a_wrong_one_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    plain = config_for(folder, train={"steps": STEPS})
    with open_session(plain) as session:
        for step in session.steps():
            step.run()
            if session.step == 3:
                break
        state.save(session, folder / "run", {})
    with open_session(config_of(folder)) as session:
        state.load(session, find_checkpoint(folder / "run", "last", session.parts.world.main), resume=True)
        assert not residuals_of(session)
        for step in session.steps():
            step.run()
        name = next(iter(session.parts.dense.dct.residuals.first))
        session.parts.dense.dct.residuals.first["nobody"] = session.parts.dense.dct.residuals.first.pop(name)
        state.save(session, folder / "run", {})
    with open_session(config_of(folder)) as session:
        found = find_checkpoint(folder / "run", "last", session.parts.world.main)
        with pytest.raises(
            CheckpointError, match=r"dense parameter 'nobody' that were not sent; the model has no such"
        ):
            state.load(session, found, resume=True)


@pytest.mark.parallel([1, 2, 3])
def test_parameters_that_come_and_go_keep_what_they_have_unsent(folder: Path) -> None:
    """A first layer that owners train for a while: what ranks owe it is as it was."""
    write_data(folder / "data.h5")
    for collective in COLLECTIVES:
        config = config_of(
            folder,
            {"collective": collective, "warmup_steps": 0},
            model={"name": "wide_deep", "options": {"hidden": [2, 3]}},
            exchange={"form": "pooled"},
        )
        with open_session(config) as session:
            for step in session.steps():
                step.run()
                if session.step == 4:
                    break
            dense, wanted = session.parts.dense, owed(session)
            away = [n for n, _ in dense.named_parameters if n.startswith("first.weight_")]
            assert away and any(wanted[n].any() for n in away)
            thresholds = {n: p.tau for n, p in dense.dct.residuals.first.items()}
            rest = [(n, p) for n, p in dense.named_parameters if n not in away]
            for named in (rest, dense.named_parameters):
                dense.reducer.close()
                dense.reducer = type(dense.reducer)(named, dense.dct, bucket_bytes=1 << 20)
                dense.dct.arrange(dense.reducer.contents)
                for name, total in owed(session).items():
                    np.testing.assert_allclose(total, wanted[name], rtol=1e-14, atol=1e-18, err_msg=name)
            assert {n: p.tau for n, p in dense.dct.residuals.first.items()} == thresholds
            session.step = session.total_steps


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_unsent_of_layers_that_are_away_is_kept(
    folder: Path, collective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners train the first layer in every other session; a checkpoint has what dense ranks owe it meanwhile."""
    write_data(folder / "data.h5")
    forms = itertools.cycle(("pooled", "partial"))

    def choose(_: Chooser) -> Choice:
        return Choice(dict.fromkeys(("user", "item", "history", "tag"), next(forms)), (), {}, {})

    monkeypatch.setattr(Chooser, "choose", choose)
    config = config_of(
        folder,
        {"collective": collective, "warmup_steps": 0, "density": 0.2},
        model={"name": "wide_deep", "options": {"hidden": [1, 3]}},
        exchange={"form": "auto", "auto_steps": 1},
        embedding={"tables": {t: {"shard": "table"} for t in ("user", "item", "tag")}},
        train={"steps": 7},
    )
    before: dict[str, np.ndarray] = {}
    held: dict[str, Any] = {}
    for until, n_away in ((2, 0), (4, 4), (5, 0), (7, 4)):
        with open_session(config) as session:
            if before:
                state.load(session, find_checkpoint(folder / "run", "last", session.parts.world.main), resume=True)
                after = owed(session)
                for name, total in before.items():
                    np.testing.assert_allclose(after[name], total, rtol=1e-14, atol=1e-18, err_msg=name)
                assert {n.split(" ")[1] for n in residuals_of(session)} == {n.split(" ")[1] for n in held}
            away = session.parts.slices.away
            assert len(away) == n_away
            for step in session.steps():
                step.run()
                after = owed(session)
                for name in away:
                    np.testing.assert_allclose(after[name], before[name], rtol=1e-14, atol=1e-18, err_msg=name)
                if session.step == until:
                    break
            assert all(after[name].any() for name in away)
            state.save(session, folder / "run", {})
            before, held = after, residuals_of(session)


@pytest.mark.parallel([1, 2, 3])
def test_a_run_tells_what_it_sent(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, train={"steps": STEPS, "log_every": 2})
    assert commands.train(config) == 0
    summary = json.loads((folder / "run/summary.json").read_text())
    found, ranks = summary["dense_compression"], MPI.COMM_WORLD.size
    lines = read_metrics(folder / "run")
    densities = {line["step"]: line["dense_density"] for line in lines if "dense_density" in line}
    assert sorted(densities) == [4, 6, 8, 10]  # none in the warm-up
    assert np.mean(list(densities.values())) == pytest.approx(found["density"], rel=1e-12)
    assert 0.05 < found["density"] < 0.2
    assert found["sent_bytes"] == sum(summary["wire_bytes"]["dense"].values())
    assert found["sums"] == {"thresholded": 8 * ranks, "whole": 2 * ranks}
    assert found["thresholds"]["scheduled"] > 0
    if ranks > 1:
        assert found["ratio"] == found["plain_bytes"] / found["sent_bytes"] > 1
        assert f"{found['ratio']:.3g} times" in (folder / "run/report.html").read_text()
    else:
        assert (found["sent_bytes"], found["plain_bytes"], found["ratio"]) == (0, 0, None)
    assert commands.evaluate(config, checkpoint="last")["auc"] > 0  # which needs no residuals
