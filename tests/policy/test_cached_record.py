"""What is told of policy ``cached``: it is what one process counts, costs no bit, and holds reads to the bound."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.memory import predict_memory
from hpcrec.build.session import open_session
from hpcrec.comm.ledger import TAGS
from hpcrec.config import Config, validate
from hpcrec.data.deal import cut, equal_parts
from hpcrec.errors import ConfigError, HpcrecError
from hpcrec.exchange.forms.conditional import Keeping
from hpcrec.exchange.forms.lags import Lags
from hpcrec.exchange.forms.missing import Missing, RowTicks, bin_names, enough_ticks
from hpcrec.exchange.shadow import ENDS, Distances, picks
from hpcrec.training.copies import copies_advice, copies_rows, copies_summary
from hpcrec.training.telemetry import read_metrics
from tests.policy.cached_reference import CachedReference, bundles_of, first_columns
from tests.policy.test_cached import SUMMED, WAYS, cached
from tests.policy.test_hybrid import config_of, same_bits, trained
from tests.together import on_every_rank, once
from tests.training.runs import global_batches, reference_for, write_data
from tests.training.test_equivalence import Cases, roles_for, shared_out_or_all_cases

COMM = MPI.COMM_WORLD


def proved(config: Config, *, check: bool, every: int) -> Config:
    return replace(config, run=replace(config.run, check_staleness=check, shadow_reads=every))


def binned(ticks: list[int]) -> dict[str, int]:
    """Bin by bin in Python's own words."""
    found = Counter("0" if n == 0 else "1" if n == 1 else _between(n) for n in ticks)
    return dict(found)


def _between(n: int) -> str:
    low = 1 << n.bit_length() - 1
    return f"{low}-{2 * low - 1}"


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_what_is_told_is_what_one_process_counts(cases_of: Cases, folder: Path) -> None:
    """Ticks that reads lack, exactly and as owners know them, how far copies are off, and ticks of rows."""
    write_data(folder / "data.h5")
    compared = 0
    for roles, way, optimizer, staleness, capacity, check in cases_of(
        WAYS, SUMMED, (1, 5, 2), (1000, 9), (True, False)
    ):
        more = {"topology": roles, "checkpoint": {"every": 6}, "train": {"steps": 10}}
        config = cached(config_of(folder, None, way, optimizer, **more), staleness, capacity)
        config = proved(config, check=check, every=2)
        with open_session(config) as session:
            batches, ranks = global_batches(session, 10), len(session.topology.dense)
            bundles = bundles_of(session)

            def picked(b: int, row: int, step: int, of: list = bundles, seed: int = config.train.seed) -> bool:
                part, there = of[b].place(row)
                return bool(picks(np.array([there]), np.array([part]), 2, seed + b, step)[0])

            one = CachedReference(
                reference_for(session, config),
                bundles,
                ranks,
                lambda samples, n=ranks: cut(equal_parts, samples, n).tolist(),
                staleness=staleness,
                capacity=capacity,
                drains=(6, 10),
                columns=first_columns(session),
                compared=picked,
            )
            for step in session.steps():
                step.run()
                once(partial(one.step, batches[step.number]))
            exchange = session.parts.exchange
            found = copies_summary(COMM.allgather((exchange.figures(), exchange.record())))
        about = (roles, way, optimizer, staleness, capacity, check)
        made, expected, distances = once(
            lambda one=one, check=check: (one.made, one.missing if check else one.lags, one.distances)
        )
        few = sum(n for n in made.values() if n < enough_ticks(ranks * staleness))
        with on_every_rank():
            told = {name: n for name, n in found["missing"].items() if n}
            assert told == binned(expected), about
            assert found["missing_ticks"] == sum(expected), about
            assert sum(told.values()) == found["reads"], about
            assert (found["ticks"], found["ticks_of_few"]) == (sum(made.values()), few), about
            assert found["distances"].keys() == distances.keys(), about
            for table, of_table in distances.items():
                of = found["distances"][table]
                assert of["reads"] == sum(of["up_to"].values()) == len(of_table), (about, table)
                assert of["mean"] == pytest.approx(np.mean(of_table), rel=1e-6, abs=1e-12), (about, table)
                compared += sum(distance > 0 for distance in of_table)
    with on_every_rank():
        assert compared > 0, "some copies differ from their rows"


@pytest.mark.parallel([1, 2, 3])
@pytest.mark.in_turn
def test_to_look_changes_no_bit_and_no_other_bytes(folder: Path) -> None:
    write_data(folder / "data.h5")
    for roles, way in zip(roles_for(COMM.size), WAYS, strict=False):
        plain = cached(config_of(folder, None, way, "sgd", topology=roles, train={"steps": 8}), 3, 9)
        sent = []
        for config in (plain, proved(plain, check=True, every=1)):
            with open_session(config) as session:
                for step in session.steps():
                    step.run()
                sent.append(dict(zip(TAGS, session.parts.world.total_wire_bytes().tolist(), strict=True)))
        same_bits(trained(proved(plain, check=True, every=1)), trained(plain), roles)
        with on_every_rank():
            looked = [sent[1].pop(tag) for tag in ("shadow", "check")]
            assert [sent[0].pop(tag) for tag in ("shadow", "check")] == [[0, 0], [0, 0]]
            assert sent[0] == sent[1] and (COMM.size == 1 or all(sum(of) > 0 for of in looked)), (sent, looked)


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Owners find every copy good."""
    with monkeypatch.context() as patch:
        patch.setattr(Lags, "answer", lambda _, rows, __: np.zeros(len(rows), bool))
        yield


@pytest.mark.parallel([2, 3])
def test_a_read_that_lacks_more_than_is_allowed_ends_the_run_on_all_ranks(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(folder / "data.h5")
    for roles, way in zip(roles_for(COMM.size)[:1] * 3, WAYS, strict=True):
        config = cached(config_of(folder, None, way, "sgd", topology=roles, train={"steps": 20}), 1)
        with broken(monkeypatch), open_session(proved(config, check=True, every=0)) as session:
            allowed = len(session.topology.dense)
            said = (
                rf"run.check_staleness: table [\w., ]+: row \d+, as dense rank \d+ reads it in step \d+, lacks \d+ "
                rf"ticks, and policy.staleness = 1 allows {allowed} with {allowed} dense ranks"
            )
            with on_every_rank(), pytest.raises(HpcrecError, match=said):
                for step in session.steps():
                    step.run()


@pytest.mark.parallel([1, 2])
def test_ticks_that_have_not_come_by_a_drain_point_end_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    more = {"topology": roles_for(COMM.size)[0], "checkpoint": {"every": 3}, "train": {"steps": 6}}
    config = proved(cached(config_of(folder, None, "rows", "sgd", **more), 50), check=True, every=0)
    with open_session(config) as session:
        dense = session.parts.exchange._dense_side
        if COMM.rank == 0 and dense is not None and dense.copies is not None:
            half = dense.copies.halves[0][0]
            push = half.push
            monkeypatch.setattr(half, "push", lambda *a, drain, lr_scale: push(*a, drain=False, lr_scale=lr_scale))
        said = r"at the drain point after step 3, \d+ ticks of dense rank 0 have not come, and 0 are allowed"
        with on_every_rank(), pytest.raises(HpcrecError, match=said):
            for step in session.steps():
                step.run()


@pytest.mark.parallel([1, 2])
def test_lines_and_the_summary_tell_of_the_same_reads(folder: Path) -> None:
    write_data(folder / "data.h5")
    more = {"topology": roles_for(COMM.size)[0], "run": {"folder": str(folder / "run")}}
    config = config_of(folder, None, "rows", "sgd", **more, train={"steps": 8, "log_every": 2})
    config = proved(cached(config, 4, 9), check=True, every=2)
    assert commands.train(config) == 0
    with on_every_rank():
        found = json.loads((folder / "run" / "summary.json").read_text())["copies"]
        lines = [line for line in read_metrics(folder / "run") if "copies.hit_rate" in line]
        assert [line["step"] for line in lines] == [2, 4, 6, 8]
        for name in ("misses", "too_old", *(name for name in found if name.startswith("pushed_"))):
            assert sum(line[f"copies.{name}"] for line in lines) == found[name], name
        missing = Counter[str]()
        for line in lines:
            missing.update(line["copies.missing"])
        assert missing == Counter(found["missing"])
        ticks = sum(line["copies.missing_mean"] * sum(line["copies.missing"].values()) for line in lines)
        assert ticks == pytest.approx(found["missing_ticks"])
        read = sum(line["copies.hit_rate"] * sum(line["copies.missing"].values()) for line in lines)
        assert read == pytest.approx(found["copies_read"])
        for table in found["distances"]:
            mean, most = (f"copies.distance.{table}.{name}" for name in ("mean", "max"))
            means = [(line[mean], line[most]) for line in lines if mean in line]
            assert means and all(0 <= of <= largest for of, largest in means)


def test_the_check_is_in_the_memory_formula(folder: Path) -> None:
    write_data(folder / "data.h5")
    config = cached(config_of(folder, None, "rows", "sgd"), 4, 7)
    without, with_ = (
        predict_memory(proved(config, check=check, every=0), [0])[0].terms["lags of copies"] for check in (False, True)
    )
    assert (
        with_ - without == without / 2 * 48
    )  # a byte of lag and one of ticks a row; 3 int64 of a rank and of other forms


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"run": {"check_staleness": True}}, r"run\.check_staleness is true, but policy\.name is 'sync'"),
        (
            {"policy": {"name": "hybrid"}, "run": {"shadow_reads": 9}},
            r"run\.shadow_reads is 9, but policy\.name is 'hy",
        ),
        ({"policy": {"name": "cached"}, "run": {"shadow_reads": -1}}, r"run\.shadow_reads"),
        (
            {
                "policy": {"name": "cached"},
                "run": {"check_staleness": True},
                "embedding": {"tables": {"user": {"dynamic": {"capacity": 9}}}},
            },
            "run.check_staleness is true, but table 'user' is dynamic",
        ),
    ],
)
def test_what_a_configuration_may_not_ask_for(sections: dict[str, Any], why: str) -> None:
    given = {"data": {"train": "t.h5"}, **sections, "run": {"folder": "r", **sections["run"]}}
    with pytest.raises(ConfigError, match=why):
        validate(given, "here")


def test_bins_are_powers_of_two() -> None:
    missing, rng = Missing(1000), np.random.default_rng(1)
    ticks = [0, 1, 2, 3, 4, 7, 8, 1000, *rng.integers(0, 1000, 500).tolist()]
    missing.add(np.array(ticks, np.uint16))
    missing.add_none(3)
    told = dict(zip(bin_names(len(missing.reads)), missing.reads.tolist(), strict=True))
    assert {name: n for name, n in told.items() if n} == binned([*ticks, 0, 0, 0]) and missing.ticks == sum(ticks)
    assert bin_names(1) == ["0"] and bin_names(3) == ["0", "1", "2-3"]


def test_ticks_of_rows_end_where_they_are_enough() -> None:
    ticks = RowTicks(4, 300)
    ticks.add(np.array([0, 1, 3]), np.array([299, 300, 5]))
    ticks.add(np.array([1]), np.array([10_000]))
    assert (ticks.all, ticks.of_few) == (10_604, 304)
    ticks.restart(np.array([1, 3]))
    ticks.add(np.array([3]), np.array([300]))
    assert (ticks.all, ticks.of_few) == (10_904, 304), "of earlier lives too"
    assert enough_ticks(400) == 8000


def test_reads_are_picked_by_seed_step_and_row_alone() -> None:
    rows = np.arange(100_000)
    none = np.zeros_like(rows)
    first = picks(rows, none, 1000, 7, 3)
    assert 60 < first.sum() < 150
    order = np.random.default_rng(0).permutation(rows)
    np.testing.assert_array_equal(picks(order, none, 1000, 7, 3), first[order])
    for other in (picks(rows, none, 1000, 8, 3), picks(rows, none, 1000, 7, 4), picks(rows, none + 1, 1000, 7, 3)):
        assert (other & first).sum() < 10 and 60 < other.sum() < 150
    assert picks(rows, none, 1, 7, 3).all()
    often = sum(picks(rows[:200], none[:200], 10, 7, step) for step in range(1000))
    assert 50 < often.min() <= often.max() < 160, "every row has its turn"


def test_distances_are_binned_by_their_upper_ends() -> None:
    found = Distances.of(2)
    found.add(1, np.array([0.0, 1e-6, 1.5e-6, 99.0]))
    found.add(0, np.zeros(0))
    at = {end: found.binned[1][i] for i, end in enumerate(ENDS)}
    assert (at[0.0], at[1e-6], at[2e-6], found.binned[1][-1], found.binned.sum()) == (1, 1, 1, 1, 4)
    assert found.reads.tolist() == [0, 4] and found.most.tolist() == [0, 99]


def test_a_run_that_is_short_for_its_staleness_is_told_so() -> None:
    copies = {"ticks": 1000, "ticks_of_few": 501}
    assert copies_advice({"steps": 1200, "copies": copies}, 100, 400) == (
        "policy.staleness = 100 is much for a run of 1,200 steps: 50% of the gradients of cached rows are of rows "
        "that have got fewer than 8,000, so that the 400 that a read may lack are more than 5% of them. "
        "Lower policy.staleness, or train longer."
    )
    assert copies_advice({"steps": 1200, "copies": {**copies, "ticks_of_few": 500}}, 100, 400) == ""
    assert copies_advice({"steps": 1200, "copies": {}}, 100, 400) == ""


def hot_rows(staleness: int, steps: int) -> dict[str, Any]:
    """What owners count where every dense rank of 4 makes a tick of the same few rows in every step."""
    rule = Lags(6, Keeping(staleness=staleness, dense=(0, 1, 2, 3)))
    rows, places = np.repeat(np.arange(6), 4), np.tile(np.arange(4), 6)
    for _ in range(steps):
        rule.learned(rows, places, np.ones(24, np.int64))
    return {"steps": steps, "copies": rule.figures()}


def test_what_a_read_may_lack_follows_from_the_rule_and_the_look_ahead() -> None:
    found = [
        Keeping(staleness=10, dense=(0, 1, 2), rule=rule, lookahead=ahead).most_missing
        for rule, ahead in (("sum", 0), ("sum", 4), ("max", 0))
    ]
    assert found == [30, 38, 60]


@pytest.mark.parametrize(("staleness", "steps", "short"), [(100, 1200, True), (10, 1200, False), (100, 2000, False)])
def test_hot_rows_that_all_ranks_meet_in_every_step(staleness: int, steps: int, short: bool) -> None:
    assert bool(copies_advice(hot_rows(staleness, steps), staleness, 4 * staleness)) == short


def test_what_is_shown() -> None:
    found: dict[str, Any] = {"reads": 200.0, "copies_read": 150.0, "misses": 40.0, "too_old": 10.0}
    found |= {"pushed_bound": 7.0, "pushed_age": 0.0}
    found |= {"missing": {"0": 150, "1": 0, "2-3": 50}, "distances": {"user": {"reads": 3, "mean": 0.25, "up_to": {}}}}
    assert copies_rows({"copies": found}) == [
        ("copies", "75.0% of 200 reads"),
        ("copies: rows sent", "40 missed, 10 too old"),
        ("copies: rows pushed", "7 by bound"),
        ("copies: reads", "75.0% lack 0, 0.0% lack 1, 25.0% lack 2-3 ticks"),
        ("copies: distance of user", "0.25 of the row's length, mean of 3 reads"),
    ]
    assert copies_rows({"copies": {}}) == []
