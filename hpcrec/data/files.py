"""Files that are whole or absent: a temporary name beside the target, flushed to disk, then renamed.

Knows nothing of what is in them.
"""

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from hpcrec.again import refused
from hpcrec.errors import OutputError, UnreadableError

_TEMPORARY = re.compile(r"^\.(.+)\.\d+\.part$")  # see `temporary_beside`


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk refuses inside becomes an `OutputError` that names `path`, as it is to be called (`settled`)."""
    try:
        yield
    except (OutputError, UnreadableError):  # which name what they are of
        raise
    except (OSError, RuntimeError, KeyError) as error:  # HDF5 and h5py report some failures of the disk as the others
        if isinstance(error, KeyError) and refused(error) is None:
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())  # HDF5's have several lines
        of = getattr(error, "filename", None)
        if isinstance(of, str) and settled(Path(of)) != settled(path):  # of another file, or folder, in it
            reason = f"{reason}: {settled(Path(of))}"
        raise OutputError(
            f"{settled(path)}: cannot be written ({reason}). Free space there, or choose another folder that can be "
            "written."
        ) from error


def temporary_beside(path: Path) -> Path:
    """Name in the same folder under which `path` is written; one a process, so that two writers do not meet."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def settled(path: Path) -> Path:
    """The name that a path has once neither it nor a folder of it is written under a temporary name any more."""
    return Path(*(_TEMPORARY.sub(r"\1", part) for part in path.parts))


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """An error of the system inside says which path it is of, also where a descriptor was asked that has no name."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def sync(folder: Path) -> None:
    """Flush the names in a folder to disk; bytes of a file are flushed by the descriptor that wrote them (`synced`)."""
    with named(folder):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def synced(path: Path) -> Iterator[BinaryIO]:
    """A new file to write, on disk when the block has ended.

    It is flushed by the descriptor that wrote it, and what closing it reports is raised: another descriptor, opened
    later, is not told of every write that failed before.
    """
    with named(path), path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def publish(temporary: Path, path: Path) -> None:
    """Give `temporary`, which is on disk, its name `path`, and flush the folder so that the name lasts."""
    temporary.replace(path)
    sync(path.parent)


def write_text(path: Path, text: str, look: Callable[[], None] = lambda: None) -> None:
    """Write a small text file whole or not at all; ``look`` is called before it is renamed, and may raise instead."""
    temporary = temporary_beside(path)
    with writing(path):
        try:
            with synced(temporary) as file:
                file.write(text.encode())
            look()
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def remove_folder(folder: Path, comes_on: Callable[[], None] = lambda: None) -> None:
    """Remove a folder with all that is in it, if it is there; ``comes_on`` is called at each file.

    Of a link, itself one too, only the link goes: what it leads to is somebody else's.
    """
    if folder.is_symlink():
        folder.unlink()
        return

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for where, folders, names in os.walk(folder, topdown=False, onerror=refused):
        for name in [*names, *(name for name in folders if Path(where, name).is_symlink())]:
            Path(where, name).unlink()
            comes_on()
        Path(where).rmdir()


class WholeOrAbsent(ABC):
    """What is written in a `with` block: closed at its end, given up where it fails."""

    @abstractmethod
    def close(self) -> None:
        """Finish it."""

    @abstractmethod
    def abort(self) -> None:
        """Close what is not to be kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
