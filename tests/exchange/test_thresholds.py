"""Codec ``dct``: thresholded vectors and their gradients are what one process makes of the same masks [DCT]."""

import itertools
import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import Tensor

from hpcrec.api import commands
from hpcrec.build.session import open_session
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import ThresholdConfig
from hpcrec.data.loader import Loader
from hpcrec.exchange.masks import FeatureMasks, Thresholding
from hpcrec.exchange.work import Spans
from hpcrec.training import metrics
from hpcrec.training.compression import advise_reader, evaluated_otherwise
from hpcrec.training.session import Session
from tests.reference import Bag, Reference, join
from tests.training.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.training.test_equivalence import roles_for, shared_out

# One element of a vector is what tests of few columns are about.
pytestmark = pytest.mark.filterwarnings("ignore:exchange.dct.density = .* leaves")

DENSITY, EVERY, STEPS = 0.05, 4, 7
OF_VECTOR = 0.3


def config(folder: Path, topology: dict[str, Any], model: str = "dcn", form: str = "pooled", **dct: Any) -> Any:
    dct = {"threshold": "feature", "density": DENSITY, "every": EVERY, "values": "fp32", **dct}
    return config_for(
        folder,
        topology=topology,
        model={"name": model, "pooling": {}},
        exchange={"form": form, "codec": "dct", "dct": dct},
        embedding={
            "optimizer": {"name": "sgd", "lr": 0.1},
            "tables": {table: {"shard": "table"} for table in ("user", "item", "tag")},
        },
        train={"dtype": "float32", "steps": STEPS},
    )


class Masking(Reference):
    """The reference, with elements of pooled vectors below a threshold set to zero: their feature table's, or own."""

    by_vector: bool

    masks, learns = True, True  # whether vectors are thresholded; whether thresholds are found anew, and counted
    taus: dict[tuple[str, str], float]
    kept: int
    drifts: int
    batches: int

    def pooled_of(self, feature: str, table: str, bag: Bag, values: Tensor) -> Tensor:
        if values.shape[1] == 1 or not self.masks:
            return values
        there = torch.from_numpy(np.diff(bag.offsets) > 0)  # no vector crosses of an empty bag
        if self.by_vector:
            keep = max(1, round(OF_VECTOR * values.shape[1]))
            largest = torch.argsort(values.detach().abs(), dim=1, descending=True, stable=True)[:, :keep]
            self.kept += keep * int(there.sum())
            return values * torch.zeros_like(values).scatter_(1, largest, 1.0)
        sent = values.detach()[there].abs().flatten()
        wanted = max(1, round(DENSITY * len(sent)))
        due = self.learns and self.batches % EVERY == 0
        if due or (self.learns and (sent >= self.taus[feature, table]).sum() > 2 * DENSITY * len(sent)):
            self.drifts += self.batches % EVERY != 0
            self.taus[feature, table] = float(torch.sort(sent, descending=True).values[wanted - 1])
        mask = (values.detach().abs() >= self.taus[feature, table]) & there[:, None]
        self.kept += int(mask.sum())
        return values * mask

    def _pool(self, table: str, bag: Bag, pooling: str) -> Tensor:
        feature = next(f for f, b in self.batch.bags.items() if b is bag)
        return self.pooled_of(feature, table, bag, super()._pool(table, bag, pooling))

    def logits_of(self, batch: Any) -> np.ndarray:
        self.batch = batch
        with torch.no_grad():
            return self.logits(batch).numpy()

    def step_of(self, batch: Any) -> float:
        self.batch = batch
        loss = float(self.step(batch)[0])
        self.batches += 1
        return loss


def masking(session: Session, wanted: Any) -> Masking:
    reference = reference_for(session, wanted)
    reference.__class__ = Masking
    reference.by_vector = wanted.exchange.dct.threshold == "vector"
    reference.taus, reference.kept, reference.drifts, reference.batches = {}, 0, 0, 0
    return reference


def total(session: Session, value: float) -> float:
    return float(session.parts.world.main.allreduce(np.array([value]))[0])


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("model", ["dcn", "deepfm"])
@pytest.mark.parametrize("threshold", ["feature", "vector"])
def test_equals_one_process_with_the_same_masks(folder: Path, model: str, threshold: str) -> None:
    write_data(folder / "data.h5")
    forms = ("pooled", "partial") if model == "dcn" else ("pooled",)  # partial results are not thresholded
    dct = {"threshold": "vector", "density": OF_VECTOR, "every": 1000} if threshold == "vector" else {}
    for topology, form in zip(roles_for(MPI.COMM_WORLD.size), itertools.cycle(forms), strict=False):
        wanted = config(folder, topology, model, form, **dct)
        with open_session(wanted) as session:
            reference, exact = masking(session, wanted), reference_for(session, wanted)
            batches = global_batches(session, session.total_steps)
            for step, batch in zip(session.steps(), batches, strict=True):
                assert total(session, step.run()) == pytest.approx(reference.step_of(batch), rel=1e-5)
                exact.step(batch)
            for table, rows in gather_tables(session).items():
                np.testing.assert_allclose(rows, reference.rows(table), rtol=0, atol=1e-5)
                if not table.endswith("wide"):
                    assert np.abs(rows - exact.rows(table)).max() > 1e-3
            masks = session.parts.exchange.masks
            found = [0, 0] if masks is None else [masks.kept, masks.drifts]
            assert [total(session, n) for n in found] == [reference.kept, reference.drifts]


@pytest.mark.parallel([2, 3, 4])
def test_tables_that_may_be_split_by_columns_stay_whole(folder: Path) -> None:
    """So that vectors are thresholded as one process does it, wherever placement is free."""
    write_data(folder / "data.h5")
    kinds = {}
    for codec in ("fp32", "dct"):
        wanted = config(folder, {"mode": "fused"}, threshold="vector", density=OF_VECTOR, every=1000)
        wanted = replace(
            wanted,
            model=replace(wanted.model, width=48),
            embedding=replace(wanted.embedding, tables={}),
            exchange=replace(
                wanted.exchange, **({} if codec == "dct" else {"codec": "fp32", "dct": ThresholdConfig()})
            ),
        )
        with open_session(wanted) as session:
            parts = session.parts.store
            mine = set() if parts is None else {parts.part(table).family.kind for table in parts.tables}
            kinds[codec] = set().union(*session.parts.world.main.allgather(mine))
            reference = masking(session, wanted)
            batches = global_batches(session, session.total_steps)
            for step, batch in zip(session.steps(), batches, strict=True):
                loss = total(session, step.run())
                if codec == "dct":
                    assert loss == pytest.approx(reference.step_of(batch), rel=1e-5)
    assert "column" in kinds["fp32"] and kinds["dct"] == {"table"}


def leg_of(tables: str) -> Any:
    return SimpleNamespace(
        entries=[SimpleNamespace(features=(table,)) for table in tables],
        streams=[SimpleNamespace(entry=e, table=table, columns=(0, 4), width=4) for e, table in enumerate(tables)],
        n_value_streams=len(tables),
    )


def test_thresholds_are_found_anew_where_too_much_passes() -> None:
    """Of a feature whose vectors have grown; of the other, and in evaluations, they stay."""
    thresholds = FeatureMasks(leg_of("ab"), Thresholding(density=0.1, every=100, evaluates=True))
    spans = Spans(
        np.array([0, 1]), np.array([0, 0]), np.array([0, 208]), np.array([203, 411]), np.array([[80, 120], [120, 80]])
    )
    rng = np.random.default_rng(3)
    sent = rng.standard_normal(416).astype(np.float32)
    a, b = (np.concatenate([np.arange(*spans.of(p, s)) for p in (0, 1)]) for s in (0, 1))
    for turn, (grown, train) in enumerate(((1.0, True), (1.1, True), (9.0, False), (9.0, True), (9.0, True))):
        now = sent.copy()
        now[a] *= grown
        before = thresholds.tau_GS[0].copy()
        found = thresholds.picked(now, spans, train=train)
        assert thresholds.drifts == (turn >= 3)
        tau = np.sort(np.abs(now[a]))[-20] if turn in (0, 3) else before[0]
        assert thresholds.tau_GS[0].tolist() == [tau, np.sort(np.abs(sent[b]))[-20]]
        for p, (positions, chosen) in enumerate(found):
            message = now[spans.at_P[p] : spans.end_P[p]]
            n_a = spans.elements_PS[p, 0]
            reach = np.abs(message) >= np.where(np.arange(len(message)) < n_a, tau, thresholds.tau_GS[0][1])
            reach[200:] = True  # partial results
            assert positions.tolist() == np.flatnonzero(reach).tolist()
            assert chosen.tolist() == message[reach].tolist()
    assert (thresholds.batches, thresholds.elements) == (4, 1600)


@pytest.mark.parallel([1, 2, 3])
def test_density_one_is_the_codec_of_its_values(folder: Path) -> None:
    write_data(folder / "data.h5")
    for topology in roles_for(MPI.COMM_WORLD.size)[:2]:
        found = []
        for dct in ({"density": 1.0}, None):
            exchange = {"codec": "dct", "dct": {**dct, "values": "bf16"}} if dct else {"codec": "bf16"}
            wanted = config_for(folder, topology=topology, exchange=exchange, train={"dtype": "float32", "steps": 3})
            with open_session(wanted) as session:
                losses = [step.run() for step in session.steps()]
                found.append((losses, gather_tables(session)))
        assert found[0][0] == found[1][0]
        for table, rows in found[0][1].items():
            np.testing.assert_array_equal(rows, found[1][1][table])


@pytest.mark.parallel([2, 3])
def test_bytes_follow_what_is_kept(folder: Path) -> None:
    """fp16 values there and back, and of positions at most a bit an element."""
    write_data(folder / "data.h5", samples=4000)
    topology = {"mode": "split", "owners": 1}
    wanted = config(folder, topology, "dcn", values="fp16", density=0.05)
    wanted = wanted.__class__(
        **{
            **wanted.__dict__,
            "train": wanted.train.__class__(**{**wanted.train.__dict__, "batch_size": 1000, "steps": 4}),
        }
    )
    with open_session(wanted) as session:
        before = session.parts.world.total_wire_bytes().sum(axis=1)
        for step in session.steps():
            step.run()
        _, values, gradients = (session.parts.world.total_wire_bytes().sum(axis=1) - before)[:3]
        masks = session.parts.exchange.masks
        kept = total(session, 0 if masks is None else masks.kept)
        elements = total(session, 0 if masks is None else masks.elements)
    padding = 4 * 64 * len(session.topology.dense)
    assert 0 <= gradients - kept * (2 + 4 / 128) <= padding * 1.1
    assert 0 < values - gradients <= elements / 8 + padding
    assert kept <= 0.1 * elements


@pytest.mark.parallel([1, 2, 3])
def test_a_resumed_run_has_the_thresholds_of_before(folder: Path) -> None:
    """Saved in the middle of their life; what follows is the same bit for bit."""
    write_data(folder / "data.h5")
    for topology in roles_for(MPI.COMM_WORLD.size)[:2]:
        wanted = config(folder, topology)
        ends = []
        for resumes in (False, True):
            with open_session(wanted) as session:
                if resumes:
                    state.load(session, find_checkpoint(folder / "run", "last", session.parts.world.main), resume=True)
                losses = []
                for step in session.steps():
                    losses.append(step.run())
                    if session.step == 3 and not resumes:
                        state.save(session, Path(wanted.run.folder), {"note": ""})
                ends.append((losses[-2:], gather_tables(session)))
        assert ends[0][0] == ends[1][0]
        for table, rows in ends[0][1].items():
            np.testing.assert_array_equal(rows, ends[1][1][table])


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("threshold", ["feature", "vector"])
@pytest.mark.parametrize("evaluate", [True, False])
def test_a_run_tells_of_thresholded_and_of_whole_vectors(folder: Path, threshold: str, *, evaluate: bool) -> None:
    """By the thresholds of training, whoever evaluates: the run, or who reads it in batches of another size."""
    write_data(folder / "data.h5")
    dct = {"threshold": "vector", "density": OF_VECTOR, "every": 1000} if threshold == "vector" else {}
    topology = roles_for(MPI.COMM_WORLD.size)[-1]
    wanted = config(folder, topology, evaluate=evaluate, **dct)
    wanted = replace(
        wanted,
        data=replace(wanted.data, validation=str(folder / "data.h5")),
        checkpoint=replace(wanted.checkpoint, keep_best=False),
    )
    with open_session(wanted) as session:
        session.evaluate("validation")
        held = session.parts.exchange.masks
        assert held is None or (held.batches, *held.counts()) == (0, 0, 0, 0), "only training counts"
        reference = masking(session, wanted)
        batches = global_batches(session, session.total_steps)
        for batch in batches:
            reference.step_of(batch)
        split = session.parts.splits["validation"]
        loader = Loader(split.dataset, split.order, prefetch=0)
        with loader.batches(0, 0, split.order.n_batches) as stream:
            whole = [join([batch]) for batch in stream]
    labels, weights = (np.concatenate([getattr(b, name) for b in whole]) for name in ("label", "weight"))
    reference.learns = False
    expected = {}
    for masks in (True, False):
        reference.masks = masks
        logits = np.concatenate([reference.logits_of(b) for b in whole])
        expected[masks] = metrics.evaluate(logits, labels, weights)["logloss"]
    assert abs(expected[True] - expected[False]) > 1e-4
    assert commands.train(wanted) == 0
    found = json.loads((folder / "run/summary.json").read_text())["eval"]
    other = "unmasked" if evaluate else "masked"
    assert found["logloss"] == pytest.approx(expected[evaluate], rel=1e-5)
    assert found[f"{other}_logloss"] == pytest.approx(expected[not evaluate], rel=1e-5)
    assert 0 < found[f"{other}_auc"] < 1
    assert ("masked_auc" in found) != ("unmasked_auc" in found)
    for masks in (True, False):
        reads = replace(wanted.exchange, dct=replace(wanted.exchange.dct, evaluate=masks))
        again = commands.evaluate(replace(wanted, exchange=reads, train=replace(wanted.train, batch_size=7)))
        assert again["logloss"] == pytest.approx(expected[masks], rel=1e-5)


def test_zeros_are_not_sent() -> None:
    """Where most vectors are zero, as of ids without a row, a threshold is no less than what can be told from zero."""
    thresholds = FeatureMasks(leg_of("a"), Thresholding(density=0.1, every=100, evaluates=True))
    spans = Spans(np.array([0]), np.array([0]), np.array([0]), np.array([400]), np.array([[400]]))
    sent = np.zeros(400, np.float32)
    sent[::40] = np.arange(1, 11)
    for _ in range(2):
        ((positions, chosen),) = thresholds.picked(sent, spans, train=True)
        assert positions.tolist() == list(range(0, 400, 40)) and chosen.tolist() == list(range(1, 11))
    assert (thresholds.kept, thresholds.drifts) == (20, 0)


def test_thresholds_of_other_ranks() -> None:
    """Who has a stream goes on with its own threshold, found or not; who has it now, with the mean of those."""
    how = Thresholding(density=0.1, every=100, evaluates=True)
    before = [FeatureMasks(leg_of("ab"), how) for _ in range(2)]
    before[0].tau_GS[0] = 1.0, np.nan
    before[1].tau_GS[0] = 3.0, 5.0
    saved = json.loads(json.dumps([{}, *(masks.saved() for masks in before)]))
    nan = np.nan
    for rank, wanted in ((0, [5, 2, nan]), (1, [nan, 1, nan]), (2, [5, 3, nan]), (None, [5, 2, nan])):
        after = FeatureMasks(leg_of("bac"), how)
        after.restore(saved, rank)
        np.testing.assert_array_equal(after.tau_GS[0], wanted)


def test_thresholds_of_another_density_are_found_anew() -> None:
    """Whole vectors stay whole, and those that crossed whole are thresholded."""
    whole, thresholded = (Thresholding(density, every=100, evaluates=True) for density in (1.0, 0.1))
    for before, now, taus in ((thresholded, whole, [0, 0]), (whole, thresholded, [np.nan, np.nan])):
        saved, after = FeatureMasks(leg_of("ab"), before), FeatureMasks(leg_of("ab"), now)
        saved.tau_GS[0] = (2.0, 3.0) if before is thresholded else (0.0, 0.0)
        after.restore([saved.saved()], 0)
        np.testing.assert_array_equal(after.tau_GS[0], taus)


@pytest.mark.parallel([1, 2, 3, 4])
def test_auto_chooses_among_thresholded_vectors_and_partial_results(folder: Path) -> None:
    """By bytes, which the ledger confirms: gradients to their padding, positions as they lie."""
    write_data(folder / "data.h5", samples=4000)
    densities, topologies = (0.125, 1.0), itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    cases = list(zip(itertools.product(densities, ("deepfm", "fm")), topologies, strict=False))
    for (density, model), topology in shared_out(cases):
        exchange = {
            "form": "auto",
            "auto_steps": 4,
            "codec": "dct",
            "dct": {"density": density, "threshold": "vector", "values": "bf16"},
        }
        wanted = config_for(
            folder,
            topology=topology,
            model={"name": model, "pooling": {}},
            exchange=exchange,
            train={"dtype": "float32", "steps": 4, "batch_size": 1000},
        )
        with open_session(wanted) as session:
            before = session.parts.world.total_wire_bytes().sum(axis=1)
            for step in session.steps():
                step.run()
            spent = (session.parts.world.total_wire_bytes().sum(axis=1) - before)[1:3] / session.step
            told = session.parts.chosen.found
        predicted, single = told["predicted_bytes_per_step"], told["single_form_bytes_per_step"]
        assert "rows" not in {*told["forms"].values(), *single}
        assert sum(predicted.values()) <= min(single.values()) * 1.005
        assert spent[1] == pytest.approx(predicted["gradients"], rel=0.01, abs=16 * 128)
        # Positions of what crosses whole are written, too, and of few elements they take more than of many.
        assert spent[0] == pytest.approx(predicted["values"], rel=0.15, abs=16 * 128)


@pytest.mark.parallel([1, 2, 3])
def test_a_run_says_where_next_to_nothing_is_left_to_threshold(folder: Path) -> None:
    write_data(folder / "data.h5")
    of_vectors = {"threshold": "vector", "density": OF_VECTOR, "every": 1000}
    for model, form, dct, said in (
        ("fm", "partial", {}, "nothing of this model is thresholded"),
        ("lr", "pooled", {}, "nothing of this model is thresholded"),
        ("dcn", "partial", {}, None),
        ("dcn", "pooled", of_vectors, "leaves 2 of the 6 elements"),
        ("dcn", "pooled", {**of_vectors, "density": 0.5}, None),
        ("lr", "pooled", {**of_vectors, "density": 1.0}, None),
    ):
        wanted = config(folder, roles_for(MPI.COMM_WORLD.size)[-1], model, form, **dct)
        wanted = replace(wanted, data=replace(wanted.data, validation=str(folder / "data.h5")))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session = open_session(wanted)
        told = [str(w.message) for w in caught if str(w.message).startswith("exchange.")]
        with session:
            alone = session.topology.rank == 0 and said is not None
            assert len(told) == alone and all(said in text for text in told), (model, form, told)
            otherwise = evaluated_otherwise(session, "validation")
            assert bool(otherwise) == (model == "dcn")


@pytest.mark.parallel([1, 2])
def test_who_reads_a_run_is_told_what_it_may_see_otherwise(folder: Path) -> None:
    """Where rows are dealt to owners, each has its own part of a bag; not where tables are whole."""
    write_data(folder / "data.h5")
    wanted = config(folder, {"mode": "fused"})
    with open_session(
        replace(wanted, data=replace(wanted.data, test=str(folder / "data.h5"))), reading=True
    ) as session:
        size = session.topology.size
        for then, whole, auto in itertools.product((size, size + 1), ((), ("history", "tag")), (False, True)):
            checkpoint = SimpleNamespace(state={"thresholds": [{"batches": 0}] * then})
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                advise_reader(session, checkpoint, auto=auto, whole=whole)
            told = " ".join(str(w.message) for w in caught)
            assert ("form is 'auto'" in told) == auto
            assert ("several ids (history, tag)" in told) == (then != size and not whole)
