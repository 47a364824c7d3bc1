"""What benchmarks/des.py counts and claims: bytes are the ledger's, predictions and intervals as its docstrings say."""

import sys
from pathlib import Path

import numpy as np
import pytest
from pytest_mpi import parallel_assert

import hpcrec
from hpcrec.comm.ledger import TAGS
from tests.training.runs import BATCH, write_data

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "on_ranks")]
import rank  # noqa: E402 - of the benchmark, which is no package
from _report import interval  # noqa: E402
from des_parts import auc_part, bytes_part, cells, hosts_part, shapes  # noqa: E402

del sys.path[:2]
ONEHOT = cells.SHAPES[0]


@pytest.mark.parallel([4])
@pytest.mark.parametrize("form", cells.FORMS)
def test_bytes_are_the_ledgers_by_receiver(folder: Path, form: str) -> None:
    write_data(folder / "data.h5")
    steps = 4
    small = [f"train.batch_size={BATCH}", f"train.steps={steps}"]
    job = cells.job(ONEHOT, folder / "data.h5", "fm", "routed", form, settings=small, again=True)
    assert job.pop("kind") == "train"
    found = rank.train(**job)
    with hpcrec.open_session(job["config"], job["settings"]) as session:
        world = session.parts.world
        before_T2 = world.total_wire_bytes()
        for step in session.steps():
            step.run()
        counted_T = (world.total_wire_bytes() - before_T2).sum(axis=1)
    bytes_TRR = np.array(found["bytes_TRR"]) * steps
    np.testing.assert_allclose(bytes_TRR.sum(axis=(1, 2)), counted_T, rtol=0, atol=1e-6)
    by_tag = dict(zip(TAGS, bytes_TRR, strict=True))
    owners, dense = slice(0, 2), slice(2, 4)
    for tag, sends, receives in (("ids", dense, owners), ("values", owners, dense), ("gradients", dense, owners)):
        within = by_tag[tag][sends, receives]
        some = bool((within > 0).all()) or form == "auto"  # which may have copied every table
        parallel_assert(some and within.sum() == by_tag[tag].sum(), msg=tag)
    parallel_assert(found["step_s"] > 0 and found["exchange_s"] > 0)


@pytest.mark.parallel([4])
def test_pairs_take_turns(folder: Path) -> None:
    write_data(folder / "data.h5")
    job = cells.pairs_job(ONEHOT, folder / "data.h5", "lr", ("rows", "partial"), 3, 2)
    assert job.pop("kind") == "pairs"
    found = rank.pairs(**{**job, "settings": [*job["settings"], f"train.batch_size={BATCH}"]})["step_s"]
    parallel_assert(list(found) == ["rows", "partial"] and all(len(s) == 3 and min(s) > 0 for s in found.values()))


def test_each_id_is_what_papers_count() -> None:
    assert bytes_part.each_id(ONEHOT, "lr", 26.0)["bytes"] == 2 * 4096 * 26 * 4
    assert bytes_part.each_id(ONEHOT, "fm", 26.0)["bytes"] == 2 * 4096 * 26 * 17 * 4


def test_claims_of_bytes() -> None:
    def rows(shape: cells.Shape, **by_form: int) -> list[cells.Row]:
        return [bytes_part.row(shape, "lr", "read", form, {"values": n}, 1.0) for form, n in by_form.items()]

    table = rows(ONEHOT, rows=100, pooled=300, partial=20, auto=21)
    table += rows(cells.SHAPES[2], rows=100, pooled=50, partial=60, auto=101)
    found = {c["id"]: c for c in bytes_part.claims(table)}
    assert found["des.saving.onehot.lr"]["value"] == pytest.approx(0.8)
    assert found["auto.saving.onehot.lr"]["value"] == pytest.approx(0.79)
    assert found["auto.saving.onehot.lr"]["holds"]
    assert not found["auto.saving.movielens.lr"]["holds"]
    assert found["auto.saving.multihot.dlrm"]["goal"] == ">= 0.687"
    assert found["auto.saving.multihot.dlrm"]["holds"] is None
    assert found["auto.regret"]["value"] == pytest.approx(101 / 50 - 1)


def test_pairs_that_were_not_rated() -> None:
    pairs_N2 = np.array([(1, 0), (1, 1), (1, 2), (2, 0), (2, 3), (3, 4), (3, 0)])
    user_N, item_N = shapes.labelled(pairs_N2)
    rated = {tuple(pair) for pair in pairs_N2.tolist()}
    every = list(zip(user_N.tolist(), item_N.tolist(), strict=True))
    assert every[:7] == [tuple(pair) for pair in pairs_N2.tolist()]
    assert [user for user, _ in every[7:]] == pairs_N2[:, 0].tolist()
    assert not rated & set(every[7:])


def test_claims_of_auc() -> None:
    single = auc_part.row(ONEHOT, "fm", "float32", {"rows": 0.7, "partial": 0.7002, "auto": 0.69995}, None)
    double = auc_part.row(ONEHOT, "fm", "float64", {"rows": 0.7, "partial": 0.7, "auto": 0.7}, None)
    found = {c["id"]: c for c in auc_part.claims([single, double])}
    gaps = {"des.auc_gap": 2e-4, "auto.auc_gap": 5e-5, "des.auc_gap.float64": 0.0, "auto.auc_gap.float64": 0.0}
    assert {name: c["value"] for name, c in found.items()} == pytest.approx(gaps)
    assert [name for name, c in found.items() if not c["holds"]] == ["des.auc_gap"]


def test_interval_of_a_median() -> None:
    # fewer than 6 of 20 fair coins fall heads with 0.0207, fewer than 7 with 0.0577
    assert interval(range(20)) == (5, 14)
    assert interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_predicted_time_of_links() -> None:
    bytes_TRR = np.zeros((len(TAGS), 4, 4))
    by_tag = dict(zip(TAGS, bytes_TRR, strict=True))
    by_tag["values"][:2, 2:] = 1000  # 2,000 leave each owner
    by_tag["gradients"][2:, :2] = 1000
    by_tag["gradients"][3, 0] = 4000  # 5,000 reach owner 0 and leave dense rank 3
    by_tag["dense"][3, 2] = 500  # leaves dense rank 3 too
    by_tag["control"][:] = 32
    points = [(1000, 0.001 + 0.01), (11000, 0.001 + 0.055)]  # 100,000 and 200,000 bytes a second
    assert hosts_part.bandwidth(6000, 0.001, points) == pytest.approx(150_000)
    expected = 4 * 0.001 + 2000 / 110_000 + 5500 / 145_000
    assert hosts_part.links_s(bytes_TRR, 0.001, points) == pytest.approx(expected)
