"""Policy ``cached``: dense ranks keep copies of rows, which may lack a bounded number of updates, and learn late.

The schedule is that of ``sync``, or with a ``lookahead`` that of ``hybrid``: owners are asked for the rows of steps to
come, and answer, while the model computes. Which rows are read from copies, and when their gradients are pushed, is
form ``cached`` (``exchange.forms.cached``), which every feature has that has no form of its own. Source: [HET].
"""

from dataclasses import dataclass
from typing import ClassVar

WINDOW = 100  # steps that the rule known looks ahead, where it is not told how many


@dataclass(frozen=True, kw_only=True)
class CachedOptions:
    """See ``policy`` in ``config.keys``."""

    staleness: int = 10
    capacity: int | float | str = 0.1  # rows of each pool, a share of them, or bytes of all with a unit
    rule: str = "sum"
    cache: str = "lru"
    max_age: int = 0  # none
    lookahead: int = 0
    window: int | None = None  # of the rule known alone

    def __post_init__(self) -> None:
        if self.cache == "known" and not self.window:
            object.__setattr__(self, "window", WINDOW)


class Cached:
    """See ``Policy``."""

    Options: ClassVar[type] = CachedOptions
    form: ClassVar[str] = "cached"

    def __init__(self, options: CachedOptions) -> None:
        self.options = options
        self.in_flight = 1 + options.lookahead

    def version(self, step: int, since: int) -> int:
        """What owners answer from; what copies lack besides is counted by row."""
        return max(since, step - self.options.lookahead)
