"""Rows of 16-bit elements: read exactly, moved as float32 rows are, rounded as an oracle in Python says; all backends.

The oracle rounds in float64, where a last place of either kind and 16 bits below it are exact.
"""

import copy
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from all_backends import assert_same_bits, bags, same_from_all, scattered_starts
from test_kernels_learn import OPTIMIZERS, SPECS, Occurrences, states_of

from hpcrec import kernels
from hpcrec.kernels import HalfRows, reference_half_rows
from hpcrec.kernels.backend import BACKENDS
from hpcrec.types import OptimizerSpec

KINDS = ("bf16", "fp16")
WIDTHS = (1, 4, 8, 10, 16, 32, 64, 100, 128, 256, 512)
BACKEND_NAMES = ("reference", "native", "emulated", "cuda")
LARGEST = {"bf16": 2.0**127 * (2 - 2**-7), "fp16": 65504.0}
PLACES = {"bf16": (7, -126), "fp16": (10, -14)}  # bits of a significand, least exponent of a normal number
TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16}
ALL_BITS = np.arange(2**16, dtype=np.uint16).reshape(-1, 64)
MASK = 2**64 - 1


# --- the oracle ------------------------------------------------------------------------------------------------------


def value_of(bits: int, kind: str) -> float:
    """The number that 16 bits stand for."""
    places, least = PLACES[kind]
    sign, magnitude = -1.0 if bits >> 15 else 1.0, bits & 0x7FFF
    exponent, fraction = magnitude >> places, magnitude & (2**places - 1)
    if exponent == 2 ** (15 - places) - 1:
        return math.nan if fraction else sign * math.inf
    whole = fraction + (2**places if exponent else 0)
    return sign * math.ldexp(whole, max(exponent, 1) - 1 + least - places)


def mixed(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def random_bits(seed: int, step: int, row: int, column: int) -> int:
    """16 random bits of an element."""
    key = mixed(row ^ mixed(mixed(seed & MASK) ^ step))
    x = ((key & 0xFFFFFFFF) + column // 2 * 0x9E3779B9) & 0xFFFFFFFF
    x = ((x ^ x >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ x >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    word = x ^ x >> 16 ^ key >> 32
    return word >> 16 if column % 2 else word & 0xFFFF


def last_places(values: np.ndarray, kind: str) -> np.ndarray:
    """The last place of each finite value: the distance of the numbers of this kind around it."""
    places, least = PLACES[kind]
    return np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, least) - places)


def rounded(values: np.ndarray, kind: str, random: np.ndarray | None) -> np.ndarray:
    """float32 values as float64 numbers of a kind: to the nearest, or up where their 16 bits and random ones carry."""
    with np.errstate(all="ignore"):
        bounded = np.clip(values.astype(np.float64), -LARGEST[kind], LARGEST[kind])
        unit = last_places(bounded, kind)
        whole = np.abs(bounded) / unit
        if random is None:
            whole = np.rint(whole)
        else:
            below = np.floor((whole - np.floor(whole)) * 2**16)
            whole = np.floor(whole) + (below + random >= 2**16)
        return np.where(np.isfinite(values), np.copysign(whole * unit, values), values)


def step_bits(rows: HalfRows, step: int, ids: np.ndarray) -> np.ndarray | None:
    if rows.seed is None:
        return None
    columns = range(rows.shape[1])
    return np.array([[random_bits(rows.seed, step, int(row), d) for d in columns] for row in ids]).reshape(
        len(ids), rows.shape[1]
    )


def half_rows(rng: np.random.Generator, n: int, width: int, kind: str, seed: int | None = 5) -> HalfRows:
    values = (rng.standard_normal((n, width)) * 10.0 ** rng.uniform(-7, 1, (n, width))).astype(np.float32)
    return kernels.to_half_rows(values, kind, seed=seed)


def copied(rows: HalfRows) -> HalfRows:
    return HalfRows(rows.bits.copy(), rows.kind, rows.seed)


def numbers(rng: np.random.Generator, n: int) -> np.ndarray:
    """float32 of all magnitudes, ties and their neighbours, and what is not finite."""
    any_bits = rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    near = ALL_BITS.astype(np.uint32).reshape(-1) << 16
    ties = np.concatenate([near + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).view(np.float32)
    halves = ALL_BITS.reshape(-1).view(np.float16).astype(np.float32)
    with np.errstate(all="ignore"):
        middle = (halves[:-1] + halves[1:]) / np.float32(2)
        around = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    small = (rng.standard_normal(n) * 2.0 ** rng.uniform(-50, -12, n)).astype(np.float32)
    found = np.concatenate([any_bits, ties, halves, middle, *around, small])
    return found[: found.size // 8 * 8].reshape(-1, 8)


# --- conversions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKEND_NAMES)
def test_each_backend_is_tested_here(backend: str) -> None:
    if not getattr(BACKENDS[backend], "available", lambda: True)():
        pytest.skip(f"{backend} cannot run here: no GPU that torch can use, or built without nvcc")
    kernels.use(backend)
    rows = kernels.to_half_rows(np.ones((2, 4), np.float32), "bf16")
    assert (rows.bits == 0x3F80).all()
    assert (kernels.from_half_rows(rows) == 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_all_bits_are_read_exactly(kind: str) -> None:
    found = same_from_all(lambda: np.nan_to_num(kernels.from_half_rows(HalfRows(ALL_BITS, kind)), nan=1.5))
    wanted = np.array([value_of(int(bits), kind) for bits in ALL_BITS.flat]).reshape(ALL_BITS.shape)
    assert_same_bits(found, np.nan_to_num(wanted.astype(np.float32), nan=1.5))
    theirs = torch.from_numpy(ALL_BITS.view(np.int16)).view(TORCH[kind]).float().numpy()
    assert np.array_equal(found, np.nan_to_num(theirs, nan=1.5))


@pytest.mark.parametrize("seed", [None, 0, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_a_kind_stay(kind: str, seed: int | None) -> None:
    """Whatever the random bits; every NaN becomes the same one."""
    values = kernels.from_half_rows(HalfRows(ALL_BITS, kind))
    found = same_from_all(lambda: kernels.to_half_rows(values, kind, seed=seed).bits)
    nan = {"bf16": 0x7FC0, "fp16": 0x7E00}[kind]
    assert_same_bits(found, np.where(np.isnan(values), np.uint16(nan), ALL_BITS))


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_is_torchs_but_stays_finite(kind: str) -> None:
    values = numbers(np.random.default_rng(1), 40_000)
    found = same_from_all(lambda: kernels.to_half_rows(values, kind, seed=None).bits)
    theirs = torch.from_numpy(values).to(TORCH[kind]).view(torch.int16).numpy().view(np.uint16)
    nan, too_large = np.isnan(values), np.isfinite(values) & (np.abs(values) > LARGEST[kind])
    rest = ~nan & ~too_large
    assert nan.any()
    assert too_large.any()
    assert (found[rest] == theirs[rest]).all()
    read = kernels.from_half_rows(HalfRows(found, kind))
    assert (read[too_large] == np.copysign(LARGEST[kind], values[too_large])).all()
    assert np.isnan(read[nan]).all()
    wanted = rounded(values, kind, None)
    assert ((read == wanted) | nan).all()


@pytest.mark.parametrize("width", [1, 2, 7, 64, 65, 130])
@pytest.mark.parametrize("kind", KINDS)
def test_stochastic_is_the_oracles(kind: str, width: int) -> None:
    values = numbers(np.random.default_rng(2), 3000).reshape(-1)
    values = np.random.default_rng(3).permutation(values)[: 4000 // width * width].reshape(-1, width)
    for seed, first in ((0, 0), (-3, 2**40)):
        found = same_from_all(lambda s=seed, f=first: kernels.to_half_rows(values, kind, seed=s, first_row=f).bits)
        random = step_bits(HalfRows(found, kind, seed), 0, first + np.arange(len(values)))
        read, wanted = kernels.from_half_rows(HalfRows(found, kind)), rounded(values, kind, random)
        nan = np.isnan(values)
        assert ((read == wanted) | nan).all()
        assert (np.signbit(read) == np.signbit(values))[~nan].all()
        assert np.isnan(read[nan]).all()


def test_pieces_draw_as_the_whole() -> None:
    values = np.random.default_rng(4).standard_normal((40, 6)).astype(np.float32)
    whole = kernels.to_half_rows(values, "bf16", seed=9).bits
    parts = [kernels.to_half_rows(values[a:b], "bf16", seed=9, first_row=a).bits for a, b in ((0, 7), (7, 40))]
    assert_same_bits(np.concatenate(parts), whole)
    assert (kernels.to_half_rows(values, "bf16", seed=8).bits != whole).any()


@pytest.mark.parametrize("kind", KINDS)
def test_stochastic_is_right_on_average(kind: str) -> None:
    """Over seeds, of each of many values: the share that goes up is the part below the last place."""
    n_seeds, rng = 4000, np.random.default_rng(5)
    values = (rng.standard_normal(96) * 10.0 ** rng.uniform(-6, 3, 96)).astype(np.float32)
    if kind == "fp16":
        assert (np.abs(values) < 2.0**-14).sum() > 10  # subnormal ones
    rows = values.reshape(4, 24)
    total = np.zeros(rows.shape)
    for seed in range(n_seeds):
        total += kernels.from_half_rows(kernels.to_half_rows(rows, kind, seed=seed))
    unit = last_places(rows.astype(np.float64), kind)
    part = np.abs(rows) / unit % 1.0
    error = (total / n_seeds - rows) / unit
    assert (np.abs(error) <= 4 * np.sqrt(part * (1 - part) / n_seeds) + 2.0**-16).all()
    assert np.abs(error).max() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_random_number_counts_once(kind: str) -> None:
    """Of all 2^16 of them, as many send a value up as the upper 16 bits of the part below its last place say."""
    values = numbers(np.random.default_rng(8), 3000).reshape(-1)
    values = values[np.abs(values) < LARGEST[kind]][::997]
    every = np.tile(np.arange(2**16, dtype=np.uint16), (8, 1))
    for chosen in values[: values.size // 8 * 8].reshape(-1, 8, 1):
        found = reference_half_rows.rounded(np.broadcast_to(chosen, every.shape), kind, every)
        unit = last_places(chosen.astype(np.float64), kind)
        read = np.abs(kernels.from_half_rows(HalfRows(found, kind)).astype(np.float64))
        ups = (read > np.floor(np.abs(chosen) / unit) * unit).sum(axis=1)
        assert (ups == np.floor(np.abs(chosen[:, 0]) / unit[:, 0] % 1.0 * 2**16)).all()


def test_elements_draw_apart() -> None:
    """Neighbours, rows and steps go up independently: counts over them are as of coins."""
    values = np.full((400, 64), 1 + 2.0**-9, np.float32)  # a quarter of bf16's last place
    spec, rows = OptimizerSpec(name="sgd"), kernels.to_half_rows(values, "bf16", seed=3)
    ups = [rows.bits == 0x3F81]
    for step in (1, 2, 3):
        rows.bits[:] = 0x3F80
        kernels.update(spec, rows, {}, np.arange(400), np.full((400, 64), -(2.0**-9), np.float32), lr=1.0, step=step)
        ups.append(rows.bits == 0x3F81)
    every = np.array(ups)  # [step, row, column]
    pairs = (
        (every[:, :, 0::2], every[:, :, 1::2]), (every[:, :, :-2], every[:, :, 2:]),
        (every[:, :-1], every[:, 1:]), (every[:-1], every[1:]),
    )  # fmt: skip
    assert abs(every.mean() - 0.25) <= 4 * math.sqrt(0.25 * 0.75 / every.size)
    for one, other in pairs:
        n = one.size
        assert abs((one & other).mean() - 1 / 16) <= 4 * math.sqrt(1 / 16 * 15 / 16 / n)
    for axes in ((0, 1), (0, 2), (1, 2)):
        counts, n = every.sum(axis=axes), every.size // every.sum(axis=axes).size
        assert (np.abs(counts - n / 4) <= 5 * math.sqrt(n * 0.25 * 0.75)).all()


# --- kernels ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_gather_is_that_of_float32(width: int, kind: str) -> None:
    rng, n = np.random.default_rng(width), 600 if width < 100 else 150
    rows = half_rows(rng, 300, width, kind)
    whole = kernels.from_half_rows(rows)
    index, offsets = bags(rng, n, 300, 6)
    options = {"weights": rng.standard_normal(index.size), "scale": rng.standard_normal(n)}
    options = {key: value.astype(np.float32) for key, value in options.items()}
    starts, size = scattered_starts(rng, n, width + 1)
    narrow = rng.standard_normal((300, 1)).astype(np.float32)
    besides = (None, kernels.Beside(narrow, starts + width))
    for weighted, scaled, start, beside in itertools.product((False, True), (False, True), (None, starts), besides):
        if beside is not None and start is None:
            continue
        given = {k: v for k, v in options.items() if (k == "weights" and weighted) or (k == "scale" and scaled)}

        def run(table, given=given, start=start, beside=beside):
            out = np.full(size, 7, np.float32)
            kernels.pooled_gather(table, index, offsets, out, out_start=start, beside=beside, **given)
            return out

        assert_same_bits(same_from_all(lambda run=run: run(rows)), run(whole))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 5, 8, 64, 100])
def test_max_is_that_of_float32(width: int, kind: str) -> None:
    rng = np.random.default_rng(width)
    rows = half_rows(rng, 300, width, kind)
    rows.bits[7] = 0x7FC1
    index, offsets = bags(rng, 500, 300, 6)

    def run(table):
        out, winners = np.full(500 * width, 7, np.float32), np.full((500, width), 7, np.int32)
        kernels.pooled_max(table, index, offsets, out, winners=winners)
        kernels.pooled_max(table, index, offsets, again := np.empty_like(out))
        return {"out": np.nan_to_num(out, nan=1e9), "again": np.nan_to_num(again, nan=1e9), "winners": winners}

    whole = kernels.from_half_rows(rows)
    assert np.isnan(whole).any()
    assert_same_bits(same_from_all(lambda: run(rows)), run(whole))


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_updates_are_those_of_float32_then_rounded(width: int, kind: str, seed: int | None) -> None:
    for name, occurrences in itertools.product(OPTIMIZERS, ("hot", "empty")):
        spec = replace(SPECS[name], bound=0.7 if occurrences == "hot" else math.inf)
        o = Occurrences(occurrences, 700 if width < 100 else 300, width, np.float32, n_rows=90)
        rows = half_rows(np.random.default_rng(width), 90, width, kind, seed)
        states = states_of(spec, o.rows)
        unique = o.grouping.unique

        def fused(rows=rows, states=states, o=o, spec=spec):
            new, moved = copied(rows), copy.deepcopy(states)
            kernels.merge_update(spec, new, moved, o.grouping, o.gradients, o.starts, weights=o.weights, lr=0.3, step=4)
            return {"rows": new.bits, **moved}

        def separate(rows=rows, states=states, o=o, spec=spec):
            new, moved = copied(rows), copy.deepcopy(states)
            merged = kernels.merge(o.grouping, o.gradients, o.starts, width, weights=o.weights)
            kernels.update(spec, new, moved, o.grouping.unique, merged, lr=0.3, step=4)
            return {"rows": new.bits, **moved}

        found = same_from_all(fused)
        assert_same_bits(same_from_all(separate), found)
        whole, its_states = kernels.from_half_rows(rows), copy.deepcopy(states)
        kernels.merge_update(
            spec, whole, its_states, o.grouping, o.gradients, o.starts, weights=o.weights, lr=0.3, step=4
        )
        read = kernels.from_half_rows(HalfRows(found["rows"], kind))
        wanted = rounded(whole[unique], kind, step_bits(rows, 4, unique))
        assert (read[unique] == wanted).all()
        untouched = np.setdiff1d(np.arange(90), unique)
        assert (found["rows"][untouched] == rows.bits[untouched]).all()
        assert_same_bits({key: found[key] for key in its_states}, its_states)


@pytest.mark.parametrize("width", [3, 16, 600])
@pytest.mark.parametrize("kind", KINDS)
def test_update_of_a_column_sharded_table(kind: str, width: int) -> None:
    """Row-wise Adagrad, by norms over all columns."""
    rng, spec, unique = np.random.default_rng(9), SPECS["rowwise_adagrad"], np.array([1, 4, 5])
    rows, merged = half_rows(rng, 7, width, kind), rng.standard_normal((3, width)).astype(np.float32)
    given = {"squared_norm": rng.random(3).astype(np.float32), "total_width": 4 * width, "lr": 0.2, "step": 6}

    def run(table):
        state = {"accumulator": np.full(7, 0.5, np.float32)}
        kernels.update(spec, table, state, unique, merged, **given)
        return state["accumulator"]

    def moved():
        new = copied(rows)
        return {"state": run(new), "rows": new.bits}

    found, whole = same_from_all(moved), kernels.from_half_rows(rows)
    assert_same_bits(found["state"], run(whole))
    wanted = rounded(whole[unique], kind, step_bits(rows, 6, unique))
    assert (kernels.from_half_rows(HalfRows(found["rows"], kind))[unique] == wanted).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 10, 64, 130, 512, 1030])
def test_long_sums_and_any_order_of_threads(width: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of many blocks of occurrences; on the device, blocks and rows as they come."""
    o, spec = Occurrences("blocks", 700, width, np.float32, n_rows=9), SPECS["rowwise_adagrad"]
    rows = half_rows(np.random.default_rng(1), 9, width, kind)
    states = states_of(spec, o.rows)

    def run():
        new, moved = copied(rows), copy.deepcopy(states)
        kernels.merge_update(spec, new, moved, o.grouping, o.gradients, o.starts, lr=0.3, step=1)
        return {"rows": new.bits, **moved}

    found = same_from_all(run)
    monkeypatch.setenv("HPCREC_EMULATED_ORDER", "reversed")
    assert_same_bits(same_from_all(run, threads=(3,)), found)
    assert (found["rows"] != rows.bits).any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_begin_anywhere(kind: str) -> None:
    """Where no pack of 16 bytes begins, single elements are read and written."""
    rng, spec, width = np.random.default_rng(6), SPECS["adagrad"], 16
    memory = np.zeros(40 * width + 3, np.uint16)
    o = Occurrences("hot", 300, width, np.float32, n_rows=40)
    states = states_of(spec, o.rows)
    filled = half_rows(rng, 40, width, kind)

    def run(rows):
        rows.bits[:] = filled.bits
        new, out = copy.deepcopy(states), np.zeros(3 * width, np.float32)
        kernels.merge_update(spec, rows, new, o.grouping, o.gradients, o.starts, lr=0.3, step=2)
        kernels.pooled_gather(rows, o.index[:90], np.array([0, 30, 30, 90]), out)
        return {"rows": rows.bits.copy(), "out": out, **new}

    plain = same_from_all(lambda: run(copied(filled)))
    for first in (1, 2, 3):
        bits = memory[first : first + 40 * width].reshape(40, width)
        assert_same_bits(same_from_all(lambda b=bits: run(HalfRows(b, kind, filled.seed))), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_beside_moves_too(kind: str) -> None:
    rng, spec = np.random.default_rng(7), SPECS["rowwise_adagrad"]
    o = Occurrences("hot", 500, 8, np.float32, n_rows=60)
    rows, narrow = half_rows(rng, 60, 8, kind), rng.standard_normal((60, 1)).astype(np.float32)
    states, its_states = states_of(spec, o.rows), states_of(spec, narrow)

    def run(together):
        new, its, moved, its_moved = copied(rows), narrow.copy(), copy.deepcopy(states), copy.deepcopy(its_states)
        beside = kernels.BesideStep(spec, its, its_moved, o.starts, 0.2) if together else None
        common = {"weights": o.weights, "step": 3}
        kernels.merge_update(spec, new, moved, o.grouping, o.gradients, o.starts, lr=0.3, beside=beside, **common)
        if not together:
            kernels.merge_update(spec, its, its_moved, o.grouping, o.gradients, o.starts, lr=0.2, **common)
        return {"rows": new.bits, "narrow": its, **moved, **{f"its {key}": state for key, state in its_moved.items()}}

    found = same_from_all(lambda: run(True))
    assert_same_bits(found, same_from_all(lambda: run(False)))
    assert (found["narrow"] != narrow).any()


@pytest.mark.parametrize("seed", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_what_is_not_finite(kind: str, seed: int | None) -> None:
    """Finite rows saturate, infinite ones stay, NaNs are one and the same."""
    moves = np.array([[3e38, -3e38, np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0]], np.float32)
    bits = np.zeros((1, 8), np.uint16)

    def run():
        rows = HalfRows(bits.copy(), kind, seed)
        kernels.update(OptimizerSpec(name="sgd"), rows, {}, np.array([0]), moves, lr=-1.0, step=1)
        kernels.update(OptimizerSpec(name="sgd"), rows, {}, np.array([0]), moves, lr=-1.0, step=2)
        return rows.bits

    with np.errstate(all="ignore"):
        found = same_from_all(run)
    largest, infinite, nan = {"bf16": (0x7F7F, 0x7F80, 0x7FC0), "fp16": (0x7BFF, 0x7C00, 0x7E00)}[kind]
    if kind == "bf16":  # their sum is infinite in float32 already
        largest = infinite
    assert found.tolist() == [[largest, largest | 0x8000, infinite, infinite | 0x8000, nan, nan, 0, 0]]


@pytest.mark.parametrize("kind", KINDS)
def test_small_steps_are_not_lost_on_average(kind: str) -> None:
    """Steps of a sixteenth of a last place: to the nearest nothing moves, stochastically all of it does."""
    n_steps, unit, spec = 320, 2.0 ** -PLACES[kind][0], OptimizerSpec(name="sgd")
    gradients = np.full((50, 40), -1.0, np.float32)
    moved = {}
    for seed in (None, 1):
        rows = kernels.to_half_rows(np.ones((50, 40), np.float32), kind, seed=seed)
        for step in range(1, n_steps + 1):
            kernels.update(spec, rows, {}, np.arange(50), gradients, lr=unit / 16, step=step)
        moved[seed] = (kernels.from_half_rows(rows).astype(np.float64) - 1) / unit
    assert not moved[None].any()
    error = 4 * math.sqrt(n_steps / 16 * 15 / 16 / moved[1].size)
    assert abs(moved[1].mean() - n_steps / 16) <= error
    assert moved[1].min() > 0


# --- what is refused -------------------------------------------------------------------------------------------------


def read_only(bits: np.ndarray) -> np.ndarray:
    bits.flags.writeable = False
    return bits


@pytest.mark.parametrize("backend", ["reference", "native", "emulated"])
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            HalfRows(np.zeros((9, 4), np.float16), "fp16"),
            r"rows.bits is float16\[9, 4\]; needed is .* uint16\[any, any",
        ),
        (HalfRows(np.zeros((4, 9), np.uint16).T, "bf16"), "rows.bits is .* not contiguous"),
        (HalfRows(np.zeros(36, np.uint16), "bf16"), r"rows.bits is uint16\[36\]"),
        (HalfRows(np.zeros((9, 4), np.uint16), "fp32"), "rows.kind is 'fp32'; allowed are bf16, fp16"),
        (HalfRows(np.zeros((9, 4), np.uint16), "bf16", 2**64), "rows.seed is 18446744073709551616"),
        (HalfRows(np.zeros((9, 0), np.uint16), "bf16"), "width of rows is 0"),
        (HalfRows(np.zeros((8, 4), np.uint16), "bf16"), r"unique\[1\] is 8|to update is outside|state accumulator"),
        (HalfRows(read_only(np.zeros((9, 4), np.uint16)), "bf16"), "rows.bits is read-only"),
        (np.zeros((9, 4), np.float16), r"rows is float16\[9, 4\]; needed is .* float32 or float64"),
        (np.zeros((9, 4), np.uint16), r"rows is uint16\[9, 4\]"),
    ],
)
def test_update_refuses(backend: str, rows: HalfRows, said: str) -> None:
    kernels.use(backend)
    states = {"accumulator": np.zeros(9, np.float32)}
    with pytest.raises(ValueError, match=said):
        kernels.update(
            OptimizerSpec(name="rowwise_adagrad"), rows, states, np.array([0, 8]), np.ones((2, 4), np.float32), lr=0.1,
            step=1,
        )  # fmt: skip


@pytest.mark.parametrize("backend", ["reference", "native", "emulated"])
def test_others_refuse(backend: str) -> None:
    kernels.use(backend)
    rows, ids, offsets = HalfRows(np.zeros((9, 4), np.uint16), "bf16"), np.array([0, 8]), np.array([0, 2])
    spec, out = OptimizerSpec(name="sgd"), np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="out is float64"):
        kernels.pooled_gather(rows, ids, offsets, np.zeros(4))
    with pytest.raises(ValueError, match=r"beside\.rows is float64"):
        kernels.pooled_gather(rows, ids, offsets, out, beside=kernels.Beside(np.zeros((9, 1)), np.zeros(1, np.int64)))
    with pytest.raises(ValueError, match=r"beside\.rows is HalfRows"):
        narrow = HalfRows(np.zeros((9, 1), np.uint16), "bf16")
        kernels.pooled_gather(rows, ids, offsets, out, beside=kernels.Beside(narrow, np.zeros(1, np.int64)))
    with pytest.raises(ValueError, match=r"index\[1\] is 9|an index is outside"):
        kernels.pooled_gather(rows, np.array([0, 9]), offsets, out)
    with pytest.raises(ValueError, match="out shares memory with rows"):
        kernels.pooled_gather(rows, ids, offsets, rows.bits.reshape(-1).view(np.float32)[:4])
    with pytest.raises(ValueError, match="rows shares memory with merged"):
        kernels.update(
            spec, rows, {}, ids[:1], rows.bits.reshape(-1).view(np.float32)[:4].reshape(1, 4), lr=1.0, step=1
        )
    with pytest.raises(ValueError, match="merged is float64"):
        kernels.update(spec, rows, {}, ids, np.zeros((2, 4)), lr=1.0, step=1)
    with pytest.raises(ValueError, match="step is -1"):
        kernels.update(spec, rows, {}, ids, np.zeros((2, 4), np.float32), lr=1.0, step=-1)
    with pytest.raises(ValueError, match="kind is 'int8'; allowed are bf16, fp16"):
        kernels.to_half_rows(np.zeros((2, 4), np.float32), "int8")
    with pytest.raises(ValueError, match=r"rows is float64\[2, 4\]"):
        kernels.to_half_rows(np.zeros((2, 4)), "bf16")
    with pytest.raises(ValueError, match="first_row is -1"):
        kernels.to_half_rows(np.zeros((2, 4), np.float32), "bf16", first_row=-1)
    with pytest.raises(TypeError, match=r"rows\.seed is 2\.5; it must be an integer"):
        kernels.to_half_rows(np.zeros((2, 4), np.float32), "bf16", seed=2.5)
    with pytest.raises(ValueError, match="rows is ndarray; needed are HalfRows"):
        kernels.from_half_rows(np.zeros((2, 4), np.float32))


def test_no_rows() -> None:
    for kind in KINDS:
        none = same_from_all(lambda kind=kind: kernels.to_half_rows(np.zeros((0, 3), np.float32), kind).bits)
        assert none.shape == (0, 3)
        assert same_from_all(lambda n=none, kind=kind: kernels.from_half_rows(HalfRows(n, kind))).shape == (0, 3)
        out = np.full(6, 7, np.float32)
        kernels.pooled_gather(HalfRows(none, kind), np.zeros(0, np.int64), np.zeros(3, np.int64), out)
        assert not out.any()
