"""A user's own model: found by import path, built, and checked before anything runs. Knows nothing of the zoo."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from hpcrec.errors import ConfigError
from hpcrec.models.base import Pooling, tables_of
from hpcrec.operators.base import OPERATOR_ATTRIBUTES, Learned, Operator
from hpcrec.types import Feature

_handed_over: dict[str, Callable[..., Any]] = {}  # by the import path that stands for each
SIGNATURE = "build(features, n_dense, *, width, n_labels=1, **options)"


def load_model(
    path: str,
    features: Sequence[Feature],
    n_dense: int,
    *,
    width: int,
    n_labels: int = 1,
    pooling: Pooling | None = None,
    options: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """Import ``package.module:build``, call it, check what it returns.

    Parameters
    ----------
    path : str
        ``package.module:build``, where ``build(features, n_dense, *, width, n_labels=1, **options)`` returns a module
        with ``operators``; a class will do for ``build``.
    features, n_dense, width, n_labels
        Handed to ``build``.
    pooling : mapping of str to str, optional
        Handed to ``build`` as ``pooling`` where it is not empty; otherwise ``build`` need not take it.
    options : mapping of str to value, optional
        Handed to ``build`` as keywords.
    folder : Path, optional
        Searched before ``sys.path``: where the configuration file is, as a rule.

    Raises
    ------
    ConfigError
        The module is not found or does not import, it has no such function, the function does not take these
        arguments, or what it returns is no model.
    """
    build = find(path, folder)
    keywords: dict[str, Any] = {"width": width, "n_labels": n_labels, **({"pooling": pooling} if pooling else {})}
    for key in options or {}:
        if key in keywords:
            raise ConfigError(f"model {path}: {key!r} is handed over anyway; leave it out of the options")
    keywords |= options or {}
    try:
        inspect.signature(build).bind(features, n_dense, **keywords)
    except TypeError as error:
        raise ConfigError(
            f"model {path}: it cannot be called with options {', '.join(keywords)}: {error}; its signature must allow "
            f"{SIGNATURE}"
        ) from error
    model = build(tuple(features), n_dense, **keywords)
    check_model(path, model, features)
    return model


def hand_over(build: Callable[..., Any]) -> str:
    """The import path of a builder, by which a configuration names it; one that nothing can import is kept here.

    It is kept until another of the same path takes its place.

    Raises
    ------
    ConfigError
        It has no name.
    """
    module, name = getattr(build, "__module__", None), getattr(build, "__qualname__", None)
    if not module or not name:
        raise ConfigError(
            f"model {build!r}: has no name of its own. Allowed: a class or a function, called as {SIGNATURE}. Write a "
            "function that calls it."
        )
    path = f"{module}:{name}"
    if getattr(sys.modules.get(module), name, None) is not build or module == "__main__":
        _handed_over[path] = build
    else:
        _handed_over.pop(path, None)
    return path


def check_model(name: str, model: object, features: Sequence[Feature]) -> None:
    """Refuse what cannot be trained.

    Raises
    ------
    ConfigError
        It is not an ``nn.Module``; ``operators`` is missing, empty or has something else than operators in it; a lookup
        reads a feature that the data set has not, or has a dense parameter too few, too many or of another shape; two
        operators disagree about a table.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model {name}: it is a {type(model).__name__}; a builder must return a torch.nn.Module with an attribute "
            "'operators'"
        )
    operators = getattr(model, "operators", None)
    if not isinstance(operators, Mapping) or not operators:
        raise ConfigError(
            f"model {name}: its attribute 'operators' is {operators!r}; it must be a dict of name to operator with at "
            "least one, as self.operators = hpcrec.models.block_operators(features, width)"
        )
    known = {feature.name for feature in features}
    for key, operator in operators.items():
        if isinstance(operator, type) or not isinstance(operator, Operator):
            lacks = [attribute for attribute in OPERATOR_ATTRIBUTES if not hasattr(operator, attribute)]
            raise ConfigError(
                f"model {name}: operators[{key!r}] is {operator!r}; it must be an operator, as "
                "hpcrec.operators.Block(lookups=..., width=...). "
                + (f"It lacks {', '.join(lacks)}." if lacks else "It is a class: make one of it.")
            )
        for lookup in operator.lookups:
            if lookup.feature not in known:
                raise ConfigError(
                    f"model {name}: operator {key!r} reads feature {lookup.feature!r}; the data set has "
                    f"{', '.join(sorted(known))}"
                )
        if isinstance(operator, Learned):
            _check_weights(f"model {name}: operator {key!r}", operator)
    tables_of(operators)
    _check_registered(name, model, operators)


def _check_registered(name: str, model: nn.Module, operators: Mapping[str, Operator]) -> None:
    """Parameters that an operator computes with are the model's: else nothing would train, sum or save them."""
    known = {id(parameter) for parameter in model.parameters()}
    for key, operator in operators.items():
        module = getattr(operator, "module", None)
        strays = (
            [] if not isinstance(module, nn.Module) else [n for n, p in module.named_parameters() if id(p) not in known]
        )
        if strays:
            raise ConfigError(
                f"model {name}: operators[{key!r}] computes with parameters that are not the model's: "
                f"{', '.join(strays)}. Make its module an attribute of the model, as self.towers = nn.ModuleList([...])"
            )


def _check_weights(where: str, operator: Learned) -> None:
    if len(operator.weights) != len(operator.lookups):
        raise ConfigError(
            f"{where} has {len(operator.lookups)} lookups and {len(operator.weights)} weights; give it one weight for "
            "each lookup"
        )
    for lookup, weight in zip(operator.lookups, operator.weights, strict=True):
        if weight.ndim < 2 or weight.shape[0] != operator.width:
            raise ConfigError(
                f"{where}: the weight of feature {lookup.feature!r} has shape {list(weight.shape)}; it must have two "
                f"dimensions or more, the first of them the {operator.width} columns of the feature's vectors"
            )


def find(path: str, folder: Path | None, what: str = "model") -> Callable[..., Any]:
    """The function that ``package.module:build`` names, looked for in ``folder`` first, where there is one.

    ``what`` is what messages call it.

    Raises
    ------
    ConfigError
        The module does not import, or has no such function.
    """
    if path in _handed_over:
        return _handed_over[path]
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        function = "build" if what == "model" else "function"
        raise ConfigError(f"{what} {path}: its import path is written 'package.module:{function}'")
    if "<" in attribute or (module_name == "__main__" and not hasattr(sys.modules["__main__"], attribute)):
        handed = f"Hand it over, as hpcrec.load(folder, model={attribute.rpartition('.')[2]}), or train with one from"
        raise ConfigError(
            f"{what} {path}: was made in a notebook, a script or a function, where nothing else can import it from. "
            + (f"{handed} a module: 'package.module:build'." if what == "model" else "Put the function into a module.")
        )
    place = None if folder is None else str(folder.resolve())
    if place is not None:
        sys.path.insert(0, place)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{what} {path}: module {module_name!r} cannot be imported: {error}; it is looked for in "
            f"{place or 'no folder of its own'}, then on the Python path"
        ) from error
    finally:
        if place is not None:
            sys.path.remove(place)
            if place not in sys.path:  # for what it imports as it is built or computes; last, for it replaces nothing
                sys.path.append(place)
    build = getattr(module, attribute, None)
    if not callable(build):
        public = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise ConfigError(
            f"{what} {path}: module {module_name!r} ({module.__file__}) has no function {attribute!r}; it has "
            f"{', '.join(public) or 'none'}"
        )
    return build
