"""What copies of rows have been counted to do, of one rank: what lines of metrics and the summary are made of.

Holds things; does nothing.
"""

from dataclasses import dataclass

from hpcrec.exchange.shadow import Distances
from hpcrec.types import Floats, Ints


@dataclass(frozen=True)
class CopiesRecord:
    """Of one rank, which copies, owners' rules and shadow reads have counted so far; of the same sizes on all ranks.

    Attributes
    ----------
    names : tuple of str
    counts : float64 [counts]
        By these names.
    missing : int64 [bins]
        See ``forms.missing.Missing.reads``.
    missing_ticks : int
    tables : tuple of str
        Those whose copies are compared; none where none are.
    distances : Distances or None
        By them: the object that goes on counting.
    """

    names: tuple[str, ...]
    counts: Floats
    missing: Ints
    missing_ticks: int
    tables: tuple[str, ...]
    distances: Distances | None
