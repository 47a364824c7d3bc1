"""Counts the functions of hpcrec that one training step enters, the files that they are in, and the calls of them.

    hpcrec run -n 2 -- tools/step_trace.py examples/quickstart/config.toml [--set section.key=value ...]
        [--walk] [--json FILE] [--markdown FILE]

Of rank 0, on all its threads: those that read and route work for a step to come, so a step has one of everything;
threads that also do something while there is no step, as a watch does, are left out. Comprehensions are no functions
here. ``--walk`` also prints what is entered, in order, indented by depth: each function
under one that called it, once. ``--json`` writes the figures. ``--markdown`` writes the walk of one batch between two
lines of a page, ``<!-- walk -->`` and ``<!-- /walk -->``: the functions by which it comes from one file into another.
Knows how to run a session; knows none of its functions by name, so any version of the package that is installed will
do.
"""

import argparse
import importlib.util
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOUND = importlib.util.find_spec("hpcrec")
ROOT = Path(str(FOUND and FOUND.origin)).parent
WARM_STEPS, SPARE_STEPS = 4, 64  # spare: so that nothing that runs ahead comes to the run's end
SETTLE_S = 0.5  # in which what runs ahead of a step ends, before and after it
IDLE_S = 1.5  # in which a watch looks
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>", "<module>")
MARKS = ("<!-- walk -->\n", "<!-- /walk -->\n")


@dataclass(frozen=True)
class Entered:
    """A function at the place in the walk where it is entered first; ``depth``: functions of ours that call it."""

    depth: int
    file: str
    function: str


@dataclass
class Trace:
    """What one step entered; ``calls`` by file below the package and function."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    walks: dict[str, list[Entered]] = field(default_factory=dict)  # by thread, the main one last

    @property
    def figures(self) -> dict[str, int]:
        """Functions, files and calls."""
        return {
            "functions": len(self.calls),
            "files": len({file for file, _ in self.calls}),
            "calls": sum(self.calls.values()),
        }

    @property
    def most(self) -> str:
        """The files whose functions are called most."""
        by_file: Counter[str] = Counter()
        for (file, _), n in self.calls.items():
            by_file[file] += n
        return ", ".join(f"{file} {n}" for file, n in sorted(by_file.items(), key=lambda of: (-of[1], of[0]))[:12])


class Tracer:
    """Made before a session's threads are; notes what is called while it is ``on``, and who calls while ``idle``."""

    def __init__(self) -> None:
        self.on = self.idle = False
        self._watches: set[int] = set()
        self.calls: Counter[tuple[str, str]] = Counter()
        self._walks: dict[int, list[Entered]] = {}  # by thread, in the order of their first step
        self._threads: dict[int, str] = {}
        self._lock = threading.Lock()
        self._named: dict[CodeType, tuple[str, str] | None] = {}
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def close(self) -> Trace:
        """What was noted. A batch is handed from thread to thread in the order in which they were started."""
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        main = threading.main_thread().ident
        order = sorted(self._walks, key=lambda ident: (ident == main, list(self._threads).index(ident)))
        return Trace(self.calls, {self._threads[ident]: self._walks[ident] for ident in order})

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        ident = threading.get_ident()
        if ident not in self._threads:
            self._threads[ident] = threading.current_thread().name
        if not (self.on or self.idle) or ident in self._watches:
            return
        name = self._name(frame.f_code)
        if name is None:
            return
        if self.idle:
            self._watches.add(ident)
            return
        with self._lock:
            self.calls[name] += 1
            if self.calls[name] == 1:
                self._walks.setdefault(ident, []).append(Entered(self._depth(frame), *name))

    def _depth(self, frame: FrameType) -> int:
        depth, above = 0, frame.f_back
        while above is not None:
            depth += self._name(above.f_code) is not None
            above = above.f_back
        return depth

    def _name(self, code: CodeType) -> tuple[str, str] | None:
        """File and function, where it is one of ours."""
        if code not in self._named:
            path = Path(code.co_filename)
            ours = path.is_relative_to(ROOT) and code.co_name not in INLINE
            self._named[code] = (str(path.relative_to(ROOT)), code.co_qualname) if ours else None
        return self._named[code]


def traced(config: str, settings: Sequence[str]) -> Trace:
    """Opens a session, runs some steps, and traces the one that follows; collective, each rank its own."""
    tracer = Tracer()
    from mpi4py import MPI

    import hpcrec

    def settle() -> None:
        time.sleep(SETTLE_S)
        MPI.COMM_WORLD.Barrier()

    every = [f"train.steps={WARM_STEPS + 1 + SPARE_STEPS}", *settings]
    with hpcrec.open_session(config, every) as session:
        steps = session.steps()
        for _ in range(WARM_STEPS):
            next(steps).run()
        settle()
        tracer.idle = True
        time.sleep(IDLE_S)
        tracer.idle, tracer.on = False, True
        next(steps).run()
        settle()
        tracer.on = False
        return tracer.close()


def hops(walk: Sequence[Entered]) -> Iterator[Entered]:
    """Functions that are entered from another file than their own, at the depth that they have among these."""
    above: list[tuple[Entered, int]] = []  # those that call the next, and at which depth they are told
    for one in walk:
        while above and above[-1][0].depth >= one.depth:
            above.pop()
        caller, depth = above[-1] if above else (None, -1)
        if caller is None or caller.file != one.file:
            depth += 1
            yield Entered(depth, one.file, one.function)
        above.append((one, depth))


def markdown(trace: Trace) -> str:
    """The walk as a list for each thread."""
    lines = []
    for thread, walk in trace.walks.items():
        lines.append(f"\nThread `{thread}`:\n\n")
        lines += [f"{'  ' * one.depth}- `{one.function}` {one.file}\n" for one in hops(walk)]
    return "".join(lines) + "\n"


def put_into(page: Path, text: str) -> None:
    """Writes between the two marks of a page."""
    before, first, rest = page.read_text().partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if not first or not last:
        sys.exit(f"step_trace: {page} has no line {MARKS[0].strip()} with a line {MARKS[1].strip()} after it")
    page.write_text(before + first + text + last + after)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--walk", action="store_true", help="print what is entered, in order")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the walk between the marks of this page")
    args = parser.parse_args()
    from hpcrec.comm.start import start

    rank = start(os.environ)
    trace = traced(args.config, args.settings)
    if rank:
        return
    for thread, walk in trace.walks.items() if args.walk else ():
        print(f"thread {thread}")
        for one in walk:
            print(f"{'  ' * one.depth}{one.function}  {one.file}  {trace.calls[one.file, one.function]}")
    if args.json:
        args.json.write_text(json.dumps({**trace.figures, "most": trace.most, "package": str(ROOT)}))
    if args.markdown:
        put_into(args.markdown, markdown(trace))
    print(", ".join(f"{n} {name}" for name, n in trace.figures.items()))
    print(f"most calls: {trace.most}")


if __name__ == "__main__":
    main()
