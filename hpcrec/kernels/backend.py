"""Which implementation of the kernels runs: the native module, or the NumPy definitions; and with how many threads.

The choice is the process's; the number of threads is the calling thread's. Either gives the same bits.
"""

import threading
import warnings
from types import ModuleType
from typing import Literal

from hpcrec.kernels import checks, native, reference

BACKENDS: dict[str, ModuleType] = {"native": native, "reference": reference}
MOST_THREADS = 1024  # the OpenMP runtime ends the process where it cannot start one

_local = threading.local()
_active: ModuleType | None = None


def use(name: Literal["native", "reference"]) -> None:
    """Run the kernels of this backend from now on, in the whole process.

    Raises
    ------
    MissingError
        The native module is asked for and not there.
    ValueError
        There is no backend of that name.
    """
    global _active  # noqa: PLW0603
    if name not in BACKENDS:
        raise ValueError(f"kernel backend {name!r} is not known; allowed are {', '.join(BACKENDS)}")
    if name == "native":
        native.module()
    _active = BACKENDS[name]


def backend() -> ModuleType:
    """The backend in use: native where it could be loaded, else, with a warning the first time, the reference."""
    if _active is None:
        if native.available():
            use("native")
        else:
            use("reference")
            warnings.warn(
                "hpcrec runs its NumPy kernels, which are many times slower: the native module is not built. "
                "Build it with `make setup` in a checkout, or `pip install .`",
                RuntimeWarning,
                stacklevel=3,
            )
    assert _active is not None
    return _active


def active() -> str:
    """The backend in use: ``native`` or ``reference``."""
    current = backend()
    return next(key for key, module in BACKENDS.items() if module is current)


def set_threads(n: int) -> None:
    """Threads that kernels called from this Python thread use, from now on; 1 until set. No bits depend on it.

    torch's own number is untouched, but should be the same: the OpenMP runtime is shared, and ends and starts threads
    whenever two successive teams differ in size.
    """
    _local.threads = n = checks.whole("threads", n, 1, MOST_THREADS)
    if native.available():
        native.module().set_threads(n)


def get_threads() -> int:
    """Threads that kernels called from this Python thread use."""
    return getattr(_local, "threads", 1)
