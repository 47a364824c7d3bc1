"""A tree of dataclasses as a schema: its fields, what their types allow in words, and finding one by its key path."""

import dataclasses
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from hpcrec.toml.write import shown

Keys = tuple[str, ...]


def allowed(annotation: Any) -> str:
    """What a field's type takes, in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return allowed(args[0]) + _bounds(args[1:])
    if origin is Literal:
        return ", ".join(shown(a) for a in args)
    if origin in (Union, UnionType):
        return " or ".join(allowed(a) for a in args if a is not NoneType)
    if origin is tuple:
        return f"a list, each {allowed(args[0])}"
    if origin is dict:
        return f"a table of name = {allowed(args[1])}"
    if dataclasses.is_dataclass(annotation):
        return f"a table with keys {', '.join(f.name for f in dataclasses.fields(annotation))}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(annotation, "any value")


def _bounds(metadata: Sequence[Any]) -> str:
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "not empty"}
    text = ""
    for item in (inner for outer in metadata for inner in getattr(outer, "metadata", [outer])):
        for name, word in words.items():
            if (bound := getattr(item, name, None)) is not None:
                text += f", {word}" if name == "min_length" else f", {word} {bound}"
    said = (getattr(item, "description", None) for item in metadata)  # of a pattern, which no reader wants to see
    return text + "".join(f", {words}" for words in said if words)


def choices(annotation: Any) -> list[str]:
    """The words that a type allows, where it allows only some."""
    if get_origin(annotation) is Literal:
        return [str(a) for a in get_args(annotation)]
    return [choice for inner in get_args(annotation) for choice in choices(inner)]


def without_none(annotation: Any) -> Any:
    """The annotation without ``Annotated`` and ``| None``."""
    if get_origin(annotation) is Annotated:
        return without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [a for a in get_args(annotation) if a is not NoneType]
        return without_none(members[0]) if len(members) == 1 else annotation
    return annotation


def dataclass_in(annotation: Any) -> type | None:
    """The dataclass that a field is a section of, if it is one."""
    plain = without_none(annotation)
    return plain if isinstance(plain, type) and dataclasses.is_dataclass(plain) else None


def is_required(field: Any) -> bool:
    """Whether a dataclass's field has no default."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def leaves(schema: type, above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Key path and annotation of every field that is not itself a section."""
    for name, annotation in get_type_hints(schema, include_extras=True).items():
        if (inner := dataclass_in(annotation)) is not None:
            yield from leaves(inner, (*above, name))
        elif not name.startswith("_"):
            yield (*above, name), annotation


def find(schema: type, loc: Sequence[Any]) -> tuple[Keys, Any]:
    """Follows a pydantic location as far as the schema goes: the key path, and what is declared there."""
    keys: list[str] = []
    annotation: Any = schema
    for part in loc:
        plain = without_none(annotation)
        section = dataclass_in(plain)
        if section is not None and part in (hints := get_type_hints(section, include_extras=True)):
            annotation = hints[part]
        elif get_origin(plain) is dict:
            annotation = get_args(plain)[1]
        else:
            break  # an item of a list, or pydantic's name for a member of a union
        keys.append(str(part))
    return tuple(keys), annotation
