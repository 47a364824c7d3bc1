"""Records what ranks do to files, then lets power go at drawn calls: ``python -m tests.failing_files.cuts``.

The library is preloaded. Ranks are threads of this process, each a host of its own. Prints nothing; writes what was
found as JSON.
"""

import argparse
import copy
import json
import random
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tests.failing_files import seeded
from tests.failing_files.errors import in_child
from tests.failing_files.known import known
from tests.failing_files.library import Control
from tests.failing_files.power import MARK, Disk, Record, records

PASS = 60  # cuts from the first call to the last; then again from the first


class Threads:
    """``Ranks`` of which each is a thread."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._all = threading.Barrier(size)
        self._things: list[Any] = [None] * size

    def rank(self, number: int) -> "ThreadRank":
        return ThreadRank(self, number)

    def everyone(self, number: int, thing: Any) -> list[Any]:
        self._things[number] = thing
        self._all.wait(60)
        found = list(self._things)
        self._all.wait(60)
        return found

    def stop(self) -> None:
        self._all.abort()


class ThreadRank:
    """One of them."""

    def __init__(self, threads: Threads, number: int) -> None:
        self._threads, self.rank, self.size = threads, number, threads.size

    def comes_on(self) -> None:
        """Nobody looks whether it does."""

    def allgather(self, thing: Any) -> list[Any]:
        return self._threads.everyone(self.rank, thing)

    def bcast(self, thing: Any, root: int = 0) -> Any:
        return self._threads.everyone(self.rank, thing)[root]


def recorded(control: Control, scenario: Any, folder: Path, ranks: int, log: Path) -> tuple[Disk, list[Record]]:
    """What a scenario does on so many ranks: the folder before, and each call."""
    watched = scenario.watched(folder)
    scenario.begin_cuts(folder)
    before = Disk(watched)
    threads, errors = Threads(ranks), []

    def work(number: int) -> None:
        control.host(number)
        try:
            scenario.act_on(folder, threads.rank(number), control.mark)
        except BaseException as error:
            errors.append(error)
            threads.stop()

    with log.open("wb", buffering=0) as file:
        control.watch(watched)
        control.note_to(file.fileno())
        running = [threading.Thread(target=work, args=(n,)) for n in range(ranks)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        control.note_to(None)
        control.watch(Path("/nowhere"))
    if errors:
        raise errors[0]
    return before, list(records(log.read_bytes()))


def judged(scenario: Any, folder: Path, marks: list[str]) -> dict[str, Any]:
    """What is wrong with what is left, in a process of its own."""
    warnings.simplefilter("ignore")
    try:
        return {"wrong": scenario.judge_cut(folder, marks)}
    except Exception as error:
        return {"wrong": ["".join(traceback.format_exception(error)[-3:])]}


class Cuts:
    """What was cut so far, and what was found wrong."""

    def __init__(self, seed: int, most_wrong: int) -> None:
        self._control, self._seed, self._most_wrong = Control(), seed, most_wrong
        self.done = self.tried = 0
        self.counts: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.wrong: list[dict[str, Any]] = []

    def of(self, scenario: Any, name: str, folder: Path, until: int) -> None:
        """Records a scenario, and cuts at calls of it until there are so many cuts in all."""
        self._draw = random.Random(f"{self._seed} {name}")
        what, _, n = name.partition("+")
        ranks = int(what.partition("/")[2] or 1)
        if n:
            self._control.arm("fsync", int(n), "EIO", on=False)
        before, log = recorded(self._control, scenario, folder / "run", ranks, folder / "log")
        self._control.disarm()
        calls = sum(record.call != MARK for record in log)
        while self.done < until and len(self.wrong) < self._most_wrong:
            self._once(scenario, name, folder / "run", copy.deepcopy(before), log, min(until - self.done, PASS) / calls)

    def _once(self, scenario: Any, name: str, folder: Path, disk: Disk, log: list[Record], each: float) -> None:
        """From the first call to the last, with so many cuts at each on average."""
        owed, marks, watched = self._draw.random(), [], scenario.watched(folder)
        for record in log:
            if record.call == MARK:
                marks.append(record.path)
                continue
            disk.apply(record)
            owed, misses = owed + each, 0
            while owed >= 1 and misses < 3 and len(self.wrong) < self._most_wrong:
                self.tried += 1
                every = tuple(sorted(disk.hosts))
                hosts = every if len(every) == 1 or self._draw.random() < 0.5 else (self._draw.choice(every),)
                cut = disk.cut(watched, hosts, self._draw)
                if not cut.lost:  # it counts only where it took effect
                    misses += 1
                    continue
                owed, self.done = owed - 1, self.done + 1
                whose = "one host" if len(every) == 1 else "all hosts" if hosts == every else "one of several hosts"
                self.counts.update(f"{record.name}|{kind}|{whose}" for kind, _ in cut.lost)
                found = in_child(lambda: judged(scenario, folder, list(marks)))["wrong"]
                at = f"{record.name} {record.path} {record.other}".strip()
                said = [text for text in found if not (why := known(f"cut|{name}|{text}"))]
                self.known.update(why for text in found if (why := known(f"cut|{name}|{text}")))
                if said:
                    entry = {"scenario": name, "seed": self._seed, "cut": self.done, "at": at, "hosts": hosts}
                    self.wrong.append({**entry, "lost": cut.lost, "wrong": said})


def main() -> None:
    """Cuts as often as asked, and writes the counts and all that was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", required=True, help="first/2+5,...: on 2 ranks, the 5th fsync failing")
    parser.add_argument("--cuts", type=int, required=True, help="that lose something, in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wrong", type=int, default=20, help="ends after so many that are wrong")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    seeded.install()
    from tests.failing_files.every import SCENARIOS  # after a seeded fault is in place

    began_s, chosen = time.monotonic(), args.scenarios.split(",")
    cuts = Cuts(args.seed, args.wrong)
    with tempfile.TemporaryDirectory(prefix="hpcrec-cuts-") as top:
        for i, name in enumerate(chosen):
            (Path(top) / str(i)).mkdir()
            cuts.of(SCENARIOS[name.partition("/")[0]](), name, Path(top) / str(i), args.cuts * (i + 1) // len(chosen))
    result = {
        "cuts": cuts.done, "tried": cuts.tried, "seconds": round(time.monotonic() - began_s, 1),
        "counts": dict(sorted(cuts.counts.items())), "known": dict(cuts.known), "wrong": cuts.wrong,
    }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
