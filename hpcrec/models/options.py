"""Checks that the options of the models share. They raise ConfigError; they know no model."""

from collections.abc import Sequence

from hpcrec.errors import ConfigError


def require_sizes(model: str, name: str, sizes: Sequence[int], *, at_least: int = 0) -> None:
    """Sizes of layers: a sequence of positive integers, ``at_least`` so many."""
    whole = isinstance(sizes, list | tuple) and all(
        isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes
    )
    if not whole or len(sizes) < at_least:
        raise ConfigError(
            f"model {model}: {name} is {sizes!r}; it must be a list of at least {at_least} positive integers, "
            "as [256, 128]"
        )


def require_count(model: str, name: str, count: int, *, at_least: int) -> None:
    """An integer, at least so much."""
    if not isinstance(count, int) or isinstance(count, bool) or count < at_least:
        raise ConfigError(f"model {model}: {name} is {count!r}; it must be an integer of at least {at_least}")


def require_dropout(model: str, dropout: float) -> None:
    """A share in [0, 1)."""
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ConfigError(f"model {model}: dropout is {dropout!r}; it must be a number in [0, 1), 0 for none")


def require_choice(model: str, name: str, value: str, allowed: Sequence[str]) -> None:
    """One of a few words."""
    if value not in allowed:
        raise ConfigError(f"model {model}: {name} is {value!r}; allowed are {', '.join(map(repr, allowed))}")
