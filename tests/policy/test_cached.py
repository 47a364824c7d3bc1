"""Policy ``cached``: with a staleness of 0 it is ``sync``; else one process that keeps the same copies."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpcrec.api import commands
from hpcrec.build.memory import predict_memory
from hpcrec.build.session import open_session
from hpcrec.build.tables import make_policy
from hpcrec.checkpoint import state
from hpcrec.checkpoint.checkpoint import find_checkpoint
from hpcrec.config import Config, validate
from hpcrec.data.deal import cut, equal_parts
from hpcrec.data.reader import DataSet
from hpcrec.errors import ConfigError
from hpcrec.exchange.forms.conditional import NOBODY, Keeping
from hpcrec.exchange.forms.lags import Lags
from hpcrec.training.session import Session
from tests.policy.cached_reference import CachedReference, bundles_of, first_columns
from tests.policy.test_hybrid import OPTIMIZERS, config_of, gone_on, results, same_bits, save_and_leave, slowly, trained
from tests.policy.test_hybrid_stores import dynamic_of, grown
from tests.together import on_every_rank, once
from tests.training import dynamic_runs
from tests.training.runs import gather_tables, global_batches, reference_for, write_data
from tests.training.test_dynamic import RULES, SHORT, figures, sections
from tests.training.test_equivalence import (
    Cases,
    Some,
    covering,
    covering_roles,
    roles_for,
    shared_out_or_all,
    shared_out_or_all_cases,
)
from tests.training.test_nonfinite import SKIP, spoil

COMM = MPI.COMM_WORLD
SUMMED = ("sgd", "rowwise_adagrad", "adagrad")  # learn from sums of several steps' gradients
EVICT = ("lru", "lfu", "lightlfu", "known")
WAYS = ("rows", "pooled", "pooled, by columns")  # how tables are placed; the form is that of the policy


def cached(config: Config, staleness: int, capacity: int | float | str = 1.0, **more: Any) -> Config:
    policy = replace(config.policy, name="cached", staleness=staleness, capacity=capacity, **more)
    return replace(config, policy=policy, exchange=replace(config.exchange, form="pooled"))


def choosing(evict: str, window: int) -> dict[str, Any]:
    """Keys of the policy."""
    return {"cache": evict, "window": window if evict == "known" else None}


def one_process(
    session: Session,
    config: Config,
    drains: Sequence[int],
    schedule: Mapping[str, Any] = MappingProxyType({}),
    evaluated: Sequence[int] = (),
) -> CachedReference:
    policy, ranks = config.policy, len(session.topology.dense)
    return CachedReference(
        reference_for(session, config),
        bundles_of(session),
        ranks,
        lambda samples: cut(equal_parts, samples, ranks).tolist(),
        staleness=policy.staleness,
        capacity=policy.capacity,
        rule=policy.rule or "sum",
        evict=policy.cache or "lru",
        window=policy.window or 0,
        max_age=policy.max_age,
        lookahead=policy.lookahead or 0,
        drains=drains,
        evaluated=evaluated,
        scale=(lambda step: min(1.0, step / 10)) if schedule else (lambda step: 1.0),
        columns=first_columns(session),
    )


def held_to_one_process(
    config: Config,
    about: object,
    drains: Sequence[int],
    *,
    schedule: Mapping[str, Any] = MappingProxyType({}),
    evaluated: Sequence[int] = (),
    left_out: Sequence[int] = (),
) -> tuple[dict[str, int], int]:
    """A run up to its last drain point, step by step: its losses, rows and counts are those of one process.

    Of the steps that are ``left_out`` a gradient is spoilt. The data are in memory twice. Returns what was counted, and
    how many ticks a read lacked at most.
    """
    with open_session(config) as session:
        batches = global_batches(session, drains[-1])
        one = one_process(session, config, drains, schedule, evaluated)
        for step in session.steps():
            if step.number in left_out:
                spoil(session, step)
            loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
            batch, coming, left = batches[step.number], batches[step.number + 1 :], step.number in left_out
            expected = once(partial(one.step, batch, left_out=left, coming=coming))
            with on_every_rank():
                same = math.isnan(loss) if step.number in left_out else abs(loss - expected) < 1e-12
                assert same, (about, step.number, loss, expected)
        found, every = gather_tables(session), COMM.allgather(session.parts.exchange.figures())
    learned = once(lambda: {name: one._reference.rows(name) for name in one._reference.tables})
    counts, most_missing = once(lambda: (one.counts, one.most_missing))
    with on_every_rank():
        for name, rows in learned.items():
            np.testing.assert_allclose(found[name], rows, rtol=0, atol=1e-12, err_msg=f"{name}: {about}")
        for name, n in counts.items():
            assert sum(of.get(name, 0) for of in every) == n, (name, about)
    return counts, most_missing


class Seen:
    """That runs have had every reason by which rows are sent and pushed, and copies that lacked something."""

    def __init__(self) -> None:
        self._reasons, self._most = Counter[str](), 0

    def see(self, counts: Mapping[str, int], most_missing: int) -> None:
        self._reasons.update(counts)
        self._most = max(self._most, most_missing)

    def check(self, cases_of: Cases) -> None:
        if cases_of is covering_roles and COMM.size < 3:
            return  # too few of the cases are theirs to have every reason
        never = {"pushed_no_row"} | ({"too_old"} if COMM.size == 1 else set())
        with on_every_rank():
            assert all(n > 0 or name in never for name, n in self._reasons.items()), self._reasons
            assert self._most > 0 or COMM.size == 1


def as_rows(config: Config) -> Config:
    return replace(config, exchange=replace(config.exchange, form="rows"))


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_without_staleness_it_is_sync_bit_for_bit(cases_of: Cases, folder: Path) -> None:
    write_data(folder / "data.h5")
    codecs: tuple[dict[str, Any], ...] = ({}, {"exchange": {"codec": "bf16"}, "train": {"dtype": "float32"}})
    capacities = (1.0, 3, 0.3)
    for roles, way, optimizer, codec, capacity, evict in cases_of(WAYS, OPTIMIZERS, codecs, capacities, EVICT):
        rule = "max" if evict == "lfu" else "sum"
        more = {**codec, "topology": roles, "train": {**codec.get("train", {}), "steps": 9}, "checkpoint": {"every": 5}}
        more["exchange"] = {**codec.get("exchange", {}), "ids": "read" if optimizer == "adam" else "routed"}
        config = config_of(folder, None, way, optimizer, **more)
        found = trained(cached(config, 0, capacity, **choosing(evict, 3), rule=rule))
        same_bits(found, trained(as_rows(config)), (roles, way, optimizer, codec, capacity, evict, rule))


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_it_is_one_process_that_keeps_the_same_copies(cases_of: Cases, folder: Path) -> None:
    """At any staleness, capacity and age, past a drain point, and where steps are left out."""
    write_data(folder / "data.h5")
    told, warming = Seen(), {"warmup_steps": 10}
    for roles, way, optimizer, staleness, capacity, evict, max_age, left_out, schedule, rule in cases_of(
        WAYS, SUMMED, (1, 2, 5), (1000, 9, 4), ("lru", "lfu", "known"), (None, 3),
        ((), (2, 6)), ({}, warming), ("sum", "max"),
    ):  # fmt: skip
        more = {"topology": roles, "checkpoint": {"every": 8}, "train": {**SKIP, "steps": 14}, "schedule": schedule}
        config = config_of(folder, None, way, optimizer, **more)
        config = cached(config, staleness, capacity, **choosing(evict, 2 + capacity), max_age=max_age, rule=rule)
        about = (roles, way, optimizer, staleness, capacity, evict, max_age, left_out, rule)
        told.see(*held_to_one_process(config, about, (8, 14), schedule=schedule, left_out=left_out))
    told.check(cases_of)


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_rows_that_are_asked_for_ahead_are_one_process_too(cases_of: Cases, folder: Path) -> None:
    """Own pushes on their way are read, copies of steps in flight stay, and drain points end the look ahead."""
    write_data(folder / "data.h5")
    told = Seen()
    for case in cases_of(
        WAYS, SUMMED, (2, 0, 1, 5), (1, 2, 3), (1000, 9, 4), ("lru", "lfu", "known"), (None, 3),
        ((), (2, 6)), ({}, {"warmup_steps": 10}), (0, 5),
    ):  # fmt: skip
        roles, way, optimizer, staleness, lookahead, capacity, evict, max_age, left_out, schedule, eval_every = case
        more = {"topology": roles, "checkpoint": {"every": 8, "keep_best": False}, "schedule": schedule}
        more["train"] = {**SKIP, "steps": 14, "eval_every": eval_every}
        more["data"] = {"validation": str(folder / "data.h5")}
        config = config_of(folder, None, way, optimizer, **more)
        config = cached(config, staleness, capacity, **choosing(evict, 3), max_age=max_age, lookahead=lookahead)
        evaluated = (5, 10) if eval_every else ()
        told.see(*held_to_one_process(config, case, (8, 14), schedule=schedule, evaluated=evaluated, left_out=left_out))
    told.check(cases_of)


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all
def test_dynamic_tables_are_one_process_too(some: Some, folder: Path) -> None:
    """Copies of ids that lose their rows, and get others, and of ids that have none."""
    dynamic_runs.write_data(folder / "data.h5")
    optimizers, roles_in_turn = itertools.cycle(SUMMED), itertools.cycle(roles_for(COMM.size))
    counts = Counter[str]()
    cases: list[tuple[dict[str, Any], int, int, str, str]] = [
        ({"capacity": 24, "evict": "lru"}, 2, 1000, "lru", "sum"),
        (RULES[0], 3, 6, "lru", "sum"),
        (RULES[1], 1, 9, "lfu", "sum"),
        (RULES[3], 5, 5, "lru", "sum"),
        ({"capacity": 24, "evict": "lru"}, 2, 1000, "lru", "max"),
        (RULES[0], 2, 6, "known", "sum"),
        (RULES[0], 3, 6, "lfu", "max"),
    ]
    for rules, staleness, capacity, evict, rule in some(cases):
        optimizer, roles = next(optimizers), next(roles_in_turn)
        more = sections(roles, "deepfm", optimizer, "pooled", "routed", "mean")
        train = {**SHORT, "steps": 12}
        config = dynamic_runs.dynamic_config(folder, rules, **more, checkpoint={"every": 7}, train=train)
        config = cached(config, staleness, capacity, **choosing(evict, 4), rule=rule)
        with open_session(config) as session:
            who = dynamic_runs.Rules(session, dynamic_runs.reference_for(session, config), rules)
            batches, ranks = global_batches(session, session.total_steps), len(session.topology.dense)
            one = CachedReference(
                who.reference,
                bundles_of(session),
                ranks,
                lambda samples, n=ranks: cut(equal_parts, samples, n).tolist(),
                staleness=staleness,
                capacity=min(capacity, *(form.family.rows for form in session.parts.exchange.layout.bundled())),
                rule=rule,
                evict=evict,
                window=config.policy.window or 0,
                drains=(7, session.total_steps),
                rules=who,
            )
            about = (rules, staleness, capacity, optimizer, roles, rule)
            for step in session.steps():
                loss = session.parts.world.main.allreduce(np.array([step.run()]))[0]
                coming = batches[step.number + 1 :] if evict == "known" else ()
                expected = once(partial(one.step, batches[step.number], coming=coming))
                with on_every_rank():
                    assert abs(loss - expected) < 1e-12, (about, step.number)
            found = figures(session)
            every = COMM.allgather(session.parts.exchange.figures())
            counted = once(lambda one=one: one.counts | {"dropped": one.dropped})
            tables = [(t, f.name) for f in who.families for t in f.tables]
            whole = once(lambda who=who, of=tables: {t: (who.rows[name], who.reference.rows(t)) for t, name in of})
            with on_every_rank():
                for table, rows in dynamic_runs.learned(session).items():
                    known, expected_rows = whole[table]
                    assert rows.keys() == known, about
                    ids_T = dynamic_runs.ids_of_table(table)
                    for i, row in rows.items():
                        np.testing.assert_allclose(row, expected_rows[np.searchsorted(ids_T, i)], rtol=0, atol=1e-11)
                for name, n in counted.items():
                    assert name == "dropped" or sum(of.get(name, 0) for of in every) == n, (name, about)
                assert sum(of["dropped"] for of in found.values()) == counted["dropped"], about
            counts.update(counted)
    with on_every_rank():
        assert counts["dropped"] > 0 and counts["copies_read"] > 0, counts
        assert counts["pushed_no_row"] > 0 or COMM.size == 1, counts  # by itself a rank gives them up first


@pytest.mark.parallel([2, 3])
@pytest.mark.in_turn
def test_ranks_of_any_speed_and_the_same_run_again(folder: Path) -> None:
    write_data(folder / "data.h5")
    more = {"train": {"steps": 10, "eval_every": 4}, "data": {"validation": str(folder / "data.h5")}}
    for roles, lookahead, optimizer in covering(roles_for(COMM.size)[:2], (0, 1, 3), SUMMED):
        config = cached(config_of(folder, None, "rows", optimizer, topology=roles, **more), 2, 9, lookahead=lookahead)
        same_bits(trained(config, slowly(0.005)), trained(config), (roles, lookahead, optimizer))


@pytest.mark.parallel([1, 2, 3, 4])
@shared_out_or_all_cases
def test_interrupted_is_uninterrupted(cases_of: Cases, folder: Path) -> None:
    """Also where the checkpoint is loaded over a loop that was left with gradients held back."""
    write_data(folder / "data.h5")
    for number, (roles, lookahead, evict) in enumerate(cases_of((0, 2), ("lru", "known"))):
        more = {"topology": roles, "checkpoint": {"every": 4}, "train": {"steps": 9}}
        more["run"] = {"folder": str(folder / f"run-{number}")}
        config = cached(config_of(folder, None, "rows", "sgd", **more), 3, 9, max_age=2, lookahead=lookahead)
        config = replace(config, policy=replace(config.policy, **choosing(evict, 3)))
        expected = trained(config)
        expected.pop("losses")
        with open_session(config) as session:
            save_and_leave(session, config, saved=4, left=6)
            last = find_checkpoint(Path(config.run.folder), "last", session.parts.world.main)
            state.load(session, last, resume=True)
            for step in session.steps():
                step.run()
            same_bits(results(session), expected, roles)
        with open_session(config) as session:
            save_and_leave(session, config, saved=4, left=4)
        same_bits(gone_on(config), expected, roles)


@pytest.mark.in_turn
@pytest.mark.parallel([1, 2, 3, 4])
@pytest.mark.parametrize("evict", ["lru", "lfu"])
def test_rows_that_other_ids_get(evict: str, folder: Path) -> None:
    """Clocks of a row go on where its id has gone."""
    write_data(folder / "data.h5")
    for roles in roles_for(COMM.size):
        config = dynamic_of(folder, None, evict, roles, checkpoint={"every": 6})
        same_bits(grown(cached(config, 0, 5)), grown(as_rows(config)), roles)


def test_a_copy_is_too_old_by_what_others_have_pushed_since_it_was_sent() -> None:
    rule = Lags(4, Keeping(staleness=5, dense=(3, 4, 9)))
    rows = np.arange(4)

    def too_old(place: int) -> list[bool]:
        return list(rule.answer(rows, np.full(4, place)))

    rule.learned(np.array([0, 0, 1, 2]), np.array([0, 1, 1, NOBODY]), np.array([4, 2, 6, 300]))
    assert too_old(0) == [False, True, True, False], "what it pushed itself its copy has"
    assert too_old(1) == [False, False, True, False] and too_old(2) == [True, True, True, False]
    rule.sent(rows[:3], np.array([0, 0, 2]))
    assert too_old(0) == [False, False, True, False] and too_old(2) == [True, True, False, False]
    for n, old in ((1, False), (2, True)):
        rule.changed(rows[2:])  # by 3 ticks
        assert too_old(2)[2:] == [old, old], n
    rule.sent(rows, np.zeros(4, np.int64))
    rule.restarted(rows[1:2])
    assert too_old(0) == [False, True, False, False], "of an earlier life"


@pytest.mark.parallel([1, 2])
def test_what_does_not_go_with_it_is_refused(folder: Path) -> None:
    write_data(folder / "data.h5")
    roles = roles_for(COMM.size)[0]
    with on_every_rank(), pytest.raises(ConfigError, match=r"has the optimizer 'adam'"):
        open_session(cached(config_of(folder, None, "rows", "adam", topology=roles), 3))
    by_max = config_of(
        folder, None, "rows", "sgd", topology=roles, model={"name": "dlrm", "pooling": {"history": "max"}}
    )
    with on_every_rank(), pytest.raises(ConfigError, match=r"tables item are read in several ways"):
        open_session(cached(by_max, 3))
    with on_every_rank(), pytest.raises(ConfigError, match=r"policy.lookahead 1, so dense ranks read"):
        open_session(cached(config_of(folder, None, "rows", "adam", topology=roles), 0, lookahead=1))
    copies = config_of(folder, None, "copies", "sgd", topology=roles)
    with on_every_rank(), pytest.raises(ConfigError, match=r"no feature has form 'cached'"):
        open_session(cached(copies, 3))


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"policy": {"name": "cached", "staleness": "auto"}}, "policy.staleness is 'auto'"),
        ({"policy": {"name": "cached"}, "exchange": {"form": "partial"}}, "exchange.form is 'partial'"),
        ({"policy": {"name": "sync"}, "exchange": {"form": "cached"}}, "exchange.form is 'cached'"),
        ({"policy": {"name": "sync", "capacity": 10}}, "policy.capacity is 10"),
        ({"policy": {"name": "hybrid", "staleness": 2000}}, "policy.staleness is 2000"),
        ({"policy": {"name": "cached", "capacity": 1.5}}, "policy.capacity"),
        (
            {"policy": {"name": "cached", "rule": "max", "lookahead": 1}},
            "policy.lookahead is 1, but policy.rule is 'max'",
        ),
        ({"policy": {"name": "cached"}, "exchange": {"piece_bytes": 1}}, "exchange.piece_bytes is 1"),
        ({"policy": {"name": "hybrid", "window": 3}}, "policy.window is 3, but policy.name is 'hybrid'"),
        ({"policy": {"name": "cached", "window": 3}}, "policy.window is 3, but policy.cache is 'lru'"),
        ({"policy": {"name": "cached", "cache": "lfu", "window": 3}}, "policy.window is 3, but policy.cache is 'lfu'"),
        ({"policy": {"name": "cached", "cache": "known", "window": 0}}, "policy.window is 0"),
        (
            {"policy": {"name": "cached", "cache": "known"}, "exchange": {"form": "auto"}},
            "exchange.form is 'auto', but policy.cache is 'known'",
        ),
        (
            {"policy": {"name": "cached", "cache": "known"}, "exchange": {"forms": {"user": "auto"}}},
            "exchange.forms.user is 'auto', but policy.cache is 'known'",
        ),
    ],
)
def test_what_a_configuration_may_not_ask_for(sections: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        validate({"data": {"train": "t.h5"}, "run": {"folder": "r"}, **sections}, "here")


def test_only_the_rule_that_looks_ahead_has_a_window() -> None:
    of_policy = {
        cache: make_policy(
            validate({"data": {"train": "t"}, "run": {"folder": "r"}, "policy": {"name": "cached", **asked}}, "here")
        ).options
        for cache, asked in {"lru": {}, "known": {"cache": "known"}, "told": {"cache": "known", "window": 7}}.items()
    }
    assert {cache: options.window for cache, options in of_policy.items()} == {"lru": None, "known": 100, "told": 7}


@pytest.mark.parallel([1, 3])
def test_the_summary_and_the_memory_formula(folder: Path) -> None:
    write_data(folder / "data.h5")
    more = {"topology": roles_for(COMM.size)[0], "train": {"steps": 6}, "run": {"folder": str(folder / "run")}}
    config = cached(config_of(folder, None, "rows", "sgd", **more), 4, 7)
    assert commands.train(config) == 0
    found = json.loads((folder / "run" / "summary.json").read_text())["copies"]
    with on_every_rank():
        assert found["reads"] == found["copies_read"] + found["misses"] + found["too_old"]
        assert found["copies_read"] > 0 and found["capacity"] > 0
        few, many = (predict_memory(cached(config, 4, n), [0] * COMM.size)[-1].terms["kept rows"] for n in (4, 8))
        assert many == 2 * few > 0
        ahead = [cached(config, 4, 4, lookahead=n) for n in range(3)]
        none, one, two = (predict_memory(of, [0] * COMM.size)[-1].terms["kept rows"] for of in ahead)
        expected = 3 * 8 / COMM.size * elements_of_a_step(config, folder / "data.h5")
        assert expected > 0 and (one - none, two - one) == pytest.approx((expected, expected), abs=1)  # whole bytes
        of_known = [cached(config, 4, 4, **choosing("known", window)) for window in (1, 11)]
        one, eleven = (predict_memory(of, [0] * COMM.size)[-1].terms for of in of_known)
        assert few < one["kept rows"] == eleven["kept rows"] < 1.2 * few
        assert (
            eleven["steps ahead"] == pytest.approx(6 * one["steps ahead"], rel=1e-3)
            and eleven["batches"] > one["batches"]
        )


def elements_of_a_step(config: Config, data: Path) -> float:
    """Of the rows of all ids of a batch."""
    with DataSet(data) as found:
        return config.train.batch_size * config.model.width * sum(feature.mean_ids for feature in found.features)
