"""hpcrec trains recommendation models whose embedding tables outgrow a node, over MPI.

``hpcrec.open_session(config)`` is the way in for a loop of one's own (``examples/own_loop``); the command ``hpcrec``
does the rest. Imports nothing until asked, so that metrics, data and configuration load without torch or MPI.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcrec.build.session import open_session
    from hpcrec.training.session import Session

del TYPE_CHECKING  # what completes names would offer it

__all__ = ["Session", "open_session"]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name == "open_session":
        from hpcrec.build.session import open_session

        return open_session
    if name == "Session":
        from hpcrec.training.session import Session

        return Session
    raise AttributeError(f"module 'hpcrec' has no attribute {name!r}. It has: {', '.join(__all__)}.")
