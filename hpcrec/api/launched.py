"""``hpcrec.launch``: a function of a notebook or script on several ranks, and what it gave on each.

The function and its arguments go to the ranks in a file, what they give comes back in others. Starts ranks as
``hpcrec run`` does, and no MPI here; what a rank does is ``on_rank``.
"""

import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcrec.errors import ConfigError, MissingError, RankError
from hpcrec.launcher.mpirun import run_command

WORK, GIVEN, FAILED = "work.pickle", "given.pickle", "failed-{}.pickle"
_MODULE = "hpcrec.api.on_rank"


def launch(function: Callable[..., Any], *arguments: Any, ranks: int = 4, threads: int | None = None) -> list[Any]:
    """``function(*arguments)`` on each of several ranks, which mpirun starts: processes of their own, on this machine.

    In it ``hpcrec.train`` trains on all of them. What ranks print is printed here.

    Parameters
    ----------
    function : callable
        It and its arguments can be pickled, and what it gives. One that was made in a notebook or script needs the
        package cloudpickle.
    ranks : int
    threads : int, optional
        Of each rank; by default an equal part of the cores.

    Returns
    -------
    list
        What it gave, by rank.

    Raises
    ------
    RankError
        It failed on a rank; with the traceback from there, and caused by the error itself where that can be pickled.
    ConfigError
        Fewer than one rank, or what cannot be pickled.
    MissingError
        There is no mpirun, or no cloudpickle where it is needed.
    """
    with tempfile.TemporaryDirectory(prefix="hpcrec-launch-") as place:
        folder = Path(place)
        (folder / WORK).write_bytes(_packed(function, arguments))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        code = run_command(
            ranks,
            [place],
            environment=environment,
            threads=threads,
            program=(sys.executable, "-u", "-m", _MODULE),
        )
        for rank in range(ranks):
            if (path := folder / FAILED.format(rank)).exists():
                text, error = pickle.loads(path.read_bytes())
                raise RankError(f"{_name(function)} failed on rank {rank} of {ranks}:\n{text}") from _unpacked(error)
        if not (folder / GIVEN).exists():
            raise RankError(
                f"{_name(function)}: its ranks ended with exit code {code} before all had given a result. What they "
                "said is above."
            )
        given: list[Any] = [pickle.loads(one) for one in pickle.loads((folder / GIVEN).read_bytes())]
        return given


def _packed(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    if not callable(function):
        raise ConfigError(f"launch: {function!r} is no function. Give one, and then its arguments: launch(f, a, b).")
    pickler = cloudpickle_at_hand()
    if pickler is None and getattr(function, "__module__", "__main__") == "__main__":
        raise MissingError(
            f"launch: {_name(function)} was made in a notebook or a script, which ranks cannot import, so it is handed "
            "over by cloudpickle, which is not installed: pip install cloudpickle. Or put it into a module."
        )
    try:
        packed: bytes = (pickler or pickle).dumps((function, arguments))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"launch: {_name(function)} or its arguments cannot be pickled ({error}). Give numbers, text, paths, "
            "arrays or frames, and open files and sessions on the ranks."
        ) from error
    return packed


def cloudpickle_at_hand() -> ModuleType | None:
    """The package, which pickles what nobody can import; None where it is not installed."""
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError:
        return None
    found: ModuleType = cloudpickle
    return found


def _unpacked(error: bytes | None) -> BaseException | None:
    """The error itself; None where it cannot be had here."""
    try:
        found = None if error is None else pickle.loads(error)
    except Exception:  # whatever its class does as it is made anew
        return None
    return found if isinstance(found, BaseException) else None


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", repr(function)))
