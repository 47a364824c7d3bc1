"""A run's configuration, read and checked: what others need of `keys`, to be imported from here."""

from hpcrec.config.keys import (
    CheckpointConfig,
    Config,
    DenseConfig,
    EvaluationConfig,
    ExchangeConfig,
    PolicyConfig,
    StoreConfig,
    ThresholdConfig,
    TopologyConfig,
    TrainConfig,
    keys_named,
    load_config,
    reference,
    to_toml,
    validate,
    with_absolute_paths,
    with_copied_data,
)
from hpcrec.toml import Unset

__all__ = [
    "CheckpointConfig",
    "Config",
    "DenseConfig",
    "EvaluationConfig",
    "ExchangeConfig",
    "PolicyConfig",
    "StoreConfig",
    "ThresholdConfig",
    "TopologyConfig",
    "TrainConfig",
    "Unset",
    "keys_named",
    "load_config",
    "reference",
    "to_toml",
    "validate",
    "with_absolute_paths",
    "with_copied_data",
]
