"""Copies of rows: native = reference bit for bit; reference = one copy after the other, in Python."""

import math
from typing import Any

import numpy as np
import pytest
from all_backends import DTYPES, ROWS, same_from_all

from hpcrec import kernels
from hpcrec.kernels.copies import CopyTable
from hpcrec.kernels.reference_copies import RECORD

RULES = ("sgd", "adagrad", "rowwise_adagrad")
N, B = 700, 3


def records(rng: np.random.Generator, n: int = N) -> np.ndarray:
    """Of copies of all kinds: without values, without ticks, with one, with many."""
    found = kernels.copy_records(n)
    of = kernels.record_fields(found)
    of["has_values"] = rng.random(n) < 0.7
    of["ticks"] = rng.choice([0, 1, 2, 7], n)
    of["scale"] = rng.choice([1.0, 0.3], n)
    of["at"], of["since"], of["bundle"] = rng.integers(0, 9, n), rng.integers(0, 9, n), rng.integers(0, B, n)
    return found


def table(rng: np.random.Generator, rule: Any, width: int, dtype: Any, n: int = N) -> CopyTable:
    rows = rng.standard_normal((n, 2, width)).astype(dtype)
    rows[rng.random(n) < 0.1, 1] = rng.choice([0.0, -0.0])
    numbers = None if rule == "sgd" else rng.random((n, 2)).astype(dtype)
    return CopyTable(rule, np.array([0.1, 0.02, 1.5]), np.array([1e-8, 1e-3, 0.1]), np.array([math.inf, 0.5, 2.0]),
                     rows, numbers)  # fmt: skip


def slots(rng: np.random.Generator, kind: str) -> np.ndarray:
    return {
        "some": lambda: np.where(rng.random(500) < 0.2, -1, rng.permutation(N)[:500]),
        "all": lambda: rng.permutation(N),
        "none": lambda: np.full(9, -1),
        "empty": lambda: np.zeros(0, np.int64),
    }[kind]()


def of_table(of: CopyTable) -> tuple[np.ndarray, ...]:
    return of.rows, np.zeros(0) if of.numbers is None else of.numbers


@pytest.mark.parametrize("kind", ["some", "all", "none", "empty"])
def test_records(kind: str) -> None:
    own = slots(np.random.default_rng(1), kind)
    kept = own[own >= 0]

    def run() -> tuple[np.ndarray, ...]:
        found = records(np.random.default_rng(2))
        has = kernels.kept_copies(found, own, step=9)
        young = kernels.kept_copies(found, own, step=9, max_age=4)
        over = kernels.tick_copies(found, own, step=9, scale=0.7, most=2)
        middle = found.copy()
        ticks = kernels.end_ticks(found, kept[::2].copy(), forget=False)
        others = kernels.end_ticks(found, kept[1::2].copy(), forget=True)
        return has, young, over, middle, ticks, others, found

    has, young, over, middle, ticks, others, after = same_from_all(run)
    before = kernels.record_fields(records(np.random.default_rng(2)))
    middle, after = kernels.record_fields(middle), kernels.record_fields(after)
    for k, slot in enumerate(own):
        old = before[slot]
        assert has[k] == (slot >= 0 and old["has_values"])
        assert young[k] == (slot >= 0 and old["has_values"] and 9 - old["at"] < 4)
        if slot >= 0:
            new = middle[slot]
            assert (new["ticks"], new["scale"]) == (old["ticks"] + 1, 0.7)
            assert new["since"] == (old["since"] if old["ticks"] else 9)
            for name in ("has_values", "at", "bundle"):
                assert new[name] == old[name]
    assert over.tolist() == [k for k, slot in enumerate(own) if slot >= 0 and middle[slot]["ticks"] > 2]
    assert ticks.tolist() == middle["ticks"][kept[::2]].tolist()
    assert others.tolist() == middle["ticks"][kept[1::2]].tolist()
    assert (after["ticks"][kept] == 0).all()
    assert (after["has_values"][kept[1::2]] == 0).all()
    assert after["has_values"][kept[::2]].tolist() == middle["has_values"][kept[::2]].tolist()
    untouched = np.setdiff1d(np.arange(N), kept)
    assert after[untouched].tobytes() == before[untouched].tobytes()


@pytest.mark.parametrize(("width", "dtype"), ROWS)
@pytest.mark.parametrize("rule", RULES)
def test_native_is_reference(rule: str, width: int, dtype: Any) -> None:
    for kind in ("some", "all", "empty"):
        own = slots(np.random.default_rng(width), kind)
        kept = own[own >= 0]

        def run(own: np.ndarray = own, kept: np.ndarray = kept) -> tuple[np.ndarray, ...]:
            rng = np.random.default_rng(3)
            found, of = records(rng), table(rng, rule, width, dtype)
            sent = rng.random(len(own)) < 0.4
            values = rng.standard_normal((len(own), width)).astype(dtype)
            sums = None if rule == "sgd" else rng.random(len(own)).astype(dtype)
            kernels.read_copies(found, of, own, sent, values, sums, step=8, scale=0.5)
            gradients = rng.standard_normal((len(own), width)).astype(dtype)
            gradients[rng.random(len(own)) < 0.2] = rng.choice([0.0, -0.0])
            kernels.tick_copies(found, own, step=8, scale=0.9, most=3)
            kernels.add_to_copies(found, of, own, gradients)
            added = [a.copy() for a in of_table(of)]
            held = kernels.sums_of_copies(found, of, kept[::3].copy())
            pushed = kernels.sums_of_copies(found, of, kept[1::3].copy(), scale=0.9)
            both = [a for a in (*held, *pushed) if a is not None]
            return (values, *added, *both, *of_table(of), found)

        same_from_all(run)


def of_one(of: CopyTable, record: Any, slot: int, scale: float) -> np.ndarray:
    """What its ticks make of a copy, in Python's doubles."""
    base, total = of.rows[slot].astype(np.float64)
    rate = of.lr_B[record["bundle"]] * scale * np.ones(len(base))
    if of.numbers is not None:
        eps, n = of.eps_B[record["bundle"]], int(record["ticks"])
        before, squares = (float(x) for x in of.numbers[slot])
        grown = np.full(len(base), squares)
        if of.rule == "adagrad":
            mean = (total**2).mean()
            grown = total**2 * (squares / mean if mean > 0 else 0.0)
        half = grown / (2 * n)
        of_sums = 2 * rate / (np.sqrt(before + half) + np.sqrt(before + grown + half) + 2 * eps)
        rate = rate / (np.sqrt(before + grown) + eps) if n == 1 else of_sums
    bound = of.bound_B[record["bundle"]]
    return (base - rate * total).clip(-bound, bound)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-13)])
@pytest.mark.parametrize("rule", RULES)
def test_what_is_read_added_and_pushed(rule: str, dtype: Any, tolerance: float) -> None:
    rng, width = np.random.default_rng(4), 5
    found, of, own = records(rng), table(rng, rule, width, dtype), slots(rng, "some")
    fields, close = kernels.record_fields(found), {"rtol": tolerance, "atol": tolerance}
    sent = rng.random(len(own)) < 0.4
    came = rng.standard_normal((len(own), width)).astype(dtype)
    sums = None if rule == "sgd" else rng.random(len(own)).astype(dtype)
    values, before, rows = came.copy(), fields.copy(), of.rows.copy()
    kernels.read_copies(found, of, own, sent, values, sums, step=8, scale=0.5)
    for k, slot in enumerate(own):
        if slot < 0:
            assert (values[k] == came[k]).all()
            continue
        comes = sent[k]
        assert (of.rows[slot, 0] == (came[k] if comes else rows[slot, 0])).all()
        assert fields[slot]["has_values"] == (1 if comes else before[slot]["has_values"])
        assert fields[slot]["at"] == (8 if comes else before[slot]["at"])
        scale = 0.5 if comes else before[slot]["scale"]
        shown = of_one(of, before[slot], slot, scale) if before[slot]["ticks"] else of.rows[slot, 0]
        np.testing.assert_allclose(values[k], shown, **close)
        if comes and of.numbers is not None and sums is not None:
            assert of.numbers[slot, 0] == sums[k]
    gradients = rng.standard_normal((len(own), width)).astype(dtype)
    rows, numbers = of.rows.copy(), None if of.numbers is None else of.numbers.copy()
    kernels.tick_copies(found, own, step=8, scale=0.9, most=3)
    kernels.add_to_copies(found, of, own, gradients)
    kept = own[own >= 0]
    for k, slot in enumerate(own):
        if slot >= 0:
            first = fields[slot]["ticks"] == 1
            assert (of.rows[slot, 1] == (gradients[k] if first else rows[slot, 1] + gradients[k])).all()
            if numbers is not None and of.numbers is not None:
                squares = (gradients[k].astype(np.float64) ** 2).mean() + (0 if first else numbers[slot, 1])
                np.testing.assert_allclose(of.numbers[slot, 1], squares, **close)
    wanted = np.array([of_one(of, fields[slot], slot, 0.9) for slot in kept])
    grown = None if of.numbers is None else of.numbers.sum(axis=1)
    totals, squares = kernels.sums_of_copies(found, of, kept, scale=0.9)
    assert (totals == of.rows[kept, 1]).all()
    np.testing.assert_allclose(of.rows[kept, 0], wanted, **close)
    assert (squares is None) == (rule == "sgd")
    if squares is not None and of.numbers is not None and grown is not None:
        assert (of.numbers[kept, 0] == grown[kept]).all()
        mean = (totals.astype(np.float64) ** 2).mean(axis=1) if rule == "adagrad" else np.ones(len(kept))
        np.testing.assert_allclose(squares * mean, np.where(mean > 0, of.numbers[kept, 1], 0), **close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_gradient_keeps_the_sign_of_its_zeros(dtype: Any) -> None:
    def run() -> np.ndarray:
        found = kernels.copy_records(1)
        one = np.ones(1)
        of = CopyTable("sgd", one, one, one, np.full((1, 2, 2), 7, dtype))
        kernels.tick_copies(found, np.zeros(1, np.int64), step=1, scale=1.0, most=1)
        kernels.add_to_copies(found, of, np.zeros(1, np.int64), np.array([[-0.0, 0.0]], dtype))
        return of.rows

    assert np.signbit(same_from_all(run)[0, 1]).tolist() == [True, False]


def test_a_record_is_half_a_cache_line() -> None:
    found = kernels.copy_records(3)
    assert (found.shape, found.dtype, RECORD.itemsize) == ((3, 4), np.int64, 32)
    assert found.ctypes.data % 64 == 0
    kernels.record_fields(found)["has_values"][1] = 5
    assert found[1].tolist() == [0, 0, 0, 5]


@pytest.mark.parametrize("name", ["reference", "native"])
def test_refused(name: Any) -> None:
    kernels.use(name)
    rng = np.random.default_rng(5)
    found, of, one = records(rng), table(rng, "sgd", 4, np.float32), np.zeros(1, np.int64)
    value, none = np.zeros((1, 4), np.float32), np.zeros(1, bool)
    for bad in (-2, N, 2**62, -(2**63), 2**63 - 1):
        wrong = np.array([bad])
        with pytest.raises(ValueError, match=r"slots.*allowed are"):
            kernels.kept_copies(found, wrong, step=1)
        with pytest.raises(ValueError, match=r"slots.*allowed are"):
            kernels.read_copies(found, of, wrong, none, value, step=1, scale=1.0)
    for run in (kernels.sums_of_copies, lambda *given: kernels.end_ticks(given[0], given[2], forget=True)):
        with pytest.raises(ValueError, match=r"slots\[0\] is -1; allowed are 0 <= value < 700"):
            run(found, of, np.array([-1]))
    with pytest.raises(ValueError, match=r"values is float64\[1, 4\]; needed is .* float32\[1, 4\]"):
        kernels.read_copies(found, of, one, none, value.astype(np.float64), step=1, scale=1.0)
    with pytest.raises(ValueError, match=r"sent is int64\[1\]; needed is .* bool\["):
        kernels.read_copies(found, of, one, one, value, step=1, scale=1.0)
    with pytest.raises(ValueError, match=r"accumulators are given; the rule is sgd"):
        kernels.read_copies(found, of, one, none, value, np.zeros(1, np.float32), step=1, scale=1.0)
    with pytest.raises(ValueError, match=r"numbers are missing; the rule is adagrad"):
        kernels.add_to_copies(found, CopyTable("adagrad", of.lr_B, of.eps_B, of.bound_B, of.rows), one, value)
    with pytest.raises(ValueError, match=r"rule is 'adam'; allowed are sgd, adagrad, rowwise_adagrad"):
        CopyTable("adam", of.lr_B, of.eps_B, of.bound_B, of.rows)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bound_B has a number that is not above 0"):
        CopyTable("sgd", of.lr_B, of.eps_B, 0 * of.lr_B, of.rows)
    with pytest.raises(ValueError, match=r"eps_B is float64\[2\]; needed is .* float64\[3\]"):
        CopyTable("sgd", of.lr_B, of.eps_B[:2], of.lr_B, of.rows)
    with pytest.raises(ValueError, match=r"records shares memory with slots"):
        kernels.end_ticks(found, found.reshape(-1)[:1], forget=True)
    with pytest.raises(ValueError, match=r"rows shares memory with gradients"):
        kernels.add_to_copies(found, of, one, of.rows[0, :1])
    with pytest.raises(ValueError, match=r"step is 2147483648; allowed are 0 to 2147483647"):
        kernels.kept_copies(found, one, step=2**31)
    kernels.record_fields(found)["bundle"][0] = B
    with pytest.raises(ValueError, match=r"bundle.* 3; allowed are 0 <= value < 3"):
        kernels.read_copies(found, of, one, none, value, step=1, scale=1.0)
    kernels.use("native")
