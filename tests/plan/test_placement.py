"""Placements against the best there is, and against none; what is expected of a budget, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from hpcrec.data.reuse import ReuseTimes
from hpcrec.plan.aging import kept
from hpcrec.plan.curves import Curve
from hpcrec.plan.placement import (
    WAYS,
    Expected,
    Option,
    TierPart,
    beside_bytes,
    choose,
    expect,
    least_bytes,
    memory_for,
    options_of,
    place,
)

READ_S = {4096: 1 / 50_000}


def curve_of(rows: int, exponent: float, ids: int, seed: int, steps: int = 200) -> Curve:
    random = np.random.default_rng(seed)
    chance = np.arange(1, rows + 1) ** -exponent
    times = ReuseTimes(steps)
    times.add(
        np.repeat(np.arange(steps), ids), np.searchsorted(np.cumsum(chance / chance.sum()), random.random(steps * ids))
    )
    return times.curve()


def part(name: str, rows: int, row_bytes: int, curve: Curve) -> TierPart:
    return TierPart(table=name, block=row_bytes, rows=rows, row_bytes=row_bytes, page_bytes=4096, curve=curve)


@pytest.fixture(scope="module")
def parts() -> list[TierPart]:
    """Some that are small and asked for often, and some that are large."""
    return [
        part("large", 50_000, 260, curve_of(50_000, 1.05, 200, 1)),
        part("flat", 8_000, 260, curve_of(8_000, 0.3, 300, 2)),
        part("small", 900, 260, curve_of(900, 0.5, 400, 3)),
        part("narrow", 30_000, 8, curve_of(30_000, 1.0, 300, 4)),
        part("steep", 20_000, 68, curve_of(20_000, 1.4, 300, 5)),
    ]


def best_time(options: list[list[Option]], budget: float) -> float:
    """Of all choices of one option each that fit."""
    flat = [option for of in options for option in of]
    one_each = np.zeros((len(options), len(flat)))
    for item, at in enumerate(np.cumsum([0, *map(len, options[:-1])])):
        one_each[item, at : at + len(options[item])] = 1
    fits = LinearConstraint(np.array([[b for b, _ in flat]]), -np.inf, budget)
    times = np.array([t for _, t in flat])
    found = milp(
        times, constraints=[LinearConstraint(one_each, 1, 1), fits], integrality=np.ones(len(flat)), bounds=Bounds(0, 1)
    )
    return float(found.fun)


@pytest.mark.parametrize("seed", range(80))
def test_choices_are_near_the_best_there_are(seed: int) -> None:
    random = np.random.default_rng(seed)
    options = list[list[Option]]()
    for _ in range(random.integers(2, 9)):
        rows, row_bytes = 10 ** random.uniform(2, 6), random.choice([8, 68, 260])
        asked, bend = 10 ** random.uniform(0, 4), random.uniform(0.2, 3)
        held = rows * np.sort(np.append(0.0, random.random(random.integers(2, 9))))
        sizes = [(5 * rows + h * (row_bytes + 12), asked * (1 - h / rows) ** bend) for h in held.tolist()]
        options.append([*sizes, (rows * row_bytes, 0.0)])
    least = sum(min(b for b, _ in of) for of in options)
    budget = least + random.random() * (sum(max(b for b, _ in of) for of in options) - least)
    picks = choose(options, budget)
    assert picks is not None
    assert sum(of[k][0] for of, k in zip(options, picks, strict=True)) <= budget
    found = sum(of[k][1] for of, k in zip(options, picks, strict=True))
    assert found <= 1.05 * best_time(options, budget) + 1e-9
    assert choose(options, least * (1 - 1e-9)) is None


@pytest.mark.parametrize("ratio", [2, 3, 5, 8, 12])
def test_never_slower_than_all_alike(parts: list[TierPart], ratio: int) -> None:
    total = sum(of.n_bytes for of in parts)
    budget = max(total // ratio + beside_bytes(parts) // 2, least_bytes(parts))
    whole = place([parts], budget, READ_S)
    placed, alike = expect(parts, budget, whole), expect(parts, budget)
    assert placed is not None and alike is not None
    assert placed.rows_read <= alike.rows_read
    if ratio <= 5:
        assert whole and placed.rows_read < 0.9 * alike.rows_read, (whole, placed, alike)
    assert least_bytes(parts, whole) <= budget


def test_all_subsets_are_no_better(parts: list[TierPart]) -> None:
    budget = sum(of.n_bytes for of in parts) // 4 + beside_bytes(parts)
    placed = expect(parts, budget, place([parts], budget, READ_S))
    every = [[of.table for i, of in enumerate(parts) if bits >> i & 1] for bits in range(1 << len(parts))]
    best = min(found.rows_read for named in every if (found := expect(parts, budget, named)) is not None)
    assert placed is not None and placed.rows_read <= 1.05 * best


def test_a_table_is_whole_on_all_owners_or_on_none(parts: list[TierPart]) -> None:
    """One owner has room for them beside what else it has, the other has not."""
    full = [part("other", 200_000, 260, curve_of(200_000, 1.05, 200, 6)), parts[2]]
    budget = least_bytes(full) + 100_000
    assert place([[parts[1], parts[2]]], budget, READ_S) == ("flat", "small")
    assert "small" not in place([[parts[1], parts[2]], full], budget, READ_S)


def from_disk(found: Expected, mine: TierPart, places: float) -> float:
    """Rows of table a that are read, without those that went so lately that they are in memory still."""
    within, places = 3 * 128 * 1024 / found.handed_bytes, min(places, mine.rows + WAYS - 1)
    return found.reads["a"] - kept([mine.curve], places // WAYS * WAYS, mine.ahead).soon(within)[0]


def test_what_a_budget_is_expected_to_do() -> None:
    curve = curve_of(10_000, 0.8, 500, 7)
    mine = part("a", 10_000, 260, curve)
    beside = 10_000 * 4 + 128 * 4096 + 7 * 128 * 1024
    assert beside_bytes([mine]) == beside
    assert least_bytes([mine]) == beside + WAYS * 281
    assert expect([mine], least_bytes([mine]) - 1) is None
    found = expect([mine], beside + 2_016 * 281)
    assert found is not None
    assert found.held == {"a": pytest.approx(2_016, rel=0.1)}
    assert curve.best(2_016) < found.reads["a"] < curve.reads(2_016)
    assert found.read_bytes == pytest.approx(4096 * found.pages["a"])
    space = curve.distinct * 260 + 3 * 2**20  # halfway to the most: so few rows may have six mebibytes more
    lies, pages = np.random.default_rng(8), round(space / 4096)
    left = from_disk(found, mine, 2_016)
    drawn = [len(np.unique(lies.integers(0, pages, round(left)))) for _ in range(200)]
    assert found.pages["a"] == pytest.approx(np.mean(drawn), rel=0.01) and found.pages["a"] < 0.98 * left
    huge = part("a", 1_000_000, 260, curve_of(1_000_000, 0.8, 500, 7))
    many = expect([huge], 40_000_000)
    assert many is not None
    of_many, left = (
        round(huge.curve.distinct * 260 * 1.25 / 4096),
        from_disk(many, huge, (40_000_000 - beside_bytes([huge])) / 281),
    )
    assert many.pages["a"] == pytest.approx(of_many * (1 - (1 - 1 / of_many) ** left), rel=0.01)
    assert found.handed_bytes == pytest.approx(260 * (found.reads["a"] + curve.new))
    everything = expect([mine], 2_600_000, {"a"})
    assert everything is not None and everything.rows_read == 0 and least_bytes([mine], {"a"}) == 2_600_000


def test_memory_for_so_many_reads(parts: list[TierPart]) -> None:
    for wanted in (20.0, 100.0):
        budget = memory_for([parts], wanted)
        assert budget is not None
        found, less = expect(parts, budget), expect(parts, int(budget * 0.99))
        assert found is not None and found.pages_read <= wanted
        assert less is not None and less.pages_read > wanted
    assert memory_for([parts], 1e9) == least_bytes(parts)
    everything = memory_for([parts], 0.0)
    assert everything is not None
    found, less = expect(parts, everything), expect(parts, int(everything * 0.99))
    assert found is not None and found.rows_read == 0 and less is not None and less.rows_read > 0
    more = replace(parts[0], rows=parts[0].rows // 10)  # fewer than were counted
    assert memory_for([parts, [more]], 0.0) is None


def test_options_of_a_table_end_with_the_whole(parts: list[TierPart]) -> None:
    options = options_of(parts[0], READ_S[4096])
    assert options[0] == (pytest.approx(200_000), pytest.approx(parts[0].curve.best(0) / 50_000))
    assert options[-1] == (13_000_000, 0.0)
