"""Loading the native module ``hpcrec._native``.

OpenMP: a process must have one runtime, or two thread pools fight for the cores; torch brings its own. So the module is
compiled with OpenMP but linked to no runtime, and finds its symbols in the one that is loaded here: torch's, without
importing torch; where there is no torch, the system's. Knows nothing of what is in the module.
"""

import ctypes
import ctypes.util
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcrec.errors import MissingError


def openmp_runtime() -> str | None:
    """Path or name of the OpenMP runtime to share: torch's, else the system's, else None."""
    spec = importlib.util.find_spec("torch")
    for package in spec.submodule_search_locations or () if spec else ():
        for folder in (Path(package) / "lib", Path(package).parent / "torch.libs"):
            found = sorted(folder.glob("libgomp*.so*"))
            if found:
                return str(found[0])
    return ctypes.util.find_library("gomp")


def _load() -> ModuleType | MissingError:
    """The module, or the error that says how to get it."""
    runtime = openmp_runtime()
    try:
        if runtime is not None:
            ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
        return importlib.import_module("hpcrec._native")
    except (ImportError, OSError) as error:
        return MissingError(
            f"hpcrec's native kernels cannot be loaded ({error}; OpenMP runtime: {runtime or 'none found'}). "
            "Build them with `make setup` in a checkout, or `pip install .`; "
            "or run the NumPy definitions: hpcrec.kernels.use('reference')"
        )


class _Missing:
    """In place of the module, where it is not there: each of its kernels says so."""

    def __getattr__(self, name: str) -> Any:
        def missing(*_: Any) -> None:
            module()

        return missing


_loaded = _load()
loaded: Any = _loaded if isinstance(_loaded, ModuleType) else _Missing()  # once, and not in each call of a kernel


def available() -> bool:
    """Whether the native module could be loaded."""
    return isinstance(_loaded, ModuleType)


def load_error() -> MissingError | None:
    """Why the native module could not be loaded; None where it was."""
    return _loaded if isinstance(_loaded, MissingError) else None


def module() -> ModuleType:
    """The native module.

    Raises
    ------
    MissingError
        It was not built, or its OpenMP runtime is missing.
    """
    if isinstance(_loaded, MissingError):
        raise _loaded
    return _loaded
