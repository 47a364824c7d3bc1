"""Runs cases in which chosen calls on files fail: ``python -m tests.failing_files.errors``, with the library preloaded.

Each case is a child of this process, which a crash or a hang ends alone. Prints nothing; writes what was found as JSON.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.failing_files import seeded
from tests.failing_files.known import known
from tests.failing_files.library import CALLS, EMPTY, ERRORS, HITS, Control, Hit, kind_of

LIMIT_S = 120  # of a case, which takes a tenth of a second, one that trains 3 s; more beside other work
DUMP_S = 10  # before that the stacks of a case that hangs are written down
SAID = 3000  # bytes of what a case may say
LOOK_S = 0.001


@dataclass(frozen=True)
class Case:
    """The n-th call of a kind in a scenario fails, once or from then on."""

    scenario: str
    call: str
    error: str
    n: int
    on: bool


@dataclass(frozen=True)
class Outcome:
    """What became of a case: the calls that failed, whether the code raised, and what was wrong."""

    case: Case
    hits: tuple[Hit, ...]
    n_hits: int
    raised: str
    wrong: tuple[str, ...]
    calls: dict[str, int]


class Clock:
    """Time that passes by sleeping: waits of minutes take none, and a thread that looks again lets others go on."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._now, self._sleep = time.monotonic, time.sleep

    def sleep(self, seconds: float) -> None:
        self._sleep(min(seconds, LOOK_S))
        self._ahead_s += seconds

    def monotonic(self) -> float:
        return self._now() + self._ahead_s

    def install(self) -> None:
        time.sleep, time.monotonic = self.sleep, self.monotonic


def plain(path: str) -> str:
    """A path as messages may have it: without the names that a file and its folders have while they are written."""
    return re.sub(r"/\.([^/]+?)\.[\w-]+\.part(?=/|$)", r"/\1", path)


def names(text: str, hit: Hit) -> bool:
    """Whether an error's text names the file of a call; of a folder also a file in it."""
    return any(path in text for path in (hit.path, plain(hit.path)))


def named(text: str, hits: Sequence[Hit]) -> bool:
    """Whether it names one that failed."""
    return any(names(text, hit) for hit in hits)


def attempt(scenario: Any, control: Control, case: Case, folder: Path) -> dict[str, Any]:
    """One case, in a process of its own."""
    Clock().install()
    error: BaseException | None = None
    warnings.simplefilter("ignore")
    scenario.one_write = case.call == "write" and not case.on
    scenario.closes = case.call == "close"
    control.arm(case.call, case.n, case.error, on=case.on)
    try:
        scenario.act(folder)
    except Exception as caught:
        error = caught
    finally:
        calls = control.calls()
        control.disarm()
    from hpcrec.errors import HpcrecError  # after a seeded fault is in place

    hits = [control.hit(i) for i in range(min(control.hits(), HITS))]
    wrong = []
    if error is not None:
        text = f"{type(error).__name__}: {error}"
        if not isinstance(error, HpcrecError | OSError) or isinstance(error, AssertionError):
            trace = traceback.format_exception(error)
            wrong.append(f"not an error of ours: {text} {' '.join(trace[-2:])}")
        elif not named(text, hits):
            wrong.append(f"the error does not name the file: {text}")
    try:
        wrong += scenario.judge(folder, whole=error is None)
    except Exception as caught:
        trace = "".join(traceback.format_exception(caught)[-3:])
        wrong.append(f"judged: {type(caught).__name__}: {caught} {trace}")
    return {"raised": "" if error is None else f"{type(error).__name__}: {error}", "wrong": wrong, "calls": calls}


def in_child(work: Any) -> dict[str, Any]:
    """What ``work`` returns in a process of its own; how that ended where it returns nothing."""
    reading, writing = os.pipe()
    stacks = tempfile.TemporaryFile()  # noqa: SIM115
    child = os.fork()
    if child == 0:
        os.close(reading)
        with contextlib.suppress(BaseException):
            signal.alarm(LIMIT_S)
            faulthandler.dump_traceback_later(LIMIT_S - DUMP_S, file=stacks)
            found = json.dumps(work()).encode()
            while found:
                found = found[os.write(writing, found) :]
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        text = said.read()
    _, status = os.waitpid(child, 0)
    with stacks:
        stacks.seek(0)
        where = stacks.read().decode(errors="replace")
    if status or not text:
        code = os.waitstatus_to_exitcode(status)
        hung = f"it hung for {LIMIT_S} s:\n{where}"
        return {"raised": "", "wrong": [hung if code == -signal.SIGALRM else f"crash: {code}"]}
    return dict(json.loads(text))


class Bench:
    """Scenarios, each with the folder that its cases begin with."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        from tests.failing_files.every import SCENARIOS

        self.control = Control()
        self._folder = folder
        self._scenarios = {name: SCENARIOS[name]() for name in names}
        self.calls: dict[str, dict[str, int]] = {}
        for name, scenario in self._scenarios.items():
            run = folder / name / "run"
            scenario.begin(run)
            run.rename(folder / name / "begun") if run.exists() else None
            found = self.run(Case(name, "open", "EIO", 1 << 30, False))
            assert not found.wrong and not found.raised and not found.n_hits, found
            self.calls[name] = found.calls

    def cases(self) -> Iterator[Case]:
        """All: for each call up to one more than a run makes, by each error that it may give."""
        for name, calls in self.calls.items():
            for call in CALLS:
                for error in ERRORS:
                    if (call, error) not in EMPTY:
                        for on in (False, True):
                            for n in range(1, calls[call] + 2):
                                yield Case(name, call, error, n, on)

    def last(self, case: Case) -> int:
        """The number of the last call of that kind that its scenario makes where nothing fails."""
        return self.calls[case.scenario][case.call]

    def run(self, case: Case) -> Outcome:
        """One of them, on a folder of its own."""
        from tests.failing_files.scenarios import copied

        folder = self._folder / case.scenario / "run"
        shutil.rmtree(folder, ignore_errors=True)
        self.control.watch(Path("/nowhere"))
        if (self._folder / case.scenario / "begun").exists():
            copied(self._folder / case.scenario / "begun", folder)
        self.control.watch(folder)
        scenario = self._scenarios[case.scenario]
        self.control.arm(case.call, case.n, case.error, on=case.on)  # so that no count of the last case is left
        self.control.disarm()
        found = in_child(lambda: attempt(scenario, self.control, case, folder))
        n = self.control.hits()
        hits = tuple(self.control.hit(i) for i in range(min(n, HITS)))
        return Outcome(case, hits, n, found["raised"], tuple(found["wrong"]), found.get("calls", {}))


def main() -> None:
    """Runs so many cases, drawn by a seed, and writes their counts and all that was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", required=True)
    parser.add_argument("--cases", type=int, default=0, help="so many, drawn by the seed; 0: all")
    parser.add_argument("--past", type=int, default=0, help="only calls that are so many past the last one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", default="0/1", help="the i-th of so many parts: i/k")
    parser.add_argument("--wrong", type=int, default=20, help="ends after so many that are wrong")
    parser.add_argument("--limit-s", type=float, default=1e9, help="ends when so much time is used")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    part, parts = map(int, args.share.split("/"))
    # A child of a process that had threads of OpenMP waits for them for ever once it would compute with several: with
    # one core neither does.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[part % len(cores)]})
    seeded.install()
    with tempfile.TemporaryDirectory(prefix="hpcrec-failing-") as folder:
        bench = Bench(Path(folder), args.scenarios.split(","))
        everything = [case for case in bench.cases() if not args.past or case.n == bench.last(case) + args.past]
        random.Random(args.seed).shuffle(everything)
        chosen = everything[: args.cases or None][part::parts]
        counts, foreseen = Counter[str](), Counter[str]()
        wrong: list[dict[str, Any]] = []
        ran = took = raised = 0
        began_s = time.monotonic()
        for case in chosen:
            found = bench.run(case)
            ran += 1
            took += found.n_hits > 0
            raised += bool(found.raised)
            kind = "none"
            if found.n_hits:
                kind = kind_of(found.hits[0].path, str(Path(folder) / case.scenario / "run"))
                counts[f"{case.call}|{kind}|{case.error}"] += 1
            said = [f"{case.call}|{case.scenario}|{kind}|{text}" for text in found.wrong]
            foreseen.update(why for text in said if (why := known(text)))
            if left := [text for text in said if not known(text)]:
                wrong.append({**asdict(case), "hits": [asdict(h) for h in found.hits[:3]], "wrong": left})
            if len(wrong) >= args.wrong or time.monotonic() - began_s > args.limit_s:
                break
        result = {
            "of": len(everything), "ran": ran, "took_effect": took, "raised": raised,
            "seconds": round(time.monotonic() - began_s, 1),
            "calls": bench.calls, "counts": dict(sorted(counts.items())), "known": dict(foreseen), "wrong": wrong,
        }  # fmt: skip
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
