"""Runs the checks one after the other, each under a time limit, and says what each found as soon as it is known.

A check that hangs ends the job: what it was, and on which rank it hangs where that can be known. Knows no check.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from hpcrec.comm.probe import Probe
from hpcrec.doctor.base import Check, Finding, Site, fail

EXIT_READY, EXIT_NOT_READY = 0, 1
_OTHERS_WAIT_S = 2.0  # by which rank 0's words come before another rank ends the job
Say = Callable[[str], None]


@dataclass(frozen=True)
class _Raised:
    """What a rank answers whose measurement failed."""

    text: str


def examine(
    probe: Probe, make_site: Callable[[], Site], checks: Sequence[Check], say: Say, *, limit_s: float, as_json: bool
) -> int:
    """Runs the checks; collective. Returns the exit code, the same on every rank.

    Parameters
    ----------
    make_site : callable
        Called on every rank; its ``hosts`` are filled in here.
    say : callable
        Prints lines at once; called on rank 0, and on another only where rank 0 hangs.
    limit_s : float
        For each check.
    as_json : bool
        One JSON object at the end, instead of lines as they come.
    """
    report = _Report(probe, say, as_json)
    with _limit(probe, "start", limit_s, report):
        site = make_site()
        site.hosts = probe.share(site.host)
    report.site = site
    for check in checks:
        with _limit(probe, check.name, limit_s, report):
            try:
                answer = check.measure(site)
            except Exception as error:
                answer = _Raised(f"{type(error).__name__}: {error}")
            answers = probe.gather(answer)
        if answers is not None:
            for finding in _judged(check, answers, site):
                report.add(finding)
    report.end()
    code: int = probe.comm.bcast(report.exit_code)
    return code


def _judged(check: Check, answers: Sequence[object], site: Site) -> Iterator[Finding]:
    raised = {rank: a.text for rank, a in enumerate(answers) if isinstance(a, _Raised)}
    if not raised:
        yield from check.judge(answers, site)
        return
    first = next(iter(raised.values()))
    yield fail(check.name, f"{site.who(raised)}: {first}", "mend what the message says; nothing else of it was checked")


class _Report:
    """Findings so far, printed as they come."""

    def __init__(self, probe: Probe, say: Say, as_json: bool) -> None:
        self.site: Site | None = None
        self._probe, self._say, self._as_json = probe, say, as_json
        self._findings: list[Finding] = []

    def add(self, finding: Finding) -> None:
        self._findings.append(finding)
        if not self._as_json:
            self._say("\n".join(finding.lines))

    @property
    def problems(self) -> int:
        return sum(f.level == "FAIL" for f in self._findings)

    @property
    def exit_code(self) -> int:
        return EXIT_NOT_READY if self.problems else EXIT_READY

    def end(self) -> None:
        """The last line, or the JSON; on rank 0."""
        if self._probe.rank != 0:
            return
        if not self._as_json:
            warnings = sum(f.level == "warn" for f in self._findings)
            ready = f"ready, {warnings} warning{'s' * (warnings > 1)}" if warnings else "ready"
            plural = "s" * (self.problems > 1)
            self._say(f"not ready: {self.problems} problem{plural}" if self.problems else ready)
            return
        hosts = [] if self.site is None else self.site.hosts
        found = {"ready": not self.problems, "ranks": self._probe.size, "hosts": hosts}
        self._say(json.dumps({**found, "findings": [asdict(f) for f in self._findings]}, indent=1))

    def timed_out(self, name: str, limit_s: float) -> None:
        """Says which check hangs, and ends the job."""
        waiting = sorted(self._probe.missing)
        where = "" if self.site is None or not waiting else f"; no answer from {self.site.who(waiting)}"
        finding = fail(
            name,
            f"timed out: {name}, after {limit_s:g} s{where}",
            "look at that host and its network; --limit-s allows more time. Later checks were not made.",
        )
        if self._probe.rank == 0:
            self.add(finding)
            self.end()
        else:  # rank 0 should have ended the job before
            self._say("\n".join(finding.lines))
        self._probe.abort(EXIT_NOT_READY)


@contextlib.contextmanager
def _limit(probe: Probe, name: str, limit_s: float, report: _Report) -> Iterator[None]:
    """Ends the job where the block takes longer."""
    wait_s = limit_s + (_OTHERS_WAIT_S if probe.rank else 0.0)
    watch = threading.Timer(wait_s, report.timed_out, (name, limit_s))
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()
