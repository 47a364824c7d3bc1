"""What a check is: a measurement on every rank, and a judgement of all of them on rank 0.

Knows no particular check; they are in the modules beside this one and listed in ``registry``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hpcrec.comm.probe import Probe
from hpcrec.config import Config

LEVELS = ("ok", "warn", "FAIL")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    level : str
        One of ``LEVELS``. A run may start with warnings; it should not with a ``FAIL``.
    what : str
        The check's subject.
    found : str
    do : str
        What to change; empty where all is well.
    data : dict
        Figures behind it, for ``--json``.
    """

    level: str
    what: str
    found: str
    do: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.level in LEVELS and (self.level == "ok") == (not self.do), self

    @property
    def lines(self) -> list[str]:
        """As the terminal shows it."""
        return [f"{self.level:<4}  {self.what:<15} {self.found}", *([f"      do: {self.do}"] if self.do else [])]


def ok(what: str, found: str, **data: Any) -> Finding:
    """All is well."""
    return Finding(level="ok", what=what, found=found, data=data)


def warn(what: str, found: str, do: str, **data: Any) -> Finding:
    """A run will work, but slowly, or not as one might believe."""
    return Finding(level="warn", what=what, found=found, do=do, data=data)


def fail(what: str, found: str, do: str, **data: Any) -> Finding:
    """A run will not work."""
    return Finding(level="FAIL", what=what, found=found, do=do, data=data)


@dataclass(kw_only=True)
class Site:
    """What the checks look at, seen from one rank.

    Attributes
    ----------
    probe : Probe
    environment : dict
        ``os.environ``.
    folder : Path
        Where runs will be written.
    host : str
        This rank's host.
    hosts : list of str
        Host of each rank.
    root : Path
        ``/``, below which ``proc``, ``sys`` and ``dev`` are.
    config : Config or None
        Of the run to come.
    scratch : Path or None
        Folder on the disk of each host; None: as the environment says.
    samples_per_s : float or None
        That the run is to handle; None: as an earlier run in its folder did, if there is one.
    checkpoint_s : float
        Longest that writing a checkpoint should take.
    found : dict
        On rank 0, what judgements leave for later ones, in seconds: ``checkpoint_s``, to write a checkpoint, and
        ``every_s``, between two of them; only what is known.
    """

    probe: Probe
    environment: dict[str, str]
    folder: Path
    host: str
    hosts: list[str] = field(default_factory=list)
    root: Path = Path("/")
    config: Config | None = None
    scratch: Path | None = None
    samples_per_s: float | None = None
    checkpoint_s: float = 120.0
    found: dict[str, float] = field(default_factory=dict)

    def who(self, ranks: Iterable[int]) -> str:
        """``rank 2 on node7``; several ranks by host, the first few of them."""
        ranks = sorted(ranks)
        if len(ranks) == self.probe.size > 1:
            return "every rank"
        shown = ", ".join(f"rank {r} on {self.hosts[r]}" for r in ranks[:4])
        return shown + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")

    def by_host(self) -> dict[int, list[int]]:
        """Ranks of each host."""
        out: dict[int, list[int]] = {}
        for rank, host in enumerate(self.probe.host_of):
            out.setdefault(host, []).append(rank)
        return out


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing to look at.

    Attributes
    ----------
    name : str
    measure : callable
        ``(site) -> answer``, on every rank; may communicate. What it raises is found on that rank; where others then
        wait for it, the time limit ends that.
    judge : callable
        ``(answers by rank, site) -> findings``, on rank 0.
    """

    name: str
    measure: Callable[[Site], Any]
    judge: Callable[[Sequence[Any], Site], Iterator[Finding]]


def odd_ones(values: Sequence[Any]) -> tuple[Any, list[int]]:
    """The commonest value (the first of equals), and the ranks that have another."""
    usual = Counter(values).most_common(1)[0][0]
    return usual, [rank for rank, value in enumerate(values) if value != usual]


def text_of(path: Path) -> str | None:
    """A file's text, stripped; None where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
