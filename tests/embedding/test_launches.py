"""What a step asks of a device whose cache lies over another one over a disk: as much as over main memory, counted."""

from collections import Counter
from threading import Lock
from typing import Any

import pytest

from tests.devices import device_or_skip
from tests.embedding.test_stores import OPEN, STORES, Steps

MOVES = ("to_device", "to_host", "copy_to_host")


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_a_tier_more_adds_no_launch_and_no_copy(optimizer: str, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's memory has 32 rows of each table and some more, so rows come and go in each step."""
    there, now, lock = device_or_skip("emulated"), Counter[str](), Lock()

    def counted(name: str) -> None:
        run = getattr(there, name)

        def counting(*args: Any, **more: Any) -> Any:
            with lock:  # rows are brought by threads
                now[f"{name} {args[0]}" if name == "call" else name] += 1
            return run(*args, **more)

        monkeypatch.setattr(there, name, counting)

    for name in ("call", *MOVES):
        counted(name)
    seen = dict[str, list[Counter[str]]]()
    for store in ("emulated cached", "emulated over disk"):
        with OPEN:
            s = Steps(STORES[store], optimizer, seed=3)
            noted = [s.note(train=True) for _ in range(ahead)]
            for step in range(25):
                now.clear()
                noted.append(s.note(train=True))
                s.gather(noted.pop(0), train=True)
                s.learn(left_out=step % 11 == 10)
                seen.setdefault(store, []).append(Counter(now))
            told = s.pair[1].figures()
            assert told["cache_hits"] < 0.7, told
    over_memory, over_disk = seen.values()
    assert told["disk_rows_read"] > 500, told
    for step, (wanted, found) in enumerate(zip(over_memory, over_disk, strict=True)):
        if step < ahead:  # rows of the first steps were known before the first one
            continue
        assert found == wanted, f"step {step}: {found - wanted} more, {wanted - found} fewer"
    launches = [sum(n for name, n in of.items() if name.startswith("call")) for of in over_disk]
    copies = [sum(of[name] for name in MOVES) for of in over_disk]
    assert min(launches[1:]) >= 10 and min(copies[1:]) >= 5, "they are counted"
    assert max(launches[5:]) <= 1.5 * min(launches[5:]), "however many rows there are"
