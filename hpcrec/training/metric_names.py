"""Names of metrics: which there are, what each needs, and which way it is better. Computes nothing, imports nothing.

Configurations are checked against it, and ``metrics`` computes what it names. docs/metrics.md defines each.
"""

import difflib
import re
from dataclasses import dataclass

DEFAULT = ("auc", "logloss", "normalized_entropy", "calibration")
TABLES = ("calibration_by_decile", "calibration_by")  # what evaluations have besides numbers


@dataclass(frozen=True)
class Kind:
    """What is known of a metric before it is computed.

    Attributes
    ----------
    rises : bool or None
        Whether higher is better; None where neither is.
    by_group : bool
        It needs the groups of samples.
    at_k : bool
        It is of the first k samples of a group, and its name ends with ``@k``.
    """

    rises: bool | None
    by_group: bool = False
    at_k: bool = False


KINDS: dict[str, Kind] = {
    "auc": Kind(rises=True),
    "pr_auc": Kind(rises=True),
    "logloss": Kind(rises=False),
    "normalized_entropy": Kind(rises=False),
    "rmse": Kind(rises=False),
    "calibration": Kind(rises=None),
    "gauc": Kind(rises=True, by_group=True),
    "mrr": Kind(rises=True, by_group=True),
    "ndcg": Kind(rises=True, by_group=True, at_k=True),
    "recall": Kind(rises=True, by_group=True, at_k=True),
}
ALLOWED = f"{', '.join(f'{n}@K' if kind.at_k else n for n, kind in KINDS.items())}, or package.module:function"
_AT_K = re.compile(r"([a-z_]+)@([1-9][0-9]{0,8})")


def is_own(name: str) -> bool:
    """Whether it is an import path, so a metric of the user's own."""
    return ":" in name


def problem(name: str) -> str:
    """What is wrong with a name, as the rest of a sentence; empty where nothing is."""
    if is_own(name):
        module, _, function = name.partition(":")
        dotted = all(part.isidentifier() for part in module.split("."))
        return "" if dotted and function.isidentifier() else f"is {name!r}, no import path. Allowed: {ALLOWED}."
    found = _AT_K.fullmatch(name)
    kind = KINDS.get(found[1] if found else name)
    if kind is None or (found and not kind.at_k):
        near = difflib.get_close_matches(name.lower(), KINDS, n=1)
        meant = "" if not near else f' Did you mean "{near[0]}{"@10" if KINDS[near[0]].at_k else ""}"?'
        return f"is {name!r}. Allowed: {ALLOWED}.{meant}"
    if kind.at_k and not found:
        return f"is {name!r}, which is of the first K samples of a group. Name K, from 1 on, as in '{name}@10'."
    return ""


def parse(name: str) -> tuple[str, int]:
    """The key in ``KINDS`` of a name without ``problem``, and its k (0 where it has none)."""
    kind, _, k = name.partition("@")
    return kind, int(k or 0)


def kind_of(name: str) -> Kind | None:
    """What is known of a metric; None of one of the user's own."""
    return None if is_own(name) else KINDS[parse(name)[0]]
