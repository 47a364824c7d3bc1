"""Plain torch models that read embeddings through operators by name. They do not know where rows live."""

from hpcrec.models.base import RecModel, block_operators, fm2_operators, tables_of, wide_operators
from hpcrec.models.own import check_model, load_model
from hpcrec.models.tower_modules import TowerModule
from hpcrec.models.zoo import MODELS, build_model, make_options, options_type

__all__ = [
    "MODELS",
    "RecModel",
    "TowerModule",
    "block_operators",
    "build_model",
    "check_model",
    "fm2_operators",
    "load_model",
    "make_options",
    "options_type",
    "tables_of",
    "wide_operators",
]
