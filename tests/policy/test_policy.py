"""The order of events that follows from a policy, drain points, and the table of what waits for what."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcrec.build.tables import make_policy
from hpcrec.config import validate
from hpcrec.errors import ConfigError
from hpcrec.policy import POLICIES
from hpcrec.policy.ahead import Ahead, AheadOptions
from hpcrec.policy.hybrid import Hybrid, HybridOptions
from hpcrec.policy.policy import EVALUATE, LEARN, LEARN_FIRST, LEARN_REST, READ, READ_EARLY, READ_LATE, Points, events
from hpcrec.policy.refusals import refuse
from hpcrec.policy.table import table, waits
from hpcrec.systems import persia

DATA = {"data": {"train": "x"}, "run": {"folder": "y"}}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"


def hybrid(staleness: int) -> Hybrid:
    return Hybrid(HybridOptions(staleness=staleness))


WHOLE = [make(make.Options()) for make in POLICIES.values() if not getattr(make, "parts", False)]


@pytest.mark.parametrize("policy", [*WHOLE, *map(hybrid, (0, 2, 3, 10))])
def test_each_step_is_read_at_its_version_and_learned_once(policy) -> None:
    for first, last in ((0, 9), (4, 5), (7, 7), (3, 12)):
        learned, flying, read = first, 0, []
        for event, step in events(policy, first, last):
            if event == READ:
                assert learned == policy.version(step, first), "it sees the updates of the steps before its version"
                read.append(step)
                flying += 1
                assert flying <= policy.in_flight
            else:
                assert (event, step) == (LEARN, learned) and step in read
                learned, flying = learned + 1, flying - 1
        assert read == list(range(first, last)) and learned == last


def test_what_is_read_ahead_is_read_before_and_after_the_rows_that_it_shares_are_learned() -> None:
    order = list(events(Ahead(AheadOptions()), 4, 7, lambda step: step == 6))
    assert order[:5] == [(READ, 4), (READ_EARLY, 5), (LEARN_FIRST, 4), (READ_LATE, 5), (LEARN_REST, 4)]
    assert order[5:] == [(READ_EARLY, 6), (LEARN_FIRST, 5), (READ_LATE, 6), (LEARN_REST, 5), (EVALUATE, 6), (LEARN, 6)]


def test_an_evaluation_comes_after_an_update_and_before_the_next_read() -> None:
    order = list(events(hybrid(2), 0, 6, lambda step: step % 2 == 0))
    assert order[:5] == [(READ, 0), (READ, 1), (READ, 2), (LEARN, 0), (READ, 3)]
    for step in (2, 4):
        at = order.index((EVALUATE, step))
        assert order[at - 1] == (LEARN, step - 1)
        assert order[at + 1] == ((READ, step + 2) if step + 2 < 6 else (LEARN, step))
    assert [o for o in order if o[0] == EVALUATE] == [(EVALUATE, 2), (EVALUATE, 4)]  # at 0 and 6 nothing is in flight


def test_a_policy_that_answers_what_it_may_not_is_found() -> None:
    policy = hybrid(1)
    policy.in_flight = 1
    with pytest.raises(AssertionError, match="may answer"):
        list(events(policy, 0, 4))
    policy.version = lambda step, since: step + 1
    with pytest.raises(AssertionError, match="may answer"):
        list(events(policy, 0, 4))


def test_a_policy_may_give_its_own_events() -> None:
    class InParts(Hybrid):
        def events(self, first, last, evaluated):
            yield from (("early", first), ("late", last))

    assert list(events(InParts(HybridOptions()), 2, 5)) == [("early", 2), ("late", 5)]


def test_what_waits_for_what_in_parts() -> None:
    said = table(Ahead(AheadOptions()))
    assert "| read early t | all | values | ids t; learn rest t - 2 |" in said
    assert "| learn rest t | all | values | read late t + 1 |" in said


def test_what_the_pipeline_does_not_run_is_refused() -> None:
    layout = SimpleNamespace(away=(), staged=(), conditional=())
    early = hybrid(0)
    early.events = lambda first, last, evaluated: iter(())
    parts = hybrid(0)
    parts.parts = True
    refuse(hybrid(1), "hybrid", layout)
    refuse(hybrid(0), "hybrid", layout)
    with pytest.raises(ConfigError, match=r"'early', which has an order of its own \(events, parts\)"):
        refuse(early, "early", layout)
    with pytest.raises(ConfigError, match=r"'parts', which has an order of its own \(events, parts\)"):
        refuse(parts, "parts", layout)


def test_drain_points_are_a_function_of_the_step() -> None:
    points = Points(drains=(4, 0, 6), evaluations=(3,))
    assert [points.next_drain(step, 20) for step in (0, 3, 4, 5, 6, 12, 19)] == [4, 4, 6, 6, 8, 16, 20]
    assert Points().next_drain(3, 8) == 8
    assert [step for step in range(1, 10) if points.evaluated(step)] == [3, 6, 9]


def test_a_policy_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy\.name is 'psync'\. Allowed: 'sync', 'hybrid', 'ahead', 'cached'\."):
        validate({**DATA, "policy": {"name": "psync"}}, "test")


def test_the_page_has_the_table_of_every_policy() -> None:
    """``docs/architecture.md`` has between its markers what this gives."""
    parts = [f"`{name}`:\n\n{table(make(make.Options()))}" for name, make in POLICIES.items()]
    expected = "<!-- waits -->\n" + "\n\n".join(parts) + "\n<!-- /waits -->"
    found = PAGE.read_text()
    found = found[found.index("<!-- waits -->") : found.index("<!-- /waits -->") + len("<!-- /waits -->")]
    assert found == expected, f"to be put there:\n{expected}"


def test_what_overlaps_is_seen_in_the_table() -> None:
    by_event = {(w.event, w.ranks): w for w in waits(hybrid(1))}
    assert by_event["read t", "all"].thread == "values"
    assert by_event["read t", "all"].waits_for == ("ids t", "learn t - 2")
    assert by_event["learn t", "owners"].waits_for[1] == "read t + 1"
    assert by_event["dense update t", "dense"].waits_for == ("agree t",)
    assert by_event["evaluation after t", "all"].waits_for == ("learn t", "and is over before read t + 2")


@pytest.mark.parametrize("name", ["sync", "ahead"])
def test_a_staleness_is_of_hybrid_alone(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.staleness is 2, but policy\.name is '{name}', which has none"):
        validate({**DATA, "policy": {"name": name, "staleness": 2}}, "test")
    with pytest.raises(ConfigError, match=r"policy\.staleness"):
        validate({**DATA, "policy": {"name": "hybrid", "staleness": -1}}, "test")


def test_the_staleness_that_is_asked_for_is_what_runs() -> None:
    for given, in_flight in (({}, 2), ({"staleness": 0}, 1), ({"staleness": 7}, 8)):
        config = validate({**DATA, "policy": {"name": "hybrid", **given}}, "test")
        assert make_policy(config).in_flight == in_flight
    found = validate({**persia.configuration(4), "data": {"train": "x"}, "run": {"folder": "y"}}, "test")
    assert make_policy(found).in_flight == 5
