"""Values as TOML writes them. Knows no schema."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

_SHOWN_CHARACTERS = 80  # of a value in a message


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


def _dump_table(table: Mapping[str, Any], above: tuple[str, ...], lines: list[str]) -> None:
    scalars = {k: v for k, v in table.items() if not isinstance(v, dict)}
    if above and (scalars or not table):
        lines += ["", f"[{dotted(above)}]"]
    lines += [f"{spelled(k)} = {dump_value(v)}" for k, v in scalars.items()]
    for key, inner in table.items():
        if isinstance(inner, dict):
            _dump_table(inner, (*above, key), lines)


def dump_value(value: Any) -> str:
    """One value, tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf and nan are spelled alike in TOML
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return f"[{', '.join(dump_value(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{spelled(k)} = {dump_value(v)}" for k, v in value.items()) + "}"
    return repr(value)


def spelled(key: str) -> str:
    """A key as TOML writes it: bare where it can be."""
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare or key in ("-", "_") else dump_value(key)


def dotted(keys: Sequence[str]) -> str:
    """``a.b.c``."""
    return ".".join(spelled(key) for key in keys)


def shown(value: Any) -> str:
    """A value as TOML writes it, cut where it is long."""
    text = dump_value(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
