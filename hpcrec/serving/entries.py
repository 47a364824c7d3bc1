"""Entries of a JSON file that may have been written by anyone: each is held to what is allowed before it is used.

Knows JSON and errors; what an entry means is for others.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrec.again import read_again
from hpcrec.errors import CheckpointError, UnreadableError

MANY = 2**63 - 1  # the largest whole number that torch and NumPy take
_SHOWN = 80  # characters of a value in an error


@dataclass(frozen=True)
class Entry:
    """A value and where it stands. Every verb raises `CheckpointError`, which names file, entry and what is allowed."""

    file: Path
    where: str
    value: Any

    def refused(self, allowed: str) -> CheckpointError:
        """The error that says what was found here and what is allowed."""
        found = f"{self.where} is " if self.where else "holds "
        return CheckpointError(f"{self.file}: {found}{shown(self.value)}. Allowed: {allowed}. Export the run again.")

    def fields(self, needed: Sequence[str], others: Sequence[str] = ()) -> dict[str, "Entry"]:
        """The entries of an object that has all of ``needed``, maybe some of ``others``, and nothing else."""
        found = self.named()
        for name in needed:
            if name not in found:
                raise CheckpointError(f"{self.file}: {self.where or 'it'} has no {name!r}. Export the run again.")
        for name in found:
            if name not in needed and name not in others:
                known = ", ".join([*needed, *others])
                raise CheckpointError(
                    f"{self.file}: {self.where or 'it'} has {shown(name)}, which is not known. Allowed: {known}."
                )
        return found

    def named(self) -> dict[str, "Entry"]:
        """The entries of an object, by any names."""
        if not isinstance(self.value, dict):
            raise self.refused("an object")
        return {name: self._inside(name, value) for name, value in self.value.items()}

    def items(self) -> list["Entry"]:
        """The entries of a list."""
        if not isinstance(self.value, list):
            raise self.refused("a list")
        return [Entry(self.file, f"{self.where}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self) -> str:
        """Any text."""
        if not isinstance(self.value, str):
            raise self.refused("text")
        return self.value

    def one_of(self, allowed: Collection[str]) -> str:
        """One of some texts."""
        if not isinstance(self.value, str) or self.value not in allowed:
            raise self.refused(", ".join(allowed) or "nothing")
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.refused("true or false")
        return self.value

    def whole(self, least: int = 0, most: int = MANY) -> int:
        """A whole number in a range."""
        if type(self.value) is not int or not least <= self.value <= most:
            raise self.refused(f"a whole number from {least} to {most}")
        return self.value

    def _inside(self, name: str, value: Any) -> "Entry":
        plain = name.replace("_", "").isalnum() and name.isascii()
        inside = name if plain else shown(name)
        return Entry(self.file, f"{self.where}.{inside}" if self.where else inside, value)


def shown(value: Any) -> str:
    """A value for an error: on one line, in plain characters, not too long."""
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def read_entries(path: Path) -> Entry:
    """What a JSON file holds.

    Raises
    ------
    CheckpointError
        It is not there, is no JSON, or has a name twice in one object.
    UnreadableError
        It cannot be read just now.
    """
    try:
        text = read_again(path, lambda: path.read_text(encoding="utf-8"))
        found = json.loads(text, object_pairs_hook=_object)
        json.dumps(found, ensure_ascii=False).encode()  # halves of characters are told here, not by whoever writes them
        return Entry(path, "", found)
    except UnreadableError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}), so {path.parent} is no export that can be used."
        ) from error
    except (ValueError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"{path}: is not of an export ({said}). Export the run again.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{shown(next(n for n in names if names.count(n) > 1))} is there twice")
    return found
