"""TOML as frozen dataclasses: read, checked as a whole, written back, and described for a reader.

Takes any tree of dataclasses whose fields carry a string literal as their description. Knows nothing of what the keys
mean (``hpcrec.config``).
"""

from hpcrec.toml.check import check, keys_named, source_of
from hpcrec.toml.parse import Unset, override, read, split
from hpcrec.toml.reference import reference
from hpcrec.toml.schema import Keys, leaves
from hpcrec.toml.write import dotted, dump, plain, shown

__all__ = [
    "Keys",
    "Unset",
    "check",
    "dotted",
    "dump",
    "keys_named",
    "leaves",
    "override",
    "plain",
    "read",
    "reference",
    "shown",
    "source_of",
    "split",
]
