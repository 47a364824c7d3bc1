"""TOML as frozen dataclasses: checked as a whole, written back, and described for a reader.

Takes any tree of dataclasses whose fields carry a string literal as their description. Turns what pydantic finds into
one sentence that names the source, the key, what was found, what is allowed and what to change. Knows nothing of what
the keys mean (``config``).
"""

import ast
import dataclasses
import difflib
import inspect
import json
import math
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from hpcrec.errors import ConfigError

T = TypeVar("T")
Keys = tuple[str, ...]
_SHOWN_CHARACTERS = 80  # of a value in a message


def read(path: Path) -> dict[str, Any]:
    """The mapping in a TOML file.

    Raises
    ------
    ConfigError
        A file that cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}). Give the path of a TOML file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8, as TOML is. Give the path of a TOML file.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}. Text takes quotes; a section is [name].") from error


def override(mapping: Mapping[str, Any], texts: Sequence[str]) -> tuple[dict[str, Any], dict[Keys, str]]:
    """A copy of ``mapping`` with each ``a.b=value`` put in, and which text gave each key.

    A value is TOML where it parses as such, else the text itself.

    Raises
    ------
    ConfigError
        A text without ``=``, a key that is not one, or a key below something that is not a table.
    """
    result = _copied(mapping)
    sources: dict[Keys, str] = {}
    for text in texts:
        source = f"--set {text}"
        keys, value = _parse_override(text, source)
        inner = result
        for depth, key in enumerate(keys[:-1], start=1):
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"{source}: {dotted(keys[:depth])} is {shown(inner)}, which has no keys below it. "
                    f"Set {dotted(keys[:depth])} itself."
                )
        inner[keys[-1]] = value
        sources[keys] = source
    return result, sources


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
        The first thing that is wrong, and which other keys are.
    """
    try:
        return TypeAdapter(schema).validate_python(mapping)
    except ValidationError as error:
        problems: dict[Keys, str] = {}
        for one in error.errors(include_url=False):
            keys, text = _explain(schema, mapping, one)
            problems.setdefault(keys, text)
        (keys, text), *others = problems.items()
        more = f" ({len(others)} more to correct: {', '.join(dotted(k) for k, _ in others)})" if others else ""
        raise ConfigError(f"{source_of(keys, source, sources)}: {text}{more}") from None


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
    keys, annotation = _find(schema, error["loc"])
    value = _value_at(mapping, keys)
    near = difflib.get_close_matches(str(value), _choices(annotation), n=1)
    change = f"Did you mean {shown(near[0])}?" if near else f"Correct it, or give --set {dotted(keys)}=VALUE."
    return keys, f"{dotted(keys)} is {shown(value)}. Allowed: {allowed(annotation)}. {change}"


def _unknown(schema: type, keys: Keys, value: Any) -> str:
    _, section = _find(schema, keys[:-1])
    known = [f.name for f in dataclasses.fields(_dataclass_in(section) or schema)]
    near = difflib.get_close_matches(keys[-1], known, n=1)
    if near:
        change = f"Did you mean {dotted((*keys[:-1], near[0]))}?"
    else:
        elsewhere = [k for k, _ in leaves(schema) if k[-1] == keys[-1]]
        change = f"Did you mean {dotted(elsewhere[0])}?" if elsewhere else "Remove it."
    where = f"in [{dotted(keys[:-1])}]" if keys[:-1] else "as sections"
    return f"{dotted(keys)} is not a key (its value is {shown(value)}). {change} Allowed {where}: {', '.join(known)}."


def _required(schema: type, loc: Keys) -> tuple[Keys, Any]:
    """A missing key; for a missing section its first required key."""
    keys, annotation = _find(schema, loc)
    inner = _dataclass_in(annotation)
    if inner is None:
        return keys, annotation
    first = next(f.name for f in dataclasses.fields(inner) if _is_required(f))
    return (*keys, first), get_type_hints(inner, include_extras=True)[first]


def _find(schema: type, loc: Sequence[Any]) -> tuple[Keys, Any]:
    """Follows a pydantic location as far as the schema goes: the key path, and what is declared there."""
    keys: list[str] = []
    annotation: Any = schema
    for part in loc:
        plain = _without_none(annotation)
        section = _dataclass_in(plain)
        if section is not None and part in (hints := get_type_hints(section, include_extras=True)):
            annotation = hints[part]
        elif get_origin(plain) is dict:
            annotation = get_args(plain)[1]
        else:
            break  # an item of a list, or pydantic's name for a member of a union
        keys.append(str(part))
    return tuple(keys), annotation


def _value_at(mapping: Any, keys: Keys) -> Any:
    for key in keys:
        mapping = mapping[key]
    return mapping


# ---- what a type allows ----------------------------------------------------------------------------------------------


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
    return text


def _choices(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(a) for a in get_args(annotation)]
    return [choice for inner in get_args(annotation) for choice in _choices(inner)]


def _without_none(annotation: Any) -> Any:
    """The annotation without ``Annotated`` and ``| None``."""
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [a for a in get_args(annotation) if a is not NoneType]
        return _without_none(members[0]) if len(members) == 1 else annotation
    return annotation


def _dataclass_in(annotation: Any) -> type | None:
    plain = _without_none(annotation)
    return plain if isinstance(plain, type) and dataclasses.is_dataclass(plain) else None


def _is_required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def leaves(schema: type, above: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Key path and annotation of every field that is not itself a section."""
    for name, annotation in get_type_hints(schema, include_extras=True).items():
        if (inner := _dataclass_in(annotation)) is not None:
            yield from leaves(inner, (*above, name))
        elif not name.startswith("_"):
            yield (*above, name), annotation


# ---- writing ---------------------------------------------------------------------------------------------------------


def dump(value: Any) -> str:
    """A dataclass or mapping as TOML; fields that are None are left out, since TOML has no word for them."""
    lines: list[str] = []
    _dump_table(plain(value), (), lines)
    return "\n".join(lines).strip() + "\n"


def plain(value: Any) -> Any:
    """Dataclasses as dictionaries without None, tuples as lists."""
    if dataclasses.is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    return [plain(v) for v in value] if isinstance(value, list | tuple) else value


def _dump_table(table: Mapping[str, Any], above: Keys, lines: list[str]) -> None:
    scalars = {k: v for k, v in table.items() if not isinstance(v, dict)}
    if above and (scalars or not table):
        lines += ["", f"[{dotted(above)}]"]
    lines += [f"{spelled(k)} = {_dump_value(v)}" for k, v in scalars.items()]
    for key, inner in table.items():
        if isinstance(inner, dict):
            _dump_table(inner, (*above, key), lines)


def _dump_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf and nan are spelled alike in TOML
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_dump_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{spelled(k)} = {_dump_value(v)}" for k, v in value.items()) + "}"
    return repr(value)


def spelled(key: str) -> str:
    """A key as TOML writes it: bare where it can be."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare or key in ("-", "_") else _dump_value(key)


def dotted(keys: Sequence[str]) -> str:
    """``a.b.c``."""
    return ".".join(spelled(key) for key in keys)


def shown(value: Any) -> str:
    """A value as TOML writes it, cut where it is long."""
    text = _dump_value(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


# ---- reference -------------------------------------------------------------------------------------------------------


def field_docs(schema: type) -> dict[str, str]:
    """The string literal under each field of a dataclass, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(schema))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for node, following in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr):
            docs[node.target.id] = " ".join(ast.literal_eval(following.value).split())
    return docs


def reference(schema: type, above: Keys = (), heading: str = "##") -> str:
    """Every key of a dataclass and of the sections in it: default, allowed values and description, as Markdown."""
    docs, hints = field_docs(schema), get_type_hints(schema, include_extras=True)
    text = ""
    sections: list[tuple[Keys, type]] = []
    rows: list[str] = []
    for field in dataclasses.fields(schema):
        annotation = hints[field.name]
        inner, keys = _dataclass_in(annotation), (*above, field.name)
        if inner is None and get_origin(_without_none(annotation)) is dict:
            inner, keys = _dataclass_in(get_args(_without_none(annotation))[1]), (*keys, "<name>")
        if inner is not None:
            sections.append((keys, inner))
        if above:
            cells = (f"`{field.name}`", _default(field), allowed(annotation), docs[field.name])
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    if rows:
        text += "| key | default | allowed | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for keys, inner in sections:
        about = " ".join((inspect.getdoc(inner) or "").split())
        text += f"\n{heading} [{'.'.join(keys)}]\n\n{about}\n\n" + reference(inner, keys, heading + "#")
    return text


def _default(field: Any) -> str:
    if _is_required(field):
        return "required"
    if field.default_factory is not dataclasses.MISSING:
        value = plain(field.default_factory())
        return "see below" if value and isinstance(value, dict) else f"`{_dump_value(value)}`"
    return "" if field.default is None else f"`{_dump_value(plain(field.default))}`"
