"""The models by name, their options, and how one is built. Knows nothing of configuration files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torch import nn

from hpcrec.errors import ConfigError
from hpcrec.models.base import Pooling, RecModel
from hpcrec.models.dcn import DCN, DCNOptions
from hpcrec.models.deepfm import DeepFM, DeepFMOptions
from hpcrec.models.dlrm import DLRM, DLRMOptions
from hpcrec.models.dmt import DMTDCN, DMTDLRM, DMTDCNOptions, DMTDLRMOptions
from hpcrec.models.fm import FM, FMOptions
from hpcrec.models.lr import LR, LROptions
from hpcrec.models.options import require_count
from hpcrec.models.own import check_model, load_model
from hpcrec.models.wide_deep import WideDeep, WideDeepOptions
from hpcrec.types import Feature


@dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """A model of the zoo, the type of its options, and whether they may name code of a user's, found in a folder."""

    build: Callable[..., RecModel]
    options: type
    own: bool = False


MODELS = {
    "lr": ZooEntry(build=LR, options=LROptions),
    "fm": ZooEntry(build=FM, options=FMOptions),
    "deepfm": ZooEntry(build=DeepFM, options=DeepFMOptions),
    "wide_deep": ZooEntry(build=WideDeep, options=WideDeepOptions),
    "dcn": ZooEntry(build=DCN, options=DCNOptions),
    "dlrm": ZooEntry(build=DLRM, options=DLRMOptions),
    "dmt_dlrm": ZooEntry(build=DMTDLRM, options=DMTDLRMOptions, own=True),
    "dmt_dcn": ZooEntry(build=DMTDCN, options=DMTDCNOptions, own=True),
}


def is_own(name: str) -> bool:
    """Whether a model's name is the import path of a user's builder, as ``package.module:build``."""
    return ":" in name


def options_type(name: str) -> type:
    """The frozen dataclass of a model's options.

    Raises
    ------
    ConfigError
        There is no such model.
    """
    if name not in MODELS:
        raise ConfigError(
            f"model.name is {name!r}; allowed are {', '.join(MODELS)}, or the import path of your own builder, "
            "as 'package.module:build'"
        )
    return MODELS[name].options


def make_options(name: str, options: Mapping[str, Any]) -> Any:
    """Options of a model of the zoo from plain values (lists for tuples), as a configuration file has them.

    Raises
    ------
    ConfigError
        There is no such model or option, or a value is not allowed.
    """
    known = options_type(name)
    allowed = [field.name for field in fields(known)]
    for key in options:
        if key not in allowed:
            raise ConfigError(
                f"model.options: model {name}: there is no option {key!r}; allowed are {', '.join(allowed) or 'none'}"
            )
    return known(**{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()})


def build_model(
    name: str,
    features: Sequence[Feature],
    n_dense: int,
    *,
    width: int,
    n_labels: int = 1,
    pooling: Pooling | None = None,
    options: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> nn.Module:
    """A model, its dense weights drawn from torch's generator as it stands: seed that first.

    Parameters
    ----------
    name : str
        Of the zoo, or ``package.module:build`` (see ``load_model``).
    features : sequence of Feature
    n_dense : int
        Dense inputs a sample.
    width : int
        Width of the embedding vectors.
    n_labels : int
    pooling : mapping of str to str, optional
        Feature -> ``sum`` or ``mean``; ``sum`` where it says nothing.
    options : mapping of str to value, optional
        The model's own.
    folder : Path, optional
        Where a user's own module is looked for first.

    Returns
    -------
    nn.Module
        With ``operators``; ``tables_of(model.operators)`` says which tables they read.

    Raises
    ------
    ConfigError
        Anything of the above is not possible.
    """
    require_count(name, "width", width, at_least=1)
    require_count(name, "number of labels", n_labels, at_least=1)
    if not features:
        raise ConfigError(f"model {name}: the data set has no features; a model reads at least one")
    if is_own(name):
        return load_model(
            name, features, n_dense, width=width, n_labels=n_labels, pooling=pooling, options=options, folder=folder
        )
    checked = make_options(name, options or {})
    place = {"folder": folder} if MODELS[name].own else {}
    model = MODELS[name].build(
        features, n_dense, width=width, n_labels=n_labels, pooling=pooling, options=checked, **place
    )
    check_model(name, model, features)
    return model
