"""Codecs of values and gradients: what arrives, its bytes, and training with what was rounded on the way."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import Tensor

from hpcrec.build.session import open_session
from hpcrec.comm.sizes import padded_bytes
from hpcrec.comm.world import World
from hpcrec.exchange.codec import Bundles, Codec, make_codec, wire_item_bytes
from hpcrec.training.session import Session
from tests.reference import Reference
from tests.together import on_every_rank
from tests.training.runs import config_for, gather_tables, global_batches, reference_for, write_data
from tests.training.test_equivalence import roles_for
from tests.training.test_host_sums import on_hosts

HALVES = ("bf16", "fp16")
BLOCK = 128


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """What is read of float32 values that were written so, by torch."""
    if kind == "bf16":
        return torch.from_numpy(values).bfloat16().float().numpy()
    out = np.empty_like(values)
    for at in range(0, len(values), BLOCK):
        block = values[at : at + BLOCK]
        largest = np.float32(np.abs(block).max())
        out[at : at + BLOCK] = (block / (largest or np.float32(1))).astype(np.float16).astype(np.float32) * largest
    return out


def written_bytes(n: int, kind: str) -> int:
    return 2 * n + (4 * -(-n // BLOCK) if kind == "fp16" else 0)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("windows", [True, False])
@pytest.mark.parametrize("whole", [False, True])
def test_what_arrives_and_its_bytes(kind: str, windows: bool, whole: bool) -> None:
    """``whole``: between ranks of odd numbers, and of even ones, as it is."""
    world = World(None, lambda host_of: ((0,), tuple(range(len(host_of)))), windows=windows)
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    n_RR = np.random.default_rng(4).integers(0, 700, (size, size))
    n_RR[0, -1] = 0
    bytes_RR = padded_bytes(4 * n_RR)
    as_it_is = [r for r in range(size) if whole and (r - rank) % 2 == 0]
    codec = make_codec(kind, world.main, np.dtype(np.float32), as_it_is)
    for turn in range(3):  # memory is used in turns
        rngs = [[np.random.default_rng([turn, a, b]) for b in range(size)] for a in range(size)]
        values = [
            [rngs[a][b].standard_normal(n_RR[a, b]).astype(np.float32) * 10**b for b in range(size)]
            for a in range(size)
        ]
        behind = 96 * turn
        message = codec.message(bytes_RR[rank], behind)
        at = 0
        for b in range(size):
            message[at : at + n_RR[rank, b]] = values[rank][b]
            at += bytes_RR[rank, b] // 4
        before = world.ledger.snapshot().sum()
        received = codec.alltoallv(message, bytes_RR[rank], bytes_RR[:, rank], "values", behind)
        counted, at = world.ledger.snapshot().sum() - before, 0
        sides = (Bundles(bytes_R, np.arange(size)) for bytes_R in (bytes_RR[rank], bytes_RR[:, rank]))
        passed = codec.pass_on(message, *sides, "values")
        with on_every_rank():
            assert (received.dtype, received.nbytes) == (np.float32, bytes_RR[:, rank].sum() + behind)
            for a in range(size):
                padded = np.zeros(bytes_RR[a, rank] // 4, np.float32)
                padded[: n_RR[a, rank]] = values[a][rank]
                expected = padded if a in as_it_is else rounded(padded, kind)
                np.testing.assert_array_equal(received[at : at + len(padded)], expected)
                at += len(padded)
            np.testing.assert_array_equal(passed, received[:at])
            ns = (bytes_RR[rank] // 4).tolist()
            exact = np.array([4 * n if b in as_it_is else written_bytes(n, kind) for b, n in enumerate(ns)])
            assert counted == padded_bytes(exact)[np.arange(size) != rank].sum()
    world.close()


def test_bytes_of_an_element() -> None:
    single, double = np.dtype(np.float32), np.dtype(np.float64)
    assert [wire_item_bytes(kind, single) for kind in ("fp32", "bf16", "fp16")] == [4, 2, 2 + 4 / 128]
    assert wire_item_bytes("fp32", double) == 8


class Rounding(Reference):
    """The reference, with pooled vectors rounded to bf16, and their gradients."""

    def _pool(self, *arguments: Any) -> Tensor:
        return _Through.apply(super()._pool(*arguments))  # type: ignore[no-untyped-call]


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return values.bfloat16().float()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient.bfloat16().float()


def config(folder: Path, *, shard: str = "auto", **sections: Any) -> Any:
    return config_for(
        folder,
        embedding={
            "optimizer": {"name": "sgd", "lr": 0.1},
            "tables": {table: {"shard": shard} for table in ("user", "item", "tag")},
        },
        train={"dtype": "float32", "steps": 4, **sections.pop("train", {})},
        **sections,
    )


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("model", ["lr", "deepfm", "dcn"])
def test_training_with_rounded_vectors(folder: Path, model: str) -> None:
    """What crosses is rounded once, on its way, whichever ranks it crosses between, and nothing else is."""
    write_data(folder / "data.h5")
    for topology in roles_for(MPI.COMM_WORLD.size):
        wanted = config(
            folder,
            shard="table",  # of bags that are split over owners each part would be rounded
            topology=topology,
            model={"name": model, "pooling": {}},
            exchange={"form": "pooled", "codec": "bf16"},
        )
        with open_session(wanted) as session:
            exact, reference = reference_for(session, wanted), reference_for(session, wanted)
            reference.__class__ = Rounding
            batches = global_batches(session, session.total_steps)
            for step, batch in zip(session.steps(), batches, strict=False):
                loss = float(session.parts.world.main.allreduce(np.array([step.run()]))[0])
                expected, _ = reference.step(batch)
                exact.step(batch)
                assert loss == pytest.approx(float(expected), rel=2e-5)
            for table, rows in gather_tables(session).items():
                # a gradient that was summed in another order may be rounded the other way
                away, of_exact = (np.abs(rows - of.rows(table)) for of in (reference, exact))
                assert away.max() < 2e-4 and of_exact.max() > 1e-5
                assert np.median(away[of_exact > 0]) < 0.1 * np.median(of_exact[of_exact > 0])


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("codec", HALVES)
def test_every_form_trains(folder: Path, codec: str) -> None:
    """Near to what it is without the codec, and not the same."""
    write_data(folder / "data.h5")
    models = itertools.cycle(("lr", "fm", "deepfm", "wide_deep", "dcn", "dlrm"))
    roles = itertools.cycle(roles_for(MPI.COMM_WORLD.size))
    ways = list(itertools.product(("rows", "pooled", "partial", "auto"), ("routed", "read"), (False,)))
    ways += [("pooled", "routed", True)] * (codec == "bf16")
    for (form, ids, copies), model in zip(ways, models, strict=False):
        topology = {"mode": "fused"} if copies else next(roles)
        found = []
        for kind in ("fp32", codec):
            exchange = {"form": form, "ids": ids, "codec": kind, "replicate_rows": 25 if copies else 0}
            wanted = config(folder, topology=topology, model={"name": model}, exchange=exchange)
            with open_session(wanted) as session:
                losses = [session.parts.world.main.allreduce(np.array([s.run()]))[0] for s in session.steps()]
                found.append((np.array(losses), gather_tables(session)))  # whose copies are alike
        (exact, exact_rows), (losses, rows) = found
        np.testing.assert_allclose(losses, exact, rtol=5e-3)
        assert (losses != exact).any()
        for table, of in rows.items():
            np.testing.assert_allclose(of, exact_rows[table], rtol=0, atol=5e-3)


@pytest.mark.parallel([2, 3, 4])
@pytest.mark.in_turn
def test_bytes_of_a_run(folder: Path) -> None:
    """By the ledger, as ``auto`` predicts them; of the bytes of floats the codec's share, but for padding."""
    write_data(folder / "data.h5", samples=4000)
    ways = list(itertools.product(("rows", "partial", "auto"), HALVES))[MPI.COMM_WORLD.size - 2 :: 3]
    for (form, codec), topology in zip(ways, itertools.cycle(roles_for(MPI.COMM_WORLD.size)), strict=False):
        spent = {}
        chosen = {"auto_steps": 4, "auto_copies": 0} if form == "auto" else {}
        for kind in ("fp32", codec):
            wanted = config(
                folder,
                topology=topology,
                model={"name": "deepfm"},
                exchange={"form": form, "codec": kind, **chosen},
                train={"batch_size": 1000, "steps": 4},
            )
            with open_session(wanted) as session:
                spent[kind] = of_steps(session)
                if form == "auto":
                    predicted = session.parts.chosen.found["predicted_bytes_per_step"]
                    np.testing.assert_allclose(
                        spent[kind], [predicted["values"], predicted["gradients"]], atol=16 * 128
                    )
        if form != "auto":  # which may choose other forms
            ratio = wire_item_bytes(codec, np.dtype(np.float32)) / 4
            np.testing.assert_allclose(spent[codec], ratio * spent["fp32"], atol=16 * 128)


@pytest.mark.parallel([3, 4])
@pytest.mark.parametrize(
    "case", [("rows", "bf16"), ("pooled", "fp16"), ("partial", "bf16"), ("auto", "fp16"), ("pooled", "dct")]
)
@pytest.mark.filterwarnings("ignore:exchange.dct.density = .* leaves")
def test_by_levels_what_stays_in_a_host_is_as_it_is(
    case: tuple[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the ledger: inside hosts the bytes of floats, between them the codec's; and as ``auto`` predicts them."""
    form, codec = case
    write_data(folder / "data.h5", samples=4000)
    on_hosts(monkeypatch, (0, 0, 1, 1)[: MPI.COMM_WORLD.size])
    spent, chosen = {}, {"auto_steps": 4, "auto_copies": 0} if form == "auto" else {}
    for kind in ("fp32", codec):
        cut = {"dct": {"density": 0.25, "threshold": "vector", "values": "bf16"}} if kind == "dct" else {}
        wanted = config(
            folder,
            shard="row",
            topology={"mode": "fused"},
            model={"name": "deepfm"},
            exchange={"form": form, "codec": kind, "path": "levels", **chosen, **cut},
            train={"batch_size": 1000, "steps": 4},
        )
        with open_session(wanted) as session:
            spent[kind] = of_steps(session, by_level=True)
            if form == "auto":
                found = session.parts.chosen.found
                every, far = found["predicted_bytes_per_step"], found["predicted_cross_host_bytes_per_step"]
                predicted = [[every[tag] - far[tag], far[tag]] for tag in ("values", "gradients")]
                np.testing.assert_allclose(spent[kind], predicted, atol=16 * 128)
    if form == "auto":  # which may choose other forms
        return
    np.testing.assert_allclose(spent[codec][:, 0], spent["fp32"][:, 0], atol=16 * 128)
    if codec == "dct":
        assert (spent[codec][:, 1] < np.array([0.4, 0.3]) * spent["fp32"][:, 1] + 16 * 128).all(), spent
    else:
        share = wire_item_bytes(codec, np.dtype(np.float32)) / 4
        np.testing.assert_allclose(spent[codec][:, 1], share * spent["fp32"][:, 1], atol=16 * 128)


def of_steps(session: Session, *, by_level: bool = False) -> np.ndarray:
    """Bytes a step of values and gradients; ``by_level``: of each inside hosts, and between them."""
    world = session.parts.world
    before = world.total_wire_bytes()[1:3]
    for step in session.steps():
        step.run()
    spent: np.ndarray = (world.total_wire_bytes()[1:3] - before) / session.step
    return spent if by_level else spent.sum(axis=1)


def test_a_message_has_the_room_that_was_asked_for() -> None:
    world = World(MPI.COMM_SELF, lambda _: ((0,), (0,)))
    codec: Codec = make_codec("fp16", world.main, np.dtype(np.float32))
    assert codec.message(np.array([128]), 64).shape == (48,)
    world.close()
