"""A configuration from Python: a TOML file, a dictionary as of one, keywords by section, models that are objects.

Knows how they become one mapping; what may be in it is for ``config``.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcrec import toml
from hpcrec.config import Config, keys_named, load_config, validate
from hpcrec.errors import ConfigError
from hpcrec.models.own import hand_over

Given = Path | str | Mapping[str, Any] | None
SOURCE = "the configuration"


def configured(config: Given, sections: Mapping[str, Any]) -> Config:
    """The configuration ``config`` with the keys of ``sections`` put over it, of which None takes a key out.

    Paths may be ``Path`` objects. ``model.name``, and ``module`` among its options, may be classes or functions.

    Raises
    ------
    ConfigError
        Naming what it came from, the key, what was found, what is allowed and what to change.
    """
    if config is not None and not isinstance(config, Path | str | Mapping):
        raise ConfigError(f"config is {config!r}. Allowed: the path of a TOML file, or a dict of sections.")
    path = Path(config) if isinstance(config, Path | str) else None
    mapping: dict[str, Any] = dict(toml.read(path)) if path is not None else _over({}, _as_toml(config or {}))
    for section, keys in sections.items():
        if not isinstance(keys, Mapping):
            raise ConfigError(
                f"{section} is {keys!r}. Allowed: a dict of the keys of that section.{_meant(section, keys)}"
            )
        mapping[section] = _over(mapping.get(section), _as_toml(keys))
    checked = validate(mapping, SOURCE if path is None else str(path))
    if path is None or checked.model.folder is not None:
        return checked
    return dataclasses.replace(checked, model=dataclasses.replace(checked.model, folder=str(path.parent)))


def run_config(folder: Path) -> Config:
    """The configuration of a run folder, which may have been moved since.

    Raises
    ------
    ConfigError
        It is no run folder.
    """
    if not (folder / "config.toml").is_file():
        raise ConfigError(
            f"{folder}: has no config.toml, so it is no run folder, and no export.json. Give one of them."
        )
    config = load_config(folder / "config.toml")
    return dataclasses.replace(config, run=dataclasses.replace(config.run, folder=str(folder.absolute())))


def _meant(name: str, value: Any) -> str:
    """What to write for a key that was given without its section."""
    written = [toml.split(key) for key in keys_named(name)]
    calls = [f'{keys[0]}={{"{keys[1]}": {value!r}}}' for keys in written if len(keys) == 2]
    return f" Write {' or '.join(calls)}." if calls else ""


def _over(below: Any, above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` put over ``below``, table by table; None takes a key out."""
    merged = dict(below) if isinstance(below, Mapping) else {}
    for key, value in above.items():
        merged[key] = _over(merged.get(key), value) if isinstance(value, Mapping) else value
    return {key: value for key, value in merged.items() if value is not None}


def _as_toml(value: Any) -> Any:
    """As TOML would have given it, but for None."""
    if isinstance(value, Mapping):
        return {key: _as_toml(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_toml(inner) for inner in value]
    if callable(value):
        return hand_over(value)
    return str(value) if isinstance(value, Path) else value
