"""What is seen of the steps to come: each batch enters once, in time, and is dealt once."""

from pathlib import Path
from typing import Any

import pytest

from hpcrec.build.session import open_session
from hpcrec.exchange.foresight import Window
from hpcrec.exchange.forms.rows import Rows
from tests.policy.test_cached import cached, choosing
from tests.policy.test_hybrid import config_of
from tests.training.runs import write_data


@pytest.mark.parametrize(("n", "steps"), [(6, 2), (3, 5), (3, 2), (1, 1), (0, 4)])
def test_every_batch_enters_once_and_in_time(n: int, steps: int) -> None:
    batches: list[Any] = [object() for _ in range(n)]
    entered: list[Any] = []
    number = -1
    for number, sight in enumerate(Window(iter(batches), steps)):
        entered += [of.batch for of in sight.entering]
        assert entered == batches[: number + steps + 1]
        assert sight.own.batch is batches[number]
    assert number == n - 1


@pytest.mark.parametrize("window", [None, 2, 50])
def test_a_batch_is_dealt_once(window: int | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(folder / "data.h5")
    config = config_of(folder, None, "rows", "sgd", train={"steps": 7}, checkpoint={"every": 3})
    config = cached(config, 2, 9, **(choosing("known", window) if window else {}))
    asked = list[int]()
    ask = Rows.ask
    monkeypatch.setattr(Rows, "ask", lambda self, columns: (asked.append(1), ask(self, columns))[1])
    with open_session(config) as session:
        bundles = len(list(session.parts.exchange.layout.bundled()))
        for step in session.steps():
            step.run()
            if window is None:
                continue
            seen = min(7, step.number + 1 + window + 1 + session.parts.look_ahead.submitted)
            assert len(asked) <= bundles * seen
    assert len(asked) == 7 * bundles
