"""Counts the functions of hpcrec that one training step enters, the files that they are in, and the calls of them.

    hpcrec run -n 2 -- tools/step_trace.py examples/quickstart/config.toml [--set section.key=value ...] [--walk]

Of rank 0, on all its threads: those of routing work for the step to come, so a step has one of everything.
Comprehensions are no functions here. ``--walk`` also prints what is entered, in order, indented by depth: each function
under one that called it, once. ``traced`` is what benchmarks call. Knows how to run a session; knows none of its
functions by name.
"""

import argparse
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent / "hpcrec"
WARM_STEPS = 4
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>", "<module>")


@dataclass
class Trace:
    """What one step entered; ``calls`` by file below the package and function."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    walks: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)  # by thread: depth, file, function

    @property
    def figures(self) -> dict[str, int]:
        """Functions, files and calls."""
        return {
            "functions": len(self.calls),
            "files": len({file for file, _ in self.calls}),
            "calls": sum(self.calls.values()),
        }


class Tracer:
    """Made before a session's threads are; notes what is called while it is ``on``."""

    def __init__(self) -> None:
        self.on = False
        self.trace = Trace()
        self._lock = threading.Lock()
        self._named: dict[CodeType, tuple[str, str] | None] = {}
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        if code not in self._named:
            self._named[code] = self._name(code)
        name = self._named[code]
        if name is None:
            return
        with self._lock:
            self.trace.calls[name] += 1
            if self.trace.calls[name] == 1:
                walk = self.trace.walks.setdefault(threading.current_thread().name, [])
                walk.append((self._depth(frame), *name))

    def _depth(self, frame: FrameType) -> int:
        """Functions of ours that are being called."""
        depth, above = 0, frame.f_back
        while above is not None:
            if above.f_code not in self._named:
                self._named[above.f_code] = self._name(above.f_code)
            depth += self._named[above.f_code] is not None
            above = above.f_back
        return depth

    @staticmethod
    def _name(code: CodeType) -> tuple[str, str] | None:
        path = Path(code.co_filename)
        if not path.is_relative_to(ROOT) or code.co_name in INLINE:
            return None
        return str(path.relative_to(ROOT)), code.co_qualname


def traced(config: str, settings: Sequence[str]) -> Trace:
    """Opens a session, runs some steps, and traces the one that follows; collective, each rank its own."""
    tracer = Tracer()
    import hpcrec

    every = [f"train.steps={WARM_STEPS + 3}", *settings]
    with hpcrec.open_session(config, every) as session:
        barrier = session.parts.world.main.barrier
        steps = session.steps()
        for _ in range(WARM_STEPS):
            next(steps).run()
        barrier()
        tracer.on = True
        next(steps).run()
        barrier()
        tracer.on = False
        for step in steps:
            step.run()
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    return tracer.trace


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value", dest="settings")
    parser.add_argument("--walk", action="store_true", help="print what is entered, in order")
    args = parser.parse_args()
    from hpcrec.comm.start import start

    rank = start(os.environ)
    trace = traced(args.config, args.settings)
    if rank:
        return
    for thread, walk in trace.walks.items() if args.walk else ():
        print(f"thread {thread}")
        for depth, file, function in walk:
            print(f"{'  ' * depth}{function}  {file}  {trace.calls[file, function]}")
    by_file: Counter[str] = Counter()
    for (file, _), n in trace.calls.items():
        by_file[file] += n
    print(", ".join(f"{n} {name}" for name, n in trace.figures.items()))
    print("most calls: " + ", ".join(f"{file} {n}" for file, n in by_file.most_common(12)))


if __name__ == "__main__":
    main()
