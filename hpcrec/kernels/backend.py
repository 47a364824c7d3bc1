"""Which implementation of the kernels runs: native, NumPy's definitions, or a device's; and with how many threads.

The choice is the process's; the number of threads is the calling thread's. Either gives the same bits.
"""

import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

from hpcrec.kernels import checks, native, native_messages, reference
from hpcrec.kernels.device import Device
from hpcrec.kernels.device_array import device_of

# Modules, or objects with the same functions. "emulated": the GPU's kernels, run on the host, for tests.
BACKENDS: dict[str, Any] = {
    "native": native,
    "reference": reference,
    "cuda": Device("_cuda", "cuda"),
    "emulated": Device("_emulated", "cpu"),
}
MOST_THREADS = 1024  # the OpenMP runtime ends the process where it cannot start one

_local = threading.local()
_active: Any = None


def native_fits(*parameters: str) -> Callable[..., bool]:
    """A function that says whether the native kernels are in use and their arguments are what a kernel needs.

    It sees all that ``checks`` sees, of arrays of NumPy, in one native call. False says only that Python has to look:
    at something to be refused in words, at arrays of a device or rows of halves, or at who else is to compute.

    Parameters
    ----------
    parameters : str
        What each argument has to be, as ``native/include/hpcrec/signature.h`` says.
    """
    return native.loaded.signature(parameters, globals(), "_active", native) if native.available() else _never


def _never(*_: Any) -> bool:
    return False


def use(name: Literal["native", "reference", "cuda", "emulated"]) -> None:
    """Run the kernels of this backend from now on, in the whole process.

    Raises
    ------
    MissingError
        The backend's native module is not there.
    ValueError
        There is no backend of that name.
    """
    global _active  # noqa: PLW0603
    if name not in BACKENDS:
        raise ValueError(f"kernel backend {name!r} is not known; allowed are {', '.join(BACKENDS)}")
    if name != "reference":
        BACKENDS[name].module()
    _active = BACKENDS[name]


def backend(*arrays: Any) -> Any:
    """The device that one of these arrays is on, or the backend in use.

    That is native where it could be loaded, else, with a warning the first time, the reference.
    """
    found = device_of(*arrays)
    if found is not None:
        return found
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
    return _active


def messages_backend(definitions: ModuleType, *arrays: Any) -> Any:
    """The same for kernels of messages, whose definitions and native kernels are in modules of their own."""
    current = backend(*arrays)
    return definitions if current is reference else native_messages if current is native else current


def device(name: Literal["cuda", "emulated"]) -> Device:
    """A device, to have arrays in its memory.

    Raises
    ------
    MissingError
        Its native module is not there, or no GPU.
    """
    found: Device = BACKENDS[name]
    found.module()
    return found


def active() -> str:
    """The name of the backend in use."""
    current = backend() if _active is None else _active
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
