"""A mapping as an instance of a schema, or one sentence on what is wrong with it.

Turns what pydantic finds into source, key, what was found, what is allowed and what to change.
"""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hpcrec.errors import CombinedError, ConfigError
from hpcrec.toml.schema import Keys, allowed, choices, dataclass_in, find, is_required, leaves, without_none
from hpcrec.toml.write import dotted, shown, spelled

T = TypeVar("T")
_FEW = 3  # sections that a message names
_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}  # making one takes longer than using it


def check(schema: type[T], mapping: Mapping[str, Any], source: str, sources: Mapping[Keys, str]) -> T:
    """``mapping`` as an instance of ``schema``.

    Parameters
    ----------
    schema : dataclass
    mapping : mapping
    source : str
        What the message calls the mapping: its file.
    sources : mapping of key path to str
        What the message calls the keys that did not come from there.

    Raises
    ------
    ConfigError
        What is wrong; where several keys are, a ``CombinedError`` of the first thing, and which other keys are.
    """
    try:
        if schema not in _ADAPTERS:
            _ADAPTERS[schema] = TypeAdapter(schema)
        checked: T = _ADAPTERS[schema].validate_python(mapping)
        return checked
    except ValidationError as error:
        problems: dict[Keys, str] = {}
        for one in error.errors(include_url=False):
            keys, text = _explain(schema, mapping, one)
            problems.setdefault(keys, text)
        each = [ConfigError(f"{source_of(keys, source, sources)}: {text}") for keys, text in problems.items()]
        if len(each) == 1:
            raise each[0] from None
        others = ", ".join(dotted(keys) for keys in [*problems][1:])
        raise CombinedError(f"{each[0]} ({len(each) - 1} more to correct: {others})", each) from None


def source_of(keys: Keys, source: str, sources: Mapping[Keys, str]) -> str:
    """Where a key came from: the last override of it, of what is above it or below it; else the file."""
    found = [text for ours, text in sources.items() if ours[: len(keys)] == keys or keys[: len(ours)] == ours]
    return found[-1] if found else source


def _explain(schema: type, mapping: Mapping[str, Any], error: Any) -> tuple[Keys, str]:
    if error["type"] == "unexpected_keyword_argument":
        keys = tuple(str(part) for part in error["loc"])
        return keys, _unknown(schema, keys, _value_at(mapping, keys))
    if error["type"].startswith("missing"):
        keys, annotation = _required(schema, tuple(str(part) for part in error["loc"]))
        change = f"Add {spelled(keys[-1])} = ... under [{dotted(keys[:-1])}], or give --set {dotted(keys)}=VALUE"
        return keys, f"{dotted(keys)} is missing. Allowed: {allowed(annotation)}. {change}."
    keys, annotation = find(schema, error["loc"])
    value = _value_at(mapping, keys)
    near = difflib.get_close_matches(str(value), choices(annotation), n=1)
    change = f"Did you mean {shown(near[0])}?" if near else f"Correct it, or give --set {dotted(keys)}=VALUE."
    if isinstance(value, str) and without_none(annotation) in (int, float) and _is_number(value):
        change = f"Write {value.strip()} without quotes."
    return keys, f"{dotted(keys)} is {shown(value)}. Allowed: {allowed(annotation)}. {change}"


def _unknown(schema: type, keys: Keys, value: Any) -> str:
    _, section = find(schema, keys[:-1])
    known = [f.name for f in dataclasses.fields(dataclass_in(section) or schema)]
    near = difflib.get_close_matches(keys[-1], known, n=1)
    if near:
        change = f"Did you mean {dotted((*keys[:-1], near[0]))}?"
    else:
        elsewhere = keys_named(schema, keys[-1])
        change = f"Did you mean {' or '.join(map(dotted, elsewhere))}?" if elsewhere else "Remove it."
    where = f"in [{dotted(keys[:-1])}]" if keys[:-1] else "as sections"
    return f"{dotted(keys)} is not a key (its value is {shown(value)}). {change} Allowed {where}: {', '.join(known)}."


def keys_named(schema: type, name: str) -> list[Keys]:
    """Key paths that end in a name: the first few."""
    return [keys for keys, _ in leaves(schema) if keys[-1] == name][:_FEW]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _required(schema: type, loc: Keys) -> tuple[Keys, Any]:
    """A missing key; for a missing section its first required key."""
    keys, annotation = find(schema, loc)
    inner = dataclass_in(annotation)
    if inner is None:
        return keys, annotation
    first = next(f.name for f in dataclasses.fields(inner) if is_required(f))
    return (*keys, first), get_type_hints(inner, include_extras=True)[first]


def _value_at(mapping: Any, keys: Keys) -> Any:
    for key in keys:
        mapping = mapping[key]
    return mapping
