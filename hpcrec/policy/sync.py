"""Policy ``sync``: every lookup sees every earlier update. The reference that the other policies are held to."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class SyncOptions:
    """There are none."""


class Sync:
    """See ``Policy``."""

    Options: ClassVar[type] = SyncOptions
    in_flight = 1

    def __init__(self, options: SyncOptions) -> None: ...

    def version(self, step: int, since: int) -> int:  # noqa: ARG002
        """Each step's own."""
        return step
