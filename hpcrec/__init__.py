"""hpcrec trains recommendation models whose embedding tables outgrow a node, over MPI.

``train``, ``load``, ``prepare`` and ``launch`` are for notebooks and scripts (docs/python.md); ``open_session(config)``
is the way in for a loop of one's own (``examples/own_loop``). Imports nothing until asked, so that metrics, data and
configuration load without torch or MPI.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcrec.api.launched import launch
    from hpcrec.api.loaded import Loaded, load
    from hpcrec.api.prepared import prepare
    from hpcrec.api.trained import Run, train
    from hpcrec.build.session import open_session
    from hpcrec.training.callbacks import Callback, CsvLog
    from hpcrec.training.session import Session

del TYPE_CHECKING  # what completes names would offer it

__all__ = [
    "Callback",
    "CsvLog",
    "Loaded",
    "Run",
    "Session",
    "launch",
    "load",
    "open_session",
    "prepare",
    "train",
]
_MODULES = {
    "Callback": "hpcrec.training.callbacks",
    "CsvLog": "hpcrec.training.callbacks",
    "Loaded": "hpcrec.api.loaded",
    "Run": "hpcrec.api.trained",
    "Session": "hpcrec.training.session",
    "launch": "hpcrec.api.launched",
    "load": "hpcrec.api.loaded",
    "open_session": "hpcrec.build.session",
    "prepare": "hpcrec.api.prepared",
    "train": "hpcrec.api.trained",
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(_importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'hpcrec' has no attribute {name!r}. It has: {', '.join(__all__)}.")
