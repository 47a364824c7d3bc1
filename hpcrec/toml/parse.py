"""TOML files and ``a.b=value`` overrides as mappings. Knows no schema."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrec.again import read_again
from hpcrec.errors import ConfigError, UnreadableError
from hpcrec.toml.schema import Keys
from hpcrec.toml.write import dotted, shown, spelled


class Unset(str):
    """Among overrides, a dotted key that is taken out of the file, so that its default holds."""


def _said(error: tomllib.TOMLDecodeError, text: str) -> str:
    """What is wrong, and the line that it is in."""
    place = re.search(r"at line (\d+)", str(error))
    lines = text.splitlines()
    if place is None or int(place[1]) > len(lines):  # where the file ends too soon
        return str(error)
    return f"{error}: {lines[int(place[1]) - 1].strip()[:80]!r}"


def read(path: Path) -> dict[str, Any]:
    """The mapping in a TOML file.

    Raises
    ------
    ConfigError
        A file that is not there or may not be read, or is not TOML.
    UnreadableError
        It cannot be read just now, at any try: a file server fails, which says nothing about the file.
    """
    text = ""
    try:
        text = read_again(path, path.read_bytes).decode()
        return tomllib.loads(text)
    except UnreadableError as error:
        if isinstance(error.__cause__, PermissionError):
            raise ConfigError(f"{path}: cannot be read ({error.__cause__.strerror}). See who may read it.") from error
        raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Give the path of a TOML file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8, as TOML is. Give the path of a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: is not TOML: {_said(error, text)}. Text takes quotes; a section is [name]."
        ) from error


def override(mapping: Mapping[str, Any], texts: Sequence[str]) -> tuple[dict[str, Any], dict[Keys, str]]:
    """A copy of ``mapping`` with each ``a.b=value`` put in, and which text gave each key.

    A value is TOML where it parses as such, else the text itself. Each ``Unset`` is first taken out, with all below it.

    Raises
    ------
    ConfigError
        A text without ``=``, a key that is not one, or a key below something that is not a table; one that is to be
        taken out and is not there, or is set as well.
    """
    result = _copied(mapping)
    removed = {_take_out(result, text): text for text in texts if isinstance(text, Unset)}
    sources: dict[Keys, str] = {}
    for text in (text for text in texts if not isinstance(text, Unset)):
        source = "--set " + text.replace("\n", "\\n")  # a message is one line
        keys, value = _parse_override(text, source)
        inner = result
        for depth, key in enumerate(keys[:-1], start=1):
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"{source}: {dotted(keys[:depth])} is {shown(inner)}, which has no keys below it. "
                    f"Set {dotted(keys[:depth])} itself."
                )
        if keys in removed:
            raise ConfigError(f"{source}: --unset {removed[keys]} takes the same key out. Leave one of them out.")
        inner[keys[-1]] = value
        sources[keys] = source
    return result, sources


def _take_out(mapping: dict[str, Any], key: Unset) -> Keys:
    """Removes what is there by a dotted key; the key's parts."""
    source = "--unset " + key.replace("\n", "\\n")  # a message is one line
    try:
        keys = split(key.strip())
    except ValueError as error:
        wanted = "Write it as section.key, for example --unset train.steps."
        raise ConfigError(f"{source}: {str(key)!r} is not a key. {wanted}") from error
    inner: Any = mapping
    for depth, name in enumerate(keys):
        if not isinstance(inner, dict) or name not in inner:
            known = ", ".join(spelled(one) for one in inner) if isinstance(inner, dict) and inner else "nothing"
            where = f"in [{dotted(keys[:depth])}]" if depth else "as sections"
            raise ConfigError(
                f"{source}: {dotted(keys[: depth + 1])} is not set, so there is nothing to take out. Set {where}: "
                f"{known}. Leave it out, or name one of these."
            )
        if depth < len(keys) - 1:
            inner = inner[name]
    del inner[keys[-1]]
    return keys


def _parse_override(text: str, source: str) -> tuple[Keys, Any]:
    key_text, equals, value_text = text.partition("=")
    wanted = "Write it as section.key=value, for example --set train.steps=100."
    if not equals:
        raise ConfigError(f"{source}: has no '='. {wanted}")
    try:
        return split(key_text.strip()), _parse_value(value_text.strip())
    except ValueError as error:
        raise ConfigError(f"{source}: {key_text!r} is not a key. {wanted}") from error


def split(key: str) -> Keys:
    """The parts of a dotted key, as TOML reads it."""
    inner: Any = tomllib.loads(f"{key} = 0")
    keys: list[str] = []
    while isinstance(inner, dict):
        if len(inner) > 1:
            raise ValueError(f"{key!r} is more than a key")
        ((name, inner),) = inner.items()
        keys.append(name)
    return tuple(keys)


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _copied(value: Any) -> Any:
    return {k: _copied(v) for k, v in value.items()} if isinstance(value, Mapping) else value
