"""What differs between runs: keys of their configurations, versions and topologies, as rows with a cell for each run.

Knows nested mappings; nothing of what their keys mean but ``run.folder``, which always differs and so is left out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

NOT_SET = "not set"
LEFT_OUT = ("run.folder",)  # of each run its own
MOST_CHARACTERS = 400  # of a value; a longer one is cut
_ABSENT = object()


def flat(nested: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` -> ``{"a.b": 1}``; an empty mapping has no keys."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{above}.{key}" if above else str(key)
        found |= flat(value, name) if isinstance(value, Mapping) else {name: value}
    return found


def differences(every: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of those keys whose values are not the same in all of them: the flat key, and the value of each."""
    flattened = [flat(one) for one in every]
    found = list[tuple[str, ...]]()
    for key in dict.fromkeys(key for one in flattened for key in one if key not in LEFT_OUT):
        values = [one.get(key, _ABSENT) for one in flattened]
        if any(value != values[0] or type(value) is not type(values[0]) for value in values):
            found.append((key, *(NOT_SET if value is _ABSENT else shown(value) for value in values)))
    return found


def shown(value: Any) -> str:
    """A value for a reader: text as it is, all else as JSON has it."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}... ({len(text):,} characters)"
