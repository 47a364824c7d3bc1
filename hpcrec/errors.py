"""Exceptions that a user can act on.

Each says where, what was found, what is allowed and what to change. They derive from the builtin that fits, so that a
caller may catch either. Knows nothing of MPI: how ranks fail together is ``comm.failure``.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any


class HpcrecError(Exception):
    """Base of every error that hpcrec raises on purpose."""


class ConfigError(HpcrecError, ValueError):
    """A configuration that cannot be run: an unknown key, a wrong type, an impossible combination."""


class CombinedError(ConfigError):
    """Several errors of a configuration and of what it names, none of which follows from another.

    Its message is that of the first; ``each`` are all of them.
    """

    def __init__(self, message: str, each: Iterable[HpcrecError]) -> None:
        super().__init__(message)
        self.each = tuple(each)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.each)


class DataError(HpcrecError, ValueError):
    """A data set, or a line of one, that cannot be used."""


class OutputError(HpcrecError, OSError):
    """A file that cannot be written: a full disk, a folder that is read-only."""


class CheckpointError(HpcrecError, ValueError):
    """A checkpoint that cannot be loaded or does not fit the model."""


class LastCheckpointError(CheckpointError):
    """The last checkpoint of a stop ahead of the job's time limit, which cannot be written: an earlier one is whole."""


class UnreadableError(HpcrecError, OSError):
    """A file that the system does not let read just now, though it may be whole: a file server that fails, say."""


class TierError(HpcrecError, OSError):
    """Rows on a disk that cannot be read, or are not what was written there.

    Attributes
    ----------
    segment : Path or None
        The file of which that was found, where its disk cannot read it, or what it has is not what was written; None
        where nothing says that a file is damaged.
    """

    def __init__(self, message: str, *, segment: Path | None = None) -> None:
        super().__init__(message)
        self.segment = segment


class NonFiniteError(HpcrecError, ArithmeticError):
    """A loss or gradient that is not finite: extreme data, or training that diverged."""


class RankError(HpcrecError, RuntimeError):
    """A function of ``hpcrec.launch`` that failed on a rank; the message carries the traceback from there."""


class MissingError(HpcrecError, ImportError):
    """A package or library that is needed now and not there; the message carries the command that installs it."""
